"""Epilogue stores staged through shared memory (TMA store): each lane group writes rows to its own buffer; bulk copies store them.

The copies to the array are asynchronous. Direct stores by a lane would touch as many rows as a matrix atom has, a few bytes of
each. The copy omits elements beyond the array, so remainders need no guards. Pieces of 16 bytes are XOR-swizzled from row to row,
as in the panels that atoms read (`roller.lowering.specialised.swizzle`): lanes in different rows have no bank conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tvm import tirx

from roller.ir.expr import ELEMENT_BYTES
from roller.layout.banks import WIDEST_ACCESS
from roller.lowering.simt.machine import Departures, PanelUnit, TensorMap
from roller.lowering.simt.matrix_atoms import GroupBlock
from roller.lowering.simt.threads import Offsets
from roller.lowering.specialised.bulk_copies import Side, by_steps, coordinate, description, map_argument, whole_pieces
from roller.lowering.specialised.swizzle import WIDEST_ROW, changed_places
from roller.lowering.tir.builder import Buffer, Expr, Stmt, index, plus, pointer, sequence, variable, when
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram

MAP_NAME = "map_out"
MOST_PLACES = 2  # double buffering: rows are written to one buffer while the other is copied out


@dataclass(frozen=True)
class Run:
    """Neighbouring points of a lane in a box: offset in bytes along the row and in rows, relative to the lane's first point."""

    along: int
    down: int
    points: tuple[Offsets, ...]


@dataclass(frozen=True)
class StagedStore:
    """One box: the points of a lane that it holds, and its corner in the group's tile, by dimensions of the nest."""

    runs: tuple[Run, ...]
    corner: Mapping[int, int]


@dataclass(frozen=True)
class StoreBuffer:
    """The staged epilogue store of a block: the array's description, the argument that carries it, and the array's sides.

    `width`: elements of a row. `places`: buffers of each lane group. `start`: offset of the first one, in bytes of the block's
    shared memory.
    """

    block: GroupBlock
    unit: PanelUnit
    departures: Departures
    map: TensorMap
    argument: Buffer
    sides: tuple[Side, ...]
    width: int
    places: int
    start: int
    first: Expr = field(default_factory=lambda: variable("laid"))
    along: Expr = field(default_factory=lambda: variable("along"))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * ELEMENT_BYTES[self.map.dtype]

    @property
    def place_bytes(self) -> int:
        """Bytes of one buffer."""
        return self.unit.rows * self.row_bytes

    @property
    def bytes(self) -> int:
        """Bytes of all buffers of a block."""
        return self.block.threads // self.block.group * self.places * self.place_bytes

    # --- statements of lanes --------------------------------------------------------------------------------------------

    def begin(self) -> list[Stmt]:
        """Binds, once, the address of the lane's first row of results in the first buffer."""
        first = self._place(0) + self.row * index(self.row_bytes)
        return [tirx.Bind(self.first, first), tirx.Bind(self.along, self._lane_offset())]

    def lay(self, arena: Buffer, number: int, run: Run, values: Sequence[Expr]) -> Stmt:
        """Writes a run of neighbouring values to the buffer of the box with this number."""
        changed = tirx.bitwise_xor(index(run.along), self.along)
        fixed = number % self.places * self.place_bytes + run.down * self.row_bytes
        return self.departures.lay(self._address(arena, self.first + changed + index(fixed)), values)

    def leave(self, arena: Buffer, number: int, laid: Sequence[Stmt], corner: Sequence[Expr]) -> list[Stmt]:
        """Stores the box with this number: waits until its buffer has been copied out, writes the rows, starts the copy."""
        parts = self.departures
        start = self._address(arena, self._place(number % self.places))
        started = [parts.leave(start, pointer(self.argument, 0), corner), parts.close()]
        free = self._by_one([parts.wait(self.places - 1)])
        return [free, parts.together(), *laid, parts.visible(), parts.together(), self._by_one(started)]

    def end(self) -> list[Stmt]:
        """Waits until the last copies have read the block's shared memory."""
        return [self._by_one([self.departures.wait(0)])]

    def _by_one(self, statements: list[Stmt]) -> Stmt:
        one = tirx.EQ(tirx.floormod(self.block.thread, index(self.block.group)), index(0))
        return when(one, sequence(statements))

    # --- addresses ------------------------------------------------------------------------------------------------------

    @cached_property
    def row(self) -> Expr:
        """Returns the lane's first row among those of its lane group."""
        return tirx.floormod(self.unit.first("m", self.block.member), index(self.unit.rows))

    def _lane_offset(self) -> Expr:
        """Returns the bytes along a row to the lane's first column, with the swizzle of its row applied."""
        along = self.unit.first("n", self.block.member) * index(ELEMENT_BYTES[self.map.dtype])
        return tirx.bitwise_xor(along, changed_places(self.row * index(self.row_bytes), self.row_bytes, 1))

    def _place(self, number: int) -> Expr:
        """Returns the byte offset of a lane group's buffer in the block's shared memory."""
        team = tirx.floordiv(self.block.thread, index(self.block.group))
        return team * index(self.places * self.place_bytes) + index(self.start + number * self.place_bytes)

    def corner(self, state: State, box: StagedStore, part: Position) -> list[Expr]:
        """Returns the coordinates of a box in the array."""
        block, extra = self.block, {}
        for dim in range(len(block.program.nest.dims)):
            extra[dim] = plus(block.corner(dim), box.corner.get(dim, 0))
            if block.roles.get(dim) == "m":
                extra[dim] = plus(extra[dim], self.unit.first("m", block.member) - self.row)
        bases = [*(block.base(state, d) for d in range(len(block.program.nest.dims))), part]
        return [coordinate(side, bases, extra) for side in self.sides]

    def boxes(self, points: Sequence[Offsets]) -> Iterator[StagedStore]:
        """Yields a group's boxes, each with the points that a lane has in it."""
        found: dict[tuple[tuple[int, int], ...], list[tuple[int, int, Offsets]]] = {}
        for point in points:
            corner, along, down = self._spot(point)
            found.setdefault(tuple(sorted(corner.items())), []).append((down, along, point))
        run = run_of(self.unit)
        size = ELEMENT_BYTES[self.map.dtype]
        for key, members in found.items():
            members.sort()
            period = WIDEST_ROW // WIDEST_ACCESS  # rows after which the swizzle repeats
            assert all(down % period == 0 for down, *_ in members), "a lane's rows change places alike"
            runs = [members[n : n + run] for n in range(0, len(members), run)]
            yield StagedStore(tuple(Run(r[0][1] * size, r[0][0], tuple(p for *_, p in r)) for r in runs), dict(key))

    def _spot(self, point: Offsets) -> tuple[dict[int, int], int, int]:
        """Returns the box of a lane's point, and its column and row relative to the lane's first ones in that box."""
        block, corner, along, down = self.block, {}, 0, 0
        for dim, offset in enumerate(point):
            role = block.roles.get(dim)
            if role is None:
                corner[dim] = offset
                continue
            places = self.unit.results[role]
            atom, number = divmod(offset, len(places))
            at = atom * block.extent(role) + places[number]
            whole = self.width if role == "n" else block.extent(role)
            corner[dim] = at // whole * whole
            along, down = (at % whole, down) if role == "n" else (along, at % whole)
        return corner, along, down

    def _address(self, arena: Buffer, offset: Expr) -> Expr:
        """Returns the address of a byte offset in the block's shared memory."""
        return pointer(arena, tirx.floordiv(offset, index(ELEMENT_BYTES[str(arena.dtype)])), True)


