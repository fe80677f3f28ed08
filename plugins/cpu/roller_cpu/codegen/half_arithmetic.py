"""Single operations on halves, in the processor's own float16 instructions.

An operation that widens its float16 operands to float32, and whose result is rounded to float16 at once, gives the same bits in
float16: rounding twice is rounding once, as the 24 bits of a float32's significand are no fewer than twice the 11 of a float16 and
two more (Figueroa, "When is double rounding innocuous?", 1995). Formulas of several operations, and functions, stay in float32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.plugin import Binary, Cast, Const, HardwareSpec, RProgram, Scalar, Select, Stage, StageProgram, Unary, rewrite

HALF, WIDE = "float16", "float32"
ROUNDED = ("add", "sub", "mul", "div")
CHOSEN = ("max", "min")  # results are operands: nothing is rounded
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


def narrowed(spec: HardwareSpec, program: RProgram) -> RProgram:
    """Returns the program with such operations in float16, if the chip has atoms of that type; else the program itself."""
    if not any(atom.acc_dtype == HALF for atom in spec.atoms):
        return program
    return replace(program, stages=tuple(_stage(stage) for stage in program.stages))


def _stage(program: StageProgram) -> StageProgram:
    nest = program.nest
    before = tuple(_tree(stage) for stage in nest.before)
    return replace(program, nest=replace(nest, stage=_tree(nest.stage), before=before))


def _tree(stage: Stage) -> Stage:
    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, _operation)
    return replace(stage, body=rewrite(stage.body, _operation), epilogue=epilogue)


def _operation(node: Scalar) -> Scalar | None:
    """Returns an operation in float16 if its bits are those of the node; None for any other node."""
    match node:
        case Cast(Unary("rounded", Binary("mul") as product), "float16"):
            return _operation(Cast(product, HALF))
        case Cast(Binary(op, left, right), "float16") if op in ROUNDED:
            return _pair(op, left, right)
        case Cast(value, "float16"):
            return _half(value)
        case Binary(op, left, right) if op in COMPARED:
            return _pair(op, left, right)
        case _:
            return None


def _pair(op: str, left: Scalar, right: Scalar) -> Scalar | None:
    """Returns an operation on two values in float16, a product rounded before any sum; None if float16 does not hold them."""
    first, second = _half(left), _half(right)
    if first is None or second is None:
        return None
    found = Binary(op, first, second)
    return Unary("rounded", found) if op == "mul" else found


def _half(node: Scalar) -> Scalar | None:
    """Returns a float32 value as a float16 without rounding; None if it may need rounding."""
    match node:
        case Cast(value, "float32") if value.dtype == HALF:
            return rewrite(value, _operation)
        case Const(value, "float32") if value is not None and _held(float(value)):
            return Const(value, HALF)
        case Binary(op, left, right) if op in CHOSEN and node.dtype == WIDE:
            return _pair(op, left, right)
        case Select(condition, yes, no) if node.dtype == WIDE:
            first, second = _half(yes), _half(no)
            return None if first is None or second is None else Select(rewrite(condition, _operation), first, second)
        case _:
            return None


def _held(value: float) -> bool:
    """Returns True for a number that float16 represents, subnormal numbers and infinities included."""
    with np.errstate(over="ignore"):
        return float(np.float16(value)) == value
