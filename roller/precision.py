"""How precise products of float32 values have to be: what a caller permits kernels to do with the factors.

The names are those of torch's `fp32_precision`. A permission stands in the stages of the expression (`Stage.factor_dtype`), so that
it goes where they go: through fusion, into the artifact, to whoever compares a kernel with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roller.errors import ExpressionError
from roller.expr import Stage, TensorExpr
from roller.hardware import STORED_AS
from roller.scalar import Binary, Cast

# Precision → the format to which a kernel may round factors before it multiplies them.
PRECISIONS: Mapping[str, str | None] = {"ieee": None, "tf32": "tfloat32"}


def permitted(expr: TensorExpr, precision: str = "ieee") -> TensorExpr:
    """The expression with the permission in every stage that sums products of float32 values; "ieee" changes nothing.

    "tf32": each factor may be rounded to tfloat32 (sign, 8 bits of exponent, 10 of fraction), to the nearest; products and sums
    stay in float32. A product of values that were widened from narrower ones needs no permission. `ExpressionError` for an
    unknown name.
    """
    if precision not in PRECISIONS:
        raise ExpressionError(f"unknown precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    narrow = PRECISIONS[precision]
    if narrow is None:
        return expr
    stages = tuple(replace(s, factor_dtype=narrow) if _rounds(s, STORED_AS[narrow]) else s for s in expr.stages)
    return TensorExpr(expr.inputs, stages)


def _rounds(stage: Stage, dtype: str) -> bool:
    """True if a stage sums products of a type, and at least one factor is not just a wider form of a narrower value."""
    body = stage.body
    if not (stage.sums_products and isinstance(body, Binary) and body.dtype == dtype):
        return False
    return not all(isinstance(side, Cast) for side in (body.left, body.right))
