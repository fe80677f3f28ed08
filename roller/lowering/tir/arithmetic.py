"""Arithmetic of the user's operations in forms that TVM's simplifier does not fold.

The simplifier treats floats as real numbers (x - x is 0, x + 0 is x, 0 x is 0, x / 3 is x times a third, a == a is true, and "not
less" is "greater or equal") and integers as unbounded (x + 1 > x). `docs/numerics.md` has the rules that hold instead.
Each operation here has a form that matches no rule of the simplifier and that compilers turn into the one intended instruction.
Only the user's operations need this form. Addresses and the polynomials of elementary functions are written plainly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

from tvm import tirx

from roller.ir.expr import Stage
from roller.ir.scalar import Unary, walk
from roller.lowering.tir.builder import Expr, index, spread, vector_type

WRAPPED = "roller_wrapped_"  # name prefix of functions on integers wider than 16 bits
ROUNDED = "roller_product_"  # name prefix of functions that multiply and round
WIDE = {"int32": 32, "int64": 64}
LANES = (1, 2, 4, 8, 16, 32, 64)  # vector lengths for which these functions exist
_OPERATORS = ("add", "sub", "mul")


# --- floating point ------------------------------------------------------------------------------------------------------


def add(left: Expr, right: Expr) -> Expr:
    """Returns the sum. A literal 0 is added too, because it changes -0."""
    return held_literal(left) + held_literal(right)


def subtract(left: Expr, right: Expr) -> Expr:
    """Returns the difference, written as a sum that TVM does not cancel."""
    return held_literal(left) + negative(held_literal(right))


def multiply(left: Expr, right: Expr) -> Expr:
    """Returns the product. A literal 0 is multiplied too, because 0 times an infinity is NaN."""
    return held_literal(left) * held_literal(right)


def divide(left: Expr, right: Expr) -> Expr:
    """Returns the correctly rounded quotient, for literal divisors too: TVM would multiply by their reciprocal."""
    return held_literal(left) / held_literal(right, every=True)


def rounded(left: Expr, right: Expr) -> Expr:
    """Returns a product that is rounded before any sum (no fused multiply-add), by a function defined beside the kernel."""
    scalar, lanes = _type(left)
    if lanes in LANES:
        name = f"{ROUNDED}{scalar}" + (f"x{lanes}" if lanes > 1 else "")
        return tirx.call_pure_extern(str(left.ty.dtype), name, left, right)
    return _each(rounded, left, right, lanes)


def negative(value: Expr) -> Expr:
    """Returns the value with its sign changed; 0 - x would lose the sign of zero."""
    return like(-1.0, value) * value


def equal(left: Expr, right: Expr) -> Expr:
    """Returns the test that neither value is less than the other; false for a NaN, which TVM treats as equal to itself."""
    return tirx.bitwise_and(left <= right, left >= right)


def condition(test: Expr) -> Expr:
    """Returns a boolean for a selection, in a form that TVM does not propagate into the branches.

    TVM assumes the condition in one branch and its negation in the other. It negates x < y to y <= x, which is wrong for a NaN.
    """
    return tirx.bitwise_and(test, like(True, test))


def like(value: float | bool, other: Expr) -> Expr:
    """A literal of another value's type, for each of its lanes."""
    scalar, lanes = _type(other)
    return spread(tirx.const(value, scalar), lanes)


def held_literal(value: Expr, every: bool = False) -> Expr:
    """Returns a literal 0 of a float (or every literal) as a function call, which TVM does not fold and compilers evaluate."""
    literal = value.value if isinstance(value, tirx.Broadcast) else value
    if not isinstance(literal, tirx.FloatImm) or not (every or literal.value == 0):
        return value
    scalar, lanes = _type(value)
    wide = scalar if scalar in ("float32", "float64") else "float32"  # not every compiler has this function for narrower types
    size = tirx.call_intrin(wide, "tirx.fabs", tirx.const(abs(literal.value), wide))
    held = size if math.copysign(1, literal.value) > 0 else tirx.const(-1.0, wide) * size
    return spread(held if wide == scalar else held.astype(scalar), lanes)


