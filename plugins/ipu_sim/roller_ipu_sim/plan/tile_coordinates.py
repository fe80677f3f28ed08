"""Tiles by their coordinates in the grid, and positions of boxes, for code generation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from roller_ipu_sim.manifest.affine import Row, spans
from roller_ipu_sim.plan.grid import Grid
from roller_ipu_sim.plan.stage_plan import ArrayPlan, Plan

Coords = tuple[int, ...]
Trips = tuple[int, ...]  # the state of each serial loop
TileSet = tuple[tuple[int, int, int], ...]
Box = Mapping[int, tuple[int, int]]  # axis of the grid → first coordinate and count; other axes: all of theirs
Walk = tuple[int, int, Row]  # a loop: its start, its trips, and the change per trip


def coordinates(grid: Grid) -> Iterator[Coords]:
    """Yields the coordinates of all tiles, in the order of their numbers."""
    return itertools.product(*[range(lp.parts) for lp in grid.loops])


def number(grid: Grid, coords: Coords) -> int:
    """Returns the number of a tile."""
    return sum([c * s for c, s in zip(coords, grid.strides, strict=True)])


@cache
def _fixed(grid: Grid, fixed: frozenset[tuple[int, int]]) -> TileSet:
    """Returns the tiles with these coordinates on some axes, in as few ranges as possible."""
    at = dict(fixed)
    base = sum([c * grid.strides[axis] for axis, c in at.items()])
    ranges = [(base, 1, 1)]
    for axis in reversed([a for a in range(len(grid.loops)) if a not in at and grid.loops[a].parts > 1]):
        parts, stride = grid.loops[axis].parts, grid.strides[axis]
        first, count, step = ranges[0]
        if len(ranges) == 1 and (count == 1 or count * step == stride):
            ranges = [(first, count * parts, stride if count == 1 else step)]
        else:
            ranges = [(f + c * stride, n, s) for c in range(parts) for f, n, s in ranges]
    return tuple(sorted(ranges))


def tile_set(grid: Grid, fixed: Mapping[int, int]) -> TileSet:
    """Returns the tiles with these coordinates, by axis of the grid; all tiles if there are none."""
    return _fixed(grid, frozenset(fixed.items()))


def position(grid: Grid, dim: int, coords: Coords, trips: Trips) -> int:
    """Returns the position of a dimension of the nest on a tile, at the state `trips` of the serial loops."""
    unit = [c * lp.serial * lp.step for c, lp in zip(coords, grid.loops, strict=True) if lp.dim == dim]
    return sum(unit) + sum([t * lp.step for t, lp in zip(trips, grid.serial, strict=True) if lp.dim == dim])


def begun(plan: Plan, coords: Coords, trips: Trips) -> Trips:
    """Returns the state of the serial loops on a tile: with rotating parts each tile on a ring begins with another part."""
    if not plan.shifting:
        return trips
    (step,) = plan.grid.serial
    return ((trips[0] + ring_place(plan, coords)) % step.trips,)


def ring_place(plan: Plan, coords: Coords) -> int:
    """Returns the part of the reduction with which a tile begins: the sum of its positions on all rings."""
    return sum([share_of(plan.grid, coords, untouched(array)) for array in plan.shifting])


class RingPiece(NamedTuple):
    """Tiles of rings whose parts rise evenly: their box, the part at the grid's origin, and the change per step along an axis."""

    box: Box
    part: int
    steps: Mapping[int, int]


def ring_pieces(plan: Plan, step: int) -> Iterator[RingPiece]:
    """Yields the grid in such pieces, at a step of the serial loop: parts start again at 0 somewhere on a ring."""
    (serial,) = plan.grid.serial
    grid, last = plan.grid, untouched(plan.shifting[-1])
    before = sorted({axis for array in plan.shifting[:-1] for axis in untouched(array)})
    if set(before) & set(last):
        before, last = sorted({*before, *last}), []
    radices = [grid.loops[axis].parts for axis in last]
    size, steps = math.prod(radices), dict(zip(last, share_steps(grid, last), strict=True))
    for fixed in itertools.product(*[range(grid.loops[axis].parts) for axis in before]):
        at = dict(zip(before, fixed, strict=True))
        origin = (step + ring_place(plan, tuple([at.get(axis, 0) for axis in range(len(grid.loops))]))) % serial.trips
        turn = min(serial.trips - origin, size)
        for low, high, part in ((0, turn, origin), (turn, size, origin - serial.trips)):
            for found in spans(radices, low, high):
                yield RingPiece({axis: (c, 1) for axis, c in at.items()} | dict(zip(last, found, strict=True)), part, steps)


