"""Scalar trees as TIR expressions, for one point or a vector of neighbouring points."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.ir.expr import TensorLoad

from roller.ir.expr import FLOATS
from roller.ir.scalar import (
    Accumulator,
    Affine,
    Binary,
    Cast,
    Const,
    Coordinate,
    Load,
    Scalar,
    Select,
    Unary,
    children,
    loads,
    operations,
)
from roller.lowering.tir import arithmetic, functions
from roller.lowering.tir.builder import Expr, Held, number, spread, vector_type
from roller.runtime.arrays import narrowed

NARROW = frozenset({"int8", "uint8", "int16", "uint16"})  # integers that C promotes to int

_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "max": tirx.max, "min": tirx.min, "pow": tirx.pow,  # max and min of integers; `extreme` handles floats
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": tirx.EQ, "ne": tirx.NE,
    # TVM folds "a < b or b <= a" to true, which is wrong for a NaN; its rules for "and" are right.
    "and": tirx.And, "or": tirx.bitwise_or,
}  # fmt: skip
_FLOAT = {
    **_BINARY,
    "add": arithmetic.add,
    "sub": arithmetic.subtract,
    "mul": arithmetic.multiply,
    "div": arithmetic.divide,
    "eq": arithmetic.equal,
}

_Widened = Callable[[str, Callable[[Callable[[Expr], Expr]], Expr]], Expr]  # computes an operation of a type, operands cast

_TRUTH = {"max": "or", "min": "and", "add": "or", "mul": "and"}  # operations on booleans, which LLVM neither orders nor adds


def emit(
    node: Scalar,
    lanes: int,
    read: Callable[[Load], Expr],
    position: Callable[[Affine], Expr],
    held: Held,
    accumulator: Expr | None = None,
) -> Expr:
    """Returns the TIR value of a scalar tree.

    `read` returns loads and `position` the value of an index, both with `lanes` lanes. `held` stores parts that are used several
    times; its statements come before the value's.
    """
    known: dict[Scalar, Expr] = {}

    def widened(dtype: str, operation: Callable[[Callable[[Expr], Expr]], Expr]) -> Expr:
        return _widened(dtype, lanes, operation) if held.promotes and dtype in NARROW else operation(lambda value: value)

    def visit(part: Scalar) -> Expr:
        if part in known:
            return known[part]
        match part:
            case Const():
                return spread(constant(part.value, part.dtype), lanes)
            case Load():
                return read(part)
            case Coordinate():
                return position(part.index)
            case Accumulator():
                assert accumulator is not None, "an accumulator outside an epilogue"
                return accumulator
            case Unary("rounded", Binary("mul", left, right)):
                return arithmetic.rounded(visit(left), visit(right))
            case Unary():
                return widened(
                    part.dtype, lambda cast: functions.call(part.op, cast(visit(part.value)), part.value.dtype, lanes, held)
                )
            case Binary():
                return _binary(part, visit, widened, held, lanes)
            case Select():
                return tirx.Select(arithmetic.condition(visit(part.condition)), side(part.yes), side(part.no))
            case Cast():
                return functions.cast(visit(part.value), part.value.dtype, part.dtype, lanes, held, part is node)

    def side(part: Scalar) -> Expr:
        return held(visit(part), part.dtype, lanes) if _guarded(part) else visit(part)

    for part in _repeated(node):
        known[part] = held(visit(part), part.dtype, lanes)
    return visit(node)


def _binary(part: Binary, visit: Callable[[Scalar], Expr], widened: _Widened, held: Held, lanes: int) -> Expr:
    """Returns a binary operation. A NaN is unequal to every float, itself included."""
    left, right = visit(part.left), visit(part.right)
    if part.left.dtype not in FLOATS:
        return widened(part.dtype, lambda cast: binary(part.op, cast(left), cast(right), part.left.dtype))
    if part.op in ("max", "min"):
        return extreme(part.op, left, right, held)
    if part.op == "ne":
        return functions.opposite(arithmetic.equal(left, right), lanes)
    return binary(part.op, left, right, part.left.dtype)


def _guarded(part: Scalar) -> bool:
    """Returns True for a side of a selection that contains guarded loads.

    Both sides are computed. TVM assumes the condition inside a side and drops it from the load's guard, so a guarded side is
    computed before the selection.
    """
    return any(load.fill is not None for load in loads(part))


def _widened(dtype: str, lanes: int, operation: Callable[[Callable[[Expr], Expr]], Expr]) -> Expr:
    """Returns an operation on narrow integers, computed in int32 and truncated explicitly."""
    return arithmetic.cut(operation(lambda value: value.astype(vector_type("int32", lanes))), dtype)


def _repeated(node: Scalar) -> list[Scalar]:
    """Returns arithmetic parts that occur more than once, inner ones first."""
    seen: set[Scalar] = set()
    found: dict[Scalar, None] = {}

    def visit(part: Scalar) -> None:
        if part in seen:
            if part.dtype != "bool" and operations(part):
                found[part] = None
            return
        for child in children(part):
            visit(child)
        seen.add(part)

    visit(node)
    return sorted(found, key=operations)


def constant(value: float | int, dtype: str) -> Expr:
    """Returns a literal rounded to its type; infinities and NaN of 16-bit types go through float32, which can spell them."""
    if dtype in FLOATS:
        value = float(narrowed(np.asarray(value, np.float64), dtype))
        if not math.isfinite(value) and dtype in ("float16", "bfloat16"):
            return number(value, "float32").astype(dtype)
    return number(value, dtype)


def binary(op: str, left: Expr, right: Expr, dtype: str) -> Expr:
    """Returns a binary operation of the user's values (`roller.lowering.tir.arithmetic`); integer division truncates, as in C."""
    if dtype in FLOATS:
        return _FLOAT[op](left, right)
    if dtype == "bool":
        return _BINARY[_TRUTH.get(op, op)](left, right)
    if op in ("add", "sub", "mul"):
        return arithmetic.wrapped(op, left, right)
    return arithmetic.quotient(left, right) if op == "div" else _BINARY[op](left, right)


