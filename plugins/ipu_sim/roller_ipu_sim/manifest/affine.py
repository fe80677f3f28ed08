"""Compression of rows of numbers into loops: regular long tables become loops in a printed program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """Rows `first + sum of index * step` over loops of (count, step for each column), outermost first."""

    first: Row
    loops: tuple[tuple[int, Row], ...] = ()

    def rows(self) -> list[Row]:
        """Returns all rows, in order."""
        found = [self.first]
        for count, step in self.loops:
            found = [_plus(row, step, index) for row in found for index in range(count)]
        return found


def nest_over(first: Row, walks: Iterable[tuple[int, int, Row]]) -> Nest:
    """Returns the nest of some loops (start, trips, change per trip), outermost first, without loops of one trip.

    Neighbouring loops with the same step become one.
    """
    found: list[tuple[int, Row]] = []
    for low, count, step in walks:
        first = _plus(first, step, low)
        if count == 1:
            continue
        if found and found[-1][1] == tuple([count * change for change in step]):
            found[-1] = found[-1][0] * count, step
        else:
            found.append((count, step))
    return Nest(first, tuple(found))


def spans(radices: Sequence[int], low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yields the numbers from `low` to before `high` by digits of these radices, in order: boxes, (first, count) for each digit."""
    if low >= high:
        return
    if low == 0 and high == math.prod(radices):
        yield tuple([(0, radix) for radix in radices])
        return
    inner = math.prod(radices[1:])
    head, tail = -(-low // inner), high // inner  # first digits from head to before tail come with all others
    if head > tail:
        yield from (((tail, 1), *rest) for rest in spans(radices[1:], low - tail * inner, high - tail * inner))
        return
    yield from (((head - 1, 1), *rest) for rest in spans(radices[1:], low - (head - 1) * inner, inner) if low < head * inner)
    if head < tail:
        yield ((head, tail - head), *[(0, radix) for radix in radices[1:]])
    yield from (((tail, 1), *rest) for rest in spans(radices[1:], 0, high - tail * inner))


def nests(rows: Iterable[Row]) -> list[Nest]:
    """Returns the rows, each as often as given but in another order, as few nests."""
    given = list(rows)
    if len(given) < 2:
        return [Nest(row) for row in given]
    found = min((_even(given, least) for least in (3, 2)), key=len)
    return fewer(_alike(found)) if len(found) < len(given) else found


def fewer(given: Sequence[Nest]) -> list[Nest]:
    """Returns the same rows in another order, as few nests.

    Runs of rows in equal steps become a loop, then runs of equal loops a loop around it. Between rounds equal loops are grouped, as
    tables alternate between shapes.
    """
    found = list(given)
    while True:
        # Runs of two may split a longer run, but are the only ones where two columns alternate: the shorter result is kept.
        folded = min((_folded(found, least) for least in (3, 2)), key=len)
        if len(folded) == len(found):
            return found
        found = _alike(folded)


def _alike(given: Iterable[Nest]) -> list[Nest]:
    """Returns the nests, grouped by equal loops."""
    alike: dict[object, list[Nest]] = {}
    for nest in given:
        alike.setdefault(nest.loops, []).append(nest)
    return [nest for group in alike.values() for nest in group]


def _even(rows: Sequence[Row], least: int) -> list[Nest]:
    """Returns the result of `_folded` for single rows: tables are long, and mostly regular."""
    table = np.array(rows, dtype=np.int64).reshape(len(rows), -1)
    steps = np.diff(table, axis=0)
    breaks = np.flatnonzero((steps[1:] != steps[:-1]).any(axis=1)) + 1  # between steps that differ
    ends = [*breaks.tolist(), len(steps)]
    found: list[Nest] = []
    start = place = 0
    while start < len(rows):
        while place < len(ends) and ends[place] <= start:
            place += 1
        last = ends[place] if place < len(ends) else start  # last of the rows at equal steps
        if last - start + 1 >= least:
            found.append(Nest(rows[start], ((last - start + 1, tuple(steps[start].tolist())),)))
            start = last + 1
        else:
            found.append(Nest(rows[start]))
            start += 1
    return found


def _folded(given: Sequence[Nest], least: int) -> list[Nest]:
    found: list[Nest] = []
    start = 0
    while start < len(given):
        end = _run_end(given, start)
        if end - start >= least:
            step = _minus(given[start + 1].first, given[start].first)
            found.append(Nest(given[start].first, ((end - start, step), *given[start].loops)))
            start = end
        else:
            found.append(given[start])
            start += 1
    return found


def _run_end(given: Sequence[Nest], start: int) -> int:
    """Returns the index behind the last of the nests at equal steps and with equal loops."""
    end, step = start + 1, None
    while end < len(given) and given[end].loops == given[start].loops:
        now = _minus(given[end].first, given[end - 1].first)
        if step is not None and now != step:
            break
        step, end = now, end + 1
    return end


def _plus(row: Row, step: Row, times: int) -> Row:
    return tuple(value + times * change for value, change in zip(row, step, strict=True))


def _minus(row: Row, other: Row) -> Row:
    return tuple(value - before for value, before in zip(row, other, strict=True))


def total(constant: int, terms: Iterable[tuple[int, str]]) -> str:
    """Returns a sum as C++: `8 + 4 * i0 - i1`; terms of factor 0 are omitted."""
    text = str(constant) if constant else ""
    for factor, name in terms:
        if factor:
            product = name if abs(factor) == 1 else f"{abs(factor)} * {name}"
            sign = "-" if factor < 0 else "+"
            text = f"{text} {sign} {product}" if text else (product if factor > 0 else f"-{product}")
    return text or "0"
