"""Elementwise operators, with NumPy's broadcasting.

Operands are symbolic tensors of one element type, or numbers. float16 and bfloat16 compute in float32 and are rounded once.
Functions other than `abs neg relu add sub mul maximum minimum clip cast` are defined on floating types only.
Shapes that do not broadcast, and mixed element types, raise `ExpressionError`.
"""

from __future__ import annotations

import math
from typing import Literal

from roller.errors import ExpressionError
from roller.ir.expr import FLOATS
from roller.ir.scalar import Binary, Const, Scalar, Unary
from roller.ops.tensor import (
    Operand,
    SymbolicTensor,
    arithmetic,
    opposite,
    pointwise,
    symbolic,
)


def _unary(op: str, x: SymbolicTensor) -> SymbolicTensor:
    return pointwise(op, lambda value: Unary(op, value), x, floats_only=True)


def relu(x: SymbolicTensor) -> SymbolicTensor:
    """Returns max(x, 0)."""
    return pointwise("relu", lambda value: Binary("max", value, _number(0, value)), x)


def gelu(x: SymbolicTensor, approximate: Literal["none", "tanh"] = "none") -> SymbolicTensor:
    """The product x·Φ(x), by erf ("none") or by the usual tanh approximation ("tanh")."""
    if approximate not in ("none", "tanh"):
        raise ExpressionError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return pointwise("gelu", _gelu_erf if approximate == "none" else _gelu_tanh, x, floats_only=True)


def exp(x: SymbolicTensor) -> SymbolicTensor:
    """The exponential of x."""
    return _unary("exp", x)


def log(x: SymbolicTensor) -> SymbolicTensor:
    """Natural logarithm."""
    return _unary("log", x)


def sqrt(x: SymbolicTensor) -> SymbolicTensor:
    """Square root."""
    return _unary("sqrt", x)


def rsqrt(x: SymbolicTensor) -> SymbolicTensor:
    """The reciprocal of the square root."""
    return _unary("rsqrt", x)


def tanh(x: SymbolicTensor) -> SymbolicTensor:
    """Hyperbolic tangent."""
    return _unary("tanh", x)


def sigmoid(x: SymbolicTensor) -> SymbolicTensor:
    """The logistic function 1 / (1 + exp(-x))."""
    return _unary("sigmoid", x)


def silu(x: SymbolicTensor) -> SymbolicTensor:
    """The product x · sigmoid(x)."""
    return pointwise("silu", lambda value: Binary("mul", value, Unary("sigmoid", value)), x, floats_only=True)


def erf(x: SymbolicTensor) -> SymbolicTensor:
    """The error function."""
    return _unary("erf", x)


def sin(x: SymbolicTensor) -> SymbolicTensor:
    """Sine."""
    return _unary("sin", x)


def cos(x: SymbolicTensor) -> SymbolicTensor:
    """Cosine."""
    return _unary("cos", x)


def floor(x: SymbolicTensor) -> SymbolicTensor:
    """Returns the greatest integer not above x."""
    return _unary("floor", x)


def ceil(x: SymbolicTensor) -> SymbolicTensor:
    """Returns the least integer not below x."""
    return _unary("ceil", x)


def round(x: SymbolicTensor) -> SymbolicTensor:
    """Returns the nearest integer; ties go to the even one."""
    return _unary("round", x)


def neg(x: SymbolicTensor) -> SymbolicTensor:
    """The negative of x."""
    return opposite("neg", *symbolic("neg", x))


def abs(x: SymbolicTensor) -> SymbolicTensor:
    """Absolute value."""
    return opposite("abs", *symbolic("abs", x))


def add(a: Operand, b: Operand) -> SymbolicTensor:
    """The sum a + b."""
    return arithmetic("add", a, b)


def sub(a: Operand, b: Operand) -> SymbolicTensor:
    """The difference a - b."""
    return arithmetic("sub", a, b)


def mul(a: Operand, b: Operand) -> SymbolicTensor:
    """The product a · b."""
    return arithmetic("mul", a, b)


def div(a: Operand, b: Operand) -> SymbolicTensor:
    """The quotient a / b, on floating types."""
    return arithmetic("div", a, b)


def maximum(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns the max of a and b."""
    return arithmetic("max", a, b)


def minimum(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns the min of a and b."""
    return arithmetic("min", a, b)


def pow(a: Operand, b: Operand) -> SymbolicTensor:
    """The power a to the b, on floating types."""
    return arithmetic("pow", a, b)


def clip(x: SymbolicTensor, low: float | None = None, high: float | None = None) -> SymbolicTensor:
    """Limits x to low..high; None leaves that side open. `ExpressionError` if both are None or low > high."""
    if low is None and high is None:
        raise ExpressionError("clip: give low, high or both")
    if low is not None and high is not None and low > high:
        raise ExpressionError(f"clip: low {low} is above high {high}")
    if high is None:
        return pointwise("clip", lambda value, a: Binary("max", value, a), x, _bound(low))
    if low is None:
        return pointwise("clip", lambda value, b: Binary("min", value, b), x, _bound(high))
    return pointwise("clip", lambda value, a, b: Binary("min", Binary("max", value, a), b), x, low, high)


def cast(x: SymbolicTensor, dtype: str) -> SymbolicTensor:
    """The same values as another element type (to an integer: towards zero)."""
    return symbolic("cast", x)[0].astype(dtype)


def _bound(value: float | None) -> float:
    assert value is not None
    return value


def _number(value: float, like: Scalar) -> Const:
    return Const(float(value) if like.dtype in FLOATS else int(value), like.dtype)


def _gelu_erf(x: Scalar) -> Scalar:
    phi = Binary("add", Unary("erf", Binary("mul", x, _number(math.sqrt(0.5), x))), _number(1, x))
    return Binary("mul", Binary("mul", x, _number(0.5, x)), phi)


def _gelu_tanh(x: Scalar) -> Scalar:
    # sqrt(2/pi) * (x + 0.044715 x^3), as x * (c + 0.044715 c x^2): one multiplication less
    scale = math.sqrt(2 / math.pi)
    square = Binary("mul", x, x)
    inner = Binary("mul", x, Binary("add", Binary("mul", square, _number(0.044715 * scale, x)), _number(scale, x)))
    return Binary("mul", Binary("mul", x, _number(0.5, x)), Binary("add", Unary("tanh", inner), _number(1, x)))
