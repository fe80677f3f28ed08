"""Scalar trees of a stage, as far as cycles depend on them: operations, arrays that are read, coordinates."""

from __future__ import annotations

from roller.plugin import Binary, Cast, Coordinate, Load, Nest, Scalar, Select, Unary

FOLDS = {"sum": "add", "max": "max", "min": "min", "prod": "mul"}


def operations(tree: Scalar, nest: Nest) -> tuple[str, ...]:
    """Names of what a tree computes, operands before what takes them; a coordinate adds up the loops that it follows."""
    match tree:
        case Unary(op, value):
            return (*operations(value, nest), op)
        case Binary(op, left, right):
            return (*operations(left, nest), *operations(right, nest), op)
        case Select(condition, yes, no):
            return (*operations(condition, nest), *operations(yes, nest), *operations(no, nest), "select")
        case Cast(value, _):
            return (*operations(value, nest), "cast")
        case Coordinate(index):
            return ("add",) * max(0, sum(1 for d in nest.dims if index.coefficient(d.members[-1].name)) - 1)
    return ()


def loads_in(tree: Scalar) -> list[Load]:
    """The loads of a tree, each once, in the order of their first use."""
    match tree:
        case Load():
            found = [tree]
        case Unary(_, value) | Cast(value, _):
            found = loads_in(value)
        case Binary(_, left, right):
            found = [*loads_in(left), *loads_in(right)]
        case Select(condition, yes, no):
            found = [*loads_in(condition), *loads_in(yes), *loads_in(no)]
        case _:
            found = []
    return list(dict.fromkeys(found))


def coordinates_in(tree: Scalar) -> list[Coordinate]:
    """The coordinates that a tree computes with."""
    match tree:
        case Coordinate():
            return [tree]
        case Unary(_, value) | Cast(value, _):
            return coordinates_in(value)
        case Binary(_, left, right):
            return coordinates_in(left) + coordinates_in(right)
        case Select(condition, yes, no):
            return coordinates_in(condition) + coordinates_in(yes) + coordinates_in(no)
    return []
