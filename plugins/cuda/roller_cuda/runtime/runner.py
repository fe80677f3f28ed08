"""Artifacts on NVIDIA GPUs: arrays in a GPU's memory are used where they lie; NumPy's travel there, and the result back.

Nothing here knows which chip it is but for the architecture that the cubin was built for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller.plugin import Artifact, DeviceUnavailableError, GpuRunner
from roller_cuda.runtime import foreign, gpu, loaded
from roller_cuda.runtime.gpu import Gpu
from roller_cuda.runtime.loaded import Kernel
from roller_cuda.toolchain import launching


def problems() -> tuple[str, ...]:
    """What this machine lacks to run kernels."""
    try:
        gpu.count()
    except DeviceUnavailableError as error:
        return (str(error),)
    return ()


class CudaRunner(GpuRunner):
    """A loaded kernel, on every GPU that it is called for. Threads may call it at the same time.

    `stream=` of a call: a driver's handle, or a stream of torch, CuPy or cuda.core.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(launching.checked(artifact), gpu, foreign.ARRAYS)

    def check(self, gpu: Gpu) -> None:
        """The cubin must be one for the GPU."""
        loaded.fits(str(self._artifact.launch["arch"]), gpu)

    def prepare(self, module: Any, described: Mapping[str, Any], gpu: Gpu) -> Kernel:
        """A kernel of the cubin."""
        return Kernel(module, described, gpu)
