"""Families of a manifest: one send or placement that represents many at equal steps, and their expansion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.manifest.models import PlaceLoop, Placement, Receivers, Send, SendLoop, TileSet

__all__ = ["Part", "each_placement", "each_send", "indices", "reach", "repetitions", "sums", "without"]

Numbers = npt.NDArray[np.int64]


def repetitions(loops: Sequence[SendLoop] | Sequence[PlaceLoop]) -> int:
    """Returns the number of sends or placements that these loops represent."""
    return math.prod([loop[0] for loop in loops])


def reach(first: int, loops: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Returns the min and max of a value that starts at `first` and is changed by loops of (count, step)."""
    ends = [(count - 1) * step for count, step in loops]
    return first + sum([e for e in ends if e < 0]), first + sum([e for e in ends if e > 0])


def sums(first: int, loops: Iterable[tuple[int, int]]) -> Numbers:
    """Returns all values of a number that starts at `first` and is changed by loops of (count, step), outermost first."""
    found = np.array([first], dtype=np.int64)
    for count, step in loops:
        found = (found[:, None] + np.arange(count, dtype=np.int64) * step).reshape(-1)
    return found


def without(tiles: TileSet, tile: int) -> TileSet:
    """Returns a set of tiles without one of them."""
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


def each_send(send: Send) -> Iterator[Send]:
    """Yields the sends of a family one by one, each with its receivers, which may be none."""
    if not send.loops and not send.others:
        yield send
        return
    for index in indices(send.loops):
        tile, offset, to_tile, to_offset = (
            sum([i * int(loop[column]) for i, loop in zip(index, send.loops, strict=True)]) for column in (1, 2, 3, 4)
        )
        tiles = tuple([(first + to_tile, count, step) for first, count, step in send.to.tiles])
        tile += send.tile
        to = Receivers.model_construct(
            tiles=without(tiles, tile) if send.others else tiles, buffer=send.to.buffer, offset=send.to.offset + to_offset
        )
        yield send.model_copy(update={"tile": tile, "offset": send.offset + offset, "to": to, "others": False, "loops": ()})


class Part(NamedTuple):
    """One placement: elements of a box of the stored array in a tile's buffer, dense or with `strides`."""

    tile: int
    buffer: str
    offset: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    first: int
    elements: int
    strides: tuple[int, ...] | None


def each_placement(placements: Iterable[Placement]) -> Iterator[Part]:
    """Yields placements one by one."""
    for placement in placements:
        buffer, shape, strides = placement.buffer, placement.shape, placement.strides
        count = placement.elements
        rows: list[tuple[int, ...]] = [(placement.tile, placement.offset, placement.first, *placement.start)]
        for trips, by_tile, by_offset, by_start, by_first in placement.loops:
            step = (by_tile, by_offset, by_first, *by_start)
            rows = [tuple([v + i * by for v, by in zip(row, step, strict=True)]) for row in rows for i in range(trips)]
        for tile, offset, first, *start in rows:
            yield Part(tile, buffer, offset, tuple(start), shape, first, count, strides)


def indices(loops: Sequence[SendLoop] | Sequence[PlaceLoop]) -> Iterator[tuple[int, ...]]:
    """Yields the indices of all repetitions, outermost loop first."""
    return itertools.product(*[range(loop[0]) for loop in loops])
