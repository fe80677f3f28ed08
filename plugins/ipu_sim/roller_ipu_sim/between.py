"""What one stage computed, brought to where the next one keeps it: nothing where that is the same place, else an exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.homes import kept, results, stored
from roller_ipu_sim.manifest import Placement, Receivers, Send
from roller_ipu_sim.plan import ArrayPlan, Plan

Numbers = npt.NDArray[np.int64]

WORD_BYTES = 4  # of the exchange
NOWHERE = -1


@dataclass(frozen=True)
class Runs:
    """Elements side by side both where they come from and where they go: tiles, places in buffers, how many."""

    source: Numbers
    start: Numbers
    target: Numbers
    to: Numbers
    count: Numbers


@dataclass(frozen=True)
class Move:
    """An array of a stage that an earlier stage computes."""

    made: Plan
    plan: Plan
    array: ArrayPlan

    @cached_property
    def from_(self) -> list[Placement]:
        """Where it was computed."""
        return list(results(self.made))

    @cached_property
    def to(self) -> list[Placement]:
        """Where it is wanted."""
        return list(kept(self.plan, self.array))

    @cached_property
    def stays(self) -> bool:
        """True if it is wanted just where it was computed."""
        out = self.made.output
        same = (out.digits, out.box, stored(out), out.order)
        if same != (self.array.digits, self.array.box, stored(self.array), self.array.order):
            return False
        return self.array.in_place and [_place(p) for p in self.from_] == [_place(p) for p in self.to]

    @cached_property
    def pads(self) -> bool:
        """True if something is kept of it that nothing computes: it is set to zero first."""
        return any(bool((ids == NOWHERE).any()) for ids in _ids(self.array, self.to))

    @cached_property
    def runs(self) -> Runs:
        """The exchange, run by run, in the order of the receivers."""
        elements = self.array.access.tensor.elements
        source, start = np.full(elements, NOWHERE), np.zeros(elements, np.int64)
        for place, ids in zip(self.from_, _ids(self.made.output, self.from_), strict=True):
            real = ids != NOWHERE
            source[ids[real]] = place.tile
            start[ids[real]] = place.offset + np.flatnonzero(real)
        wanted = list(zip(self.to, _ids(self.array, self.to), strict=True))
        wanted.sort(key=lambda item: (item[0].tile, item[0].offset))
        ids = np.concatenate([i[i != NOWHERE] for _, i in wanted])
        target = np.concatenate([np.full(int((i != NOWHERE).sum()), p.tile) for p, i in wanted])
        to = np.concatenate([p.offset + np.flatnonzero(i != NOWHERE) for p, i in wanted])
        source, start = source[ids], start[ids]
        breaks = (np.diff(target) != 0) | (np.diff(source) != 0) | (np.diff(to) != 1) | (np.diff(start) != 1)
        first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        count = np.diff(np.concatenate([first, [len(ids)]]))
        return Runs(source[first], start[first], target[first], to[first], count)

    @property
    def misaligned(self) -> bool:
        """True if a run does not begin at words."""
        size, runs = self.array.element_bytes, self.runs
        return size < WORD_BYTES and bool(((runs.start * size) % WORD_BYTES).any() or ((runs.to * size) % WORD_BYTES).any())

    def traffic(self, tiles: int) -> tuple[Numbers, Numbers, Numbers]:
        """Words in, words out and fragments of each tile."""
        runs = self.runs
        words = -(-runs.count * self.array.element_bytes // WORD_BYTES)
        into, out, fragments = np.zeros((3, tiles), np.int64)
        np.add.at(into, runs.target, words)
        np.add.at(out, runs.source, words)
        np.add.at(fragments, runs.target, 1)
        np.add.at(fragments, runs.source, 1)
        return into, out, fragments

    def sends(self) -> Iterator[Send]:
        """The exchange; runs of one length, evenly apart between the same tiles, are one send."""
        runs = self.runs
        alone = self.array.in_place or self.array.kept or self.array.shifts
        name = self.array.box_buffer if alone else self.array.home_buffer
        rows = list(zip(*(part.tolist() for part in (runs.source, runs.target, runs.count, runs.start, runs.to)), strict=True))
        for group in _even(rows):
            tile, target, count, start, to = group[0]
            apart = (group[1][3] - start, group[1][4] - to) if len(group) > 1 else (1, 1)
            yield Send(
                tile=tile,
                buffer=self.made.buffer("out"),
                offset=start,
                to=Receivers(tiles=((target, 1, 1),), buffer=name, offset=to),
                shape=(len(group), count),
                strides=(apart[0], 1),
                to_strides=(apart[1], 1),
            )


_Row = tuple[int, int, int, int, int]


def _even(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Runs gathered as long as they are alike and evenly apart, forwards on both sides."""
    group: list[_Row] = []
    for before, row in pairwise([None, *rows]):
        assert row is not None
        if before is not None and _goes_on(group, row):
            group.append(row)
            continue
        if group:
            yield group
        group = [row]
    if group:
        yield group


def _goes_on(group: list[_Row], row: _Row) -> bool:
    last = group[-1]
    step = row[3] - last[3], row[4] - last[4]
    if row[:3] != last[:3] or min(step) < 1:
        return False
    return len(group) == 1 or step == (last[3] - group[-2][3], last[4] - group[-2][4])


def _place(placement: Placement) -> tuple[object, ...]:
    return placement.tile, placement.offset, placement.start, placement.shape, placement.first, placement.elements


def _ids(array: ArrayPlan, placements: Sequence[Placement]) -> Iterator[Numbers]:
    """For each placement the row-major numbers of its elements in the array; `NOWHERE` for padding."""
    numbers = np.arange(array.access.tensor.elements).reshape(array.digits).transpose(array.order)
    whole = np.full(stored(array), NOWHERE)
    whole[tuple([slice(0, n) for n in numbers.shape])] = numbers
    for place in placements:
        box = whole[tuple([slice(s, s + n) for s, n in zip(place.start, place.shape, strict=True)])]
        yield box.reshape(-1)[place.first : place.first + place.elements]
