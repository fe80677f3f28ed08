"""Coalescing: the lines (sectors) of memory that the lanes of a group touch with one access to an array.

Lanes that run in lockstep read or store at the addresses of their own points. Neighbouring lanes that touch neighbouring addresses
share lines. Lanes whose points lie rows apart need a line each. The rest of that line is moved for nothing, or later accesses have
to find it in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from roller.ir.nest import Access
from roller.layout.banks import WIDEST_ACCESS, dividing, pieces
from roller.layout.lanes import lane_pieces
from roller.program.rprogram import StageProgram

UNKNOWN_DISTANCE = 1 << 40  # elements between lanes whose distance in an array is not known


def lines(
    program: StageProgram, access: Access, group: Mapping[int, int], line_bytes: int, least: int = 1, partly: float = 1.0
) -> float:
    """Returns the lines that a lane group touches with all its accesses for one innermost tile.

    `group`: its lanes along each dimension. A line counts `partly` times if an access touches less than `least` bytes of it.
    """
    inner, size = program.inner, access.element_bytes
    along = next((d for d, s in enumerate(access.strides) if s == 1 and access.touches[d]), None)
    others = math.prod([e for d, (e, t) in enumerate(zip(inner, access.touches, strict=True)) if t and d != along])
    apart = []
    for dim, lanes in group.items():
        if lanes > 1 and access.touches[dim]:
            step = access.strides[dim]
            apart.append((lanes, UNKNOWN_DISTANCE if step is None else abs(step) * lane_pieces(program, dim)[0]))
    found = 0.0
    for piece in lane_pieces(program, along) if along is not None else (1,):
        near = tuple((n, piece if dim == along else far) for (n, far), dim in zip(apart, _spread(group, access), strict=True))
        widest = _widest(access, along, piece, max(1, WIDEST_ACCESS // size)) if along is not None else 1
        if along is not None and group.get(along, 1) > 1:
            widest = dividing(piece, widest)
        for width in pieces(piece, widest):
            touched = _touched(near, width * size, size, line_bytes)
            bytes_each = width * size * math.prod([n for n, _ in near]) / touched
            found += touched * (partly if bytes_each < least else 1.0)
    return found * others


def _spread(group: Mapping[int, int], access: Access) -> list[int]:
    return [dim for dim, lanes in group.items() if lanes > 1 and access.touches[dim]]


def _widest(access: Access, along: int, piece: int, most: int) -> int:
    """Returns the elements of the widest access to a piece of neighbours: all rows must start at multiples of it."""
    steps = [s for d, s in enumerate(access.strides) if s and d != along and access.touches[d]]
    while most > 1 and (most > piece or None in access.strides or any(s % most for s in steps)):
        most //= 2
    return most


@lru_cache(maxsize=1 << 14)
def _touched(lanes: tuple[tuple[int, int], ...], width: int, size: int, line: int) -> int:
    """Returns the lines that lanes touch, each with an access of `width` bytes.

    `lanes`: for each dimension the number of lanes along it, and how many elements they lie apart.
    """
    starts = {0}
    for count, step in lanes:
        starts = {start + number * step for start in starts for number in range(count)}
    return len({byte // line for start in starts for byte in (start * size, start * size + width - 1)})
