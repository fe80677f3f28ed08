"""The scalar body of a stage as a C expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from roller.plugin import Accumulator, Affine, Binary, Cast, CodegenError, Const, Coordinate, Load, Scalar, Select, Tensor, Unary

TYPES = {
    "float64": "double", "float32": "float",
    "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&&", "or": "||",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
FUNCTIONS = {"round": "rint"}  # rounds ties to even
# Functions that C lacks, for each type T; F is the suffix of its math functions. The max or min of a NaN and a number is the NaN.
HELPERS = """\
static inline T max_T(T a, T b) { return a > b || a != a ? a : b; }
static inline T min_T(T a, T b) { return a < b || a != a ? a : b; }
"""
FLOATING = """\
static inline T rsqrt_T(T a) { return 1 / sqrtF(a); }
static inline T sigmoid_T(T a) { return 1 / (1 + expF(-a)); }
"""


def prelude() -> str:
    """Returns headers and helpers of every kernel."""
    lines = ["#include <math.h>", "#include <stdbool.h>", "#include <stdint.h>", ""]
    for dtype, name in TYPES.items():
        text = HELPERS + (FLOATING if dtype.startswith("float") else "")
        lines.append(text.replace("F(", f"{_suffix(dtype)}(").replace("T", name))
    return "\n".join(lines)


def type_name(dtype: str) -> str:
    """Returns the C type; `CodegenError` where there is none."""
    if dtype not in TYPES:
        raise CodegenError(f"C has no type for {dtype}")
    return TYPES[dtype]


def combine(reducer: str, left: str, right: str, dtype: str) -> str:
    """Returns one step of a reduction."""
    name = type_name(dtype)
    return f"({name})({left} + {right})" if reducer == "sum" else f"{reducer}_{name}({left}, {right})"


def identity(reducer: str, dtype: str) -> str:
    """Returns the neutral element of a reduction."""
    if reducer == "sum":
        return constant(0, dtype)
    if dtype.startswith("float"):
        return constant(-math.inf if reducer == "max" else math.inf, dtype)
    signed, bits = not dtype.startswith(("u", "b")), {"bool": 1, "uint8": 8}.get(dtype) or int(dtype.lstrip("uint"))
    if reducer == "max":
        return constant(-(1 << (bits - 1)) if signed else 0, dtype)
    return constant((1 << (bits - signed)) - 1, dtype)


def constant(value: float | int, dtype: str) -> str:
    """Returns a literal."""
    if isinstance(value, float) and not math.isfinite(value):
        text = "NAN" if math.isnan(value) else "-INFINITY" if value < 0 else "INFINITY"
    elif value == -(1 << 63):
        text = "INT64_MIN"  # the digits alone are too large for a literal: the sign is not part of it
    else:
        text = repr(int(value) if isinstance(value, bool) else value)
    return f"({type_name(dtype)})({text})"


def element(tensor: Tensor, array: str, index: Sequence[str], fill: float | int | None = None) -> str:
    """Returns an element of a row-major array; outside the array the fill value, if there is one."""
    address = " + ".join([*(f"{stride} * ({i})" for stride, i in zip(tensor.strides, index, strict=True)), "0"])
    if fill is None:
        return f"{array}[{address}]"
    inside = " && ".join([*(f"{i} >= 0 && {i} < {n}" for i, n in zip(index, tensor.shape, strict=True)), "1"])
    return f"({inside} ? {array}[{address}] : {constant(fill, tensor.dtype)})"


def expression(node: Scalar, read: Callable[[Load], str], place: Callable[[Affine], str], accumulator: str = "") -> str:
    """Returns a scalar tree as C; `read` prints its loads and `place` its indices."""

    def visit(part: Scalar) -> str:
        match part:
            case Const():
                return constant(part.value, part.dtype)
            case Load():
                return read(part)
            case Coordinate():
                return f"(int32_t)({place(part.index)})"
            case Accumulator():
                return accumulator
            case Unary():
                return _unary(part.op, visit(part.value), part.dtype)
            case Binary():
                return _binary(part.op, visit(part.left), visit(part.right), part.left.dtype)
            case Select():
                return f"({visit(part.condition)} ? {visit(part.yes)} : {visit(part.no)})"
            case Cast():
                return f"({type_name(part.dtype)})({visit(part.value)})"

    return visit(node)


def _unary(op: str, value: str, dtype: str) -> str:
    name = type_name(dtype)
    if op == "rounded":  # every value is rounded already: the compiler fuses no multiply-adds
        return value
    if op == "not":
        return f"!{value}"
    if op == "neg":
        return f"({name})(-{value})"
    if op in ("rsqrt", "sigmoid"):
        return f"{op}_{name}({value})"
    if op == "abs":
        return f"fabs{_suffix(dtype)}({value})" if dtype.startswith("float") else f"max_{name}({value}, ({name})(-{value}))"
    return f"{FUNCTIONS.get(op, op)}{_suffix(dtype)}({value})"


def _binary(op: str, left: str, right: str, dtype: str) -> str:
    name = type_name(dtype)
    if op in ("max", "min"):
        return f"{op}_{name}({left}, {right})"
    if op == "pow":
        return f"({name})pow{_suffix(dtype)}({left}, {right})"
    result = f"({left} {OPERATORS[op]} {right})"
    return f"({name}){result}" if op in ("add", "sub", "mul", "div") else result


def _suffix(dtype: str) -> str:
    """Returns the suffix of C's math functions of a type."""
    return "f" if dtype == "float32" else ""
