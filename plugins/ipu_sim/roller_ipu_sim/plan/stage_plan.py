"""Mapping of a stage's program to tiles: the work of each tile in each step, and the placement of each array's elements.

The loops become a grid of tiles (`grid`). All tiles do the same work at the same time, on boxes of one size. Remainders are padded,
which takes no time, as the machine waits for the tile with the most work.

Arrays are stored in the order that the program requires: the dimension along which an instruction reads comes last. An element is
stored on one tile. Along a dimension that a unit loop walks, each tile owns the part where its boxes start (a block). Tiles that
need the same block divide it among themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from roller.plugin import ELEMENT_BYTES, Access, Load, Nest, StageProgram
from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.plan.bodies import coordinates_in, loads_in
from roller_ipu_sim.plan.grid import Grid, grid_of
from roller_ipu_sim.plan.pieces import Axis, Pieces, axes_of, pieces_of
from roller_ipu_sim.plan.stored import GRAIN_BYTES, ArrayDim, Stored, stored_of

MOST_STEPS = 256  # max steps of a tile in which exchanges may differ


class BoxLine(NamedTuple):
    """Boxes of tiles along one stored dimension that no serial loop moves."""

    low: int  # start of the first one
    reach: int  # elements of each
    parts: int
    step: int  # elements between neighbours
    alone: bool  # no second loop over tiles walks the dimension

    @property
    def high(self) -> int:
        """The end of the last one."""
        return self.low + (self.parts - 1) * self.step + self.reach


@dataclass(frozen=True)
class ArrayPlan:
    """One array in a program's access: stored dimensions, box, and the tiles that share its blocks."""

    access: Access
    number: int
    stored: Stored
    box: tuple[int, ...]  # extents of a tile's data for one step, the last padded to whole grains
    grid: Grid
    nest: Nest
    tile: tuple[int, ...]  # the unit tile
    placing: bool  # parts may initially be stored in place
    word_bytes: int  # word size of the exchange
    shifts: bool = False  # parts rotate around a ring of tiles
    prefix: str = ""  # of its buffers
    alias: str | None = None  # the buffer in which an earlier stage leaves it exactly as required
    piece: int = 0  # elements that a tile has of each box: its piece of the results, which are divided; 0: it has all

    @property
    def dims(self) -> tuple[ArrayDim, ...]:
        """Its stored dimensions."""
        return self.stored.dims

    @property
    def plain(self) -> bool:
        """True if boxes of different tiles and steps do not overlap, and leave no gaps: every dimension is one of the nest's."""
        return self.stored.plain

    @property
    def box_buffer(self) -> str:
        """The name of the buffer of its boxes."""
        return self.alias or f"{self.prefix}in{self.number}"

    @property
    def home_buffer(self) -> str:
        """The name of the buffer of a tile's own part, if that is not stored in its box."""
        return f"{self.prefix}home{self.number}"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.access.tensor.dtype]

    @cached_property
    def elements(self) -> int:
        """Elements of the box."""
        return math.prod(self.box)

    @cached_property
    def merged(self) -> tuple[int, ...]:
        """The array's shape with neighbouring dimensions merged, in the order of the array."""
        found: dict[int, int] = {}
        for dim in sorted(self.dims, key=lambda d: d.source):
            found[dim.source] = found.get(dim.source, 1) * dim.extent
        return tuple(found.values())

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The index of each stored dimension in the order of the array."""
        inside = sorted(self.dims, key=lambda d: (d.source, -d.divisor))
        return tuple([inside.index(d) for d in self.dims])

    @cached_property
    def digits(self) -> tuple[int, ...]:
        """Extents of the stored dimensions in the order of the array."""
        return tuple([d.extent for d in sorted(self.dims, key=lambda d: (d.source, -d.divisor))])

    def touches(self, dim: int | None) -> bool:
        """Returns True if the array depends on a dimension of the nest."""
        return dim in self.stored.walked

    @cached_property
    def sharers(self) -> int:
        """The number of tiles that need the same block."""
        return math.prod([lp.parts for lp in self.grid.loops if not self.touches(lp.dim)])

    @cached_property
    def in_place(self) -> bool:
        """True if every tile initially has the data that it needs."""
        if self.plain:
            return self.placing and (self.sharers == 1 or self.piece > 0) and not self.shifts
        return self.kept and self.sharers == 1 and all(line.parts == 1 or line.step == line.reach for line in self.lines)

    @cached_property
    def kept(self) -> bool:
        """True if a tile's share of the block is initially stored in its box, so that only the rest is brought.

        For arrays with overlapping boxes, each tile's share must lie in its own box; zeros beyond the array are stored with the
        box.
        """
        if not self.placing or self.boxes > 1 or self.shifts:
            return False
        return self.plain or (self._covered and not (self.stored.outside and self._beyond))

    @cached_property
    def lines(self) -> tuple[BoxLine, ...]:
        """Boxes of tiles along each stored dimension, if at most one loop over tiles walks it, in ascending steps."""
        return tuple([self._line(place) for place in range(len(self.dims))])

    def _line(self, place: int) -> BoxLine:
        dim, grid = self.dims[place], self.grid
        walking = [(lp.parts, c * lp.step) for lp in grid.loops if lp.parts > 1 for n, c in dim.terms if n == lp.dim]
        reach = self.box[place] if dim is self.dims[-1] and dim.plain(self.nest.extents) else dim.reach(self.tile)
        parts, step = walking[0] if len(walking) == 1 else (1, 0)
        return BoxLine(dim.least(self.tile), reach, parts, step, len(walking) < 2)

    @cached_property
    def _covered(self) -> bool:
        """True if boxes cover the array, and the data between the starts of two neighbouring boxes lies in the first of them."""
        if len(self.dims) == 1 and self.sharers > 1:  # parts of a row need not begin at words
            return False
        return all(
            line.alone and line.low <= 0 and 0 <= line.step <= line.reach and line.high >= dim.extent
            for line, dim in zip(self.lines, self.dims, strict=True)
        )

    @cached_property
    def boxes(self) -> int:
        """The number of different boxes that a tile needs in sequence."""
        return math.prod([lp.trips for lp in self.grid.serial if self.touches(lp.dim)])

    @cached_property
    def depth(self) -> int:
        """The number of serial loops around the last one that changes the box, that one included; 0: none does."""
        return max((n + 1 for n, lp in enumerate(self.grid.serial) if self.touches(lp.dim)), default=0)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each stored dimension of the box."""
        return tuple([math.prod(self.box[place + 1 :]) for place in range(len(self.box))])

    def step(self, dim: int) -> int:
        """Returns the elements of the box between neighbours along a dimension of the nest."""
        return sum([c * stride for d, stride in zip(self.dims, self.strides, strict=True) for n, c in d.terms if n == dim])

    @cached_property
    def begin(self) -> int:
        """The offset of a tile's first point in the box: not 0 where an index falls as a dimension rises."""
        back = [sum([-c * (self.tile[n] - 1) for n, c in d.terms if c < 0]) for d in self.dims]
        return sum([b * stride for b, stride in zip(back, self.strides, strict=True)])

    @cached_property
    def leaves(self) -> bool:
        """True if a box exceeds the array somewhere: it is filled first then."""
        return not (self.plain or self.kept) and self._beyond

    @cached_property
    def _beyond(self) -> bool:
        for dim in self.dims:
            far = dim.least(self.tile) + sum([c * self.grid.last(n) for n, c in dim.terms if c > 0]) + dim.reach(self.tile)
            near = dim.least(self.tile) + sum([c * self.grid.last(n) for n, c in dim.terms if c < 0])
            if near < 0 or far > dim.extent:
                return True
        return False

    @cached_property
    def share(self) -> int:
        """Elements of a plain array's block that one of its sharers owns; the last ones may own fewer, or none."""
        if self.piece:
            return self.piece
        grain = max(1, GRAIN_BYTES // self.element_bytes)
        return -(-self.elements // (self.sharers * grain)) * grain

    @property
    def held(self) -> int:
        """Elements of each box that a tile has, once all its data has arrived."""
        return self.piece or self.elements

    @cached_property
    def holders(self) -> int:
        """The number of tiles that own a part of a plain array's block."""
        return -(-self.elements // self.share)


def _array_plan(program: StageProgram, number: int, grid: Grid, stored: Stored, chip: Machine, prefix: str) -> ArrayPlan:
    """Returns array `number` of the nest."""
    nest, access = program.nest, program.nest.accesses[number]
    tile = program.unit_tile
    box = [d.reach(tile) for d in stored.dims]
    if box:
        grain = max(1, GRAIN_BYTES // ELEMENT_BYTES[access.tensor.dtype])
        box[-1] = -(-box[-1] // grain) * grain
    return ArrayPlan(
        access,
        number,
        stored,
        tuple(box),
        grid,
        nest,
        tile,
        chip.placing.in_place,
        chip.exchange.word_bytes,
        _shifts(program, access),
        prefix,
    )


def _shifts(program: StageProgram, access: Access) -> bool:
    """Returns True if copies of an array rotate from tile to tile."""
    return any(s.shifts and s.kind == "panel" and s.operand == access.factor for s in program.staged) and access.role == "body"


@dataclass(frozen=True)
class Plan:
    """A stage's program over tiles: its grid, the arrays that it reads in the body and in the epilogue, and its output."""

    program: StageProgram
    grid: Grid
    inputs: tuple[ArrayPlan, ...]
    extra: tuple[ArrayPlan, ...]
    output: ArrayPlan
    parts: int  # tiles that compute partial sums of the same results (split-K)
    chip: Machine
    prefix: str = ""  # of its buffers

    def buffer(self, name: str) -> str:
        """Returns the name of one of the buffers of its results."""
        return self.prefix + name

    @property
    def nest(self) -> Nest:
        """The stage's loop nest."""
        return self.program.nest

    @cached_property
    def countless(self) -> bool:
        """True if exchanges differ in more steps than `MOST_STEPS`.

        Such programs are refused. They are rated by their first exchanges, so that the search finds those with fewer steps from
        them.
        """
        return self.grid.steps > MOST_STEPS and bool(uneven(self.arrays))

    @property
    def arrays(self) -> Iterator[ArrayPlan]:
        """All arrays that are brought to tiles."""
        yield from [a for a in (*self.inputs, *self.extra) if a.access.tensor.elements]

    @property
    def idle(self) -> bool:
        """True if there are no results to compute."""
        return not self.output.access.tensor.elements

    @cached_property
    def shifting(self) -> tuple[ArrayPlan, ...]:
        """The arrays whose parts rotate."""
        return tuple([a for a in self.arrays if a.shifts])

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """The axes of the grid along which parts rotate: a tile's position on them determines its first part."""
        axes = range(len(self.grid.loops))
        return tuple([n for n in axes for a in self.shifting if not a.touches(self.grid.loops[n].dim)])

    @cached_property
    def pieces(self) -> Pieces:
        """The pieces of a unit tile's partial results, for the tiles that add them up."""
        size = ELEMENT_BYTES[self.nest.stage.body.dtype]
        beside = [a.element_bytes for a in self.extra if _lies_like(a, self.output)]
        return pieces_of(self._axes, self.parts, max(1, GRAIN_BYTES // min([size, *beside])), size)

    @cached_property
    def _axes(self) -> tuple[Axis, ...]:
        """Loops over results in storage order. A coordinate depends on loops one by one."""
        epilogue, output = self.nest.stage.epilogue, self.output
        results = [(d.terms[0][0], extent) for d, extent in zip(output.dims, output.box, strict=True)]
        loads = [self.array_of(load) for load in loads_in(epilogue)] if epilogue is not None else []
        if epilogue is not None and coordinates_in(epilogue):
            walked = {dim for dim, _ in results}
            return (*[(dim, 1) for dim in self.nest.spatial if dim not in walked], *results)
        return axes_of(results, [[array.step(dim) for dim, _ in results] for array in (output, *loads)])

    def array_of(self, load: Load) -> ArrayPlan:
        """Returns the array that a load reads."""
        return next(a for a in (*self.inputs, *self.extra) if a.access.tensor.name == load.tensor and a.access.index == load.index)

    @cached_property
    def empty(self) -> bool:
        """True if the reduction is empty."""
        return any(self.nest.extents[d] == 0 for d in self.nest.reduce)


def _lies_like(array: ArrayPlan, output: ArrayPlan) -> bool:
    """Returns True if an array's boxes have the layout of the results, element by element."""
    return array.placing and array.plain and output.plain and (array.dims, array.box) == (output.dims, output.box)


def uneven(arrays: Iterable[ArrayPlan]) -> list[ArrayPlan]:
    """Returns the arrays whose exchanges differ from step to step: overlapping boxes are cut at the end of the array."""
    return [a for a in arrays if not a.in_place and not a.plain and a.boxes > 1]


def plan_of(program: StageProgram, chip: Machine, prefix: str = "") -> Plan | None:
    """Returns the plan of a program on a chip; None where an array's index is too complex to be divided over tiles."""
    nest, grid = program.nest, grid_of(program, chip.tiles)
    first = len(nest.inputs)
    arrays = []
    for number, stored in enumerate(stored_of(program)):
        if stored is None:
            return None
        arrays.append(_array_plan(program, number, grid, stored, chip, prefix))
    parts = math.prod([lp.parts for lp in grid.loops if nest.dims[lp.dim].is_reduce])
    plan = Plan(program, grid, tuple(arrays[:first]), tuple(arrays[first:-1]), arrays[-1], parts, chip, prefix)
    if parts == 1 or not any(_lies_like(a, plan.output) for a in plan.extra):
        return plan
    extra = [replace(a, piece=plan.pieces.size) if _lies_like(a, plan.output) else a for a in plan.extra]
    return replace(plan, extra=tuple(extra))


__all__ = ["GRAIN_BYTES", "MOST_STEPS", "ArrayDim", "ArrayPlan", "BoxLine", "Plan", "plan_of", "uneven"]
