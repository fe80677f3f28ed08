"""Reductions over whole axes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from roller.errors import ExpressionError
from roller.ir.expr import FLOATS, Axis, Reducer
from roller.ir.scalar import Accumulator, Affine, Binary
from roller.ops.tensor import SymbolicTensor, grid, produced, source, symbolic
from roller.ops.types import accumulation_dtype, compared_dtype, constant, converted, output_dtype

Axes = int | Sequence[int] | None


def reduce_sum(
    x: SymbolicTensor, axes: Axes = None, keepdims: bool = False, out_dtype: str | None = None, acc_dtype: str | None = None
) -> SymbolicTensor:
    """Computes the sum over the axes (all of them if None; negative ones count from the end); an empty sum is 0.

    Accumulator and result types are those of `matmul`: int8 sums to int32. `ExpressionError` for an axis that does not exist or is
    given twice.
    """
    (x,) = symbolic("reduce_sum", x)
    return _reduce(
        "reduce_sum", x, axes, keepdims, "sum", (output_dtype(x.dtype, out_dtype), accumulation_dtype(x.dtype, acc_dtype))
    )


def reduce_mean(x: SymbolicTensor, axes: Axes = None, keepdims: bool = False) -> SymbolicTensor:
    """Computes the mean over the axes, of a floating type. Errors as `reduce_sum`, and for integers and empty axes."""
    what = "reduce_mean"
    (x,) = symbolic(what, x)
    if x.dtype not in FLOATS:
        raise ExpressionError(f"{what}: the mean of {x.dtype} is not defined here; use .astype('float32') first")
    if any(x.shape[a] == 0 for a in _chosen(what, x, axes)):
        raise ExpressionError(f"{what}: the mean over an empty axis of {x.shape} has no value; give it at least one element")
    return _reduce(what, x, axes, keepdims, "sum", (x.dtype, accumulation_dtype(x.dtype)), mean=True)


def reduce_max(x: SymbolicTensor, axes: Axes = None, keepdims: bool = False) -> SymbolicTensor:
    """Computes the max over the axes, of x's type. Errors as `reduce_sum`, and for an empty axis."""
    (x,) = symbolic("reduce_max", x)
    return _reduce("reduce_max", x, axes, keepdims, "max", (x.dtype, compared_dtype(x.dtype)))


def reduce_min(x: SymbolicTensor, axes: Axes = None, keepdims: bool = False) -> SymbolicTensor:
    """Computes the min over the axes, of x's type. Errors as `reduce_sum`, and for an empty axis."""
    (x,) = symbolic("reduce_min", x)
    return _reduce("reduce_min", x, axes, keepdims, "min", (x.dtype, compared_dtype(x.dtype)))


def _chosen(what: str, x: SymbolicTensor, axes: Axes) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(x.ndim))
    try:
        numbers = tuple(operator.index(a) for a in (axes if isinstance(axes, Sequence) else (axes,)))
    except TypeError:
        raise ExpressionError(f"{what}: axes must be integers or None, got {axes!r}") from None
    found = [a + x.ndim if a < 0 else a for a in numbers]
    if any(not 0 <= a < x.ndim for a in found) or len(set(found)) != len(found):
        raise ExpressionError(f"{what}: axes {axes!r} must be different axes of a tensor with {x.ndim} dimensions")
    return tuple(sorted(found))


def _reduce(
    what: str,
    x: SymbolicTensor,
    axes: Axes,
    keepdims: bool,
    reducer: Reducer,
    dtypes: tuple[str, str],
    mean: bool = False,
) -> SymbolicTensor:
    chosen = _chosen(what, x, axes)
    every, index = grid(x.shape)
    out_dtype, acc_dtype = dtypes
    value = converted(source(x, 0, index), acc_dtype)
    if not chosen:  # nothing to reduce: a stage with a reducer but no reduce axis would have no use
        return produced(what, every, converted(value, out_dtype), x.shape, (x,))
    kept = [a for d, a in enumerate(every) if d not in chosen]
    shape = [1 if d in chosen else a.extent for d, a in enumerate(every) if keepdims or d not in chosen]
    store = [Affine() if d in chosen else i for d, i in enumerate(index) if keepdims or d not in chosen]
    reduced = [Axis(every[d].name, every[d].extent, "reduce") for d in chosen]
    count = math.prod(x.shape[d] for d in chosen)
    epilogue = Binary("div", Accumulator(acc_dtype), constant(count, acc_dtype)) if mean else None
    return produced(what, [*kept, *reduced], value, shape, (x,), dtype=out_dtype, store=store, reducer=reducer, epilogue=epilogue)
