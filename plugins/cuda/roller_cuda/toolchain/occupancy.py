"""What a multiprocessor has room for: registers of a thread, blocks at a time."""

from __future__ import annotations

from roller.plugin import HardwareSpec

REGISTER_BYTES = 4
MOST, GRANULE = 255, 8  # registers of a thread, and by how many they are handed out
SHARED_GRANULE = 128


def limit(spec: HardwareSpec, threads: int) -> int:
    """Registers that a thread of a block may have: where warps are no multiple of the partitions, one of those has a warp more."""
    even = spec.unit.lane_storage_bytes // REGISTER_BYTES // spec.stored_lanes(threads)
    return min(MOST, even // GRANULE * GRANULE)


def free_registers(spec: HardwareSpec, threads: int) -> int:
    """Registers that a thread may have without fewer blocks than else on a multiprocessor: the assembler takes them if it can."""
    unit = spec.unit
    taken = -(-threads // unit.lane_group) * unit.lane_group
    blocks = min(unit.resident_tiles_max, (unit.resident_lanes_max or unit.lanes_max) // taken)
    return min(MOST, unit.lane_storage_bytes // REGISTER_BYTES // (max(1, blocks) * taken) // GRANULE * GRANULE)


def resident_blocks(spec: HardwareSpec, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks on a multiprocessor at a time: CUDA's occupancy, with registers handed out by warps to partitions."""
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
    """Share of a multiprocessor's shared memory that so many blocks occupy together, 100 at most: what a kernel prefers to have of
    the memory that the L1 cache takes otherwise.
    """
    capacity = spec.levels[-2].capacity_bytes
    return min(100, -(-100 * blocks * _shared(spec, shared_bytes) // capacity)) if capacity else 100


def _shared(spec: HardwareSpec, shared_bytes: int) -> int:
    """Bytes of shared memory that a block occupies."""
    return -(-shared_bytes // SHARED_GRANULE) * SHARED_GRANULE + spec.levels[-2].reserved_bytes
