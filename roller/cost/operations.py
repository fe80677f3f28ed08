"""Issue slots: the time of a stage's scalar work at one point, in multiply-adds."""

from __future__ import annotations

from collections.abc import Mapping

from roller.ir.expr import Stage
from roller.ir.scalar import Binary, Cast, Scalar, Unary, is_operation, walk

# Issue slots of one scalar operation, in multiply-adds. Polynomial kernels: a range reduction of 4 and a degree-6 Horner
# scheme for exp; sigmoid adds a division (about 5 slots on every vector unit); tanh and erf are one of two polynomials.
OPERATION_SLOTS: Mapping[str, float] = {
    "exp": 12, "log": 14, "tanh": 18, "sigmoid": 18, "erf": 20, "sin": 20, "cos": 20, "pow": 30,
    "sqrt": 5, "rsqrt": 7, "div": 5,
}  # fmt: skip


def body_slots(stage: Stage, own: Mapping[str, float] = OPERATION_SLOTS) -> float:
    """Returns the body's issue slots at one point; a product that feeds a sum is one multiply-add. `own`: a device's slots."""
    slots = scalar_slots(stage.body, own) + (own.get(stage.reducer, 1.0) if stage.reducer else 0)
    fused = stage.reducer == "sum" and isinstance(stage.body, Binary) and stage.body.op == "mul"
    return max(1.0, slots - 1 if fused else slots)


def epilogue_slots(stage: Stage, own: Mapping[str, float] = OPERATION_SLOTS) -> float:
    """Returns the epilogue's issue slots for one output element."""
    return scalar_slots(stage.epilogue, own) if stage.epilogue is not None else 0.0


def scalar_slots(node: Scalar, own: Mapping[str, float] = OPERATION_SLOTS) -> float:
    """Returns the issue slots of a scalar tree; loads and selections are free, and so are casts unless `own` gives their slots."""
    total = 0.0
    for part in walk(node):
        if isinstance(part, Unary | Binary) and is_operation(part):
            total += own.get(part.op, OPERATION_SLOTS.get(part.op, 1.0))
        elif isinstance(part, Cast):
            total += own.get("cast", 0.0)
    return total