def run_of(unit: PanelUnit) -> int:
    """Returns the number of neighbouring columns that a lane has."""
    places = unit.results["n"]
    return next(n for n in (4, 2, 1) if len(places) % n == 0 and places[:n] == tuple(range(n)))


def outlet_of(
    block: GroupBlock, unit: PanelUnit, departures: Departures, array: tuple[str, str, int], room: int, start: int
) -> StoreBuffer | None:
    """Returns the staged epilogue store, with `room` bytes of shared memory from byte `start` on; None if lanes must store results.

    Lanes must store if rows are not aligned or lie along another dimension, or if room is too small. `array`: name, type, number of
    partial results (split-K; 1: none).
    """
    program = block.program
    spots = dict(program.mapping)
    name, dtype, parts = array
    size = ELEMENT_BYTES[dtype]
    inner = program.inner[spots["n"]]
    width = next((w // size for w in (WIDEST_ROW, 64, 32, WIDEST_ACCESS) if inner % (w // size) == 0), 0)
    sides = _sides(program, parts)
    words = run_of(unit) * size % ELEMENT_BYTES[program.atom.stored_dtype] == 0  # buffers are addressed in the panels' elements
    if not width or not words or sides is None or sides[0].terms != ((spots["n"], 1),):
        return None
    if not whole_pieces(program, sides[0], size):
        return None
    row = width * size
    found = description(name, dtype, sides, {spots["n"]: width, spots["m"]: unit.rows}, 0 if row == WIDEST_ACCESS else row)
    if found is None:
        return None
    points = list(block.points(program.nest.spatial))
    for places in range(MOST_PLACES, 0, -1):
        made = StoreBuffer(block, unit, departures, found, map_argument(MAP_NAME), tuple(sides), width, places, start)
        if made.bytes <= room and len(list(made.boxes(points))) % places == 0:
            return made
    return None


def _sides(program: StageProgram, parts: int) -> list[Side] | None:
    """Returns the sides of the output array, innermost first.

    With several partial results (split-K), one more side is moved along by the index that follows the dimensions of the nest.
    """
    nest = program.nest
    found = by_steps(nest, nest.output)
    if found is None:
        return None
    if parts > 1:
        found.append(Side(parts, nest.output.tensor.elements, ((len(nest.dims), 1),)))
    kept = [side for side in found if side.extent > 1]
    return kept or None
