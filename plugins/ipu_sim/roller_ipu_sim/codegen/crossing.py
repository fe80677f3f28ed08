"""Redistribution of an array between two placements over tiles: the intersections of their parts, box by box.

Parts are boxes of the stored array, or runs of elements of boxes, which are again a few boxes. Both placements are converted to the
same digits of the array's elements. The intersection of a part here and a part there is then a box. The distances of its elements
on both sides are constant, so that runs follow from a few numbers without a look at single elements. Where a run ends at the far
corner of such a box and continues at the near corner of another, the two are one.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.codegen.runs import AT_ONCE, Common, Runs, common, cut, single, within
from roller_ipu_sim.manifest.models import PlaceLoop, Placement

Numbers = npt.NDArray[Any]

REMEMBERED = 2**17  # rows of cached intersections: whole programs that are compared move mostly alike


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
    """One placement of an array over tiles.

    `digits`: extents of its stored dimensions in the order of the array; `order`: the index of each stored dimension in that order.
    """

    digits: tuple[int, ...]
    order: tuple[int, ...]
    families: tuple[Family, ...]


def side(digits: tuple[int, ...], order: tuple[int, ...], placements: Iterator[Placement]) -> Side:
    """Returns the side of some placements, none of which has strides."""
    found = [Family(p.tile, p.offset, p.first, p.start, p.shape, p.elements, p.loops) for p in placements]
    return Side(digits, order, tuple(found))


def rows(family: Family) -> Numbers:
    """Returns tile, offset in the buffer, first element of the box and start of each part of a family."""
    found = np.array([(family.tile, family.offset, family.first, *family.start)], np.int64)
    for trips, tile, offset, start, first in family.loops:
        step = np.array([tile, offset, first, *start], np.int64)
        found = (found[:, None] + np.arange(trips)[:, None] * step).reshape(-1, len(step))
    return found


@dataclass(frozen=True)
class Boxes:
    """Boxes of an array by its digits, [box, digit].

    For each box: its part, its tile, the position of the array's first element, low ends, extents, and distances between neighbours
    in the buffer.
    """

    part: Numbers
    tile: Numbers
    zero: Numbers
    low: Numbers
    size: Numbers
    step: Numbers


class _Remembered:
    """A cache of the intersections of pairs of sides: the last ones, up to a bound on their rows."""

    def __init__(self) -> None:
        self.found: OrderedDict[tuple[Side, Side], Common] = OrderedDict()
        self.rows = 0

    def of(self, source: Side, target: Side) -> Common:
        key = source, target
        found = self.found.pop(key, None)
        if found is None:
            found = _crossed(source, target)
            self.rows += found.rows
        self.found[key] = found
        while self.rows > REMEMBERED and len(self.found) > 1:
            self.rows -= self.found.popitem(last=False)[1].rows
        return found


_REMEMBERED = _Remembered()


def crossed(source: Side, target: Side) -> Common:
    """Returns the runs that move an array from one side to the other, without padding."""
    return _REMEMBERED.of(source, target)


def _crossed(source: Side, target: Side) -> Common:
    digits = common_digits(source.digits, target.digits)
    if digits is None:
        return single(_met(_elements(source), _elements(target), [0])[0])
    here = digits_of(target, digits)
    order = [n for place in target.order for n in here[place]]
    return common(*_met(_boxes(source, digits), _boxes(target, digits), order))


def common_digits(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the coarsest digits that both are made of, without those of extent 1; None where there are none."""
    divisors = sorted({math.prod(side[n:]) for side in (a, b) for n in range(len(side) + 1)}, reverse=True)
    if any(outer % inner for outer, inner in itertools.pairwise(divisors)):
        return None
    return tuple([outer // inner for outer, inner in itertools.pairwise(divisors)])


def digits_of(side: Side, digits: Sequence[int]) -> list[list[int]]:
    """Returns for each dimension of a side the common digits that form it."""
    found, n = [], 0
    for extent in side.digits:
        mine: list[int] = []
        while math.prod([digits[m] for m in mine]) < extent:
            mine.append(n)
            n += 1
        found.append(mine)
    return found


def _boxes(side: Side, digits: Sequence[int]) -> Boxes:
    """Returns all parts of a side as boxes."""
    parts = digits_of(side, digits)
    every, before = [], 0
    for family in side.families:
        part, *columns = _family_boxes(family, side, parts, digits)
        every.append((part + before, *columns))
        before += math.prod([loop[0] for loop in family.loops])
    return Boxes(*[np.concatenate(columns) for columns in zip(*every, strict=True)])


def _family_boxes(
    family: Family, side: Side, parts: Sequence[Sequence[int]], digits: Sequence[int]
) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]:
    table, shape, rank = rows(family), family.shape, len(family.shape)
    steps = [math.prod(shape[d + 1 :]) for d in range(rank)]
    index, low, size = np.arange(len(table)), table[:, 2:3], np.full((len(table), 1), family.elements)
    for place in range(rank - 1):
        index, low, size = cut(index, low, size, place, steps[place])
    low, size, table = low[:, :rank] + table[index, 3:], size[:, :rank], table[index]
    zero = table[:, 1] - table[:, 2] - (table[:, 3:] * np.array(steps, np.int64)).sum(axis=1)
    stored = np.argsort(side.order).tolist()
    low, size = low[:, stored], size[:, stored]
    size = np.minimum(low + size, np.array(side.digits, np.int64)) - low
    real = (size > 0).all(axis=1)
    low, size, part, tile, zero = low[real], size[real], index[real], table[real, 0], zero[real]
    step: list[int] = []
    for place, mine in enumerate(parts):
        inner = [math.prod([digits[n] for n in mine[at + 1 :]]) for at in range(len(mine))]
        if not mine:
            low, size = np.delete(low, len(step), axis=1), np.delete(size, len(step), axis=1)
        for apart in inner[:-1]:
            index, low, size = cut(np.arange(len(low)), low, size, len(step), apart)
            part, tile, zero = part[index], tile[index], zero[index]
            step.append(apart * steps[stored[place]])
        step += [steps[stored[place]]] * len(mine[-1:])
    return part, tile, zero, low, size, np.broadcast_to(np.array(step, np.int64), low.shape)


def _elements(side: Side) -> Boxes:
    """Returns all elements of a side by their numbers in the array."""
    digits = common_digits(side.digits, side.digits) or ()
    boxes = _boxes(side, digits)
    index, number = np.arange(len(boxes.tile)), np.zeros(len(boxes.tile), np.int64)
    at = boxes.zero
    for place, extent in enumerate(digits):
        times = boxes.size[index, place]
        value = boxes.low[np.repeat(index, times), place] + within(times)
        index, number, at = (np.repeat(column, times) for column in (index, number, at))
        number, at = number * extent + value, at + value * boxes.step[index, place]
    one = np.ones((len(index), 1), np.int64)
    return Boxes(boxes.part[index], boxes.tile[index], at - number, number[:, None], one, one)


def _met(given: Boxes, wanted: Boxes, order: Sequence[int]) -> tuple[Runs, Numbers, Numbers]:
    """Returns the intersections of boxes, element by element.

    These are runs with loops in the order of the receivers, low ends by these loops, and a number for each pair of parts.
    """
    found, lows, groups = [], [], []
    parts = int(wanted.part.max(initial=0)) + 1
    for near, by in _near(given, wanted):
        low = np.maximum(given.low[near], wanted.low[by])
        size = np.minimum(given.low[near] + given.size[near], wanted.low[by] + wanted.size[by]) - low
        real = (size > 0).all(axis=1)
        a, b, low, size = near[real], by[real], low[real], size[real]
        start = given.zero[a] + (low * given.step[a]).sum(axis=1)
        to = wanted.zero[b] + (low * wanted.step[b]).sum(axis=1)
        steps = given.step[a][:, order], wanted.step[b][:, order]
        found.append((given.tile[a], start, wanted.tile[b], to, np.ones_like(to), size[:, order], *steps))
        lows.append(low[:, order])
        groups.append(given.part[a] * parts + wanted.part[b])
    runs = Runs(*[np.concatenate(columns) for columns in zip(*found, strict=True)])
    return runs, np.concatenate(lows), np.concatenate(groups)


def _near(given: Boxes, wanted: Boxes) -> Iterator[tuple[Numbers, Numbers]]:
    """Yields pairs of boxes that are near along the most selective digit; they include all pairs that intersect."""
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
        yield by_low[first[b] + within(count[mine])], b
