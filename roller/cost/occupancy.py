"""How many tiles are resident on a unit with lanes at a time, and how many of its partitions have work.

Residents share the unit's throughput: they hide one another's waiting, and their lane groups fill partitions that one tile alone
would leave idle. They take no time off the work itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from roller.ir.row_groups import held_bytes
from roller.layout.banks import padding_bytes
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram, copy_depth, panel_element_bytes
from roller.target.hardware import HardwareSpec

RESIDENT = "resident_tiles"  # "<stage>.resident_tiles" among a binary's resources: tiles of the stage that a unit has room for
COPIES = "copies"  # "<stage>.copies" among them: copies that the kernel has of what it fills from step to step


@dataclass(frozen=True, slots=True)
class Residents:
    """Tiles of a stage on one unit at a time: as the model assumes, and as many as its binary leaves room for (None: not known)."""

    predicted: int
    real: int | None

    @property
    def missed(self) -> bool:
        """True if the binary leaves room for fewer than the model assumes."""
        return self.real is not None and self.real < self.predicted


def residents(
    program: RProgram, spec: HardwareSpec, resources: Mapping[str, int], room: Sequence[int | None] = ()
) -> tuple[Residents, ...]:
    """For each stage the tiles on a unit at a time: assumed, no more than there is `room` for where that is predicted, and by the
    resources of its binary.
    """
    real = [resources.get(f"{stage.nest.stage.name}.{RESIDENT}") for stage in program.stages]
    assumed = [resident_tiles(stage, spec, Geometry(stage.nest)) for stage in program.stages]
    most = [n if r is None else max(1, min(n, r)) for n, r in zip(assumed, room or [None] * len(assumed), strict=True)]
    return tuple(Residents(*pair) for pair in zip(most, real, strict=True))


def resident_tiles(program: StageProgram, spec: HardwareSpec, geometry: Geometry) -> int:
    """Tiles of the program on one unit at a time: as many as it has, as lanes, staged copies and lane storage leave room for."""
    unit = spec.unit
    if program.lane_level is None or not program.lanes or not program.unit_tiles:
        return 1
    limits = [unit.resident_tiles_max, -(-program.unit_tiles // unit.count)]
    if unit.resident_lanes_max is not None:
        limits.append(unit.resident_lanes_max // (lane_groups(program, spec) * unit.lane_group))
    if unit.lane_storage_bytes:
        held = _accumulated_bytes(program) * program.lanes + lanes_of(program) * reserved_bytes(program, spec)
        limits.append(unit.lane_storage_bytes // max(held, 1))
    level = spec.levels[program.levels[0]]
    if level.managed:
        limits.append(level.capacity_bytes // max(level.reserved_bytes + _staged_bytes(program, spec, geometry), 1))
    return max(1, min(limits))


def reserved_bytes(program: StageProgram, spec: HardwareSpec) -> int:
    """Bytes of a lane's storage beside its tile; half of them are places in panels."""
    return spec.unit.lane_reserved_bytes // (1 if program.staged else 2)


def _accumulated_bytes(program: StageProgram) -> int:
    """Bytes that a sub-tile holds from step to step: its results, or where it holds whole rows what there is of these."""
    nest = program.nest
    if nest.before:
        return held_bytes(nest, program.inner)
    return math.prod([program.inner[i] for i in nest.spatial]) * nest.accumulator_bytes


def lane_groups(program: StageProgram, spec: HardwareSpec) -> int:
    """Whole groups of lanes that one tile takes."""
    return -(-lanes_of(program) // spec.unit.lane_group)


def idle_lanes(program: StageProgram, spec: HardwareSpec, resident: int) -> float:
    """How much longer computing takes for lanes without work: those that fill up a tile's last group, and those of partitions
    that have fewer groups of the resident tiles than others.
    """
    if program.lane_level is None or not program.lanes:
        return 1.0
    groups, partitions = lane_groups(program, spec), spec.partitions
    together = groups * resident
    most = -(-together // partitions)
    return groups * spec.unit.lane_group / lanes_of(program) * most * partitions / together


def step_loop(program: StageProgram) -> int | None:
    """The number of the loop over time from step to step of which copies may be filled ahead: the innermost one that fills any;
    None where a tile is one step.
    """
    number = max([copy_depth(program, s) for s in program.staged], default=0) - 1
    return number if number >= 0 and program.loops[number].over == "time" and program.loops[number].trips > 1 else None


def held_copies(program: StageProgram, spec: HardwareSpec) -> tuple[int, ...]:
    """Copies that a tile holds of everything it stages: as many as wanted where the next is filled while one is used, else one.
    Units that get their tiles one by one fill ahead from step to step of a tile; those for which others fill, and those that go
    from tile to tile by themselves, everywhere.
    """
    if not program.dealt or spec.in_place(program.atom):
        return tuple([s.depth for s in program.staged])
    number = step_loop(program)
    return tuple([s.depth if number is not None and copy_depth(program, s) == number + 1 else 1 for s in program.staged])


def copies_around(program: StageProgram, spec: HardwareSpec, level: int) -> int:
    """Copies at a level that go around between those who fill and those who use them, of what is filled the most often; 1: these
    take turns, 0: nothing is staged there.
    """
    held = zip(program.staged, held_copies(program, spec), strict=True)
    copies = [(copy_depth(program, s), n) for s, n in held if s.level == level]
    innermost = max([depth for depth, _ in copies], default=0)
    return min([n for depth, n in copies if depth == innermost], default=0)


def lanes_of(program: StageProgram) -> int:
    """Lanes of one tile: a matrix atom takes several for each of its sub-tiles."""
    return program.lanes * (program.atom.lanes if program.atom.kind == "matrix" else 1)


def _staged_bytes(program: StageProgram, spec: HardwareSpec, geometry: Geometry) -> int:
    """Bytes of the copies that a tile keeps at the unit's level."""
    return sum(copies * (held + padding) for copies, held, padding in _staged(program, spec, geometry, program.levels[0]))


def added_bytes(program: StageProgram, spec: HardwareSpec, geometry: Geometry, level: int) -> int:
    """Bytes that a tile keeps at a level beside one copy of what it stages there: the other copies, and padding."""
    return sum((copies - 1) * held + copies * padding for copies, held, padding in _staged(program, spec, geometry, level))


def _staged(program: StageProgram, spec: HardwareSpec, geometry: Geometry, level: int) -> Iterator[tuple[int, int, int]]:
    """Of everything that is staged at a level the copies, the bytes of one, and the padding of one."""
    for staging, copies in zip(program.staged, held_copies(program, spec), strict=True):
        if staging.level != level:
            continue
        if staging.kind == "panel":
            elements = geometry.panel_elements(staging.operand, program.unit_tile, staging.windowed)
            held = elements * panel_element_bytes(program.nest, program.atom)
        else:
            held = geometry.held(staging.operand, program.unit_tile).nbytes
        yield copies, held, padding_bytes(program, spec, staging)
