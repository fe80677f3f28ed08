"""Occupancy: how many tiles (thread blocks) a unit with lanes holds at a time, and how many of its partitions have work.

Resident tiles share the unit's throughput. They hide one another's latency, and their lane groups fill partitions that one tile
alone would leave idle. They do not shorten the work itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from roller.cost import formulas
from roller.cost.formulas import first_points
from roller.ir.elementwise import Value, largest, least
from roller.ir.row_groups import held_bytes
from roller.layout.banks import padding_bytes
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram, copy_depth, panel_element_bytes
from roller.target.hardware import HardwareSpec, MemoryLevel

RESIDENT = "resident_tiles"  # "<stage>.resident_tiles" among a binary's resources: occupancy of the stage, in tiles for each unit
COPIES = "copies"  # "<stage>.copies" among them: the kernel's copies (buffers) of a panel that it fills from step to step


@dataclass(frozen=True, slots=True)
class Residents:
    """Occupancy of a stage, in tiles for each unit: as the model predicts it, and as its binary allows it (None: not known)."""

    predicted: int
    real: int | None

    @property
    def missed(self) -> bool:
        """True if the binary allows a lower occupancy than the model predicts."""
        return self.real is not None and self.real < self.predicted


def residents(
    program: RProgram, spec: HardwareSpec, resources: Mapping[str, int], room: Sequence[int | None] = ()
) -> tuple[Residents, ...]:
    """Returns the occupancy of each stage: as predicted, and by the resources of its binary.

    `room`: for each stage an upper limit of the prediction, where a device predicts one.
    """
    real = [resources.get(f"{stage.nest.stage.name}.{RESIDENT}") for stage in program.stages]
    assumed = [resident_tiles(stage, spec, Geometry(stage.nest)) for stage in program.stages]
    most = [n if r is None else max(1, min(n, r)) for n, r in zip(assumed, room or [None] * len(assumed), strict=True)]
    return tuple(Residents(*pair) for pair in zip(most, real, strict=True))


def unit_efficiency(program: StageProgram, spec: HardwareSpec) -> float:
    """Returns the load balance: useful work over the work of all units if each had the largest share.

    It accounts for idle units, uneven last waves and cut-off boundary tiles.
    """
    units, tiles = spec.unit.count, program.unit_tiles
    if not tiles:
        return 1.0
    share = -(-tiles // units)
    if program.lane_level is not None or units == 1 or tiles == 1:
        return tiles / (units * share)  # lanes run whole tiles, the last one too
    over = [lp for lp in program.loops if lp.over == "units"]
    cut = [program.nest.extents[lp.dim] for lp in over], [program.step(lp) for lp in over], [lp.trips for lp in over]
    return float(first_points(*cut, tiles) / (units * first_points(*cut, share)))


def resident_tiles(program: StageProgram, spec: HardwareSpec, geometry: Geometry) -> int:
    """Returns the program's tiles on one unit at a time, limited by their number, lanes, staged copies and lane storage."""
    if program.lane_level is None or not program.lanes or not program.unit_tiles:
        return 1
    held = accumulated_bytes(program) * program.lanes + lanes_of(program) * reserved_bytes(program, spec)
    level = spec.levels[program.levels[0]]
    staged = _staged_bytes(program, spec, geometry) if level.managed else 0
    return int(together(spec, level, program.unit_tiles, lane_groups(program, spec), held, staged))


