"""Launch description of an artifact, as the GPU runner and the emulator read it.

`kernels`, in order: name, names of arrays in the order of the arguments, blocks, threads, shared bytes; where there are any, `maps`
(arguments that are tensor maps, see `roller_cuda.runtime.tensor_maps`) and `cluster` (blocks of a cluster). `workspaces`: arrays
between kernels. `inputs`, `output`: names; `tensors`: shapes and types of the inputs. `text`: the CUDA C++; `arch`: the cubin's
architecture.
"""

from __future__ import annotations

from roller.plugin import Artifact, LaunchError
from roller_cuda.toolchain import compiling


def checked(artifact: Artifact) -> Artifact:
    """Returns the artifact if it is one of this device; `LaunchError` otherwise."""
    if artifact.format != compiling.FORMAT:
        raise LaunchError(f"the cuda device runs {compiling.FORMAT}, not {artifact.format}")
    if artifact.launch.get("kernels") and not artifact.data:
        raise LaunchError("the artifact holds no cubin; compile the operator again")
    return artifact
