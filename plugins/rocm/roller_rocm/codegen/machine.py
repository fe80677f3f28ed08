"""Features of a chip for the lowering: its atoms, functions, registers, and limits of loop unrolling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roller.lowering.simt.machine import Machine, MatrixUnit
from roller.lowering.tir.builder import IN_KERNEL
from roller.plugin import ComputeAtom, HardwareSpec, TensorExpr
from roller_rocm.codegen import matrix_cores
from roller_rocm.cost.parameters import PLACE, UNROLLING

SETTLED = ("float32", "int32", "float64", "int64")  # types with a function in `helpers.ll` that is opaque to LLVM


def atoms(spec: HardwareSpec, _: TensorExpr) -> Sequence[ComputeAtom]:
    """Returns the atoms that the code generator supports."""
    return tuple(atom for atom in spec.atoms if matrix_cores.supported(atom))


def machine(spec: HardwareSpec, units: Mapping[str, MatrixUnit] = matrix_cores.UNITS) -> Machine:
    """Returns the features that kernels for the chip may use."""
    return Machine(
        group=spec.unit.lane_group,
        units=units,
        shared_scope=IN_KERNEL,
        views=False,
        unrolling=UNROLLING,
        place_registers=PLACE,
        apart_registers=0,
        guard_registers=0,
        most_beside=None,
        across=True,
        settled={dtype: f"roller_settled_{dtype}" for dtype in SETTLED},
    )
