"""Simulated cycles of a stage's program in closed form, from the program alone; the simulator, which sees the manifest alone, must
count the same.

A program is a sequence of supersteps: boxes of arrays are brought to tiles, vertices compute, parts of results are exchanged and
added up, results are finished. All tiles do the same; ragged ends are padded. So a step takes as long as its fullest tile.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roller.plugin import Estimate, HardwareSpec, RProgram, StageProgram
from roller_ipu_sim import cycles, limits, work
from roller_ipu_sim.between import Move
from roller_ipu_sim.heap import Memory, placed
from roller_ipu_sim.machine import Machine, machine
from roller_ipu_sim.plan import ArrayPlan, Plan, plan_of, uneven
from roller_ipu_sim.whole import Whole, whole_of
from roller_ipu_sim.windows import Traffic, Windows, places_on, traffic


@dataclass(frozen=True)
class Costing:
    """One program on one chip."""

    plan: Plan
    memory: Memory
    machine: Machine

    @cached_property
    def terms(self) -> dict[str, int]:
        """Cycles by kind, all steps together."""
        if self.plan.idle:
            return {}
        outer = math.prod([lp.trips for lp in self.plan.grid.serial if lp.unit])
        inter = work.interleaved(self.plan, self.memory, self.machine.memory.region0_bytes)
        found = {
            "compute": self._nothing()
            if self.plan.empty
            else outer * sum(times * self._vertex(shape) for times, shape in work.vertices(self.plan, inter))
        }
        found["exchange"] = sum(self._phases())
        if self.plan.parts > 1:
            found["exchange"] += outer * self._partial_phase()
            found["combine"] = outer * work.adding(self.plan).cycles
        finish = work.finishing(self.plan)
        found["finish"] = outer * cycles.mapped(self.machine, finish) if finish is not None else 0
        return found

    def _vertex(self, shape: cycles.AmpShape | cycles.MapShape) -> int:
        return cycles.amp(self.machine, shape) if isinstance(shape, cycles.AmpShape) else cycles.mapped(self.machine, shape)

    def _nothing(self) -> int:
        """Cycles of setting results to what an empty reduction gives."""
        serial = math.prod([lp.trips for lp in self.plan.grid.serial if lp.unit])
        finished = work.finishes(self.plan) or self.plan.parts > 1
        dtype = self._acc if finished else self.plan.output.access.tensor.dtype
        return serial * cycles.filled(self.machine, dtype, self.plan.output.elements)

    @property
    def _acc(self) -> str:
        return self.plan.nest.stage.body.dtype

    def _phases(self) -> Iterator[int]:
        """Cycles of every exchange that brings boxes to tiles: before the first step, and whenever a serial loop moves on."""
        brought = [a for a in self.plan.arrays if not a.in_place]
        first = [a for a in brought if not a.shifts]
        if first:
            yield self._phase(first, (0,) * len(self.plan.grid.serial))
        before = 1
        for depth, loop in enumerate(self.plan.grid.serial):
            moving = [a for a in brought if a.depth > depth]
            if moving:
                yield from self._ticks(moving, depth, before)
            before *= loop.trips

    @cached_property
    def _blocks(self) -> dict[int, Traffic]:
        return {a.number: _shared(a) for a in self.plan.arrays if a.plain and not a.in_place}

    @cached_property
    def _windows(self) -> dict[int, Windows]:
        return {a.number: Windows(a) for a in self.plan.arrays if not a.plain}

    def _ticks(self, moving: list[ArrayPlan], depth: int, before: int) -> Iterator[int]:
        """The exchanges when a serial loop moves on, whatever the outer ones are at: all alike, but for boxes that are cut where
        the array ends.
        """
        serial = self.plan.grid.serial
        trips = [lp.trips for lp in serial]
        inner = (0,) * (len(trips) - depth - 1)
        if self.plan.countless or not uneven(moving):
            yield before * (trips[depth] - 1) * self._phase(moving, (0,) * len(trips))
            return
        for outer in itertools.product(*[range(n) for n in trips[:depth]]):
            for at in range(1, trips[depth]):
                yield self._phase(moving, (*outer, at, *inner))

    def _phase(self, arrays: Sequence[ArrayPlan], trips: tuple[int, ...]) -> int:
        found = [
            _handed(a) if a.shifts else self._blocks[a.number] if a.plain else traffic(self._windows[a.number], trips)
            for a in arrays
        ]
        words_in, words_out, fragments = (
            int(np.max(sum(np.asarray(getattr(m, name)) for m in found))) for name in ("words_in", "words_out", "fragments")
        )
        filled = sum(cycles.filled(self.machine, a.access.tensor.dtype, a.elements) for a in arrays if a.leaves)
        return cycles.exchanged(self.machine, words_in, words_out, fragments) + filled

    def _partial_phase(self) -> int:
        """Cycles of handing out parts of results: each tile of those that share results gets a piece of all of them."""
        pieces = work.pieces(self.plan)
        words = -(-pieces.most * pieces.element_bytes // self.machine.exchange.word_bytes)
        every = -(-pieces.elements * pieces.element_bytes // self.machine.exchange.word_bytes)
        return cycles.exchanged(self.machine, self.plan.parts * words, every, self.plan.parts + pieces.count)


def _handed(array: ArrayPlan) -> Traffic:
    """Parts handed on: every tile gives its part to one neighbour and gets another's."""
    words = array.elements * array.element_bytes // array.word_bytes
    return Traffic(words, words, 2)


