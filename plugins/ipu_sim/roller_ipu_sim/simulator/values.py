"""Evaluation of a map's scalar trees on NumPy arrays: each operation in its operands' type, with the device's rounding.

float16 and bfloat16 are computed in float32 and rounded back, which for one operation gives the nearest value. Elementary functions
are computed in float64 and rounded once (bfloat16: through float32). A float that no 64-bit integer holds converts to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from roller.plugin import numpy_dtype
from roller_ipu_sim.manifest.boxes import Array
from roller_ipu_sim.manifest.models import number, operands
from roller_ipu_sim.manifest.trees import FLOATS, FOLDS, Tree

__all__ = ["converted", "evaluate", "folded", "start"]

_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])

ELEMENTARY: Mapping[str, Callable[..., Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "pow": np.power,
}


def _greater(a: Array, b: Array) -> Array:
    """Returns the max of two, the first of equal ones, NaN if one is NaN: independent of NumPy's choice of loop."""
    return np.where((a >= b) | np.isnan(a), a, b)


def _less(a: Array, b: Array) -> Array:
    return np.where((a <= b) | np.isnan(a), a, b)


EXACT: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": _greater,
    "min": _less,
    "neg": np.negative,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}
COMPARISON: Mapping[str, Callable[..., Array]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
LOGICAL: Mapping[str, Callable[..., Array]] = {"and": np.logical_and, "or": np.logical_or, "not": np.logical_not}


def evaluate(tree: Tree, leaf: Callable[[Tree], Array]) -> Array:
    """Returns the value of a tree at all points; `leaf` gives those of its loads, indices and of the result."""
    match tree:
        case ("const", value, dtype):
            return converted(np.asarray(number(value)), dtype)
        case ("cast", dtype, value):
            return converted(evaluate(value, leaf), dtype)
        case ("load" | "index" | "result", *_):
            return leaf(tree)
    values = [evaluate(operand, leaf) for operand in operands(tree)]
    return np.where(*values) if tree[0] == "select" else _operated(str(tree[0]), values)


def folded(reducer: str, held: Array, value: Array) -> Array:
    """Folds one more value into the held one, in their type."""
    return _operated(FOLDS[reducer], [held, value])


def start(reducer: str, dtype: str) -> Array | None:
    """Returns the start value of a fold; None: it starts from its first value."""
    return {"sum": converted(np.asarray(0), dtype), "prod": converted(np.asarray(1), dtype)}.get(reducer)


def _operated(op: str, values: list[Array]) -> Array:
    dtype = values[0].dtype
    if op in LOGICAL:
        return LOGICAL[op](*values)
    if dtype.kind in "iu" and dtype.itemsize <= 8:
        return _whole(op, values)
    name = dtype.name
    if op in ELEMENTARY:
        return converted(ELEMENTARY[op](*(v.astype(np.float64) for v in values)), name)
    wide = values if name in ("float32", "bool") else [v.astype(np.float32) for v in values]
    if op in COMPARISON:
        return COMPARISON[op](*wide)
    found = EXACT[op](*wide)
    return found if name == "float32" else found.astype(dtype)


def _whole(op: str, values: list[Array]) -> Array:
    """Applies an operation to integers: they wrap around, and divide towards zero (by zero to 0)."""
    if op in COMPARISON:
        return COMPARISON[op](*values)
    if op in ("floor", "ceil", "round"):
        return values[0]
    wide = [v.astype(np.int64) for v in values]
    if op == "div":
        a, b = wide
        found: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))
    else:
        found = EXACT[op](*wide)
    return found.astype(values[0].dtype)


def converted(value: Array, dtype: str) -> Array:
    """Converts values to another element type: to the nearest, to an integer towards zero, to bool by a comparison with 0."""
    target: np.dtype[Any] = numpy_dtype(dtype)
    if value.dtype == target:
        return value
    if dtype == "bool":
        return np.not_equal(value, 0)
    if dtype in FLOATS:
        exact = value.astype(np.float64)
        return (exact.astype(np.float32) if dtype == "bfloat16" else exact).astype(target)
    if value.dtype.kind in "iub":
        return value.astype(np.int64).astype(target)
    exact = value.astype(np.float64)
    return np.where(np.abs(exact) < 2.0**63, np.trunc(exact), 0.0).astype(np.int64).astype(target)
