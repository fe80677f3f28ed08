"""Arrays whose boxes overlap or leave gaps (a convolution's windows, slices, broadcasts): who keeps what, and who needs which part.

Each stored dimension is cut into intervals: where a unit loop walks it, each tile along that loop keeps what lies from where its
boxes start to where the next tile's do; those who keep the same block share it out along one dimension. A tile gets its box row by
row: every row of the last dimension, from every interval that it lies in, is a fragment of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.grid import Grid
from roller_ipu_sim.plan import ArrayDim, ArrayPlan

Counts = npt.NDArray[np.int64]
Part = tuple[Counts, Counts, Counts, Counts]


@dataclass(frozen=True)
class Interval:
    """Positions of one dimension that one tile keeps: the owner's place along its loop, and which share of the block."""

    low: int
    high: int
    owner: int
    share: int


@dataclass(frozen=True)
class Windows:
    """One array that is no plain one."""

    array: ArrayPlan

    @cached_property
    def _parts(self) -> dict[tuple[int, ...], Part]:
        return {}

    def part(self, place: int, trips: tuple[int, ...]) -> Part:
        """Words and runs that arrive, words and runs that leave, along one dimension, over the coordinates of the grid, when the
        serial loops are so far.
        """
        walking = {n for n, _ in self.array.dims[place].terms}
        key = (place, *[t for t, lp in zip(trips, self.array.grid.serial, strict=True) if lp.dim in walking])
        if key not in self._parts:
            self._parts[key] = _part(self, place, trips)
        return self._parts[key]

    @cached_property
    def owners(self) -> tuple[int | None, ...]:
        """For each stored dimension the unit loop along which tiles keep different parts of it, by its place in the grid."""
        found: list[int | None] = []
        for dim in self.array.dims:
            loops = [
                axis
                for axis, lp in enumerate(self.array.grid.loops)
                if lp.parts > 1 and axis not in found and any(n == lp.dim and c > 0 for n, c in dim.terms)
            ]
            found.append(loops[0] if loops else None)
        return tuple(found)

    @cached_property
    def sharers(self) -> int:
        """Tiles that keep parts of the same block."""
        owned = [self.array.grid.loops[axis].parts for axis in self.owners if axis is not None]
        return self.array.grid.tiles // math.prod(owned)

    def _starts(self, place: int) -> list[int]:
        """Where the parts of a dimension's owners begin, and its end."""
        dim, axis = self.array.dims[place], self.owners[place]
        if axis is None:
            return [0, self.extent(place)]
        lp = self.array.grid.loops[axis]
        step = next(c for n, c in dim.terms if n == lp.dim) * lp.serial * lp.step
        inner = [min(max(dim.offset + p * step, 0), self.extent(place)) for p in range(1, lp.parts)]
        return [0, *inner, self.extent(place)]

    @cached_property
    def shared(self) -> tuple[int, int]:
        """The dimension along which blocks are shared out, and how much of it each share takes."""
        best = (-1.0, 0, 1)
        for place in range(len(self.array.dims)):
            starts = self._starts(place)
            longest = max([b - a for a, b in pairwise(starts)])
            step = max(1, -(-longest // self.sharers))
            even = longest / step / self.sharers
            if even > best[0] and (place < len(self.array.dims) - 1 or self.sharers == 1 or best[0] < 0):
                best = (even, place, step)
        return best[1], best[2]

    def intervals(self, place: int) -> list[Interval]:
        """The intervals of a dimension, in order; none is empty."""
        return self._intervals[place]

    @cached_property
    def _intervals(self) -> tuple[list[Interval], ...]:
        return tuple([self._cut(place) for place in range(len(self.array.dims))])

    def _cut(self, place: int) -> list[Interval]:
        starts = self._starts(place)
        at, step = self.shared if self.array.dims else (0, 1)
        found = []
        for owner, (low, high) in enumerate(pairwise(starts)):
            size = step if place == at else max(high - low, 1)
            found += [Interval(a, min(a + size, high), owner, n) for n, a in enumerate(range(low, high, size))]
        return found

    def lows(self, place: int, trips: tuple[int, ...]) -> Counts:
        """Where boxes begin along a dimension, before they are cut to the array, over the coordinates of the grid; `trips`: how
        far each serial loop is.
        """
        dim, grid, tile = self.array.dims[place], self.array.grid, self.array.tile
        found = np.full((1,) * len(grid.loops), dim.least(tile))
        for nest_dim, coefficient in dim.terms:
            found = found + coefficient * positions(self.array, nest_dim, trips)
        return found

    def reach(self, place: int) -> int:
        """Elements of a box along a dimension; with padding along the last one, if that is walked from end to end."""
        return self.array.box[place] if self._padded(place) else self.array.dims[place].reach(self.array.tile)

    def extent(self, place: int) -> int:
        """Elements of the stored array along a dimension."""
        dim = self.array.dims[place]
        return self.array.grid.last(dim.terms[0][0]) + self.array.box[place] if self._padded(place) else dim.extent

    def _padded(self, place: int) -> bool:
        return place == len(self.array.dims) - 1 and self.array.dims[place].plain(self.array.nest.extents)


def positions(array: ArrayPlan, nest_dim: int, trips: tuple[int, ...]) -> Counts:
    """Where a dimension of the nest stands on each tile, over the coordinates of the grid, when the serial loops are so far."""
    grid = array.grid
    found = np.zeros((1,) * len(grid.loops), np.int64)
    for axis, lp in enumerate(grid.loops):
        if lp.dim == nest_dim:
            shape = [1] * len(grid.loops)
            shape[axis] = lp.parts
            found = found + (np.arange(lp.parts) * lp.serial * lp.step).reshape(shape)
    for trip, loop in zip(trips, grid.serial, strict=True):
        if loop.dim == nest_dim:
            found = found + trip * loop.step
    return found


@dataclass(frozen=True)
class Traffic:
    """Words in, words out and fragments of each tile, over the coordinates of the grid; a number where all tiles are alike."""

    words_in: Counts | int
    words_out: Counts | int
    fragments: Counts | int


def traffic(windows: Windows, trips: tuple[int, ...]) -> Traffic:
    """What an exchange moves of such an array when the serial loops are so far."""
    parts = [windows.part(place, trips) for place in range(len(windows.array.dims))]
    one = np.ones((1,) * len(windows.array.grid.loops), np.int64)
    arrive, arrive_runs, leave, leave_runs = (
        (math.prod(kind, start=one) for kind in zip(*parts, strict=True)) if parts else (one,) * 4
    )
    return Traffic(arrive, leave, arrive_runs + leave_runs)


def _part(windows: Windows, place: int, trips: tuple[int, ...]) -> Part:
    kept, last = windows.intervals(place), place == len(windows.array.dims) - 1
    common = _overlap(kept, windows.lows(place, trips), windows.reach(place))  # [interval, *grid]
    words = -(-common * windows.array.element_bytes // windows.array.word_bytes) if last else common
    runs = (common > 0).astype(np.int64) if last else common
    once = tuple(range(1, common.ndim))
    left = [_at_home(windows, place, kept, n.sum(axis=once)) for n in (words, runs)]
    return words.sum(axis=0), runs.sum(axis=0), left[0], left[1]


def _overlap(kept: list[Interval], lows: Counts, reach: int) -> Counts:
    """Elements that each interval has in common with each box, [interval, *grid]."""
    shape = (len(kept),) + (1,) * lows.ndim
    begin = np.array([i.low for i in kept]).reshape(shape)
    end = np.array([i.high for i in kept]).reshape(shape)
    found: Counts = np.clip(np.minimum(end, lows + reach) - np.maximum(begin, lows), 0, None)
    return found


def _at_home(windows: Windows, place: int, kept: list[Interval], sums: Counts) -> Counts:
    """Sums over intervals laid out over the coordinates of the tiles that keep them."""
    grid, axis = windows.array.grid, windows.owners[place]
    shares = windows.sharers if place == windows.shared[0] else 1
    owners = grid.loops[axis].parts if axis is not None else 1
    table = np.zeros((owners, shares), np.int64)
    for interval, total in zip(kept, sums, strict=True):
        table[interval.owner, interval.share] = total
    own = np.zeros((1,) * len(grid.loops), np.int64)
    if axis is not None:
        shape = [1] * len(grid.loops)
        shape[axis] = owners
        own = np.arange(owners).reshape(shape)
    found: Counts = table[own, share_index(windows) if shares > 1 else np.zeros_like(own)]
    return found


def share_index(windows: Windows) -> Counts:
    """Which share of its block each tile keeps, over the coordinates of the grid."""
    grid = windows.array.grid
    return places_on(grid, [axis for axis in range(len(grid.loops)) if axis not in windows.owners])


def places_on(grid: Grid, axes: Sequence[int]) -> Counts:
    """The number of each tile among those that differ from it only on these axes, over the coordinates of the grid."""
    index = np.zeros((1,) * len(grid.loops), np.int64)
    for axis in axes:
        shape = [1] * len(grid.loops)
        shape[axis] = grid.loops[axis].parts
        index = index * grid.loops[axis].parts + np.arange(grid.loops[axis].parts).reshape(shape)
    return index


def dims_apart(array: ArrayPlan) -> bool:
    """True if no loop walks two dimensions of the array: only then do parts of boxes multiply."""
    walked = [n for d in array.dims for n in {n for n, _ in d.terms}]
    return len(walked) == len(set(walked))


__all__ = ["ArrayDim", "Interval", "Traffic", "Windows", "dims_apart", "places_on", "positions", "share_index", "traffic"]