def ring_sets(plan: Plan) -> dict[int, TileSet]:
    """Returns the tiles by the part with which they begin."""
    found: dict[int, list[int]] = {}
    trips = plan.grid.serial[0].trips
    for coords in coordinates(plan.grid):
        found.setdefault(ring_place(plan, coords) % trips, []).append(number(plan.grid, coords))
    return {part: ranges(tiles) for part, tiles in found.items()}


def box_number(array: ArrayPlan, trips: Trips) -> int:
    """Returns which of a tile's successive boxes is required at the state `trips` of the serial loops."""
    found = 0
    for trip, lp in zip(trips, array.grid.serial, strict=True):
        if array.touches(lp.dim):
            found = found * lp.trips + trip
    return found


def starts(array: ArrayPlan, coords: Coords, trips: Trips) -> tuple[int, ...]:
    """Returns the start of a tile's box along each stored dimension."""
    grid = array.grid
    return tuple([d.least(array.tile) + sum([c * position(grid, n, coords, trips) for n, c in d.terms]) for d in array.dims])


def start_steps(array: ArrayPlan) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Returns the changes of a box's start along each stored dimension: per step along each grid axis, and per serial trip."""
    grid = array.grid
    axes = [tuple([sum([c for n, c in d.terms if n == lp.dim]) * lp.serial * lp.step for d in array.dims]) for lp in grid.loops]
    return axes, [tuple([sum([c for n, c in d.terms if n == lp.dim]) * lp.step for d in array.dims]) for lp in grid.serial]


def box_steps(array: ArrayPlan) -> list[int]:
    """Returns the change of the number of a tile's box per trip of each serial loop."""
    trips = [lp.trips if array.touches(lp.dim) else 1 for lp in array.grid.serial]
    return [math.prod(trips[n + 1 :]) if array.touches(lp.dim) else 0 for n, lp in enumerate(array.grid.serial)]


def ranges(tiles: list[int]) -> TileSet:
    """Returns ascending tile numbers in as few ranges of one step as possible."""
    found: list[tuple[int, int, int]] = []
    for tile in tiles:
        if found:
            first, count, step = found[-1]
            if count == 1 or first + count * step == tile:
                found[-1] = first, count + 1, tile - first if count == 1 else step
                continue
        found.append((tile, 1, 1))
    return tuple(found)


def touched(array: ArrayPlan) -> list[int]:
    """Returns the axes of the grid along which boxes differ."""
    return [axis for axis, lp in enumerate(array.grid.loops) if array.touches(lp.dim)]


def untouched(array: ArrayPlan) -> list[int]:
    """Returns the axes of the grid along which boxes do not differ."""
    return [axis for axis, lp in enumerate(array.grid.loops) if not array.touches(lp.dim)]


def share_steps(grid: Grid, axes: Sequence[int]) -> list[int]:
    """Returns the change, per step along each axis, of a tile's number among those that differ only on these axes."""
    return [math.prod([grid.loops[a].parts for a in axes[place + 1 :]]) for place in range(len(axes))]


def share_boxes(grid: Grid, axes: Sequence[int], low: int, high: int) -> Iterator[Box]:
    """Yields the tiles whose number among those that differ only on these axes is from `low` to before `high`."""
    for found in spans([grid.loops[a].parts for a in axes], low, high):
        yield dict(zip(axes, found, strict=True))


def walks(grid: Grid, box: Box, steps: Sequence[Row]) -> list[Walk]:
    """Returns loops over a box of the grid, with the change per step along each axis."""
    return [(*box.get(axis, (0, lp.parts)), steps[axis]) for axis, lp in enumerate(grid.loops)]


def share_of(grid: Grid, coords: Coords, axes: Iterable[int]) -> int:
    """Returns a tile's number among those that differ from it only on these axes."""
    found = 0
    for axis in axes:
        found = found * grid.loops[axis].parts + coords[axis]
    return found
