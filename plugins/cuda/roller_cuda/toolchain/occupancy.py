"""Occupancy of a multiprocessor: registers of a thread, and resident blocks."""

from __future__ import annotations

from roller.plugin import HardwareSpec

REGISTER_BYTES = 4
MOST, GRANULE = 255, 8  # max registers of a thread, and their allocation granularity
SHARED_GRANULE = 128


def limit(spec: HardwareSpec, threads: int) -> int:
    """Returns the max registers of a block's thread; where warps are no multiple of the partitions, one has a warp more."""
    even = spec.unit.lane_storage_bytes // REGISTER_BYTES // spec.stored_lanes(threads)
    return min(MOST, even // GRANULE * GRANULE)


def free_registers(spec: HardwareSpec, threads: int) -> int:
    """Returns the max registers of a thread that do not lower the occupancy: the assembler takes them if it can."""
    unit = spec.unit
    taken = -(-threads // unit.lane_group) * unit.lane_group
    blocks = min(unit.resident_tiles_max, (unit.resident_lanes_max or unit.lanes_max) // taken)
    return min(MOST, unit.lane_storage_bytes // REGISTER_BYTES // (max(1, blocks) * taken) // GRANULE * GRANULE)


def resident_blocks(spec: HardwareSpec, threads: int, registers: int, shared_bytes: int) -> int:
    """Returns the blocks per multiprocessor: CUDA's occupancy, with registers allocated by warps in partitions."""
    unit, shared = spec.unit, spec.levels[-2]
    warps = -(-threads // unit.lane_group)
    partitions = max(1, spec.partitions)
    each = -(-registers // GRANULE) * GRANULE * unit.lane_group
    held = unit.lane_storage_bytes // REGISTER_BYTES // partitions // each * partitions // warps
    wanted = _shared(spec, shared_bytes)
    by_shared = shared.capacity_bytes // wanted if wanted else unit.resident_tiles_max
    lanes = (unit.resident_lanes_max or unit.lanes_max) // (warps * unit.lane_group)
    return max(0, min(unit.resident_tiles_max, held, by_shared, lanes))


def carveout_percent(spec: HardwareSpec, blocks: int, shared_bytes: int) -> int:
    """Returns the share of a multiprocessor's shared memory that `blocks` blocks occupy together, 100 at most.

    A kernel prefers this share of the memory; the L1 cache takes the rest.
    """
    capacity = spec.levels[-2].capacity_bytes
    return min(100, -(-100 * blocks * _shared(spec, shared_bytes) // capacity)) if capacity else 100


def _shared(spec: HardwareSpec, shared_bytes: int) -> int:
    """Returns the bytes of shared memory that a block occupies."""
    return -(-shared_bytes // SHARED_GRANULE) * SHARED_GRANULE + spec.levels[-2].reserved_bytes
