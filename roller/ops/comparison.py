"""Comparisons and logic on booleans, with NumPy's broadcasting; `where` selects by them.

Operands are symbolic tensors of one element type, or numbers. A NaN is unequal to everything, and neither less nor greater. Shapes
that do not broadcast, mixed element types, and logic on other types than bool raise `ExpressionError`.
"""

from __future__ import annotations

from numbers import Real

from roller.errors import ExpressionError
from roller.ir.scalar import Binary, Scalar, Select
from roller.ops.tensor import (
    Operand,
    SymbolicTensor,
    broadcast_index,
    broadcast_shape,
    common_dtype,
    compared,
    grid,
    logic,
    produced,
    source,
    symbolic,
)
from roller.ops.types import constant


def less(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns a < b; operator `<`."""
    return compared("lt", a, b)


def less_equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns a <= b; operator `<=`."""
    return compared("le", a, b)


def greater(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns a > b; operator `>`."""
    return compared("gt", a, b)


def greater_equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns a >= b; operator `>=`."""
    return compared("ge", a, b)


def equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns whether a and b are equal, by element; `a == b` tests whether they are the same symbolic tensor."""
    return compared("eq", a, b)


def not_equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Returns whether a and b differ, by element; `a != b` tests whether they are different symbolic tensors."""
    return compared("ne", a, b)


def logical_and(a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Returns whether both of two booleans are true; operator `&`."""
    return logic("and", a, b)


def logical_or(a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Returns whether at least one of two booleans is true; operator `|`."""
    return logic("or", a, b)


def logical_not(x: SymbolicTensor) -> SymbolicTensor:
    """Returns the negation of a boolean; operator `~`."""
    return logic("not", x)


def where(condition: SymbolicTensor, yes: Operand, no: Operand) -> SymbolicTensor:
    """Returns `yes` where the condition is not zero, else `no`; the three broadcast, and the condition may have any type.

    One of `yes` and `no` may be a number; it gets the other one's type.
    """
    sides = [side for side in (yes, no) if not isinstance(side, Real)]
    tensors = symbolic("where", condition, *sides)
    if not sides:
        raise ExpressionError("where: at least one of its two branches must be a tensor, which determines the type of the result")
    dtype, shape = common_dtype("where", tensors[1:]), broadcast_shape("where", tensors)
    loads = [source(value, position, broadcast_index(value, shape)) for position, value in enumerate(tensors)]
    chosen = iter(loads[1:])
    between = [constant(side, dtype) if isinstance(side, Real) else next(chosen) for side in (yes, no)]
    test: Scalar = loads[0]
    if test.dtype != "bool":
        test = Binary("ne", test, constant(0, test.dtype))
    axes, _ = grid(shape)
    return produced("where", axes, Select(test, *between), shape, tensors, dtype=dtype)
