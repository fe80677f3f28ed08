"""Addresses of array elements: array windows, and the address of an element for a point of the nest.

An address is a sum of one part per dimension. A part is linear in the dimension's position, or decodes a fused position into its
axes by division. Each part depends on its own dimension only, so it can be hoisted out of the loops of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tvm import tirx

from roller.ir.expr import Tensor
from roller.ir.nest import Dim, Nest
from roller.ir.scalar import Affine
from roller.lowering.tir.builder import Buffer, Expr, index, plus, ramp, spread, times

Position = int | Expr
P = TypeVar("P", int, Position)


@dataclass(frozen=True)
class ArrayView:
    """A stored array or a copied box of it: buffer, extent, address step and first coordinate for each tensor dimension."""

    buffer: Buffer
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    starts: tuple[Position, ...]

    @staticmethod
    def whole(buffer: Buffer, tensor: Tensor) -> ArrayView:
        """The array itself, row-major from its first element."""
        return ArrayView(buffer, tensor.shape, tensor.strides, (0,) * len(tensor.shape))


@dataclass(frozen=True)
class Point:
    """A position in every dimension; along `lane` it stands for `lanes` neighbouring positions."""

    nest: Nest
    positions: tuple[Position, ...]
    lane: int | None = None
    lanes: int = 1

    def scalar(self) -> Point:
        """Returns the first of the neighbouring positions as a scalar point."""
        return Point(self.nest, self.positions)

    def each(self) -> list[Point]:
        """Returns the neighbouring positions as scalar points."""
        assert self.lane is not None
        step = [0] * len(self.positions)
        found = []
        for number in range(self.lanes):
            step[self.lane] = number
            found.append(self.scalar().moved(step))
        return found

    def moved(self, offsets: Sequence[int]) -> Point:
        """Returns the point shifted by an offset along each dimension."""
        return Point(self.nest, tuple(plus(p, o) for p, o in zip(self.positions, offsets, strict=True)), self.lane, self.lanes)


def affine(nest: Nest, point: Point, target: Affine) -> Expr:
    """The value of an index at a point, with as many lanes as the point has."""
    steps = {n: [target.coefficient(a.name) for a in d.members] for n, d in enumerate(nest.dims)}
    if point.lanes > 1 and point.lane is not None and any(steps[point.lane]):
        dim = nest.dims[point.lane]
        if is_linear(dim, steps[point.lane]):
            return ramp(_affine_scalar(nest, point, target, steps), steps[point.lane][-1], point.lanes)
        return gather([_affine_scalar(nest, p, target, steps) for p in point.each()])
    return spread(index(_affine_scalar(nest, point, target, steps)), point.lanes)


def _affine_scalar(nest: Nest, point: Point, target: Affine, steps: dict[int, list[int]]) -> Position:
    total: Position = target.offset
    for number, dim in enumerate(nest.dims):
        if any(steps[number]):
            total = plus(total, scalar_part(dim, steps[number], point.positions[number]))
    return total


def gather(values: list[Position]) -> Expr:
    """Returns a vector of scalars."""
    return tirx.Shuffle([index(v) for v in values], [index(i) for i in range(len(values))])


def scalar_part(dim: Dim, steps: list[int], position: Position) -> Position:
    """A dimension's contribution to a scalar address."""
    if is_linear(dim, steps):
        return times(position, steps[-1])
    total: Position = 0
    for step, value in zip(steps, decode_scalar(dim, position), strict=True):
        total = plus(total, times(value, step))
    return total


def decode_scalar(dim: Dim, position: Position) -> list[Position]:
    """The value of each member axis of a fused scalar position."""
    values: list[Position] = []
    for number, axis in enumerate(reversed(dim.members)):
        if number == len(dim.members) - 1:
            values.append(position)
        elif isinstance(position, int):
            values.append(position % axis.extent)
            position = position // axis.extent
        else:
            values.append(tirx.floormod(position, index(axis.extent)))
            position = tirx.floordiv(position, index(axis.extent))
    return list(reversed(values))


def is_linear(dim: Dim, steps: list[int]) -> bool:
    """True if neighbouring fused positions are a constant step apart."""
    return all(outer == inner * axis.extent for outer, inner, axis in zip(steps, steps[1:], dim.members[1:], strict=False))


def member_steps(dim: Dim, window: ArrayView, indices: tuple[Affine, ...]) -> list[int]:
    """Address steps of the member axes of a dimension."""
    return [sum(i.coefficient(a.name) * s for i, s in zip(indices, window.steps, strict=True)) for a in dim.members]


def lane_stride(nest: Nest, window: ArrayView, indices: tuple[Affine, ...], lane: int) -> int | None:
    """Address step along a dimension, None where it is not constant."""
    steps = member_steps(nest.dims[lane], window, indices)
    return steps[-1] if is_linear(nest.dims[lane], steps) else None


def base_address(nest: Nest, window: ArrayView, indices: tuple[Affine, ...], point: Point) -> Position:
    """The scalar address of a point's first neighbour."""
    total: Position = sum(i.offset * s for i, s in zip(indices, window.steps, strict=True))
    for start, step in zip(window.starts, window.steps, strict=True):
        total = plus(total, times(start, -step))
    for number, dim in enumerate(nest.dims):
        steps = member_steps(dim, window, indices)
        if any(steps):
            total = plus(total, scalar_part(dim, steps, point.positions[number]))
    return total


def address(nest: Nest, window: ArrayView, indices: tuple[Affine, ...], point: Point) -> Expr | list[Expr]:
    """Returns the address of a point: one expression, or a list of one expression per lane.

    A single expression is a scalar if the array does not depend on the lane dimension, and a ramp if the lanes are a constant step
    apart. A list is returned if the step between lanes is not constant.
    """
    first = base_address(nest, window, indices, point)
    if point.lane is None or point.lanes == 1:
        return index(first)
    steps = member_steps(nest.dims[point.lane], window, indices)
    if not any(steps):
        return index(first)
    if is_linear(nest.dims[point.lane], steps):
        return ramp(first, steps[-1], point.lanes)
    return [index(base_address(nest, window, indices, p)) for p in point.each()]


def is_vector(where: Expr | list[Expr]) -> bool:
    """True if an address has several lanes."""
    return isinstance(where, list | tirx.Ramp)


def replaced(values: tuple[P, ...], at: int, value: P) -> tuple[P, ...]:
    """Returns the positions (or offsets) with the one at index `at` replaced."""
    return (*values[:at], value, *values[at + 1 :])
