"""Threads of a block: which points of a unit's tile each lane computes.

The points of a lane along a dimension lie in pieces of neighbours, an access of at most 16 bytes each, and lane after lane takes
one piece before the first one takes its next: neighbouring lanes touch neighbouring addresses. Where a lane's points are no whole
number of the widest pieces, narrower ones follow: 7 are 4, 2 and 1. A program says how many points a lane has and how many lanes
there are, not which is whose; a group of lanes takes a block of neighbours where panels hold what it reads (`roller.layout.lanes`).

Where a tile sticks out of the problem along a spatial dimension it moves back to stay inside, and a piece as well: points computed
twice get the same value twice, so that neither loads nor stores need a guard.
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

Offsets = tuple[int, ...]  # of a point inside a lane's tile, one for each dimension


@dataclass(frozen=True)
class Block:
    """The lanes of a block over the dimensions of a nest."""

    program: StageProgram
    group: int  # neighbouring lanes that run in step
    thread: Expr = field(default_factory=lambda: variable("thread"))
    shared_scope: str = AT_LAUNCH  # of the memory that lanes share
    functions: Mapping[str, str] = field(default_factory=dict)  # by operation, the target's own function of a float32

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """Lanes along each dimension."""
        trips = {lp.dim: lp.trips for lp in self.program.loops if lp.over == "lanes"}
        return tuple(trips.get(d, 1) for d in range(len(self.program.nest.dims)))

    @property
    def each(self) -> int:
        """Lanes that one sub-tile takes."""
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
        """Registers in which a lane sums its results up."""
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
        """The statements that give those variables their values: digits of the thread's number, those inside a group last."""
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
        """The first point of the piece that a point of the lane's tile is in, and the piece's points; of what a window passes over
        beyond the tile, those of the last piece.
        """
        first, found = 0, (0, 1)
        for width in self.pieces[dim]:
            found = first, width
            first += width
            if point < first:
                break
        return found

    def exact(self, dim: int) -> bool:
        """True if whole unit tiles cover the dimension exactly, and none goes beyond."""
        return self.program.covered[dim] == self.program.nest.extents[dim]

    def stays(self, dim: int) -> bool:
        """True for a reduction, of whose points no one may be taken in twice; lanes that hold whole rows know which are theirs."""
        return self.program.nest.dims[dim].is_reduce and not self.program.nest.before

    def base(self, state: State, dim: int) -> Position:
        """Where the unit's tile starts."""
        base, tile, extent = state.bases[dim], self.program.unit_tile[dim], self.program.nest.extents[dim]
        if self.stays(dim) or self.exact(dim):
            return base
        return least(base, max(extent - tile, 0))

    def apart(self, dim: int, point: int) -> int:
        """How far a point of a lane's tile lies from where the pieces of its width begin for that lane."""
        start, _ = self.piece(dim, point)
        return start * self.lanes[dim] + point - start

    def offset(self, dim: int, point: int) -> Position:
        """Where a point of the lane's tile lies in the unit's tile."""
        (first, piece), start = self.piece(dim, point), self._begins(dim, point)
        extent, tile = self.program.nest.extents[dim], self.program.unit_tile[dim]
        if not self.stays(dim) and extent < tile:
            start = least(start, extent - piece)
        return plus(start, point - first)

    def owned(self, dim: int, point: int) -> Expr | None:
        """Whether a point of the lane's tile is its own: one that lies where it moved to stay inside is another lane's, too. None
        where none moves.
        """
        if self.stays(dim) or self.program.nest.extents[dim] >= self.program.unit_tile[dim]:
            return None
        return index(self._begins(dim, point)) <= index(self.offset(dim, point))

    def _begins(self, dim: int, point: int) -> Position:
        """Where the piece of a point begins in the unit's tile, before it moves to stay inside."""
        first, piece = self.piece(dim, point)
        lane: Position = times(self.names[dim], piece) if dim in self.names else 0
        return plus(lane, first * self.lanes[dim])

    def widths(self, offsets: Offsets) -> Offsets:
        """The points of the pieces that a point is in along dimensions with several lanes, 0 along the others: points alike in this
        lie known distances apart.
        """
        return tuple(self.piece(d, o)[1] if d in self.names else 0 for d, o in enumerate(offsets))

    def aligned(self, dim: int, width: int) -> bool:
        """True if pieces of `width` and wider ones start at multiples of it, wherever the tile lies."""
        extent, tile = self.program.nest.extents[dim], self.program.unit_tile[dim]
        return tile % width == 0 and (self.exact(dim) or self.stays(dim) or extent % width == 0)

    def accesses(self, dim: int, width: int) -> dict[int, int]:
        """Accesses along a dimension, of at most `width` points each: the first point of each, and how many they are."""
        found, start = {}, 0
        for piece in self.pieces[dim]:
            for wide in pieces(piece, dividing(piece, width) if self.lanes[dim] > 1 else width):
                found[start] = wide
                start += wide
        return found

    def points(self, dims: tuple[int, ...]) -> Iterator[Offsets]:
        """Offsets of a lane's points along some dimensions, 0 along the others."""
        whole = [range(e) if d in dims else range(1) for d, e in enumerate(self.share)]
        return itertools.product(*whole)
