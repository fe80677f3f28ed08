"""Square blocks of elements, transposed in registers: vectors are loaded along one dimension and used along another.

A block has as many vectors as a vector has lanes. Exchanging halves, quarters, ... of pairs of vectors takes log2(width)
instructions per vector; moving one element at a time takes several times as many.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx

from roller.ir.scalar import Load, loads
from roller.lowering.simd.context import Lowering
from roller.lowering.tir.addresses import ArrayView, Point, base_address, lane_stride
from roller.lowering.tir.builder import Expr, Held, Stmt, index, load, ramp, sequence

Vectors = dict[int, Expr]  # by the position of the array in nest.accesses


def transposed(rows: list[Expr], dtype: str, held: Held) -> list[Expr]:
    """Returns the columns of a square block of rows, whose number is a power of two; each vector is held once."""
    width = len(rows)
    rows = list(rows)
    distance = width // 2
    while distance:
        for first in range(width):
            if not first & distance:
                low, high = halves(rows[first], rows[first + distance], distance, width)
                rows[first], rows[first + distance] = held(low, dtype, width), held(high, dtype, width)
        distance //= 2
    return rows


def halves(a: Expr, b: Expr, distance: int, width: int) -> tuple[Expr, Expr]:
    """Returns, for every pair of neighbouring groups of `distance` elements, the first ones of both vectors and the second ones."""
    low, high = [], []
    for at in range(0, width, 2 * distance):
        low += [*range(at, at + distance), *range(width + at, width + at + distance)]
        high += [*range(at + distance, at + 2 * distance), *range(width + at + distance, width + at + 2 * distance)]
    return tuple(tirx.Shuffle([a, b], [index(i) for i in order]) for order in (low, high))


def own_halves(a: Expr, distance: int, width: int) -> tuple[Expr, Expr]:
    """Returns, for every pair of neighbouring groups of `distance` elements of one vector, the first ones and the second ones."""
    first = [i for i in range(width) if not i & distance]
    return tuple(tirx.Shuffle([a], [index(i + shift) for i in first]) for shift in (0, distance))


def tile_points(low: Lowering, place: Point) -> Iterator[tuple[Stmt | None, Point, Vectors]]:
    """Yields the vectors of points of an elementwise tile, with the values of arrays that are contiguous across the vector.

    Points of whole blocks come first, with the statement that loads them, then the remaining points.
    """
    across, dim = _across(low)
    points = list(low.points())
    for offsets, lanes in points if across else []:
        if _in_block(low, offsets, lanes, dim) and offsets[dim] % low.width == 0:
            yield from _block(low, place, offsets, dim, across)
    for offsets, lanes in points:
        if not across or not _in_block(low, offsets, lanes, dim):
            yield None, Point(place.nest, place.positions, low.lane, lanes).moved(offsets), {}


def _in_block(low: Lowering, offsets: tuple[int, ...], lanes: int, dim: int) -> bool:
    whole = low.program.inner[dim] // low.width * low.width
    return lanes == low.width and offsets[dim] < whole


def _across(low: Lowering) -> tuple[dict[int, tuple[Load, ArrayView]], int]:
    """Returns arrays that are contiguous along another dimension of the tile than the vector's, at least a block wide there."""
    width, lane, nest = low.width, low.lane, low.nest
    found: dict[int, tuple[Load, ArrayView]] = {}
    if lane is None or width < 2 or width & (width - 1):
        return found, 0
    for dim in nest.spatial:
        if dim == lane or low.program.inner[dim] < width:
            continue
        for node in loads(nest.stage.result):
            window = low.reader.plain(node)
            if window is None:
                continue
            if lane_stride(nest, window, node.index, dim) == 1 and lane_stride(nest, window, node.index, lane) not in (0, 1):
                found[low.reader.number(node)] = node, window
        if found:
            return found, dim
    return found, 0


def _block(
    low: Lowering, place: Point, offsets: tuple[int, ...], dim: int, across: dict[int, tuple[Load, ArrayView]]
) -> Iterator[tuple[Stmt | None, Point, Vectors]]:
    """The points of one block."""
    held, width = Held(), low.width
    first = Point(place.nest, place.positions, low.lane, width).moved(offsets)
    values: dict[int, list[Expr]] = {}
    for number, (node, window) in across.items():
        starts = [base_address(low.nest, window, node.index, p) for p in first.each()]
        rows = [held(load(window.buffer, ramp(start, 1, width)), node.dtype, width) for start in starts]
        values[number] = transposed(rows, node.dtype, held)
    step = [0] * len(offsets)
    for at in range(width):
        step[dim] = at
        vectors = {number: columns[at] for number, columns in values.items()}
        yield (sequence(held.statements) if at == 0 else None), first.moved(step), vectors
