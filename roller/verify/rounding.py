"""Scalar expressions on arrays of points: float64 values, each with an error bound of a correct kernel.

The bound is a running error analysis (Higham, *Accuracy and Stability of Numerical Algorithms*, §3). Beside the value v of a node
it computes e ≥ |computed - v|, for any order of the kernel's operations. With u the unit roundoff of the node's type,

    a + b, a - b     e = e_a + e_b + u|v|                a · b    e = |a|e_b + |b|e_a + e_a·e_b + u|v|
    a ÷ b            e = (e_a + |v|e_b) / (|b| - e_b) + u|v|
    f(a) monotone    e = max |f(a ± e_a) - f(a)| + c·u|v|         (c: `FUNCTION_ULPS`, the permitted error of maths libraries)
    sum of n terms   e = Σe_i + γ_n·Σ(|t_i| + e_i),  γ_n = n·u / (1 - n·u)
    select           e of the chosen side; if the errors could flip the condition, also the distance of the two sides
    factor that may be rounded to a narrower format of unit roundoff w:  e + w(|v| + e) instead of its e

Sums, differences, products, quotients and square roots of exact operands are rounded here as in IEEE 754, and have no error: any
difference is a fault. (float64 has more than twice the bits of float32, so rounding its result once more gives the nearest float32,
Figueroa 1995.) A product may go into a sum with all of its bits (docs/numerics.md, rule 2): it is then up to u|v| from the rounded
one, which is `Approximate.fused`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from roller.ir.expr import FLOATS
from roller.ir.scalar import ARITHMETIC, LOGICAL, Accumulator, Affine, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary
from roller.runtime.arrays import narrowed

Array = npt.NDArray[Any]

UNIT_ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53, "float32": 2.0**-24, "tfloat32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip
# Absolute error near zero: devices flush float32 subnormals to 0; float16 keeps its own.
UNDERFLOW: Mapping[str, float] = {
    "float64": 2.0**-1022, "float32": 2.0**-126, "tfloat32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126,
}  # fmt: skip
SIGNIFICANT_BITS: Mapping[str, int] = {"float64": 53, "float32": 24, "tfloat32": 11, "float16": 11, "bfloat16": 8}
FUNCTION_ULPS = 16.0


@dataclass(frozen=True, slots=True)
class Approximate:
    """Values (float64, int64 or bool) and bounds on a kernel's error; for bool 1 if a kernel may get the other value.

    `fused`: additional distance from a value if it goes into a sum, because an unrounded product may go into it.
    """

    value: Array
    error: Array | float = 0.0
    fused: Array | float = 0.0


@dataclass(frozen=True, slots=True)
class Points:
    """The points at which a scalar is evaluated: axis values as arrays that broadcast, and a function for loads."""

    axes: Mapping[str, Array]
    load: Callable[[Load, Points], Approximate]
    accumulator: Approximate | None = None
    memo: dict[int, Approximate] = field(default_factory=dict)

    def index(self, index: Affine) -> Array:
        """Returns the values of an index at the points; terms of one shape are added before they broadcast."""
        parts: dict[tuple[int, ...], Array] = {}
        for name, coefficient in index.terms:
            term = self.axes[name] * coefficient
            parts[term.shape] = parts[term.shape] + term if term.shape in parts else term
        total = np.asarray(index.offset, dtype=np.int64)
        for part in parts.values():
            total = total + part
        return total


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Returns the NumPy type of a name; bfloat16 is that of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def evaluate(node: Scalar, points: Points) -> Approximate:
    """Computes the node at every point; subtrees that occur several times are evaluated once."""
    known = points.memo.get(id(node))
    if known is None:
        known = points.memo[id(node)] = _evaluate(node, points)
    return known


def _evaluate(node: Scalar, points: Points) -> Approximate:
    match node:
        case Const():
            # A constant has the value of its type: 0.1 in float32 is not 0.1.
            return Approximate(widened(narrowed(np.asarray(node.value), node.dtype), node.dtype))
        case Load():
            return points.load(node, points)
        case Coordinate():
            return Approximate(points.index(node.index))
        case Accumulator():
            assert points.accumulator is not None, "an Accumulator outside an epilogue"
            return points.accumulator
        case Unary():
            return _unary(node, evaluate(node.value, points))
        case Binary():
            return _binary(node, evaluate(node.left, points), evaluate(node.right, points))
        case Select():
            chosen = (evaluate(side, points) for side in (node.condition, node.yes, node.no))
            return _select(*chosen)
        case Cast():
            return _cast(node, evaluate(node.value, points))


def widened(value: Array, dtype: str) -> Array:
    """Returns values of an element type in their working type: float64, int64 (wrapped to the type's range) or bool."""
    if dtype in FLOATS:
        return value.astype(np.float64)
    if dtype == "bool":
        return value.astype(np.bool_)
    return value.astype(np.int64).astype(numpy_dtype(dtype)).astype(np.int64)


def rounded(value: Array, error: Array | float, dtype: str, ulps: float | Array = 1.0, *, ieee: bool = True) -> Approximate:
    """Adds the operation's own rounding to the error; with `ieee`, rounds the value instead if its operands are exact."""
    slack = ulps * UNIT_ROUNDOFF[dtype] * np.abs(value) + UNDERFLOW[dtype]
    slack = np.where(np.isfinite(value), slack, 0.0)  # an infinity is not rounded
    if not ieee:
        return Approximate(value, error + slack)
    known = np.asarray(error) == 0
    slack = slack * (2 if dtype == "float64" else 1)  # the reference's own type: its result is rounded, too
    return Approximate(np.where(known, nearest(value, dtype), value), np.where(known, 0.0, error + slack))


def nearest(value: Array, dtype: str) -> Array:
    """Returns the nearest values of a type."""
    return value if dtype == "float64" else narrowed(value, dtype).astype(np.float64)


def to_significant(value: Array, dtype: str) -> Array:
    """Rounds values to a format's number of significant bits, to nearest even; ignores its exponent range."""
    fraction, exponent = np.frexp(value)
    bits = SIGNIFICANT_BITS[dtype]
    found: Array = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return found


def product(node: Binary, factor_dtype: str, points: Points) -> Approximate:
    """Computes a product whose factors may be rounded to a narrower format; a factor that the format represents stays exact."""
    left, right = (_factor(evaluate(side, points), factor_dtype) for side in (node.left, node.right))
    return _binary(node, left, right)


def _factor(x: Approximate, dtype: str) -> Approximate:
    known = (np.asarray(x.error) == 0) & (to_significant(x.value, dtype) == x.value)
    held = known & ((np.abs(x.value) >= UNDERFLOW[dtype]) | (x.value == 0))
    slack = UNIT_ROUNDOFF[dtype] * (np.abs(x.value) + x.error) + UNDERFLOW[dtype]
    return Approximate(x.value, np.where(held, 0.0, x.error + slack))


_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])

FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}


def _unary(node: Unary, x: Approximate) -> Approximate:
    if node.op == "not":
        return Approximate(~x.value, x.error)
    if node.op == "rounded":
        return Approximate(x.value, x.error)
    if node.op == "neg":
        return Approximate(widened(-x.value, node.dtype), x.error, x.fused)
    if node.op == "abs":
        return Approximate(widened(np.abs(x.value), node.dtype), x.error)
    if node.dtype not in FLOATS:  # integers are their own floor, ceiling and rounding
        return x
    function = FUNCTIONS[node.op]
    value = function(x.value)
    if node.op in ("sin", "cos"):
        absolute = x.error + FUNCTION_ULPS * UNIT_ROUNDOFF[node.dtype] * (1 + np.abs(x.value))
        return Approximate(value, absolute)
    error: Array | float = 0.0
    if np.any(x.error):
        error = np.maximum(np.abs(function(x.value + x.error) - value), np.abs(function(x.value - x.error) - value))
        error = np.where(np.asarray(x.error) == 0, 0.0, error)
    if node.op in ("floor", "ceil", "round"):
        return Approximate(value, error)
    if node.op == "sqrt":
        return rounded(value, error, node.dtype)
    # exp scales its argument first, which costs |x| more roundings
    ulps = FUNCTION_ULPS + 2 * np.abs(x.value) if node.op in ("exp", "sigmoid") else FUNCTION_ULPS
    return rounded(value, error, node.dtype, ulps, ieee=False)


