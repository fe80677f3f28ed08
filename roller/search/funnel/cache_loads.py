"""What caches load for whole arrays of tile chains: the model's least-recently-used reuse (`roller.cost.traffic`), loop by loop.

Loops are in the default order: at each level the spatial ones, then reductions. What is live is counted without copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from roller.cost.loops import Stream
from roller.cost.model import Model
from roller.cost.register_traffic import blocks_of
from roller.cost.stores import past_caches
from roller.ir.elementwise import Value
from roller.ir.nest import Nest
from roller.program.footprint import Boxes, whole_tiles
from roller.program.halo import lane_step
from roller.program.rprogram import LEAST_BLOCK, StageProgram, Staging, panel_element_bytes, staged_touches
from roller.search.funnel.cache_rows import CacheRows, Step, at_depths
from roller.search.funnel.lattice import Chains
from roller.target.hardware import MemoryLevel

# Bytes, runs of addresses that are waited for, runs that are fetched ahead, and what is lost from row to row, in bytes.
Loaded = tuple[Value, Value, Value, Value]


@dataclass(frozen=True)
class Reuse:
    """What survives in a cache: the share at each depth, the first depth at which all fits, and whether there is one.

    `survives`: how often the data that a loop does not change are loaded. `units`: private caches that fetch the same data. `cold`:
    the share of all data that the cache does not hold from before.
    """

    kept: Value
    first: Value
    fits: Value
    survives: Value
    units: int
    cold: Value


class CacheLoads:
    """The loops of chains of tiles, and what caches load in them. Arrays by depth are [depth, chain].

    `cut`: units share reductions (split-K). `units`: units at work.
    """

    def __init__(self, model: Model, base: StageProgram, chains: Chains, cut: bool, units: int) -> None:
        self.model, self.base, self.chains, self.cut, self.units = model, base, chains, cut, units
        self.nest: Nest = base.nest
        self.count = chains[0].shape[1]
        self._loaded: dict[tuple[int, Stream, bool], Loaded] = {}
        self._reuses: dict[int, Reuse] = {}
        self._boxes: dict[int, Boxes] = {}
        self._beside: dict[int, Value] = {}
        self._bordered: dict[tuple[int, int, int, int], Value] = {}

    def into(self, index: int, staged: tuple[Staging, ...]) -> Loaded:
        """Returns what the cache at this position of the spec loads for programs with these copies."""
        found: Loaded = 0.0, 0.0, 0.0, 0.0
        for part in self._parts(staged):
            boxed = part.access is not None and any(s.kind == "box" and s.operand == part.access for s in staged)
            key = index, part, boxed
            if key not in self._loaded:
                self._loaded[key] = self._loads(index, part, boxed)
            found = tuple(total + more for total, more in zip(found, self._loaded[key], strict=True))
        return found

    @cached_property
    def loops(self) -> list[Step]:
        """All loops outside the innermost tiles, outermost first, except those of one trip."""
        found = []
        outer: list[Value] = [np.int64(e) for e in self.nest.extents]
        for position, tile in enumerate(self.chains):
            for dim in (*self.nest.spatial, *self.nest.reduce) if position else self.base.orders[0]:
                over = not position and self.units > 1 and (self.cut or dim in self.nest.spatial)
                trips = -(-outer[dim] // tile[dim])
                if np.any(trips != 1):
                    found.append(Step(dim, trips, position, over))
            outer = list(tile)
        return found

    @cached_property
    def rows(self) -> CacheRows:
        """The order in which the nest walks the rows of its arrays."""
        return CacheRows(self.model, self.base, self.loops, self.trips, self.boxes)

    @cached_property
    def trips(self) -> Value:
        """The trips of each loop, [loop, chain]."""
        return np.array([loop.trips for loop in self.loops], dtype=np.int64).reshape(-1, self.count)

    @cached_property
    def tiles(self) -> list[Value]:
        """For each dimension the extents of the tile inside the first 0, 1, 2 … loops."""
        found = np.empty((len(self.nest.dims), len(self.loops) + 1, self.count), dtype=np.int64)
        found[:, 0] = np.array(self.nest.extents, dtype=np.int64)[:, None]
        for depth, loop in enumerate(self.loops):
            found[:, depth + 1] = found[:, depth]
            found[loop.dim, depth + 1] = self.chains[loop.position][loop.dim]
        return list(found)

    def boxes(self, number: int) -> Boxes:
        """Returns the parts of an array that are touched inside the first 0, 1, 2 … loops."""
        found = self._boxes.get(number)
        if found is None:
            boxes, shape = self.model.geometry.reads(number, self.tiles), (len(self.loops) + 1, self.count)
            elements, run = (np.broadcast_to(values, shape) for values in (boxes.elements, boxes.run))
            found = self._boxes[number] = replace(boxes, elements=elements, run=run)
        return found

    def _parts(self, staged: tuple[Staging, ...]) -> Iterator[Stream]:
        """Yields arrays and their copies (`roller.cost.loops.NestWalk.streams`)."""
        panels = {s.operand: s for s in staged if s.kind == "panel"}
        boxes = {s.operand: s for s in staged if s.kind == "box"}
        every = len(self.loops)
        finished = max([n + 1 for n, lp in enumerate(self.loops) if lp.dim in self.nest.spatial], default=0)
        for number, access in enumerate(self.nest.accesses):
            body = access.role == "body"
            panel = panels.get(access.factor) if body else None
            stop = (every if body else finished) if panel is None else self._copied(panel)
            boxed = min(stop, self._copied(boxes[number])) if number in boxes else stop
            if all(s is None or s.level > 0 for s in (panel, boxes.get(number))):
                yield Stream(number, access.factor, access.touches, 0, boxed)
            if number in boxes and (panel is None or panel.level > 0):
                yield Stream(number, access.factor, access.touches, boxed, stop, copy=True)
        for factor, panel in panels.items():
            yield Stream(None, factor, self.nest.factor_touches(factor), self._copied(panel), every, copy=True)

    def _copied(self, staging: Staging) -> int:
        """Returns the loops outside a copy: up to the last one of its level that it depends on, and all over units."""
        if not staging.level:
            return 0
        touches, position = staged_touches(self.nest, staging), self.base.levels.index(staging.level)
        around = [n + 1 for n, lp in enumerate(self.loops) if lp.position <= position and (touches[lp.dim] or lp.over_units)]
        over = [n + 1 for n, lp in enumerate(self.loops) if not lp.position and lp.dim in self.nest.spatial]
        return max([*around, *over], default=0)

    def _reuse(self, index: int) -> Reuse:
        """Returns what survives in a cache (`roller.cost.traffic`)."""
        found = self._reuses.get(index)
        if found is None:
            found = self._reuses[index] = self._reused(self.model.spec.levels[index])
        return found

    def _reused(self, level: MemoryLevel) -> Reuse:
        room, sharing = level.capacity_bytes * level.usable_fraction, min(self.model.spec.units_sharing(level), self.units)
        needed = np.zeros((len(self.loops) + 1, self.count))
        for part in self._parts(()):
            assert part.access is not None
            stop = part.stop + 1 - (self.base.dealt and self.nest.accesses[part.access].role == "output")  # lanes hold results
            live = self.boxes(part.access).moved(level.transaction_bytes)[:stop]
            needed[:stop] += live * self._apart(part, sharing)[:stop]
        return self._surviving(np.minimum(1.0, np.maximum(0.0, 2.0 - needed / room)), level)

    def _reuse_alone(self, index: int, part: Stream) -> Reuse:
        """Returns what survives of one array, whose rows may crowd few sets of the cache (`roller.cost.traffic`)."""
        level, reuse = self.model.spec.levels[index], self._reuse(index)
        if part.access is None or part.copy or level.banks is None:
            return reuse
        boxes = self.boxes(part.access)
        crowding = boxes.crowding(level.banks)
        if not np.any(crowding > 1):
            return reuse
        sharing = min(self.model.spec.units_sharing(level), self.units)
        needed = boxes.moved(level.transaction_bytes) * crowding * self._apart(part, sharing)
        own = np.where(crowding > 1, np.clip(2.0 - needed / level.capacity_bytes, 0.0, 1.0), 1.0)
        return replace(self._surviving(np.minimum(reuse.kept, own), level), cold=reuse.cold)

    def _surviving(self, kept: Value, level: MemoryLevel) -> Reuse:
        """Returns the reuse where these shares of the data survive, at each depth."""
        fits, sharing = kept >= 1, min(self.model.spec.units_sharing(level), self.units)
        units = 1 if self.model.spec.shared(level) else self.units
        first = np.where(fits.any(axis=0), fits.argmax(axis=0), len(self.loops))
        beside = self._together_over(sharing) if self.base.dealt and units == 1 else 1  # one of them fetches data for all
        trips = -(-self.trips // beside)
        survives = np.maximum(trips - (trips - 1) * kept[1:], self._copies(units, [False] * len(self.nest.dims)))
        return Reuse(kept, first, fits.any(axis=0), survives, units, 1.0 - kept[0] * self.model.parameters.warm)

    def _copies(self, units: int, touches: Sequence[bool]) -> Value:
        """Returns for each loop how many private caches fetch the same data of an array, [loop, chain]."""
        over = np.array([loop.over_units and not touches[loop.dim] for loop in self.loops], dtype=bool).reshape(-1, 1)
        return np.where(over, np.minimum(self.trips, units), 1)

    def _apart(self, part: Stream, sharing: int) -> Value:
        """Returns how many different tiles of an array the units that share a cache use at a time, [depth, chain]."""
        partial = part.access is not None and self.nest.accesses[part.access].role == "output"
        changes = [part.touches[lp.dim] or (partial and lp.dim in self.nest.reduce) for lp in self.loops]
        return _products(np.where(np.array(changes, dtype=bool).reshape(-1, 1), self._together_over(sharing), 1))

    def _together_over(self, units: int) -> Value:
        """Returns for each loop how many of its trips so many units run at a time (`NestWalk.apart`), [loop, chain]."""
        found = self._beside.get(units)
        if found is None:
            found, left = np.ones_like(self.trips), np.full(self.count, units)
            order = range(len(self.loops))
            for number in reversed(order) if self.base.dealt else order:
                if self.loops[number].over_units:
                    found[number] = np.maximum(1, np.minimum(self.trips[number], left))
                    left = -(-left // found[number])
            self._beside[units] = found
        return found

    @cached_property
    def _outside(self) -> Value:
        """For each depth the depth outside the last loop of several trips around it, [depth, chain]."""
        several = np.where(self.trips > 1, np.arange(len(self.loops))[:, None], 0)
        return np.concatenate([np.zeros((1, self.count), dtype=np.int64), np.maximum.accumulate(several, axis=0)])

    def _loads(self, index: int, part: Stream, boxed: bool) -> Loaded:
        """Returns the loads of one array or copy: its tile at the depth that fits, for every trip outside that brings a new one.

        Of an innermost tile that does not fit, a share stays for the next one.
        """
        reuse = self._reuse_alone(index, part)
        fit = np.clip(reuse.first, part.start, part.stop)
        stays = reuse.fits & (fit >= reuse.first)
        written = stays & (fit == part.start) if part.copy and part.start else False  # the copy was just written there
        around = np.maximum(at_depths(self._outside, fit), part.start)
        inmost = ~stays & (fit == len(self.loops))
        found = self._brought(index, part, boxed, np.where(stays | inmost, around, fit), reuse, lost=False)
        if np.any(inmost):
            lost, share = self._brought(index, part, boxed, fit, reuse, lost=True), np.where(inmost, reuse.kept[-1], 1.0)
            found = tuple(share * one + (1 - share) * other for one, other in zip(found, lost, strict=True))
        loaded = np.logical_not(written)
        return tuple(one * loaded for one in found)

    def _brought(self, index: int, part: Stream, boxed: bool, depth: Value, reuse: Reuse, lost: bool) -> Loaded:
        """Returns the loads of one array or copy whose tile at a depth is loaded at every trip outside (`roller.cost.traffic`)."""
        level, times = self.model.spec.levels[index], self._times(part, depth, reuse) * reuse.cold
        if part.access is None:
            return at_depths(self._panel(part), depth) * times, 0.0, 0.0, 0.0
        boxes = self.boxes(part.access)
        moved = at_depths(self._moved(part, level), depth)
        if self.base.dealt:  # lanes hide one another's latency
            return moved * times * self._passes(part, depth), 0.0, 0.0, 0.0
        elements = at_depths(boxes.elements, depth)
        brought, started = moved * times, elements * times / np.maximum(self.rows.run(part, boxed, level), 1)
        if lost:
            gathered = self._gathered(part) * elements * times
            brought, started = np.maximum(brought, gathered * level.transaction_bytes), np.maximum(started, gathered)
        started = np.minimum(started, brought / level.transaction_bytes)
        past: Value = True
        short: Value = 0.0
        if part.access == len(self.nest.accesses) - 1:
            past = past_caches(self.model.spec, self.model.parameters, self.base, boxes.elements[part.stop], boxes.run[part.stop])
            started = started * np.logical_not(past)
            short = self.model.parameters.past_run_bytes / (self.rows.run(part, boxed, level) * self.nest.output.element_bytes)
        early = self.rows.read_ahead(part) if not boxed else False
        scattered = self._scattered(part, level) if index == 1 else 1.0
        moved = self._passes(part, depth) * scattered
        if index == 1:
            fetched = 2.0 if self.model.parameters.write_allocate else 0.0
            moved = np.maximum(moved, np.where(past, short, fetched))
        moved = brought * moved
        return moved, started * np.logical_not(early), started * early, moved * (1 / self.rows.share(part, level) - 1)

    def _moved(self, part: Stream, level: MemoryLevel) -> Value:
        """Returns the bytes of an array at each depth, with the borders that several private caches load, [depth, chain]."""
        assert part.access is not None
        moved, units = self.boxes(part.access).moved(level.transaction_bytes), min(level.instances, self.units)
        if self.base.dealt or part.copy or units == 1:
            return moved
        factor: Value = 1.0
        found = moved.astype(float)
        for place in reversed(range(sum(loop.over_units for loop in self.loops))):
            if place < part.stop and part.touches[self.loops[place].dim]:
                factor = factor * self._borders(part.access, level.transaction_bytes, units, place)
            found[place] *= factor
        return found

    def _borders(self, number: int, transaction: int, units: int, place: int) -> Value:
        """Returns how often the borders of units' parts along a loop are loaded (`roller.cost.traffic`)."""
        key = number, transaction, units, place
        if key not in self._bordered:
            dim, trips, moved = self.loops[place].dim, self.trips[place], self.boxes(number).moved(transaction)
            tile = [extents[place + 1] for extents in self.tiles]
            tile[dim] = self.tiles[dim][place] - (trips - 1) * tile[dim]
            apart = (trips - 1) * moved[place + 1] + self.model.geometry.reads(number, tile).moved(transaction)
            runs = -(-trips // -(-trips // self._together_over(units)[place]))
            twice = (apart / np.maximum(moved[place], 1.0) - 1) * (runs - 1)
            self._bordered[key] = 1 + twice / np.maximum(trips - 1, 1)
        return self._bordered[key]

    def _times(self, part: Stream, fit: Value, reuse: Reuse) -> Value:
        """Returns how often the tile at a depth is loaded."""
        touched = np.array([part.touches[loop.dim] for loop in self.loops], dtype=bool).reshape(-1, 1)
        times = at_depths(_products(np.where(touched, self.trips, reuse.survives)), fit)
        if reuse.units == 1:
            return times
        copies = self._copies(reuse.units, part.touches)
        return times * at_depths(_products(copies[::-1])[::-1], fit)

    def _passes(self, part: Stream, fit: Value) -> Value:
        """Returns how often results move for each of the sequential reduce trips around the tile (`roller.cost.traffic`)."""
        assert part.access is not None
        if self.nest.accesses[part.access].role != "output":
            return 1.0
        turns = np.array([lp.dim in self.nest.reduce and not lp.over_units for lp in self.loops], dtype=bool).reshape(-1, 1)
        return 2 - 1 / at_depths(_products(np.where(turns, self.trips, 1)), fit)

    def _panel(self, part: Stream) -> Value:
        """Returns the bytes of a panel at each depth."""
        width = panel_element_bytes(self.nest, self.base.atom)
        elements = math.prod([self._laid[d] for d, touched in enumerate(part.touches) if touched])
        return np.broadcast_to(elements * width, (len(self.loops) + 1, self.count))

    @cached_property
    def _laid(self) -> Value:
        """For each dimension the extents of a panel at each depth, in whole innermost tiles."""
        return whole_tiles(self.tiles, self.chains[-1])

    def _gathered(self, part: Stream) -> Value:
        """Returns the share of an innermost tile that the nest gathers one by one (`roller.cost.traffic`)."""
        lane = self.base.lane
        if part.access is None or part.copy or lane is None or not part.touches[lane] or lane_step(self.base, part.access) == 1:
            return 0.0
        access, inner = self.nest.accesses[part.access], tuple(self.chains[-1])
        across: Value = False
        for dim in self.base.sides if access.role == "output" else ():
            across = across | (inner[dim] >= LEAST_BLOCK)
        return np.where(across, 0.0, 1.0 - blocks_of(self.base, inner, access))

    def _scattered(self, part: Stream, level: MemoryLevel) -> Value:
        """Returns the write amplification of results that no cache keeps (`roller.cost.traffic`)."""
        assert part.access is not None
        access, boxes = self.nest.accesses[part.access], self.boxes(part.access)
        if access.role != "output" or access.tensor.nbytes <= level.capacity_bytes:
            return 1.0
        elements, run = boxes.elements[part.stop], boxes.run[part.stop]
        moved = boxes.moved(level.transaction_bytes)[part.stop]
        return np.where(run >= elements, 1.0, moved / (elements * access.element_bytes))


def _products(factors: Value) -> Value:
    """Returns the products of the first 0, 1, 2 … factors."""
    found = np.ones((len(factors) + 1, factors.shape[1]))
    for number, factor in enumerate(factors):  # takes a third of the time of np.multiply.accumulate
        np.multiply(found[number], factor, out=found[number + 1])
    return found
