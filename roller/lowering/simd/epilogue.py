"""Epilogues: accumulators are reduced along lanes and over units, passed through the epilogue, and stored."""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from roller.ir.scalar import Scalar, operations
from roller.lowering.simd import panel_layout
from roller.lowering.simd.context import Lowering, Slots
from roller.lowering.simd.transpose import halves, own_halves, transposed
from roller.lowering.tir.addresses import ArrayView, Point, address, is_vector, replaced
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Held,
    Stmt,
    allocate,
    allocate_on_stack,
    buffer,
    index,
    load,
    loop,
    plus,
    ramp,
    sequence,
    store,
    times,
    variable,
)
from roller.lowering.tir.expressions import combine
from roller.lowering.tir.tile_starts import Position
from roller.program.footprint import data_tile
from roller.program.rprogram import StageProgram
from roller.program.stored_runs import in_lines

ROLLED_OPERATIONS = 3  # scalar operations of an epilogue above which unrolling it for every vector makes the code too large


def stores_whole_lines(program: StageProgram, line: int) -> bool:
    """True if each innermost tile stores its results in runs of whole lines of so many bytes, or in one run."""
    output = program.nest.output
    tile = data_tile(program.nest, output, program.inner)
    return bool(in_lines(output, tile.elements, tile.run, line))


def finish(low: Lowering, place: tuple[Position, ...], acc: Buffer) -> list[Stmt]:
    """Reduces partial results along the lanes, applies the epilogue and stores; with split-K, stores one part's results."""
    rows = _rolled(low)
    if rows is not None:
        return _finish_rolled(low, place, acc, rows)
    if low.lane_reduces:
        return _finish_folded(low, place, acc)
    along = _along(low)
    if along is not None:
        return _finish_transposed(low, place, acc, along)
    statements, at = [], 0
    for offsets, lanes in low.points():
        statements.append(_finished(low, Point(low.nest, place, low.lane, lanes).moved(offsets), load(acc, ramp(at, 1, lanes))))
        at += lanes
    return statements


def _finished(low: Lowering, point: Point, value: Expr) -> Stmt:
    """Stores reduced values to the output, or with split-K to the partial results."""
    return put(low, point, low.nest.stage.result, value) if low.partial is None else _put_partial(low, point, value)


def put(low: Lowering, point: Point, node: Scalar, accumulator: Expr | None) -> Stmt:
    """Stores the value of a scalar tree at a point of the output."""
    output = low.nest.output
    target = low.buffers[output.tensor.name]
    held = Held()
    value = low.reader.value(node, point, held, accumulator)
    where = address(low.nest, ArrayView.whole(target, output.tensor), output.index, point)
    if low.options.store is not None and not isinstance(where, list) and is_vector(where) and int(where.stride) == 1:
        replacement = low.options.store(target, value, where.base, point.lanes)
        if replacement is not None:
            return sequence([*held.statements, replacement])
    return sequence([*held.statements, _scatter(target, value, where)])


def _rolled(low: Lowering) -> int | None:
    """Returns the dimension along which a long epilogue becomes a loop; None if it stays unrolled."""
    if low.partial is not None or low.lane_reduces or operations(low.nest.stage.result) <= ROLLED_OPERATIONS:
        return None
    return max((d for d in low.nest.spatial if d != low.lane), key=lambda d: (low.program.inner[d], d), default=None)


def _finish_rolled(low: Lowering, place: tuple[Position, ...], acc: Buffer, rows: int) -> list[Stmt]:
    """Copies accumulators to memory and loops over the copy: their registers keep constant indices, and the code stays small."""
    held = buffer("held", int(acc.shape[0]), low.dtype)
    var, statements, body, at = variable("row"), [], [], 0
    for offsets, lanes in low.points():
        first = panel_layout.panel_offset(low.program, low.spatial, offsets)
        statements.append(store(held, load(acc, ramp(at, 1, lanes)), ramp(first, 1, lanes)))
        if offsets[rows] == 0:
            step = tuple(int(d == rows) for d in range(len(offsets)))
            stride = panel_layout.panel_offset(low.program, low.spatial, step)
            point = Point(low.nest, place, low.lane, lanes).moved(offsets)
            point = replace(point, positions=replaced(point.positions, rows, plus(point.positions[rows], var)))
            body.append(put(low, point, low.nest.stage.result, load(held, ramp(var * stride + first, 1, lanes))))
        at += lanes
    return [allocate_on_stack(held), *statements, loop(var, low.program.inner[rows], sequence(body))]


# --- results contiguous across the vector ----------------------------------------------------------------------------


def _along(low: Lowering) -> int | None:
    """Returns the dimension along which results are transposed; None for partial results of split-K."""
    return low.program.across if low.partial is None else None


def _finish_transposed(low: Lowering, place: tuple[Position, ...], acc: Buffer, dim: int) -> list[Stmt]:
    """Transposes blocks of accumulators in registers and stores them along the other dimension, with vector stores.

    Without it, each element would need a store of its own. A block has the size of the tile or the vector, whichever is smaller,
    rounded up to a power of two.
    """
    slots, at = {}, 0
    for offsets, lanes in low.points():
        slots[offsets] = at, lanes
        at += lanes
    statements: list[Stmt] = []
    for offsets in [o for o in slots if o[dim] == 0]:
        for first in range(0, low.program.inner[dim], low.width):
            count = min(low.width, low.program.inner[dim] - first)
            rows = [slots[replaced(offsets, dim, first + i)] for i in range(count)]
            statements += _transposed_rows(low, place, acc, rows, replaced(offsets, dim, first), dim)
    return statements


