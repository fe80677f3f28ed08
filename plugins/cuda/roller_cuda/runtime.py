"""Artifacts on NVIDIA GPUs: arrays in a GPU's memory are used where they lie; NumPy's travel there, and the result back.

Nothing here knows which chip it is but for the architecture that the cubin was built for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy.typing as npt

from roller.plugin import Artifact, DeviceUnavailableError, LaunchError, Wanted, address
from roller_cuda import driver, gpu, launching, loaded, resident
from roller_cuda.gpu import Gpu
from roller_cuda.loaded import Loaded

Array = npt.NDArray[Any]


def problems() -> tuple[str, ...]:
    """What this machine lacks to run kernels."""
    try:
        gpu.count()
    except DeviceUnavailableError as error:
        return (str(error),)
    return ()


class CudaRunner:
    """A loaded kernel, on every GPU that it is called for. Threads may call it at the same time."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = launching.checked(artifact)
        launch = artifact.launch
        inputs = tuple(name for name in launch["inputs"] if name not in artifact.constants)
        self._named = resident.Arguments(inputs, str(launch["output"]), int(launch["alignment"]))
        self._closed, self._loading = False, threading.Lock()
        self._on: dict[int, Loaded] = {}
        self._begin()

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Compute `out` from arrays in host memory, on the calling thread's GPU, and wait for it; see `roller.kernel.Runner`."""
        here = self._loaded(gpu.current().ordinal)
        there, stream = here.gpu, here.gpu.stream
        with there.current(), ExitStack() as stack:
            places = {}
            for name, array in zip(self._named.inputs, inputs, strict=True):
                places[name] = stack.enter_context(there.room(array.nbytes, stream))
                if array.nbytes:
                    driver.call("cuMemcpyHtoDAsync", places[name], address(array), array.nbytes, stream)
            places[self._named.output] = result = stack.enter_context(there.room(out.nbytes, stream))
            try:
                here.launch(places, stream)
                driver.call("cuMemcpyDtoHAsync", address(out), result, out.nbytes, stream)
            finally:  # nothing may still read the caller's arrays
                driver.call("cuStreamSynchronize", stream)

    def resident(self, arrays: tuple[Any, ...], out: Any, stream: Any, wanted: Sequence[Wanted]) -> Any:
        """Compute from arrays in a GPU's memory; see `roller.kernel.Runner`. `stream`: a driver's handle, or a stream of torch,
        CuPy or cuda.core; left out, the current one of the first array's library, and one of ours where that has none.
        """
        return resident.compute(self._loaded, self._named, arrays, out, stream, wanted)

    def close(self) -> None:
        """Wait for what runs, and free what the kernel holds; it is not run again."""
        with self._loading:
            self._closed = True
            while self._on:
                self._on.popitem()[1].close()

    def _begin(self) -> None:
        """Load for the calling thread's GPU; where that cannot run the kernel, one of the others has to be able to."""
        first = gpu.current()
        others = (gpu.gpu(n) for n in range(gpu.count()) if n != first.ordinal)
        if self._runs_on(first) or not any(self._runs_on(other) for other in others):
            self._loaded(first.ordinal)

    def _runs_on(self, there: Gpu) -> bool:
        try:
            loaded.fits(str(self._artifact.launch["arch"]), there)
        except DeviceUnavailableError:
            return False
        return True

    def _loaded(self, ordinal: int) -> Loaded:
        found = self._on.get(ordinal)
        if found is not None:
            return found
        with self._loading:
            if self._closed:
                raise LaunchError("the kernel was closed; load it again")
            if ordinal not in self._on:
                there = gpu.gpu(ordinal)
                loaded.fits(str(self._artifact.launch["arch"]), there)
                self._on[ordinal] = Loaded(self._artifact, there)
            return self._on[ordinal]
