"""Partial results of a reduction that units share (split-K): reduced by a second pass, with the epilogue after it."""

from __future__ import annotations

from roller.ir.expr import ELEMENT_BYTES
from roller.lowering.simd.context import Lowering
from roller.lowering.simd.epilogue import put
from roller.lowering.tir.addresses import ArrayView, Point, address
from roller.lowering.tir.builder import Buffer, Expr, Held, Stmt, index, load, loop, ramp, sequence, spread, store, variable
from roller.lowering.tir.expressions import combine, identity
from roller.lowering.tir.loads import Reader

PARALLEL = 1 << 16  # values from which another parallel loop is worth it
BLOCK_BYTES = 8192  # of results that are reduced at a time, at most: they stay in an L1 while the parts stream by
BLOCKS = 16  # of results, at least, if these are as many vectors: for so many units


def combine_parts(low: Lowering, partial: Buffer, parts: int) -> Stmt:
    """Reduces the partial results (none for an empty sum), and applies the epilogue element by element."""
    low.reader = Reader(low.nest, low.buffers)  # boxes are valid inside the nest only
    names = {i: variable(f"c{i}") for i in low.nest.spatial}
    point = Point(low.nest, tuple(names.get(i, 0) for i in range(len(low.nest.dims))))
    tensor = low.nest.stage.output
    where = address(low.nest, ArrayView.whole(partial, tensor), low.nest.output.index, point)
    body = put(low, point, low.nest.stage.result, load(partial, where) if parts else identity(low.reducer or "sum", low.dtype))
    for dim in reversed(low.nest.spatial):
        outermost = dim == low.nest.spatial[0]
        body = loop(names[dim], low.nest.extents[dim], body, parallel=outermost and tensor.elements >= PARALLEL)
    return sequence([*(_reduced(low, partial, parts, tensor.elements) if parts else []), body])


def _reduced(low: Lowering, partial: Buffer, parts: int, elements: int) -> list[Stmt]:
    """Reduces all parts to the first one, a block of results at a time, in the order of the parts."""
    vectors = -(-elements // (BLOCKS * low.width)) * low.width
    block = max(1, min(elements, vectors, BLOCK_BYTES // ELEMENT_BYTES[str(partial.dtype)]))
    number, whole = variable("block"), elements // block
    body = _block(low, partial, parts, elements, number * index(block), block)
    statements = [loop(number, whole, body, parallel=parts * elements >= PARALLEL)]
    if whole * block < elements:
        statements.append(_block(low, partial, parts, elements, index(whole * block), elements - whole * block))
    return statements


def _block(low: Lowering, partial: Buffer, parts: int, elements: int, first: Expr, count: int) -> Stmt:
    """Reduces a block of results: vectors, and the elements that are left."""
    lanes = low.width if count >= low.width else 1
    part = variable("part")

    def pass_over(source: Expr | None) -> list[Stmt]:
        step = variable("step")
        vectors = loop(step, count // lanes, _step(low, partial, first + step * index(lanes), source, lanes))
        return [vectors, *[_step(low, partial, first + index(n), source, 1) for n in range(count // lanes * lanes, count)]]

    others = [loop(part, parts - 1, sequence(pass_over((part + index(1)) * index(elements))))] if parts > 1 else []
    return sequence([*pass_over(None), *others])


def _step(low: Lowering, partial: Buffer, at: Expr, source: Expr | None, lanes: int) -> Stmt:
    """Adds the results of a part that begins at `source` to those of the first one; None: those to the neutral element."""
    held, reducer, where = Held(), low.reducer or "sum", ramp(at, 1, lanes)
    total = load(partial, where)
    if source is None:
        value = combine(reducer, spread(identity(reducer, low.dtype), lanes), total, held)
    else:
        value = combine(reducer, total, load(partial, ramp(at + source, 1, lanes)), held)
    return sequence([*held.statements, store(partial, value, where)])