def combine(reducer: str, left: Expr, right: Expr, held: Held | None = None) -> Expr:
    """Returns one step of a reduction; `held` stores values that are used several times."""
    if reducer != "sum":
        return extreme(reducer, left, right, held)
    return left + right if is_float(left) else arithmetic.wrapped("add", left, right)


def product(left: Expr, right: Expr) -> Expr:
    """A product of factors of a reduction."""
    return arithmetic.multiply(left, right) if is_float(left) else arithmetic.wrapped("mul", left, right)


def is_float(value: Expr) -> bool:
    """Returns whether a value is floating point."""
    return str(value.ty.dtype).startswith(("float", "bfloat"))


def extreme(op: str, left: Expr, right: Expr, held: Held | None = None) -> Expr:
    """Returns the max ("max") or min ("min") of two values; NaN if a float is NaN, as in NumPy.

    TVM's max and min return the second operand if the comparison fails. So a NaN beside a constant stays, and so does a NaN on the
    left beside a number.
    """
    choose, dtype = {"max": tirx.max, "min": tirx.min}[op], str(right.ty.dtype)
    if _is_constant(left) or not is_float(left):
        return choose(left, right)
    if _is_constant(right):
        return choose(right, left)
    if _is_read(right):
        return tirx.Select(_is_number(right), choose(right, left), right)
    if held is not None:
        scalar, _, lanes = dtype.partition("x")
        return extreme(op, left, held(right, scalar, int(lanes or 1)))
    number = tirx.Var("number", dtype)  # evaluated once: it may be a lane exchange (shuffle)
    return tirx.Let(number, right, tirx.Select(_is_number(number), choose(number, left), number))


def _is_read(value: Expr) -> bool:
    """Returns True for a value loaded from memory, possibly widened: TVM does not widen a bfloat16 that is bound to a name."""
    return isinstance(value.value if isinstance(value, tirx.Cast) else value, TensorLoad)


def _is_number(value: Expr) -> Expr:
    """Returns False for a NaN, in a form that TVM does not fold: it treats a NaN as equal to itself."""
    return value <= value  # noqa: PLR0124


def _is_constant(value: Expr) -> bool:
    return isinstance(value.value if isinstance(value, tirx.Broadcast) else value, tirx.FloatImm)


def identity(reducer: str, dtype: str) -> Expr:
    """The neutral element of a reduction."""
    if reducer == "sum":
        return number(0, dtype)
    if dtype.startswith(("float", "bfloat")):
        return constant(-math.inf if reducer == "max" else math.inf, dtype)
    return tirx.min_value(dtype) if reducer == "max" else tirx.max_value(dtype)
