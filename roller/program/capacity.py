"""Capacity: whether a tile fits a level, its footprint there, and the operator's traffic into the level with this tile.

Managed levels must hold the staged inputs (times their depth) and, where they may, the accumulators. Caches must hold the data that
survive until their reuse: one array's tile, and the part of each other array that one pass of the reusing loop touches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from roller.ir.elementwise import Extent, Value, largest
from roller.ir.expr import ELEMENT_BYTES
from roller.ir.nest import Access, Nest, Tile
from roller.ir.row_groups import held_bytes
from roller.ir.sliding_windows import every_window, stored_extents
from roller.program.alignment import lane_rule
from roller.program.footprint import Geometry
from roller.program.rprogram import lane_level, panel_element_bytes, tiled_levels
from roller.program.tile_registers import registers_of
from roller.program.words import Mapping, word_dim
from roller.target.hardware import ComputeAtom, HardwareSpec, MemoryLevel

PICKED = 4  # vectors that are shuffled out of others at a time: their loads overlap


@dataclass
class Fit:
    """Capacity, footprint and traffic of tiles of one nest on one chip.

    `cooperate`: lanes share reductions. `windowed`: panels hold each value under sliding windows once, and lanes take all taps of
    the innermost windows at a step.
    """

    spec: HardwareSpec
    nest: Nest
    geometry: Geometry
    cooperate: bool = False
    windowed: bool = False
    limits: dict[tuple[int, int], int] = field(default_factory=dict)  # (level, dimension) → its largest extent there
    _lane_level: int | None = field(init=False)
    _innermost: int = field(init=False)
    _panels: tuple[int, ...] = field(init=False)
    _traffic: dict[tuple[int, Tile], float] = field(default_factory=dict)
    _footprints: dict[tuple[int, Tile, Tile, int], int] = field(default_factory=dict)
    _inner: dict[tuple[Tile, Mapping, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lane_level = lane_level(self.spec)
        self._innermost = tiled_levels(self.spec)[-1]
        factors = range(len(self.nest.factors))
        self._panels = tuple([f for f in factors if self.reused(self.nest.factor_touches(f))])

    def tiles(self, tile: Tile) -> int:
        """Returns the number of spatial tiles of this extent that cover the problem."""
        return math.prod([-(-self.nest.extents[i] // tile[i]) for i in self.nest.spatial])

    def rule(self, levels: tuple[int, ...], position: int) -> str:
        """Returns the name under which refusals of tiles that do not fit this level are counted."""
        return f"{self.spec.levels[levels[position]].name} capacity"

    def fits(self, levels: tuple[int, ...], position: int, tile: Tile, inner: Tile, mapping: Mapping, atom: ComputeAtom) -> bool:
        """True if the tile may be resident at the level; caches admit any first tile."""
        if not self.within(levels[position], tile, inner):
            return False
        level = self.spec.levels[levels[position]]
        if position == len(levels) - 1:
            room = self.lane_bytes(level, atom)
            return not level.managed or self.inner_bytes(tile, mapping, atom) <= room
        if not level.managed:
            return tile == inner or self.footprint(levels, position, tile, inner, atom) <= level.usable_bytes
        if self.footprint(levels, position, tile, inner, atom) > self.usable_bytes(level):
            return False
        return self._lane_level is None or self.lanes(tile, inner, atom) <= self.spec.unit.lanes_max

    def within(self, level: int, tile: Tile, inner: Tile) -> bool:
        """True if no extent exceeds the device's rules; an extent equal to that of the tile inside is always allowed."""
        return not self.limits or all(e <= max(self.limits.get((level, d), e), inner[d]) for d, e in enumerate(tile))

    def legal(
        self, levels: tuple[int, ...], position: int, tile: Tile, inner: Tile, mapping: Mapping, atom: ComputeAtom
    ) -> str | None:
        """Returns the rule that a fitting tile breaks, None if it breaks none."""
        if self._lane_level is None or position != len(levels) - 2:
            return None
        lanes = self.lanes(tile, inner, atom)
        storage = self.spec.unit.lane_storage_bytes
        reserved = self.spec.unit.lane_reserved_bytes
        if storage and self.spec.stored_lanes(lanes) * (self.inner_bytes(inner, mapping, atom) + reserved) > storage:
            return "lane storage"
        grouped = lane_rule(self.spec, lanes, self.lanes(self.nest.extents, inner, atom))
        return grouped or self.window_rule(tile) or self._row_rule(self.spec.levels[levels[position]], tile, atom)

    def window_rule(self, tile: Tile) -> str | None:
        """Returns why panels of a tile cannot be windowed, None if they can.

        Windows must be whole, as values beyond the ends of the problem must not be read.
        """
        if not self.windowed:
            return None
        extents, every = self.nest.extents, every_window(self.nest)
        whole = all(extents[d] % tile[d] == 0 for w in every for d in w.taps)
        return None if whole and all(tile[w.spatial] <= extents[w.spatial] for w in every) else "whole windows"

    def _row_rule(self, level: MemoryLevel, tile: Tile, atom: ComputeAtom) -> str | None:
        """Returns why the panels of a tile break rule 3 where an atom reads them in place, None if they do not.

        A row runs along the array's contiguous dimension. It must be as long as all banks are wide, a multiple of that, or the
        whole array's. Shorter rows leave banks idle, and copies fetch each row by itself.
        """
        width = self.row_width(level, atom)
        if not width:
            return None
        for dim, extent in enumerate(self.nest.extents):
            along = any(a.strides[dim] == 1 for a in self.nest.accesses if a.role == "body")
            if along and tile[dim] < extent and tile[dim] % width:
                return f"panel rows in multiples of {width}"
        return None

    def row_width(self, level: MemoryLevel, atom: ComputeAtom) -> int:
        """Returns the elements of which the rows of panels hold a multiple; 0 where any number will do."""
        if level.banks is None or not level.managed or not self.spec.in_place(atom):
            return 0
        return level.banks.count * level.banks.width_bytes // ELEMENT_BYTES[atom.stored_dtype]

    def lanes(self, tile: Tile, inner: Tile, atom: ComputeAtom) -> int:
        """Returns the lanes of a unit tile: one for each concurrent sub-tile, or the group that a matrix atom takes."""
        shared = range(len(tile)) if self.cooperate else self.nest.spatial
        sub_tiles = math.prod([-(-tile[i] // inner[i]) for i in shared])
        return sub_tiles * (atom.lanes if atom.kind == "matrix" else 1)

    def usable_bytes(self, level: MemoryLevel) -> int:
        """Returns the bytes for tiles, less the share of the whole problem where the outer level is carved from this one."""
        if not any(outer.carved_from == level.name for outer in self.spec.levels):
            return level.usable_bytes
        whole = {a.tensor.name: a.tensor.nbytes for a in self.nest.accesses}
        return level.usable_bytes - -(-sum(whole.values()) // level.instances)

    def lane_bytes(self, level: MemoryLevel, atom: ComputeAtom) -> int:
        """Returns the bytes of the innermost level, or of the atom's own registers, that one sub-tile may use."""
        if atom.registers is not None:
            return atom.registers * atom.register_bytes
        limit, reserved = self.spec.unit.lane_storage_max_bytes, self.spec.unit.lane_reserved_bytes
        return min(level.usable_bytes, limit - reserved) if limit is not None else level.usable_bytes

    def inner_bytes(self, tile: Tile, mapping: Mapping, atom: ComputeAtom) -> int:
        """Returns the bytes of an innermost tile: accumulators, and operands.

        Where operands stream, the largest one takes one atom's worth; the others are whole. Where a vector lies on a reduce
        dimension, its reduce extents have partial results of their own.
        """
        key = tile, mapping, atom.name
        found = self._inner.get(key)
        if found is None:
            found = self._inner[key] = self.inner_bytes_of(tile, mapping, atom)
        return found

    def touched_bytes(self, tile: Tile) -> int:
        """Returns the bytes of all data tiles; of equally fast tiles the one that touches less is better."""
        return sum([self.geometry.held(number, tile).nbytes for number in range(len(self.nest.accesses))])

    def inner_bytes_of(self, tile: Sequence[Extent], mapping: Mapping, atom: ComputeAtom) -> Value:
        """Returns the same for one tile, or for an array of tiles, without a cache."""
        nest = self.nest
        if atom.registers is not None:
            return registers_of(nest, atom, mapping, tile) * atom.register_bytes
        if nest.before:
            return held_bytes(nest, tuple(tile))
        spread = [d for role, d in mapping if role == "n" and nest.dims[d].is_reduce] if atom.kind == "vector" else []
        whole_tile = _in_whole_vectors(tile, mapping, atom)
        kept = [*nest.spatial, *(nest.reduce if spread else ())]
        outputs = math.prod([whole_tile[i] for i in kept])
        if "input" not in self.spec.levels[min(self._innermost, len(self.spec.levels) - 1)].holds:
            return outputs * nest.accumulator_bytes // self._shared_lanes(atom)
        if nest.stage.reducer is None or self.spec.in_place(atom):
            held = outputs * nest.accumulator_bytes // self._shared_lanes(atom)  # operands become the result, or stay outside
            return held + (self._operand_bytes((False,) * len(tile), None, mapping, atom) if nest.inputs else 0)  # but one value
        whole = [self._operand_bytes(a.touches, self._read_tile(a.factor, tile), mapping, atom) for a in nest.inputs]
        once = [self._operand_bytes(a.touches, None, mapping, atom) for a in nest.inputs]
        streamed = self.spec.unit.lane_operands == "streamed"
        spared = reduce(largest, [w - o for w, o in zip(whole, once, strict=True)], 0) if streamed else 0
        held = sum(whole) - spared + sum(self._picked_bytes(a, mapping, atom) for a in nest.inputs)
        return outputs * nest.accumulator_bytes // self._shared_lanes(atom) + held

    def _read_tile(self, factor: int, tile: Sequence[Extent]) -> Sequence[Extent]:
        """Returns the tile as the extents of a factor's values that a lane reads."""
        return stored_extents(self.nest, factor, tile) if self.windowed else tile

    def _shared_lanes(self, atom: ComputeAtom) -> int:
        """Returns the lanes over which a matrix atom spreads its tile: each holds its part."""
        return atom.lanes if atom.kind == "matrix" else 1

    def _operand_bytes(
        self, touches: tuple[bool, ...], tile: Sequence[Extent] | None, mapping: Mapping, atom: ComputeAtom
    ) -> Value:
        """Returns the bytes of an operand's share of a tile (None: of one atom); a value broadcast to a vector fills all of it."""
        roles = atom.extents
        atoms = {d: r if isinstance(r := roles[name], int) else 1 for name, d in mapping}
        deep = word_dim(atom, mapping)  # a word fills one element of the accumulator
        size: Value = self.nest.accumulator_bytes
        for dim, touched in enumerate(touches):
            width = atoms.get(dim, 1)
            if dim == deep:
                continue
            if touched:
                size *= width if tile is None else largest(tile[dim], width)
            elif atom.kind == "vector":
                size *= width
        return size // self._shared_lanes(atom)

    def _picked_bytes(self, access: Access, mapping: Mapping, atom: ComputeAtom) -> int:
        """Returns the bytes of the vectors from which strided ones are shuffled, a few at a time, and of the shuffle pattern."""
        if atom.kind != "vector" or not mapping or self.nest.stageable(access.factor):
            return 0  # a reused operand lies in a panel, in the right order
        role, lane = mapping[0]
        width = atom.extents[role]
        assert isinstance(width, int)
        step = next((abs(c) for i in access.index if (c := i.coefficient(access.innermost[lane]))), 0)
        beside = access.guarded or access.strides[lane] == step  # in a box, neighbours lie this step apart
        if not beside or not 1 < step <= width // 2:
            return 0
        return (PICKED * step + 1) * width * self.nest.accumulator_bytes

    def footprint(self, levels: tuple[int, ...], position: int, tile: Tile, inner: Tile, atom: ComputeAtom) -> int:
        """Returns the bytes that the tile occupies at the level."""
        key = position, tile, inner, panel_element_bytes(self.nest, atom)
        found = self._footprints.get(key)
        if found is None:
            found = self._footprints[key] = self._footprint(levels, position, tile, inner, atom)
        return found

    def _footprint(self, levels: tuple[int, ...], position: int, tile: Tile, inner: Tile, atom: ComputeAtom) -> int:
        level = self.spec.levels[levels[position]]
        if level.managed:
            return self._managed_bytes(levels, position, tile, atom)
        everything = range(len(self.nest.accesses))
        choices = []
        for kept in everything:
            touches = self.nest.accesses[kept].touches
            one_pass = tuple(t if x else min(t, n) for t, n, x in zip(tile, inner, touches, strict=True))
            choices.append(sum(self.geometry.held(a, one_pass).nbytes for a in everything))
        return min(choices)

    def _managed_bytes(self, levels: tuple[int, ...], position: int, tile: Tile, atom: ComputeAtom, depth: int = 1) -> int:
        """Returns the bytes of the staged inputs times their depth, and of the accumulators."""
        level = self.spec.levels[levels[position]]
        innermost = position == len(levels) - 1
        total = 0
        if "input" in level.holds:
            panels = not innermost and self.nest.reduce
            total += depth * (self._panel_bytes(tile, atom) if panels else self._input_bytes(tile, innermost))
        if "accumulator" in level.holds:
            total += math.prod([tile[i] for i in self.nest.spatial]) * self.nest.accumulator_bytes
        return total

    def _panel_bytes(self, tile: Tile, atom: ComputeAtom) -> int:
        """Returns the bytes of the panels of reused factors: a value for every point, or for every value under windows.

        Units over which arrays are spread hold boxes of them.
        """
        if self.spec.spread:
            mine = [(n, a) for n, a in enumerate(self.nest.accesses) if a.role == "body" and a.factor in self._panels]
            return sum([self.geometry.held(n, tile).nbytes for n, _ in mine])
        elements = [self.geometry.panel_elements(f, tile, self.windowed) for f in self._panels]
        return sum(elements) * panel_element_bytes(self.nest, atom)

    def _input_bytes(self, tile: Tile, innermost: bool) -> int:
        """Returns the bytes of the data tiles of the reused inputs, or of all inputs."""
        inputs = [(n, a) for n, a in enumerate(self.nest.accesses) if a.role == "body"]
        return sum([self.geometry.held(n, tile).nbytes for n, a in inputs if innermost or self.reused(a.touches)])

    def depth(self, levels: tuple[int, ...], position: int, tile: Tile, atom: ComputeAtom) -> int:
        """Returns the copies of the staged inputs at a managed level: two (double-buffering) if they fit, else one."""
        level = self.spec.levels[levels[position]]
        double = level.depth_max > 1 and self._managed_bytes(levels, position, tile, atom, 2) <= self.usable_bytes(level)
        return 2 if double else 1

    def room_left(self, levels: tuple[int, ...], position: int, tile: Tile, depth: int, atom: ComputeAtom) -> int:
        """Returns the bytes of a managed level that a tile with `depth` copies of its inputs leaves free."""
        return self.usable_bytes(self.spec.levels[levels[position]]) - self._managed_bytes(levels, position, tile, atom, depth)

    def reused(self, touches: tuple[bool, ...]) -> bool:
        """True if some spatial dimension reuses the same values, so that holding them at a level pays."""
        return any(not touches[i] and self.nest.extents[i] > 1 for i in self.nest.spatial) or self._windows()

    def _windows(self) -> bool:
        return any(sum(1 for i in a.index for _ in i.terms) > len(a.index) for a in self.nest.inputs)

    def traffic(self, levels: tuple[int, ...], position: int, tile: Tile) -> float:
        """Returns the operator's whole traffic into the level if every tile loads its data anew.

        The output moves 2r - 1 times where r reduce trips lie outside a level whose sub-tiles run one after another.
        """
        key = levels[position], tile
        found = self._traffic.get(key)
        if found is None:
            found = self._traffic[key] = self._sum_traffic(levels, position, tile)
        return found

    def _sum_traffic(self, levels: tuple[int, ...], position: int, tile: Tile) -> float:
        nest, level = self.nest, self.spec.levels[levels[position]]
        trips = [-(-e // t) if t else 0 for e, t in zip(nest.extents, tile, strict=True)]
        everywhere, spatial = math.prod(trips), math.prod([trips[i] for i in nest.spatial])
        concurrent = self._lane_level is not None or position == len(levels) - 1
        total = 0.0
        for number, access in enumerate(nest.accesses):
            moved = self.geometry.held(number, tile).moved(level.transaction_bytes)
            if access.role == "body":
                total += moved * everywhere
            else:
                passes = 1 if concurrent or access.role == "epilogue" else 2 * everywhere / max(spatial, 1) - 1
                total += moved * spatial * passes
        return total


def _in_whole_vectors(tile: Sequence[Extent], mapping: Mapping, atom: ComputeAtom) -> Sequence[Extent]:
    """Returns a tile whose extent along a vector is rounded up: a part of a vector takes a whole register."""
    lane, width = next(((d, atom.extents[role]) for role, d in mapping if role == "n"), (None, 1))
    if atom.kind != "vector" or not isinstance(width, int):
        return tile
    return [-(-extent // width) * width if d == lane else extent for d, extent in enumerate(tile)]
