"""Moves of results between stages: none if the next stage uses the same placement, else an exchange."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.codegen.crossing import Side, crossed, rows, side
from roller_ipu_sim.codegen.placements import kept, results, stored
from roller_ipu_sim.codegen.runs import Common, Runs
from roller_ipu_sim.codegen.sends import sent
from roller_ipu_sim.manifest.affine import nests
from roller_ipu_sim.manifest.models import Send
from roller_ipu_sim.plan.stage_plan import ArrayPlan, Plan

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Move:
    """The move of a stage's input array from the earlier stage that computes it."""

    made: Plan
    plan: Plan
    array: ArrayPlan

    @cached_property
    def from_(self) -> Side:
        """The placement that the earlier stage leaves."""
        return side(self.made.output.digits, self.made.output.order, results(self.made))

    @cached_property
    def to(self) -> Side:
        """The placement that this stage requires."""
        return side(self.array.digits, self.array.order, kept(self.plan, self.array))

    @cached_property
    def stays(self) -> bool:
        """True if the array is left exactly where this stage requires it."""
        out = self.made.output
        same = (out.digits, out.box, stored(out), out.order)
        if same != (self.array.digits, self.array.box, stored(self.array), self.array.order):
            return False
        return self.array.in_place and np.array_equal(_places(self.from_), _places(self.to))

    @property
    def runs(self) -> Runs:
        """The exchange, run by run."""
        return self._common.listed()

    @property
    def _common(self) -> Common:
        return crossed(self.from_, self.to)

    @cached_property
    def pads(self) -> bool:
        """True if the placement includes elements that nothing computes: these are zeroed first."""
        return sum([len(rows(family)) * family.elements for family in self.to.families]) > self.array.access.tensor.elements

    @cached_property
    def misaligned(self) -> bool:
        """True if a run does not begin at a word."""
        size, word = self.array.element_bytes, self.array.word_bytes
        if size >= word:
            return False
        return self._common.misaligned(size, word)

    def traffic(self, tiles: int) -> tuple[Numbers, Numbers, Numbers]:
        """Returns words in, words out and fragments of each tile."""
        return self._common.traffic(tiles, self.array.element_bytes, self.array.word_bytes)

    def sends(self) -> Iterator[Send]:
        """Yields the exchange; equal boxes of runs at constant distances form one family."""
        runs = self.runs
        alone = self.array.in_place or self.array.kept or self.array.shifts
        name = self.array.box_buffer if alone else self.array.home_buffer
        several = runs.trips > 1
        shapes = np.column_stack([runs.count, np.where(several, runs.trips, 1), runs.step * several, runs.to_step * several])
        kinds, kind = np.unique(shapes, axis=0, return_inverse=True)
        order = np.argsort(kind, kind="stable")
        table = np.column_stack([runs.source, runs.start, runs.target, runs.to])[order]
        ends = np.cumsum(np.bincount(kind.reshape(-1)))
        for (count, *loops), alike in zip(kinds.tolist(), np.split(table, ends[:-1]), strict=True):
            outer = np.array(loops).reshape(3, -1).T.tolist()
            for nest in nests([tuple(row) for row in alike.tolist()]):
                around = [(trips, step, to_step) for trips, step, to_step in outer if trips > 1]
                yield sent(nest, self.made.buffer("out"), name, ((0, 1, 1),), count, around=around)


def _places(one: Side) -> Numbers:
    """Returns the positions of a side's parts, in order."""
    return np.concatenate([np.column_stack([rows(f), np.full(len(rows(f)), f.elements)]) for f in one.families])
