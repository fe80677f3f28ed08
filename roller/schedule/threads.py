"""Threads of a block: which points of a unit's tile each lane computes.

The points of a lane along a dimension lie in pieces of neighbours, one 16-byte access each, and lane after lane takes one piece
before the first one takes its next: neighbouring lanes touch neighbouring addresses. A program says how many points a lane has and
how many lanes there are, not which is whose.

Where a tile sticks out of the problem along a spatial dimension it moves back to stay inside, and a piece as well: points computed
twice get the same value twice, so that neither loads nor stores need a guard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tvm import tirx

from roller.banks import WIDEST_ACCESS
from roller.program import StageProgram
from roller.schedule.tir import Expr, index, least, plus, times, variable
from roller.schedule.walk import Position, State

Offsets = tuple[int, ...]  # of a point inside a lane's tile, one for each dimension


@dataclass(frozen=True)
class Block:
    """The lanes of a block over the dimensions of a nest."""

    program: StageProgram
    group: int  # neighbouring lanes that run in step
    thread: Expr = field(default_factory=lambda: variable("thread"))

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

    @cached_property
    def outputs(self) -> int:
        """Results that a lane has accumulators for."""
        return math.prod(self.share[d] for d in self.program.nest.spatial)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Dimensions over which lanes are spread, the one along which neighbouring lanes lie last: reductions, then the output's
        contiguous dimension.
        """
        nest = self.program.nest
        spread = [d for d in range(len(nest.dims)) if self.lanes[d] > 1]
        return tuple(sorted(spread, key=lambda d: (nest.dims[d].is_reduce, nest.output.strides[d] == 1, d)))

    @cached_property
    def names(self) -> dict[int, Expr]:
        """A variable for each dimension over which lanes are spread: the lane's number along it."""
        return {d: variable(f"lane{d}") for d in self.order}

    def bindings(self) -> list[Expr]:
        """The statements that give those variables their values."""
        found, rest = [], self.thread if self.each == 1 else tirx.floordiv(self.thread, index(self.each))
        for d in reversed(self.order):
            last = d == self.order[0]
            found.append(tirx.Bind(self.names[d], rest if last else tirx.floormod(rest, index(self.lanes[d]))))
            rest = tirx.floordiv(rest, index(self.lanes[d]))
        return found

    @cached_property
    def pieces(self) -> tuple[int, ...]:
        """Neighbouring points that a lane has along each dimension: a power of two that divides its tile."""
        return tuple(self._piece(d) for d in range(len(self.program.nest.dims)))

    def _piece(self, dim: int) -> int:
        nest, inner = self.program.nest, self.program.inner[dim]
        sizes = [a.element_bytes for a in nest.accesses if a.strides[dim] == 1]
        widest = max(1, WIDEST_ACCESS // min(sizes, default=nest.accumulator_bytes))
        found = 1
        while found * 2 <= widest and inner % (found * 2) == 0 and found * 2 <= max(nest.extents[dim], 1):
            found *= 2
        return found

    def exact(self, dim: int) -> bool:
        """True if whole unit tiles cover the dimension exactly."""
        tile = self.program.unit_tile[dim]
        return tile == 0 or self.program.nest.extents[dim] % tile == 0

    def base(self, state: State, dim: int) -> Position:
        """Where the unit's tile starts."""
        base, tile, extent = state.bases[dim], self.program.unit_tile[dim], self.program.nest.extents[dim]
        if self.program.nest.dims[dim].is_reduce or self.exact(dim):
            return base
        return least(base, max(extent - tile, 0))

    def apart(self, dim: int, point: int) -> int:
        """How far a point of the lane's tile lies from its first one."""
        whole, within = divmod(point, self.pieces[dim])
        return whole * self.pieces[dim] * self.lanes[dim] + within

    def offset(self, dim: int, point: int) -> Position:
        """Where a point of the lane's tile lies in the unit's tile."""
        piece = self.pieces[dim]
        within = point % piece
        lane: Position = times(self.names[dim], piece) if dim in self.names else 0
        start = plus(lane, self.apart(dim, point) - within)
        extent, tile = self.program.nest.extents[dim], self.program.unit_tile[dim]
        if not self.program.nest.dims[dim].is_reduce and extent < tile:
            start = least(start, extent - piece)
        return plus(start, within)

    def aligned(self, dim: int, width: int) -> bool:
        """True if pieces start at multiples of `width`, wherever the tile lies."""
        nest, program = self.program.nest, self.program
        extent, tile = nest.extents[dim], program.unit_tile[dim]
        starts = tile % width == 0 and (self.exact(dim) or nest.dims[dim].is_reduce or extent % width == 0)
        return self.pieces[dim] % width == 0 and starts and program.inner[dim] % width == 0

    def points(self, dims: tuple[int, ...]) -> Iterator[Offsets]:
        """Offsets of a lane's points along some dimensions, 0 along the others."""
        whole = [range(e) if d in dims else range(1) for d, e in enumerate(self.share)]
        return itertools.product(*whole)
