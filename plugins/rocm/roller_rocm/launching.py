"""The launch description of an artifact, as the GPU and the emulator read it.

`kernels`, in order: name, names of arrays in the order of the arguments, blocks (workgroups), threads (lanes of each), bytes of
local memory that the kernel declares. `workspaces`: arrays between kernels. `inputs`, `output`: names; `tensors`: shapes and types
of the inputs. `assembly`: the machine code as text; `arch`: the processor that the code object is for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from roller.plugin import Artifact, LaunchError, aligned_empty, numpy_dtype
from roller_rocm import toolchain

Array = npt.NDArray[Any]


def checked(artifact: Artifact) -> Artifact:
    """The artifact if it is one of this device; `LaunchError` otherwise."""
    if artifact.format != toolchain.FORMAT:
        raise LaunchError(f"the rocm device runs {toolchain.FORMAT}, not {artifact.format}")
    if artifact.launch.get("kernels") and not artifact.data:
        raise LaunchError("the artifact holds no code object; compile the operator again")
    return artifact


def constants_of(artifact: Artifact) -> dict[str, Array]:
    """The constants that the artifact carries, by name."""
    found: dict[str, Array] = {}
    for tensor in artifact.launch["tensors"]:
        raw = artifact.constants.get(tensor["name"])
        if raw is not None:
            values = found[tensor["name"]] = aligned_empty(tuple(tensor["shape"]), numpy_dtype(tensor["dtype"]))
            values[...] = np.frombuffer(raw, values.dtype).reshape(values.shape)
    return found


def inputs_of(artifact: Artifact, moving: tuple[Array, ...]) -> dict[str, Array]:
    """All inputs by name: those of a call, in order, and the constants."""
    fixed = constants_of(artifact)
    names = [name for name in artifact.launch["inputs"] if name not in fixed]
    return {**fixed, **dict(zip(names, moving, strict=True))}
