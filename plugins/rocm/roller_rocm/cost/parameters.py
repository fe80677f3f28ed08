"""Cost parameters of AMD GPUs: what the model needs beyond the spec."""

from __future__ import annotations

from roller.plugin import (
    CostParameters,
    Deferred,
    HardwareSpec,
    Unrolling,
)

UNROLLING = Unrolling(256)  # multiply-adds of a lane one after another: LLVM reads ahead for all of them at once


def cost_parameters(spec: HardwareSpec) -> CostParameters:
    """What the model needs beyond the spec."""
    resident_tiles = Deferred("roller_rocm.codegen.limits", "resident_tiles", spec)
    return CostParameters(unrolling=UNROLLING, resident_tiles=resident_tiles, row_groups=True)
