"""Timing of probes on a GPU: one cubin, one buffer, two timing events."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from roller.plugin import KernelError, Owned
from roller_cuda.chip.facts import facts_of
from roller_cuda.chip.probes import REPEATS, TICKS, Launch, Probe, Sample
from roller_cuda.runtime import driver
from roller_cuda.runtime.gpu import Gpu

KINDS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)  # types of a probe's arguments


@contextmanager
def measuring(gpu: Gpu) -> Iterator[Instrument]:
    """Yields an instrument on a GPU with its context current for the thread; frees everything at the end."""
    with gpu.current():
        made = Instrument(gpu)
        try:
            yield made
        finally:
            made.close()


class Instrument:
    """A GPU that probes run on, as `roller_cuda.chip.calibration.Instrument` requires. Driver failures raise `KernelError`."""

    def __init__(self, gpu: Gpu) -> None:
        self.facts = facts_of(gpu)
        self._gpu, self._owned = gpu, Owned(gpu)
        self._events: list[Any] = []
        self._library: Any = None
        self._functions: dict[str, Any] = {}  # by name: a lookup takes as long as a launch
        self._data = self._ticks = 0

    def load(self, cubin: bytes, data_bytes: int) -> None:
        """Loads the kernels of a cubin and allocates a buffer for them; called once."""
        self._library = self._owned.module(cubin, "loading the probes")
        self._ticks = self._owned.memory(8 * TICKS, "measuring")
        self._data = self._owned.memory(data_bytes, f"{data_bytes / 1e9:.1f} GB of GPU memory to measure with")
        for _ in range(2):
            self._events.append(driver.call("cuEventCreate", 0))

    def samples(self, probe: Probe) -> list[Sample]:
        """Returns the timings of a probe, in order; the error of a failed call, or of a kernel, names the probe."""
        self._ask(probe, "cuMemsetD8Async", self._ticks, 0, 8 * TICKS, self._gpu.stream)
        if probe.prepare is not None:
            self._start(probe.prepare, probe)
        return [self._timed(probe) for _ in range(REPEATS)]

    def close(self) -> None:
        """Frees everything; errors here are suppressed, as the same failure was reported before."""
        with suppress(KernelError):
            while self._events:
                driver.call("cuEventDestroy", self._events.pop())
        self._owned.drop()

    def _timed(self, probe: Probe) -> Sample:
        (begin, end), stream = self._events, self._gpu.stream
        if probe.flush is not None:
            self._start(probe.flush, probe)
        self._ask(probe, "cuStreamSynchronize", stream)
        if probe.ahead is not None:
            self._start(probe.ahead, probe)
        self._ask(probe, "cuEventRecord", begin, stream)
        for _ in range(probe.launches):
            self._start(probe.launch, probe)
        self._ask(probe, "cuEventRecord", end, stream)
        ticks = (ctypes.c_uint64 * TICKS)()
        self._ask(probe, "cuMemcpyDtoHAsync", ctypes.addressof(ticks), self._ticks, 8 * TICKS, stream)
        self._ask(probe, "cuStreamSynchronize", stream)
        milliseconds = float(self._ask(probe, "cuEventElapsedTime", begin, end))
        return Sample(1e-3 * milliseconds, ticks[0], ticks[1])

    def _start(self, launch: Launch, probe: Probe) -> None:
        function = self._functions.get(launch.kernel)
        if function is None:
            kernel = self._ask(probe, "cuLibraryGetKernel", self._library, launch.kernel.encode())
            function = self._functions[launch.kernel] = driver.made("CUfunction", int(kernel))  # launches accept both types
        sizes = (launch.blocks, 1, 1, launch.threads, 1, 1, launch.shared_bytes)
        values = (self._data + launch.offset, self._ticks, launch.count, launch.rounds)
        self._ask(probe, "cuLaunchKernel", function, *sizes, self._gpu.stream, (values, KINDS), 0)

    @staticmethod
    def _ask(probe: Probe, function: str, *arguments: Any) -> Any:
        return driver.call(function, *arguments, what=f"measuring {probe.name}")
