"""Overlaps of boxes and owned parts along one dimension of an array.

They are the same for many programs, which differ in other dimensions. They are therefore computed from a few numbers, and cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Pair = tuple[int, int]

REMEMBERED = 1024  # cached dimensions: most candidates of a construction share all but one or two with others


class Cuts(NamedTuple):
    """The cuts of one dimension into the parts of its owners.

    There is a cut every `step` elements from `offset` on; the first part starts at `first`, and the last ends at `extent`.
    """

    offset: int
    step: int
    parts: int
    extent: int
    first: int = 0


@lru_cache(REMEMBERED)
def starts(cuts: Cuts) -> tuple[int, ...]:
    """Returns the starts of the parts, and their end."""
    offset, step, parts, extent, first = cuts
    return (first, *[min(max(offset + part * step, first), extent) for part in range(1, parts)], extent)


@lru_cache(REMEMBERED)
def longest(cuts: Cuts) -> int:
    """Returns the elements of the longest part."""
    return max([b - a for a, b in pairwise(starts(cuts))])


class Line(NamedTuple):
    """Boxes and parts along one dimension. Boxes lie on a grid with an axis for each loop over tiles that walks the dimension."""

    low: int  # start of the first tile's box; boxes may exceed the array
    axes: tuple[Pair, ...]  # for each axis the number of tiles, and elements between neighbours
    reach: int  # elements of a box
    cuts: Cuts  # into the parts of different owners
    owner: int | None  # the axis of these owners; None: there is one part
    size: int  # elements of one share of such a part, 0: it is not shared
    shares: int  # number of sharers
    element_bytes: int
    word_bytes: int  # word size of the last dimension, whose rows are moved; 0 for others
    kept: bool = False  # each part is stored in its owner's box; shares are as even as possible


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """Words and rows that arrive at each tile, by its position on the axes, and that leave it, by part and share.

    In dimensions other than the last one both are positions. `most_in`, `most_out`: the max words. `rows`: the rows that arrive at
    and leave the tiles that no other exceeds in both, whatever their shares are. `words_own`, `rows_own`: the contents of the
    owner's box, by part and share. `kinds`: the tiles that differ in some of these six. Two overlaps with the same `key` are equal.
    """

    words_in: Counts
    rows_in: Counts
    words_out: Counts
    rows_out: Counts
    most_in: int
    most_out: int
    rows: tuple[Pair, ...]
    words_own: Counts
    rows_own: Counts
    kinds: tuple[tuple[int, ...], ...]
    key: bytes


@lru_cache(REMEMBERED)
def overlap(line: Line) -> Overlap:
    """Returns the overlaps of boxes and parts."""
    lows = np.full((1,) * len(line.axes), line.low, np.int64)
    for axis, (count, distance) in enumerate(line.axes):
        shape = [1] * len(line.axes)
        shape[axis] = count
        lows = lows + (np.arange(count) * distance).reshape(shape)
    begin, end = _parts(line)
    across = tuple(range(2, 2 + lows.ndim))
    where = begin.shape + (1,) * lows.ndim
    common = np.minimum(end.reshape(where), lows + line.reach) - np.maximum(begin.reshape(where), lows)  # [part, share, *axes]
    common = np.maximum(common, 0)
    words = rows = common
    if line.word_bytes:
        words, rows = -(-common * line.element_bytes // line.word_bytes), (common > 0).astype(np.int64)
    arrive, leave = words.sum(axis=(0, 1)), words.sum(axis=across)
    rows_in, rows_out = (rows.sum(axis=(0, 1)), rows.sum(axis=across)) if line.word_bytes else (arrive, leave)
    pairs = unexceeded(_pairs(line, rows_in, rows_out))
    own_words, own_rows = _own(line, begin, end)
    kinds = _kinds((arrive, rows_in), (leave, rows_out, own_words, own_rows)) if line.kept else ()
    key = b"".join([found.tobytes() for found in (arrive, rows_in, leave, rows_out, own_words)])
    most = int(arrive.max()), int(leave.max())
    return Overlap(arrive, rows_in, leave, rows_out, *most, pairs, own_words, own_rows, kinds, key)


def _own(line: Line, begin: Counts, end: Counts) -> tuple[Counts, Counts]:
    """Returns words and rows that are initially stored where they are needed, as [part, share]."""
    if not line.kept:
        return np.zeros_like(begin), np.zeros_like(begin)
    size = end - begin
    return (-(-size * line.element_bytes // line.word_bytes), (size > 0).astype(np.int64)) if line.word_bytes else (size, size)


def _kinds(arriving: Sequence[Counts], kept: Sequence[Counts]) -> tuple[tuple[int, ...], ...]:
    """Returns every different tile: arrivals depend on its position, which is its part, the rest on its part and share."""
    columns = [*[np.broadcast_to(counts.reshape(-1, 1), kept[0].shape) for counts in arriving], *kept]
    arrive, rows_in, *others = [column.reshape(-1).tolist() for column in columns]
    return tuple(sorted(set(zip(arrive, rows_in, *others, strict=True))))


def _parts(line: Line) -> tuple[Counts, Counts]:
    """Returns starts and ends of the shares of parts, as [part, share]; an empty share ends at or before its start."""
    every = np.array(starts(line.cuts), np.int64)[:, None]
    if line.kept:
        bounds = every[:-1] + np.diff(every, axis=0) * np.arange(line.shares + 1) // line.shares
        return bounds[:, :-1], bounds[:, 1:]
    if not line.size:
        return every[:-1], every[1:]
    begin = every[:-1] + np.arange(line.shares) * line.size
    return begin, np.minimum(begin + line.size, every[1:])


def _pairs(line: Line, rows_in: Counts, rows_out: Counts) -> Iterable[Pair]:
    """Returns the rows that arrive at and leave the tiles of each part, for the share with the most leaving rows."""
    most = rows_out.max(axis=1).tolist()
    if line.owner is None:
        return [(int(rows_in.max()), most[0])]
    others = tuple([axis for axis in range(rows_in.ndim) if axis != line.owner])
    return zip(rows_in.max(axis=others).tolist(), most, strict=True)


def unexceeded(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Returns the pairs that no other pair equals or exceeds in both values."""
    found: list[Pair] = []
    for pair in sorted(set(pairs), reverse=True):
        if not found or pair[1] > found[-1][1]:
            found.append(pair)
    return tuple(found)


__all__ = ["Cuts", "Line", "Overlap", "Pair", "longest", "overlap", "starts", "unexceeded"]
