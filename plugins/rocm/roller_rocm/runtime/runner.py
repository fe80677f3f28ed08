"""Artifacts on AMD GPUs: arrays in a GPU's memory are used where they lie; NumPy's travel there, and the result back.

Nothing here knows which chip it is but for the architecture of the code object. No AMD hardware was used to make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller.plugin import Artifact, DeviceUnavailableError, GpuRunner
from roller_rocm.runtime import foreign, gpu, loaded
from roller_rocm.runtime.gpu import Gpu
from roller_rocm.runtime.loaded import Kernel
from roller_rocm.toolchain import launching


def problems() -> tuple[str, ...]:
    """What this machine lacks to run kernels."""
    try:
        gpu.count()
    except DeviceUnavailableError as error:
        return (str(error),)
    return ()


class RocmRunner(GpuRunner):
    """A loaded kernel, on every GPU that it is called for. Threads may call it at the same time.

    `stream=` of a call: HIP's handle, or a stream of torch or CuPy.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(launching.checked(artifact), gpu, foreign.ARRAYS)

    def check(self, gpu: Gpu) -> None:
        """The code object must be one for the GPU."""
        loaded.fits(str(self._artifact.launch["arch"]), gpu)

    def prepare(self, module: int, described: Mapping[str, Any], gpu: Gpu) -> Kernel:
        """A kernel of the code object."""
        return Kernel(module, described, gpu)
