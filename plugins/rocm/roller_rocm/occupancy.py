"""What a compute unit has room for: registers of a lane, waves at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roller.plugin import HardwareSpec
from roller_rocm.assembly import AsmKernel

REGISTER_BYTES = 4


def resources(spec: HardwareSpec, kernels: Sequence[Mapping[str, Any]], binary: Mapping[str, AsmKernel]) -> dict[str, int]:
    """What each kernel takes, "<kernel>.vgprs" and so on."""
    found: dict[str, int] = {}
    for kernel in kernels:
        name = kernel["name"]
        facts = binary[name].facts
        found[f"{name}.vgprs"] = facts["vgpr_count"]
        found[f"{name}.agprs"] = facts.get("agpr_count", 0)
        found[f"{name}.sgprs"] = facts["sgpr_count"]
        found[f"{name}.local_bytes"] = facts["group_segment_fixed_size"]
        found[f"{name}.stack_bytes"] = facts["private_segment_fixed_size"]
        found[f"{name}.spilled_bytes"] = REGISTER_BYTES * facts["vgpr_spill_count"]
        found[f"{name}.spilled_scalars"] = facts["sgpr_spill_count"]
    return found
