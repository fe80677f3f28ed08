"""The first GPU, straight through the driver: what it says of itself, and probes timed on it.

Only for measuring the chip; artifacts run through `roller_cuda.runtime`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from roller.plugin import DeviceUnavailableError, LaunchError
from roller_cuda import toolchain
from roller_cuda.probes import REPEATS, Facts, Launch, Probe, Sample

TICKS = 4  # 64-bit words that a kernel may leave
ATTRIBUTES = {  # of the driver, by the field of `Facts`
    "sms": "MULTIPROCESSOR_COUNT",
    "clock_khz": "CLOCK_RATE",
    "memory_khz": "MEMORY_CLOCK_RATE",
    "bus_bits": "GLOBAL_MEMORY_BUS_WIDTH",
    "l2_bytes": "L2_CACHE_SIZE",
    "shared_sm_bytes": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_block_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_reserved_bytes": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "registers_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "threads_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "threads_block": "MAX_THREADS_PER_BLOCK",
    "blocks_sm": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "warp": "WARP_SIZE",
}


def attached() -> Any:
    """The driver's functions, ready for use; `DeviceUnavailableError` where there is no driver or no GPU."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415  (an extra: the CPU device needs none of it)
    except ImportError as error:
        raise DeviceUnavailableError(f"measuring a GPU needs cuda-bindings: {toolchain.INSTALL} ({error})") from error
    try:
        status, count = driver.cuInit(0)[0], 0
        if not int(status):
            status, count = driver.cuDeviceGetCount()
    except (RuntimeError, OSError) as error:
        raise DeviceUnavailableError(f"no NVIDIA driver, or none that works: {' '.join(str(error).split())}") from error
    if int(status):
        raise DeviceUnavailableError(f"the NVIDIA driver does not start: {status.name}")
    if not count:
        raise DeviceUnavailableError("the NVIDIA driver finds no GPU")
    return driver


def facts_of(driver: Any) -> Facts:
    """What the driver says of the first GPU."""
    device = _said(driver.cuDeviceGet(0))

    def attribute(name: str) -> int:
        return int(_said(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))

    name = bytes(_said(driver.cuDeviceGetName(100, device))).split(b"\0")[0].decode(errors="replace").strip()
    capability = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    memory = int(_said(driver.cuDeviceTotalMem(device)))
    asked = {field: attribute(attr) for field, attr in ATTRIBUTES.items()}
    return Facts(name=name or "NVIDIA GPU", capability=capability, memory_bytes=memory, **asked)


def _said(answer: Sequence[Any], doing: str = "") -> Any:
    """What a call of the driver gives; `LaunchError` where it failed."""
    status, *values = answer
    if int(status):
        raise LaunchError(f"{doing}{': ' if doing else ''}the CUDA driver says {status.name}")
    return values[0] if values else None


class Gpu:
    """The first GPU with a cubin of probes and one buffer, for use in a `with` statement."""

    def __init__(self, driver: Any = None) -> None:
        self._driver = attached() if driver is None else driver
        self.facts = facts_of(self._driver)
        self._module: Any = None
        self._data, self._size, self._ticks = 0, 0, 0
        self._events: list[Any] = []

    def __enter__(self) -> Self:
        driver = self._driver
        self._device = _said(driver.cuDeviceGet(0))
        context = _said(driver.cuDevicePrimaryCtxRetain(self._device), "taking the GPU")
        try:
            _said(driver.cuCtxPushCurrent(context))
        except LaunchError:
            driver.cuDevicePrimaryCtxRelease(self._device)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give back all that was taken; what fails here has failed before, and was said then."""
        driver = self._driver
        for event in self._events:
            driver.cuEventDestroy(event)
        for place in (self._data, self._ticks):
            if place:
                driver.cuMemFree(place)
        if self._module is not None:
            driver.cuModuleUnload(self._module)
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(self._device)
        self._module, self._data, self._size, self._ticks, self._events = None, 0, 0, 0, []

    def load(self, cubin: bytes, data_bytes: int) -> None:
        """Make the kernels of a cubin ready, and a buffer for them; once."""
        driver = self._driver
        self._module = _said(driver.cuModuleLoadData(cubin), "loading the probes")
        self._ticks = int(_said(driver.cuMemAlloc(8 * TICKS)))
        self._data = int(_said(driver.cuMemAlloc(max(data_bytes, 1)), f"{data_bytes / 1e9:.1f} GB of GPU memory to measure with"))
        self._size = data_bytes
        for _ in range(2):
            self._events.append(_said(driver.cuEventCreate(0)))

    def samples(self, probe: Probe) -> list[Sample]:
        """The timings of a probe, in order; `LaunchError` with its name where the driver refuses or a kernel fails."""
        self._done(self._driver.cuMemsetD8(self._ticks, 0, 8 * TICKS), probe)
        if probe.prepare is not None:
            self._start(probe.prepare, probe)
        return [self._timed(probe) for _ in range(REPEATS)]

    def _timed(self, probe: Probe) -> Sample:
        driver, (begin, end) = self._driver, self._events
        if probe.flush is not None:
            self._start(probe.flush, probe)
        self._done(driver.cuCtxSynchronize(), probe)
        self._done(driver.cuEventRecord(begin, 0), probe)
        for _ in range(probe.launches):
            self._start(probe.launch, probe)
        self._done(driver.cuEventRecord(end, 0), probe)
        self._done(driver.cuEventSynchronize(end), probe)
        milliseconds = self._done(driver.cuEventElapsedTime(begin, end), probe)
        ticks = (ctypes.c_uint64 * TICKS)()
        self._done(driver.cuMemcpyDtoH(ctypes.addressof(ticks), self._ticks, 8 * TICKS), probe)
        return Sample(1e-3 * milliseconds, ticks[0], ticks[1])

    def _start(self, launch: Launch, probe: Probe) -> None:
        kernel = self._done(self._driver.cuModuleGetFunction(self._module, launch.kernel.encode()), probe)
        values = (self._data + launch.offset, self._ticks, launch.count, launch.rounds)
        kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        grid, block = (launch.blocks, 1, 1), (launch.threads, 1, 1)
        self._done(self._driver.cuLaunchKernel(kernel, *grid, *block, launch.shared_bytes, 0, (values, kinds), 0), probe)

    def _done(self, answer: Sequence[Any], probe: Probe) -> Any:
        return _said(answer, f"measuring {probe.name}")
