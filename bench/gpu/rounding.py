"""How far a correct kernel may be from the reference: the principle of `roller.verify`, per element, for the operators here.

With u the unit roundoff of a type and γ_n = n·u / (1 - n·u), a sum of n terms in any order is off by at most γ_n·Σ|terms| (Higham,
*Accuracy and Stability of Numerical Algorithms*, §3); tensor cores may cut off instead of rounding, hence twice that. Where factors
may be rounded, each adds u of that type to its term. Every result that is put into the operator's type adds u times its size. On
small whole numbers nothing is rounded, so most operators must be exact: a single wrong term shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.gpu.operators import Operator

UNIT_ROUNDOFF = {"float32": 2.0**-24, "tfloat32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
UNDERFLOW = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
ACCUMULATED = UNIT_ROUNDOFF["float32"]  # every sum here is in float32
FUNCTION = 16 * UNIT_ROUNDOFF["float32"]  # what gelu may lose, relative to its argument
LIBRARY_SLACK = 8.0  # for other libraries: fast convolution algorithms, and sums over parts in half precision
SMALL, SMALLEST, DEEP = (
    2,
    1,
    1024,
)  # whole numbers from -SMALL to SMALL; of sums of more than DEEP terms to SMALLEST: sums stay below 2^11

MOVES = frozenset({"relu", "transpose", "max_pool"})
GELU = frozenset({"gelu", "matmul_bias_gelu"})
ROWS = frozenset({"softmax", "layer_norm", "attention"})
STEPS = {
    "matmul_bias_gelu": 3, "matmul_bias_residual": 3, "conv_bias_relu": 2, "scale_bias_relu": 2, "gelu": 2, "avg_pool": 4,
    "softmax": 12, "layer_norm": 8, "attention": 24,
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """|computed - wanted| ≤ terms·Σ|terms of the sum| + spread·(|wanted| + Σ|what is added after it|) + floor."""

    terms: float
    spread: float
    floor: float

    @property
    def exact(self) -> bool:
        """Whether the result must be what the operator's type holds of the wanted value, to the bit."""
        return self.terms == 0 and self.spread == 0


def bound(op: Operator, integer: bool) -> Bound:
    """What is allowed on whole numbers, or on any."""
    if op.out_dtype == "int32" or op.kind in MOVES or (integer and op.kind not in GELU | ROWS and op.kind != "avg_pool"):
        return Bound(0.0, 0.0, 0.0)
    unit = UNIT_ROUNDOFF[op.dtype]
    # Exact sums of whole numbers stay exact.
    total = 0.0 if integer or op.depth == 1 else 2 * op.depth * ACCUMULATED / (1 - op.depth * ACCUMULATED)
    if op.factor_dtype != op.dtype and not integer:  # both factors of every term
        total += 2 * UNIT_ROUNDOFF[op.factor_dtype] + UNIT_ROUNDOFF[op.factor_dtype] ** 2
    steps = STEPS.get(op.kind, 1) * unit
    slope = 1.13 if op.kind in GELU else 1.0  # the steepest part of gelu
    return Bound(slope * total, slope * steps + (FUNCTION if op.kind in GELU else 0.0), UNDERFLOW[op.dtype])


def largest(op: Operator) -> int:
    """The largest of the whole numbers to try."""
    return SMALL if op.depth <= DEEP else SMALLEST
