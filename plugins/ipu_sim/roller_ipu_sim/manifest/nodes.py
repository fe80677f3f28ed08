"""Scalar trees of a manifest: nodes, their operands, and the validation of trees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

__all__ = ["BYTES", "Number", "Tree", "nodes", "number", "operands"]

DEPTH_MAX = 150  # max depth of a scalar tree: JSON is read to 200 levels, and trees are walked recursively

BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}

UNARY = frozenset(
    {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "sin", "cos", "not"}
)
BINARY = frozenset({"add", "sub", "mul", "div", "max", "min", "pow", "lt", "le", "gt", "ge", "eq", "ne", "and", "or"})

# JSON has no infinities; text represents them.
Number = Annotated[
    int | Annotated[float, Field(allow_inf_nan=False)] | Literal["inf", "-inf", "nan"],
    BeforeValidator(lambda value: str(value) if isinstance(value, float) and not math.isfinite(value) else value),
]


def number(value: Number) -> float | int:
    """Returns the number of a manifest's constant."""
    return float(value) if isinstance(value, str) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _arity(node: tuple[Any, ...]) -> tuple[int, int]:
    """Returns how many entries follow a node's name, and the index of the first operand among them."""
    match node[0]:
        case "load":
            return 1, 1
        case "result":
            return 0, 0
        case "const":
            return 2, 2
        case "index":
            return 3, 3
        case "cast":
            return 2, 1
        case "select":
            return 3, 0
        case op if op in UNARY:
            return 1, 0
        case op if op in BINARY:
            return 2, 0
    raise ValueError(f"unknown operation {node[0]!r:.40} in a tree")


def _leaf_is_right(node: tuple[Any, ...]) -> bool:
    match node:
        case ("load", int(which)):
            return which >= 0
        case ("const", value, str(dtype)):
            known = isinstance(value, int | float) and math.isfinite(value)
            return dtype in BYTES and (known or value in ("inf", "-inf", "nan"))
        case ("index", int(loop), int(_), None | str()):
            return loop >= 0
        case ("cast", str(dtype), _):
            return dtype in BYTES
    return node[0] not in ("load", "const", "index", "cast")


def operands(node: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the operands of a tree's node, in order."""
    count, first = _arity(node)
    return node[1 + first : 1 + count]


def nodes(tree: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields every node of a tree, operands before their users."""
    for operand in operands(tree):
        yield from nodes(operand)
    yield tree


def _tree(node: Any, depth: int = 0) -> tuple[Any, ...]:
    if depth > DEPTH_MAX:
        raise ValueError(f"a tree more than {DEPTH_MAX} operations deep")
    if not isinstance(node, tuple) or not node or not isinstance(node[0], str):
        raise ValueError(f"a node is [name, ...], not {node!r:.60}")
    if len(node) != 1 + _arity(node)[0] or not _leaf_is_right(node):
        raise ValueError(f"{node!r:.60} is not a node of a tree")
    for operand in operands(node):
        _tree(operand, depth + 1)
    return node


# ["load", number] | ["const", value, dtype] | ["result"] | ["index", loop, scale, origin or None] | ["cast", dtype, Tree]
# | ["select", Tree, Tree, Tree] | [unary, Tree] | [binary, Tree, Tree]
Tree = Annotated[tuple[Any, ...], BeforeValidator(_frozen), AfterValidator(_tree)]
