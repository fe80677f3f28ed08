"""Runs of contiguous elements in boxes at constant distances: continuations of runs, and their traffic on every tile.

Few runs are ever listed individually. Two elements of a part are contiguous if one of its dimensions advances by a step and those
within it return to their beginning. Runs that continue in another box therefore also form a box, for each digit that advances;
between parts they meet at a corner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]


AT_ONCE = 2**18  # pairs of boxes that are processed together


@dataclass(frozen=True)
class Runs:
    """Runs that are contiguous on both sides: tiles and positions of the first run of a row, `count` elements each.

    Each row has as many runs as `trips` give, [row, loop], at distances `step` and `to_step`.
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
        """Returns the distance from the first to the last element of the loops from one on, on both sides."""
        last = self.trips[:, loop:] - 1
        there, here = (last * self.step[:, loop:]).sum(axis=1), (last * self.to_step[:, loop:]).sum(axis=1)
        return there + self.count - 1, here + self.count - 1

    def part(self, mask: Numbers, first: Numbers, trips: Numbers) -> Runs:
        """Returns a box of runs from each of some rows; it begins at the indices `first` and has `trips` trips."""
        some = self[mask]
        start, to = some.start + (first * some.step).sum(axis=1), some.to + (first * some.to_step).sum(axis=1)
        return Runs(some.source, start, some.target, to, some.count, trips, some.step, some.to_step)


@dataclass(frozen=True)
class Joins:
    """Boxes of runs that continue in others.

    Rows of both, the first run of each box by its indices in these rows, and extents, which both boxes share.
    """

    row: Numbers
    at: Numbers
    next_row: Numbers
    next_at: Numbers
    size: Numbers

    @property
    def repeated(self) -> Numbers:
        """Runs of each box."""
        found: Numbers = self.size.prod(axis=1)
        return found


