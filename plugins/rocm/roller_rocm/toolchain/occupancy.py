"""Occupancy of a compute unit: registers of a lane, and resident waves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roller.plugin import HardwareSpec
from roller_rocm.toolchain.assembly import AsmKernel

REGISTER_BYTES = 4
SHARED = "shared"  # options.accumulation_registers: as many again in the same file, for results of matrix instructions
APART = "apart"  # options.accumulation_registers: matrix instructions' results have a register file of their own


def resources(spec: HardwareSpec, kernels: Sequence[Mapping[str, Any]], binary: Mapping[str, AsmKernel]) -> dict[str, int]:
    """Returns the resources of each kernel, "<kernel>.vgprs" and so on."""
    found: dict[str, int] = {}
    for kernel in kernels:
        name = kernel["name"]
        facts = binary[name].facts
        found |= {f"{name}.{what}": kernel[what] for what in ("blocks", "threads", "shared_bytes") if what in kernel}
        found[f"{name}.vgprs"] = facts["vgpr_count"]
        found[f"{name}.agprs"] = facts.get("agpr_count", 0)
        found[f"{name}.sgprs"] = facts["sgpr_count"]
        found[f"{name}.local_bytes"] = facts["group_segment_fixed_size"]
        found[f"{name}.stack_bytes"] = facts["private_segment_fixed_size"]
        found[f"{name}.spilled_bytes"] = REGISTER_BYTES * facts["vgpr_spill_count"]
        found[f"{name}.spilled_scalars"] = facts["sgpr_spill_count"]
        waves = resident_waves(spec, facts["vgpr_count"])
        found[f"{name}.resident_waves"] = waves
        if "stage" in kernel:
            found[f"{name}.predicted_registers"] = kernel["predicted_registers"]
            found[f"{name}.predicted_waves"] = kernel["predicted_waves"]
            blocks = resident_blocks(spec, waves, kernel["threads"], facts["group_segment_fixed_size"])
            found[f"{kernel['stage']}.resident_tiles"] = blocks
    return found


def most_registers(spec: HardwareSpec) -> int:
    """Returns the max registers of a lane."""
    unit = spec.unit
    return (unit.lane_storage_max_bytes or unit.lane_storage_bytes // unit.lanes_max) // REGISTER_BYTES


def simds(spec: HardwareSpec) -> int:
    """Returns the SIMDs of a compute unit."""
    return max(1, spec.levels[-1].instances // spec.unit.count)


def resident_blocks(spec: HardwareSpec, waves: int, threads: int, local_bytes: int) -> int:
    """Returns the workgroups per compute unit, where each of its SIMDs has room for `waves` waves."""
    level, each = spec.levels[-2], -(-threads // spec.unit.lane_group)
    by_local = level.capacity_bytes // local_bytes if local_bytes else spec.unit.resident_tiles_max
    return max(0, min(spec.unit.resident_tiles_max, waves * simds(spec) // each, by_local))


def promised_waves(spec: HardwareSpec, registers: int, threads: int, local_bytes: int) -> int:
    """Returns the waves of a SIMD for which registers and local memory leave room; at least those of one workgroup."""
    blocks = resident_blocks(spec, resident_waves(spec, min(registers, most_registers(spec))), threads, local_bytes)
    each = -(-threads // spec.unit.lane_group)
    return max(1, -(-max(blocks, 1) * each // simds(spec)))


def resident_waves(spec: HardwareSpec, vgprs: int, agprs: int = 0) -> int:
    """Returns the resident waves of one SIMD, by the registers of each lane; 0 if not even one fits.

    Registers are allocated by granules. Accumulation registers follow the others in one file, from a multiple of four on, or have
    an equally large file of their own (`options.accumulation_registers`). The `vgpr_count` of a kernel's metadata is the total of
    both; callers pass it alone.
    """
    granule, each = _granule(spec), _registers(spec)
    apart = spec.options.get("accumulation_registers") == APART
    taken = max(vgprs, agprs) if apart else -(-vgprs // 4) * 4 + agprs if agprs else vgprs
    if taken > most_registers(spec) * (2 if spec.options.get("accumulation_registers") == SHARED else 1):
        return 0
    return min(most_waves(spec), each // (-(-max(taken, 1) // granule) * granule))


def registers_for(spec: HardwareSpec, waves: int) -> int:
    """Returns the max registers of a lane with `waves` resident waves on a SIMD."""
    return min(most_registers(spec), _registers(spec) // max(waves, 1) // _granule(spec) * _granule(spec))


def most_waves(spec: HardwareSpec) -> int:
    """Returns the max waves of a SIMD."""
    unit = spec.unit
    return (unit.resident_lanes_max or unit.lanes_max) // unit.lane_group // simds(spec)


def _registers(spec: HardwareSpec) -> int:
    """Returns the registers of a SIMD for one lane of each of its waves."""
    return spec.unit.lane_storage_bytes // simds(spec) // spec.unit.lane_group // REGISTER_BYTES


def _granule(spec: HardwareSpec) -> int:
    """Returns the allocation granularity of registers."""
    return max(1, spec.unit.lane_storage_granule // REGISTER_BYTES)
