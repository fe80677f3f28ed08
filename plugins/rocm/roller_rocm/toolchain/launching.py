"""Launch description of an artifact, as the GPU runner and the emulator read it.

`kernels`, in order: name, names of arrays in the order of the arguments, blocks (workgroups), threads (lanes of each), bytes of
local memory that the kernel declares. `workspaces`: arrays between kernels. `inputs`, `output`: names; `tensors`: shapes and types
of the inputs. `assembly`: the machine code as text; `arch`: the processor that the code object is for.
"""

from __future__ import annotations

from roller.plugin import Artifact, LaunchError

FORMAT = "hsaco"


def checked(artifact: Artifact) -> Artifact:
    """Returns the artifact if it is one of this device; `LaunchError` otherwise."""
    if artifact.format != FORMAT:
        raise LaunchError(f"the rocm device runs {FORMAT}, not {artifact.format}")
    if artifact.launch.get("kernels") and not artifact.data:
        raise LaunchError("the artifact holds no code object; compile the operator again")
    return artifact
