"""How many tiles are resident on a unit with lanes at a time, and how many of its partitions have work.

Residents share the unit's throughput: they hide one another's waiting, and their lane groups fill partitions that one tile alone
would leave idle. They take no time off the work itself.
"""

from __future__ import annotations

import math

from roller.banks import padding_bytes
from roller.hardware import HardwareSpec
from roller.program import StageProgram, panel_element_bytes
from roller.tile import Geometry


def resident_tiles(program: StageProgram, spec: HardwareSpec, geometry: Geometry) -> int:
    """Tiles of the program on one unit at a time: as many as it has, as lanes, staged copies and lane storage leave room for."""
    unit = spec.unit
    if program.lane_level is None or not program.lanes or not program.unit_tiles:
        return 1
    limits = [unit.resident_tiles_max, -(-program.unit_tiles // unit.count)]
    if unit.resident_lanes_max is not None:
        limits.append(unit.resident_lanes_max // (lane_groups(program, spec) * unit.lane_group))
    if unit.lane_storage_bytes:
        outputs = math.prod([program.inner[i] for i in program.nest.spatial]) * program.lanes
        held = outputs * program.nest.accumulator_bytes + _lanes(program) * unit.lane_reserved_bytes
        limits.append(unit.lane_storage_bytes // max(held, 1))
    level = spec.levels[program.levels[0]]
    if level.managed:
        limits.append(level.capacity_bytes // max(level.reserved_bytes + _staged_bytes(program, spec, geometry), 1))
    return max(1, min(limits))


def lane_groups(program: StageProgram, spec: HardwareSpec) -> int:
    """Whole groups of lanes that one tile takes."""
    return -(-_lanes(program) // spec.unit.lane_group)


def idle_lanes(program: StageProgram, spec: HardwareSpec, resident: int) -> float:
    """How much longer computing takes for lanes without work: those that fill up a tile's last group, and those of partitions
    that no group of any resident tile is in.
    """
    if program.lane_level is None or not program.lanes:
        return 1.0
    groups = lane_groups(program, spec)
    return groups * spec.unit.lane_group / _lanes(program) * max(1.0, spec.partitions / (groups * resident))


def _lanes(program: StageProgram) -> int:
    """Lanes of one tile: a matrix atom takes several for each of its sub-tiles."""
    return program.lanes * (program.atom.lanes if program.atom.kind == "matrix" else 1)


def _staged_bytes(program: StageProgram, spec: HardwareSpec, geometry: Geometry) -> int:
    """Bytes of the copies that a tile keeps at the unit's level."""
    nest, total = program.nest, 0
    for staging in program.staged:
        if staging.kind == "panel":
            held = geometry.panel_elements(staging.operand, program.unit_tile) * panel_element_bytes(nest, program.atom)
        else:
            held = geometry.held(staging.operand, program.unit_tile).nbytes
        total += staging.depth * (held + padding_bytes(program, spec, staging)) if staging.level == program.levels[0] else 0
    return total
