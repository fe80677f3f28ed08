"""Arithmetic of the user's values, written so that TVM folds nothing that holds of real numbers alone.

TVM's simplifier takes floating point for real numbers (x - x is 0, x + 0 is x, 0 x is 0, x / 3 is x times a third, a == a is true,
and what is not less is greater or equal) and integers for unbounded ones (x + 1 > x). `docs/numerics.md` says what holds instead.
Here each of these operations has a form that no rule of the simplifier matches, and of which compilers make the one instruction
that is wanted. Only user's operations are written so: addresses and polynomials of functions need none of this.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

from tvm import tirx

from roller.ir.expr import Stage
from roller.ir.scalar import Unary, walk
from roller.lowering.tir.builder import Expr, index, spread, vector_type

WRAPPED = "roller_wrapped_"  # names of functions of whole numbers that are wider than 16 bits
ROUNDED = "roller_product_"  # of functions that multiply and round
WIDE = {"int32": 32, "int64": 64}
LANES = (1, 2, 4, 8, 16, 32, 64)  # of vectors for which there is such a function
_OPERATORS = ("add", "sub", "mul")


# --- floating point ------------------------------------------------------------------------------------------------------


def add(left: Expr, right: Expr) -> Expr:
    """The sum; of a literal 0, too, which changes -0."""
    return _held(left) + _held(right)


def subtract(left: Expr, right: Expr) -> Expr:
    """The difference as a sum, which TVM does not cancel."""
    return _held(left) + negative(_held(right))


def multiply(left: Expr, right: Expr) -> Expr:
    """The product; of a literal 0, too: times an infinity it is no number."""
    return _held(left) * _held(right)


def divide(left: Expr, right: Expr) -> Expr:
    """The quotient, correctly rounded by literals, too, of which TVM would take the reciprocal."""
    return _held(left) / _held(right, every=True)


def rounded(left: Expr, right: Expr) -> Expr:
    """A product that no sum takes in before it is rounded: of a function that stands beside the kernel."""
    scalar, lanes = _type(left)
    if lanes in LANES:
        name = f"{ROUNDED}{scalar}" + (f"x{lanes}" if lanes > 1 else "")
        return tirx.call_pure_extern(str(left.ty.dtype), name, left, right)
    return _each(rounded, left, right, lanes)


def negative(value: Expr) -> Expr:
    """The value with its sign changed: 0 - x would lose the sign of zero."""
    return like(-1.0, value) * value


def equal(left: Expr, right: Expr) -> Expr:
    """Whether two values are neither less nor greater; false of a NaN, which TVM takes for equal to itself."""
    return tirx.bitwise_and(left <= right, left >= right)


def condition(test: Expr) -> Expr:
    """A truth value to choose by. What TVM knows of a condition it holds for known in both branches: that x < y is false it takes
    for y <= x, which it is not of a NaN.
    """
    return tirx.bitwise_and(test, like(True, test))


def like(value: float | bool, other: Expr) -> Expr:
    """A literal of another value's type, for each of its lanes."""
    scalar, lanes = _type(other)
    return spread(tirx.const(value, scalar), lanes)


def _held(value: Expr, every: bool = False) -> Expr:
    """A literal 0, or every literal, as a function of a literal: TVM leaves it alone, compilers know its value."""
    literal = value.value if isinstance(value, tirx.Broadcast) else value
    if not isinstance(literal, tirx.FloatImm) or not (every or literal.value == 0):
        return value
    scalar, lanes = _type(value)
    size = tirx.call_intrin(scalar, "tirx.fabs", tirx.const(abs(literal.value), scalar))
    return spread(size if math.copysign(1, literal.value) > 0 else tirx.const(-1.0, scalar) * size, lanes)


# --- whole numbers -------------------------------------------------------------------------------------------------------


def wrapped(op: str, left: Expr, right: Expr) -> Expr:
    """A sum, a difference or a product ("add", "sub", "mul") of whole numbers, modulo their width. What is wider than 16 bits is a
    call of a function that stands beside the kernel (`definitions`, or in C): TVM and LLVM take its overflow for impossible.
    """
    scalar, lanes = _type(left)
    if scalar not in WIDE or (_literal(left) and _literal(right)):
        return _narrow(op, left, right)
    if lanes in LANES:
        name = f"{WRAPPED}{op}_{scalar}" + (f"x{lanes}" if lanes > 1 else "")
        return tirx.call_pure_extern(str(left.ty.dtype), name, left, right)
    return _each(lambda a, b: wrapped(op, a, b), left, right, lanes)


def quotient(left: Expr, right: Expr) -> Expr:
    """Towards zero, modulo the width; 0 by 0, where a processor would trap, as for the least number by -1."""
    if _literal(right):
        literal = right.value if isinstance(right, tirx.Broadcast) else right
        if int(literal.value) not in (0, -1):
            return tirx.truncdiv(left, right)
    zero, one = like(0, right), like(1, right)
    if _type(right)[0] == "uint8":
        return tirx.Select(tirx.EQ(right, zero), zero, tirx.truncdiv(left, tirx.Select(tirx.EQ(right, zero), one, right)))
    small = tirx.bitwise_or(tirx.EQ(right, zero), tirx.EQ(right, like(-1, right)))
    found = tirx.truncdiv(left, tirx.Select(small, one, right))
    return tirx.Select(tirx.EQ(right, zero), zero, tirx.Select(small, opposite(left), found))


