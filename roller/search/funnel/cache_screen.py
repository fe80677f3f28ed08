"""The screen for units whose data caches hold: the model's terms for whole arrays of tile chains.

    computing     padded points, accumulators in flight, load balance
    registers     the model's own formula (`roller.cost.register_traffic`)
    each cache    what it loads again, run by run (`roller.search.funnel.cache_loads`)
    around it     filling panels and boxes, ends of accumulator tiles, launch, combining partial results (split-K)

They overlap as in the model. The screen knows the default order of loops only. It leaves out the room that copies take in a cache.
Without these, it is the model (`tests/search/test_funnel.py` holds them together).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce

import numpy as np

from roller.cost.combining import accumulating, cut_seconds, fold_slots
from roller.cost.formulas import around_tiles, first_points, lost_seconds, overlapped
from roller.cost.model import executed_points
from roller.cost.packing import DECODE_TRIPS, ROW_TRIPS, element_slots, packing_seconds
from roller.cost.stores import past_caches
from roller.ir.elementwise import Value, largest
from roller.program.footprint import whole_tiles
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes, staged_touches
from roller.program.window_steps import computed_taps
from roller.search.choices import bare, every_staging, parts_of, required_staging
from roller.search.funnel.cache_loads import CacheLoads
from roller.search.funnel.lattice import Chains, Tiles, chains_around, joined
from roller.search.tile_space import Chain, TileSpace, start

Copies = tuple[Staging, ...]
ENDLESS = 1 << 53  # steps, of which the first and the last do not count


@dataclass(frozen=True)
class Way:
    """What a chain of tiles leaves open and the screen distinguishes: copies, and whether units share reductions (split-K)."""

    staged: tuple[Staging, ...]
    cut: bool = False


@dataclass(frozen=True)
class Outline:
    """What of chains does not depend on caches, in seconds: computing, what is around it; registers and fills in each way.

    `losses`: the overlap numbers of computing and registers. `steps`: those that overlap. `busy`: the share of all units.
    """

    compute: Value
    registers: list[Value]
    filling: list[Value]
    around: Value
    steps: Value
    busy: Value
    losses: list[float]

    @cached_property
    def least(self) -> list[Value]:
        """For each way a lower bound for the seconds of each chain."""
        terms = [[self.compute, registers] for registers in self.registers]
        bodies = [overlapped(of_way, self.steps, self.losses) + self.around for of_way in terms]
        return [body + filling for body, filling in zip(bodies, self.filling, strict=True)]

    def of(self, places: Value) -> Outline:
        """Returns the outline of the chains at these places."""
        registers, filling = ([seconds[places] for seconds in ways] for ways in (self.registers, self.filling))
        around, steps, busy = self.around[places], self.steps[places], self.busy[places]
        return Outline(self.compute[places], registers, filling, around, steps, busy, self.losses)


class CacheScreen:
    """The screen of one tile space."""

    def __init__(self, space: TileSpace) -> None:
        self.space, self.nest, self.spec, self.model = space, space.nest, space.spec, space.model
        self.losses = [self.spec.overlap_loss, self.spec.loss(self.spec.levels[-1])]  # of computing and registers
        self.extents = np.array(space.nest.extents, dtype=np.int64)
        self.base = bare(space, space.levels, (start(space),) * len(space.levels))
        self.needed = required_staging(space, space.levels, (start(space),) * len(space.levels))
        staged = dict.fromkeys((self.needed, *every_staging(space, space.levels)))
        cuts = (False, True) if space.nest.reduce and self.spec.unit.combine and self.spec.unit.count > 1 else (False,)
        self.ways = [Way(copies, cut) for cut in cuts for copies in staged]

    def halve_room(self) -> bool:
        """Returns False: caches hold any tile."""
        return False

    def turn(self) -> bool:
        """Returns False: a split-K program of a unit with caches computes any number of tiles."""
        return False

    def kinds(self, inner: Tiles) -> Value:
        """Returns which tiles are alike in what the bound leaves out.

        That is whether results are stored in more rows side by side than a core collects, whether past the caches, and whether a
        tile with its vector along a reduction reads several rows in turn.
        """
        results, given = self.model.geometry.boxes(len(self.nest.accesses) - 1, tuple(inner)), self.model.parameters
        differ: list[Value] = [results.runs > given.write_streams]
        differ.append(past_caches(self.spec, given, self.base, results.elements, results.run))
        if self.base.lane in self.nest.reduce and any(level.row_shares is not None for level in self.spec.levels):
            differ.append(math.prod([inner[d] for d in self.nest.spatial]) > 1)
        return sum([is_so * 2**place for place, is_so in enumerate(differ)]) * np.ones(inner.shape[1], dtype=np.int64)

    def around(self, inner: Sequence[Tiles]) -> Chains:
        """Returns the chains of coarse multiples around innermost tiles of several kinds."""
        return joined([chains_around(self.space, tiles) for tiles in inner])

    def programs(self, chain: Chain, way: int) -> Iterator[StageProgram]:
        """Yields the program of a chain in the way with this number, with the default loop orders."""
        chosen = self.ways[way]
        program = bare(self.space, self.space.levels, chain, chosen.staged)
        yield program.dispatched(split=parts_of(self.space, chain[0])) if chosen.cut else program

    def least_seconds(self, inner: Tiles) -> Value:
        """Returns a lower bound for chains around innermost tiles: computing and register traffic, perfectly overlapped."""
        program = replace(self.base, staged=self.needed)
        terms = [self._compute(program, [inner], np.ones(inner.shape[1]))]
        terms.append(self._register_seconds(program, [inner], 1, 1.0))
        ends = self._ends(inner, self._count(inner, self.nest.reduce), 1, 0, self.spec.unit.count)
        folding = fold_slots(self.base, tuple(inner)) / self.model.rates.vector_slots
        return overlapped(terms, ENDLESS, self.losses) + ends + folding

    def seconds(self, chains: Chains, least: float, worth: float, most: int) -> list[Value]:
        """Returns the approximate seconds of chains of tiles in each way: on all units or on one, whichever takes less.

        `least`: a lower bound of all of them. Numbers of `worth` and above, and those behind the `most` best, need not be exact.
        """
        whole, cut = ([way.staged for way in self.ways if way.cut == kind] for kind in (False, True))
        found = self._seconds(chains, whole, cut=False, parallel=True, worth=worth, most=most)
        shortest = reduce(np.minimum, found)
        best = min(worth, float(shortest.min(initial=math.inf)))
        worth = min(worth, _reaching(shortest, most))
        alone = self._compute(self.base, chains, np.full(chains[0].shape[1], 1 / self.spec.unit.count))
        if self.spec.unit.count > 1 and alone.min(initial=math.inf) < best:
            shorter = np.minimum(worth, reduce(np.maximum, found))
            one_unit = self._seconds(chains, whole, cut=False, parallel=False, worth=shorter, most=most)
            found = [np.minimum(a, b) for a, b in zip(found, one_unit, strict=True)]
        if not cut:
            return found
        partial_bytes = 2 * math.prod([self.nest.extents[i] for i in self.nest.spatial]) * self.nest.accumulator_bytes
        if least + cut_seconds(self.model.rates, partial_bytes) >= best:
            return [*found, *[np.full(chains[0].shape[1], math.inf) for _ in cut]]
        return [*found, *self._seconds(chains, cut, cut=True, parallel=True, worth=worth, most=most)]

    def seconds_of(self, chains: Chains, program: StageProgram) -> Value:
        """Returns the approximate seconds of chains of tiles with the copies of a program, on as many units."""
        return self._seconds(chains, [program.staged], program.dispatch.split > 1, program.dispatch.parallel)[0]

    def _seconds(
        self, chains: Chains, every: Sequence[Copies], cut: bool, parallel: bool, worth: Value = math.inf, most: float = math.inf
    ) -> list[Value]:
        """Returns the seconds of chains with each of these copies, reductions whole or cut, on all units or one.

        Those of `worth` and above, and those behind the `most` best, may be infinite: what caches load is not counted for them.
        """
        outline = self._outline(chains, every, cut, parallel)
        worth = np.broadcast_to(worth, outline.compute.shape)
        (places,) = np.nonzero(reduce(np.minimum, outline.least) < worth)
        found = [np.full(len(worth), math.inf) for _ in every]
        if len(places):
            some = [tiles[:, places] for tiles in chains]
            loads = CacheLoads(self.model, self.base, some, cut, self.spec.unit.count if parallel else 1)
            for way, seconds in self._with_caches(loads, outline.of(places), every, worth[places], most):
                found[way][places] = seconds
        return found

    def _outline(self, chains: Chains, every: Sequence[Copies], cut: bool, parallel: bool) -> Outline:
        """Returns the terms that do not depend on caches."""
        nest, unit_tile, inner, units = self.nest, chains[0], chains[-1], self.spec.unit
        dims = (*nest.spatial, *(nest.reduce if cut else ())) if parallel else ()
        number = self._count(unit_tile, dims)
        busy = self._busy(unit_tile, dims, number) if parallel else np.full(len(number), 1 / units.count)
        visits, filled = self._visits(chains, cut), dict[Staging, Value]()
        steps = np.maximum(1, self._count(inner, range(len(nest.dims))) / self._count(unit_tile, dims))
        programs = [replace(self.base, staged=staged).dispatched(split=2 if cut else 1) for staged in every]
        copied = [frozenset([(s.kind, s.operand) for s in staged]) for staged in every]  # at which level does not matter
        different = dict(zip(copied, programs, strict=True))
        moved = {of_way: self._register_seconds(program, chains, visits, busy) for of_way, program in different.items()}
        for program in programs:
            for staging in set(program.staged) - set(filled):
                filled[staging] = self._copy(program, chains, staging, cut, busy, units.count if parallel else 1)
        filling = [sum([filled[staging] for staging in staged]) + np.zeros(len(number)) for staged in every]
        around = self._around(chains, cut, parallel, visits, number, busy)
        registers, compute = [moved[of_way] for of_way in copied], self._compute(self.base, chains, busy)
        return Outline(compute, registers, filling, around, steps, busy, self.losses)

    def _with_caches(
        self, loads: CacheLoads, outline: Outline, every: Sequence[Copies], worth: Value, most: float
    ) -> Iterator[tuple[int, Value]]:
        """Yields ways and the seconds of chains in them: the terms of the outline, and of what caches load.

        The most promising way is the first one. Ways in which no chain may count are left out.
        """
        units, compute, busy = self.spec.unit, outline.compute, outline.busy
        last, shortest = len(self.spec.levels) - 1, np.full(len(compute), math.inf)
        caches = range(1, last if self._in_registers(self.base) else last + 1)
        losses = [self.spec.overlap_loss, *[self.spec.loss(level) for level in self.spec.levels[1:]]]
        for way in sorted(range(len(every)), key=lambda number: float(outline.least[number].min())):
            if not np.any(outline.least[way] < worth):
                continue
            terms, waiting = [compute], outline.around
            for index in caches:
                bytes_, waits, ahead, lost = loads.into(index, every[way])
                level = self.spec.levels[index]
                start = level.latency_ns * 1e-9 / (units.count * busy * self.model.parameters.misses_in_flight)
                moving, lost = (part / self.model.rates.into(level, busy) for part in (bytes_, lost))
                terms.append(moving + lost_seconds(moving, lost, compute) + ahead * start)
                waiting = waiting + waits * start
            if len(caches) < last:
                terms.append(outline.registers[way])
            seconds = overlapped(terms, outline.steps, losses) + waiting + outline.filling[way]
            shortest = np.minimum(shortest, seconds)
            worth = np.minimum(worth, _reaching(shortest, most))
            yield way, seconds

    def _compute(self, program: StageProgram, chains: Chains, busy: Value) -> Value:
        """Returns the seconds of padded work on the busy units (`Model.compute_seconds`)."""
        atom, inner = program.atom, chains[-1]
        points = executed_points(program, self.nest.extents, inner)
        points = points * self._computed_share(program, chains)
        slots = self.model.point_slots(atom)
        computed = points * slots / (atom.gflops * 1e9 / 2 * self._chains(program, inner) * busy)
        return computed + self.model.epilogue_slots / (self.model.rates.function_slots * busy)

    def _computed_share(self, program: StageProgram, chains: Chains) -> Value:
        """Returns the share of the steps that are computed (`Model.computed_share`): loops over whole windows leave out taps."""
        found: Value = 1.0
        for padded in self.model.padded:
            share = computed_taps(program, tuple(chains[-1]), self.model.parameters.registers, [padded])
            found = found * np.where(self._whole(program, chains, padded.tap), share, 1.0)
        return found

    def _whole(self, program: StageProgram, chains: Chains, dim: int) -> Value:
        """Returns whether one loop inside the innermost tile walks all of a reduction (`whole_loops`), in the default order."""
        walks, inside, free = 0, chains[-1][dim] == 1, True
        for position, (outer, tile) in reversed(list(enumerate(itertools.pairwise([self.extents[:, None], *chains])))):
            walked = outer[dim] > tile[dim]
            walks = walks + walked
            inside = inside & (~walked | (free & (position > 0 or program.dispatch.split == 1)))
            free = free & (math.prod([-(-outer[d] // tile[d]) for d in self.nest.spatial]) == 1)
        return inside & (walks == 1)

    def _chains(self, program: StageProgram, inner: Tiles) -> Value:
        """Returns the accumulators in flight over those needed at peak (`Model.chain_efficiency`)."""
        if self.nest.stage.reducer is None or not self.nest.reduce:
            return 1.0
        if program.levels[-1] == len(self.spec.levels):
            return 1.0
        return np.minimum(1.0, accumulating(program, inner) / (program.atom.chains or self.spec.unit.chains))

    def _register_seconds(self, program: StageProgram, chains: Chains, visits: Value, busy: Value) -> Value:
        """Returns the seconds of moving data into and out of registers."""
        if not self._in_registers(program):
            return np.zeros(chains[-1].shape[1])
        level, share = self.spec.levels[-1], self._computed_share(program, chains)
        whole = partial(self._whole, program, chains)
        inputs, output = self.model.registers.bytes_of(program, tuple(chains[-1]), level.transaction_bytes, share, whole)
        return (inputs + output * (2 * visits - 1)) / self.model.rates.into(level, busy)

    def _in_registers(self, program: StageProgram) -> bool:
        last = len(self.spec.levels) - 1
        return program.levels[-1] == last and self.spec.levels[last].managed and program.atom.loads

    def _count(self, tile: Tiles, dims: Sequence[int]) -> Value:
        """Returns the number of tiles along some dimensions, those of the problem cut into them."""
        return math.prod([-(-self.nest.extents[d] // tile[d]) for d in dims]) * np.ones(tile.shape[1], dtype=np.int64)

    def _busy(self, unit_tile: Tiles, dims: Sequence[int], number: Value) -> Value:
        """Returns the load balance of units (`roller.cost.occupancy.unit_efficiency`)."""
        units, share = self.spec.unit.count, -(-number // self.spec.unit.count)
        if units == 1 or not dims or 0 in self.nest.extents:
            return np.maximum(1, number) / (units * np.maximum(1, share))
        steps, extents = [unit_tile[d] for d in dims], [self.nest.extents[d] for d in dims]
        cut = extents, steps, [-(-extent // step) for extent, step in zip(extents, steps, strict=True)]
        return first_points(*cut, number) / (units * first_points(*cut, share))

    def _visits(self, chains: Chains, cut: bool) -> Value:
        """Returns how often accumulators are loaded and stored: once for each reduce step outside the last spatial loop."""
        nest, visits = self.nest, np.ones(chains[0].shape[1], dtype=np.int64)
        outer: Value = self.extents[:, None]
        for position, tile in enumerate(chains[:-1]):
            inside = math.prod([-(-tile[d] // chains[-1][d]) for d in nest.spatial]) > 1
            steps = math.prod([-(-outer[d] // tile[d]) for d in nest.reduce]) if nest.reduce and not (cut and not position) else 1
            visits, outer = visits * np.where(inside, steps, 1), tile
        return visits

    def _copy(self, program: StageProgram, chains: Chains, staging: Staging, cut: bool, busy: Value, units: int) -> Value:
        """Returns the seconds of filling a panel or box (`roller.cost.packing.copy_seconds`)."""
        if staging.constant:
            return 0.0
        nest, rates = self.nest, self.model.rates
        touches = staged_touches(nest, staging)
        position = 0 if not staging.level else program.levels.index(staging.level) + 1
        tile = ([self.extents[:, None], *chains])[position]
        times = self._fills(chains, position, touches, cut) if position else 1
        sources = (
            [staging.operand] if staging.kind == "box" else [n for n, a in enumerate(nest.inputs) if a.factor == staging.operand]
        )
        level = self.spec.levels[max(1, staging.level)]
        read: Value = 0.0
        runs: Value = 0.0
        taken = self.model.geometry.boxes if staging.kind == "box" else self.model.geometry.reads
        for number in sources:
            boxes = taken(number, tuple(tile))
            read, runs = read + boxes.moved(level.transaction_bytes), runs + boxes.runs
        if staging.kind == "box":
            width = nest.accesses[staging.operand].element_bytes
            elements, trips = boxes.elements * times, runs * times * ROW_TRIPS
        else:
            width = panel_element_bytes(nest, program.atom)
            laid = whole_tiles(tile, chains[-1])
            elements = math.prod([laid[d] for d in range(len(touches)) if touches[d]]) * times
            slot = math.prod([chains[-1][d] for d in range(len(touches)) if touches[d]])
            mine = [nest.accesses[n] for n in sources]
            decoded = [i for i in nest.reduce if touches[i] and any(a.strides[i] is None for a in mine)]
            trips = elements / largest(slot, 1) * (1 + DECODE_TRIPS * sum(len(nest.dims[i].members) - 1 for i in decoded))
        issue = elements * element_slots(rates, program, staging), trips
        return packing_seconds(rates, staging.level, issue, read * times, elements * width, times, busy if staging.level else 1.0)

    def _fills(self, chains: Chains, position: int, touches: Sequence[bool], cut: bool) -> Value:
        """Returns how often a copy is filled: for every unit tile, and in it for every trip up to the last that it depends on."""
        times, outer = 1, self.extents[:, None]
        for place, tile in enumerate(chains[:position]):
            for d in range(len(touches)):
                if touches[d] or (not place and (d in self.nest.spatial or cut)):
                    times = times * -(-outer[d] // tile[d])
            outer = tile
        return times

    def _ends(self, inner: Tiles, depth: Value, visits: Value, number: Value, working: Value) -> Value:
        """Returns the seconds around innermost tiles and the `number` of unit tiles; `depth`: steps of a visit."""
        operations = depth * accumulating(self.base, inner) if self.nest.stage.reducer is not None else None
        tiles = self._count(inner, self.nest.spatial)
        return around_tiles(self.model.parameters, tiles, operations, visits, number, working)

    def _around(self, chains: Chains, cut: bool, parallel: bool, visits: Value, number: Value, busy: Value) -> Value:
        """Returns the seconds of tile starts and ends, dispatch, launch, and of combining partial results."""
        nest, unit = self.nest, self.spec.unit
        working = unit.count * busy
        depth = self._count(chains[-1], nest.reduce) / visits
        if cut:
            depth = depth / self._count(chains[0], nest.reduce)
        ends = self._ends(chains[-1], depth, visits, number, working)
        seconds = ends + fold_slots(self.base, tuple(chains[-1])) / (self.model.rates.vector_slots * busy)
        for position, level in enumerate(self.space.levels):
            if level < len(self.spec.levels) and self.spec.levels[level].step_overhead_ns:
                steps = self._fills(chains, position + 1, (True,) * len(nest.dims), cut)
                seconds = seconds + steps / working * self.spec.levels[level].step_overhead_ns * 1e-9
        if parallel:
            seconds = seconds + np.where(number > 1, unit.launch_overhead_us * 1e-6, 0.0)
        if cut:
            parts = self._count(chains[0], nest.reduce)
            partial_bytes = parts * math.prod([nest.extents[i] for i in nest.spatial]) * nest.accumulator_bytes
            seconds = np.where(parts > 1, seconds + cut_seconds(self.model.rates, partial_bytes), math.inf)
        return seconds


def _reaching(seconds: Value, most: float) -> float:
    """Returns the number below which the `most` smallest ones lie."""
    if len(seconds) <= most:
        return math.inf
    count = int(most)
    return math.nextafter(float(np.partition(seconds, count - 1)[count - 1]), math.inf)
