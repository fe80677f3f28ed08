"""The reference: the value of a tensor expression in NumPy and float64, and the error bound of a correct kernel.

The expression is interpreted unfused, in float64 (integers exactly, wrapping at their type's width). Each operation that IEEE 754
rounds is rounded to its type if its operands are exact, and so are casts. So every wrong bit is found in an operator without sums
over axes, functions, and products that go into sums. The tolerance is a bound per element, derived from element types and reduction
lengths; see `roller.verify.rounding`. Small integers (`random_inputs(..., integer=True)`) find every fault if no function is
involved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roller.errors import ExpressionError, WrongResultError
from roller.ir.expr import FLOATS, Tensor, TensorExpr
from roller.ir.scalar import Binary, Cast, Unary, loads, walk
from roller.ops.types import integer_range
from roller.target.hardware import STORED_AS
from roller.verify.interpret import interpret
from roller.verify.rounding import Approximate, Array, numpy_dtype, to_significant

__all__ = ["Expected", "check", "numpy_dtype", "random_inputs", "reference", "sample_points", "to_significant", "tolerance"]

Arrays = Mapping[str, Array] | Sequence[Array]
SPECIAL_PLACES = 8  # elements of an input that hold special values


def reference(expr: TensorExpr, arrays: Arrays, points: Array | None = None) -> Array:
    """Computes the expression's value in float64 (int64, bool): the whole output, or its elements at `points`.

    `arrays` are the inputs, in order or by name. `points` is an integer array (count, dimensions of the output); then the result
    has shape (count,), and intermediate tensors are evaluated only where needed. `ExpressionError` if an array is missing or has
    another shape, or a point is outside the output.
    """
    return _shaped(expr, _interpreted(expr, arrays, points).value, points)


def tolerance(expr: TensorExpr, arrays: Arrays, points: Array | None = None) -> Array:
    """Computes the max absolute error of a correct kernel, per element of the result of `reference`. Errors as there."""
    return _shaped(expr, _bound(_interpreted(expr, arrays, points)), points)


@dataclass(frozen=True)
class Expected:
    """The expected result at some points of the output (flat, in order; None: everywhere), and the permitted error at each.

    It serves several results of the same inputs, because computing it takes longer than comparing.
    """

    expr: TensorExpr
    value: Array
    bound: Array
    flat: Array | None

    @staticmethod
    def of(expr: TensorExpr, arrays: Arrays, points: Array | None = None) -> Expected:
        """Computes the reference and its tolerance; errors as `reference`."""
        found = _interpreted(expr, arrays, points)
        return Expected(expr, found.value, _bound(found), _flat(expr, points))

    def check(self, result: Array) -> None:
        """Checks a result as the function `check`."""
        output, expected, bound = self.expr.output, self.value, self.bound
        if tuple(result.shape) != output.shape:
            raise WrongResultError(f"{output.name}: the result has shape {tuple(result.shape)}, expected {output.shape}")
        got = result.reshape(-1) if self.flat is None else result.reshape(-1)[self.flat]
        got = got.astype(np.float64 if output.dtype in FLOATS else np.int64)
        with np.errstate(all="ignore"):
            away = np.abs(got - expected)
            right = (away <= bound) | (got == expected) | (np.isnan(got) & np.isnan(expected))
            excess = np.where(right, -1.0, np.nan_to_num(away / np.maximum(bound, np.finfo(np.float64).tiny), nan=np.inf))
        if right.all():
            return
        worst = int(np.argmax(excess))
        place = np.unravel_index(worst if self.flat is None else int(self.flat[worst]), output.shape)
        raise WrongResultError(
            f"{output.name}: {int((~right).sum())} of {len(right)} elements are wrong; the worst is {got[worst]!s}, "
            f"expected {expected[worst]!s}, allowed error {bound[worst]:.3g};",
            tuple(int(p) for p in place),
            float(away[worst]),
        )


def check(expr: TensorExpr, arrays: Arrays, result: Array, points: Array | None = None) -> None:
    """Returns if the result is right within the tolerance, at all elements or at `points`.

    `result` is always the whole output. `WrongResultError` reports the number of wrong elements and, for the worst one, its index,
    value, expected value and permitted error. NaN must match NaN, and infinity infinity. Errors as `reference`.
    """
    Expected.of(expr, arrays, points).check(result)


def random_inputs(
    expr: TensorExpr, seed: int = 0, integer: bool = False, held: str | None = None, special: bool = False
) -> dict[str, Array]:
    """Returns inputs by name, of their own element types (bfloat16 is that of ml_dtypes), the same for the same seed.

    Floats are in -1..1, integers in -8..8 within the type; with `integer` all values are integers in -4..4. Inputs to logarithms,
    roots, powers or divisions are positive, and no smaller than 1/2. `held`: float32 inputs are representable in this narrower
    format, so rounding to it changes nothing. `special`: a few elements of each input are special values: infinities, NaN and -0.0,
    and the min and max of integers. An operator that converts floats to integers gets none, because the results are then
    unspecified.
    """
    positive = _positive(expr)
    found = {t.name: _random(t, [seed, n], integer, t.name in positive) for n, t in enumerate(expr.inputs)}
    if special and not _open(expr):
        for n, array in enumerate(found.values()):
            _sprinkle(array, [seed, n, 1])
    if held is None:
        return found
    kept = {t.name for t in expr.inputs if t.dtype == STORED_AS[held]}
    return {name: to_significant(array, held).astype(array.dtype) if name in kept else array for name, array in found.items()}


def sample_points(expr: TensorExpr, count: int, seed: int = 0) -> Array:
    """Returns up to `count` different points of the output, sorted, shape (points, dimensions): its corners and random ones."""
    shape = expr.output.shape
    if expr.output.elements <= count:
        return np.indices(shape).reshape(len(shape), expr.output.elements).T
    generator = np.random.default_rng(seed)
    corners = generator.integers(0, 2, (min(2 ** len(shape), count // 2), len(shape))) * (np.array(shape, dtype=np.int64) - 1)
    inner = generator.integers(0, np.array(shape), (count - len(corners) - 2, len(shape)))
    ends = np.array([[0] * len(shape), [e - 1 for e in shape]])
    return np.unique(np.concatenate([ends, corners, inner]), axis=0)


def _random(tensor: Tensor, seed: Sequence[int], integer: bool, positive: bool) -> Array:
    generator = np.random.default_rng(seed)
    dtype = numpy_dtype(tensor.dtype)
    if tensor.dtype in FLOATS and not integer:
        return np.asarray(generator.uniform(0.5 if positive else -1.0, 1.0, tensor.shape)).astype(dtype)
    reach = 4 if integer else 8
    low, high = (1 if positive else -reach, reach) if tensor.dtype != "bool" else (0, 1)
    if tensor.dtype not in FLOATS:
        low = max(low, integer_range(tensor.dtype)[0])
    return np.asarray(generator.integers(low, high + 1, tensor.shape)).astype(dtype)


def _sprinkle(array: Array, seed: Sequence[int]) -> None:
    """Sets a few elements of an array to special values, so few that sums of many elements are not all NaN."""
    if array.dtype == np.bool_ or not array.size:
        return
    generator = np.random.default_rng(seed)
    if array.dtype.kind in "iu":
        values: list[float] = [np.iinfo(array.dtype).min, np.iinfo(array.dtype).max]
    else:
        values = [np.inf, -np.inf, np.nan, -0.0, 0.0]
    for place in generator.choice(array.size, min(SPECIAL_PLACES, max(array.size // 8, 1)), replace=False):
        array.reshape(-1)[place] = values[generator.integers(len(values))]


def _open(expr: TensorExpr) -> bool:
    """Returns whether floats are converted to integers; the contract leaves that open for NaN and beyond the type's range."""
    nodes = (node for stage in expr.stages for root in (stage.body, stage.result) for node in walk(root))
    return any(isinstance(n, Cast) and n.dtype not in FLOATS | {"bool"} and n.value.dtype in FLOATS for n in nodes)


