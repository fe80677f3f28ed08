"""Prefetches of rows that a tile reads a run at a time (`roller.program.row_runs`)."""

from __future__ import annotations

import itertools

from tvm import tirx

from roller.lowering.simd.context import Lowering
from roller.lowering.tir.addresses import Point, base_address
from roller.lowering.tir.builder import Stmt
from roller.lowering.tir.tile_starts import Position
from roller.program.row_runs import operations, passes, row_dim


def prefetches(low: Lowering, place: tuple[Position, ...]) -> list[Stmt]:
    """Returns the requests of one step of the tile that begins at a place."""
    return [one for number in range(len(low.nest.accesses)) for one in _of_array(low, number, place)]


def _of_array(low: Lowering, number: int, place: tuple[Position, ...]) -> list[Stmt]:
    """Returns one request for each line of an array that the step reads; none where the device wants none."""
    access, wanted, along = low.nest.accesses[number], low.options.prefetch, row_dim(low.program, number)
    if along is None or wanted is None:
        return []
    inner, size = low.program.inner, access.element_bytes
    ranges = [range(extent if touched else 1) for extent, touched in zip(inner, access.touches, strict=True)]
    ranges[along] = range(0, inner[along], max(1, wanted.line_bytes // size))
    lines = list(itertools.product(*ranges))
    if not wanted.pays(access.tensor, operations(low.program, len(lines)), passes(low.program, number)):
        return []
    window, found = low.reader.window(number), []
    for offsets in lines:
        element = base_address(low.nest, window, access.index, Point(low.nest, place).moved(offsets))
        found.append(wanted.request(tirx.address_of(tirx.BufferLoad(window.buffer, [element])), wanted.runs * inner[along] * size))
    return found