def _transposed_rows(
    low: Lowering, place: tuple[Position, ...], acc: Buffer, rows: Slots, offsets: tuple[int, ...], dim: int
) -> list[Stmt]:
    """Stores the results of a few accumulator vectors, neighbours along a dimension, along that dimension."""
    assert low.lane is not None
    count, lanes = len(rows), rows[0][1]
    block = 1 << (count - 1).bit_length()
    statements: list[Stmt] = []
    for begin in range(0, lanes, block):
        held = Held()
        picked = [index(min(begin + i, lanes - 1)) for i in range(block)]
        vectors = [
            [load(acc, ramp(at, 1, lanes))] * -(-block // lanes) for at, _ in rows
        ]  # a shuffle returns at most as many elements as it takes
        parts = [held(tirx.Shuffle(vector, picked), low.dtype, block) for vector in vectors]
        columns = transposed(parts + [parts[-1]] * (block - count), low.dtype, held)
        statements += held.statements
        for number, column in enumerate(columns[: lanes - begin]):
            value = column if count == block else tirx.Shuffle([column], [index(i) for i in range(count)])
            moved = replaced(offsets, low.lane, offsets[low.lane] + begin + number)
            statements.append(put(low, Point(low.nest, place, dim, count).moved(moved), low.nest.stage.result, value))
    return statements


# --- partial results of a vector's lanes -----------------------------------------------------------------------------


def _finish_folded(low: Lowering, place: tuple[Position, ...], acc: Buffer) -> list[Stmt]:
    """Reduces the lanes of accumulators; neighbouring results together, merging halves of two vectors into one at a time."""
    places = [offsets for offsets, _ in low.points()]
    first = {offsets: number * low.apart for number, offsets in enumerate(places)}
    whole = all(lanes == low.width for _, lanes in low.chunks()) and not low.width & (low.width - 1)
    dim = low.program.across if whole else None
    block = 1 if dim is None else min(low.width, low.program.inner[dim])
    statements: list[Stmt] = []
    for offsets in places:
        if dim is not None and offsets[dim] % block:
            continue
        count = 1 if dim is None else min(block, low.program.inner[dim] - offsets[dim])
        held = Held()
        if whole:
            rows = [first[offsets if dim is None else replaced(offsets, dim, offsets[dim] + i)] for i in range(count)]
            value = _folded(low, [_chunks_combined(low, acc, at, held) for at in rows], held)
        else:
            value = _across(low, acc, first[offsets])
        point = Point(low.nest, place, dim, count).moved(offsets)
        statements += [*held.statements, _finished(low, point, value)]
    return statements


def _chunks_combined(low: Lowering, acc: Buffer, at: int, held: Held) -> Expr:
    """Returns one vector of a point's partial results."""
    values = [load(acc, ramp(at + chunk, 1, lanes)) for chunk, lanes in low.chunks()]
    total = values[0]
    for value in values[1:]:
        total = held(combine(low.reducer or "sum", total, value), low.dtype, low.width)
    return total


def _folded(low: Lowering, rows: list[Expr], held: Held) -> Expr:
    """Reduces the lanes of each of several vectors to one element of a vector, in order.

    While there are several vectors, halves of two become one vector; then the last one is halved repeatedly.
    """
    count, lanes, group = len(rows), low.width, low.width
    rows = rows + [rows[-1]] * ((1 << (count - 1).bit_length()) - count)
    while group > 1:
        group //= 2
        if len(rows) > 1:
            pairs = zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)
            parts = [halves(a, b, group, lanes) for a, b in pairs]
        else:
            parts, lanes = [own_halves(rows[0], group, lanes)], lanes // 2
        rows = [held(combine(low.reducer or "sum", a, b), low.dtype, lanes) for a, b in parts]
    return rows[0] if count == lanes else tirx.Shuffle(rows, [index(i) for i in range(count)])


def _across(low: Lowering, acc: Buffer, at: int) -> Expr:
    """Reduces partial results pairwise, one element at a time."""
    values = [load(acc, index(at + i)) for i in range(low.apart)]
    while len(values) > 1:
        half = len(values) // 2
        folded = [combine(low.reducer or "sum", a, b) for a, b in zip(values[:half], values[half : 2 * half], strict=True)]
        values = folded + values[2 * half :]
    return values[0]


# --- split-K: a reduction split over units ---------------------------------------------------------------------------


def _put_partial(low: Lowering, point: Point, value: Expr) -> Stmt:
    output, tensor = low.nest.output, low.nest.stage.output
    assert low.partial is not None
    where = address(low.nest, ArrayView.whole(low.partial, tensor), output.index, point)
    shift = index(times(low.part, tensor.elements))
    if isinstance(where, list):
        return _scatter(low.partial, value, [w + shift for w in where])
    moved = tirx.Ramp(where.base + shift, where.stride, where.lanes) if is_vector(where) else where + shift
    return _scatter(low.partial, value, moved)


def _scatter(target: Buffer, value: Expr, where: Expr | list[Expr]) -> Stmt:
    """Stores a vector; lane by lane if its addresses are not a constant step apart."""
    if not isinstance(where, list):
        return store(target, value, where)
    held = buffer("lanes", len(where), str(target.dtype))
    spill = store(held, value, ramp(0, 1, len(where)))
    return sequence([*allocate([held]), spill, *(store(target, load(held, i), w) for i, w in enumerate(where))])