def _positive(expr: TensorExpr) -> frozenset[str]:
    """Returns the inputs that a logarithm, root, power or divisor depends on, directly or through other stages."""
    marked: set[str] = set()
    for stage in reversed(expr.stages):
        for root in (stage.body, stage.result):
            for node in walk(root):
                if isinstance(node, Unary) and node.op in ("log", "sqrt", "rsqrt"):
                    marked.update(load.tensor for load in loads(node))
                if isinstance(node, Binary) and node.op in ("div", "pow"):
                    marked.update(load.tensor for load in loads(node.right if node.op == "div" else node.left))
        if stage.name in marked:
            marked.update(load.tensor for load in stage.reads)
    return frozenset(marked)


def _interpreted(expr: TensorExpr, arrays: Arrays, points: Array | None) -> Approximate:
    if not isinstance(arrays, Mapping):
        if len(arrays) != len(expr.inputs):
            raise ExpressionError(f"{len(expr.inputs)} inputs are expected ({_listed(expr)}), {len(arrays)} arrays given")
        arrays = {t.name: a for t, a in zip(expr.inputs, arrays, strict=True)}
    for tensor in expr.inputs:
        if tensor.name not in arrays:
            raise ExpressionError(f"no array for the input {tensor.name!r}; expected: {_listed(expr)}")
        if tuple(arrays[tensor.name].shape) != tensor.shape:
            raise ExpressionError(f"input {tensor.name!r} has shape {tuple(arrays[tensor.name].shape)}, expected {tensor.shape}")
    return interpret(expr, arrays, _flat(expr, points))


def _listed(expr: TensorExpr) -> str:
    return ", ".join(f"{t.name} {t.shape}" for t in expr.inputs)


def _flat(expr: TensorExpr, points: Array | None) -> Array | None:
    if points is None:
        return None
    shape = np.array(expr.output.shape, dtype=np.int64)
    if points.ndim != 2 or points.shape[1] != len(shape) or ((points < 0) | (points >= shape)).any():
        raise ExpressionError(f"points must be an array (count, {len(shape)}) of indices into the output {expr.output.shape}")
    return points.astype(np.int64) @ np.array(expr.output.strides, dtype=np.int64)


def _shaped(expr: TensorExpr, values: Array, points: Array | None) -> Array:
    return values.reshape(expr.output.shape) if points is None else values


def _bound(result: Approximate) -> Array:
    """Returns the error bound as an array; infinity if it is undefined."""
    bound: Array = np.broadcast_to(np.asarray(result.error, dtype=np.float64), result.value.shape)
    return np.where(np.isnan(bound), np.inf, bound)
