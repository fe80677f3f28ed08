"""Exchanges: shares of blocks to all tiles that need them, parts of windows row by row, partial results to the tiles that add them.

Each exchange is a few families: differences between tiles are constant steps, except where a share is the last one, a ring closes
or a window meets the end of an array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from roller_ipu_sim.codegen.placements import keeper, share_ranges
from roller_ipu_sim.manifest.affine import Nest, Row, nest_over, nests
from roller_ipu_sim.manifest.families import sums
from roller_ipu_sim.manifest.models import Receivers, Send
from roller_ipu_sim.plan.stage_plan import ArrayPlan, Plan
from roller_ipu_sim.plan.tile_coordinates import (
    TileSet,
    Trips,
    box_number,
    box_steps,
    ring_pieces,
    share_boxes,
    share_steps,
    start_steps,
    starts,
    tile_set,
    touched,
    untouched,
    walks,
)
from roller_ipu_sim.plan.windows import Windows


def brought(plan: Plan, array: ArrayPlan, trips: Trips) -> Iterator[Send]:
    """Returns the sends that bring the boxes of an array to the tiles, at the state `trips` of the serial loops."""
    if array.shifts:
        return _handed(array, trips[0])
    if not array.plain:
        return _rows(array, trips)
    return _kept_shares(array) if array.kept else _shares(plan, array, trips)


def sent(
    nest: Nest, buffer: str, to: str, tiles: TileSet, count: int, others: bool = False, around: Sequence[tuple[int, int, int]] = ()
) -> Send:
    """Returns a family of dense runs.

    The nest's columns: the sender, its offset, the shift of the receivers, their offset. `around`: loops around a run, outermost
    first: trips, and distances in elements at the source and at the target.
    """
    tile, offset, to_tile, to_offset = nest.first
    return Send(
        tile=tile,
        buffer=buffer,
        offset=offset,
        to=Receivers(tiles=_moved(tiles, to_tile), buffer=to, offset=to_offset),
        shape=(*[trips for trips, _, _ in around], count),
        strides=(*[step for _, step, _ in around], 1),
        to_strides=(*[step for _, _, step in around], 1),
        others=others,
        loops=_loops(nest),
    )


def _moved(tiles: TileSet, by: int) -> TileSet:
    return tuple([(first + by, count, step) for first, count, step in tiles])


def _loops(nest: Nest) -> tuple[tuple[int, int, int, int, int], ...]:
    return tuple([(count, tile, offset, to_tile, to_offset) for count, (tile, offset, to_tile, to_offset) in nest.loops])


def _handed(array: ArrayPlan, step: int) -> Iterator[Send]:
    """Yields every tile's send of its part to its neighbour, from the used half of the buffer to the other one."""
    grid, axes = array.grid, untouched(array)
    offsets = (step - 1) % 2 * array.elements, step % 2 * array.elements
    steps = [(stride, 0, stride, 0) for stride in grid.strides]
    for last in range(len(axes), -1, -1):  # digits of a position on the ring; those behind `last` are 0, so one less borrows
        borrowing = axes[last:]
        box = dict.fromkeys(borrowing, (0, 1))
        if last:
            box[axes[last - 1]] = (1, grid.loops[axes[last - 1]].parts - 1)
        if any(not count for _, count in box.values()):
            continue
        back = sum([(grid.loops[axis].parts - 1) * grid.strides[axis] for axis in borrowing])
        to = back - (grid.strides[axes[last - 1]] if last else 0)
        nest = nest_over((0, offsets[0], to, offsets[1]), walks(grid, box, steps))
        yield sent(nest, array.box_buffer, array.box_buffer, ((0, 1, 1),), array.elements)


def _kept_shares(array: ArrayPlan) -> Iterator[Send]:
    """Yields, for a block whose shares are stored where it is used, the sends of every share to all other tiles that need it."""
    grid, axes, others = array.grid, touched(array), untouched(array)
    place = dict(zip(others, [size * array.share for size in share_steps(grid, others)], strict=True))
    steps = [(s, place.get(a, 0), s if a in axes else 0, place.get(a, 0)) for a, s in enumerate(grid.strides)]
    tiles = tile_set(grid, dict.fromkeys(axes, 0))
    for low, high, count in share_ranges(array.elements, array.share):
        for box in share_boxes(grid, others, low, high):
            nest = nest_over((0, 0, 0, 0), walks(grid, box, steps))
            yield sent(nest, array.box_buffer, array.box_buffer, tiles, count, others=True)


def _shares(plan: Plan, array: ArrayPlan, trips: Trips) -> Iterator[Send]:
    """Yields, for a block whose shares are stored elsewhere, the sends of every share to all tiles that need it."""
    grid, axes, others = array.grid, touched(array), untouched(array)
    place = dict(zip(others, [size * array.share for size in share_steps(grid, others)], strict=True))
    tiles = tile_set(grid, dict.fromkeys(axes, 0))
    for ring, begin, ahead in _begun(plan, array, trips):
        steps = [(s, ahead.get(a, 0) * array.share, s if a in axes else 0, place.get(a, 0)) for a, s in enumerate(grid.strides)]
        for low, high, count in share_ranges(array.elements, array.share):
            for box in share_boxes(grid, others, low, high):
                nest = nest_over((0, begin * array.share, 0, 0), walks(grid, {**box, **ring}, steps))
                yield sent(nest, array.home_buffer, array.box_buffer, tiles, count)


