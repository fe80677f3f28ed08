"""Placements of tensors: the part of the stored array on each tile, initially or at the end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Literal

from roller_ipu_sim.manifest.affine import Nest, Row, nest_over, nests
from roller_ipu_sim.manifest.models import Placement, TensorHome
from roller_ipu_sim.plan.stage_plan import ArrayDim, ArrayPlan, Plan
from roller_ipu_sim.plan.tile_coordinates import (
    Walk,
    box_steps,
    ring_pieces,
    share_boxes,
    share_steps,
    start_steps,
    starts,
    untouched,
    walks,
)
from roller_ipu_sim.plan.windows import Interval, Windows

Role = Literal["input", "constant", "output"]


def home(array: ArrayPlan, role: Role, placements: tuple[Placement, ...]) -> TensorHome:
    """Returns a tensor with its layout: dimensions in stored order, extents padded to what boxes cover."""
    layout = tuple([(d.source, d.divisor, None if _highest(array, d) else d.extent) for d in array.dims])
    return TensorHome(
        name=array.access.tensor.name,
        dtype=array.access.tensor.dtype,
        shape=array.merged,
        role=role,
        layout=layout,
        stored=stored(array),
        placements=placements,
    )


def _highest(array: ArrayPlan, dim: ArrayDim) -> bool:
    return all(d.divisor <= dim.divisor for d in array.dims if d.source == dim.source)


def stored(array: ArrayPlan) -> tuple[int, ...]:
    """Returns the extents of the stored array."""
    found = []
    for dim, box in zip(array.dims, array.box, strict=True):
        whole = dim.plain(array.nest.extents) and (array.plain or dim is array.dims[-1])
        found.append(array.grid.last(dim.terms[0][0]) + box if whole else dim.extent)
    return tuple([line.high - line.low for line in array.lines]) if array.kept and not array.plain else tuple(found)


def share_ranges(elements: int, share: int) -> Iterator[tuple[int, int, int]]:
    """Yields ranges of shares of one size as first, end and elements: all whole shares, and the last if it is smaller."""
    whole, rest = divmod(elements, share)
    if whole:
        yield 0, whole, share
    if rest:
        yield whole, whole + 1, rest


def kept(plan: Plan, array: ArrayPlan) -> Iterator[Placement]:
    """Returns the initial placements of an input on tiles."""
    if not array.plain:
        return _window_parts(array)
    return _first_parts(plan, array) if array.shifts else _shares(array)


def placed(nest: Nest, buffer: str, shape: tuple[int, ...], count: int | None, strides: tuple[int, ...] | None = None) -> Placement:
    """Returns a family of parts of boxes, dense or, if whole, with `strides`.

    The nest's columns: tile, offset in the buffer, first element of the box, start of the box.
    """
    tile, offset, first, *start = nest.first
    loops = [(trips, step[0], step[1], step[3:], step[2]) for trips, step in nest.loops]
    return Placement(
        tile=tile,
        buffer=buffer,
        offset=offset,
        start=tuple(start),
        shape=shape,
        first=first,
        count=count,
        strides=strides,
        loops=tuple(loops),
    )


def _shares(array: ArrayPlan) -> Iterator[Placement]:
    """Yields every tile's share of each of its boxes."""
    grid, others = array.grid, untouched(array)
    alone = (array.in_place or array.kept) and not array.piece
    place = dict(zip(others, [size * array.share for size in share_steps(grid, others)], strict=True))
    axes, serial = start_steps(array)
    steps = [
        (s, place.get(a, 0) if alone else 0, place.get(a, 0), *start)
        for a, (s, start) in enumerate(zip(grid.strides, axes, strict=True))
    ]
    boxes = _over_boxes(array, serial, array.elements if alone else array.share)
    origin = _origin(array)
    for low, high, count in share_ranges(array.elements, array.share):
        for box in share_boxes(grid, others, low, high):
            nest = nest_over((0, 0, 0, *origin), [*walks(grid, box, steps), *boxes])
            yield placed(nest, array.box_buffer if alone or array.piece else array.home_buffer, array.box, count)


def _origin(array: ArrayPlan) -> tuple[int, ...]:
    """Returns the start of the first tile's first box."""
    return starts(array, (0,) * len(array.grid.loops), (0,) * len(array.grid.serial))


