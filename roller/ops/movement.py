"""Operators that only move elements: transpose, pad, broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExpressionError
from roller.ir.scalar import Affine
from roller.ops.tensor import SymbolicTensor, broadcast_index, broadcast_shape, grid, produced, source, symbolic, tensor
from roller.ops.types import constant


def transpose(x: SymbolicTensor, axes: Sequence[int] | None = None) -> SymbolicTensor:
    """Permutes x's dimensions (reverses them if `axes` is None): dimension d of the result is dimension axes[d] of x.

    `ExpressionError` unless `axes` has every dimension once (negative ones count from the end).
    """
    (x,) = symbolic("transpose", x)
    order = tuple(reversed(range(x.ndim))) if axes is None else tuple(a + x.ndim if a < 0 else a for a in axes)
    if sorted(order) != list(range(x.ndim)):
        raise ExpressionError(f"transpose: axes {axes!r} must name each of the {x.ndim} dimensions of {x.shape} once")
    shape = tuple(x.shape[d] for d in order)
    every, index = grid(shape)
    return produced("transpose", every, source(x, 0, [index[order.index(d)] for d in range(x.ndim)]), shape, (x,))


def pad(x: SymbolicTensor, widths: Sequence[tuple[int, int]], value: float = 0) -> SymbolicTensor:
    """Pads x with (before, after) extra elements of `value` in each dimension.

    `ExpressionError` unless there is one pair of non-negative integers for each dimension.
    """
    (x,) = symbolic("pad", x)
    if len(widths) != x.ndim or not all(len(w) == 2 and all(isinstance(e, int) and e >= 0 for e in w) for w in widths):
        raise ExpressionError(f"pad: expected one (before, after) pair for each of the {x.ndim} dimensions, got {widths!r}")
    shape = tuple(before + extent + after for extent, (before, after) in zip(x.shape, widths, strict=True))
    every, index = grid(shape)
    moved = [i.plus(-before) for i, (before, _) in zip(index, widths, strict=True)]
    return produced("pad", every, source(x, 0, moved, constant(value, x.dtype).value), shape, (x,))


def broadcast_to(x: SymbolicTensor, shape: Sequence[int]) -> SymbolicTensor:
    """Broadcasts x to `shape` by NumPy's rules; `ExpressionError` if it does not broadcast to that."""
    (x,) = symbolic("broadcast_to", x)
    target = tensor(shape, x.dtype)
    if broadcast_shape("broadcast_to", (x, target)) != target.shape:
        raise ExpressionError(f"broadcast_to: shape {x.shape} does not broadcast to {target.shape}")
    every, _ = grid(target.shape)
    return produced("broadcast_to", every, source(x, 0, broadcast_index(x, target.shape)), target.shape, (x,))


def expand_dims(x: SymbolicTensor, axis: int) -> SymbolicTensor:
    """Inserts a dimension of extent 1 into x at `axis` of the result (negative counts from the end)."""
    (x,) = symbolic("expand_dims", x)
    place = axis + x.ndim + 1 if axis < 0 else axis
    if not 0 <= place <= x.ndim:
        raise ExpressionError(f"expand_dims: axis {axis} must be one of {-x.ndim - 1}..{x.ndim} for shape {x.shape}")
    shape = (*x.shape[:place], 1, *x.shape[place:])
    every, index = grid(shape)
    kept: tuple[Affine, ...] = (*index[:place], *index[place + 1 :])
    return produced("expand_dims", every, source(x, 0, kept), shape, (x,))
