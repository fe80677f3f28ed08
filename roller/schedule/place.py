"""Where things are: array windows, and the address of an element for a point of the nest.

An address is a sum of one part per dimension. Parts are linear in the dimension's position, or decode a fused position
into its axes by division; either way a part depends on its own dimension only, so it leaves the loops of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from roller.nest import Dim, Nest
from roller.expr import Affine, Tensor
from roller.schedule.tir import Buffer, Expr, index, plus, ramp, spread, times

Position = int | Expr


@dataclass(frozen=True)
class Window:
    """A stored array or a copied box of it: buffer, address step and first coordinate for each tensor dimension."""

    buffer: Buffer
    steps: tuple[int, ...]
    starts: tuple[Position, ...]

    @staticmethod
    def whole(buffer: Buffer, tensor: Tensor) -> Window:
        """The array itself, row-major from its first element."""
        return Window(buffer, tensor.strides, (0,) * len(tensor.shape))


@dataclass(frozen=True)
class Point:
    """A position in every dimension; along `lane` it stands for `lanes` neighbours."""

    nest: Nest
    positions: tuple[Position, ...]
    lane: int | None = None
    lanes: int = 1

    def scalar(self) -> Point:
        """The first of the neighbours alone."""
        return Point(self.nest, self.positions)

    def moved(self, offsets: Sequence[int]) -> Point:
        """The point some steps further along each dimension."""
        return Point(self.nest, tuple(plus(p, o) for p, o in zip(self.positions, offsets, strict=True)), self.lane, self.lanes)


def affine(nest: Nest, point: Point, target: Affine) -> Expr:
    """The value of an index at a point, with as many lanes as the point has."""
    value = spread(index(target.offset), point.lanes)
    for number, dim in enumerate(nest.dims):
        steps = [target.coefficient(a.name) for a in dim.members]
        if any(steps):
            value = value + part(dim, steps, point, number)
    return value


def part(dim: Dim, steps: list[int], point: Point, number: int) -> Expr:
    """A dimension's contribution to an address with these steps per member axis, spread over the point's lanes."""
    on_lane = number == point.lane and point.lanes > 1
    if is_linear(dim, steps):
        base = times(point.positions[number], steps[-1])
        return ramp(base, steps[-1], point.lanes) if on_lane else spread(index(base), point.lanes)
    value = scalar_part(dim, steps, point.positions[number]) if not on_lane else _vector_part(dim, steps, point, number)
    return value if on_lane else spread(index(value), point.lanes)


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


def _vector_part(dim: Dim, steps: list[int], point: Point, number: int) -> Expr:
    lanes = point.lanes
    position = ramp(point.positions[number], 1, lanes)
    total = spread(index(0), lanes)
    for place, axis in enumerate(reversed(dim.members)):
        last = place == len(dim.members) - 1
        size = spread(index(axis.extent), lanes)
        value = position if last else tirx.floormod(position, size)
        step = steps[len(steps) - 1 - place]
        if step:
            total = total + value * spread(index(step), lanes)
        if not last:
            position = tirx.floordiv(position, size)
    return total


def member_steps(dim: Dim, window: Window, indices: tuple[Affine, ...]) -> list[int]:
    """Address steps of the member axes of a dimension."""
    return [sum(i.coefficient(a.name) * s for i, s in zip(indices, window.steps, strict=True)) for a in dim.members]


def lane_stride(nest: Nest, window: Window, indices: tuple[Affine, ...], lane: int) -> int | None:
    """Address step along a dimension, None where it is not constant."""
    steps = member_steps(nest.dims[lane], window, indices)
    return steps[-1] if is_linear(nest.dims[lane], steps) else None


def base_address(nest: Nest, window: Window, indices: tuple[Affine, ...], point: Point, skip: int | None = None) -> Position:
    """The scalar address of a point's first neighbour, without the part of one dimension if asked."""
    total: Position = sum(i.offset * s for i, s in zip(indices, window.steps, strict=True))
    for start, step in zip(window.starts, window.steps, strict=True):
        total = plus(total, times(start, -step))
    for number, dim in enumerate(nest.dims):
        steps = member_steps(dim, window, indices)
        if any(steps) and number != skip:
            total = plus(total, scalar_part(dim, steps, point.positions[number]))
    return total


def address(nest: Nest, window: Window, indices: tuple[Affine, ...], point: Point) -> tuple[Expr, bool]:
    """The address of a point, and whether it is a vector: one lane for an array that does not move along the lanes."""
    if point.lane is None or point.lanes == 1:
        return index(base_address(nest, window, indices, point)), False
    steps = member_steps(nest.dims[point.lane], window, indices)
    if not any(steps):
        return index(base_address(nest, window, indices, point)), False
    if is_linear(nest.dims[point.lane], steps):
        return ramp(base_address(nest, window, indices, point), steps[-1], point.lanes), True
    rest = base_address(nest, window, indices, point, skip=point.lane)
    return spread(index(rest), point.lanes) + _vector_part(nest.dims[point.lane], steps, point, point.lane), True
