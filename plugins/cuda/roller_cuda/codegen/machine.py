"""Features of a chip for the lowering: its atoms, asynchronous copies, functions, and limits of loop unrolling."""

from __future__ import annotations

from collections.abc import Sequence

from roller.lowering.simt.machine import Machine
from roller.plugin import ComputeAtom, HardwareSpec, TensorExpr
from roller_cuda.codegen import hopper, tensor_cores
from roller_cuda.codegen.async_copies import FIRST_CAPABILITY, AsyncCopies
from roller_cuda.cost.parameters import UNROLLING

FUNCTIONS = {op: f"roller_fn_{op}" for op in ("exp", "tanh", "sigmoid", "erf", "rsqrt")}


def atoms(spec: HardwareSpec, _: TensorExpr) -> Sequence[ComputeAtom]:
    """Returns the atoms that the code generator supports."""
    return tuple(atom for atom in spec.atoms if tensor_cores.supported(atom))


def machine(spec: HardwareSpec) -> Machine:
    """Returns the features that kernels for the chip may use."""
    capability = tuple(spec.options["compute_capability"])
    copies = AsyncCopies() if capability >= FIRST_CAPABILITY else None
    reading = {atom.name: unit for atom in spec.atoms if (unit := hopper.unit_of(atom)) is not None}
    if not reading:
        return Machine(spec.unit.lane_group, tensor_cores.UNITS, copies, unrolling=UNROLLING, functions=FUNCTIONS)
    own = hopper.Producers(spec), hopper.Departures(spec)
    return Machine(spec.unit.lane_group, tensor_cores.UNITS, copies, reading, *own, unrolling=UNROLLING, functions=FUNCTIONS)
