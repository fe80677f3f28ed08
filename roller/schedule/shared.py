"""Panels in the memory that the lanes of a block share: how they lie there, and how the lanes fill them together.

Rows hold the values of one reduce point, padded against bank conflicts as the program says (`roller.banks`). Lanes fill a panel
along the direction in which its source is contiguous, so that what they read together lies together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx

from roller.nest import Access
from roller.program import Staging, staged_touches
from roller.scalar import loads
from roller.schedule.place import Point, base_address
from roller.schedule.reading import Reader
from roller.schedule.scalar import identity
from roller.schedule.threads import VECTOR_BYTES, Block, Offsets
from roller.schedule.tir import (
    Buffer,
    Expr,
    Held,
    Stmt,
    allocate,
    index,
    least,
    load,
    loop,
    number,
    plus,
    ramp,
    register_buffer,
    sequence,
    shared_buffer,
    store,
    times,
    variable,
    when,
)
from roller.schedule.walk import Position, State

LANE_GROUP = 32  # lanes that access shared memory together


@dataclass(frozen=True)
class SharedPanel:
    """A factor's values for one unit tile: its buffer, and the step of each dimension in it (0: it does not depend on it)."""

    staging: Staging
    buffer: Buffer
    steps: tuple[int, ...]

    def address(self, block: Block, reduced: dict[int, Position], offsets: Offsets) -> Position:
        """Where the value of a lane's point lies; `reduced`: where the lane's tile starts along each reduction."""
        total: Position = 0
        for dim, step in enumerate(self.steps):
            if step:
                total = plus(total, times(plus(reduced.get(dim, 0), block.offset(dim, offsets[dim])), step))
        return total


def shared_panel(block: Block, staging: Staging) -> SharedPanel:
    """The panel with a fresh buffer: reductions outside, spatial dimensions inside a row."""
    program, touches = block.program, staged_touches(block.program.nest, staging)
    steps, size = [0] * len(touches), 1
    for dims in (program.nest.spatial, program.nest.reduce):
        for dim in reversed(dims):
            if touches[dim]:
                steps[dim] = size
                size *= program.unit_tile[dim]
        if dims == program.nest.spatial:
            size += staging.row_padding
    name = f"panel{staging.operand}"
    return SharedPanel(staging, shared_buffer(name, size, program.nest.stage.body.dtype), tuple(steps))


