"""Threads of a block: the points of a unit's tile that each lane computes.

The points of a lane along a dimension lie in pieces of neighbours, one access of at most 16 bytes each. All lanes take one piece
before the first one takes its next, so neighbouring lanes access neighbouring addresses. If the widest pieces do not divide a
lane's points, narrower ones follow: 7 are 4, 2 and 1. A program gives the number of points per lane and the number of lanes, not
their assignment. If panels hold a group's operands, the group takes a block of neighbours (`roller.layout.lanes`).

A boundary tile along a spatial dimension is shifted inwards to overlap its neighbour, and so is a piece. Points computed twice get
the same value twice, so neither loads nor stores need a guard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tvm import tirx

from roller.layout.banks import dividing, pieces
from roller.layout.lanes import lane_digits, lane_order, lane_pieces
from roller.lowering.tir.builder import AT_LAUNCH, Expr, index, least, plus, times, variable
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram

REGISTER_BYTES = 4
SHARED_ALIGNMENT = 128  # TVM places every buffer of a block's shared memory at a multiple of so many bytes
Offsets = tuple[int, ...]  # offsets of a point in a lane's tile, one for each dimension


@dataclass(frozen=True)
class Block:
    """The lanes of a block over the dimensions of a nest."""

    program: StageProgram
    group: int  # neighbouring lanes that run in step
    thread: Expr = field(default_factory=lambda: variable("thread"))
    shared_scope: str = AT_LAUNCH  # of a block's shared memory
    functions: Mapping[str, str] = field(default_factory=dict)  # by operation, the target's own function of a float32

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """Lanes along each dimension."""
        trips = {lp.dim: lp.trips for lp in self.program.loops if lp.over == "lanes"}
        return tuple(trips.get(d, 1) for d in range(len(self.program.nest.dims)))

    @property
    def each(self) -> int:
        """Lanes that compute one sub-tile."""
        return 1

    @property
    def threads(self) -> int:
        """Lanes of the block."""
        return math.prod(self.lanes) * self.each

    @cached_property
    def share(self) -> tuple[int, ...]:
        """Points of one lane along each dimension."""
        return self.program.inner

    @property
    def accumulators(self) -> int:
        """Registers for a lane's accumulators."""
        return self.outputs * -(-self.program.nest.accumulator_bytes // REGISTER_BYTES)

    @cached_property
    def outputs(self) -> int:
        """Results that a lane has accumulators for."""
        return math.prod(self.share[d] for d in self.program.nest.spatial)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Dimensions over which lanes are spread, the one along which neighbouring lanes lie last."""
        return lane_order(self.program)

    @cached_property
    def names(self) -> dict[int, Expr]:
        """A variable for each dimension over which lanes are spread: the lane's number along it."""
        return {d: variable(f"lane{d}") for d in self.order}

    def bindings(self) -> list[Expr]:
        """Returns the bindings of those variables: digits of the thread's number, those inside a lane group last."""
        digits = lane_digits(self.program, self.group)
        rest = self.thread if self.each == 1 else tirx.floordiv(self.thread, index(self.each))
        values: dict[int, Position] = {}
        for number, (dim, count, step) in reversed(list(enumerate(digits))):
            digit = rest if number == 0 else tirx.floormod(rest, index(count))
            values[dim] = plus(values.get(dim, 0), times(digit, step))
            rest = tirx.floordiv(rest, index(count))
        return [tirx.Bind(self.names[dim], index(value)) for dim, value in values.items()]

    @cached_property
    def pieces(self) -> tuple[tuple[int, ...], ...]:
        """The pieces of neighbouring points that a lane has along each dimension, the widest ones first."""
        return tuple(self._pieces(d) for d in range(len(self.program.nest.dims)))

    def _pieces(self, dim: int) -> tuple[int, ...]:
        return lane_pieces(self.program, dim)

    def piece(self, dim: int, point: int) -> tuple[int, int]:
        """Returns the first point of the piece that contains a point of the lane's tile, and the piece's width.

        For points of a window beyond the tile, it returns the last piece.
        """
        first, found = 0, (0, 1)
        for width in self.pieces[dim]:
            found = first, width
            first += width
            if point < first:
                break
        return found

    def exact(self, dim: int) -> bool:
        """Returns True if whole unit tiles cover the dimension exactly, and none goes beyond."""
        return self.program.covered[dim] == self.program.nest.extents[dim]

    def stays(self, dim: int) -> bool:
        """Returns True for a reduction, whose points count once; lanes with whole rows test ownership instead (`owned`)."""
        return self.program.nest.dims[dim].is_reduce and not self.program.nest.before

    def base(self, state: State, dim: int) -> Position:
        """Returns the start of the unit's tile."""
        base, tile, extent = state.bases[dim], self.program.unit_tile[dim], self.program.nest.extents[dim]
        if self.stays(dim) or self.exact(dim):
            return base
        return least(base, max(extent - tile, 0))

    def apart(self, dim: int, point: int) -> int:
        """Returns the offset of a point of a lane's tile from the start of the lane's pieces of that width."""
        start, _ = self.piece(dim, point)
        return start * self.lanes[dim] + point - start

    def offset(self, dim: int, point: int) -> Position:
        """Returns the position of a point of the lane's tile in the unit's tile."""
        (first, piece), start = self.piece(dim, point), self._begins(dim, point)
        extent, tile = self.program.nest.extents[dim], self.program.unit_tile[dim]
        if not self.stays(dim) and extent < tile:
            start = least(start, extent - piece)
        return plus(start, point - first)

    def owned(self, dim: int, point: int) -> Expr | None:
        """Returns the test that a point of the lane's tile belongs to this lane; None if no points are shifted.

        A point that was shifted inwards also belongs to another lane.
        """
        if self.stays(dim) or self.program.nest.extents[dim] >= self.program.unit_tile[dim]:
            return None
        return index(self._begins(dim, point)) <= index(self.offset(dim, point))

    def _begins(self, dim: int, point: int) -> Position:
        """Returns the start of a point's piece in the unit's tile, before it is shifted inwards."""
        first, piece = self.piece(dim, point)
        lane: Position = times(self.names[dim], piece) if dim in self.names else 0
        return plus(lane, first * self.lanes[dim])

    def widths(self, offsets: Offsets) -> Offsets:
        """Returns the widths of a point's pieces along dimensions with several lanes, 0 along the others.

        Points with equal widths lie constant distances apart.
        """
        return tuple(self.piece(d, o)[1] if d in self.names else 0 for d, o in enumerate(offsets))

    def aligned(self, dim: int, width: int) -> bool:
        """Returns True if pieces of `width` and wider ones start at multiples of it, wherever the tile lies."""
        extent, tile = self.program.nest.extents[dim], self.program.unit_tile[dim]
        return tile % width == 0 and (self.exact(dim) or self.stays(dim) or extent % width == 0)

    def accesses(self, dim: int, width: int) -> dict[int, int]:
        """Returns the accesses along a dimension, of at most `width` points each: the first point and the width of each."""
        found, start = {}, 0
        for piece in self.pieces[dim]:
            for wide in pieces(piece, dividing(piece, width) if self.lanes[dim] > 1 else width):
                found[start] = wide
                start += wide
        return found

    def points(self, dims: tuple[int, ...]) -> Iterator[Offsets]:
        """Yields offsets of a lane's points along some dimensions, 0 along the others."""
        whole = [range(e) if d in dims else range(1) for d, e in enumerate(self.share)]
        return itertools.product(*whole)


def in_shared(size: int) -> int:
    """Returns the bytes that a buffer of this size takes in a block's shared memory."""
    return -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