def together(spec: HardwareSpec, level: MemoryLevel, unit_tiles: Value, groups: Value, held: Value, staged: Value) -> Value:
    """Returns the tiles on one unit at a time.

    `groups`: lane groups of a tile; `held`: bytes of lane storage that it takes; `staged`: bytes at the unit's level.
    """
    unit = spec.unit
    found = least(unit.resident_tiles_max, -(-unit_tiles // unit.count))
    if unit.resident_lanes_max is not None:
        found = least(found, unit.resident_lanes_max // (groups * unit.lane_group))
    if unit.lane_storage_bytes:
        found = least(found, unit.lane_storage_bytes // largest(held, 1))
    if level.managed:
        found = least(found, level.capacity_bytes // largest(level.reserved_bytes + staged, 1))
    return largest(found, 1)


def reserved_bytes(program: StageProgram, spec: HardwareSpec) -> int:
    """Returns the bytes of a lane's storage (registers) beside its tile; half of them are addresses in panels."""
    return spec.unit.lane_reserved_bytes // (1 if program.staged else 2)


def accumulated_bytes(program: StageProgram) -> int:
    """Returns the bytes that a sub-tile holds from step to step: its results, or in a row group the live values of its rows."""
    nest = program.nest
    if nest.before:
        return held_bytes(nest, program.inner)
    return math.prod([program.inner[i] for i in nest.spatial]) * nest.accumulator_bytes


def lane_groups(program: StageProgram, spec: HardwareSpec) -> int:
    """Returns the whole lane groups (warps, wavefronts) of one tile."""
    return -(-lanes_of(program) // spec.unit.lane_group)


def idle_lanes(program: StageProgram, spec: HardwareSpec, resident: int) -> float:
    """Returns the factor by which lanes without work lengthen computing; 1 without lanes."""
    if program.lane_level is None or not program.lanes:
        return 1.0
    return float(formulas.idle_lanes(spec, lane_groups(program, spec), lanes_of(program), resident))


def step_loop(program: StageProgram) -> int | None:
    """Returns the number of the loop over time whose panels can be prefetched from step to step (multi-buffering).

    It is the innermost loop that fills any. Returns None where a tile is one step.
    """
    number = max([copy_depth(program, s) for s in program.staged], default=0) - 1
    return number if number >= 0 and program.loops[number].over == "time" and program.loops[number].trips > 1 else None


def held_copies(program: StageProgram, spec: HardwareSpec) -> tuple[int, ...]:
    """Returns the copies (buffers) that a tile holds of everything it stages.

    These are as many as requested where the next copy is filled while one is used, else one. Units that get their tiles one by one
    prefetch from step to step of a tile. Units with producer lane groups, and those that run a persistent loop over tiles, prefetch
    everywhere.
    """
    if not program.dealt or spec.in_place(program.atom):
        return tuple([s.depth for s in program.staged])
    number = step_loop(program)
    return tuple([s.depth if number is not None and copy_depth(program, s) == number + 1 else 1 for s in program.staged])


def as_kept(program: StageProgram, spec: HardwareSpec, copies: Callable[[StageProgram], int] | None) -> StageProgram:
    """Returns the program with no more copies (buffers) than the device's kernel keeps (`CostParameters.copies`)."""
    held = max(held_copies(program, spec), default=1)
    real = held if copies is None or held == 1 else copies(program)
    return (
        replace(program, staged=tuple([replace(s, depth=min(s.depth, real)) for s in program.staged])) if real < held else program
    )


def copies_around(program: StageProgram, spec: HardwareSpec, level: int) -> int:
    """Returns the copies at a level that form the circular buffer (pipeline stages) of the most often filled operands.

    1: filling and using take turns; 0: nothing is staged there.
    """
    held = zip(program.staged, held_copies(program, spec), strict=True)
    copies = [(copy_depth(program, s), n) for s, n in held if s.level == level]
    innermost = max([depth for depth, _ in copies], default=0)
    return min([n for depth, n in copies if depth == innermost], default=0)


def lanes_of(program: StageProgram) -> int:
    """Returns the lanes of one tile: a matrix atom takes several for each of its sub-tiles."""
    return program.lanes * (program.atom.lanes if program.atom.kind == "matrix" else 1)


def _staged_bytes(program: StageProgram, spec: HardwareSpec, geometry: Geometry) -> int:
    """Returns the bytes of the copies that a tile keeps at the unit's level."""
    return sum(copies * (held + padding) for copies, held, padding in _staged(program, spec, geometry, program.levels[0]))


def added_bytes(program: StageProgram, spec: HardwareSpec, geometry: Geometry, level: int) -> int:
    """Returns the bytes that a tile keeps at a level in addition to one copy of each operand: the other copies, and padding."""
    return sum((copies - 1) * held + copies * padding for copies, held, padding in _staged(program, spec, geometry, level))


def _staged(program: StageProgram, spec: HardwareSpec, geometry: Geometry, level: int) -> Iterator[tuple[int, int, int]]:
    """Yields for everything staged at a level the number of copies, the bytes of one, and the padding of one."""
    for staging, copies in zip(program.staged, held_copies(program, spec), strict=True):
        if staging.level != level:
            continue
        if staging.kind == "panel":
            elements = geometry.panel_elements(staging.operand, program.unit_tile, staging.windowed)
            held = elements * panel_element_bytes(program.nest, program.atom)
        else:
            held = geometry.held(staging.operand, program.unit_tile).nbytes
        yield copies, held, padding_bytes(program, spec, staging)