def fill(block: Block, panel: SharedPanel, reader: Reader, state: State) -> Stmt:
    """Every lane computes its share of the panel's values."""
    wide, width = _along(block, panel, reader)
    digits, width = _digits(block, panel, wide, width)
    total = math.prod(count for _, count, _ in digits)
    var, item = variable("share"), variable("item")
    bindings, rest = [tirx.Bind(item, index(plus(times(var, block.threads), block.thread)))], item
    places: dict[int, Position] = {}
    for place, (dim, count, step) in enumerate(reversed(digits), 1):
        digit = rest if place == len(digits) else tirx.floormod(rest, index(count))
        places[dim] = plus(places.get(dim, 0), times(digit, step))
        rest = tirx.floordiv(rest, index(count))
    names = {dim: variable(f"c{dim}") for dim in places}
    bindings += [tirx.Bind(names[dim], index(place)) for dim, place in places.items()]
    one = _put(block, panel, reader, state, names, wide, width)
    trips = -(-total // block.threads)
    guarded = one if total % block.threads == 0 else when(item < index(total), one)
    return loop(var, trips, sequence([*bindings, guarded]))


Digit = tuple[int, int, int]  # a dimension, how many values, and how far apart they are


def _digits(block: Block, panel: SharedPanel, wide: int | None, width: int) -> tuple[list[Digit], int]:
    """How the numbers of a panel's values are made up, outermost digit first, and the values of one access.

    Along the source, so that lanes read neighbours. Where that is across the panel's rows, a lane group fills small blocks: as many
    neighbours of a row as a lane later reads with one access, in as many rows as there are lanes for; so `roller.banks` counts on.
    """
    tile = block.program.unit_tile
    dims = sorted((d for d, s in enumerate(panel.steps) if s), key=lambda d: (d == wide, -_source_step(block, panel, d)))
    row = next((d for d, s in enumerate(panel.steps) if s == 1), None)
    if wide is None or row is None or panel.steps[wide] == 1:
        return [(d, tile[d] // (width if d == wide else 1), width if d == wide else 1) for d in dims], width
    near = _power(tile[row], VECTOR_BYTES // block.program.nest.accumulator_bytes)
    far = _power(tile[wide], LANE_GROUP // near)
    blocks = {row: near, wide: far}
    outer = [(d, tile[d] // blocks.get(d, 1), blocks.get(d, 1)) for d in dims]
    return [*outer, (row, near, 1), (wide, far, 1)], 1


def _power(extent: int, most: int) -> int:
    """The largest power of two that divides an extent, up to a limit."""
    found = 1
    while 2 * found <= most and extent % (2 * found) == 0:
        found *= 2
    return found


def _along(block: Block, panel: SharedPanel, reader: Reader) -> tuple[int | None, int]:
    """The dimension along which the source is contiguous, and the elements of it that one access reads."""
    program, nest = block.program, block.program.nest
    mine = [nest.accesses[reader.number(n)] for n in loads(nest.factors[panel.staging.operand])]
    for dim in sorted(range(len(panel.steps)), key=lambda d: d in nest.spatial):
        if panel.steps[dim] and program.unit_tile[dim] > 1 and any(a.strides[dim] == 1 for a in mine):
            return dim, _width(block, dim, mine) if len(mine) == 1 else 1
    return None, 1


def _width(block: Block, dim: int, mine: list[Access]) -> int:
    (access,) = mine
    program, extent = block.program, block.program.nest.extents[dim]
    if not access.linear or extent < program.unit_tile[dim]:
        return 1
    width = max(1, VECTOR_BYTES // access.element_bytes)
    offset = sum(i.offset * s for i, s in zip(access.index, access.tensor.strides, strict=True))
    steps = [s or 0 for d, s in enumerate(access.strides) if d != dim and program.nest.extents[d] > 1]
    while width > 1 and any(n % width for n in (*steps, offset, extent, program.unit_tile[dim])):
        width //= 2
    return width


def _source_step(block: Block, panel: SharedPanel, dim: int) -> int:
    mine = [a for a in block.program.nest.inputs if a.factor == panel.staging.operand]
    return max(abs(a.strides[dim] or 0) for a in mine)


def _put(
    block: Block, panel: SharedPanel, reader: Reader, state: State, names: dict[int, Expr], wide: int | None, width: int
) -> Stmt:
    """Compute `width` values at the named place of the unit's tile, and store them."""
    nest = block.program.nest
    node = nest.factors[panel.staging.operand]
    target: Position = 0
    inside = None
    for dim, name in names.items():
        target = plus(target, times(name, panel.steps[dim]))
        left = state.limits[dim]
        if nest.dims[dim].is_reduce and not (isinstance(left, int) and left >= block.program.unit_tile[dim]):
            here = name < index(left)
            inside = here if inside is None else tirx.And(inside, here)
    point = Point(nest, tuple(_position(block, state, d, names) for d in range(len(nest.dims))))
    nothing = (
        number(0, nest.stage.body.dtype) if len(nest.factors) > 1 else identity(nest.stage.reducer or "sum", nest.stage.body.dtype)
    )
    if width == 1:
        held = Held.in_registers()
        value = reader.value(node, point, held)
        if inside is None:
            return sequence([*held.statements, store(panel.buffer, value, target)])
        kept = store(panel.buffer, value, target)
        return when(inside, sequence([*held.statements, kept]), store(panel.buffer, nothing, target))
    return _put_vector(block, panel, reader, point, target, wide or 0, width, inside, nothing)


def _put_vector(
    block: Block,
    panel: SharedPanel,
    reader: Reader,
    point: Point,
    target: Position,
    wide: int,
    width: int,
    inside: Expr | None,
    nothing: Expr,
) -> Stmt:
    """One wide read into registers, then the values one by one: side by side in the panel, or one in each row."""
    nest = block.program.nest
    node = nest.factors[panel.staging.operand]
    (read,) = loads(node)
    count = reader.number(read)
    access, window = nest.accesses[count], reader.window(count)
    taken = register_buffer("taken", width, access.tensor.dtype)
    values = register_buffer("values", width, nest.stage.body.dtype)
    first = base_address(nest, window, access.index, point)
    statements: list[Stmt] = [store(taken, load(window.buffer, ramp(first, 1, width)), ramp(0, 1, width))]
    for n in range(width):
        step = tuple(n if d == wide else 0 for d in range(len(nest.dims)))
        held = Held.in_registers()
        reader.vectors = {count: load(taken, n)}
        value = reader.value(node, point.moved(step), held)
        statements += [*held.statements, store(values, value, n)]
    reader.vectors = {}
    if inside is not None:
        statements = [when(inside, sequence(statements), sequence(store(values, nothing, n) for n in range(width)))]
    apart, stored = panel.steps[wide], 1
    if apart == 1:
        stored = min(width, VECTOR_BYTES // nest.accumulator_bytes)
        while any(s % stored for d, s in enumerate(panel.steps) if s and d != wide):
            stored //= 2
    for n in range(0, width, stored):
        statements.append(store(panel.buffer, load(values, ramp(n, 1, stored)), ramp(plus(target, n * apart), 1, stored)))
    return sequence([*allocate([taken, values]), *statements])


def _position(block: Block, state: State, dim: int, names: dict[int, Expr]) -> Position:
    """Where a place of the unit's tile lies in the problem; beyond its end, the last position stands in."""
    base = block.base(state, dim)
    if dim not in names:
        return base
    extent = block.program.nest.extents[dim]
    at = plus(base, names[dim])
    return at if block.program.nest.dims[dim].is_reduce or extent >= block.program.unit_tile[dim] else least(at, extent - 1)
