"""One GPU: what it can, its memory in the order of streams, and what must live until work is done."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache, cached_property

from roller.plugin import Gpu as AnyGpu
from roller.plugin import LaunchError
from roller_rocm.runtime import hip
from roller_rocm.runtime.pool import Pool, marked, reached

# Of `hipDeviceAttribute_t`: numbers on which the headers of HIP 5.2 and of HIP 7 agree.
MAX_GRID, MAX_LANES, LOCAL_BYTES = 29, 56, 74
_NON_BLOCKING = 1  # flag of a stream
_NAME_BYTES = 256
_PROPERTIES_BYTES = 4096  # more than any version's structure
_ARCH_AT = {"hipGetDevicePropertiesR0600": 1160, "hipGetDeviceProperties": 396}  # gcnArchName in it; since HIP 6, and before


class Gpu(AnyGpu):
    """One GPU, as HIP's runtime has it."""

    forks = hip.FORKS

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self._pool: Pool | None = None

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

    # --- memory ------------------------------------------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """Its memory."""
        assert self._pool is not None, "the GPU is the thread's"
        return self._pool

    def allocate(self, size: int, stream: int) -> int:
        """As for all GPUs; `LaunchError` where a graph would hold the memory after it was given back."""
        if stream not in (self.stream, hip.DEFAULT_STREAM) and _is_captured(stream):
            raise LaunchError("a graph that is captured cannot hold the kernel's memory: call it outside, or give out=")
        return super().allocate(size, stream)

    def take(self, size: int, stream: int) -> int:
        """From the pool."""
        return self.pool.take(size, stream)

    def trim(self) -> None:
        """The pool is empty."""
        self.pool.trim()

    def free(self, address: int, stream: int) -> None:
        """To the pool."""
        self.pool.give(address, stream)

    def reclaim(self, address: int, streams: Collection[int]) -> None:
        """As for all GPUs; where it is one stream, for work that is to come there."""
        if len(streams) == 1:
            self.free(address, *streams)
        else:
            super().reclaim(address, streams)

    def bring(self, to: int, source: int, size: int, stream: int) -> None:
        """From host memory."""
        hip.call("hipMemcpyHtoDAsync", to, source, size, stream)

    def fetch(self, to: int, source: int, size: int, stream: int) -> None:
        """To host memory."""
        hip.call("hipMemcpyDtoHAsync", to, source, size, stream)

    def move(self, to: int, source: int, size: int, stream: int) -> None:
        """Within its memory."""
        hip.call("hipMemcpyDtoDAsync", to, source, size, stream)

    # --- order -------------------------------------------------------------------------------------------------------------

    def finish(self, stream: int) -> None:
        """Wait for a stream."""
        hip.call("hipStreamSynchronize", stream)

    def synchronize(self) -> None:
        """Wait for all streams."""
        hip.call("hipDeviceSynchronize")

    def mark(self, stream: int) -> int:
        """An event without times."""
        return marked(stream)

    def reached(self, event: int) -> bool:
        """Without waiting."""
        return reached(event)

    def follow(self, stream: int, event: int) -> None:
        """The stream waits, not the caller."""
        hip.call("hipStreamWaitEvent", stream, event, 0)

    def forget(self, event: int) -> None:
        """Whoever waits for it still does."""
        hip.call("hipEventDestroy", event)

    # --- what loaded kernels hold ------------------------------------------------------------------------------------------

    def keep(self, size: int, what: str) -> int:
        """Apart from the pool."""
        return hip.handle("hipMalloc", size, what=what)

    def drop(self, address: int) -> None:
        """Apart from the pool."""
        hip.call("hipFree", address)

    def write(self, to: int, source: int, size: int) -> None:
        """From host memory, at once."""
        hip.call("hipMemcpyHtoD", to, source, size)

    def load(self, code: bytes, what: str) -> int:
        """A code object, whose bytes the runtime goes on reading."""
        return hip.handle("hipModuleLoadData", code, what=what)

    def unload(self, module: int) -> None:
        """Its kernels cannot be launched any more."""
        hip.call("hipModuleUnload", module)


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
