"""One GPU: what it can, its memory in the order of streams, and what must live until work is done."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from roller.plugin import LaunchError
from roller_rocm import hip
from roller_rocm.hip import StatusError
from roller_rocm.pool import Pool, marked, reached

# Of `hipDeviceAttribute_t`: numbers on which the headers of HIP 5.2 and of HIP 7 agree.
MAX_GRID, MAX_LANES, LOCAL_BYTES = 29, 56, 74
ATTRIBUTES: Mapping[str, int] = {  # by the field of `Facts`
    "units": 63,
    "compute_units": 10015,
    "clock_khz": 5,
    "local_bytes": LOCAL_BYTES,
}
_NON_BLOCKING = 1  # flag of a stream
_NAME_BYTES = 256
_PROPERTIES_BYTES = 4096  # more than any version's structure
_ARCH_AT = {"hipGetDevicePropertiesR0600": 1160, "hipGetDeviceProperties": 396}  # gcnArchName in it; since HIP 6, and before


@dataclass(frozen=True)
class Facts:
    """What the driver says of a GPU; 0 where it says nothing.

    `arch`: the processor, without its features. `units`: what runs a workgroup, on gfx10 and newer two compute units.
    `local_bytes`: local memory of a workgroup.
    """

    name: str
    arch: str
    memory_bytes: int
    units: int
    compute_units: int
    clock_khz: int
    local_bytes: int


class Gpu:
    """The GPU of that number. `stream` is our own: for host arrays, and for arrays of libraries that have no current stream."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._pool: Pool | None = None
        self.stream = 0
        self._held: deque[tuple[int, Any]] = deque()
        self._lock = threading.RLock()  # what is let go may ask the GPU for more

    def __str__(self) -> str:
        return f"GPU {self.ordinal}"

    @cached_property
    def arch(self) -> str:
        """The processor that code objects are for, such as "gfx90a"; what is said of its features is left out, as kernels are
        compiled for any.
        """
        function = next((name for name in _ARCH_AT if hip.has(name)), "hipGetDevicePropertiesR0600")
        told = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        hip.call(function, told, self.ordinal)
        start = _ARCH_AT[function]
        return told.raw[start : start + _NAME_BYTES].split(b"\0")[0].decode(errors="replace").partition(":")[0]

    def attribute(self, number: int) -> int:
        """One of `hipDeviceAttribute_t`."""
        return hip.number("hipDeviceGetAttribute", number, self.ordinal)

    def facts(self) -> Facts:
        """What the driver says of it."""
        name, memory = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t(0)
        hip.call("hipDeviceGetName", name, _NAME_BYTES, self.ordinal)
        hip.call("hipDeviceTotalMem", ctypes.byref(memory), self.ordinal)
        asked = {field: self.attribute(attribute) for field, attribute in ATTRIBUTES.items()}
        told = name.value.decode(errors="replace").strip()
        return Facts(name=told or "AMD GPU", arch=self.arch, memory_bytes=memory.value, **asked)

    @contextmanager
    def current(self) -> Iterator[None]:
        """The GPU is the thread's; afterwards it is the one that it was before."""
        before = hip.number("hipGetDevice")
        if before != self.ordinal:
            hip.call("hipSetDevice", self.ordinal)
        try:
            if self._pool is None:
                self._begin()
            yield
        finally:
            if before != self.ordinal:
                hip.call("hipSetDevice", before)

    def _begin(self) -> None:
        """Stream and pool; they last as long as the process."""
        with self._lock:
            if self._pool is None:
                self.stream = hip.handle("hipStreamCreateWithFlags", _NON_BLOCKING)
                self._pool = Pool(frozenset({self.stream, hip.DEFAULT_STREAM}))

    # --- memory: the GPU is the thread's ----------------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """Its memory."""
        assert self._pool is not None, "the GPU is the thread's"
        return self._pool

    def allocate(self, size: int, stream: int) -> int:
        """The address of new memory (bytes), which work on the stream may use from now on; aligned to 256 bytes."""
        if stream not in (self.stream, hip.DEFAULT_STREAM) and _is_captured(stream):
            raise LaunchError("a graph that is captured cannot hold the kernel's memory: call it outside, or give out=")
        try:
            return self.pool.take(size, stream)
        except StatusError as error:
            if error.status != hip.OUT_OF_MEMORY:
                raise error.told() from error
        try:  # once more, without what is kept for later
            self.pool.trim()
            return self.pool.take(size, stream)
        except StatusError as error:
            raise error.told(f"{size} bytes wanted on {self}") from error

    def free(self, address: int, stream: int) -> None:
        """Give memory back once the work that is on the stream now is done."""
        self.pool.give(address, stream)

    def reclaim(self, address: int, streams: Collection[int]) -> None:
        """Give memory back once the work that is on these streams now is done; where it is one, for work that is to come there."""
        last, *others = streams
        if others:
            last = self.stream
            for stream in sorted(streams):
                self.order(stream, last)
        self.free(address, last)

    @contextmanager
    def room(self, size: int, stream: int) -> Iterator[int]:
        """Memory for what is enqueued inside; 0 where no bytes are wanted."""
        if not size:
            yield 0
            return
        address = self.allocate(size, stream)
        try:
            yield address
        finally:
            self.free(address, stream)

    def bring(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy from host memory (bytes)."""
        hip.call("hipMemcpyHtoDAsync", to, source, size, stream)

    def fetch(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy to host memory."""
        hip.call("hipMemcpyDtoHAsync", to, source, size, stream)

    def move(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy within the GPU's memory."""
        hip.call("hipMemcpyDtoDAsync", to, source, size, stream)

    # --- order ------------------------------------------------------------------------------------------------------------

    def order(self, first: int, then: int) -> None:
        """Later work on one stream waits for what is on the other now."""
        if first == then:
            return
        event = marked(first)
        try:
            hip.call("hipStreamWaitEvent", then, event, 0)
        finally:
            hip.call("hipEventDestroy", event)

    def hold(self, stream: int, things: Any) -> None:
        """Keep things until the work that is on the stream now is done, and let go of what was kept and is done."""
        with self._lock:
            self._held.append((marked(stream), things))
            while self._held and reached(self._held[0][0]):
                event, _ = self._held.popleft()
                hip.call("hipEventDestroy", event)

    def finish(self, stream: int) -> None:
        """Wait for what is on the stream."""
        hip.call("hipStreamSynchronize", stream)

    def wait(self) -> None:
        """Until all work on the GPU is done."""
        hip.call("hipDeviceSynchronize")
        with self._lock:
            while self._held:
                event, _ = self._held.popleft()
                hip.call("hipEventDestroy", event)


def _is_captured(stream: int) -> bool:
    """True where what is enqueued goes to a graph."""
    status = ctypes.c_int(0)
    hip.call("hipStreamIsCapturing", stream, ctypes.byref(status))
    return status.value != 0


@cache
def _made(ordinal: int) -> Gpu:
    return Gpu(ordinal)


def count() -> int:
    """How many GPUs there are; `DeviceUnavailableError` where there is none."""
    return hip.start()


def gpu(ordinal: int) -> Gpu:
    """The GPU of that number; `LaunchError` where there is none."""
    if not 0 <= ordinal < count():
        raise LaunchError(f"GPU {ordinal}: this process sees {count()}")
    return _made(ordinal)


def current() -> Gpu:
    """The GPU that the calling thread uses."""
    hip.start()
    return gpu(hip.number("hipGetDevice"))