# --- integers ------------------------------------------------------------------------------------------------------------


def wrapped(op: str, left: Expr, right: Expr) -> Expr:
    """Returns a sum, difference or product ("add", "sub", "mul") of integers, modulo their width.

    For types wider than 16 bits it calls a function defined beside the kernel (`definitions`, or in C): TVM and LLVM assume that
    their arithmetic does not overflow.
    """
    scalar, lanes = _type(left)
    if scalar not in WIDE or (_literal(left) and _literal(right)):
        return _narrow(op, left, right)
    if lanes in LANES:
        name = f"{WRAPPED}{op}_{scalar}" + (f"x{lanes}" if lanes > 1 else "")
        return tirx.call_pure_extern(str(left.ty.dtype), name, left, right)
    return _each(lambda a, b: wrapped(op, a, b), left, right, lanes)


def quotient(left: Expr, right: Expr) -> Expr:
    """Returns the quotient truncated towards zero, modulo the width. Division by 0 gives 0; neither it nor min by -1 traps."""
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
    """Returns the negative of an integer, modulo its width."""
    return wrapped("sub", like(0, value), value)


def magnitude(value: Expr) -> Expr:
    """Returns the absolute value of an integer, modulo its width: the min integer stays negative."""
    return tirx.Select(value < like(0, value), opposite(value), value)


def cut(value: Expr, dtype: str) -> Expr:
    """Returns a value as another type; integers wrap at its width. TVM refuses out-of-range literals of unsigned types."""
    literal, lanes = value.value if isinstance(value, tirx.Broadcast) else value, _type(value)[1]
    if dtype == "uint8" and isinstance(literal, (tirx.IntImm, tirx.FloatImm)) and math.isfinite(literal.value):
        return spread(tirx.const(int(literal.value) % 256, dtype), lanes)
    return value.astype(vector_type(dtype, lanes))


def _narrow(op: str, left: Expr, right: Expr) -> Expr:
    """Computes on literals and narrow integers, which TVM folds modulo their width; TVM refuses to subtract from an unsigned 0."""
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


# --- function definitions in LLVM IR -------------------------------------------------------------------------------------


def definitions(linkage: str, register: str | None = None) -> list[str]:
    """Returns the LLVM IR of all functions that `wrapped` and `rounded` call.

    `register`: for targets without `llvm.arithmetic.fence`, the inline-assembly constraint letter of a float register.
    """
    kinds = [("float32", "float", "f32"), ("float64", "double", "f64")]
    kinds += [("float16", "half", "f16")] if register is None else []
    found = [_product(linkage, register, *each) for each in itertools.product(kinds, LANES)]
    for op, bits, lanes in itertools.product(_OPERATORS, WIDE.values(), LANES):
        kind, of = (f"i{bits}", "") if lanes == 1 else (f"<{lanes} x i{bits}>", f"x{lanes}")
        found.append(
            f"define {linkage} {kind} @{WRAPPED}{op}_int{bits}{of}({kind} %a, {kind} %b) alwaysinline nounwind {{\n"
            f"  %r = {op} {kind} %a, %b\n  ret {kind} %r\n}}"
        )
    return found


def called_by(stages: Iterable[Stage]) -> bool:
    """Returns whether a stage computes with integers wider than 16 bits, or rounds products."""
    nodes = (node for stage in stages for root in (stage.body, stage.result) for node in walk(root))
    return any(node.dtype in WIDE or (isinstance(node, Unary) and node.op == "rounded") for node in nodes)


def _product(linkage: str, register: str | None, of: tuple[str, str, str], lanes: int) -> str:
    """Returns a multiplication behind an opaque fence: LLVM cannot fuse it into a multiply-add. The fence costs no instruction."""
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
