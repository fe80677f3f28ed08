"""Runner of artifacts on AMD GPUs: arrays in GPU memory are used in place; NumPy's are copied there, and the result back.

Nothing here depends on the chip except the architecture of the code object. No AMD hardware was used to make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller.plugin import Artifact, DeviceUnavailableError, GpuRunner
from roller_rocm.runtime import gpu, gpu_arrays, loaded_kernel
from roller_rocm.runtime.gpu import Gpu
from roller_rocm.runtime.loaded_kernel import Kernel
from roller_rocm.toolchain import launching


def problems() -> tuple[str, ...]:
    """Returns one sentence for each thing that this machine lacks to run kernels."""
    try:
        gpu.count()
    except DeviceUnavailableError as error:
        return (str(error),)
    return ()


class RocmRunner(GpuRunner):
    """A kernel, loaded on every GPU that it is called for. Threads may call it at the same time.

    `stream=` of a call: HIP's handle, or a stream of torch or CuPy.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(launching.checked(artifact), gpu, gpu_arrays.ARRAYS)

    def check(self, gpu: Gpu) -> None:
        """Raises an error if the code object does not fit the GPU."""
        loaded_kernel.fits(str(self._artifact.launch["arch"]), gpu)

    def prepare(self, module: int, described: Mapping[str, Any], gpu: Gpu) -> Kernel:
        """Returns a kernel of the code object."""
        return Kernel(module, described, gpu)
