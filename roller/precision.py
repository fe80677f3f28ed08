"""Math modes (`docs/numerics.md`): the permitted rounding of float32 products' factors, and the freedom of other arithmetic.

The names of precisions are those of torch's `fp32_precision`. A permission is stored in the stages of the expression
(`Stage.factor_dtype`, operations of their trees), so it passes with them through fusion, into the artifact, and to the comparison
with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

import numpy as np

from roller.errors import ExpressionError
from roller.ir.expr import Stage, TensorExpr
from roller.ir.scalar import Binary, Cast, Const, Scalar, Select, Unary, rewrite
from roller.runtime.arrays import narrowed
from roller.target.hardware import STORED_AS

# Precision → the format to which a kernel may round factors before it multiplies them.
PRECISIONS: Mapping[str, str | None] = {"ieee": None, "tf32": "tfloat32"}


MATHS = ("ieee", "strict", "fast")


def permitted(expr: TensorExpr, precision: str = "ieee", math: str = "ieee") -> TensorExpr:
    """Returns the expression with the permissions in its stages; "ieee" changes nothing.

    `math`: "strict" forbids fused multiply-adds, except for the products that a reduction sums. "fast" permits an operation that
    `docs/numerics.md` forbids: a division by a literal becomes a multiplication by its reciprocal.

    `precision`: "tf32" permits each stage that sums products of float32 values to round each factor to tfloat32 (sign, 8 bits of
    exponent, 10 of fraction), to nearest; products and sums stay in float32. A product of values widened from narrower types needs
    no permission. `ExpressionError` for an unknown name.
    """
    if precision not in PRECISIONS:
        raise ExpressionError(f"unknown precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    if math not in MATHS:
        raise ExpressionError(f"unknown math {math!r}; choose one of {', '.join(MATHS)}")
    if math != "ieee":
        expr = TensorExpr(expr.inputs, tuple(_strict(s) if math == "strict" else _fast(s) for s in expr.stages))
    narrow = PRECISIONS[precision]
    if narrow is None:
        return expr
    stages = tuple(replace(s, factor_dtype=narrow) if _rounds(s, STORED_AS[narrow]) else s for s in expr.stages)
    return TensorExpr(expr.inputs, stages)


def _rounds(stage: Stage, dtype: str) -> bool:
    """Returns True if a stage sums products of a type, and at least one factor is not a widened narrower value."""
    body = stage.body
    if not (stage.sums_products and isinstance(body, Binary) and body.dtype == dtype):
        return False
    return not all(isinstance(side, Cast) for side in (body.left, body.right))


def _strict(stage: Stage) -> Stage:
    """Rounds each product that may meet a sum: in the stage, or, as its result, in a stage that it is fused into."""
    body = _rounded(stage.body, exposed=stage.reducer is None)
    return replace(stage, body=body, epilogue=None if stage.epilogue is None else _rounded(stage.epilogue, exposed=True))


def _rounded(node: Scalar, exposed: bool) -> Scalar:
    """Rounds products of a tree; `exposed`: the value may be added to another one."""
    match node:
        case Binary(op, left, right):
            sums = op in ("add", "sub")
            found = Binary(op, _rounded(left, sums), _rounded(right, sums))
            return Unary("rounded", found) if exposed and op == "mul" and node.dtype in ("float32", "float64") else found
        case Unary(op, value):
            return Unary(op, _rounded(value, exposed and op == "neg"))
        case Select(condition, yes, no):
            return Select(_rounded(condition, False), _rounded(yes, exposed), _rounded(no, exposed))
        case Cast(value, dtype):
            return Cast(_rounded(value, False), dtype)
        case _:
            return node


def _fast(stage: Stage) -> Stage:
    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, _reciprocal)
    return replace(stage, body=rewrite(stage.body, _reciprocal), epilogue=epilogue)


def _holds(dtype: str, *values: float) -> bool:
    """Returns whether a type represents numbers, rounded, as neither 0 nor infinite."""
    return all(held and isfinite(held) for held in (float(narrowed(np.asarray(value, np.float64), dtype)) for value in values))


def _reciprocal(node: Scalar) -> Scalar | None:
    match node:
        case Binary("div", value, Const(literal, dtype)) if literal and _holds(dtype, literal, 1 / literal):
            return Binary("mul", rewrite(value, _reciprocal), Const(1 / literal, dtype))
        case _:
            return None