@dataclass(frozen=True)
class Common:
    """The intersection of two sides: rows of runs, and the joins of runs that continue in others.

    No run continues in another along its row's innermost loops. Equivalent to the maximal runs, without a list of them.
    """

    runs: Runs
    joins: Joins

    @property
    def rows(self) -> int:
        """Size of the cache entry."""
        return len(self.runs.count) + len(self.joins.row)

    def listed(self) -> Runs:
        """Returns the maximal runs: rows that continue in others elsewhere than at corners are listed run by run."""
        joins, runs = self.joins, self.runs
        last = runs.trips - 1
        inside = (joins.at != last[joins.row]).any(axis=1) | (joins.next_at != 0).any(axis=1)
        inside &= joins.row != joins.next_row
        every = np.zeros(len(runs.count), bool)
        every[joins.row[inside]] = every[joins.next_row[inside]] = True
        return _joined(_cornered(_unrolled(runs, every)))

    def traffic(self, tiles: int, size: int, word: int) -> tuple[Numbers, Numbers, Numbers]:
        """Returns words in, words out and fragments of each tile; `size` and `word`: bytes of an element and of a word."""
        runs, joins = self.runs, self.joins
        into, out, fragments = np.zeros((3, tiles), np.int64)
        self._add(runs, runs.repeated, size, word, (into, out, fragments))
        np.subtract.at(fragments, runs.target[joins.row], joins.repeated)
        np.subtract.at(fragments, runs.source[joins.row], joins.repeated)
        if size % word:
            single = self._chains(size, word)
            nothing = np.zeros_like(fragments)
            self._add(single, np.full(len(single.count), -1), size, word, (into, out, nothing))
            whole = _joined(single)
            self._add(whole, np.ones_like(whole.count), size, word, (into, out, nothing))
        return into, out, fragments

    @staticmethod
    def _add(runs: Runs, times: Numbers, size: int, word: int, to: tuple[Numbers, Numbers, Numbers]) -> None:
        into, out, fragments = to
        words = -(-runs.count * size // word) * times
        np.add.at(into, runs.target, words)
        np.add.at(out, runs.source, words)
        np.add.at(fragments, runs.target, times)
        np.add.at(fragments, runs.source, times)

    def misaligned(self, size: int, word: int) -> bool:
        """True if a maximal run does not begin at words on both sides."""
        runs, joins, apart = self.runs, self.joins, word // size
        several = runs.trips > 1
        off = (runs.start % apart != 0) | (runs.to % apart != 0)
        off |= (several & ((runs.step % apart != 0) | (runs.to_step % apart != 0))).any(axis=1)
        begun = np.zeros_like(off)
        begun[joins.next_row] = True
        if (off & ~begun).any() or not off.any():
            return bool(off.any())
        goes_on = runs.part(joins.next_row, joins.next_at, joins.size)
        return int(_off_words(runs[off], apart).sum()) > int(_off_words(goes_on, apart).sum())

    def _chains(self, size: int, word: int) -> Runs:
        """Returns runs that continue in others, one by one, wherever this changes the number of words."""
        runs, joins = self.runs, self.joins
        broken = runs.count * size % word != 0
        of = _connected(len(broken), joins.row, joins.next_row)
        matters = np.zeros(len(broken), bool)
        matters[of[broken]] = True
        some = matters[of[joins.row]]
        begin, numbers = np.cumsum(runs.repeated) - runs.repeated, []
        for row, at in ((joins.row[some], joins.at[some]), (joins.next_row[some], joins.next_at[some])):
            index, place = _numbers(runs.trips[row], at, joins.size[some])
            numbers.append(begin[row][index] + place)
        number = np.unique(np.concatenate(numbers))
        row = np.searchsorted(begin, number, side="right") - 1
        place, first = number - begin[row], np.zeros((len(row), runs.trips.shape[1]), np.int64)
        for loop in reversed(range(first.shape[1])):
            place, first[:, loop] = np.divmod(place, runs.trips[row, loop])
        return runs.part(row, first, np.ones_like(first))


def common(runs: Runs, low: Numbers, group: Numbers) -> Common:
    """Returns the intersection of two sides, from boxes of single elements with their low ends by digits.

    Boxes of one group come from the same part on either side.
    """
    long = _folded(runs)
    found = [*_steps(runs, long, low, group), _corners(long, group)]
    return Common(long, Joins(*[np.concatenate(columns) for columns in zip(*found, strict=True)]))


def single(runs: Runs) -> Common:
    """Returns the intersection of two sides, from single elements in any order."""
    none, nothing = np.zeros(0, np.int64), np.zeros((0, runs.trips.shape[1]), np.int64)
    return Common(_joined(runs), Joins(none, nothing, none, nothing, nothing))


Joined = tuple[Numbers, Numbers, Numbers, Numbers, Numbers]


def _steps(runs: Runs, folded: Runs, low: Numbers, group: Numbers) -> Iterator[Joined]:
    """Yields joins between boxes of one group, by the digit that advances.

    Outer digits stay; inner ones go from the far corner of the one box to the near corner of the other.
    """
    high, many = low + runs.trips - 1, folded.trips > 1
    for a, b in _pairs(group):
        begin, end = np.maximum(low[a], low[b]), np.minimum(high[a], high[b])
        inside = np.logical_and.accumulate(end >= begin, axis=1)
        there, here = np.zeros((2, len(a)), np.int64)
        for loop in reversed(range(low.shape[1])):
            first = np.maximum(low[a, loop], low[b, loop] - 1)
            last = np.minimum(high[a, loop], high[b, loop] - 1)
            joins = (there + runs.step[a, loop] == 1) & (here + runs.to_step[a, loop] == 1) & (last >= first)
            joins &= (a != b) | many[a, loop]
            if loop:
                joins &= inside[:, loop - 1]
            jump = low[b, loop] - high[a, loop]
            there, here = there + jump * runs.step[a, loop], here + jump * runs.to_step[a, loop]
            some = np.flatnonzero(joins)
            if not len(some):
                continue
            row, next_row = a[some], b[some]
            at, next_at, size = begin[some] - low[row], begin[some] - low[next_row], end[some] - begin[some] + 1
            at[:, loop], size[:, loop] = first[some] - low[row, loop], last[some] - first[some] + 1
            next_at[:, loop] = first[some] + 1 - low[next_row, loop]
            at[:, loop + 1 :], next_at[:, loop + 1 :], size[:, loop + 1 :] = (high - low)[row, loop + 1 :], 0, 1
            yield row, at * many[row], next_row, next_at * many[next_row], size


def _pairs(group: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Yields all pairs of boxes of one group in both orders, and each box with itself."""
    order = np.argsort(group, kind="stable")
    first, count = np.unique(group[order], return_index=True, return_counts=True)[1:]
    first, count = np.repeat(first, count), np.repeat(count, count)
    blocks = np.cumsum(count) // AT_ONCE
    ends = np.flatnonzero(np.diff(blocks, prepend=-1)).tolist()
    for low, high in itertools.pairwise([*ends, len(order)]):
        mine = np.arange(low, high)
        yield order[np.repeat(mine, count[mine])], order[np.repeat(first[mine], count[mine]) + within(count[mine])]


def _corners(runs: Runs, group: Numbers) -> Joined:
    """Returns joins of the far corner of a box with the near corner of a box of another group."""
    next_row, goes_on = _next(runs)
    row = np.flatnonzero(goes_on & (group[next_row] != group))
    at = runs.trips[row] - 1
    return row, at, next_row[row], np.zeros_like(at), np.ones_like(at)


def _connected(rows: int, one: Numbers, other: Numbers) -> Numbers:
    """Returns for each row the first of the rows that it is connected with."""
    found = np.arange(rows)
    while (found[one] != found[other]).any():
        low = np.minimum(found[one], found[other])
        for end in (one, other):
            np.minimum.at(found, found[end], low)
        while (found[found] != found).any():
            found = found[found]
    return found


def _numbers(trips: Numbers, first: Numbers, size: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the listed runs of boxes of rows with `trips` trips: the box, and the number of each run in its row."""
    times = size.prod(axis=1)
    index, place = np.repeat(np.arange(len(times)), times), within(times)
    found, apart = np.zeros_like(index), np.ones_like(times)
    for loop in reversed(range(trips.shape[1])):
        place, at = np.divmod(place, size[index, loop])
        found += (first[index, loop] + at) * apart[index]
        apart = apart * trips[:, loop]
    return index, found


def _off_words(runs: Runs, apart: int) -> Numbers:
    """Returns how many runs of each row do not begin at a word on both sides; `apart`: elements of a word."""
    there, here = np.divmod(np.arange(apart * apart), apart)
    found = ((runs.start[:, None] % apart == there) & (runs.to[:, None] % apart == here)).astype(np.int64)
    for loop in np.flatnonzero((runs.trips > 1).any(axis=0)).tolist():
        trips, step, to_step = runs.trips[:, loop, None], runs.step[:, loop, None], runs.to_step[:, loop, None]
        before, found = found, np.zeros_like(found)
        for at in range(apart):
            from_ = (there - at * step) % apart * apart + (here - at * to_step) % apart
            found += np.take_along_axis(before, from_, axis=1) * (-(-(trips - at) // apart))
    off: Numbers = found[:, 1:].sum(axis=1)
    return off


def within(counts: Numbers) -> Numbers:
    """Returns the index of each element in its own group: 0, 1, ... as often as each count says."""
    ends = np.cumsum(counts)
    found: Numbers = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return found


def cut(index: Numbers, low: Numbers, size: Numbers, place: int, inner: Numbers | int) -> tuple[Numbers, Numbers, Numbers]:
    """Splits intervals of one digit into two digits, the inner one with `inner` values.

    The results are intervals that begin in the middle of these values, whole ones, and those that end in the middle.
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


def _folded(runs: Runs) -> Runs:
    """Converts loops over contiguous elements to runs."""
    count, trips = runs.count.copy(), runs.trips.copy()
    over = np.zeros(len(count), bool)
    for loop in reversed(range(trips.shape[1])):
        many = trips[:, loop] > 1
        joins = many & ~over & (runs.step[:, loop] == count) & (runs.to_step[:, loop] == count)
        over |= many & ~joins
        count[joins] *= trips[joins, loop]
        trips[joins, loop] = 1
    return replace(runs, count=count, trips=trips)


def _unrolled(runs: Runs, every: Numbers) -> Runs:
    """Returns rows such that only their corners continue in others.

    Rows in `every` get a row for each run. Rows of loops where a trip begins exactly at the end of the previous one get a row for
    each trip.
    """
    for loop in range(runs.trips.shape[1]):
        there, here = runs.span(loop + 1)
        meets = (runs.step[:, loop] == there + 1) & (runs.to_step[:, loop] == here + 1)
        meets = (runs.trips[:, loop] > 1) & (meets | every)
        if meets.any():
            every = np.repeat(every, np.where(meets, runs.trips[:, loop], 1))
            runs = _spread(runs, loop, meets)
    return runs


def _spread(runs: Runs, loop: int, mask: Numbers) -> Runs:
    """Returns the rows, some of them with a row for each trip of a loop."""
    times = np.where(mask, runs.trips[:, loop], 1)
    index = np.repeat(np.arange(len(times)), times)
    first = np.zeros((len(index), runs.trips.shape[1]), np.int64)
    first[:, loop] = within(times)
    trips = runs.trips[index]
    trips[mask[index], loop] = 1
    return runs.part(index, first, trips)


def _next(runs: Runs) -> tuple[Numbers, Numbers]:
    """Returns for each row the row, if any, that continues at its far corner; and whether there is one."""
    there, here = runs.span(0)
    apart = int((runs.to + here).max(initial=0)) + 2
    begin = runs.target * apart + runs.to
    end = begin + here + 1
    by_begin = np.argsort(begin)
    next_one = by_begin[np.minimum(np.searchsorted(begin, end, sorter=by_begin), len(begin) - 1)]
    goes_on = (begin[next_one] == end) & (runs.source[next_one] == runs.source) & (runs.start[next_one] == runs.start + there + 1)
    return next_one, goes_on


def _cornered(runs: Runs) -> Runs:
    """Separates the first or last run of rows that continue in others, or that others continue in."""
    next_one, goes_on = _next(runs)
    begun = np.zeros(len(goes_on), bool)
    begun[next_one[goes_on]] = True
    total = runs.repeated
    mask = (total > 1) & (begun | goes_on)
    rows = np.flatnonzero(mask)
    head, tail = begun[rows].astype(np.int64), total[rows] - goes_on[rows]
    low, size = np.concatenate([np.zeros_like(head), head, tail]), np.concatenate([head, tail - head, total[rows] - tail])
    index, low, size = np.tile(rows, 3)[size > 0], low[size > 0, None], size[size > 0, None]
    for loop in range(runs.trips.shape[1] - 1):
        index, low, size = cut(index, low, size, loop, runs.trips[index, loop + 1 :].prod(axis=1))
    return _together(runs[~mask], runs.part(index, low, size)) if len(rows) else runs


def _joined(runs: Runs) -> Runs:
    """Returns single runs in the order of the receivers, with continuations merged; then the others."""
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
