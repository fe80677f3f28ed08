"""Panels in shared memory, filled cooperatively by the lanes of a block.

Lanes fill a panel along the contiguous direction of its source, so that their loads are coalesced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

from tvm import tirx
from tvm.tirx import ForKind

from roller.ir.expr import ELEMENT_BYTES
from roller.ir.scalar import Load, loads
from roller.layout.fill_order import fill, filled
from roller.lowering.simt.machine import Copies, Machine
from roller.lowering.simt.shared_panels import SharedPanel, in_cells
from roller.lowering.simt.threads import REGISTER_BYTES, Block
from roller.lowering.tir.addresses import Point, base_address
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Held,
    Stmt,
    allocate,
    bind,
    every,
    index,
    least,
    load,
    loop,
    number,
    plus,
    pointer,
    ramp,
    register_buffer,
    sequence,
    store,
    times,
    variable,
    when,
)
from roller.lowering.tir.expressions import constant, identity
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State

MOST_REPEATED = 8  # max unrolled copies of a lane: unrolled addresses share parts, but take registers


class Filling:
    """The cooperative filling of one panel by the lanes of a block, or by its producers (`crew`).

    Each lane computes its share of the values, at once or in two steps that overlap the loads with other work. If nothing is to be
    computed, it starts asynchronous copies.
    """

    def __init__(
        self,
        block: Block,
        panel: SharedPanel,
        reader: Reader,
        machine: Machine,
        crew: tuple[Expr, int] | None = None,
        taken: Callable[[Expr], Expr] = lambda value: value,
    ) -> None:
        self.taken = taken  # conversion of a value before it is stored
        self.block, self.panel, self.reader, self.nest = block, panel, reader, block.program.nest
        self.thread, self.threads = (block.thread, block.threads) if crew is None else crew
        program, steps = block.program, panel.steps
        beside, depth = panel.beside, panel.depth
        cells = tuple(s // (1 if d == depth else beside) for d, s in enumerate(steps))
        tile, cell = in_cells(program.unit_tile, depth, beside), None if depth is None or beside == 1 else (depth, beside)
        points = filled(self.nest, panel.staging, tile, cells, panel.row)
        order = fill(self.nest, points.tile, panel.value, points.steps, points.row, block.group, cell).order(points.steps)
        self.digits = tuple((d, count, step * (beside if d == depth else 1)) for d, count, step in order.digits)
        self.wide, self.width, self.stored = order.along, order.width, order.stored * beside
        self.taken_together = self.width * beside
        self.total = math.prod(count for _, count, _ in self.digits)
        self.trips = -(-self.total // self.threads)
        self.dtype = panel.value.dtype
        self.copies = machine.copies if machine.copies is not None and self._copied(machine.copies) else None
        self.follows = self.trips == 1 or order.follows(self.threads)
        # Producers have no accumulators.
        self.accumulators = block.accumulators if crew is None else 0
        self.most_beside = machine.most_beside
        self.place_registers = machine.place_registers
        if not self.follows:
            self.place_registers += machine.apart_registers + (machine.guard_registers if self.guarded else 0)

    @property
    def guarded(self) -> bool:
        """Returns True if values may lie outside their arrays."""
        return any(self.nest.accesses[self.reader.number(read)].guarded for read in loads(self.panel.value))

    @property
    def registers(self) -> float:
        """Registers of a lane with its whole share in flight: addresses, and values unless copies are asynchronous."""
        words = -(-self.width * ELEMENT_BYTES[self.dtype] // REGISTER_BYTES)
        return self.trips * (self.place_registers + (0 if self.copies is not None else words * self.panel.beside))

    @property
    def words(self) -> int:
        """Registers of the values that a lane loads together."""
        return -(-self.taken_together * ELEMENT_BYTES[self.dtype] // REGISTER_BYTES)

    @cached_property
    def held(self) -> Buffer:
        """The buffer of prefetched values in a lane's registers."""
        return register_buffer(f"{self.panel.buffer.name}_next", self.trips * self.taken_together, self.dtype)

    def at_once(self, state: State, slot: Position, registers: int = 0) -> Stmt:
        """Loads, computes and stores; as many loads as fit in `registers` are in flight, so a lane does not wait for each value."""
        rounds = self.rounds(registers)
        count, many = -(-self.trips // rounds), self.taken_together
        values, turn = register_buffer("values", count * many, self.dtype), variable("turn")

        def read(var: Expr, names: dict[int, Expr]) -> Stmt:
            return sequence(self._taken(state, names, values, many * var if count > 1 else 0))

        def put(var: Expr, names: dict[int, Expr]) -> Stmt:
            return sequence(self._stores(names, values, many * var if count > 1 else 0, slot))

        if count == 1:
            return self._each(lambda var, names: sequence([*allocate([values]), read(var, names), put(var, names)]), ForKind.SERIAL)
        run = times(turn, count) if rounds > 1 else 0, count
        body = [self._each(step, ForKind.UNROLLED, run) for step in (read, put)]
        return loop(turn, rounds, sequence([*allocate([values]), *body]))

    def rounds(self, registers: int) -> int:
        """Returns how many times a lane waits for its loads."""
        return -(-self.trips // max(1, registers // self.words))

    @property
    def _crowded(self) -> bool:
        """True if a lane's share must not be in flight all at once: it and accumulators would take most of its registers."""
        if self.most_beside is None or self.trips <= MOST_REPEATED:
            return False
        return self.accumulators + self.registers > self.most_beside

    def _repeated(self, trips: int) -> int:
        """Returns how many of a lane's copies are unrolled: a number without remainder, if there is one."""
        most = MOST_REPEATED if self.follows else MOST_REPEATED // 2
        return next((n for n in range(most, most // 2, -1) if trips % n == 0), most)

    def _copied(self, copies: Copies) -> bool:
        """Returns True if the panel holds the array's values unchanged, in pieces that one copy can move."""
        panel, value = self.panel, self.panel.value
        if not isinstance(value, Load) or not value.zero_outside:
            return False
        together, size = self.stored, self.width * ELEMENT_BYTES[self.dtype]
        return (
            size in copies.sizes
            and together == self.taken_together == self.width
            and (self.width == 1 or panel.steps[self.wide or 0] == 1)
        )

    def start(self, state: State, slot: Position) -> Stmt:
        """Starts the copies of a lane's share."""
        assert self.copies is not None
        assert isinstance(self.panel.value, Load)
        copies, value, source = self.copies, self.panel.value, self.reader.number(self.panel.value)
        access, window = self.nest.accesses[source], self.reader.window(source)

        def one(_: Expr, names: dict[int, Expr]) -> Stmt:
            target = pointer(self.panel.buffer, self.panel.place(names, slot), written=True)
            point = self._point(state, names)
            place = pointer(window.buffer, base_address(self.nest, window, access.index, point))
            inside = every(c for c in (self._inside(state, names), self.reader.inside(value, point)) if c is not None)
            return copies.copy(target, place, self.width * access.element_bytes, inside)

        return self._each(one, ForKind.UNROLLED if self.trips <= MOST_REPEATED else ForKind.SERIAL)

    def fetch(self, state: State) -> Stmt:
        """Loads and computes values into registers, `held` (prefetch)."""
        many = self.taken_together
        return self._each(lambda var, names: sequence(self._taken(state, names, self.held, var * many)), ForKind.UNROLLED)

    def put(self, slot: Position) -> Stmt:
        """Stores the values that `fetch` left in registers."""
        many = self.taken_together
        return self._each(lambda var, names: sequence(self._stores(names, self.held, var * many, slot)), ForKind.UNROLLED)

    def _each(self, body: Callable[[Expr, dict[int, Expr]], Stmt], kind: ForKind, run: tuple[Position, int] | None = None) -> Stmt:
        """Returns a loop over a lane's share, or a run of it (first trip, trips); binds the values' positions in the tile."""
        first, trips = run if run is not None else (0, self.trips)
        name = f"unroll{self._repeated(trips)}_share" if kind == ForKind.SERIAL and self._crowded else "share"
        var, item = variable(name), variable("item")
        bindings, rest = [tirx.Bind(item, index(plus(times(plus(first, var), self.threads), self.thread)))], item
        places: dict[int, Position] = {}
        for place, (dim, count, step) in enumerate(reversed(self.digits), 1):
            digit = rest if place == len(self.digits) else tirx.floormod(rest, index(count))
            places[dim] = plus(places.get(dim, 0), times(digit, step))
            rest = tirx.floordiv(rest, index(count))
        names = {dim: variable(f"c{dim}") for dim in places}
        bindings += [tirx.Bind(names[dim], index(place)) for dim, place in places.items()]
        one = body(var, names)
        whole = self.total % (self.threads * trips) == 0
        guarded = one if whole else when(item < index(self.total), one)
        inside = sequence([*bindings, guarded])
        return tirx.For(var, index(0), index(trips), kind, inside) if trips > 1 else bind(var, index(0), inside)

    def _taken(self, state: State, names: dict[int, Expr], into: Buffer, at: Position) -> list[Stmt]:
        """Returns the loads of one lane: the values at a position, and those of the next positions that lie beside it in the panel.

        The further positions follow along the reduction; the values are kept row after row, as they are loaded.
        """
        found: list[Stmt] = []
        for n in range(self.panel.beside):
            moved = {d: index(plus(name, n)) if d == self.panel.depth else name for d, name in names.items()} if n else names
            found += self._values(state, moved, into, plus(at, n * self.width))
        return found

    def _values(self, state: State, names: dict[int, Expr], into: Buffer, at: Position) -> list[Stmt]:
        """Returns the values at a position of the unit's tile; beyond the end of a reduction, the neutral value."""
        width, node, inside = self.width, self.panel.value, self._inside(state, names)
        point = self._point(state, names)
        together = inside is not None and isinstance(node, Load) and self._fills_alike(node)
        if width > 1:
            found = self._wide(point, into, at, inside if together else None)
        else:
            held = Held.in_registers(self.block.functions)
            if together and isinstance(node, Load):
                value = self.reader.within(node, point, inside)
            else:
                value = self.reader.value(node, point, held)
            found = [*held.statements, store(into, self.taken(value), at)]
        if inside is None or together:
            return found
        nothing = self._nothing
        return [when(inside, sequence(found), sequence(store(into, nothing, plus(at, n)) for n in range(width)))]

    @property
    def _nothing(self) -> Expr:
        """The value beyond the end of a reduction."""
        nest = self.nest
        return number(0, self.dtype) if len(nest.factors) > 1 else identity(nest.stage.reducer or "sum", self.dtype)

    def _fills_alike(self, node: Load) -> bool:
        """True if a load is guarded, and gives the same value outside its array as beyond the end of a reduction.

        One test then serves both: around two of them a lane branches twice for each element.
        """
        guarded = node.tensor not in self.reader.computed and self.reader.plain(node) is None
        product = len(self.nest.factors) > 1 or (self.nest.stage.reducer or "sum") == "sum"
        return guarded and product and not node.fill

    def _point(self, state: State, names: dict[int, Expr]) -> Point:
        dims = range(len(self.nest.dims))
        return Point(self.nest, tuple(_position(self.block, state, d, names) for d in dims))

    def _inside(self, state: State, names: dict[int, Expr]) -> Expr | None:
        """Returns the test that a position lies inside the remainder of every reduction; None if there is no remainder."""
        tile, dims = self.block.program.unit_tile, self.nest.dims
        left = {dim: state.limits[dim] for dim in names if dims[dim].is_reduce}
        ragged = [dim for dim, rest in left.items() if not (isinstance(rest, int) and rest >= tile[dim])]
        return every(names[dim] < index(left[dim]) for dim in ragged)

    def _wide(self, point: Point, into: Buffer, at: Position, also: Expr | None) -> list[Stmt]:
        """Returns one wide load into registers, wholly inside the array or wholly outside, then the values one by one.

        `also`: another test on which the load depends.
        """
        nest, node = self.nest, self.panel.value
        (read,) = loads(node)
        count = self.reader.number(read)
        access, window = nest.accesses[count], self.reader.window(count)
        taken = register_buffer("taken", self.width, access.tensor.dtype)
        first = base_address(nest, window, access.index, point)
        reading = store(taken, load(window.buffer, ramp(first, 1, self.width)), ramp(0, 1, self.width))
        inside = every(test for test in (also, self.reader.inside(read, point)) if test is not None)
        if inside is not None:
            fill = constant(read.fill if read.fill is not None else 0, access.tensor.dtype)
            reading = when(inside, reading, sequence(store(taken, fill, n) for n in range(self.width)))
        statements = [*allocate([taken]), reading]
        for n in range(self.width):
            step = tuple(n if d == self.wide else 0 for d in range(len(nest.dims)))
            held = Held.in_registers(self.block.functions)
            self.reader.vectors = {count: load(taken, n)}
            value = self.reader.value(node, point.moved(step), held)
            statements += [*held.statements, store(into, self.taken(value), plus(at, n))]
        self.reader.vectors = {}
        return statements

    def _stores(self, names: dict[int, Expr], source: Buffer, at: Position, slot: Position) -> list[Stmt]:
        """Stores the values side by side in the panel, or one in each row."""
        panel, beside, together = self.panel, self.panel.beside, self.stored
        found = []
        if beside > 1:
            source, at, turned = self._turned(source, at)
            found += turned
        for n in range(0, self.taken_together, together):
            # The address is computed for each piece: in a swizzled panel, the next piece does not follow this one.
            moved = {**names, self.wide: plus(names[self.wide], n // beside)} if n and self.wide is not None else names
            values = load(source, ramp(plus(at, n), 1, together))
            found.append(store(panel.buffer, values, ramp(self.panel.place(moved, slot), 1, together)))
        return found

    def _turned(self, source: Buffer, at: Position) -> tuple[Buffer, Position, list[Stmt]]:
        """Interleaves the rows of loaded values; done at the store, as it would wait for the values at the load."""
        beside, width = self.panel.beside, self.width
        turned = register_buffer("turned", beside * width, self.dtype)
        pairs = [(n * beside + row, row * width + n) for n in range(width) for row in range(beside)]
        return turned, 0, [*allocate([turned]), *(store(turned, load(source, plus(at, old)), new) for new, old in pairs)]


def _position(block: Block, state: State, dim: int, names: dict[int, Expr]) -> Position:
    """Maps a position in the unit's tile to the problem; positions beyond the problem's end map to the last one."""
    base = block.base(state, dim)
    if dim not in names:
        return base
    extent = block.program.nest.extents[dim]
    at = plus(base, names[dim])
    return at if block.program.nest.dims[dim].is_reduce or extent >= block.program.unit_tile[dim] else least(at, extent - 1)
