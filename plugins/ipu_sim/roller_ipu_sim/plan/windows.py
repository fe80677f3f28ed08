"""Arrays with overlapping boxes or gaps (a convolution's windows, slices, broadcasts): owners of parts, and tiles that need them.

Each stored dimension is cut into intervals. Where a unit loop walks it, each tile along that loop owns the data from the start of
its boxes to the start of the next tile's. Tiles with the same block divide it along one dimension. A tile receives its box row by
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

from roller_ipu_sim.plan.grid import Grid
from roller_ipu_sim.plan.overlaps import Cuts, Line, Overlap, Pair, longest, overlap, starts, unexceeded
from roller_ipu_sim.plan.stage_plan import ArrayDim, ArrayPlan

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interval:
    """Positions of one dimension that one tile owns: the owner's index along its loop, and its share of the block."""

    low: int
    high: int
    owner: int
    share: int


@dataclass(frozen=True)
class Windows:
    """One array that is not plain."""

    array: ArrayPlan

    @cached_property
    def _axes(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each stored dimension the axes of the grid that walk it, with the elements between neighbouring tiles."""
        loops = list(enumerate(self.array.grid.loops))
        return tuple(
            [
                tuple([(axis, c * lp.serial * lp.step) for axis, lp in loops for n, c in dim.terms if n == lp.dim])
                for dim in self.array.dims
            ]
        )

    def axes(self, place: int) -> tuple[tuple[int, int], ...]:
        """Returns the axes of the grid that walk a stored dimension, with the elements between neighbouring tiles."""
        return self._axes[place]

    @cached_property
    def _moving(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each stored dimension the serial loops that walk it, with the elements from trip to trip."""
        serial = list(enumerate(self.array.grid.serial))
        return tuple(
            [tuple([(at, c * lp.step) for at, lp in serial for n, c in dim.terms if n == lp.dim]) for dim in self.array.dims]
        )

    @cached_property
    def _lines(self) -> list[Line]:
        """Boxes and parts along each dimension before the serial loops begin."""
        array, found = self.array, []
        at, size = self.shared if array.dims else (0, 0)
        for place, dim in enumerate(array.dims):
            walking, own = self.axes(place), self.owners[place]
            axes = tuple([(array.grid.loops[axis].parts, distance) for axis, distance in walking])
            owner = None if own is None else [axis for axis, _ in walking].index(own)
            share = (size, self.sharers) if place == at else (0, 1)
            word = array.word_bytes if place == len(array.dims) - 1 else 0
            low = dim.least(array.tile)
            cuts = self._cuts[place]
            found.append(Line(low, axes, self.reach(place), cuts, owner, *share, array.element_bytes, word, array.kept))
        return found

    @cached_property
    def _overlaps(self) -> list[dict[int, Overlap]]:
        return [{} for _ in self.array.dims]

    def overlaps(self, trips: tuple[int, ...]) -> list[Overlap]:
        """Returns the overlaps of boxes and parts along each dimension, at the state `trips` of the serial loops."""
        found = []
        for line, moving, known in zip(self._lines, self._moving, self._overlaps, strict=True):
            low = line.low
            for at, distance in moving:
                low += trips[at] * distance
            mine = known.get(low)
            if mine is None:
                mine = known[low] = overlap(line if low == line.low else line._replace(low=low))
            found.append(mine)
        return found

    @cached_property
    def _spans(self) -> list[tuple[int, int, int, int]]:
        """Ranges along each dimension before the serial loops begin.

        These are the starts of the first box and of one in the middle, the elements of a box, and those of the array.
        """
        found = []
        for place, dim in enumerate(self.array.dims):
            low = dim.least(self.array.tile)
            middle = low + sum([self.array.grid.loops[axis].parts // 2 * distance for axis, distance in self.axes(place)])
            found.append((low, middle, self.reach(place), self.extent(place)))
        return found

    def arriving(self, trips: tuple[int, ...]) -> tuple[int, int]:
        """Returns a lower bound of the words and rows that arrive at one of the tiles, at the state `trips` of the serial loops.

        Along each dimension it counts the first box or the middle one, whichever has more of the array. No loop walks two
        dimensions, so that some tile has all of these. The tile's own data in its box does not arrive.
        """
        elements = rows = 1
        for (first, middle, reach, extent), moving in zip(self._spans, self._moving, strict=True):
            moved = sum([trips[at] * distance for at, distance in moving])
            lows = first + moved, middle + moved
            rows = elements
            elements *= max(0, *[(low + reach if low + reach < extent else extent) - (low if low > 0 else 0) for low in lows])
        if self.array.kept:
            elements, rows = max(0, elements - self.most_kept), 0
        return -(-elements * self.array.element_bytes // self.array.word_bytes), rows if elements else 0

    @cached_property
    def shares_apart(self) -> bool:
        """True if no loop along which blocks are divided walks the array: a tile's share is then independent of its box."""
        loops = self.array.grid.loops
        return not any(lp.parts > 1 and axis not in self.owners and self.array.touches(lp.dim) for axis, lp in enumerate(loops))

    @cached_property
    def owners(self) -> tuple[int | None, ...]:
        """For each stored dimension the unit loop along which tiles own different parts of it, by its index in the grid."""
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
        """The number of tiles that own parts of the same block."""
        owned = [self.array.grid.loops[axis].parts for axis in self.owners if axis is not None]
        return self.array.grid.tiles // math.prod(owned)

    @cached_property
    def _cuts(self) -> tuple[Cuts, ...]:
        """The cuts of each dimension into the parts of its owners."""
        return tuple([self._cut_by(place) for place in range(len(self.array.dims))])

    def _cut_by(self, place: int) -> Cuts:
        if self.array.kept:
            line = self.array.lines[place]
            return Cuts(line.low, line.step, line.parts, line.high, line.low)
        dim, axis, extent = self.array.dims[place], self.owners[place], self.extent(place)
        if axis is None:
            return Cuts(0, 0, 1, extent)
        step = next(distance for walking, distance in self.axes(place) if walking == axis)
        return Cuts(dim.offset, step, self.array.grid.loops[axis].parts, extent)

    @cached_property
    def _longest(self) -> list[int]:
        """The longest part of each dimension."""
        return [longest(cuts) for cuts in self._cuts]

    @cached_property
    def shared(self) -> tuple[int, int]:
        """The dimension along which blocks are divided, and the max extent of each share."""
        if self.array.kept:
            return self._most_even
        best = (-1.0, 0, 1)
        for place, most in enumerate(self._longest):
            step = max(1, -(-most // self.sharers))
            even = most / step / self.sharers
            if even > best[0] and (place < len(self.array.dims) - 1 or self.sharers == 1 or best[0] < 0):
                best = (even, place, step)
        return best[1], best[2]

    @cached_property
    def _most_even(self) -> tuple[int, int]:
        """The dimension along which the smallest share is nearest to an even share."""
        last, n = len(self.array.dims) - 1, self.sharers
        least = [min([(b - a) // n * n / (b - a) for a, b in pairwise(starts(cuts))]) for cuts in self._cuts]
        place = max(range(max(1, last if n > 1 else last + 1)), key=lambda at: least[at])
        return place, -(-self._longest[place] // n)

    @cached_property
    def most_kept(self) -> int:
        """The max elements that a tile owns."""
        at, step = self.shared if self.array.dims else (0, 1)
        return math.prod([min(most, step) if place == at else most for place, most in enumerate(self._longest)])

    def intervals(self, place: int) -> list[Interval]:
        """Returns the intervals of a dimension, in order; none is empty."""
        return self._intervals[place]

    @cached_property
    def _intervals(self) -> tuple[list[Interval], ...]:
        return tuple([self._cut(place) for place in range(len(self.array.dims))])

    def _cut(self, place: int) -> list[Interval]:
        at, step = self.shared if self.array.dims else (0, 1)
        found = []
        for owner, (low, high) in enumerate(pairwise(starts(self._cuts[place]))):
            if self.array.kept:
                n = self.sharers if place == at else 1
                bounds = [low + (high - low) * share // n for share in range(n + 1)]
                found += [Interval(a, b, owner, share) for share, (a, b) in enumerate(pairwise(bounds)) if a < b]
                continue
            size = step if place == at else max(high - low, 1)
            found += [Interval(a, min(a + size, high), owner, n) for n, a in enumerate(range(low, high, size))]
        return found

    def begin(self, place: int, owner: int) -> int:
        """Returns the start of an owner's box, if its part is stored there."""
        line = self.array.lines[place]
        return line.low + owner * line.step

    def reach(self, place: int) -> int:
        """Returns the elements of a box along a dimension; with padding along the last one, if that is walked from end to end."""
        return self.array.box[place] if self._padded(place) else self.array.dims[place].reach(self.array.tile)

    def extent(self, place: int) -> int:
        """Returns the elements of the stored array along a dimension."""
        dim = self.array.dims[place]
        return self.array.grid.last(dim.terms[0][0]) + self.array.box[place] if self._padded(place) else dim.extent

    def _padded(self, place: int) -> bool:
        return place == len(self.array.dims) - 1 and self.array.dims[place].plain(self.array.nest.extents)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Words in, words out and fragments of each tile, over the coordinates of the grid; a number where all tiles are equal."""

    words_in: Counts | int
    words_out: Counts | int
    fragments: Counts | int

    @property
    def alike(self) -> bool:
        """True if all tiles have the same traffic."""
        return isinstance(self.words_in, int)


def fullest(parts: Sequence[Overlap]) -> tuple[int, int, int]:
    """Returns the max words in, words out and fragments of a tile, if shares are independent of boxes.

    No two dimensions then depend on the same axis of the grid, so that the largest product is one of those of the largest.
    """
    rows: tuple[Pair, ...] = ((1, 1),)
    for part in parts:
        rows = unexceeded([(a * c, b * d) for a, b in rows for c, d in part.rows])
    words_in, words_out = math.prod([part.most_in for part in parts]), math.prod([part.most_out for part in parts])
    return words_in, words_out, max([arrive + leave for arrive, leave in rows])


def fullest_kept(parts: Sequence[Overlap], alone: bool) -> tuple[int, int, int]:
    """Returns the same where parts lie in boxes. `alone`: no two tiles need the same box, and own parts stay."""
    kinds: set[tuple[int, ...]] = {(1,) * 6}
    for part in parts:
        kinds = {tuple([a * b for a, b in zip(kind, more, strict=True)]) for kind in kinds for more in part.kinds}
    return (
        max([words_in - own for words_in, _, _, _, own, _ in kinds]),
        max([words_out - alone * own for _, _, words_out, _, own, _ in kinds]),
        max([rows_in + rows_out - (1 + alone) * own for _, rows_in, _, rows_out, _, own in kinds]),
    )


def traffic(windows: Windows, parts: Sequence[Overlap]) -> Traffic:
    """Returns the traffic of an exchange of this array, tile by tile. `parts`: its overlaps with boxes along each dimension."""
    loops = windows.array.grid.loops
    one = np.ones((1,) * len(loops), np.int64)
    share, found = share_index(windows), [one] * 6
    for place, part in enumerate(parts):
        shape = [1] * len(loops)
        for axis, _ in windows.axes(place):
            shape[axis] = loops[axis].parts
        own = places_on(windows.array.grid, [axis for axis in windows.owners[place : place + 1] if axis is not None])
        at = own, share if part.words_out.shape[1] > 1 else np.zeros_like(own)
        kept = [counts[at] for counts in (part.words_out, part.rows_out, part.words_own, part.rows_own)]
        kinds = part.words_in.reshape(shape), part.rows_in.reshape(shape), *kept
        found = [a * b for a, b in zip(found, kinds, strict=True)]
    words_in, rows_in, words_out, rows_out, words_own, rows_own = found
    alone = int(windows.sharers == 1)  # no two tiles need the same box: data in a tile's own box need not leave it
    return Traffic(words_in - words_own, words_out - alone * words_own, rows_in + rows_out - (1 + alone) * rows_own)


def share_index(windows: Windows) -> Counts:
    """Returns the share of its block that each tile owns, over the coordinates of the grid."""
    grid = windows.array.grid
    return places_on(grid, [axis for axis in range(len(grid.loops)) if axis not in windows.owners])


def places_on(grid: Grid, axes: Sequence[int]) -> Counts:
    """Returns the number of each tile among those that differ from it only on these axes, over the coordinates of the grid."""
    index = np.zeros((1,) * len(grid.loops), np.int64)
    for axis in axes:
        shape = [1] * len(grid.loops)
        shape[axis] = grid.loops[axis].parts
        index = index * grid.loops[axis].parts + np.arange(grid.loops[axis].parts).reshape(shape)
    return index


def dims_apart(array: ArrayPlan) -> bool:
    """Returns True if no loop walks two dimensions of the array: only then do parts of boxes multiply."""
    walked = [n for d in array.dims for n in {n for n, _ in d.terms}]
    return len(walked) == len(set(walked))


__all__ = [
    "ArrayDim",
    "Interval",
    "Traffic",
    "Windows",
    "dims_apart",
    "fullest",
    "fullest_kept",
    "places_on",
    "share_index",
    "traffic",
]
