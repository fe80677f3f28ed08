"""Prefetches of rows that a tile reads a run at a time (`roller.program.row_runs`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tvm import tirx

from roller.lowering.simd.context import Lowering
from roller.lowering.tir.addresses import Point, base_address
from roller.lowering.tir.builder import Stmt
from roller.lowering.tir.tile_starts import Position
from roller.program.row_runs import LINE, RUNS_AHEAD, operations, part_by_part, passes


def prefetches(low: Lowering, place: tuple[Position, ...]) -> list[Stmt]:
    """Returns the requests of one step of the tile that begins at a place."""
    return [one for number in range(len(low.nest.accesses)) for one in _of_array(low, number, place)]


def _of_array(low: Lowering, number: int, place: tuple[Position, ...]) -> Iterator[Stmt]:
    access, hook, along = low.nest.accesses[number], low.options.prefetch, part_by_part(low.program, number)
    if along is None or hook is None or low.ready(access.factor) is not None:
        return
    inner, size = low.program.inner, access.element_bytes
    others = [range(inner[d]) if touched and d != along else (0,) for d, touched in enumerate(access.touches)]
    window, work = low.reader.window(number), operations(low.program, number, along)
    often = passes(low.program, number)
    for offsets in itertools.product(*others):
        for at in range(0, inner[along], max(1, LINE // size)):
            point = Point(low.nest, place).moved((*offsets[:along], at, *offsets[along + 1 :]))
            element = tirx.BufferLoad(window.buffer, [base_address(low.nest, window, access.index, point)])
            found = hook(access.tensor, work, often, tirx.address_of(element), RUNS_AHEAD * inner[along] * size)
            if found is not None:
                yield found
