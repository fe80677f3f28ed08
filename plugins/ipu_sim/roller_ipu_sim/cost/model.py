"""Closed-form model of a stage's program in simulated cycles, from the program alone.

The simulator, which uses the manifest alone, must count the same. A program is a sequence of supersteps: boxes of arrays are
brought to tiles, vertices compute, partial results are exchanged and added up, results are finished. All tiles do the same work,
and remainders are padded. So a step takes as long as its fullest tile.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from roller.plugin import ComputeAtom, Estimate, HardwareSpec, Nest, RProgram, StageProgram
from roller_ipu_sim.chip import cycles
from roller_ipu_sim.chip.machine import Machine, machine
from roller_ipu_sim.codegen.program_plan import Whole, whole_of
from roller_ipu_sim.codegen.stage_transfers import Move
from roller_ipu_sim.plan import limits, work
from roller_ipu_sim.plan.heap import Memory, placed
from roller_ipu_sim.plan.overlaps import Overlap
from roller_ipu_sim.plan.stage_plan import ArrayPlan, Plan, plan_of, uneven
from roller_ipu_sim.plan.windows import Traffic, Windows, fullest, fullest_kept, places_on, traffic

_Phase = tuple[int, Sequence[ArrayPlan], tuple[int, ...]]  # repetitions, moved arrays, and the state of the serial loops


@dataclass(frozen=True)
class Costing:
    """One program on one chip."""

    plan: Plan
    machine: Machine
    interleaved: bool  # the weights lie in the interleaved region
    worth: float = math.inf  # number of cycles from which on they need not be exact

    @cached_property
    def terms(self) -> dict[str, int]:
        """Cycles by kind, all steps together; a lower bound of at least `worth` where they reach it."""
        if self.plan.idle:
            return {}
        found = {"compute": self.compute}
        if self.compute >= self.worth:
            return found
        outer = self._outer
        found["exchange"] = outer * self._partial_phase() if self.plan.parts > 1 else 0
        if self.plan.parts > 1:
            found["combine"] = outer * work.adding(self.plan).cycles
        finish = work.finishing(self.plan)
        found["finish"] = outer * cycles.mapped(self.machine, finish) if finish is not None else 0
        found["exchange"] += self._brought(self.worth - sum(found.values()))
        return found

    @cached_property
    def compute(self) -> int:
        """Cycles of the vertices that compute results, or set them to the result of an empty reduction."""
        if self.plan.empty:
            return self._outer * self._nothing()
        every = work.vertices(self.plan, self.interleaved)
        return self._outer * sum([times * _vertex(self.machine, shape) for times, shape in every])

    @property
    def _outer(self) -> int:
        return math.prod([lp.trips for lp in self.plan.grid.serial if lp.unit])

    def _brought(self, worth: float) -> int:
        """Computes the cycles of all exchanges that bring boxes to tiles; a lower bound of at least `worth` where they reach it."""
        phases = list(self._phases())
        least = cycles.exchanged(self.machine, 0, 0, 0)  # even one that moves nothing
        total, known = least * sum([times for times, _, _ in phases]), []
        for times, arrays, trips in phases:
            if total >= worth:
                return total
            known.append(self._least(arrays, trips))
            total += times * (known[-1] - least)
        for (times, arrays, trips), bound in zip(phases, known, strict=True):
            if total >= worth:
                break
            total += times * (self._phase(arrays, trips) - bound)
        return total

    def _least(self, arrays: Sequence[ArrayPlan], trips: tuple[int, ...]) -> int:
        """Computes a lower bound of the cycles of an exchange of these arrays.

        It counts the arrivals at one tile: all of the plain arrays, and the largest of the others.
        """
        words = fragments = plain_words = plain_fragments = 0
        for array in arrays:
            if array.number in self._windows:
                arriving, rows = self._windows[array.number].arriving(trips)
                words, fragments = max(words, arriving), max(fragments, rows)
            else:
                arriving, rows = _fewest(array)
                plain_words, plain_fragments = plain_words + arriving, plain_fragments + rows
        filled = self._filled(arrays)
        return cycles.exchanged(self.machine, words + plain_words, 0, fragments + plain_fragments) + filled

    def _filled(self, arrays: Sequence[ArrayPlan]) -> int:
        """Computes the cycles to fill boxes that exceed their arrays."""
        return sum([cycles.filled(self.machine, a.access.tensor.dtype, a.elements) for a in arrays if a.leaves])

    def _nothing(self) -> int:
        """Computes the cycles to set the results of a step to the result of an empty reduction."""
        finished = work.finishes(self.plan) or self.plan.parts > 1
        dtype = self.plan.nest.stage.body.dtype if finished else self.plan.output.access.tensor.dtype
        return cycles.filled(self.machine, dtype, self.plan.output.elements)

    def _phases(self) -> Iterator[_Phase]:
        """Yields every exchange that brings boxes to tiles: before the first step, and whenever a serial loop advances."""
        brought = [a for a in self.plan.arrays if not a.in_place]
        first = [a for a in brought if not a.shifts]
        if first:
            yield 1, first, (0,) * len(self.plan.grid.serial)
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

    @cached_property
    def _known(self) -> dict[tuple[object, ...], int]:
        """Cached cycles of exchanges, by arrays and overlaps."""
        return {}

    def _ticks(self, moving: list[ArrayPlan], depth: int, before: int) -> Iterator[_Phase]:
        """Yields the exchanges when a serial loop advances, for all states of the outer ones.

        They are equal, except for boxes that are cut at the end of the array.
        """
        serial = self.plan.grid.serial
        trips = [lp.trips for lp in serial]
        inner = (0,) * (len(trips) - depth - 1)
        if self.plan.countless or not uneven(moving):
            yield before * (trips[depth] - 1), moving, (0,) * len(trips)
            return
        for outer in itertools.product(*[range(n) for n in trips[:depth]]):
            for at in range(1, trips[depth]):
                yield 1, moving, (*outer, at, *inner)

    def _phase(self, arrays: Sequence[ArrayPlan], trips: tuple[int, ...]) -> int:
        overlaps = {a.number: self._windows[a.number].overlaps(trips) for a in arrays if a.number in self._windows}
        key = (*[a.number for a in arrays], *[part.key for parts in overlaps.values() for part in parts])
        found = self._known.get(key)
        if found is None:
            exchanged = cycles.exchanged(self.machine, *self._fullest(arrays, overlaps))
            found = self._known[key] = exchanged + self._filled(arrays)
        return found

    def _fullest(self, arrays: Sequence[ArrayPlan], overlaps: Mapping[int, Sequence[Overlap]]) -> tuple[int, int, int]:
        """Returns the max words in, words out and fragments of a tile in an exchange of these arrays."""
        blocks = [_handed(a) if a.shifts else self._blocks[a.number] for a in arrays if a.plain]
        if len(overlaps) == 1 and all(block.alike for block in blocks):
            ((number, parts),) = overlaps.items()
            if self._windows[number].shares_apart:
                windows = self._windows[number]
                most = fullest_kept(parts, windows.sharers == 1) if windows.array.kept else fullest(parts)
                found = (most, *[(int(b.words_in), int(b.words_out), int(b.fragments)) for b in blocks])
                return sum([n for n, _, _ in found]), sum([n for _, n, _ in found]), sum([n for _, _, n in found])
        every = [*blocks, *[traffic(self._windows[number], parts) for number, parts in overlaps.items()]]
        words_in, words_out, fragments = (
            int(np.max(sum(np.asarray(getattr(m, name)) for m in every))) for name in ("words_in", "words_out", "fragments")
        )
        return words_in, words_out, fragments

    def _partial_phase(self) -> int:
        """Computes the cycles of the exchange of partial results: each tile that shares results receives a piece of all of them."""
        pieces = self.plan.pieces
        words = -(-pieces.most * pieces.element_bytes // self.machine.exchange.word_bytes)
        every = -(-pieces.elements * pieces.element_bytes // self.machine.exchange.word_bytes)
        return cycles.exchanged(self.machine, self.plan.parts * words, every, self.plan.parts + pieces.count)


def _vertex(chip: Machine, shape: cycles.AmpShape | cycles.MapShape) -> int:
    return cycles.amp(chip, shape) if isinstance(shape, cycles.AmpShape) else cycles.mapped(chip, shape)


def _handed(array: ArrayPlan) -> Traffic:
    """Returns the traffic of rotating parts: every tile sends its part to one neighbour and receives another's."""
    words = array.elements * array.element_bytes // array.word_bytes
    return Traffic(words, words, 2)