def opposite(value: Expr) -> Expr:
    """The negative of a whole number, modulo its width."""
    return wrapped("sub", like(0, value), value)


def magnitude(value: Expr) -> Expr:
    """The absolute value of a whole number, modulo its width: the least one stays negative."""
    return tirx.Select(value < like(0, value), opposite(value), value)


def cut(value: Expr, dtype: str) -> Expr:
    """A value as another type; whole numbers modulo its width, literals, too: TVM refuses those that an unsigned type lacks."""
    literal, lanes = value.value if isinstance(value, tirx.Broadcast) else value, _type(value)[1]
    if dtype == "uint8" and isinstance(literal, (tirx.IntImm, tirx.FloatImm)) and math.isfinite(literal.value):
        return spread(tirx.const(int(literal.value) % 256, dtype), lanes)
    return value.astype(vector_type(dtype, lanes))


def _narrow(op: str, left: Expr, right: Expr) -> Expr:
    """TVM folds literals modulo their width, but refuses to take something from an unsigned 0."""
    if op == "sub":
        return left + like(-1 if _type(right)[0] != "uint8" else 255, right) * right
    return left + right if op == "add" else left * right


def _each(function: Callable[[Expr, Expr], Expr], left: Expr, right: Expr, lanes: int) -> Expr:
    found = [function(*(tirx.Shuffle([side], [index(lane)]) for side in (left, right))) for lane in range(lanes)]
    return tirx.Shuffle(found, [index(lane) for lane in range(lanes)])


def _literal(value: Expr) -> bool:
    return isinstance(value.value if isinstance(value, tirx.Broadcast) else value, tirx.IntImm)


def _type(value: Expr) -> tuple[str, int]:
    scalar, _, lanes = str(value.ty.dtype).partition("x")
    return scalar, int(lanes or 1)


# --- the functions, in LLVM IR -------------------------------------------------------------------------------------------


def definitions(linkage: str, register: str | None = None) -> list[str]:
    """LLVM IR of all functions that `wrapped` and `rounded` call. `register`: where the target has no `llvm.arithmetic.fence`, the
    letter by which inline assembly asks for a register of a float.
    """
    kinds = ("float32", "float", "f32"), ("float64", "double", "f64")
    found = [_product(linkage, register, *each) for each in itertools.product(kinds, LANES)]
    for op, bits, lanes in itertools.product(_OPERATORS, WIDE.values(), LANES):
        kind, of = (f"i{bits}", "") if lanes == 1 else (f"<{lanes} x i{bits}>", f"x{lanes}")
        found.append(
            f"define {linkage} {kind} @{WRAPPED}{op}_int{bits}{of}({kind} %a, {kind} %b) alwaysinline nounwind {{\n"
            f"  %r = {op} {kind} %a, %b\n  ret {kind} %r\n}}"
        )
    return found


def called_by(stages: Iterable[Stage]) -> bool:
    """Whether some stage computes with whole numbers of more than 16 bits, or rounds products."""
    nodes = (node for stage in stages for root in (stage.body, stage.result) for node in walk(root))
    return any(node.dtype in WIDE or (isinstance(node, Unary) and node.op == "rounded") for node in nodes)


def _product(linkage: str, register: str | None, of: tuple[str, str, str], lanes: int) -> str:
    """What LLVM cannot look through keeps it from making a multiply-add of the product and what follows; it is no instruction."""
    dtype, scalar, short = of
    kind, vector, suffix = (scalar, short, "") if lanes == 1 else (f"<{lanes} x {scalar}>", f"v{lanes}{short}", f"x{lanes}")
    fence = f"@llvm.arithmetic.fence.{vector}"
    before = [f"declare {kind} {fence}({kind})"] if register is None else []
    head = f"define {linkage} {kind} @{ROUNDED}{dtype}{suffix}({kind} %a, {kind} %b) alwaysinline nounwind {{"
    lines, result = [f"  %p = fmul {kind} %a, %b"], "%r"
    if register is None:
        lines.append(f"  %r = call {kind} {fence}({kind} %p)")
    elif lanes == 1:
        lines.append(f'  %r = call {kind} asm "", "={register},0"({kind} %p)')
    else:
        result = "%p"
        for lane in range(lanes):
            lines += [f"  %e{lane} = extractelement {kind} %p, i32 {lane}"]
            lines += [f'  %f{lane} = call {scalar} asm "", "={register},0"({scalar} %e{lane})']
            lines += [f"  %v{lane} = insertelement {kind} {result if not lane else f'%v{lane - 1}'}, {scalar} %f{lane}, i32 {lane}"]
        result = f"%v{lanes - 1}"
    return "\n".join([*before, head, *lines, f"  ret {kind} {result}\n}}"])
