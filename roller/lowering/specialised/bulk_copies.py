"""Panels filled by bulk tensor copies (TMA): one lane starts asynchronous copies of boxes of a described array.

A box spans one panel row's width and the rows of a block; panels with more dimensions take several boxes. Elements outside the
array arrive as zeros, so remainders and padded windows need no guards. A description (tensor map) has the array's address step
along each dimension of the nest or, if windows overlap, the array's own dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm.tirx import For, ForKind

from roller.ir.expr import ELEMENT_BYTES
from roller.ir.nest import Access, Nest
from roller.ir.scalar import Load
from roller.lowering.simt.machine import Producers, TensorMap
from roller.lowering.simt.threads import Block
from roller.lowering.specialised.swizzle import SwizzledPanel, element_address
from roller.lowering.tir.builder import Buffer, Expr, Stmt, argument, index, plus, pointer, times, variable
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram
from roller.target.hardware import STORED_AS

MOST_DIMENSIONS, MOST_ELEMENTS, MOST_STEPS = 5, 256, 8  # of a box: dimensions, elements along one, step between two
ROW_ALIGNMENT = 16  # bytes: of an array's rows
PERIOD = 8  # rows after which the swizzle repeats: a block's share of a panel starts at a multiple of it
MAP_WORDS = 16  # 8-byte words of a description (tensor map)


@dataclass(frozen=True)
class Side:
    """One dimension of a described array: extent, address step and start in elements, and its `terms`.

    `terms`: the dimensions of the nest that move along it, with their coefficients.
    """

    extent: int
    stride: int
    terms: tuple[tuple[int, int], ...]
    start: int = 0

    def ends(self, dim: int, extent: int) -> bool:
        """Returns True if positions beyond a dimension of the nest lie outside the array."""
        return self.terms == ((dim, 1),) and not self.start and self.extent == extent


@dataclass(frozen=True)
class Bulk:
    """The bulk copies of a panel: description, the argument that carries it, the array's sides and the rows of one box.

    `cluster`: number of blocks that share the panel; each copies a share of the rows to all of them (multicast).
    """

    panel: SwizzledPanel
    map: TensorMap
    argument: Buffer
    sides: tuple[Side, ...]
    rows: int
    tile: tuple[int, ...]
    cluster: int = 1

    @property
    def bytes(self) -> int:
        """Bytes that arrive in one copy of the panel."""
        return math.prod(trips for trips, _ in self._walked()) * math.prod(self._counts()) * self.panel.element_bytes

    def ends(self, dim: int, extent: int) -> bool:
        """Returns True if boxes hold zeros beyond a dimension of the nest."""
        return all(side.ends(dim, extent) for side in self.sides if any(d == dim for d, _ in side.terms))

    def _counts(self) -> list[int]:
        return [-(-box // step) for box, step in zip(self.map.box, self.map.steps, strict=True)]

    def _walked(self) -> list[tuple[int, tuple[int, int]]]:
        """Returns the boxes of a panel: trips, and the dimension with the positions that one trip covers."""
        panel, tile = self.panel, self.tile
        found = [
            (tile[panel.along] // panel.width, (panel.along, panel.width)),
            (tile[panel.side] // self.rows, (panel.side, self.rows)),
        ]
        others = [d for d, s in enumerate(panel.steps) if s and d not in (panel.along, panel.side)]
        return [*found, *((tile[d], (d, 1)) for d in others)]

    def start(self, block: Block, state: State, slot: Position, signal: Expr, producers: Producers, rank: Expr) -> Stmt:
        """Starts all boxes of one copy of the panel, or this block's share of them in a cluster; their bytes arrive at the barrier.

        `rank`: the block's number in its cluster. `signal`: the address of the mbarrier.
        """
        walked, offsets = [], {}
        for trips, (dim, step) in self._walked():
            mine, var = trips // self.cluster if dim == self.panel.side else trips, variable(f"box{dim}")
            first = times(rank, mine * step) if mine < trips else 0
            walked.append((mine, var))
            offsets[dim] = plus(times(var, step) if mine > 1 else 0, first)
        bases = [block.base(state, d) for d in range(len(self.tile))]
        corner = [coordinate(side, bases, offsets) for side in self.sides]
        target = element_address(self.panel, offsets, slot)
        given = target, pointer(self.argument, 0), signal, corner
        body = producers.spread(*given, self.cluster) if self.cluster > 1 else producers.copy(*given)
        for trips, var in walked:
            body = For(var, index(0), index(trips), ForKind.SERIAL, body) if trips > 1 else body
        return body


def bulk_of(block: Block, panel: SwizzledPanel, reader: Reader) -> Bulk | None:
    """Returns the bulk copies of a panel; None if lanes must fill it.

    Lanes must fill a panel if its values are computed, rows are not aligned, the array has too many dimensions, or the blocks of a
    cluster cannot share the work.
    """
    if not isinstance(panel.value, Load) or not panel.value.zero_outside:
        return None
    program, access = block.program, program_access(reader, panel.value)
    for found in (by_steps(program.nest, access), _by_array(program, access)):
        if found is not None:
            made = _described(program, panel, access, found)
            if made is not None:
                return made
    return None


def program_access(reader: Reader, load: Load) -> Access:
    """Returns the array access of a load in the nest."""
    return reader.nest.accesses[reader.number(load)]


def by_steps(nest: Nest, access: Access) -> list[Side] | None:
    """Returns a side per dimension of the nest; None if the address is not linear in all of them or dimensions overlap."""
    offset = sum(i.offset * s for i, s in zip(access.index, access.tensor.strides, strict=True))
    if not access.linear or offset:
        return None
    steps = [(s or 0, e, d) for d, (e, s) in enumerate(zip(nest.extents, access.strides, strict=True)) if access.touches[d]]
    steps.sort()
    if any(inner * extent > outer for (inner, extent, _), (outer, *_) in itertools.pairwise(steps)):
        return None
    return [Side(extent, stride, ((dim, 1),)) for stride, extent, dim in steps]


def _by_array(program: StageProgram, access: Access) -> list[Side] | None:
    """Returns a side for each dimension of the array, or None.

    Each side may be moved along only by dimensions of the nest that are single axes; at most one of them is tiled. A tile that
    extends beyond the end of a reduction must leave the array there.
    """
    nest, tile = program.nest, program.unit_tile
    names = {d.members[0].name: n for n, d in enumerate(nest.dims)}
    if any(len(nest.dims[d].members) > 1 for d, touched in enumerate(access.touches) if touched):
        return None
    found = []
    for position, extent, stride in zip(access.index, access.tensor.shape, access.tensor.strides, strict=True):
        terms = tuple((names[name], coefficient) for name, coefficient in position.terms if name in names)  # others are fixed
        tiled = [(d, c) for d, c in terms if tile[d] > 1]
        if len(tiled) > 1 or any(not 1 <= c <= MOST_STEPS for _, c in tiled):
            return None
        side = Side(extent, stride, terms, position.offset)
        ragged = [d for d, _ in terms if nest.dims[d].is_reduce and nest.extents[d] % tile[d]]
        if any(not side.ends(d, nest.extents[d]) for d in ragged):
            return None
        found.append(side)
    return found


def _described(program: StageProgram, panel: SwizzledPanel, access: Access, sides: list[Side]) -> Bulk | None:
    """Returns the bulk copies of an array with these sides; None if boxes cannot have the panel's layout."""
    tile, size = program.unit_tile, panel.element_bytes
    sides = sorted((s for s in sides if s.extent > 1 or s.terms), key=lambda s: s.stride)
    if not sides or _moving(sides[0], tile) != [(panel.along, 1)]:
        return None
    if not whole_pieces(program, sides[0], size):
        return None
    cluster = program.dispatch.cluster if program.brought_once(tuple(s > 0 for s in panel.steps)) else 1
    share, rest = divmod(tile[panel.side], cluster)
    if rest or (cluster > 1 and share % PERIOD):
        return None
    step = next((c for s in sides for d, c in _moving(s, tile) if d == panel.side), 1)
    most = (MOST_ELEMENTS - 1) // step + 1
    rows = next(r for r in range(min(share, most), 0, -1) if share % r == 0)
    wanted = {panel.along: panel.width, panel.side: rows}
    if not set(wanted) <= {d for s in sides for d, _ in s.terms} and tile[panel.side] > 1:
        return None
    found = description(access.tensor.name, program.atom.in_dtype, sides, wanted, panel.width * size)
    if found is None:
        return None
    return Bulk(panel, found, map_argument(f"map{panel.staging.operand}"), tuple(sides), rows, tile, cluster)


