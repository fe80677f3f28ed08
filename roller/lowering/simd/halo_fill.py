"""Boxes: padded copies of data tiles with their fill values, laid out so that vector elements are contiguous."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from roller.ir.nest import Tile
from roller.ir.scalar import Affine
from roller.lowering.simd.transpose import transposed
from roller.lowering.simd.words import as_bits, bits_dtype, interleaved, loaded_bits
from roller.lowering.tir import expressions, tile_starts
from roller.lowering.tir.addresses import ArrayView, decode_scalar
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Held,
    Stmt,
    buffer,
    ceil_div,
    every,
    index,
    least,
    load,
    loop,
    plus,
    ramp,
    sequence,
    spread,
    store,
    times,
    variable,
    when,
)
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.halo import box_order
from roller.program.rprogram import StageProgram, Staging, copy_depth
from roller.program.words import boxed_words, interleaves, word_dtype

LEAST_LANES = 8  # min elements copied at a time (or the program's vector); the toolchain splits or joins them to its own vectors

Range = tuple[Position, Position]


def box_window(program: StageProgram, staging: Staging, state: State, name: str) -> tuple[ArrayView, list[Stmt]]:
    """Returns a box with a fresh buffer, and the statements that bind its first coordinates to names.

    Its shape comes from the tile at the copy, its first coordinate from that tile's start. The coordinates are named because they
    occur in the address of every element read from the box.
    """
    nest, access = program.nest, program.nest.accesses[staging.operand]
    tile = box_tile(program, staging)
    extents: dict[str, int] = {}
    starts: dict[str, Position] = {}
    for number, (dim, extent) in enumerate(zip(nest.dims, tile, strict=True)):
        reach = dim.member_extents(extent)
        extents.update((a.name, e) for a, e in zip(dim.members, reach, strict=True))
        values = _member_starts(program, state, number, reach)
        starts.update((a.name, v) for a, v in zip(dim.members, values, strict=True))
    shape = [1 + sum(abs(c) * (extents.get(n, 1) - 1) for n, c in i.terms) for i in access.index]
    firsts = [_first(i, starts, extents) for i in access.index]
    words = boxed_words(program, staging.operand)
    depth = program.atom.depth if interleaves(program, staging.operand) else 1
    steps, size = [0] * len(shape), 1
    for position in reversed(box_order(program, staging.operand)):
        if position == words:
            size = ceil_div(size, depth) * depth  # so that the step of one element is whole; words start at every depth-th
        steps[position] = size if position != words else size // depth
        size *= shape[position] if position != words else shape[position] // depth
    named = [f if isinstance(f, int) else variable(f"from{i}") for i, f in enumerate(firsts)]
    bindings = [tirx.Bind(v, f) for v, f in zip(named, firsts, strict=True) if not isinstance(f, int)]
    dtype = access.tensor.dtype if words is None else word_dtype(program) if depth > 1 else bits_dtype(access.tensor.dtype)
    return ArrayView(buffer(name, size, dtype), tuple(shape), tuple(steps), tuple(named)), bindings


def box_tile(program: StageProgram, staging: Staging) -> Tile:
    """Returns the tile whose data the box holds, at most the whole problem."""
    tile = list(program.nest.extents)
    for lp in program.loops[: copy_depth(program, staging)]:
        tile[lp.dim] = min(program.step(lp), tile[lp.dim])
    return tuple(tile)


def _member_starts(program: StageProgram, state: State, number: int, reach: tuple[int, ...]) -> list[Position]:
    """Returns the min value of each axis of a dimension in the current tile; boundary tiles are shifted inwards."""
    dim, base = program.nest.dims[number], state.bases[number]
    spatial = not dim.is_reduce
    if spatial and not tile_starts.exact(program, number):
        base = least(base, program.nest.extents[number] - program.inner[number])
    values = decode_scalar(dim, base)
    return [0 if e == a.extent else v for a, e, v in zip(dim.members, reach, values, strict=True)]


def _first(target: Affine, starts: dict[str, Position], extents: dict[str, int]) -> Position:
    first: Position = target.offset
    for name, coefficient in target.terms:
        first = plus(first, times(starts.get(name, 0), coefficient))
        if coefficient < 0:
            first = plus(first, coefficient * (extents.get(name, 1) - 1))
    return first


@dataclass(frozen=True)
class _Copy:
    """One row of a box, or a slab of transposed rows: its addresses in the array and in the box, and its fill value."""

    window: ArrayView
    source: Buffer
    bounds: tuple[int, ...]  # extents of the array
    strides: tuple[int, ...]
    fill: Expr
    origin: Position  # address of the row's or slab's coordinates 0 in the array
    target: Position  # the same in the box
    last: int  # the array's contiguous dimension
    along: int  # the box's contiguous dimension
    apart: tuple[int, ...] = ()  # offsets of the rows that are interleaved to words, if any are

    def inside(self, dim: int) -> tuple[Position, Position]:
        """Returns the first and the end of the box's positions along a dimension that lie inside the array."""
        start, size, bound = self.window.starts[dim], self.window.shape[dim], self.bounds[dim]
        if isinstance(start, int):
            return min(max(-start, 0), size), min(max(bound - start, 0), size)
        low = tirx.max(index(0), tirx.min(index(0) - start, index(size)))
        return low, tirx.max(index(0), tirx.min(index(bound) - start, index(size)))

    def read(self, at: Expr, lanes: int) -> Expr:
        """Returns `lanes` elements, or words, of the array as the box holds them."""
        held = str(self.window.buffer.dtype)
        if self.apart:
            rows = [loaded_bits(self.source, at + spread(index(offset), lanes), lanes) for offset in self.apart]
            return interleaved(rows, held, lanes)
        return load(self.source, at) if held == str(self.source.dtype) else loaded_bits(self.source, at, lanes)

    def splat(self, at: Position, lanes: int) -> Expr:
        """Returns the fill value for `lanes` lanes."""
        return self.fill if lanes == 1 else tirx.Broadcast(self.fill, lanes)


