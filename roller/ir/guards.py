"""Guards: out-of-bounds reads, as a select on index bounds or as a load with a fill value, and the test for their equivalence.

The two forms of zero padding, `Select(0 <= i-1 < n, x[i-1], 0)` and `x[i-1] with fill=0`, are equivalent. Plans and code generators
use the second one: it shows directly that the stage reads one box of one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from roller.ir.expr import FLOATS
from roller.ir.scalar import Affine, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary, identical, loads, rewrite

Shapes = Mapping[str, tuple[int, ...]]


def guard(load: Load, value: Scalar, shape: Sequence[int], extents: Mapping[str, int]) -> Scalar:
    """Returns `value` if the load's index is inside the shape, else the load's fill; `value` alone if it cannot be outside."""
    if load.fill is None:
        return value
    condition: Scalar | None = None
    for index, extent in zip(load.index, shape, strict=True):
        low, high = index.bounds(extents)
        tests: list[Scalar] = []
        if low < 0:
            tests.append(Binary("ge", Coordinate(index), Const(0, "int32")))
        if high >= extent:
            tests.append(Binary("lt", Coordinate(index), Const(extent, "int32")))
        for test in tests:
            condition = test if condition is None else Binary("and", condition, test)
    return value if condition is None else Select(condition, value, Const(load.fill, value.dtype))


def canonical(node: Scalar, shapes: Shapes, extents: Mapping[str, int]) -> Scalar:
    """Returns the same scalar with selects turned into equivalent guarded loads, and without fills that are never read.

    `shapes` are those of the tensors loaded, `extents` those of the axes; in an empty nest nothing changes.
    """
    if 0 in extents.values():
        return node

    def change(part: Scalar) -> Scalar | None:
        match part:
            case Load():
                never = part.fill is not None and _inside(part, shapes[part.tensor], extents)
                return replace(part, fill=None) if never else part
            case Select():
                inner = (canonical(side, shapes, extents) for side in (part.condition, part.yes, part.no))
                return _simplified(Select(*inner), shapes, extents)
            case _:
                return None

    return rewrite(node, change)


def _inside(load: Load, shape: Sequence[int], extents: Mapping[str, int]) -> bool:
    bounds = [index.bounds(extents) for index in load.index]
    return all(low >= 0 and high < extent for (low, high), extent in zip(bounds, shape, strict=True))


def _simplified(select: Select, shapes: Shapes, extents: Mapping[str, int]) -> Scalar:
    conditions = _conditions(select.condition)
    if conditions is None:
        return select
    left = [c for c in conditions if c.bounds(extents)[0] < 0]
    if not left:
        return select.yes
    read = loads(select.yes)
    if not read or not isinstance(select.no, Const):
        return select
    # If all elements exist, the conditions must hold. If one does not exist, there are three cases: a condition fails, then no
    # element exists and the constant is the result; or the select was undefined there (no fill); or its load returned this very
    # fill. So guarded loads are equivalent, if the value equals the constant when all of them return their fill.
    if not all(_implied(c, load, shapes[load.tensor]) for c in left for load in read):
        return select
    for fill in dict.fromkeys((select.no.value, 0)):
        filled = {load: replace(load, fill=fill if load.dtype not in FLOATS else float(fill)) for load in read}
        agreed = all(load.fill is None or identical(load.fill, filled[load].fill) for load in read)
        if agreed and _gives(select.yes, filled[read[0]].fill, select.no):
            return _with_loads(select.yes, filled)
    return select


def _with_loads(node: Scalar, loaded: Mapping[Load, Scalar]) -> Scalar:
    return rewrite(node, lambda part: loaded.get(part) if isinstance(part, Load) else None)


def _gives(node: Scalar, loaded: float | int | None, wanted: Const) -> bool:
    value = None if loaded is None else _constant(node, loaded)
    return value is not None and identical(value, wanted.value)


def _constant(node: Scalar, loaded: float) -> float | None:
    """Returns the node's value if every load returns `loaded` and only exact operations are needed; else None."""
    match node:
        case Load():
            return loaded
        case Const():
            return node.value
        case Cast():
            value = _constant(node.value, loaded)
            exact = value == 0 or (value is not None and math.isinf(value) and node.dtype in FLOATS)
            return value if exact else None
        case Unary("neg" | "abs" as op, inner):
            value = _constant(inner, loaded)
            return None if value is None else -value if op == "neg" else abs(value)
        case Binary("max" | "min" | "mul" as op, first, second):
            a, b = _constant(first, loaded), _constant(second, loaded)
            if a is None or b is None:
                return None
            return (
                max(a, b) if op == "max" else min(a, b) if op == "min" else a * b if 0 in (a, b) and math.isfinite(a + b) else None
            )
        case _:
            return None


def _implied(condition: Affine, load: Load, shape: Sequence[int]) -> bool:
    """Returns True if `condition >= 0` follows from the load's index being inside the shape."""
    wanted = dict(condition.terms)
    for index, extent in zip(load.index, shape, strict=True):
        for bound in (index, index.times(-1).plus(extent - 1)):
            if dict(bound.terms) == wanted and condition.offset >= bound.offset:
                return True
    return False


def _conditions(node: Scalar) -> list[Affine] | None:
    """Returns indices that are all non-negative exactly if the condition holds; None if it is no such conjunction."""
    if not isinstance(node, Binary):
        return None
    if node.op == "and":
        left, right = _conditions(node.left), _conditions(node.right)
        return None if left is None or right is None else left + right
    a, b = _index(node.left), _index(node.right)
    if a is None or b is None:
        return None
    difference = a.plus(b.times(-1))
    match node.op:
        case "ge":
            return [difference]
        case "gt":
            return [difference.plus(-1)]
        case "le":
            return [difference.times(-1)]
        case "lt":
            return [difference.times(-1).plus(-1)]
        case _:
            return None


def _index(node: Scalar) -> Affine | None:
    match node:
        case Coordinate():
            return node.index
        case Const() if isinstance(node.value, int):
            return Affine((), node.value)
        case _:
            return None
