"""Exchanges: shares of blocks to all who need them, parts of windows row by row, parts of results to those who add them up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from roller_ipu_sim.homes import interval_table, window_part
from roller_ipu_sim.manifest import Receivers, Send
from roller_ipu_sim.places import Trips, begun, box_number, coordinates, groups, number, share_of, starts, tile_set, touched
from roller_ipu_sim.plan import ArrayPlan, Plan
from roller_ipu_sim.windows import Windows
from roller_ipu_sim.work import pieces


def brought(plan: Plan, array: ArrayPlan, trips: Trips) -> Iterator[Send]:
    """What brings the boxes of an array to the tiles when the serial loops are so far."""
    if array.shifts:
        return _handed(array, trips[0])
    return _shares(plan, array, trips) if array.plain else _rows(array, trips)


def _handed(array: ArrayPlan, step: int) -> Iterator[Send]:
    """Every tile's part to its neighbour: from the half of the buffer that was used into the other one."""
    grid, name = array.grid, array.box_buffer
    others = [axis for axis in range(len(grid.loops)) if axis not in touched(array)]
    for coords in coordinates(grid):
        place = (share_of(grid, coords, others) - 1) % array.sharers
        to = list(coords)
        for axis in reversed(others):
            place, to[axis] = divmod(place, grid.loops[axis].parts)
        target = ((number(grid, tuple(to)), 1, 1),)
        offsets = (step - 1) % 2 * array.elements, step % 2 * array.elements
        yield _flat(number(grid, coords), name, offsets[0], target, name, offsets[1], array.elements)


def _flat(tile: int, buffer: str, offset: int, tiles: tuple[tuple[int, int, int], ...], to: str, at: int, count: int) -> Send:
    receivers = Receivers(tiles=tiles, buffer=to, offset=at)
    return Send(tile=tile, buffer=buffer, offset=offset, to=receivers, shape=(count,), strides=(1,), to_strides=(1,))


def _shares(plan: Plan, array: ArrayPlan, trips: Trips) -> Iterator[Send]:
    grid, axes, name = array.grid, touched(array), array.box_buffer
    others = [axis for axis in range(len(grid.loops)) if axis not in axes]
    alone = array.kept
    for coords in coordinates(grid):
        first = share_of(grid, coords, others) * array.share
        count = min(array.share, array.elements - first)
        if count <= 0:
            continue
        mine = number(grid, coords)
        tiles = tile_set(grid, {axis: coords[axis] for axis in axes})
        if alone:
            yield _flat(mine, name, first, without(tiles, mine), name, first, count)
        else:
            at = box_number(array, begun(plan, coords, trips)) * array.share
            yield _flat(mine, array.home_buffer, at, tiles, name, first, count)


def without(tiles: tuple[tuple[int, int, int], ...], tile: int) -> tuple[tuple[int, int, int], ...]:
    """A set of tiles without one of them."""
    found = []
    for first, count, step in tiles:
        place, rest = divmod(tile - first, step)
        if rest or not 0 <= place < count:
            found.append((first, count, step))
            continue
        if place:
            found.append((first, place, step))
        if place + 1 < count:
            found.append((tile + step, count - place - 1, step))
    return tuple(found)


def _rows(array: ArrayPlan, trips: Trips) -> Iterator[Send]:
    """Every part that some tile keeps of every box, to all tiles that need that box."""
    windows, grid = Windows(array), array.grid
    table, others = interval_table(windows), [a for a in range(len(grid.loops)) if a not in windows.owners]
    keepers = {}
    for coords in coordinates(grid):
        mine = window_part(windows, table, coords, share_of(grid, coords, others))
        if mine is not None:
            keepers[tuple([(i.owner, i.share) for i in mine])] = (number(grid, coords), mine)
    every = [windows.intervals(place) for place in range(len(array.dims))]
    for coords, tiles in groups(array):
        lows = starts(array, coords, trips)
        near = [
            [i for i in mine if min(i.high, low + reach) > max(i.low, low)]
            for mine, low, reach in zip(every, lows, [windows.reach(p) for p in range(len(every))], strict=True)
        ]
        for chosen in itertools.product(*near):
            tile, mine = keepers[tuple([(i.owner, i.share) for i in chosen])]
            begin = [max(i.low, low) for i, low in zip(chosen, lows, strict=True)]
            end = [min(i.high, low + windows.reach(p)) for p, (i, low) in enumerate(zip(chosen, lows, strict=True))]
            own = [i.high - i.low for i in mine]
            steps = [math.prod(own[p + 1 :]) for p in range(len(own))]
            yield Send(
                tile=tile,
                buffer=array.home_buffer,
                offset=sum([(b - i.low) * s for b, i, s in zip(begin, chosen, steps, strict=True)]),
                to=Receivers(
                    tiles=tiles,
                    buffer=array.box_buffer,
                    offset=sum([(b - low) * s for b, low, s in zip(begin, lows, array.strides, strict=True)]),
                ),
                shape=tuple([e - b for b, e in zip(begin, end, strict=True)]) or (1,),
                strides=tuple(steps) or (1,),
                to_strides=array.strides or (1,),
            )


def dealt(plan: Plan) -> Iterator[Send]:
    """Parts of results: of every tile's, each piece to the tile that adds it up."""
    grid, found = plan.grid, pieces(plan)
    axes = [axis for axis, lp in enumerate(grid.loops) if plan.nest.dims[lp.dim].is_reduce]
    for coords in coordinates(grid):
        mine, part = number(grid, coords), share_of(grid, coords, axes)
        for piece in range(found.count):
            to = list(coords)
            left = piece
            for axis in reversed(axes):
                left, to[axis] = divmod(left, grid.loops[axis].parts)
            first = piece * found.size
            count = min(found.size, found.elements - first)
            yield _flat(
                mine, plan.buffer("acc"), first, ((number(grid, tuple(to)), 1, 1),), plan.buffer("parts"), part * found.size, count
            )
