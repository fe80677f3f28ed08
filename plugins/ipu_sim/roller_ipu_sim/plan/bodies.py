"""Properties of a stage's scalar trees that cycles depend on: operations, loads, coordinates.

Construction requests them for the same few trees in every program that it rates, so the answers are cached. Keys are the objects
themselves, as the hash of a tree takes longer than a walk over it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from roller.plugin import Binary, Cast, Coordinate, Load, Nest, Scalar, Select, Unary, walk

FOLDS = {"sum": "add", "max": "max", "min": "min", "prod": "mul"}
REMEMBERED = 256  # cached answers of each function

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def _remembered(ask: Callable[_Asked, _Answer]) -> Callable[_Asked, _Answer]:
    known: dict[tuple[int, ...], tuple[tuple[object, ...], _Answer]] = {}  # with the arguments, so that their ids stay valid

    @wraps(ask)
    def answered(*about: _Asked.args, **none: _Asked.kwargs) -> _Answer:
        key = tuple([id(one) for one in about])
        found = known.get(key)
        if found is None:
            if len(known) >= REMEMBERED:
                known.clear()
            found = known[key] = about, ask(*about, **none)
        return found[1]

    return answered


@_remembered
def operations(tree: Scalar, nest: Nest) -> tuple[str, ...]:
    """Returns the names of a tree's operations, operands before users; a coordinate adds up the loops that it depends on."""
    return _operations(tree, nest)


def _operations(tree: Scalar, nest: Nest) -> tuple[str, ...]:
    match tree:
        case Unary("rounded", value):  # every value is rounded already
            return _operations(value, nest)
        case Unary(op, value):
            return (*_operations(value, nest), op)
        case Binary(op, left, right):
            return (*_operations(left, nest), *_operations(right, nest), op)
        case Select(condition, yes, no):
            return (*_operations(condition, nest), *_operations(yes, nest), *_operations(no, nest), "select")
        case Cast(value, _):
            return (*_operations(value, nest), "cast")
        case Coordinate(index):
            return ("add",) * max(0, sum(1 for d in nest.dims if index.coefficient(d.members[-1].name)) - 1)
    return ()


@_remembered
def loads_in(tree: Scalar) -> tuple[Load, ...]:
    """Returns the loads of a tree, each once, in the order of their first use."""
    return tuple(dict.fromkeys(_loads(tree)))


def _loads(tree: Scalar) -> list[Load]:
    match tree:
        case Load():
            return [tree]
        case Unary(_, value) | Cast(value, _):
            return _loads(value)
        case Binary(_, left, right):
            return [*_loads(left), *_loads(right)]
        case Select(condition, yes, no):
            return [*_loads(condition), *_loads(yes), *_loads(no)]
    return []


@_remembered
def coordinates_in(tree: Scalar) -> tuple[Coordinate, ...]:
    """Returns the coordinates that a tree computes with."""
    return tuple(node for node in walk(tree) if isinstance(node, Coordinate))
