"""Prefetches of rows that a tile reads a run at a time (`roller.program.row_runs`)."""

from __future__ import annotations

from roller.lowering.simd.context import Lowering
from roller.lowering.tir.addresses import Point, base_address
from roller.lowering.tir.builder import Stmt, address_of
from roller.lowering.tir.tile_starts import Position
from roller.program.row_runs import requested_lines, row_dim


def prefetches(low: Lowering, place: tuple[Position, ...]) -> list[Stmt]:
    """Returns the requests of one step of the tile that begins at a place: one for each line that it pays to request."""
    wanted, found = low.options.prefetch, list[Stmt]()
    for number, lines in requested_lines(low.program, wanted.line_bytes, wanted.pays).items() if wanted is not None else ():
        access, window, along = low.nest.accesses[number], low.reader.window(number), row_dim(low.program, number)
        assert wanted is not None and along is not None
        distance = wanted.runs * low.program.inner[along] * access.element_bytes
        for offsets in lines:
            element = base_address(low.nest, window, access.index, Point(low.nest, place).moved(offsets))
            found.append(wanted.request(address_of(window.buffer, element), distance))
    return found
