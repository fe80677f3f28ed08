"""What one stage computed, brought to where the next one keeps it: nothing where that is the same place, else an exchange."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.affine import Row, nests
from roller_ipu_sim.families import Part, each_placement, sums
from roller_ipu_sim.homes import kept, results, stored
from roller_ipu_sim.manifest import Send
from roller_ipu_sim.plan import ArrayPlan, Plan
from roller_ipu_sim.sends import sent

Numbers = npt.NDArray[Any]

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
    def from_(self) -> list[Part]:
        """Where it was computed."""
        return list(each_placement(results(self.made)))

    @cached_property
    def to(self) -> list[Part]:
        """Where it is wanted."""
        return list(each_placement(kept(self.plan, self.array)))

    @cached_property
    def stays(self) -> bool:
        """True if it is wanted just where it was computed."""
        out = self.made.output
        same = (out.digits, out.box, stored(out), out.order)
        if same != (self.array.digits, self.array.box, stored(self.array), self.array.order):
            return False
        return self.array.in_place and [_place(p) for p in self.from_] == [_place(p) for p in self.to]

    @cached_property
    def granule(self) -> int:
        """Elements that stay side by side whatever is moved where: counting them one by one would take long for large arrays."""
        out, array = self.made.output, self.array
        if out.digits != array.digits or not array.dims or out.order[-1] != array.order[-1]:
            return 1
        sizes = [array.digits[array.order[-1]], stored(out)[-1], stored(array)[-1]]
        for place in (*self.from_, *self.to):
            sizes += [place.start[-1], place.shape[-1], place.offset, place.first, place.elements, *(place.strides or ())[:-1]]
        return math.gcd(*sizes)

    @cached_property
    def _wanted(self) -> list[tuple[Part, Numbers]]:
        return list(zip(self.to, _ids(self.array, self.to, self.granule), strict=True))

    @cached_property
    def pads(self) -> bool:
        """True if something is kept of it that nothing computes: it is set to zero first."""
        return any(bool((ids == NOWHERE).any()) for _, ids in self._wanted)

    @cached_property
    def runs(self) -> Runs:
        """The exchange, run by run, in the order of the receivers."""
        size = self.granule
        count = self.array.access.tensor.elements // size
        source, start = np.full(count, NOWHERE, _kind(count)), np.zeros(count, np.int64)
        for place, ids in zip(self.from_, _ids(self.made.output, self.from_, size), strict=True):
            numbers, at = _real(place, ids, size)
            source[numbers] = place.tile
            start[numbers] = at + place.offset // size
        wanted = sorted(self._wanted, key=lambda item: (item[0].tile, item[0].offset))
        held = [(place, *_real(place, ids, size)) for place, ids in wanted]
        ids = np.concatenate([numbers for _, numbers, _ in held])
        target = np.repeat([place.tile for place, _, _ in held], [len(numbers) for _, numbers, _ in held])
        to = np.concatenate([at + place.offset // size for place, _, at in held])
        source, start = source[ids], start[ids]
        breaks = (np.diff(target) != 0) | (np.diff(source) != 0) | (np.diff(to) != 1) | (np.diff(start) != 1)
        first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        length = np.diff(np.concatenate([first, [len(ids)]]))
        return Runs(source[first], start[first] * size, target[first], to[first] * size, length * size)

    @property
    def misaligned(self) -> bool:
        """True if a run does not begin at words."""
        size, word = self.array.element_bytes, self.array.word_bytes
        return size < word and bool(((self.runs.start * size) % word).any() or ((self.runs.to * size) % word).any())

    def traffic(self, tiles: int) -> tuple[Numbers, Numbers, Numbers]:
        """Words in, words out and fragments of each tile."""
        runs = self.runs
        words = -(-runs.count * self.array.element_bytes // self.array.word_bytes)
        into, out, fragments = np.zeros((3, tiles), np.int64)
        np.add.at(into, runs.target, words)
        np.add.at(out, runs.source, words)
        np.add.at(fragments, runs.target, 1)
        np.add.at(fragments, runs.source, 1)
        return into, out, fragments

    def sends(self) -> Iterator[Send]:
        """The exchange: runs of one length, evenly apart, are one family."""
        runs = self.runs
        alone = self.array.in_place or self.array.kept or self.array.shifts
        name = self.array.box_buffer if alone else self.array.home_buffer
        alike: dict[int, list[Row]] = {}
        for count, *row in zip(*(p.tolist() for p in (runs.count, runs.source, runs.start, runs.target, runs.to)), strict=True):
            alike.setdefault(count, []).append(tuple(row))
        for count, rows in alike.items():
            for nest in nests(rows):
                yield sent(nest, self.made.buffer("out"), name, ((0, 1, 1),), count)


def _place(part: Part) -> tuple[object, ...]:
    return part.tile, part.offset, part.start, part.shape, part.first, part.elements, part.strides


def _real(place: Part, ids: Numbers, granule: int) -> tuple[Numbers, Numbers]:
    """What of a placement is no padding: the numbers of its granules, and how far behind its first one each lies."""
    at = np.arange(len(ids))
    if place.strides is not None:
        steps = (*[stride // granule for stride in place.strides[:-1]], 1)
        at = sums(0, zip((*place.shape[:-1], place.shape[-1] // granule), steps, strict=True))
    real = ids != NOWHERE
    return (ids, at) if real.all() else (ids[real], at[real])


def _kind(count: int) -> type[np.signedinteger[Any]]:
    """A type that holds so many numbers: half as much memory where that is enough."""
    return np.int32 if count < 2**31 else np.int64


def _ids(array: ArrayPlan, placements: Sequence[Part], granule: int) -> Iterator[Numbers]:
    """For each placement the row-major numbers of its granules in the array; `NOWHERE` for padding."""
    digits, extents = list(array.digits), list(stored(array))
    if granule > 1:
        digits[array.order[-1]] //= granule
        extents[-1] //= granule
    numbers = np.arange(math.prod(digits), dtype=_kind(math.prod(digits))).reshape(digits).transpose(array.order)
    whole = np.full(extents, NOWHERE, numbers.dtype)
    whole[tuple([slice(0, n) for n in numbers.shape])] = numbers
    for place in placements:
        low, size = list(place.start), list(place.shape)
        if granule > 1:
            low[-1], size[-1] = low[-1] // granule, size[-1] // granule
        box = whole[tuple([slice(s, s + n) for s, n in zip(low, size, strict=True)])]
        yield box.reshape(-1)[place.first // granule : (place.first + place.elements) // granule]
