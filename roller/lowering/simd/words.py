"""Words (`roller.program.words`): operands that follow one another along a reduction, side by side in one integer."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from roller.ir.compensation import unbiased
from roller.ir.scalar import Cast, Load, Scalar
from roller.lowering.tir.addresses import Point, base_address, lane_stride
from roller.lowering.tir.builder import Buffer, Expr, Held, holds_its_type, index, load, number, ramp, spread, vector_type
from roller.lowering.tir.loads import Reader, together
from roller.lowering.tir.tile_starts import Position
from roller.program.rprogram import StageProgram, operand_value
from roller.program.words import word_dim, word_dtype

Value = Callable[[Scalar, Point], Expr]
BITS = {"bfloat16": "uint16"}  # integers that hold the bits of a type


def word_values(
    program: StageProgram, reader: Reader, factor: int, point: Point, count: int, held: Held, value: Value | None = None
) -> Expr:
    """Returns the words of a factor that begin at a point, with the point's lanes.

    `count`: operands of a word that exist; zeros follow them. `value`: how to compute operands, if not as the reader does.
    """
    node = operand_value(program.nest, factor, program.atom)
    assert node is not None
    signed = unbiased(node)
    if signed is None:
        return _packed(program, reader, node, point, count, held, value)
    return unsigned(program, _packed(program, reader, signed, point, count, held, value), point.lanes)


def unsigned(program: StageProgram, words: Expr, lanes: int) -> Expr:
    """Returns words of signed operands as those of unsigned ones (`roller.ir.compensation`): all sign bits are inverted."""
    bits, dtype = 8 * program.nest.accumulator_bytes // program.atom.depth, word_dtype(program)
    signs = sum([1 << (bits * n + bits - 1) for n in range(program.atom.depth)])
    return tirx.bitwise_xor(words, spread(number(signs - (1 << bits * program.atom.depth), dtype), lanes))


def _packed(program: StageProgram, reader: Reader, node: Scalar, point: Point, count: int, held: Held, value: Value | None) -> Expr:
    depth, deep = program.atom.depth, word_dim(program.atom, program.mapping)
    assert deep is not None
    if count == depth and isinstance(node, Load):
        window = reader.plain(node)
        along = window is not None and lane_stride(program.nest, window, node.index, deep) == 1
        if window is not None and str(window.buffer.dtype) == word_dtype(program):
            places = [base_address(program.nest, window, node.index, p) for p in (point.each() if point.lanes > 1 else [point])]
            return together([load(window.buffer, index(place)) for place in places])
        if window is not None and along and holds_its_type(window.buffer):
            places = [base_address(program.nest, window, node.index, p) for p in (point.each() if point.lanes > 1 else [point])]
            words = [loaded_words(window.buffer, place, depth, 1, word_dtype(program)) for place in places]
            return together(words)
    found = [_operand(reader, node, _further(point, deep, n), held, value) for n in range(count)]
    found += [spread(number(0, BITS.get(node.dtype, node.dtype)), point.lanes)] * (depth - count)
    return interleaved(found, word_dtype(program), point.lanes)


def bits_dtype(dtype: str) -> str:
    """Returns the type in which memory holds a type's bits, and TVM leaves them as they are: bfloat16 as integers."""
    return BITS.get(dtype, dtype)


def interleaved(rows: list[Expr], dtype: str, lanes: int) -> Expr:
    """Returns words, as integers of type `dtype`: the n-th elements of all rows, which have `lanes` elements each, side by side."""
    side_by_side = tirx.Shuffle(rows, [index(row * lanes + lane) for lane in range(lanes) for row in range(len(rows))])
    return tirx.reinterpret(vector_type(dtype, lanes), side_by_side)


def loaded_bits(source: Buffer, at: Expr, lanes: int) -> Expr:
    """Returns elements of an array in the type in which memory holds their bits."""
    dtype = str(source.dtype)
    if dtype in BITS and holds_its_type(source):
        return tirx.reinterpret(vector_type(BITS[dtype], lanes), load(source, at))
    return as_bits(load(source, at), dtype, lanes)


def as_bits(value: Expr, held: str, lanes: int = 1) -> Expr:
    """Returns values of the type `held` in the type in which memory holds their bits."""
    if held not in BITS:
        return value
    return _upper_halves(value.astype(vector_type("float32", lanes)), lanes)


def _upper_halves(value: Expr, lanes: int) -> Expr:
    """Returns the upper halves of float32 numbers, which are the bits of bfloat16 ones that were widened to them."""
    bits = tirx.reinterpret(vector_type("uint32", lanes), value) >> spread(number(16, "uint32"), lanes)
    return bits.astype(vector_type(BITS["bfloat16"], lanes))


def loaded_words(source: Buffer, place: Position, depth: int, lanes: int, dtype: str) -> Expr:
    """Returns words of `depth` operands each that lie one after another in an array, from this element on."""
    return tirx.reinterpret(vector_type(dtype, lanes), load(source, ramp(place, 1, lanes * depth)))


def _operand(reader: Reader, node: Scalar, point: Point, held: Held, value: Value | None) -> Expr:
    """Returns one operand of each word; of a bfloat16 its bits, those in memory or the upper half of what TVM computes with."""
    if node.dtype != "bfloat16" or _one_load(reader, node, point):
        found = reader.value(node, point, held) if value is None else value(node, point)
        return found if node.dtype not in BITS else tirx.reinterpret(vector_type(BITS[node.dtype], point.lanes), found)
    wide = Cast(node, "float32")
    found = reader.value(wide, point, held) if value is None else value(wide, point)
    return _upper_halves(found, point.lanes)


def _one_load(reader: Reader, node: Scalar, point: Point) -> bool:
    """True if a point's operands are one load from memory that holds them in their own type."""
    window = reader.plain(node) if isinstance(node, Load) else None
    if window is None or not isinstance(node, Load) or not holds_its_type(window.buffer):
        return False
    return point.lanes == 1 or (point.lane is not None and lane_stride(reader.nest, window, node.index, point.lane) == 1)


def _further(point: Point, dim: int, count: int) -> Point:
    return point.moved(tuple(count if d == dim else 0 for d in range(len(point.positions))))
