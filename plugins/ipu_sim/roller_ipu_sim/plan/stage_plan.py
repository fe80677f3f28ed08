"""How a stage's program lies over tiles: which tile works on what in which step, and where each array's elements live.

Its loops become a grid of tiles (`grid`). All tiles do the same at the same time, on boxes of one size: ragged ends are padded,
which takes no time, as the machine waits for the tile with the most work.

Arrays are stored in the order that the program wants: the dimension that an instruction reads along comes last. An element lives
on one tile. Along a dimension that a unit loop walks, each tile keeps the part where its boxes start (a block); tiles that need
the same block share it out among themselves.
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

MOST_STEPS = 256  # of a tile, in which exchanges may differ


class BoxLine(NamedTuple):
    """Boxes of tiles along one stored dimension, of which no serial loop moves any."""

    low: int  # where the first one begins
    reach: int  # elements of each
    parts: int
    step: int  # elements between neighbours
    alone: bool  # no second loop over tiles walks the dimension

    @property
    def high(self) -> int:
        """Where the last one ends."""
        return self.low + (self.parts - 1) * self.step + self.reach


@dataclass(frozen=True)
class ArrayPlan:
    """One array as a program touches it: stored dimensions, box, which tiles share its blocks."""

    access: Access
    number: int
    stored: Stored
    box: tuple[int, ...]  # extents of what a tile needs at a time, the last padded to whole grains
    grid: Grid
    nest: Nest
    tile: tuple[int, ...]  # the unit tile
    placing: bool  # parts may lie in place from the beginning
    word_bytes: int  # of the exchange
    shifts: bool = False  # parts are handed on from tile to tile round a ring
    prefix: str = ""  # of its buffers
    alias: str | None = None  # the buffer in which an earlier stage leaves it just as it is wanted
    piece: int = 0  # elements that a tile has of each box: the same piece as of results, which are dealt out; 0: it has all

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
        """The name of the buffer of what a tile keeps of it, where that does not lie in its box."""
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
        """For each stored dimension its place in the order of the array."""
        inside = sorted(self.dims, key=lambda d: (d.source, -d.divisor))
        return tuple([inside.index(d) for d in self.dims])

    @cached_property
    def digits(self) -> tuple[int, ...]:
        """Extents of the stored dimensions in the order of the array."""
        return tuple([d.extent for d in sorted(self.dims, key=lambda d: (d.source, -d.divisor))])

    def touches(self, dim: int | None) -> bool:
        """True if the array depends on a dimension of the nest."""
        return dim in self.stored.walked

    @cached_property
    def sharers(self) -> int:
        """Tiles that need the same block."""
        return math.prod([lp.parts for lp in self.grid.loops if not self.touches(lp.dim)])

    @cached_property
    def in_place(self) -> bool:
        """True if every tile has what it needs from the beginning."""
        if self.plain:
            return self.placing and (self.sharers == 1 or self.piece > 0) and not self.shifts
        return self.kept and self.sharers == 1 and all(line.parts == 1 or line.step == line.reach for line in self.lines)

    @cached_property
    def kept(self) -> bool:
        """True if a tile's share of the block lies in its box from the beginning, so that only the rest is brought. Of arrays whose
        boxes overlap that of each tile has to lie in its own box, and what boxes contain beyond the array is stored with it: zeros.
        """
        if not self.placing or self.boxes > 1 or self.shifts:
            return False
        return self.plain or (self._covered and not (self.stored.outside and self._beyond))

    @cached_property
    def lines(self) -> tuple[BoxLine, ...]:
        """How boxes of tiles stand along each stored dimension, if at most one loop over tiles walks it; step by step forwards."""
        return tuple([self._line(place) for place in range(len(self.dims))])

    def _line(self, place: int) -> BoxLine:
        dim, grid = self.dims[place], self.grid
        walking = [(lp.parts, c * lp.step) for lp in grid.loops if lp.parts > 1 for n, c in dim.terms if n == lp.dim]
        reach = self.box[place] if dim is self.dims[-1] and dim.plain(self.nest.extents) else dim.reach(self.tile)
        parts, step = walking[0] if len(walking) == 1 else (1, 0)
        return BoxLine(dim.least(self.tile), reach, parts, step, len(walking) < 2)

    @cached_property
    def _covered(self) -> bool:
        """True if boxes cover the array, and what lies between where a box and the next one begin lies in the first of them."""
        if len(self.dims) == 1 and self.sharers > 1:  # parts of a row need not begin at words
            return False
        return all(
            line.alone and line.low <= 0 and 0 <= line.step <= line.reach and line.high >= dim.extent
            for line, dim in zip(self.lines, self.dims, strict=True)
        )

    @cached_property
    def boxes(self) -> int:
        """Different boxes that a tile needs one after another."""
        return math.prod([lp.trips for lp in self.grid.serial if self.touches(lp.dim)])

    @cached_property
    def depth(self) -> int:
        """How many serial loops lie around the last one that changes the box, that one included; 0: none does."""
        return max((n + 1 for n, lp in enumerate(self.grid.serial) if self.touches(lp.dim)), default=0)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each stored dimension of the box."""
        return tuple([math.prod(self.box[place + 1 :]) for place in range(len(self.box))])

    def step(self, dim: int) -> int:
        """Elements of the box between neighbours along a dimension of the nest."""
        return sum([c * stride for d, stride in zip(self.dims, self.strides, strict=True) for n, c in d.terms if n == dim])

    @cached_property
    def begin(self) -> int:
        """Where in the box the first point of a tile lies: not at its start where an index falls as a dimension rises."""
        back = [sum([-c * (self.tile[n] - 1) for n, c in d.terms if c < 0]) for d in self.dims]
        return sum([b * stride for b, stride in zip(back, self.strides, strict=True)])

    @cached_property
    def leaves(self) -> bool:
        """True if a box reaches out of the array somewhere: it is filled first then."""
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
        """Elements of a plain array's block that one of those who share it keeps; the last ones may keep fewer, or none."""
        if self.piece:
            return self.piece
        grain = max(1, GRAIN_BYTES // self.element_bytes)
        return -(-self.elements // (self.sharers * grain)) * grain

    @property
    def held(self) -> int:
        """Elements of each box that a tile has, once it has what it needs."""
        return self.piece or self.elements

    @cached_property
    def holders(self) -> int:
        """Those who keep a part of a plain array's block."""
        return -(-self.elements // self.share)


def _array_plan(program: StageProgram, number: int, grid: Grid, stored: Stored, chip: Machine, prefix: str) -> ArrayPlan:
    """Array `number` of the nest."""
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
    """True if copies of an array are handed on from tile to tile."""
    return any(s.shifts and s.kind == "panel" and s.operand == access.factor for s in program.staged) and access.role == "body"


@dataclass(frozen=True)
class Plan:
    """A stage's program over tiles: its grid, the arrays that it reads in the body and in the epilogue, and its output."""

    program: StageProgram
    grid: Grid
    inputs: tuple[ArrayPlan, ...]
    extra: tuple[ArrayPlan, ...]
    output: ArrayPlan
    parts: int  # tiles that add up parts of the same results
    chip: Machine
    prefix: str = ""  # of its buffers

    def buffer(self, name: str) -> str:
        """The name of one of the buffers of its results."""
        return self.prefix + name

    @property
    def nest(self) -> Nest:
        """The stage's loop nest."""
        return self.program.nest

    @cached_property
    def countless(self) -> bool:
        """True if exchanges differ in more steps than are told apart. Such programs are refused; they are rated by their first
        exchanges, so that those with fewer steps can be found from them.
        """
        return self.grid.steps > MOST_STEPS and bool(uneven(self.arrays))

    @property
    def arrays(self) -> Iterator[ArrayPlan]:
        """Everything that is brought to tiles."""
        yield from [a for a in (*self.inputs, *self.extra) if a.access.tensor.elements]

    @property
    def idle(self) -> bool:
        """True if there are no results to compute."""
        return not self.output.access.tensor.elements

    @cached_property
    def shifting(self) -> tuple[ArrayPlan, ...]:
        """The arrays whose parts are handed on."""
        return tuple([a for a in self.arrays if a.shifts])

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """The axes of the grid along which parts are handed on: where a tile stands on them says with which part it begins."""
        axes = range(len(self.grid.loops))
        return tuple([n for n in axes for a in self.shifting if not a.touches(self.grid.loops[n].dim)])

    @cached_property
    def pieces(self) -> Pieces:
        """How the parts of a unit tile's results are dealt out to those who add them up."""
        size = ELEMENT_BYTES[self.nest.stage.body.dtype]
        beside = [a.element_bytes for a in self.extra if _lies_like(a, self.output)]
        return pieces_of(self._axes, self.parts, max(1, GRAIN_BYTES // min([size, *beside])), size)

    @cached_property
    def _axes(self) -> tuple[Axis, ...]:
        """Loops over results in the order in which they lie. A coordinate follows loops one by one."""
        epilogue, output = self.nest.stage.epilogue, self.output
        results = [(d.terms[0][0], extent) for d, extent in zip(output.dims, output.box, strict=True)]
        loads = [self.array_of(load) for load in loads_in(epilogue)] if epilogue is not None else []
        if epilogue is not None and coordinates_in(epilogue):
            walked = {dim for dim, _ in results}
            return (*[(dim, 1) for dim in self.nest.spatial if dim not in walked], *results)
        return axes_of(results, [[array.step(dim) for dim, _ in results] for array in (output, *loads)])

    def array_of(self, load: Load) -> ArrayPlan:
        """The array that a load reads."""
        return next(a for a in (*self.inputs, *self.extra) if a.access.tensor.name == load.tensor and a.access.index == load.index)

    @cached_property
    def empty(self) -> bool:
        """True if the reduction has nothing to add up."""
        return any(self.nest.extents[d] == 0 for d in self.nest.reduce)


def _lies_like(array: ArrayPlan, output: ArrayPlan) -> bool:
    """True if an array's boxes lie like those of results, element by element."""
    return array.placing and array.plain and output.plain and (array.dims, array.box) == (output.dims, output.box)


def uneven(arrays: Iterable[ArrayPlan]) -> list[ArrayPlan]:
    """Those whose exchanges differ from step to step: boxes that overlap are cut where the array ends."""
    return [a for a in arrays if not a.in_place and not a.plain and a.boxes > 1]


def plan_of(program: StageProgram, chip: Machine, prefix: str = "") -> Plan | None:
    """The plan of a program on a chip; None where an array's index is more than tiles can be cut from."""
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
