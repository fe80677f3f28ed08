"""The screen for units whose memory software fills: the model's terms for whole arrays of tile chains.

    computing     padded points, accumulators in flight, lanes and partitions without work, other instructions
    caches        what is loaded again, tile by tile (`roller.search.funnel.cache_loads`)
    the unit      every tile loads its data anew
    lanes         panel reads of a lane group: whole transactions, without bank conflicts
    waits         for panels, by multi-buffering and occupancy (`roller.search.funnel.placed_waits`)
    around it     steps, dispatch, launch, combining partial results (split-K)

They overlap as in the model. The screen knows one order of loops only, on lanes the better one of two. It leaves out padding
against bank conflicts, and what a device's own functions say of a program (`roller.cost.parameters`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from roller.cost import formulas
from roller.cost.combining import accumulating, cut_seconds
from roller.cost.model import executed_points
from roller.ir.elementwise import Value
from roller.ir.expr import ELEMENT_BYTES
from roller.program.rprogram import StageProgram
from roller.search.choices import bare, in_turn, program_of, required_staging, split
from roller.search.funnel.cache_loads import CacheLoads
from roller.search.funnel.cache_screen import ENDLESS
from roller.search.funnel.lattice import Chains, Tiles, best_places, chains_around, even_chains, joined
from roller.search.funnel.placed import Placed
from roller.search.funnel.placed_reads import group_along, reading_bytes, reading_slots
from roller.search.funnel.placed_waits import Moved, waiting_seconds
from roller.search.funnel.short_list import MISLED
from roller.search.retiled import recopied
from roller.search.tile_space import Chain, TileSpace, equal_parts, start
from roller.target.hardware import MemoryLevel

LEAST_FREE = 1 / 256  # share of a unit's room
WAVES = 3  # tiles of a unit, where parts are equal
LEAST_EVEN = 64  # chains of equal parts, or units take more tiles
SAMPLE = 64  # chains by which the order of unit tiles is chosen; more take more time
EVEN = 1024  # chains of equal parts that are screened; more take more time


@dataclass(frozen=True)
class Copies:
    """What a chain of tiles leaves open and the screen distinguishes: copies of each panel, and whether units share a reduction.

    `first`: the dimension whose tiles then run one after another on a unit (`roller.search.choices.in_turn`), if any do.
    """

    depth: int
    cut: bool = False
    first: int | None = None


class PlacedScreen:
    """The screen of one tile space."""

    def __init__(self, space: TileSpace) -> None:
        self.space, self.nest, self.spec, self.model = space, space.nest, space.spec, space.model
        chain = (start(space),) * len(space.levels)
        self.base = bare(space, space.levels, chain, required_staging(space, space.levels, chain, pad=False))
        level = self.spec.levels[space.levels[0]]
        depths = range(1, (level.depth_max if level.managed and self.base.staged else 1) + 1)
        cuts = (False, True) if space.nest.reduce and self.spec.unit.combine and self.spec.unit.count > 1 else (False,)
        self.ways = [Copies(depth, cut) for cut in cuts for depth in depths]
        firsts = [d for d in space.nest.spatial if space.nest.extents[d] > 1] if cuts[-1] and self.spec.spread else []
        self._in_turn = [Copies(depth, True, first) for first in firsts for depth in depths]
        self._unordered = self.base.dealt and len(space.nest.spatial) > 1
        self.free = 1.0  # the share of a unit's room that panels may take
        self._known_even: dict[tuple[float, bool, bytes], Chains] = {}

    def halve_room(self) -> bool:
        """Assumes that panels may take half as much room, as a device may need the rest; False where it is next to nothing."""
        self.free /= 2
        return self.free > LEAST_FREE

    def turn(self) -> bool:
        """Turns to split-K programs whose tiles along one dimension run in turn (`choices.in_turn`); False if there are none."""
        self.ways, self.free = self._in_turn, 1.0
        return bool(self.ways)

    def least_seconds(self, inner: Tiles) -> Value:
        """Returns a lower bound for chains around innermost tiles: computing and what lanes read, perfectly overlapped."""
        whole = -(-self._extents // inner) * inner
        unit = np.where(self._reduced, inner, whole)
        placed = Placed(self.space, self.base, [unit, inner], whole, 1)
        spec, rates, lanes = self.spec, self.model.rates, self.spec.levels[-1]
        terms = [self._points(placed) * self._slots / (self.base.atom.gflops * 1e9 / 2)]
        if self.space.lane_level is not None:
            terms.append(reading_bytes(placed, group_along(placed), cut_off=False) / rates.into(lanes, 1.0))
        return formulas.overlapped(terms, ENDLESS, [spec.overlap_loss, spec.loss(lanes)][: len(terms)]) + np.zeros(inner.shape[1])

    @cached_property
    def _extents(self) -> Tiles:
        return np.array(self.nest.extents, dtype=np.int64)[:, None]

    @cached_property
    def _reduced(self) -> Value:
        """Whether a dimension is a reduction, [dimension, 1]."""
        return np.array([dim.is_reduce for dim in self.nest.dims], dtype=bool)[:, None]

    @cached_property
    def _slots(self) -> float:
        return self.model.slots if self.base.atom.kind != "matrix" else 1.0

    def kinds(self, inner: Tiles) -> Value:
        """Returns the size of innermost tiles, in octaves: only small ones keep all lanes and units busy in a small problem."""
        return np.frexp(np.prod(inner, axis=0).astype(np.float64))[1]

    def around(self, inner: Sequence[Tiles]) -> Chains:
        """Returns the chains around innermost tiles of several kinds, for which a unit has room.

        Where all units work only if parts are equal, all equal parts are tried.
        """
        placed = [self._with_room(tiles) for tiles in inner]
        some = [tiles for tiles in placed if tiles.shape[1]]
        if not some:
            return [placed[0]] * len(self.space.levels)
        if equal_parts(self.space):
            return joined([self._even(tiles, steps) for tiles in some for steps in (False, True)])
        return chains_around(self.space, np.concatenate(some, axis=1), self._able, len(some))

    def _with_room(self, inner: Tiles) -> Tiles:
        """Returns the innermost tiles for which a unit has room; counts the others."""
        fits = self._able([inner] * len(self.space.levels))
        self.space.refusals[self.space.fit.rule(self.space.levels, 0)] += int(np.count_nonzero(~fits))
        return inner[:, fits]

    def _even(self, inner: Tiles, steps: bool) -> Chains:
        """Returns the chains of equal parts with the least work for the fullest unit, with whole reductions or in steps."""
        known = self.free, steps, inner.tobytes()
        if known not in self._known_even:
            self._known_even[known] = self._even_chains(inner, steps)
        return self._known_even[known]

    def _even_chains(self, inner: Tiles, steps: bool) -> Chains:
        most, every = int(WAVES / self.free**2) * self.spec.unit.count, math.prod([self.nest.extents[d] for d in self.nest.spatial])
        chains = even_chains(self.space, inner, most, self._able, steps)
        while chains[0].shape[1] < LEAST_EVEN and most < every:
            most *= 2
            chains = even_chains(self.space, inner, most, self._able, steps)
        near = best_places(self._fullest(chains), chains, EVEN, math.inf)
        return [tiles[:, near] for tiles in chains]

    def _able(self, chains: Chains) -> Value:
        return self._placed(chains, Copies(1)).may_fit

    def _fullest(self, chains: Chains) -> Value:
        """Returns the points of the unit with most work, with reductions cut among units that are free."""
        placed = self._placed(chains, Copies(1, cut=any(way.cut for way in self.ways)))
        own = np.where(self._reduced, placed.share, placed.unit)
        return math.prod(own) * -(-placed.unit_tiles // self.spec.unit.count) * 1.0

    def seconds(self, chains: Chains, least: float, worth: float, most: int) -> list[Value]:
        """Returns the approximate seconds of chains of tiles in each way; infinite where a unit has no room.

        Of the ways that differ in the number of copies, only the best one of each chain is finite.
        """
        found = self._in_every_way(chains)
        turned_round = self._unordered and self._walked_backward(chains, found)
        return self._in_every_way(chains) if turned_round else found

    def _in_every_way(self, chains: Chains) -> list[Value]:
        found: list[Value] = []
        for kind in dict.fromkeys((way.cut, way.first) for way in self.ways):
            every = self._seconds(chains, [way for way in self.ways if (way.cut, way.first) == kind])
            best = np.argmin(every, axis=0)
            found += [np.where(best == number, seconds, math.inf) for number, seconds in enumerate(every)]
        return found

    def _walked_backward(self, chains: Chains, found: Sequence[Value]) -> bool:
        """Walks unit tiles in the reverse order from now on, if a sample of chains takes much less that way; True if it does.

        Units share a cache with those that work on neighbouring tiles. Much is what the short list would take for an error of the
        screen (`MISLED`); orders that differ by less are left to the choices.
        """
        self._unordered, forward = False, self.base
        some, whole = slice(None, None, -(-chains[0].shape[1] // SAMPLE)), [way for way in self.ways if not way.cut]
        backward = (*reversed(self.nest.spatial), *self.nest.reduce)
        self.base = replace(forward, orders=(backward, *forward.orders[1:]))
        least = np.min(self._seconds([tiles[:, some] for tiles in chains], whole))
        if least * MISLED < np.min([seconds[some] for seconds in found[: len(whole)]]):
            return True
        self.base = forward
        return False

    def seconds_of(self, chains: Chains, program: StageProgram) -> Value:
        """Returns the approximate seconds of chains of tiles in the way of a program."""
        depth = max([s.depth for s in program.staged], default=1)
        return self._seconds(chains, [Copies(depth, program.dispatch.split > 1)])[0]

    def programs(self, chain: Chain, way: int) -> Iterator[StageProgram]:
        """Returns the programs of a chain in the way with this number, with the default loop orders."""
        chosen = self.ways[way]
        whole = replace(program_of(self.space, self.space.levels, chain), orders=self.base.orders)
        deep = replace(whole, staged=tuple(replace(s, depth=chosen.depth) for s in whole.staged))
        deep = recopied(self.space, deep) or whole
        if chosen.first is not None:
            return in_turn(self.space, deep, chosen.first)
        return split(self.space, deep) if chosen.cut else iter((deep,))

    def _seconds(self, chains: Chains, ways: Sequence[Copies]) -> list[Value]:
        """Returns the seconds of chains in ways that differ in the number of copies; only chains with room are rated."""
        placed = self._placed(chains, ways[0])
        able = placed.room & ((placed.parts > 1) if ways[0].cut else (placed.parts > 0))
        (near,) = np.nonzero(able)
        found = [np.full(len(able), math.inf) for _ in ways]
        if len(near):
            some = replace(placed, chains=[tiles[:, near] for tiles in placed.chains], share=placed.share[:, near])
            bytes_ = self._bytes(some)
            for way, seconds in zip(ways, found, strict=True):
                deep = replace(some, depth=way.depth)
                seconds[near] = np.where(deep.room, self._rated(deep, bytes_), math.inf)
        return found

    def _placed(self, chains: Chains, way: Copies) -> Placed:
        """Returns the chains with the reduction whole, or cut among units."""
        share = np.repeat(self._extents, chains[0].shape[1], axis=1)
        placed = Placed(self.space, self.base, chains, share, way.depth, self.free)
        return placed.cut(way.first) if way.cut else placed

    def _points(self, placed: Placed) -> Value:
        """Returns the points executed, in whole atoms."""
        executed = placed.unit if self.space.lane_level is not None else placed.inner
        return executed_points(self.base, self.nest.extents, executed)

    def _rated(self, placed: Placed, moved: Moved) -> Value:
        """Returns the seconds of chains (`roller.cost.model.Model`)."""
        spec, compute = self.spec, self._compute(placed)
        waits = waiting_seconds(self.model, placed, compute, moved)
        terms = [compute, *moved.seconds]
        if placed.base.atom.in_turn and self.space.lane_level is not None:
            terms = [compute + sum(moved.seconds[1:]), moved.seconds[0], *[np.zeros_like(compute) for _ in moved.seconds[1:]]]
        body = formulas.overlapped(terms, self._steps(placed), self._losses(placed)) + waits
        if self.base.dealt:
            body = np.maximum(body, placed.unit_tiles * spec.unit.dispatch_ns * 1e-9)
        return body + self._around(placed)

    def _compute(self, placed: Placed) -> Value:
        """Returns the seconds of padded work (`Model.compute_seconds`)."""
        spec, atom, given = self.spec, self.base.atom, self.model.parameters
        live = accumulating(self.base, placed.inner)
        chains: Value = 1.0
        if self.nest.stage.reducer is not None and self.nest.reduce:
            workers = placed.sub_tiles if self.space.lane_level is not None else placed.beside
            chains = np.minimum(1.0, live * np.maximum(workers, 1) * placed.resident / (atom.chains or spec.unit.chains))
        idle: Value = 1.0
        alone: Value = 0.0
        waiting: Value = 1.0
        if self.space.lane_level is not None:
            idle = formulas.idle_lanes(spec, placed.groups, placed.lanes, placed.resident)
            waiting = formulas.waiting(given.serial_cycles, placed.groups, placed.resident, spec.partitions)
        if self.space.lane_level is not None and placed.base.staged:
            arithmetic, beside = math.prod(placed.inner) * self._slots, reading_slots(placed, self.model)
            if spec.unit.issue_groups and atom.kind != "matrix":
                idle = idle * formulas.crowding(spec, atom, beside.together, arithmetic / formulas.outputs_of(atom))
            if given.serial_cycles > 1 and not spec.in_place(atom):
                trips = math.prod(placed.fill_trips) * math.prod(placed.turns)
                alone = formulas.alone_seconds(spec, given, atom, arithmetic, beside.filling, trips)
                alone = alone * -(-placed.unit_tiles // spec.unit.count) / placed.resident
        rate = atom.gflops * 1e9 / 2 * chains * placed.busy
        computed = np.maximum(self._points(placed) * self._slots * self._start_up(placed) * idle / rate, alone)
        return computed + waiting * self.model.epilogue_slots / (self.model.rates.function_slots * placed.busy)

    def _start_up(self, placed: Placed) -> Value:
        """Returns the factor by which loading its stationary block lengthens a streamed atom (`Model`)."""
        atom = self.base.atom
        stream = next((d for r, d in self.base.mapping if atom.extents[r] == "stream"), None)
        if atom.row_cycles is None or stream is None:
            return 1.0
        around = placed.inner if self.base.levels[-1] < len(self.spec.levels) else placed.chains[-2]
        factor = next(f for f in range(len(self.nest.factors)) if self.nest.factor_touches(f)[stream])
        others = [f for f in range(len(self.nest.factors)) if f != factor]
        along = [d for d in self.nest.spatial if not any(self.nest.factor_touches(f)[d] for f in others)]
        rows = math.prod([around[d] for d in along]) if self.spec.spread else around[stream]
        return formulas.start_up(atom, rows)

    def _bytes(self, placed: Placed) -> Moved:
        """Returns what moves into each level, in bytes and in seconds."""
        spec, rates, unit = self.spec, self.model.rates, self.space.levels[0]
        cut = bool(np.any(placed.parts > 1))
        share = np.where(self._reduced, placed.share, placed.unit)
        loads = CacheLoads(self.model, self.base, [share, placed.unit] if cut else [placed.unit], cut, spec.unit.count)
        bytes_: list[Value] = []
        for index, level in enumerate(spec.levels[1:], 1):
            if not level.managed:
                bytes_.append(loads.into(index, ())[0])
            elif index == self.space.lane_level:
                bytes_.append(reading_bytes(placed, group_along(placed)))
            elif index == self.space.levels[-1]:
                bytes_.append(self._inmost(placed, level))
            else:
                bytes_.append(self._anew(placed, level)[0])
        whole, runs = self._anew(placed, spec.levels[unit])
        short = 1.0 + self.model.parameters.run_bytes * runs / np.maximum(whole, 1)
        seconds = []
        for index, (level, moved) in enumerate(zip(spec.levels[1:], bytes_, strict=True), 1):
            factor = short if index == 1 and not level.managed and self.space.lane_level is not None else 1.0
            seconds.append(moved * factor / rates.into(level, placed.busy))
        return Moved(bytes_, seconds, self._filled(placed))

    def _inmost(self, placed: Placed, level: MemoryLevel) -> Value:
        """Returns the bytes of all innermost tiles of a unit without lanes, as far as its level holds them."""
        total: Value = np.zeros(placed.parts.shape)
        spatial, steps = (placed.count(placed.inner, dims) for dims in (self.nest.spatial, self.nest.reduce))
        for number, access in enumerate(self.nest.accesses):
            moved = self.space.fit.geometry.reads(number, placed.inner).moved(level.transaction_bytes)
            if access.role == "output":
                kept = bool({"output", "accumulator"} & set(level.holds))
                total = total + moved * spatial * (2 * placed.visits - 1) * kept
            elif "input" in level.holds:
                total = total + moved * spatial * (steps if access.role == "body" else 1)
        return total

    def _anew(self, placed: Placed, level: MemoryLevel) -> tuple[Value, Value]:
        """Returns the bytes of all data if every tile of a unit loads its own, and their runs.

        Results return at every visit of their accumulators, unless the level holds these.
        """
        total: Value = 0.0
        runs: Value = 0.0
        for number, access in enumerate(self.nest.accesses):
            boxes = self.space.fit.geometry.reads(number, placed.unit)
            times = placed.loads(access.touches, access.role == "body")
            if access.role == "output" and "accumulator" not in level.holds:
                times = times * (2 * placed.visits - 1)
            total, runs = total + boxes.moved(level.transaction_bytes) * times, runs + boxes.runs * times
        return total, runs

    def _filled(self, placed: Placed) -> Value:
        """Returns the bytes that fill panels from the next outer level."""
        transaction = self.spec.levels[self.space.levels[0]].transaction_bytes
        copied = {s.operand for s in self.base.staged}
        total: Value = np.zeros(placed.parts.shape)
        for number, access in enumerate(self.nest.accesses):
            if access.role == "body" and access.factor in copied:
                boxes = self.space.fit.geometry.reads(number, placed.unit)
                total = total + boxes.moved(transaction) * placed.loads(access.touches, True)
        return total

    def _steps(self, placed: Placed) -> Value:
        """Returns the steps of one unit's pipeline (`Model.steps`)."""
        steps = math.prod(placed.fill_trips) * math.prod(placed.turns)
        if self.space.lane_level is None:
            return np.maximum(steps, 1)
        if not self.base.staged:
            steps = steps * math.prod([placed.inner[d] for d in self.nest.reduce])
        ahead = self.spec.in_place(self.base.atom) and placed.depth > 1
        rounds = -(-placed.unit_tiles // (self.spec.unit.count * placed.resident))
        return np.maximum(1, steps * np.where((placed.resident > 1) | ahead, rounds, 1))

    def _losses(self, placed: Placed) -> list[Value]:
        """Returns the overlap numbers of compute and of the levels (`Model.losses`)."""
        spec, copies = self.spec, placed.copies * placed.resident
        if not any(s.level and spec.levels[s.level].managed for s in self.base.staged):
            copies = np.full_like(copies, 2)
        last = len(spec.levels) - 1 if spec.in_place(self.base.atom) else max((s.level for s in self.base.staged), default=0)
        return formulas.losses(spec, last, copies)

    def _around(self, placed: Placed) -> Value:
        """Returns the seconds of tile starts and ends, steps, launch, and of combining partial results."""
        spec, given, unit, rates = self.spec, self.model.parameters, self.spec.unit, self.model.rates
        working = unit.count * placed.busy
        tiles = math.prod([-(-self.nest.extents[d] // placed.inner[d]) for d in self.nest.spatial])
        operations = None if self.nest.stage.reducer is None else self._operations(placed)
        seconds = formulas.around_tiles(given, tiles, operations, placed.visits, placed.unit_tiles, working)
        fills = placed.unit_tiles * math.prod(placed.fill_trips)
        for index, level in enumerate(spec.levels):
            if level.step_overhead_ns and index in self.space.levels and (self.base.staged or self.space.lane_level is None):
                trips = fills if index < self.space.levels[-1] else fills * math.prod(placed.turns)
                seconds = seconds + trips / working * level.step_overhead_ns * 1e-9
        started = (placed.unit_tiles > 1) | (self.space.lane_level is not None)
        seconds = seconds + np.where(started, unit.launch_overhead_us * 1e-6, 0.0)
        outputs = math.prod([self.nest.extents[d] for d in self.nest.spatial])
        cut = cut_seconds(rates, placed.parts * outputs * self.nest.accumulator_bytes) if unit.combine else 0.0
        return seconds + np.where(placed.parts > 1, cut, 0.0) + self._exchange(placed)

    def _operations(self, placed: Placed) -> Value:
        """Returns the atom operations of one visit to an innermost tile (`Model`)."""
        inside = (
            placed.turns if self.space.lane_level is not None else placed.turns * np.where(placed.visits > 1, 1, placed.fill_trips)
        )
        return math.prod([inside[d] for d in self.nest.reduce]) * accumulating(self.base, placed.inner)

    def _exchange(self, placed: Placed) -> Value:
        """Returns the seconds in which lanes that share a reduction combine their results (`roller.cost.combining`)."""
        if not self.space.fit.cooperate:
            return 0.0
        shared = math.prod([placed.lanes_along[d] for d in self.nest.reduce])
        rounds = -(-placed.unit_tiles // (self.spec.unit.count * placed.resident))
        results = math.prod([placed.inner[d] for d in self.nest.spatial])
        passed = placed.unit_tiles * placed.sub_tiles * results * ELEMENT_BYTES[self.nest.stage.body.dtype]
        return formulas.exchange_seconds(self.model.rates, shared, rounds, passed, placed.busy)