def fill_box(program: StageProgram, staging: Staging, window: ArrayView, reader: Reader, parallel: bool) -> Stmt:
    """Copies a data tile row by row: fill values outside the array, whole vectors inside.

    If the box is contiguous along another dimension than the array, blocks of rows are transposed.
    """
    access = program.nest.accesses[staging.operand]
    source = reader.buffers[access.tensor.name]
    fill = expressions.constant(reader.fill(staging.operand), access.tensor.dtype)
    dims = range(len(window.shape))
    if not dims:
        return store(window.buffer, load(source, 0), 0)
    apart: tuple[int, ...] = ()
    each = dict.fromkeys(dims, 1)  # positions of the array for one of the box
    words = boxed_words(program, staging.operand)
    if words is not None:
        fill = as_bits(fill, access.tensor.dtype)
    if words is not None and interleaves(program, staging.operand):
        each[words] = program.atom.depth
        apart = tuple(number * access.tensor.strides[words] for number in range(program.atom.depth))
        fill = interleaved([fill] * program.atom.depth, str(window.buffer.dtype), 1)
    last, along = dims[-1], box_order(program, staging.operand)[-1]
    outer = [d for d in dims if d not in (last, along)]
    names = {d: variable(f"b{d}") for d in outer}
    places = {d: plus(window.starts[d], times(names[d], each[d])) for d in outer}
    row_inside = every(tirx.And(index(places[d]) >= index(0), index(places[d]) < index(access.tensor.shape[d])) for d in outer)
    origin: Position = 0
    target: Position = 0
    for d in outer:
        origin = plus(origin, times(places[d], access.tensor.strides[d]))
        target = plus(target, times(names[d], window.steps[d] * each[d]))
    copy = _Copy(window, source, access.tensor.shape, access.tensor.strides, fill, origin, target, last, along, apart)
    lanes = max(LEAST_LANES, program.width)
    shared = next((d for d in outer if window.shape[d] > 1), None)  # the loop over units; a slab without outer loops has its own
    copied = _row(copy, lanes) if last == along else _slab(copy, lanes, parallel and shared is None)
    size = window.shape[last] * (window.shape[along] if last != along else 1)
    body = copied if row_inside is None else when(row_inside, copied, _span(window.buffer, target, 0, size, copy.splat, lanes))
    for d in reversed(outer):
        body = loop(names[d], window.shape[d] // each[d], body, parallel and d == shared)
    return body


def _row(copy: _Copy, lanes: int) -> Stmt:
    """Fills the parts of a row before, inside and behind the array."""
    size = copy.window.shape[-1]
    first = plus(copy.origin, copy.window.starts[-1])

    def between(low: Position, high: Position) -> Stmt:
        def read(at: Position, n: int) -> Expr:
            return copy.read(ramp(plus(first, at), 1, n), n)

        spans = ((0, low, copy.splat), (low, high, read), (high, size, copy.splat))
        return sequence([_span(copy.window.buffer, copy.target, a, b, value, lanes) for a, b, value in spans])

    return _best(copy, [-1], lambda ranges: between(*ranges[0]))


def _best(copy: _Copy, dims: list[int], body: Callable[[list[Range]], Stmt]) -> Stmt:
    """Returns the statement for the ranges of positions inside the array.

    If the ranges are not constants, it adds a version for a box wholly inside, whose loops have constant trip counts.
    """
    ranges = [copy.inside(d) for d in dims]
    sizes = [copy.window.shape[d] for d in dims]
    whole = [
        tirx.And(tirx.EQ(low, index(0)), tirx.EQ(high, index(size)))
        for (low, high), size in zip(ranges, sizes, strict=True)
        if not (isinstance(low, int) and isinstance(high, int))
    ]
    inside = every(whole)
    if inside is None:
        return body(ranges)
    known = [r if all(isinstance(p, int) for p in r) else (0, size) for r, size in zip(ranges, sizes, strict=True)]
    return when(inside, body(known), body(ranges))


def _span(
    target: Buffer, base: Position, low: Position, high: Position, value: Callable[[Position, int], Expr], lanes: int
) -> Stmt | None:
    """Writes positions low..high of a row: whole vectors; for a constant length, the last one is shifted back to the row's end."""
    variables = variable("v"), variable("e")

    def put(at: Position, n: int) -> Stmt:
        return store(target, value(at, n), ramp(plus(base, at), 1, n))

    if isinstance(low, int) and isinstance(high, int):
        if low >= high:
            return None
        lanes = min(lanes, 1 << ((high - low).bit_length() - 1))
        count, rest = divmod(high - low, lanes)
        return sequence(
            [
                loop(variables[0], count, put(plus(low, times(variables[0], lanes)), lanes)),
                put(high - lanes, lanes) if rest else None,
            ]
        )
    count = _minus((low, high))
    whole = tirx.floordiv(count, index(lanes))
    return sequence(
        [
            loop(variables[0], whole, put(plus(low, times(variables[0], lanes)), lanes)),
            loop(variables[1], count - whole * lanes, put(plus(plus(low, times(whole, lanes)), variables[1]), 1)),
        ]
    )


def _minus(positions: Range) -> Position:
    low, high = positions
    return high if isinstance(low, int) and low == 0 else high - low


# --- transposed rows -------------------------------------------------------------------------------------------------


def _slab(copy: _Copy, lanes: int, parallel: bool) -> Stmt:
    """Copies rows of the array (its last dimension) to columns of the box: they become neighbours in its innermost dimension."""
    return _best(copy, [copy.along, copy.last], lambda ranges: _turned(copy, ranges[0], ranges[1], lanes, parallel))


def _turned(copy: _Copy, rows: Range, columns: Range, lanes: int, parallel: bool) -> Stmt:
    """Writes fill values around the elements inside the array, and transposes those in square blocks in registers.

    The last blocks are shifted inwards to stay inside. If less than a block is inside, elements are copied one by one.
    """
    width, height = copy.window.shape[copy.last], copy.window.shape[copy.along]
    box, at = copy.window.buffer, copy.target
    if rows == (0, height):
        low, high = times(columns[0], height), times(columns[1], height)
        edges = [_span(box, at, 0, low, copy.splat, lanes), _span(box, at, high, width * height, copy.splat, lanes)]
    else:
        edges = [_span(box, at, 0, width * height, copy.splat, lanes)]
    known = [high - low for low, high in (rows, columns) if isinstance(low, int) and isinstance(high, int)]
    most = min([lanes, width, height, *known])
    if most < 1:
        return sequence(edges)
    side = 1 << (most.bit_length() - 1)
    ranges = [_minus(r) for r in (rows, columns)]
    enough = every(extent >= index(side) for extent in ranges if not isinstance(extent, int))
    single = _elements(copy, rows, columns)
    if side == 1:
        return sequence([*edges, single])
    blocks = _blocks(copy, rows, columns, side, parallel)
    return sequence([*edges, blocks if enough is None else when(enough, blocks, single)])


def _blocks(copy: _Copy, rows: Range, columns: Range, side: int, parallel: bool) -> Stmt:
    row, column = variable("row"), variable("column")
    first, begin = _block_start(rows, row, side), _block_start(columns, column, side)
    held, dtype = Held(), str(copy.window.buffer.dtype)
    vectors = [held(copy.read(ramp(_from(copy, plus(first, r), begin), 1, side), side), dtype, side) for r in range(side)]
    stores = [
        store(copy.window.buffer, vector, ramp(_to(copy, first, plus(begin, c)), 1, side))
        for c, vector in enumerate(transposed(vectors, dtype, held))
    ]
    body = sequence([*held.statements, *stores])
    return loop(row, ceil_div(_minus(rows), side), loop(column, ceil_div(_minus(columns), side), body), parallel)


def _block_start(positions: Range, number: Position, side: int) -> Position:
    low, high = positions
    return least(plus(low, times(number, side)), high - side)


def _elements(copy: _Copy, rows: Range, columns: Range) -> Stmt:
    row, column = variable("row"), variable("column")
    at, place = plus(rows[0], row), plus(columns[0], column)
    value = copy.read(index(_from(copy, at, place)), 1)
    body = store(copy.window.buffer, value, _to(copy, at, place))
    return loop(row, _minus(rows), loop(column, _minus(columns), body))


def _from(copy: _Copy, row: Position, column: Position) -> Position:
    places = times(plus(copy.window.starts[copy.along], row), copy.strides[copy.along]), plus(copy.window.starts[copy.last], column)
    return plus(plus(copy.origin, places[0]), places[1])


def _to(copy: _Copy, row: Position, column: Position) -> Position:
    return plus(plus(copy.target, times(column, copy.window.steps[copy.last])), row)
