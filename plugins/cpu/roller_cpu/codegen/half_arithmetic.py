"""Single operations on halves, in the processor's own float16 instructions.

An operation that widens its float16 operands to float32, and whose result is rounded to float16 at once, gives the same bits in
float16: rounding twice is rounding once, as the 24 bits of a float32's significand are no fewer than twice the 11 of a float16 and
two more (Figueroa, "When is double rounding innocuous?", 1995). Formulas of several operations, and functions, stay in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roller.plugin import Binary, Cast, Const, HardwareSpec, RProgram, Scalar, Select, Stage, StageProgram, Unary

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
    before = tuple(_trees(stage) for stage in nest.before)
    return replace(program, nest=replace(nest, stage=_trees(nest.stage), before=before))


def _trees(stage: Stage) -> Stage:
    epilogue = None if stage.epilogue is None else _forms(stage.epilogue).own
    return replace(stage, body=_forms(stage.body).own, epilogue=epilogue)


@dataclass(frozen=True)
class _Forms:
    """A value in its own type; in float16 if that holds it, and in float16 if it is rounded at once."""

    own: Scalar
    held: Scalar | None = None
    rounded: Scalar | None = None


def _forms(node: Scalar) -> _Forms:
    match node:
        case Const(value, "float32"):
            literal = Const(value, HALF) if _representable(float(value)) else None
            return _Forms(node, literal, literal)
        case Cast(value, dtype):
            return _cast(_forms(value), value.dtype, dtype)
        case Unary(op, value):
            inner = _forms(value)
            return _Forms(Unary(op, inner.own), rounded=inner.rounded if op == "rounded" else None)
        case Binary(op, left, right):
            return _operation(op, _forms(left), _forms(right), left.dtype)
        case Select(condition, yes, no):
            test, first, second = _forms(condition).own, _forms(yes), _forms(no)
            half = None if first.held is None or second.held is None else Select(test, first.held, second.held)
            return _Forms(Select(test, first.own, second.own), half, half)
        case _:
            return _Forms(node)


def _cast(value: _Forms, source: str, target: str) -> _Forms:
    if (source, target) == (WIDE, HALF) and value.rounded is not None:
        return _Forms(value.rounded)
    if (source, target) == (HALF, WIDE):
        return _Forms(Cast(value.own, WIDE), value.own, value.own)
    return _Forms(Cast(value.own, target))


def _operation(op: str, left: _Forms, right: _Forms, dtype: str) -> _Forms:
    own = Binary(op, left.own, right.own)
    if dtype != WIDE or left.held is None or right.held is None:
        return _Forms(own)
    half = Binary(op, left.held, right.held)
    if op in COMPARED:
        return _Forms(half)
    if op in CHOSEN:
        return _Forms(own, half, half)
    if op in ROUNDED:  # no sum takes the bits that rounding removes from a product
        return _Forms(own, rounded=Unary("rounded", half) if op == "mul" else half)
    return _Forms(own)


def _representable(value: float) -> bool:
    """Returns True for a number that float16 represents, subnormal numbers and infinities included."""
    with np.errstate(over="ignore"):
        return float(np.float16(value)) == value
