"""Tiles by their coordinates in the grid, and where boxes stand: what code generation needs of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from roller_ipu_sim.plan import ArrayPlan, Grid, Plan

Coords = tuple[int, ...]
Trips = tuple[int, ...]  # how far each serial loop is
TileSet = tuple[tuple[int, int, int], ...]


def coordinates(grid: Grid) -> Iterator[Coords]:
    """The coordinates of all tiles, in the order of their numbers."""
    return itertools.product(*[range(lp.parts) for lp in grid.loops])


def number(grid: Grid, coords: Coords) -> int:
    """The number of a tile."""
    return sum([c * s for c, s in zip(coords, grid.strides, strict=True)])


@cache
def _fixed(grid: Grid, fixed: frozenset[tuple[int, int]]) -> TileSet:
    """The tiles with these coordinates on some axes, as few ranges as neighbours allow."""
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
    """The tiles with these coordinates, by axis of the grid; all of them without any."""
    return _fixed(grid, frozenset(fixed.items()))


def position(grid: Grid, dim: int, coords: Coords, trips: Trips) -> int:
    """Where a dimension of the nest stands on a tile when the serial loops are so far."""
    unit = [c * lp.serial * lp.step for c, lp in zip(coords, grid.loops, strict=True) if lp.dim == dim]
    return sum(unit) + sum([t * lp.step for t, lp in zip(trips, grid.serial, strict=True) if lp.dim == dim])


def begun(plan: Plan, coords: Coords, trips: Trips) -> Trips:
    """How far the serial loops are on a tile: where parts are handed round a ring, each tile on it begins with another one."""
    if not plan.shifting:
        return trips
    (step,) = plan.grid.serial
    return ((trips[0] + ring_place(plan, coords)) % step.trips,)


def ring_place(plan: Plan, coords: Coords) -> int:
    """The part of the reduction with which a tile begins: the sum of its places on all rings."""
    total = 0
    for array in plan.shifting:
        total += share_of(plan.grid, coords, [a for a, lp in enumerate(plan.grid.loops) if not array.touches(lp.dim)])
    return total


def box_number(array: ArrayPlan, trips: Trips) -> int:
    """Which of the boxes that a tile needs one after another is wanted when the serial loops are so far."""
    found = 0
    for trip, lp in zip(trips, array.grid.serial, strict=True):
        if array.touches(lp.dim):
            found = found * lp.trips + trip
    return found


def box_trips(array: ArrayPlan) -> Iterator[Trips]:
    """The serial loops' trips for each of an array's boxes, in the order of their numbers; loops that do not matter are at 0."""
    return itertools.product(*[range(lp.trips) if array.touches(lp.dim) else (0,) for lp in array.grid.serial])


def starts(array: ArrayPlan, coords: Coords, trips: Trips) -> tuple[int, ...]:
    """Where a tile's box begins along each stored dimension."""
    grid = array.grid
    return tuple([d.least(array.tile) + sum([c * position(grid, n, coords, trips) for n, c in d.terms]) for d in array.dims])


def ranges(tiles: list[int]) -> TileSet:
    """Tile numbers, rising, as few ranges of one step as neighbours allow."""
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
    """The axes of the grid along which boxes differ."""
    return [axis for axis, lp in enumerate(array.grid.loops) if array.touches(lp.dim)]


def share_of(grid: Grid, coords: Coords, axes: Iterable[int]) -> int:
    """A tile's number among those that differ from it only on these axes."""
    found = 0
    for axis in axes:
        found = found * grid.loops[axis].parts + coords[axis]
    return found


def groups(array: ArrayPlan) -> Iterator[tuple[Coords, TileSet]]:
    """The tiles that need the same boxes: coordinates of one of them, and all of them."""
    axes = touched(array)
    for chosen in itertools.product(*[range(array.grid.loops[a].parts) for a in axes]):
        at = dict(zip(axes, chosen, strict=True))
        yield tuple([at.get(axis, 0) for axis in range(len(array.grid.loops))]), tile_set(array.grid, at)
