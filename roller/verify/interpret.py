"""The interpreter of tensor expressions: every stage at all points or at the needed ones, in pieces of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roller.errors import ExpressionError
from roller.ir.expr import FLOATS, Axis, Stage, Tensor, TensorExpr
from roller.ir.scalar import Affine, Binary, Load
from roller.verify.rounding import (
    SIGNIFICANT_BITS,
    UNIT_ROUNDOFF,
    Approximate,
    Array,
    Points,
    evaluate,
    numpy_dtype,
    product,
    widened,
)

# Points of a loop nest evaluated together: 8 MiB an array, about ten arrays alive at a time.
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """The known elements of one tensor: those at sorted flat indices, or all of them (`flat` is None)."""

    content: Approximate
    flat: Array | None = None

    def at(self, flat: Array) -> Approximate:
        """Returns the elements at flat indices, which must be known."""
        place = flat if self.flat is None else np.minimum(np.searchsorted(self.flat, flat), max(len(self.flat) - 1, 0))
        beside = (part[place] if isinstance(part, np.ndarray) else part for part in (self.content.error, self.content.fused))
        return Approximate(self.content.value[place], *beside)


def interpret(expr: TensorExpr, arrays: Mapping[str, Array], flat: Array | None) -> Approximate:
    """Computes the output's elements at flat indices (all, in order, if None), with error bounds.

    `arrays` are the inputs by name; intermediate tensors are evaluated only where needed.
    """
    needed = _needed(expr, flat)
    tables: dict[str, Table] = {}

    def load(node: Load, points: Points) -> Approximate:
        tensor = expr.tensors[node.tensor]
        position, inside = _position(node, tensor, points)
        if node.tensor in tables:
            found = tables[node.tensor].at(position)
        else:
            found = Approximate(_gathered(arrays[node.tensor], position, tensor.dtype))
        if node.fill is None or inside is None:
            return found
        beside = (np.where(inside, part, 0.0) for part in (found.error, found.fused))
        return Approximate(np.where(inside, found.value, node.fill), *beside)

    with np.errstate(all="ignore"):
        for stage in expr.stages:
            if stage.name in needed:
                tables[stage.name] = _stage(stage, needed[stage.name], load)
        last = tables[expr.output.name]
        return last.content if flat is None else last.at(flat)


def _gathered(array: Array, position: Array, dtype: str) -> Array:
    if array.size == 0:  # only under a fill, or in the side of a select that is not chosen
        return widened(np.zeros(position.shape), dtype)
    # A view that is not dense is indexed directly: flattening would copy it, once for every piece.
    found = array.reshape(-1)[position] if array.flags.c_contiguous else array[np.unravel_index(position, array.shape)]
    return widened(found.astype(numpy_dtype(dtype)), dtype)


def _position(node: Load, tensor: Tensor, points: Points) -> tuple[Array, Array | None]:
    """Returns the flat index of a load, clamped to the tensor, and the test that it is inside (None: no fill)."""
    if node.fill is None:
        flat = Affine()
        for index, stride in zip(node.index, tensor.strides, strict=True):
            flat = flat.plus(index.times(stride))
        return np.clip(points.index(flat), 0, max(tensor.elements - 1, 0)), None
    position: Array = np.zeros((), dtype=np.int64)
    inside: Array = np.ones((), dtype=np.bool_)
    for index, stride, extent in zip(node.index, tensor.strides, tensor.shape, strict=True):
        value = points.index(index)
        inside = inside & (value >= 0) & (value < extent)
        position = position + np.clip(value, 0, max(extent - 1, 0)) * stride
    return position, inside


def _needed(expr: TensorExpr, flat: Array | None) -> dict[str, Array | None]:
    """Returns stage → sorted flat indices of its output that the wanted points depend on; None for all of them."""
    if flat is None:
        return {stage.name: None for stage in expr.stages}
    wanted: dict[str, list[Array]] = {expr.output.name: [np.unique(flat)]}
    produced = {stage.name for stage in expr.stages}
    result: dict[str, Array | None] = {}
    for stage in reversed(expr.stages):
        if stage.name not in wanted:
            continue
        points = np.unique(np.concatenate(wanted[stage.name]))
        result[stage.name] = points
        for node in stage.reads:
            if node.tensor in produced:
                tensor = expr.tensors[node.tensor]
                wanted.setdefault(node.tensor, []).extend(_touched(stage, node, tensor, points))
    return result


def _touched(stage: Stage, node: Load, tensor: Tensor, flat: Array) -> Iterator[Array]:
    used = {name for index in node.index for name, _ in index.terms}
    reduced = [a for a in stage.reduced if a.name in used]
    extent = math.prod(a.extent for a in reduced)
    for first in _pieces(len(flat), max(1, PIECE // max(extent, 1))):
        spatial = _columns(_inverse(stage, flat[first]))
        for second in _pieces(extent, PIECE):
            points = Points(spatial | _rows(reduced, second), _no_load)
            position, inside = _position(node, tensor, points)
            shape = np.broadcast_shapes(position.shape, () if inside is None else inside.shape)
            kept = np.broadcast_to(position, shape)
            yield np.unique(kept if inside is None else kept[np.broadcast_to(inside, shape)])


def _no_load(node: Load, points: Points) -> Approximate:
    raise AssertionError("indices do not load")


def _stage(stage: Stage, flat: Array | None, load: Callable[[Load, Points], Approximate]) -> Table:
    count = math.prod(a.extent for a in stage.spatial) if flat is None else len(flat)
    kind = np.float64 if stage.output.dtype in FLOATS else np.bool_ if stage.output.dtype == "bool" else np.int64
    values: Array = np.zeros(stage.output.elements if flat is None else count, dtype=kind)
    errors, fused = (np.zeros(len(values)) for _ in range(2))
    reduction = math.prod(a.extent for a in stage.reduced)
    for piece in _pieces(count, max(1, PIECE // max(reduction, 1))):
        if flat is None:
            spatial = _unravelled(stage.spatial, np.arange(piece.start, piece.stop))
            target: Array | slice = _stored(stage, spatial)
        else:
            spatial, target = _inverse(stage, flat[piece]), piece
        columns = _columns(spatial)
        accumulator = _reduced(stage, columns, load) if stage.reducer is not None else None
        points = Points(columns, load, accumulator)
        result = evaluate(stage.result, points)
        size = (piece.stop - piece.start, 1)
        values[target] = np.broadcast_to(result.value, size)[:, 0]
        errors[target] = np.broadcast_to(result.error, size)[:, 0]
        fused[target] = np.broadcast_to(result.fused, size)[:, 0]
    return Table(Approximate(values, errors, fused), flat)


def _reduced(stage: Stage, columns: Mapping[str, Array], load: Callable[[Load, Points], Approximate]) -> Approximate:
    """Returns the finished accumulator at a column of spatial points."""
    dtype = stage.body.dtype
    extent = math.prod(a.extent for a in stage.reduced)
    size = len(next(iter(columns.values()))) if columns else 1
    total = error = magnitude = None
    whole: Array = np.ones((size, 1), dtype=np.bool_)
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[stage.reducer or "sum"]
    for piece in _pieces(extent, PIECE):
        axes = dict(columns) | _rows(stage.reduced, piece)
        term = _term(stage, Points(axes, load))
        shape = (size, piece.stop - piece.start)
        value = np.broadcast_to(term.value, shape)
        part = combine.reduce(value, axis=1, keepdims=True)
        total = part if total is None else combine(total, part)
        if dtype in FLOATS:
            spread = np.broadcast_to(np.asarray(term.error, dtype=np.float64), shape)
            gather = np.add if stage.reducer == "sum" else np.maximum
            reached = gather.reduce(spread, axis=1, keepdims=True)
            error = reached if error is None else gather(error, reached)
            if stage.reducer == "sum":
                size_of = np.abs(value).sum(axis=1, keepdims=True)
                magnitude = size_of if magnitude is None else magnitude + size_of
                whole &= ((value == np.rint(value)) & (spread == 0)).all(axis=1, keepdims=True)
    if total is None:  # the empty sum; an empty max or min cannot be a stage
        return Approximate(widened(np.zeros((size, 1)), dtype))
    if error is None or magnitude is None:
        return Approximate(widened(total, dtype), 0.0 if error is None else error)
    exact = whole & (magnitude <= 2.0 ** SIGNIFICANT_BITS[dtype])
    lost = np.where(np.isfinite(total), _gamma(extent, dtype) * (magnitude + error), 0.0)  # an infinity is not rounded
    return Approximate(total, np.where(exact, 0.0, error + lost))


def _term(stage: Stage, points: Points) -> Approximate:
    """Returns the values that the reducer combines."""
    if stage.factor_dtype is None:
        return evaluate(stage.body, points)
    assert isinstance(stage.body, Binary), "only factors of products may be rounded"
    return product(stage.body, stage.factor_dtype, points)


def _gamma(terms: int, dtype: str) -> float:
    """Returns the max error of summing n terms in any order, relative to Σ|t|: n·u / (1 - n·u).

    From n·u = 1/2 on (float16 beyond 1024 terms) this worst case is useless; it is replaced by 8·√n·u, which random rounding errors
    exceed with a probability below 1e-13 (Higham and Mary 2019).
    """
    loss = terms * UNIT_ROUNDOFF[dtype]
    if dtype == "float64":
        loss *= 2  # the reference rounds too
    return loss / (1 - loss) if loss < 0.5 else 8 * math.sqrt(terms) * UNIT_ROUNDOFF[dtype]


def _pieces(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _unravelled(axes: Sequence[Axis], flat: Array) -> dict[str, Array]:
    """Returns axis name → its value at flat indices into the nest of the axes (row-major)."""
    result: dict[str, Array] = {}
    rest = flat
    for axis in reversed(axes):
        rest, result[axis.name] = np.divmod(rest, max(axis.extent, 1))
    return result


def _columns(values: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value[:, None] for name, value in values.items()}


def _rows(axes: Sequence[Axis], piece: slice) -> dict[str, Array]:
    return {name: value[None, :] for name, value in _unravelled(axes, np.arange(piece.start, piece.stop)).items()}


def _stored(stage: Stage, spatial: Mapping[str, Array]) -> Array:
    """Returns the flat output index of points of the spatial axes."""
    points = Points(spatial, _no_load)
    flat: Array = np.zeros((), dtype=np.int64)
    for index, stride in zip(stage.store, stage.output.strides, strict=True):
        flat = flat + points.index(index) * stride
    size = len(next(iter(spatial.values()))) if spatial else 1
    return np.broadcast_to(flat, (size,))


def _inverse(stage: Stage, flat: Array) -> dict[str, Array]:
    """Returns the point of the spatial axes that is stored at each flat index: store indices are decoded as mixed-radix digits."""
    point = {a.name: np.zeros(len(flat), dtype=np.int64) for a in stage.spatial}
    rest = flat
    for index, extent in reversed(list(zip(stage.store, stage.output.shape, strict=True))):
        rest, value = np.divmod(rest, max(extent, 1))
        low, _ = index.bounds(stage.extents)
        value = value - low
        for name, coefficient in sorted(index.terms, key=lambda term: -abs(term[1])):
            digit, value = np.divmod(value, abs(coefficient))
            point[name] = digit if coefficient > 0 else stage.extents[name] - 1 - digit
    if not np.array_equal(_stored(stage, point), flat) and len(flat):
        raise ExpressionError(f"stage {stage.name!r}: the store index cannot be inverted; verify all points instead (points=None)")
    return point
