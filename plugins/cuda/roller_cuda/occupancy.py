"""What a block takes of a multiprocessor: registers predicted before the assembler says, and blocks at a time once it has.

Beside what the engine counts (accumulators, operands in use, `lane_reserved_bytes`), a thread needs registers for what it copies: a
value and its place for each access that it reads ahead, and half a place for each copy that runs by itself, as others follow from
it. Without a reduction reads are batched. The constants are medians over 597 kernels (docs/cuda.md).
"""

from __future__ import annotations

import math

from roller.plugin import HardwareSpec, StageProgram
from roller.schedule.machine import Machine
from roller.schedule.shared import MOST_REPEATED
from roller.schedule.stage import REGISTER_BYTES, registers_ahead, started_copies, tile_bytes

MOST, GRANULE = 255, 8  # registers of a thread, and by how many they are handed out
BATCH = 16  # results of which a thread without a reduction reads the inputs at a time
SHARED_GRANULE = 128


def limit(spec: HardwareSpec, threads: int) -> int:
    """Registers that a thread of a block may have."""
    groups = -(-threads // spec.unit.lane_group)
    even = spec.unit.lane_storage_bytes // REGISTER_BYTES // (groups * spec.unit.lane_group)
    return min(MOST, even // GRANULE * GRANULE)


def wanted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine) -> int:
    """Registers that a thread would take if it might have any number."""
    reserved = spec.unit.lane_reserved_bytes // REGISTER_BYTES
    if program.nest.stage.reducer is None:
        outputs = math.prod(program.inner[d] for d in program.nest.spatial)
        return reserved - 2 + min(outputs, BATCH)
    held = tile_bytes(program, spec)
    if not program.staged:
        reserved //= 2  # no places in panels
    tile = reserved + -(-held // REGISTER_BYTES)
    if machine.in_place(program.atom):
        return tile
    started = sum(min(n, MOST_REPEATED) for n in started_copies(program, machine)) // 2
    return tile + registers_ahead(program, machine) + started


def predicted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine, threads: int) -> int:
    """Registers of a thread in a block of so many: what it wants, or what there is."""
    return min(limit(spec, threads), wanted_registers(spec, program, machine))


def resident_blocks(spec: HardwareSpec, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks on a multiprocessor at a time: CUDA's occupancy, with registers handed out by warps to partitions."""
    unit, shared = spec.unit, spec.levels[-2]
    warps = -(-threads // unit.lane_group)
    partitions = max(1, spec.partitions)
    each = -(-registers // GRANULE) * GRANULE * unit.lane_group
    held = unit.lane_storage_bytes // REGISTER_BYTES // partitions // each * partitions // warps
    wanted = -(-shared_bytes // SHARED_GRANULE) * SHARED_GRANULE + shared.reserved_bytes
    by_shared = shared.capacity_bytes // wanted if wanted else unit.resident_tiles_max
    lanes = (unit.resident_lanes_max or unit.lanes_max) // (warps * unit.lane_group)
    return max(0, min(unit.resident_tiles_max, held, by_shared, lanes))