def _binary(node: Binary, a: Approximate, b: Approximate) -> Approximate:
    if node.op in LOGICAL:
        both = np.logical_and if node.op == "and" else np.logical_or
        return Approximate(both(a.value, b.value), np.maximum(a.error, b.error))
    if node.op not in ARITHMETIC:
        compare = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}
        doubt = np.asarray(a.error + b.error)
        flips = ((np.abs(a.value - b.value) <= doubt) & (doubt > 0)).astype(np.float64) if doubt.any() else 0.0
        return Approximate(compare[node.op](a.value, b.value), flips)
    value = _arithmetic(node, a.value, b.value)
    if node.dtype not in FLOATS:
        return Approximate(value)
    match node.op:
        case "add" | "sub":
            return rounded(value, a.error + a.fused + b.error + b.fused, node.dtype)
        case "mul":
            error = _scaled(a.value, b.error) + _scaled(b.value, a.error) + np.multiply(a.error, b.error)
            found = rounded(value, error, node.dtype)
            kept = UNIT_ROUNDOFF[node.dtype] * np.abs(value) + UNDERFLOW[node.dtype]
            held = found.value == value if node.dtype != "float64" else (value == np.rint(value)) & (np.abs(value) < 2.0**53)
            exact = held | ~np.isfinite(value) | (np.asarray(error) > 0)  # a nonzero error includes the rounding
            return Approximate(found.value, found.error, np.where(exact, 0.0, kept))
        case "div":
            reach = a.error + _scaled(value, b.error)
            error = np.where(np.asarray(reach) == 0, 0.0, reach / np.maximum(np.abs(b.value) - b.error, 0))
            return rounded(value, error, node.dtype)
        case "pow":
            corners = [np.power(a.value + i * a.error, b.value + j * b.error) for i in (-1, 1) for j in (-1, 1)]
            error = np.max(np.abs(np.stack(np.broadcast_arrays(*corners)) - value), axis=0)
            error = np.where(np.asarray(a.error + b.error) == 0, 0.0, error)
            return rounded(value, error, node.dtype, FUNCTION_ULPS * (1 + np.abs(b.value)), ieee=False)
        case _:  # max, min: no rounding of their own
            return Approximate(value, np.maximum(a.error, b.error))


def _scaled(value: Array, error: Array | float) -> Array:
    """Returns an error times its multiplier; 0 for an exact value, even if the multiplier is infinite."""
    return np.where(np.asarray(error) == 0, 0.0, np.abs(value) * error)


def _arithmetic(node: Binary, a: Array, b: Array) -> Array:
    operation: Mapping[str, Callable[[Array, Array], Array]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "pow": np.power,
        "div": np.divide if node.dtype in FLOATS else _truncated,
    }
    return widened(operation[node.op](a, b), node.dtype)


def _truncated(a: Array, b: Array) -> Array:
    """Returns the integer quotient truncated towards zero, as in C."""
    quotient: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))
    return quotient


def _select(condition: Approximate, yes: Approximate, no: Approximate) -> Approximate:
    value = np.where(condition.value, yes.value, no.value)
    error: Array | float = np.where(condition.value, yes.error, no.error)
    fused: Array | float = np.where(condition.value, yes.fused, no.fused)
    if np.any(condition.error):
        doubtful = np.asarray(condition.error) > 0
        apart = np.abs(yes.value - no.value) + np.maximum(yes.error, no.error)
        error, fused = np.where(doubtful, apart, error), np.where(doubtful, np.maximum(yes.fused, no.fused), fused)
    return Approximate(value, error, fused)


def _cast(node: Cast, x: Approximate) -> Approximate:
    if node.dtype == "bool":
        return Approximate(x.value != 0, ((np.abs(x.value) <= x.error) & (np.asarray(x.error) > 0)).astype(np.float64))
    if node.dtype not in FLOATS:
        value = np.trunc(x.value) if x.value.dtype.kind == "f" else x.value
        if not (x.value.dtype.kind == "f" and np.any(x.error)):
            return Approximate(widened(value, node.dtype))
        apart = np.maximum(np.abs(np.trunc(x.value + x.error) - value), np.abs(np.trunc(x.value - x.error) - value))
        return Approximate(widened(value, node.dtype), apart)
    value = x.value.astype(np.float64)
    if node.dtype in ("float16", "bfloat16"):
        # Rounded here as in the kernel: equal values round equally, others may differ by one more unit in the last place.
        value = narrowed(x.value, node.dtype).astype(np.float64)
        extra = 2 * UNIT_ROUNDOFF[node.dtype] * np.abs(value) + UNDERFLOW[node.dtype]
        return Approximate(value, np.where(np.asarray(x.error) == 0, 0.0, x.error + extra))
    if node.dtype == "float64":
        return Approximate(value, x.error)
    return rounded(value if np.any(x.error) else nearest(x.value, node.dtype), x.error, node.dtype)
