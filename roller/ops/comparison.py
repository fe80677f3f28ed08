"""Comparisons and logic, which give truth values (bool), with NumPy's broadcasting; `where` chooses by them.

Operands are symbolic tensors of one element type, or numbers. A NaN is unequal to everything, and neither less nor greater. Shapes
that do not broadcast, mixed element types, and logic on what is no bool raise `ExpressionError`.
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
    """Whether a < b, also written so."""
    return compared("lt", a, b)


def less_equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Whether a <= b, also written so."""
    return compared("le", a, b)


def greater(a: Operand, b: Operand) -> SymbolicTensor:
    """Whether a > b, also written so."""
    return compared("gt", a, b)


def greater_equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Whether a >= b, also written so."""
    return compared("ge", a, b)


def equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Whether a and b are equal; `a == b` is whether they are the same symbolic tensor."""
    return compared("eq", a, b)


def not_equal(a: Operand, b: Operand) -> SymbolicTensor:
    """Whether a and b differ; `a != b` is whether they are different symbolic tensors."""
    return compared("ne", a, b)


def logical_and(a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Whether both of two truth values hold, also written `a & b`."""
    return logic("and", a, b)


def logical_or(a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Whether one of two truth values holds, or both, also written `a | b`."""
    return logic("or", a, b)


def logical_not(x: SymbolicTensor) -> SymbolicTensor:
    """Whether a truth value does not hold, also written `~x`."""
    return logic("not", x)


def where(condition: SymbolicTensor, yes: Operand, no: Operand) -> SymbolicTensor:
    """`yes` where the condition is not zero, else `no`; the three broadcast, the condition may be of any type.

    Of `yes` and `no` one may be a number, which is of the other one's type.
    """
    sides = [side for side in (yes, no) if not isinstance(side, Real)]
    tensors = symbolic("where", condition, *sides)
    if not sides:
        raise ExpressionError("where: of what it chooses from at least one must be a tensor, which says of what type the result is")
    dtype, shape = common_dtype("where", tensors[1:]), broadcast_shape("where", tensors)
    loads = [source(value, position, broadcast_index(value, shape)) for position, value in enumerate(tensors)]
    chosen = iter(loads[1:])
    between = [constant(side, dtype) if isinstance(side, Real) else next(chosen) for side in (yes, no)]
    test: Scalar = loads[0]
    if test.dtype != "bool":
        test = Binary("ne", test, constant(0, test.dtype))
    axes, _ = grid(shape)
    return produced("where", axes, Select(test, *between), shape, tensors, dtype=dtype)