def _over_boxes(array: ArrayPlan, starting: list[tuple[int, ...]], apart: int) -> list[Walk]:
    """Returns loops over a tile's boxes, which lie `apart` elements apart."""
    rows = zip(array.grid.serial, box_steps(array), starting, strict=True)
    return [(0, lp.trips, (0, by * apart, 0, *start)) for lp, by, start in rows if array.touches(lp.dim)]


def _first_parts(plan: Plan, array: ArrayPlan) -> Iterator[Placement]:
    """Yields the first part of each tile, for an array whose parts rotate around a ring."""
    grid = array.grid
    axes, (serial,) = start_steps(array)
    for piece in ring_pieces(plan, 0):
        first = [low + piece.part * by for low, by in zip(_origin(array), serial, strict=True)]
        steps = [
            (s, 0, 0, *[a + piece.steps.get(axis, 0) * by for a, by in zip(axes[axis], serial, strict=True)])
            for axis, s in enumerate(grid.strides)
        ]
        yield placed(nest_over((0, 0, 0, *first), walks(grid, piece.box, steps)), array.box_buffer, array.box, array.elements)


def keeper(windows: Windows, place: int, interval: Interval) -> int:
    """Returns the contribution of an interval to the number of the tile that owns it."""
    grid, axis = windows.array.grid, windows.owners[place]
    tile = interval.owner * grid.strides[axis] if axis is not None else 0
    if place == windows.shared[0]:
        left = interval.share
        for other in reversed([a for a in range(len(grid.loops)) if a not in windows.owners]):
            left, digit = divmod(left, grid.loops[other].parts)
            tile += digit * grid.strides[other]
    return tile


def _window_parts(array: ArrayPlan) -> Iterator[Placement]:
    """Yields one interval of each dimension for every tile that owns any, densely or at its position in the tile's box.

    Positions of boxes before the array are stored behind it.
    """
    windows, rank = Windows(array), len(array.dims)
    per_dim = []
    for place, extent in enumerate(stored(array)):
        sizes: dict[int, list[Row]] = {}
        for interval in windows.intervals(place):
            tile, begin = keeper(windows, place, interval), windows.begin(place, interval.owner) if array.kept else interval.low
            for low, high in ((interval.low, min(interval.high, 0)), (max(interval.low, 0), interval.high)):
                if low < high:
                    start = [low % extent if dim == place else 0 for dim in range(rank)]
                    sizes.setdefault(high - low, []).append((tile, (low - begin) * array.strides[place], 0, *start))
        per_dim.append([(size, nest) for size, rows in sizes.items() for nest in nests(rows)])
    for chosen in itertools.product(*per_dim):
        first = tuple([sum(column) for column in zip((0,) * (3 + rank), *[nest.first for _, nest in chosen], strict=True)])
        nest = nest_over(first, [(0, count, step) for _, part in chosen for count, step in part.loops])
        shape = tuple([size for size, _ in chosen])
        if array.kept:
            yield placed(nest, array.box_buffer, shape, None, array.strides)
        else:
            yield placed(nest, array.home_buffer, shape, math.prod(shape))


def results(plan: Plan) -> Iterator[Placement]:
    """Yields the final placements of results."""
    array, grid = plan.output, plan.grid
    parts = [axis for axis, lp in enumerate(grid.loops) if plan.nest.dims[lp.dim].is_reduce]
    elements, size = array.elements, array.elements
    if plan.parts > 1:
        dealt = plan.pieces
        elements, size = dealt.elements, dealt.size
    place = dict(zip(parts, [by * size for by in share_steps(grid, parts)], strict=True)) if plan.parts > 1 else {}
    axes, serial = start_steps(array)
    steps = [(s, 0, place.get(a, 0), *start) for a, (s, start) in enumerate(zip(grid.strides, axes, strict=True))]
    boxes = _over_boxes(array, serial, size)
    for low, high, count in share_ranges(elements, size):
        for box in share_boxes(grid, parts, low, high):
            nest = nest_over((0, 0, 0, *_origin(array)), [*walks(grid, box, steps), *boxes])
            yield placed(nest, plan.buffer("out"), array.box, count)
