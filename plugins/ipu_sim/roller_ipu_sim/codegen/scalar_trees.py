"""Conversion of a stage's scalar trees to the manifest's trees, with the views of their loads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from roller.plugin import Accumulator, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary
from roller_ipu_sim.manifest.models import View, tiles_in
from roller_ipu_sim.plan.bodies import loads_in
from roller_ipu_sim.plan.stage_plan import ArrayPlan, Plan
from roller_ipu_sim.plan.tile_coordinates import TileSet, Trips, box_number, coordinates, number, position
from roller_ipu_sim.plan.work import last_dim

Tree = tuple[Any, ...]


def base(array: ArrayPlan, trips: Trips, step: int) -> int:
    """Returns the start of a tile's box in its buffer.

    `trips`: the state of the serial loops; `step`: the step of a reduction whose parts rotate around a ring.
    """
    if array.shifts:
        return step % 2 * array.elements
    return box_number(array, trips) * array.held if array.in_place else 0


def result_order(plan: Plan) -> list[int]:
    """Returns the spatial dimensions as loops of a map: the one along which results are contiguous comes last."""
    last = last_dim(plan)
    return [d for d in plan.nest.spatial if d != last] + [d for d in plan.nest.spatial if d == last]


class Trees:
    """A stage's scalar trees as trees of the manifest, with the views of their loads.

    Loops follow dimensions of the nest, and begin at the start of the tile or at a position in it.
    """

    def __init__(self, plan: Plan, trips: Trips, dims: list[int], begin: Mapping[int, int] | None = None) -> None:
        self.plan, self.trips, self.dims, self.begin = plan, trips, dims, begin or {}
        self.views: list[View] = []
        self.late: list[View] = []
        self._names: dict[Coordinate, str] = {}
        self._known: dict[Load, int] = {load: n for n, load in enumerate(loads_in(plan.nest.stage.body))}
        self.views = [self._view(load, self.dims) for load in self._known]

    def tree(self, node: Scalar) -> Tree:
        """Returns the body of a stage."""
        match node:
            case Load():
                return ("load", self._known[node])
            case Accumulator():
                return ("result",)
            case Const(value, dtype):
                return ("const", value if isinstance(value, bool | int) or math.isfinite(value) else str(value), dtype)
            case Unary("rounded", value):  # every value is rounded already
                return self.tree(value)
            case Unary(op, value):
                return (op, self.tree(value))
            case Binary(op, left, right):
                return (op, self.tree(left), self.tree(right))
            case Select(condition, yes, no):
                return ("select", self.tree(condition), self.tree(yes), self.tree(no))
            case Cast(value, dtype):
                return ("cast", dtype, self.tree(value))
            case Coordinate():
                return self._index(node)
        raise AssertionError(node)

    def finished(self, node: Scalar) -> Tree:
        """Returns the epilogue, with its own numbering of loads."""
        spatial = [d for d in self.dims if not self.plan.nest.dims[d].is_reduce]
        self._known = {load: n for n, load in enumerate(loads_in(node))}
        self.late = [self._view(load, spatial) for load in self._known]
        return self.tree(node)

    def _view(self, load: Load, dims: list[int]) -> View:
        array = self.plan.array_of(load)
        begin = 0 if array.piece else sum([at * array.step(d) for d, at in self.begin.items()])
        return View(
            buffer=array.box_buffer,
            offset=base(array, self.trips, 0) + array.begin + begin,
            strides=tuple([array.step(d) for d in dims]),
        )

    def _index(self, node: Coordinate) -> Tree:
        """Returns a coordinate: the tile's position, and a share of each loop."""
        name = self._names.setdefault(node, f"origin{len(self._names)}")
        walked = [(place, c) for place, d in enumerate(self.dims) for c in [_coefficient(self.plan, node, d)] if c]
        found: Tree = ("index", walked[0][0] if walked else 0, walked[0][1] if walked else 0, name)
        for place, c in walked[1:]:
            found = ("add", found, ("index", place, c, None))
        return found

    def origins(self, tiles: TileSet) -> dict[str, tuple[int, ...]]:
        """Returns the positions of each tile of a set, for every coordinate that trees use."""
        grid, found = self.plan.grid, {}
        if not self._names:
            return {}
        where = {number(grid, coords): coords for coords in coordinates(grid)}
        for node, name in self._names.items():
            values = []
            for tile in tiles_in(tiles):
                at = [position(grid, d, where[tile], self.trips) + self.begin.get(d, 0) for d in self.dims]
                steps = [_coefficient(self.plan, node, d) for d in self.dims]
                values.append(node.index.offset + sum([n * by for n, by in zip(at, steps, strict=True)]))
            found[name] = tuple(values)
        return found


def _coefficient(plan: Plan, node: Coordinate, dim: int) -> int:
    return node.index.coefficient(plan.nest.dims[dim].members[-1].name)


def as_body(tree: Tree) -> Tree:
    """Returns a tree of an epilogue as a body: the result is the first load."""
    match tree:
        case ("result",):
            return ("load", 0)
        case ("load", int(which)):
            return ("load", which + 1)
        case ("const" | "index", *_):
            return tree
    return tuple([as_body(part) if isinstance(part, tuple) else part for part in tree])
