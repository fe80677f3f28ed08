"""An array that lies over tiles in one way and is wanted in another: what parts of both have in common, box by box.

Parts are boxes of the stored array, or runs of elements of such boxes, which are a few boxes again. Both ways are brought to the
same digits of the array's elements; what a part here and a part there have in common is then a box, and its elements are so far
apart on either side that runs follow from a few numbers: no element is looked at. Where a run ends at the far corner of such a box
and goes on at the near corner of another, the two are one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.manifest import PlaceLoop, Placement

Numbers = npt.NDArray[Any]

REMEMBERED = 32  # pairs of sides: whole programs that are compared move mostly alike
AT_ONCE = 2**18  # pairs of boxes that are looked at together


class Family(NamedTuple):
    """A placement as numbers."""

    tile: int
    offset: int
    first: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    elements: int
    loops: tuple[PlaceLoop, ...]


class Side(NamedTuple):
    """One way to lay an array over tiles. `digits`: extents of its stored dimensions in the order of the array; `order`: for each
    stored dimension its place in them.
    """

    digits: tuple[int, ...]
    order: tuple[int, ...]
    families: tuple[Family, ...]


def side(digits: tuple[int, ...], order: tuple[int, ...], placements: Iterator[Placement]) -> Side:
    """The side of some placements, of which none lies in strides."""
    found = [Family(p.tile, p.offset, p.first, p.start, p.shape, p.elements, p.loops) for p in placements]
    return Side(digits, order, tuple(found))


def rows(family: Family) -> Numbers:
    """Tile, place in the buffer, first element of the box and start of each part of a family."""
    found = np.array([(family.tile, family.offset, family.first, *family.start)], np.int64)
    for trips, tile, offset, start, first in family.loops:
        step = np.array([tile, offset, first, *start], np.int64)
        found = (found[:, None] + np.arange(trips)[:, None] * step).reshape(-1, len(step))
    return found


@dataclass(frozen=True)
class Runs:
    """Elements side by side on both sides: tiles and places of the first run of a row, `count` elements each; as many runs as
    `trips` say, [row, loop], which are `step` and `to_step` further.
    """

    source: Numbers
    start: Numbers
    target: Numbers
    to: Numbers
    count: Numbers
    trips: Numbers
    step: Numbers
    to_step: Numbers

    @property
    def repeated(self) -> Numbers:
        """Runs of each row."""
        found: Numbers = self.trips.prod(axis=1)
        return found

    def __getitem__(self, index: Numbers) -> Runs:
        return Runs(*[column[index] for column in self.columns])

    @property
    def columns(self) -> tuple[Numbers, ...]:
        """All columns, in order."""
        return self.source, self.start, self.target, self.to, self.count, self.trips, self.step, self.to_step

    def span(self, loop: int) -> tuple[Numbers, Numbers]:
        """How far the last element of the loops from one on lies behind their first, on both sides."""
        last = self.trips[:, loop:] - 1
        there, here = (last * self.step[:, loop:]).sum(axis=1), (last * self.to_step[:, loop:]).sum(axis=1)
        return there + self.count - 1, here + self.count - 1

    def part(self, mask: Numbers, first: Numbers, trips: Numbers) -> Runs:
        """Of some rows the box of runs that begins at the indices `first` and has so many trips."""
        some = self[mask]
        start, to = some.start + (first * some.step).sum(axis=1), some.to + (first * some.to_step).sum(axis=1)
        return Runs(some.source, start, some.target, to, some.count, trips, some.step, some.to_step)


@dataclass(frozen=True)
class Boxes:
    """Boxes of an array by its digits, [box, digit]: tile, where the array's first element would lie, low ends, extents, and
    elements between neighbours in the buffer.
    """

    tile: Numbers
    zero: Numbers
    low: Numbers
    size: Numbers
    step: Numbers


@lru_cache(REMEMBERED)
def crossed(source: Side, target: Side) -> Runs:
    """The runs that bring an array from one side to the other; what only pads is left out."""
    digits = common_digits(source.digits, target.digits)
    if digits is None:
        return _joined(_folded(_met(_elements(source), _elements(target), [0])))
    here = digits_of(target, digits)
    order = [n for place in target.order for n in here[place]]
    given, wanted = _boxes(source, digits), _boxes(target, digits)
    found = _unrolled(_folded(_met(given, wanted, order)))
    uneven = any(len(part) > 1 for part in (*digits_of(source, digits), *here))
    return _joined(_listed(found) if uneven else _cornered(found))


def common_digits(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The coarsest digits that both are made of, without those of extent 1; None where there are none."""
    divisors = sorted({math.prod(side[n:]) for side in (a, b) for n in range(len(side) + 1)}, reverse=True)
    if any(outer % inner for outer, inner in itertools.pairwise(divisors)):
        return None
    return tuple([outer // inner for outer, inner in itertools.pairwise(divisors)])


def digits_of(side: Side, digits: Sequence[int]) -> list[list[int]]:
    """For each dimension of a side the common digits of which it is made."""
    found, n = [], 0
    for extent in side.digits:
        mine: list[int] = []
        while math.prod([digits[m] for m in mine]) < extent:
            mine.append(n)
            n += 1
        found.append(mine)
    return found


def _boxes(side: Side, digits: Sequence[int]) -> Boxes:
    """All parts of a side as boxes."""
    parts = digits_of(side, digits)
    every = [_family_boxes(family, side, parts, digits) for family in side.families]
    return Boxes(*[np.concatenate(columns) for columns in zip(*every, strict=True)])


def _family_boxes(
    family: Family, side: Side, parts: Sequence[Sequence[int]], digits: Sequence[int]
) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
    table, shape, rank = rows(family), family.shape, len(family.shape)
    steps = [math.prod(shape[d + 1 :]) for d in range(rank)]
    index, low, size = np.arange(len(table)), table[:, 2:3], np.full((len(table), 1), family.elements)
    for place in range(rank - 1):
        index, low, size = _cut(index, low, size, place, steps[place])
    low, size, table = low[:, :rank] + table[index, 3:], size[:, :rank], table[index]
    zero = table[:, 1] - table[:, 2] - (table[:, 3:] * np.array(steps, np.int64)).sum(axis=1)
    stored = np.argsort(side.order).tolist()
    low, size = low[:, stored], size[:, stored]
    size = np.minimum(low + size, np.array(side.digits, np.int64)) - low
    real = (size > 0).all(axis=1)
    low, size, tile, zero = low[real], size[real], table[real, 0], zero[real]
    step: list[int] = []
    for place, mine in enumerate(parts):
        inner = [math.prod([digits[n] for n in mine[at + 1 :]]) for at in range(len(mine))]
        if not mine:
            low, size = np.delete(low, len(step), axis=1), np.delete(size, len(step), axis=1)
        for apart in inner[:-1]:
            index, low, size = _cut(np.arange(len(low)), low, size, len(step), apart)
            tile, zero = tile[index], zero[index]
            step.append(apart * steps[stored[place]])
        step += [steps[stored[place]]] * len(mine[-1:])
    return tile, zero, low, size, np.broadcast_to(np.array(step, np.int64), low.shape)


def _elements(side: Side) -> Boxes:
    """All elements of a side by their numbers in the array."""
    digits = common_digits(side.digits, side.digits) or ()
    boxes = _boxes(side, digits)
    index, number = np.arange(len(boxes.tile)), np.zeros(len(boxes.tile), np.int64)
    at = boxes.zero
    for place, extent in enumerate(digits):
        times = boxes.size[index, place]
        value = boxes.low[np.repeat(index, times), place] + _within(times)
        index, number, at = (np.repeat(column, times) for column in (index, number, at))
        number, at = number * extent + value, at + value * boxes.step[index, place]
    one = np.ones((len(index), 1), np.int64)
    return Boxes(boxes.tile[index], at - number, number[:, None], one, one)


def _cut(index: Numbers, low: Numbers, size: Numbers, place: int, inner: Numbers | int) -> tuple[Numbers, Numbers, Numbers]:
    """Intervals of one digit by two, of which the second has so many values: what begins in the middle of them, whole ones, and
    what ends in the middle.
    """
    begin, end = low[:, place], low[:, place] + size[:, place]
    head, tail = -(-begin // inner), end // inner
    within = head > tail
    nothing, one, full = np.zeros_like(begin), np.ones_like(begin), np.zeros_like(begin) + inner
    cuts = (
        (within, tail, one, begin - tail * inner, end - begin),
        (~within & (begin < head * inner), head - 1, one, begin - (head - 1) * inner, head * inner - begin),
        (head < tail, head, tail - head, nothing, full),
        (~within & (end > tail * inner), tail, one, nothing, end - tail * inner),
    )
    lows, sizes, kept = [], [], []
    for mask, first, count, first_inner, count_inner in cuts:
        before, behind = slice(None, place), slice(place + 1, None)
        lows.append(np.column_stack([low[mask, before], first[mask], first_inner[mask], low[mask, behind]]))
        sizes.append(np.column_stack([size[mask, before], count[mask], count_inner[mask], size[mask, behind]]))
        kept.append(index[mask])
    return np.concatenate(kept), np.concatenate(lows), np.concatenate(sizes)


def _met(given: Boxes, wanted: Boxes, order: Sequence[int]) -> Runs:
    """What boxes have in common, element by element, with loops in the order of the receivers."""
    found = []
    for near, by in _near(given, wanted):
        low = np.maximum(given.low[near], wanted.low[by])
        size = np.minimum(given.low[near] + given.size[near], wanted.low[by] + wanted.size[by]) - low
        real = (size > 0).all(axis=1)
        a, b, low, size = near[real], by[real], low[real], size[real]
        start = given.zero[a] + (low * given.step[a]).sum(axis=1)
        to = wanted.zero[b] + (low * wanted.step[b]).sum(axis=1)
        steps = given.step[a][:, order], wanted.step[b][:, order]
        found.append((given.tile[a], start, wanted.tile[b], to, np.ones_like(to), size[:, order], *steps))
    return Runs(*[np.concatenate(columns) for columns in zip(*found, strict=True)])


def _near(given: Boxes, wanted: Boxes) -> Iterator[tuple[Numbers, Numbers]]:
    """Pairs of boxes, among them all that have something in common: those that are near along the digit that tells most apart."""
    if not given.low.shape[1]:
        yield np.zeros(1, np.int64), np.zeros(1, np.int64)
        return
    ways = []
    for place in range(given.low.shape[1]):
        by_low = np.argsort(given.low[:, place], kind="stable")
        lows, longest = given.low[by_low, place], given.size[:, place].max()
        first = np.searchsorted(lows, wanted.low[:, place] - longest, side="right")
        last = np.searchsorted(lows, wanted.low[:, place] + wanted.size[:, place], side="left")
        ways.append((by_low, first, last - first))
    by_low, first, count = min(ways, key=lambda way: int(way[2].sum()))
    blocks = np.cumsum(count) // AT_ONCE
    for block in np.unique(blocks):
        mine = np.flatnonzero(blocks == block)
        b = np.repeat(mine, count[mine])
        yield by_low[first[b] + _within(count[mine])], b


def _within(counts: Numbers) -> Numbers:
    """The place of each among its own: 0, 1, ... as often as each count says."""
    ends = np.cumsum(counts)
    found: Numbers = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return found


def _folded(runs: Runs) -> Runs:
    """Loops over elements side by side become runs."""
    count, trips = runs.count.copy(), runs.trips.copy()
    over = np.zeros(len(count), bool)
    for loop in reversed(range(trips.shape[1])):
        many = trips[:, loop] > 1
        joins = many & ~over & (runs.step[:, loop] == count) & (runs.to_step[:, loop] == count)
        over |= many & ~joins
        count[joins] *= trips[joins, loop]
        trips[joins, loop] = 1
    return replace(runs, count=count, trips=trips)


def _unrolled(runs: Runs) -> Runs:
    """Rows of loops of which a trip begins just where the one before it ended: a row for each trip, so that only corners of rows
    go on in others.
    """
    for loop in range(runs.trips.shape[1]):
        there, here = runs.span(loop + 1)
        meets = (runs.trips[:, loop] > 1) & (runs.step[:, loop] == there + 1) & (runs.to_step[:, loop] == here + 1)
        if meets.any():
            runs = _spread(runs, loop, meets)
    return runs


def _spread(runs: Runs, loop: int, mask: Numbers) -> Runs:
    """Some rows with a row for each trip of a loop."""
    times = np.where(mask, runs.trips[:, loop], 1)
    index = np.repeat(np.arange(len(times)), times)
    first = np.zeros((len(index), runs.trips.shape[1]), np.int64)
    first[:, loop] = _within(times)
    trips = runs.trips[index]
    trips[mask[index], loop] = 1
    return runs.part(index, first, trips)


def _listed(runs: Runs) -> Runs:
    """Every run a row of its own, without loops."""
    times = runs.repeated
    index, place = np.repeat(np.arange(len(times)), times), _within(times)
    start, to = runs.start[index], runs.to[index]
    for loop in reversed(range(runs.trips.shape[1])):
        trips = runs.trips[index, loop]
        at = place % trips
        start += at * runs.step[index, loop]
        to += at * runs.to_step[index, loop]
        place //= trips
    none = np.zeros((len(index), 0), np.int64)
    return Runs(runs.source[index], start, runs.target[index], to, runs.count[index], none, none, none)


def _cornered(runs: Runs) -> Runs:
    """Rows that go on in others, or others in them: the first or last run is a row of its own."""
    there, here = runs.span(0)
    apart = int((runs.to + here).max()) + 2
    begin = runs.target * apart + runs.to
    end = begin + here + 1
    by_begin = np.argsort(begin)
    next_one = by_begin[np.minimum(np.searchsorted(begin, end, sorter=by_begin), len(begin) - 1)]
    goes_on = (begin[next_one] == end) & (runs.source[next_one] == runs.source) & (runs.start[next_one] == runs.start + there + 1)
    begun = np.zeros(len(goes_on), bool)
    begun[next_one[goes_on]] = True
    total = runs.repeated
    mask = (total > 1) & (begun | goes_on)
    rows = np.flatnonzero(mask)
    head, tail = begun[rows].astype(np.int64), total[rows] - goes_on[rows]
    low, size = np.concatenate([np.zeros_like(head), head, tail]), np.concatenate([head, tail - head, total[rows] - tail])
    index, low, size = np.tile(rows, 3)[size > 0], low[size > 0, None], size[size > 0, None]
    for loop in range(runs.trips.shape[1] - 1):
        index, low, size = _cut(index, low, size, loop, runs.trips[index, loop + 1 :].prod(axis=1))
    return _together(runs[~mask], runs.part(index, low, size)) if len(rows) else runs


def _joined(runs: Runs) -> Runs:
    """Single runs in the order of the receivers, those as one that go on in one another; then the others."""
    single = runs.repeated == 1
    alone = runs[single]
    alone = alone[np.lexsort((alone.to, alone.target))]
    follows = (alone.target[1:] == alone.target[:-1]) & (alone.to[1:] == alone.to[:-1] + alone.count[:-1])
    follows &= (alone.source[1:] == alone.source[:-1]) & (alone.start[1:] == alone.start[:-1] + alone.count[:-1])
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(alone.to)), bool), ~follows]))
    count = np.add.reduceat(alone.count, first) if len(first) else alone.count
    return _together(replace(alone[first], count=count), runs[~single])


def _together(*parts: Runs) -> Runs:
    return Runs(*[np.concatenate(columns) for columns in zip(*[part.columns for part in parts], strict=True)])
