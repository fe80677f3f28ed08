"""Cost parameters of AMD GPUs that are not part of the spec."""

from __future__ import annotations

from roller.plugin import (
    PREFETCH_REGISTERS,
    CostParameters,
    Deferred,
    HardwareSpec,
    Unrolling,
)

PLACE = 2  # registers of an address
UNROLLING = Unrolling(256)  # max unrolled multiply-adds of a lane: LLVM prefetches for all of them at once


def cost_parameters(spec: HardwareSpec) -> CostParameters:
    """Returns the model's parameters beyond the spec."""
    resident_tiles, copies = (Deferred("roller_rocm.codegen.limits", name, spec) for name in ("resident_tiles", "copies"))
    return CostParameters(
        unrolling=UNROLLING,
        prefetch_registers=PREFETCH_REGISTERS,
        place_registers=PLACE,
        resident_tiles=resident_tiles,
        copies=copies,
        row_groups=True,
    )
