"""Positions of a manifest's accesses: sets of tiles as arrays, and strided boxes of a buffer's elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.manifest.models import Amp, Copy, Fill, Map, Reduce, Ref, Send, View

Array = npt.NDArray[Any]
Ranges = tuple[tuple[int, int, int], ...]
Rows = slice | npt.NDArray[np.int64]

__all__ = [
    "Array",
    "Box",
    "Ranges",
    "Region",
    "Rows",
    "arrived",
    "box",
    "injective",
    "numbers",
    "places",
    "reads",
    "region",
    "rows_of",
    "sent",
    "view",
    "writes",
]


class Box(NamedTuple):
    """Elements offset + sum of stride * index of a buffer; strides positive and falling, dense extents merged, no extent of 1."""

    buffer: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """One more than the last element."""
        return self.offset + 1 + sum((e - 1) * s for e, s in zip(self.shape, self.strides, strict=True))

    def meets(self, other: Box) -> bool:
        """True if the ranges from first to last element of the two have elements in common."""
        return self.buffer == other.buffer and self.offset < other.end and other.offset < self.end


class Region(NamedTuple):
    """A box in a tile's buffer, repeated on other tiles and at other offsets: loops of (count, tile, offset)."""

    tile: int
    box: Box
    loops: tuple[tuple[int, int, int], ...]


def region(place: Box, tiles: tuple[int, int, int], loops: Iterable[tuple[int, ...]]) -> Region:
    """Returns a box in a range of tiles, repeated by loops of (count, tile, offset)."""
    first, count, step = tiles
    every = [(loop[0], loop[1], loop[2]) for loop in loops]
    return Region(first, place, tuple([loop for loop in (*every, (count, step, 0)) if loop[0] > 1]))


@lru_cache(maxsize=4096)
def numbers(tiles: Ranges) -> npt.NDArray[np.int64]:
    """Returns the tile numbers of a set, in its order; read-only."""
    parts = [np.arange(first, first + count * step, step, dtype=np.int64) for first, count, step in tiles]
    found = parts[0] if len(parts) == 1 else np.concatenate(parts)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=256)
def _table(tiles: Ranges) -> npt.NDArray[np.int64]:
    """Returns a table from tile number to index in the set, -1 for tiles outside it."""
    found = numbers(tiles)
    table = np.full(int(found.max()) + 1, -1, dtype=np.int64)
    table[found] = np.arange(len(found))
    return table


def places(home: Ranges, tiles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the indices of tiles in the set of tiles of a buffer; -1 for those outside it."""
    table = _table(home)
    found: npt.NDArray[np.int64] = np.where(tiles < len(table), table[np.minimum(tiles, len(table) - 1)], -1)
    return found


@lru_cache(maxsize=65536)
def rows_of(home: Ranges, tiles: Ranges) -> Rows | int:
    """Returns the indices of tiles in the set of tiles of a buffer: a slice where their steps are equal.

    If a tile is not in the set, a number instead: -1 - tile for the first such tile.
    """
    wanted = numbers(tiles)
    found = places(home, wanted)
    missing = np.flatnonzero(found < 0)
    if len(missing):
        return -1 - int(wanted[missing[0]])
    if len(found) == 1:
        return slice(int(found[0]), int(found[0]) + 1)
    step = int(found[1] - found[0])
    if step > 0 and np.all(np.diff(found) == step):
        return slice(int(found[0]), int(found[-1]) + 1, step)
    return found


@lru_cache(maxsize=65536)
def _merged(dims: tuple[tuple[int, int], ...]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Returns the shift of the offset, shape and strides of the same elements in the form of a `Box`."""
    shift = sum((extent - 1) * step for extent, step in dims if step < 0)
    kept = sorted(((abs(step), extent) for extent, step in dims if extent > 1 and step), reverse=True)
    merged: list[tuple[int, int]] = []
    for step, extent in reversed(kept):
        if merged and step == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0], merged[-1][1] * extent)
        else:
            merged.append((step, extent))
    merged.reverse()
    return shift, tuple(extent for _, extent in merged), tuple(step for step, _ in merged)


def box(buffer: str, offset: int, dims: Iterable[tuple[int, int]]) -> Box:
    """Returns the box of dimensions (extent, step); steps may be 0 or negative."""
    shift, shape, strides = _merged(tuple(dims))
    return Box(buffer, offset + shift, shape, strides)


@lru_cache(maxsize=65536)
def injective(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns True if no two indices of the shape refer to the same element; strides may have any order."""
    dims = sorted((abs(step), extent) for extent, step in zip(shape, strides, strict=True) if extent > 1)
    reach = 0
    for step, extent in dims:
        if step <= reach:
            break
        reach += step * (extent - 1)
    else:
        return True
    if math.prod(shape) > sum(step * (extent - 1) for step, extent in dims) + 1:
        return False  # more indices than elements
    places = np.zeros(1, dtype=np.int64)
    for step, extent in dims:
        places = (places[:, None] + np.arange(extent) * step).reshape(-1)
    return len(np.unique(places)) == len(places)


def view(
    raw: Array, dtype: np.dtype[Any], rows: tuple[int, int], offset: int, shape: Sequence[int], strides: Sequence[int]
) -> Array:
    """Returns all rows of a buffer as [rows, *shape], from an element on. `raw`: its bytes; `rows`: their count and elements."""
    size = dtype.itemsize
    count, row = rows
    return np.ndarray((count, *shape), dtype, raw, offset * size, (row * size, *(step * size for step in strides)))


def _view(place: View, loops: Iterable[int]) -> Box:
    return box(place.buffer, place.offset, zip(loops, place.strides, strict=False))


def _dense(place: Ref, elements: int) -> Box:
    return box(place.buffer, place.offset, ((elements, 1),))


def _operand(vertex: Amp, which: str) -> Box:
    place: Ref = getattr(vertex, which)
    return box(place.buffer, place.offset, ((loop.extent, getattr(loop, which)) for loop in vertex.loops))


def reads(vertex: Amp | Map | Reduce | Fill | Copy) -> list[Box]:
    """Returns the boxes that a vertex reads, in the manifest's order."""
    match vertex:
        case Amp():
            operands = ("a", "w") if vertex.zero else ("a", "w", "out")
            return [_operand(vertex, which) for which in operands]
        case Map():
            kept = vertex.loops[: len(vertex.loops) - vertex.reduce]
            held = [_view(vertex.out, kept)] if vertex.accumulate else []
            return [*(_view(v, vertex.loops) for v in vertex.loads), *(_view(v, kept) for v in vertex.epilogue_loads), *held]
        case Reduce():
            dims = ((vertex.partials, vertex.step), (vertex.outputs, 1))
            return [box(vertex.parts.buffer, vertex.parts.offset, dims)]
        case Copy():
            return [_dense(vertex.source, vertex.elements)]
        case Fill():
            return []


def writes(vertex: Amp | Map | Reduce | Fill | Copy) -> Box:
    """Returns the box that a vertex writes."""
    match vertex:
        case Amp():
            return _operand(vertex, "out")
        case Map():
            return _view(vertex.out, vertex.loops[: len(vertex.loops) - vertex.reduce])
        case Reduce():
            return _dense(vertex.out, vertex.outputs)
        case Fill() | Copy():
            return _dense(vertex.to, vertex.elements)


def sent(send: Send) -> Box:
    """Returns the box that a send reads."""
    return box(send.buffer, send.offset, zip(send.shape, send.strides, strict=True))


def arrived(send: Send) -> Box:
    """Returns the box that a send writes in each receiver."""
    return box(send.to.buffer, send.to.offset, zip(send.shape, send.to_strides, strict=True))
