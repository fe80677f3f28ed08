"""Arrays of tile chains on units whose memory software fills: trips, lanes, room, occupancy. Arrays are [tile chain].

A chain may be cut (split-K): units then share the longest reduction, and each walks its share in steps of its tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from roller.cost.occupancy import reserved_bytes, together
from roller.ir.elementwise import Value
from roller.ir.nest import Nest
from roller.ir.row_groups import REGISTER_BYTES
from roller.ir.sliding_windows import every_window
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes
from roller.search.funnel import placed_fills
from roller.search.funnel.lattice import Chains, Tiles
from roller.search.tile_space import TileSpace
from roller.target.hardware import MemoryLevel


@dataclass(frozen=True)
class Placed:
    """Chains of tiles in one tile space. `share`: the extents that one unit computes, the problem's where nothing is cut.

    `base`: a program of the tile space with its copies, but any tiles. `depth`: copies (buffers) of each panel. `free`: the share
    of a unit's room that they may take. `first`: the dimension whose tiles a unit runs in turn, if any.
    """

    space: TileSpace
    base: StageProgram
    chains: Chains
    share: Tiles
    depth: int
    free: float = 1.0
    first: int | None = None

    @property
    def nest(self) -> Nest:
        """The nest."""
        return self.space.nest

    @property
    def unit(self) -> Tiles:
        """The tiles of units."""
        return self.chains[0]

    @property
    def inner(self) -> Tiles:
        """The innermost tiles."""
        return self.chains[-1]

    def cut(self, first: int | None) -> Placed:
        """Returns the chains with the longest reduction cut among as many units as are free (`roller.search.choices.split`).

        `first`: the tiles along this dimension run in turn, so that the units of all others are free (`choices.in_turn`).
        """
        dim = max(self.nest.reduce, key=lambda d: self.nest.extents[d])
        units, tiles = self.space.spec.unit.count, np.maximum(self.spatial_tiles, 1)
        if first is None:
            parts = np.where(units // tiles > 1, units // tiles, -(-units // tiles))
        else:
            beside = np.maximum(1, tiles // -(-self.nest.extents[first] // self.unit[first]))
            parts = np.maximum(1, np.where(tiles >= units, units // beside, 1))
        share, tile = self.share.copy(), self.unit.copy()
        part = -(-share[dim] // parts)
        part = -(-part // self.inner[dim]) * self.inner[dim]
        whole = (part > tile[dim]) | (dim in self.space.named)  # in steps of the tile
        part = np.where(whole, -(-part // tile[dim]) * tile[dim], part)
        tile[dim] = np.where(parts > 1, np.minimum(tile[dim], part), tile[dim])
        share[dim] = np.where(parts > 1, part, share[dim])
        return replace(self, chains=[tile, *self.chains[1:]], share=share, first=first)

    @cached_property
    def parts(self) -> Value:
        """The units that share each result."""
        return self.count(self.share, self.nest.reduce)

    @cached_property
    def spatial_tiles(self) -> Value:
        """The unit tiles of the results."""
        return self.count(self.unit, self.nest.spatial)

    @cached_property
    def unit_tiles(self) -> Value:
        """The tiles dispatched to units."""
        return self.spatial_tiles * self.parts

    @cached_property
    def beside(self) -> Value:
        """Returns the atoms that a unit without lanes interleaves (`Model.chain_efficiency`)."""
        lanes = self.space.spec.unit.lanes_max
        dims = range(len(self.inner)) if lanes > 1 else self.nest.spatial
        parts = math.prod([-(-self.unit[d] // self.inner[d]) for d in dims])
        if self.base.levels[-1] < len(self.space.spec.levels):
            return np.ones_like(parts)
        return np.minimum(lanes, parts) if lanes > 1 else parts

    def loads(self, touches: Sequence[bool], steps: bool) -> Value:
        """Returns how often units load a tile of an array: for every unit tile, and `steps`: for every step that changes it."""
        times: Value = 1
        changed: Value = np.zeros(self.parts.shape, dtype=bool)
        for d in reversed(self.nest.reduce if steps else ()):
            changed = changed | ((self.fill_trips[d] > 1) & touches[d])
            times = times * np.where(changed, self.fill_trips[d], 1)
        alike = math.prod([-(-self.nest.extents[d] // self.unit[d]) for d in self.nest.spatial if touches[d]])
        units = np.minimum(self.unit_tiles, self.space.spec.unit.count)
        times = np.where(changed, self.unit_tiles, np.maximum(alike, units)) * times
        return np.where(self._stays(touches), 0, times) if steps else times

    def _stays(self, touches: Sequence[bool]) -> Value:
        """Returns whether an array lies on units from the beginning: tiles run in turn, and no two units read the same of it."""
        if self.first is None:
            return False
        apart = [d for d in self.nest.spatial if not touches[d] and d != self.first]
        cut = [d for d in self.nest.reduce if not touches[d]]
        return self.count(self.unit, apart) * self.count(self.share, cut) == 1

    @cached_property
    def busy(self) -> Value:
        """The busy share of the units (`roller.cost.parameters.unit_efficiency`)."""
        units = self.space.spec.unit.count
        every = units * -(-self.unit_tiles // units)
        if self.space.lane_level is not None:
            return self.unit_tiles / every  # lanes run whole tiles, the last one too
        whole = np.minimum(self.share, np.array(self.nest.extents)[:, None])
        points = math.prod([np.minimum(self.unit[d], e) for d, e in enumerate(self.nest.extents) if d in self.nest.spatial])
        mine = points * math.prod([whole[d] for d in self.nest.reduce])
        return math.prod(self.nest.extents) / (every * mine)

    @cached_property
    def fill_trips(self) -> Tiles:
        """For each dimension the steps of a unit along its share of a reduction, 1 for others."""
        found = np.ones_like(self.unit)
        for d in self.nest.reduce:
            found[d] = -(-self.share[d] // self.unit[d])
        return found

    @cached_property
    def lanes_along(self) -> Tiles:
        """For each dimension the sub-tiles of a unit's tile that run on lanes."""
        found = np.ones_like(self.unit)
        if self.space.lane_level is not None:
            for d in range(len(found)) if self.space.fit.cooperate else self.nest.spatial:
                found[d] = -(-self.unit[d] // self.inner[d])
        return found

    @cached_property
    def turns(self) -> Tiles:
        """For each dimension the sub-tiles of a unit's tile that a lane, or a unit without lanes, runs one after another."""
        every = -(-self.unit // self.inner)
        return -(-every // self.lanes_along)

    @cached_property
    def visits(self) -> Value:
        """How often an innermost tile's accumulators are loaded and stored: at every step, if others are computed between."""
        if self.space.lane_level is not None:
            return np.ones_like(self.parts)
        several = math.prod([-(-self.unit[d] // self.inner[d]) for d in self.nest.spatial]) > 1
        return np.where(several, math.prod(self.fill_trips), 1)

    @cached_property
    def sub_tiles(self) -> Value:
        """The sub-tiles of a unit's tile that run on lanes."""
        return math.prod(self.lanes_along)

    @cached_property
    def lanes(self) -> Value:
        """The lanes of a tile: a matrix atom takes several for each of its sub-tiles."""
        return self.sub_tiles * (self.base.atom.lanes if self.base.atom.kind == "matrix" else 1)

    @cached_property
    def groups(self) -> Value:
        """The lane groups of a tile."""
        return -(-self.lanes // self.space.spec.unit.lane_group)

    @cached_property
    def panel_bytes(self) -> Value:
        """The bytes of one copy of everything that a unit's tile stages, without padding."""
        nest, fit = self.nest, self.space.fit
        if self.base.staged or nest.reduce:
            width = panel_element_bytes(nest, self.base.atom)
            return sum([self.elements(s.operand, self.unit) for s in self.base.staged]) * width + np.zeros_like(self.parts)
        if "input" not in self._level.holds:
            return np.zeros_like(self.parts)
        read = [(n, a) for n, a in enumerate(nest.accesses) if a.role == "body" and fit.reused(a.touches)]
        held = [fit.geometry.boxes(n, self.unit).elements * a.element_bytes for n, a in read]
        return sum(held) + np.zeros_like(self.parts)

    @cached_property
    def result_bytes(self) -> Value:
        """The bytes of the accumulators that a unit's level holds."""
        if "accumulator" not in self._level.holds:
            return np.zeros_like(self.parts)
        return math.prod([self.unit[d] for d in self.nest.spatial]) * self.nest.accumulator_bytes

    @property
    def _level(self) -> MemoryLevel:
        return self.space.spec.levels[self.space.levels[0]]

    def holds(self, copies: Value) -> Value:
        """Returns whether a unit's level has room for so many copies, and for results."""
        level = self._level
        if not level.managed:
            return np.full(self.parts.shape, True)
        return copies * self.panel_bytes + self.result_bytes <= self.free * self.space.fit.usable_bytes(level)

    @cached_property
    def copies(self) -> Value:
        """The copies (buffers) that form the circular buffer of the panels: one where a tile is one step."""
        if self.space.spec.in_place(self.base.atom) or not self.base.dealt:
            return np.full(self.parts.shape, self.depth)
        return np.where((math.prod(self.fill_trips) > 1) & self._prefetches, self.depth, 1)

    @property
    def _prefetches(self) -> Value:
        """Whether a lane has the registers to prefetch panels (`roller.cost.issue.Issued.prefetches`)."""
        given, nest = self.space.model.parameters, self.nest
        if not given.prefetch_registers or self.depth == 1:
            return True
        held = math.prod([self.inner[d] for d in nest.spatial]) * nest.accumulator_bytes * self.sub_tiles / self.lanes
        carried: Value = 0.0
        for staging in self.base.staged:
            size = self._element_bytes(staging)
            if self.carried(staging):
                accesses, _ = self.fill_accesses(staging)
                words = self.elements(staging.operand, self.unit) * size / self.lanes / REGISTER_BYTES
                carried = carried + accesses * given.place_registers + words
        return held / REGISTER_BYTES + carried <= given.prefetch_registers

    @property
    def may_fit(self) -> Value:
        """Whether a unit has room for one copy of the panels and for the lanes; smaller tiles take no more."""
        fits = self.holds(1)
        return fits & (self.lanes <= self.space.spec.unit.lanes_max) if self.space.lane_level is not None else fits

    @cached_property
    def room(self) -> Value:
        """Whether a unit has room for a tile and its copies, and no rule forbids it."""
        space, fits = self.space, self.holds(self.depth)
        if space.lane_level is not None:
            fits = fits & self._laned()
        return fits & self._windows_whole() & self._rows_whole() & (self.parts >= 0)

    def _laned(self) -> Value:
        """Returns whether lanes form whole groups and have room (`roller.program.capacity.Fit.legal`)."""
        unit, fit, base = self.space.spec.unit, self.space.fit, self.base
        every = self.count(self.inner, range(len(self.unit)) if fit.cooperate else self.nest.spatial)
        every = every * (base.atom.lanes if base.atom.kind == "matrix" else 1)
        whole = unit.lanes_fixed | (self.lanes % unit.lane_group == 0) | ((every <= self.lanes) & (self.lanes < unit.lane_group))
        fits = (self.lanes <= unit.lanes_max) & whole
        if unit.lane_storage_bytes:
            held = fit.inner_bytes_of(tuple(self.inner), base.mapping, base.atom) + unit.lane_reserved_bytes
            fits = fits & (self.space.spec.stored_lanes(self.lanes) * held <= unit.lane_storage_bytes)
        return fits

    def _windows_whole(self) -> Value:
        if not self.space.fit.windowed:
            return True
        extents, every = self.nest.extents, every_window(self.nest)
        whole = [extents[d] % self.unit[d] == 0 for w in every for d in w.taps]
        return np.logical_and.reduce([*whole, *[self.unit[w.spatial] <= extents[w.spatial] for w in every]])

    def _rows_whole(self) -> Value:
        width = self.space.fit.row_width(self._level, self.base.atom)
        found: Value = True
        for dim, extent in enumerate(self.nest.extents):
            if width and any(a.strides[dim] == 1 for a in self.nest.accesses if a.role == "body"):
                found = found & ((self.unit[dim] >= extent) | (self.unit[dim] % width == 0))
        return found

    @cached_property
    def resident(self) -> Value:
        """The tiles on a unit at a time (`roller.cost.occupancy.resident_tiles`)."""
        if self.space.lane_level is None:
            return np.ones_like(self.parts)
        spec, outputs = self.space.spec, math.prod([self.inner[d] for d in self.nest.spatial]) * self.nest.accumulator_bytes
        held = outputs * self.sub_tiles + self.lanes * reserved_bytes(self.base, spec)
        return together(spec, self._level, self.unit_tiles, self.groups, held, self.copies * self.panel_bytes)

    def count(self, tile: Tiles, dims: Sequence[int]) -> Value:
        """Returns the number of tiles along some dimensions."""
        return math.prod([-(-self.nest.extents[d] // tile[d]) for d in dims]) * np.ones(tile.shape[1], dtype=np.int64)

    def elements(self, factor: int, tile: Tiles) -> Value:
        """Returns the elements of a panel of a factor under tiles; where arrays are spread over units, of its boxes."""
        if self.space.spec.spread:
            mine = [n for n, a in enumerate(self.nest.accesses) if a.role == "body" and a.factor == factor]
            return sum([self.space.fit.geometry.boxes(n, tile).elements for n in mine])
        return self.space.fit.geometry.elements_of_each(factor, tile, self.space.fit.windowed)

    def carried(self, staging: Staging) -> bool:
        """Returns whether lanes carry a panel's values through registers: no asynchronous copy is as short as an element."""
        return not any(self._element_bytes(staging) <= wide for wide in self.space.model.parameters.copy_sizes)

    def _element_bytes(self, staging: Staging) -> int:
        return max([a.element_bytes for a in self.nest.inputs if a.factor == staging.operand], default=1)

    def fill_accesses(self, staging: Staging) -> tuple[Value, Value]:
        """Returns the accesses of one lane that fill a panel, and whether their addresses follow from that of the first."""
        elements = self.elements(staging.operand, self.unit)
        return placed_fills.fill_accesses(self.space, self.base, staging, self.unit, elements, self.lanes)
