"""Fills of panels that hold rows of words: those of the factor that a register of its own takes row by row.

Where the source lies along the words, a row is copied. Where it lies across them, along the rows, a block of rows is transposed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from roller.ir.scalar import Load
from roller.lowering.simd.panel_layout import Panel, panel_offset, slot_address
from roller.lowering.simd.transpose import transposed
from roller.lowering.simd.words import loaded_words, word_values
from roller.lowering.tir import tile_starts
from roller.lowering.tir.addresses import ArrayView, Point, base_address, lane_stride, replaced
from roller.lowering.tir.builder import Held, Stmt, holds_its_type, plus, ramp, sequence, store
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import State
from roller.program.rprogram import StageProgram, operand_value
from roller.program.words import in_words, vector_factor, word_dim, word_dtype


def fill_rows(program: StageProgram, panel: Panel, reader: Reader, state: State, count: int) -> Stmt | None:
    """Returns the statements that fill a slot whose first `count` operands along the reduction exist; None if it has no rows."""
    factor, deep, rows = panel.staging.operand, word_dim(program.atom, program.mapping), dict(program.mapping).get("m")
    if program.atom.registers is None or deep is None or factor == vector_factor(program.nest, program.mapping):
        return None
    node = operand_value(program.nest, factor, program.atom)
    window = reader.plain(node) if isinstance(node, Load) else None
    if window is None or not isinstance(node, Load) or not holds_its_type(window.buffer):
        return None
    starts = tuple(tile_starts.tile_start(program, state, d) for d in range(len(program.inner)))
    fill = _Fill(program, panel, reader, state, Point(program.nest, starts), deep)
    if count == program.inner[deep] and lane_stride(program.nest, window, node.index, deep) == 1:
        return sequence(fill.copied(window, node))
    width = program.width
    if rows is None or program.inner[rows] % width or fill.words != width or width & (width - 1):
        return None
    return sequence(fill.turned(rows, count)) if lane_stride(program.nest, window, node.index, rows) == 1 else None


class _Fill:
    def __init__(self, program: StageProgram, panel: Panel, reader: Reader, state: State, start: Point, deep: int) -> None:
        self.program, self.panel, self.reader, self.start, self.deep = program, panel, reader, start, deep
        self.slot = slot_address(panel, state)
        self.words = int(in_words(program, program.inner)[deep])

    def copied(self, window: ArrayView, node: Load) -> Iterator[Stmt]:
        """Yields the copy of each row."""
        depth, dtype = self.program.atom.depth, word_dtype(self.program)
        for offsets in self._rows(1, None):
            place = base_address(self.program.nest, window, node.index, self.start.moved(offsets))
            yield self._stored(offsets, loaded_words(window.buffer, place, depth, self.words, dtype), self.words)

    def turned(self, rows: int, count: int) -> Iterator[Stmt]:
        """Yields the transposition of each block of as many rows as a row has words."""
        depth, dtype, width = self.program.atom.depth, word_dtype(self.program), self.program.width
        for offsets in self._rows(width, rows):
            held, found = Held(), []
            for word in range(width):
                first = word * depth
                point = Point(self.program.nest, self.start.positions, rows, width).moved(replaced(offsets, self.deep, first))
                exist = min(depth, max(0, count - first))
                value = word_values(self.program, self.reader, self.panel.staging.operand, point, exist, held)
                found.append(held(value, dtype, width))
            columns = transposed(found, dtype, held)
            yield from held.statements
            for number, row in enumerate(columns):
                yield self._stored(replaced(offsets, rows, offsets[rows] + number), row, width)

    def _rows(self, step: int, along: int | None) -> Iterator[tuple[int, ...]]:
        """Yields the offsets of the slot's rows, or of each `step`-th one along a dimension."""
        inner, touches = self.program.inner, self.panel.touches
        spans = [
            range(0, e if t and d != self.deep else 1, step if d == along else 1)
            for d, (e, t) in enumerate(zip(inner, touches, strict=True))
        ]
        return itertools.product(*spans)

    def _stored(self, offsets: tuple[int, ...], row: object, lanes: int) -> Stmt:
        where = plus(self.slot, panel_offset(self.program, self.panel.touches, offsets))
        return store(self.panel.buffer, row, ramp(where, 1, lanes))
