"""One GPU: its attributes, stream-ordered memory, and objects that must live until work is done."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache, cached_property

from roller.plugin import Gpu as AnyGpu
from roller.plugin import LaunchError
from roller_rocm.runtime import hip
from roller_rocm.runtime.pool import Pool, marked, reached

# Numbers of `hipDeviceAttribute_t` on which the headers of HIP 5.2 and of HIP 7 agree.
MAX_GRID, MAX_LANES, LOCAL_BYTES = 29, 56, 74
_NON_BLOCKING = 1  # flag of a stream
_NAME_BYTES = 256
_PROPERTIES_BYTES = 4096  # more than any version's structure
_ARCH_AT = {"hipGetDevicePropertiesR0600": 1160, "hipGetDeviceProperties": 396}  # offset of gcnArchName; since HIP 6, and before


class Gpu(AnyGpu):
    """One GPU of HIP's runtime."""

    forks = hip.FORKS

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self._pool: Pool | None = None

    @cached_property
    def arch(self) -> str:
        """The processor that code objects are for, such as "gfx90a".

        Its features are left out, as kernels are compiled for any.
        """
        function = next((name for name in _ARCH_AT if hip.has(name)), "hipGetDevicePropertiesR0600")
        told = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        hip.call(function, told, self.ordinal)
        start = _ARCH_AT[function]
        return told.raw[start : start + _NAME_BYTES].split(b"\0")[0].decode(errors="replace").partition(":")[0]

    def attribute(self, number: int) -> int:
        """Returns one of `hipDeviceAttribute_t`."""
        return hip.number("hipDeviceGetAttribute", number, self.ordinal)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the GPU the thread's; restores the previous one afterwards."""
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
        """Creates stream and pool, which last as long as the process."""
        with self._lock:
            if self._pool is None:
                self.stream = hip.handle("hipStreamCreateWithFlags", _NON_BLOCKING)
                self._pool = Pool(frozenset({self.stream, hip.DEFAULT_STREAM}))

    # --- memory ------------------------------------------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """The GPU's memory pool."""
        assert self._pool is not None, "the GPU is the thread's"
        return self._pool

    def allocate(self, size: int, stream: int) -> int:
        """Allocates as for all GPUs; `LaunchError` where a graph would hold the memory after its release."""
        if stream not in (self.stream, hip.DEFAULT_STREAM) and _is_captured(stream):
            raise LaunchError("a graph that is captured cannot hold the kernel's memory: call it outside, or give out=")
        return super().allocate(size, stream)

    def take(self, size: int, stream: int) -> int:
        """Allocates from the pool."""
        return self.pool.take(size, stream)

    def trim(self) -> None:
        """Empties the pool."""
        self.pool.trim()

    def free(self, address: int, stream: int) -> None:
        """Gives memory back to the pool."""
        self.pool.give(address, stream)

    def reclaim(self, address: int, streams: Collection[int]) -> None:
        """Reclaims memory as for all GPUs; with a single stream, for later work on that stream."""
        if len(streams) == 1:
            self.free(address, *streams)
        else:
            super().reclaim(address, streams)

    def bring(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies from host memory."""
        hip.call("hipMemcpyHtoDAsync", to, source, size, stream)

    def fetch(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies to host memory."""
        hip.call("hipMemcpyDtoHAsync", to, source, size, stream)

    def move(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies within the GPU's memory."""
        hip.call("hipMemcpyDtoDAsync", to, source, size, stream)

    # --- order -------------------------------------------------------------------------------------------------------------

    def finish(self, stream: int) -> None:
        """Waits for a stream."""
        hip.call("hipStreamSynchronize", stream)

    def synchronize(self) -> None:
        """Waits for all streams."""
        hip.call("hipDeviceSynchronize")

    def mark(self, stream: int) -> int:
        """Returns a recorded event without times."""
        return marked(stream)

    def reached(self, event: int) -> bool:
        """Returns whether an event has happened, without waiting."""
        return reached(event)

    def follow(self, stream: int, event: int) -> None:
        """Makes the stream wait for an event; the caller does not wait."""
        hip.call("hipStreamWaitEvent", stream, event, 0)

    def forget(self, event: int) -> None:
        """Destroys an event; streams that wait for it still do."""
        hip.call("hipEventDestroy", event)

    # --- memory and code of loaded kernels ---------------------------------------------------------------------------------

    def keep(self, size: int, what: str) -> int:
        """Allocates memory apart from the pool."""
        return hip.handle("hipMalloc", size, what=what)

    def drop(self, address: int) -> None:
        """Frees memory that is apart from the pool."""
        hip.call("hipFree", address)

    def write(self, to: int, source: int, size: int) -> None:
        """Copies from host memory, at once."""
        hip.call("hipMemcpyHtoD", to, source, size)

    def load(self, code: bytes, what: str) -> int:
        """Loads a code object; the runtime continues to read its bytes."""
        return hip.handle("hipModuleLoadData", code, what=what)

    def unload(self, module: int) -> None:
        """Unloads a code object: its kernels cannot be launched any more."""
        hip.call("hipModuleUnload", module)


def _is_captured(stream: int) -> bool:
    """Returns whether work enqueued on the stream goes to a graph."""
    status = ctypes.c_int(0)
    hip.call("hipStreamIsCapturing", stream, ctypes.byref(status))
    return status.value != 0


@cache
def _made(ordinal: int) -> Gpu:
    return Gpu(ordinal)


def count() -> int:
    """Returns the number of GPUs; `DeviceUnavailableError` where there is none."""
    return hip.start()


def gpu(ordinal: int) -> Gpu:
    """Returns the GPU of that number; `LaunchError` where there is none."""
    if not 0 <= ordinal < count():
        raise LaunchError(f"GPU {ordinal}: this process has {count()}")
    return _made(ordinal)


def current() -> Gpu:
    """Returns the GPU that the calling thread uses."""
    hip.start()
    return gpu(hip.number("hipGetDevice"))
