"""Scalar trees of a map: element types of their nodes, and their operations for the cycle count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_ipu_sim.manifest.models import BYTES, Map, nodes, operands

__all__ = ["FLOATS", "Tree", "body_dtype", "dtype_of", "epilogue_operations", "held", "operations"]

FLOATS = frozenset({"float32", "float16", "bfloat16"})
COMPARISON = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
LOGICAL = frozenset({"and", "or", "not"})
ELEMENTARY = frozenset({"exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "pow"})
LEAVES = frozenset({"load", "const", "result", "index"})
FOLDS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}

Tree = tuple[Any, ...]


def dtype_of(tree: Tree, loads: Sequence[str], result: str | None) -> str:
    """Returns the element type of a tree's value; `ValueError` names the error.

    `loads`: element types of the arrays that it may read; `result`: that of the folded value, None where there is none.
    """
    match tree:
        case ("load", which):
            if which >= len(loads):
                raise ValueError(f"load {which} of {len(loads)}")
            return loads[which]
        case ("const", _, dtype):
            return str(dtype)
        case ("result",):
            if result is None:
                raise ValueError("a result is there only in an epilogue")
            return result
        case ("index", *_):
            return "int32"
        case ("cast", dtype, value):
            dtype_of(value, loads, result)
            return str(dtype)
    return _operated(str(tree[0]), [dtype_of(operand, loads, result) for operand in operands(tree)])


def _operated(op: str, types: list[str]) -> str:
    if op == "select":
        if types[0] != "bool":
            raise ValueError(f"a select decides by a bool, not {types[0]}")
        types = types[1:]
    if len(set(types)) > 1:
        raise ValueError(f"{op!r} of {' and '.join(types)}; cast them to one type")
    if op in LOGICAL and types[0] != "bool":
        raise ValueError(f"{op!r} is of bool, not {types[0]}")
    if op in ELEMENTARY and types[0] not in FLOATS:
        raise ValueError(f"{op!r} is of floats, not {types[0]}; cast it")
    if types[0] == "bool" and op not in LOGICAL | COMPARISON | {"select"}:
        raise ValueError(f"{op!r} of a bool; cast it")
    return "bool" if op in COMPARISON else types[0]


def body_dtype(vertex: Map, loads: Sequence[str]) -> str:
    """Returns the element type of a map's body, in which it also folds."""
    return dtype_of(vertex.body, loads, None)


def _named(tree: Tree | None) -> tuple[str, ...]:
    return () if tree is None else tuple(node[0] for node in nodes(tree) if node[0] not in LEAVES)


def operations(vertex: Map) -> tuple[str, ...]:
    """Returns the operations of a point: the body's, operands first, then the fold."""
    return _named(vertex.body) + (() if vertex.reducer is None else (FOLDS[vertex.reducer],))


def epilogue_operations(vertex: Map) -> tuple[str, ...]:
    """Returns the operations of a result."""
    return _named(vertex.epilogue)


def held(value: float | int, dtype: str) -> bool:
    """Returns True if the element type can hold a constant: for integers an integer in its range."""
    if dtype in FLOATS:
        return True
    if dtype == "bool":
        return value in (0, 1)
    bits = 8 * BYTES[dtype]
    low, high = (0, 2**bits) if dtype == "uint8" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return float(value).is_integer() and low <= value < high