def _shared(array: ArrayPlan) -> Traffic:
    """Returns the traffic of a plain array: each tile's share of a block goes to all tiles that need the block.

    If the tile has only one box, its own share is initially stored there; else it arrives like the others.
    """
    kept, total = int(array.kept), -(-array.elements * array.element_bytes // array.word_bytes)
    if array.elements == array.share * array.sharers:  # all have equal shares
        own_words = -(-array.share * array.element_bytes // array.word_bytes)
        return Traffic(total - kept * own_words, own_words, array.holders - kept + 1)
    index = places_on(array.grid, [axis for axis, lp in enumerate(array.grid.loops) if not array.touches(lp.dim)])
    own = np.clip(array.elements - index * array.share, 0, array.share)
    words = -(-own * array.element_bytes // array.word_bytes)
    holds = (own > 0).astype(np.int64)
    return Traffic(total - kept * words, words, array.holders - kept * holds + holds)


def _fewest(array: ArrayPlan) -> tuple[int, int]:
    """Returns the min words of a plain array that arrive at each tile, and their fragments."""
    if array.shifts:
        return array.elements * array.element_bytes // array.word_bytes, 2
    total, own = (-(-n * array.element_bytes // array.word_bytes) for n in (array.elements, array.share))
    return total - int(array.kept) * own, array.holders - int(array.kept)


def estimate(spec: HardwareSpec, program: StageProgram | RProgram, worth: float = math.inf) -> Estimate:
    """Returns the prediction for a stage's program, as if alone, or for a whole program: simulated cycles over the clock.

    Infinite where the machine cannot run it. A stage's program that takes `worth` seconds or more gets any value between `worth`
    and its own.
    """
    if isinstance(program, RProgram):
        return _whole(spec, program)
    chip = machine(spec)
    plan = plan_of(program, chip)
    if plan is None:
        return _never(limits.UNREADABLE)
    enough = worth * chip.clock_ghz * 1e9 + 1  # one more cycle, as seconds are rounded
    found = Costing(plan, chip, plan.program.atom.kind == "matrix" and not plan.empty, enough)  # with the fastest possible memory
    if enough < math.inf and _ran_before(program) and sum(found.terms.values()) >= enough:
        return _estimate(found.terms, chip, plan.grid.tiles)
    refused = limits.refusal(plan, spec)
    if refused is not None:
        return _never(refused)
    memory = placed([work.wishes(plan)], chip)
    if memory.excess:
        return _never(limits.full(memory), memory.excess)
    _remember(program)
    interleaved = _interleaved(plan, memory, chip)
    if interleaved == found.interleaved:
        return _estimate(found.terms, chip, plan.grid.tiles)
    slower = replace(found, interleaved=interleaved).compute
    return _estimate({**found.terms, "compute": slower} if found.terms else {}, chip, plan.grid.tiles)


def _interleaved(plan: Plan, memory: Memory, chip: Machine) -> bool:
    return not plan.idle and work.interleaved(plan, memory, chip.memory.region0_bytes)


_Way = tuple[Nest, ComputeAtom, tuple[tuple[str, int], ...]]
_ran: deque[_Way] = deque(maxlen=64)  # nests, atoms and mappings of programs that no rule refused


def _remember(program: StageProgram) -> None:
    if not _ran_before(program):
        _ran.appendleft((program.nest, program.atom, program.mapping))


def _ran_before(program: StageProgram) -> bool:
    """True if a valid program with the same nest, atom and mapping is known, so that its compute time is known."""
    nest, atom, mapping = program.nest, program.atom, program.mapping
    return any(n is nest and a is atom and m == mapping for n, a, m in tuple(_ran))


def _never(refused: tuple[str, str], short: int = 0) -> Estimate:
    """Returns the prediction for a program that cannot run; its only term names the rule. `short`: missing bytes."""
    return Estimate(math.inf, ((refused[0], math.inf),), reason=refused[1], short_bytes=short)


def _whole(spec: HardwareSpec, program: RProgram) -> Estimate:
    """Returns the prediction for all stages in sequence, with the moves between them."""
    whole = whole_of(spec, program)
    if not isinstance(whole, Whole):
        return _never(whole)
    chip, terms = whole.machine, Counter[str]()
    for plan, moves in zip(whole.plans, whole.moves, strict=True):
        terms.update(Costing(plan, chip, _interleaved(plan, whole.memory, chip)).terms)
        if moves:
            terms["exchange"] += _moved(moves, chip)
    return _estimate(terms, chip, max(plan.grid.tiles for plan in whole.plans))


def _moved(moves: Sequence[Move], chip: Machine) -> int:
    """Computes the cycles of the exchange before a stage."""
    every = np.stack([np.stack(m.traffic(chip.tiles)) for m in moves]).sum(axis=0)
    words_in, words_out, fragments = (int(n) for n in every.max(axis=1))
    cleared = [m.array for m in moves if m.pads]
    filled = sum(cycles.filled(chip, a.access.tensor.dtype, work.cleared_elements(a)) for a in cleared)
    return cycles.exchanged(chip, words_in, words_out, fragments) + filled


def _estimate(terms: Mapping[str, int], chip: Machine, tiles: int) -> Estimate:
    seconds = {name: count / (chip.clock_ghz * 1e9) for name, count in terms.items()}
    return Estimate(sum(seconds.values()), tuple(seconds.items()), (("units", tiles / chip.tiles),), clock_ghz=chip.clock_ghz)