def _shared(array: ArrayPlan) -> Traffic:
    """A plain array: each tile's share of a block goes to all that need the block. A tile's own share lies in its box from the
    beginning where that is the only box; else it comes like the others.
    """
    kept, total = int(array.kept), -(-array.elements * array.element_bytes // array.word_bytes)
    if array.elements == array.share * array.sharers:  # all keep as much
        own_words = -(-array.share * array.element_bytes // array.word_bytes)
        return Traffic(total - kept * own_words, own_words, array.holders - kept + 1)
    index = places_on(array.grid, [axis for axis, lp in enumerate(array.grid.loops) if not array.touches(lp.dim)])
    own = np.clip(array.elements - index * array.share, 0, array.share)
    words = -(-own * array.element_bytes // array.word_bytes)
    holds = (own > 0).astype(np.int64)
    return Traffic(total - kept * words, words, array.holders - kept * holds + holds)


def estimate(spec: HardwareSpec, program: StageProgram | RProgram) -> Estimate:
    """The prediction for a stage's program, as if alone, or for a whole one: simulated cycles over the clock. Infinite where the
    machine cannot run it so.
    """
    if isinstance(program, RProgram):
        return _whole(spec, program)
    chip = machine(spec)
    plan = plan_of(program, chip)
    refused = limits.UNREADABLE if plan is None else limits.refusal(plan, spec)
    if plan is None or refused is not None:
        return _never(refused or limits.UNREADABLE)
    memory = placed([work.wishes(plan)], chip)
    if memory.excess:
        return _never(limits.full(memory), memory.excess)
    return _estimate(Counter(Costing(plan, memory, chip).terms), chip, plan.grid.tiles)


def _never(refused: tuple[str, str], short: int = 0) -> Estimate:
    """The prediction for what cannot run; its only term names the rule. `short`: bytes that are missing."""
    return Estimate(math.inf, ((refused[0], math.inf),), reason=refused[1], short_bytes=short)


def _whole(spec: HardwareSpec, program: RProgram) -> Estimate:
    """The stages one after another, and what is brought from one to the next."""
    whole = whole_of(spec, program)
    if not isinstance(whole, Whole):
        return _never(whole)
    chip, terms = whole.machine, Counter[str]()
    for plan, moves in zip(whole.plans, whole.moves, strict=True):
        terms.update(Costing(plan, whole.memory, chip).terms)
        if moves:
            terms["exchange"] += _moved(moves, chip)
    return _estimate(terms, chip, max(plan.grid.tiles for plan in whole.plans))


def _moved(moves: Sequence[Move], chip: Machine) -> int:
    """Cycles of the exchange before a stage."""
    every = np.stack([np.stack(m.traffic(chip.tiles)) for m in moves]).sum(axis=0)
    words_in, words_out, fragments = (int(n) for n in every.max(axis=1))
    cleared = [m.array for m in moves if m.pads]
    filled = sum(cycles.filled(chip, a.access.tensor.dtype, work.cleared_elements(a)) for a in cleared)
    return cycles.exchanged(chip, words_in, words_out, fragments) + filled


def _estimate(terms: Mapping[str, int], chip: Machine, tiles: int) -> Estimate:
    seconds = {name: count / (chip.clock_ghz * 1e9) for name, count in terms.items()}
    return Estimate(sum(seconds.values()), tuple(seconds.items()), (("units", tiles / chip.tiles),), clock_ghz=chip.clock_ghz)
