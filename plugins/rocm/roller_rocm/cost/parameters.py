"""Cost parameters of AMD GPUs that are not part of the spec."""

from __future__ import annotations

from roller.plugin import (
    CostParameters,
    Deferred,
    HardwareSpec,
    Unrolling,
)

UNROLLING = Unrolling(256)  # max unrolled multiply-adds of a lane: LLVM prefetches for all of them at once


def cost_parameters(spec: HardwareSpec) -> CostParameters:
    """Returns the model's parameters beyond the spec."""
    resident_tiles = Deferred("roller_rocm.codegen.limits", "resident_tiles", spec)
    return CostParameters(unrolling=UNROLLING, resident_tiles=resident_tiles, row_groups=True)