def _begun(plan: Plan, array: ArrayPlan, trips: Trips) -> Iterator[tuple[Mapping[int, tuple[int, int]], int, Mapping[int, int]]]:
    """Yields the boxes that tiles require: pieces of the grid, the box number at the grid's origin, and steps along its axes."""
    if not plan.shifting or array.depth == 0:
        yield {}, box_number(array, trips), {}
        return
    (step,) = box_steps(array)
    for piece in ring_pieces(plan, trips[0]):
        yield piece.box, piece.part * step, {axis: by * step for axis, by in piece.steps.items()}


_Pair = tuple[int, int, int, int]  # sender's tile, offset in rows of its own part, shift of the receivers, their offset
_Key = tuple[int, int, bool]  # elements that arrive, elements that the sender owns along the dimension, and if it is its own box


def _rows(array: ArrayPlan, trips: Trips) -> Iterator[Send]:
    """Yields every owned part of every box to all tiles that need that box: the intersections along each dimension.

    Where parts lie in boxes no tile sends to itself.
    """
    windows = Windows(array)
    tiles = tile_set(array.grid, dict.fromkeys(touched(array), 0))
    per_dim = [_meeting(windows, place, trips) for place in range(len(array.dims))]
    for chosen in itertools.product(*per_dim):
        mine = array.kept and all(own for (_, _, own), _ in chosen)
        if mine and windows.sharers == 1:
            continue
        kept = [size for (_, size, _), _ in chosen]
        steps = array.strides if array.kept else tuple([math.prod(kept[place + 1 :]) for place in range(len(kept))])
        scaled = [_scaled(nest, step) for (_, nest), step in zip(chosen, steps, strict=True)]
        first = tuple([sum(column) for column in zip((0, 0, 0, 0), *[nest.first for nest in scaled], strict=True)])
        nest = nest_over(first, [(0, count, step) for part in scaled for count, step in part.loops])
        yield Send(
            tile=nest.first[0],
            buffer=array.box_buffer if array.kept else array.home_buffer,
            offset=nest.first[1],
            to=Receivers(tiles=_moved(tiles, nest.first[2]), buffer=array.box_buffer, offset=nest.first[3]),
            shape=tuple([count for (count, _, _), _ in chosen]) or (1,),
            strides=steps or (1,),
            to_strides=array.strides or (1,),
            others=mine,
            loops=_loops(nest),
        )


def _scaled(nest: Nest, step: int) -> Nest:
    def scaled(row: Row) -> Row:
        return row[0], row[1] * step, row[2], row[3]

    return Nest(scaled(nest.first), tuple([(count, scaled(row)) for count, row in nest.loops]))


def _meeting(windows: Windows, place: int, trips: Trips) -> list[tuple[_Key, Nest]]:
    """Returns the intersections of intervals and boxes along one dimension, as few nests for each pair of sizes."""
    array, grid = windows.array, windows.array.grid
    axes = [a for a, lp in enumerate(grid.loops) if any(n == lp.dim for n, _ in array.dims[place].terms)]
    reach, pitch, kept = windows.reach(place), array.strides[place], windows.intervals(place)
    steps, _ = start_steps(array)
    origin = starts(array, (0,) * len(grid.loops), trips)[place]
    low = sums(origin, [(grid.loops[a].parts, steps[a][place]) for a in axes])
    to = sums(0, [(grid.loops[a].parts, grid.strides[a]) for a in axes])
    where = [
        (keeper(windows, place, i), i.low, i.high, i.owner, windows.begin(place, i.owner) if array.kept else i.low) for i in kept
    ]
    tile, first, last, owner, held = np.array(where).T
    begin, end = np.maximum(first, low[:, None]), np.minimum(last, low[:, None] + reach)
    box, own = np.nonzero(begin < end)
    begin, end, low, size = begin[box, own], end[box, own], low[box], (last - first)[own]
    if array.kept:  # in boxes, which have one size
        size[:] = reach
    mine = (owner[own] == box) & array.kept
    columns = (end - begin, size, mine, tile[own], begin - held[own], to[box], (begin - low) * pitch)
    found: dict[_Key, list[_Pair]] = {}
    for count, whole, same, *pair in zip(*[column.tolist() for column in columns], strict=True):
        found.setdefault((count, whole, same), []).append((pair[0], pair[1], pair[2], pair[3]))
    return [(key, nest) for key, pairs in found.items() for nest in _few(pairs)]


def _few(pairs: Sequence[_Pair]) -> list[Nest]:
    """Returns nests of all pairs: in the given order, or grouped by target position, whichever gives fewer."""
    apart: dict[tuple[int, int], list[_Pair]] = {}
    for pair in pairs:
        apart.setdefault((pair[1], pair[3]), []).append(pair)
    return min(nests(pairs), [nest for alike in apart.values() for nest in nests(alike)], key=len)


def dealt(plan: Plan) -> Iterator[Send]:
    """Yields the sends of partial results: each piece of every tile's to the tile that adds it up."""
    grid, found = plan.grid, plan.pieces
    axes = [axis for axis, lp in enumerate(grid.loops) if plan.nest.dims[lp.dim].is_reduce]
    sizes = [size * found.size for size in share_steps(grid, axes)]
    place = dict(zip(axes, sizes, strict=True))
    steps = [(s, 0, 0 if a in place else s, place.get(a, 0)) for a, s in enumerate(grid.strides)]
    to = [(0, size, grid.strides[a], 0) for a, size in place.items()]
    for low, high, count in share_ranges(found.elements, found.size):
        for box in share_boxes(grid, axes, low, high):
            pieces_to = [(*box[a], step) for a, step in zip(axes, to, strict=True)]
            nest = nest_over((0, 0, 0, 0), [*walks(grid, {}, steps), *pieces_to])
            yield sent(nest, plan.buffer("acc"), plan.buffer("parts"), ((0, 1, 1),), count)
