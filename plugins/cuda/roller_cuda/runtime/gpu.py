"""One GPU: its context, attributes, stream-ordered memory, and objects that must live until work is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from roller.plugin import DeviceUnavailableError, LaunchError
from roller.plugin import Gpu as AnyGpu
from roller_cuda.runtime import driver
from roller_cuda.runtime.driver import StatusError

_NAME_BYTES = 100
_KEEP = 2**64 - 1  # bytes that the pool keeps for the next call instead of releasing them to the system at every synchronisation
_BUSY = "CUDA_ERROR_NOT_READY"


class Gpu(AnyGpu):
    """One GPU, through the context that other libraries in the process use too."""

    forks = driver.FORKS

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.device = driver.call("cuDeviceGet", ordinal)
        self.capability = self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")
        self._context: Any = None
        self._pool: Any = None

    def attribute(self, name: str) -> int:
        """Returns one of the driver's `CU_DEVICE_ATTRIBUTE_...`."""
        return int(
            driver.call("cuDeviceGetAttribute", driver.constant(f"CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{name}"), self.device)
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the GPU's context the thread's; restores the previous one afterwards."""
        if self._context is None:
            self._begin()
        if int(driver.call("cuCtxGetCurrent")) == int(self._context):
            yield
            return
        driver.call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            driver.call("cuCtxPopCurrent")

    def _begin(self) -> None:
        """Creates context, stream and pool, which last as long as the process."""
        with self._lock:
            if self._context is not None:
                return
            if not self.attribute("MEMORY_POOLS_SUPPORTED"):
                raise DeviceUnavailableError(f"{self} has no memory pools, as some virtual GPUs have none; kernels need them")
            context = driver.call("cuDevicePrimaryCtxRetain", self.device)
            driver.call("cuCtxPushCurrent", context)
            try:
                flag = driver.constant("CUstream_flags.CU_STREAM_NON_BLOCKING")
                self.stream = int(driver.call("cuStreamCreate", flag))
                self._pool = self._new_pool()
            finally:
                driver.call("cuCtxPopCurrent")
            self._context = context

    def _new_pool(self) -> Any:
        wanted = driver.made("CUmemPoolProps")
        wanted.allocType = driver.constant("CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED")
        wanted.location.type = driver.constant("CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE")
        wanted.location.id = self.ordinal
        pool = driver.call("cuMemPoolCreate", wanted)
        kept = driver.constant("CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")
        driver.call("cuMemPoolSetAttribute", pool, kept, driver.made("cuuint64_t", _KEEP))
        return pool

    # --- memory ------------------------------------------------------------------------------------------------------------

    def take(self, size: int, stream: int) -> int:
        """Allocates from the pool."""
        return int(driver.tried("cuMemAllocFromPoolAsync", max(size, 1), self._pool, stream))

    def trim(self) -> None:
        """Empties the pool."""
        driver.tried("cuCtxSynchronize")
        driver.tried("cuMemPoolTrimTo", self._pool, 0)

    def free(self, address: int, stream: int) -> None:
        """Gives memory back to the pool."""
        driver.call("cuMemFreeAsync", address, stream)

    def bring(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies from host memory."""
        driver.call("cuMemcpyHtoDAsync", to, source, size, stream)

    def fetch(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies to host memory."""
        driver.call("cuMemcpyDtoHAsync", to, source, size, stream)

    def move(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies within the GPU's memory."""
        driver.call("cuMemcpyDtoDAsync", to, source, size, stream)

    # --- order -------------------------------------------------------------------------------------------------------------

    def order(self, first: int, then: int) -> None:
        """Orders two streams as for all GPUs; 0 is the legacy stream."""
        super().order(first or driver.LEGACY_STREAM, then or driver.LEGACY_STREAM)

    def finish(self, stream: int) -> None:
        """Waits for a stream."""
        driver.call("cuStreamSynchronize", stream)

    def synchronize(self) -> None:
        """Waits for the context."""
        driver.call("cuCtxSynchronize")

    def mark(self, stream: int) -> Any:
        """Returns a recorded event without times."""
        event = driver.call("cuEventCreate", driver.constant("CUevent_flags.CU_EVENT_DISABLE_TIMING").value)
        driver.call("cuEventRecord", event, stream)
        return event

    def reached(self, event: Any) -> bool:
        """Returns whether an event has happened, without waiting."""
        try:
            driver.tried("cuEventQuery", event)
        except StatusError as error:
            if error.status != _BUSY:
                raise error.told() from error
            return False
        return True

    def follow(self, stream: int, event: Any) -> None:
        """Makes the stream wait for an event; the caller does not wait."""
        driver.call("cuStreamWaitEvent", stream, event, 0)

    def forget(self, event: Any) -> None:
        """Destroys an event; streams that wait for it still do."""
        driver.call("cuEventDestroy", event)

    # --- memory and code of loaded kernels ---------------------------------------------------------------------------------

    def keep(self, size: int, what: str) -> int:
        """Allocates memory apart from the pool."""
        return int(driver.call("cuMemAlloc", size, what=what))

    def drop(self, address: int) -> None:
        """Frees memory that is apart from the pool."""
        driver.call("cuMemFree", address)

    def write(self, to: int, source: int, size: int) -> None:
        """Copies from host memory, at once."""
        driver.call("cuMemcpyHtoD", to, source, size)

    def load(self, code: bytes, what: str) -> Any:
        """Loads a cubin as a library without a context."""
        return driver.call("cuLibraryLoadData", code, None, None, 0, None, None, 0, what=what)

    def unload(self, module: Any) -> None:
        """Unloads a library: its kernels cannot be launched any more."""
        driver.call("cuLibraryUnload", module)


@cache
def _made(ordinal: int) -> Gpu:
    return Gpu(ordinal)


def count() -> int:
    """Returns the number of GPUs; `DeviceUnavailableError` where there is none."""
    return driver.start()


def gpu(ordinal: int) -> Gpu:
    """Returns the GPU of that number; `LaunchError` where there is none."""
    if not 0 <= ordinal < count():
        raise LaunchError(f"GPU {ordinal}: this process has {count()}")
    return _made(ordinal)


def current() -> Gpu:
    """Returns the GPU that the calling thread uses, else the first."""
    driver.start()
    context = driver.call("cuCtxGetCurrent")
    return gpu(int(driver.call("cuCtxGetDevice")) if int(context) else 0)