def whole_pieces(program: StageProgram, side: Side, size: int) -> bool:
    """Returns True if boxes start at whole pieces of rows wherever a unit's tile lies, as the hardware requires.

    A boundary tile of a spatial dimension is shifted inwards, so its start counts too.
    """
    starts = [side.start]
    for dim, coefficient in side.terms:
        extent, tile = program.nest.extents[dim], program.unit_tile[dim]
        if tile < extent:
            starts.append(tile * coefficient)
            starts += [] if program.nest.dims[dim].is_reduce or extent % tile == 0 else [(extent - tile) * coefficient]
        if program.dispatch.share is not None and program.dispatch.share[0] == dim:
            starts.append(program.dispatch.share[1] * coefficient)
    return all(start * size % ROW_ALIGNMENT == 0 for start in starts)


def description(tensor: str, dtype: str, sides: Sequence[Side], wanted: Mapping[int, int], swizzle_bytes: int) -> TensorMap | None:
    """Returns the description of an array with these sides, innermost first; None if the hardware's tensor maps cannot express it.

    `wanted`: positions of a box along dimensions of the nest.
    """
    size = ELEMENT_BYTES[STORED_AS.get(dtype, dtype)]
    strides = tuple(s.stride * size for s in sides[1:])
    if not 1 <= len(sides) <= MOST_DIMENSIONS or sides[0].stride != 1 or any(stride % ROW_ALIGNMENT for stride in strides):
        return None
    box, steps = [], []
    for side in sides:
        count, by = next(((wanted[d], c) for d, c in side.terms if wanted.get(d, 1) > 1), (1, 1))
        box.append((count - 1) * by + 1)
        steps.append(by)
    return TensorMap(tensor, dtype, tuple(s.extent for s in sides), strides, tuple(box), tuple(steps), swizzle_bytes)


def map_argument(name: str) -> Buffer:
    """Returns the kernel argument that carries a description."""
    return argument(name, MAP_WORDS, "int64")


def coordinate(side: Side, bases: Sequence[Position], offsets: Mapping[int, Position]) -> Expr:
    """Returns the coordinate of a box along a side, from the start of the unit's tile and the box's offset in it."""
    total: Position = side.start
    for dim, coefficient in side.terms:
        total = plus(total, times(plus(bases[dim], offsets.get(dim, 0)), coefficient))
    return index(total)


def _moving(side: Side, tile: Sequence[int]) -> list[tuple[int, int]]:
    return [(d, c) for d, c in side.terms if tile[d] > 1]
