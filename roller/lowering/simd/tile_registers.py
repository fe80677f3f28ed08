"""Innermost tiles in registers that matrix instructions have for themselves (`roller.program.tile_registers`).

Blocks of results stay in registers through the reduction. At its end they go to accumulators in memory, from where the epilogue
takes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from roller.ir.expr import ELEMENT_BYTES
from roller.ir.scalar import Load
from roller.lowering.simd.context import Lowering, Slots, TileRegisters
from roller.lowering.simd.panel_layout import panel_offset, slot_address
from roller.lowering.simd.words import word_values
from roller.lowering.tir.addresses import Point, base_address, lane_stride, replaced
from roller.lowering.tir.builder import (
    Buffer,
    Held,
    Stmt,
    address_of,
    allocate_on_stack,
    buffer,
    holds_its_type,
    index,
    plus,
    store,
)
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import operand_value
from roller.program.tile_registers import block_extent
from roller.program.words import in_words, vector_factor, word_dtype

Offsets = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A block of results: the offsets of its first point, and its number, which is that of its register."""

    offsets: Offsets
    register: int


class Blocks:
    """The registers of a stage's innermost tile."""

    def __init__(self, low: Lowering) -> None:
        assert low.options.tile_registers is not None and low.lane is not None and low.program.atom.registers is not None
        self.low, self.instructions, roles = low, low.options.tile_registers, dict(low.program.mapping)
        self.rows_along, self.lane, self.deep = roles.get("m"), low.lane, roles["k"]
        self.across = vector_factor(low.nest, low.program.mapping)
        self.steps = [1] * len(low.nest.dims)
        for role, dim in low.program.mapping:
            extent = low.program.atom.extents[role]
            assert isinstance(extent, int)
            self.steps[dim] = block_extent(low.program.inner[dim], extent)
        spatial = [range(0, e, s) if x else range(1) for e, s, x in zip(low.program.inner, self.steps, low.spatial, strict=True)]
        self.results = [Block(offsets, number) for number, offsets in enumerate(itertools.product(*spatial))]
        self.passing, self.free = self._divided(low.program.atom.registers)

    @property
    def rows(self) -> int:
        """The rows of a block of results."""
        return self.steps[self.rows_along] if self.rows_along is not None else 1

    @property
    def words(self) -> int:
        """The words along the reduction of one step."""
        return int(in_words(self.low.program, self.low.program.inner)[self.deep])

    def _divided(self, registers: int) -> tuple[int, dict[int, list[int]]]:
        """Returns the factor whose blocks pass through registers, and for each factor the registers of its blocks."""
        counts = [len({self._part(f, block.offsets) for block in self.results}) for f in (0, 1)]
        passing = 0 if counts[0] > counts[1] else 1
        kept = range(len(self.results), len(self.results) + counts[1 - passing])
        left = list(range(kept.stop, registers))[: counts[passing]]
        if not left:
            raise ValueError(f"{len(self.results)} blocks of results and their factors need more than {registers} registers")
        return passing, {1 - passing: list(kept), passing: left}

    def shapes(self) -> list[tuple[int, int]]:
        """Returns rows and bytes of a row of each register."""
        word = self.low.nest.accumulator_bytes
        columns = self.steps[self.lane] * word
        found = [(self.rows, columns)] * len(self.results)
        shape = {self.across: (self.words, columns), 1 - self.across: (self.rows, self.words * word)}
        numbered = sorted((number, shape[factor]) for factor, numbers in self.free.items() for number in numbers)
        return [*found, *(one for _, one in numbered)]

    def begin(self) -> list[Stmt]:
        """Returns the statements that set all results to zero."""
        return [self.instructions.zero(block.register) for block in self.results]

    def moved(self, slots: Slots, memory: Buffer, first: Position, into: bool) -> list[Stmt]:
        """Returns the statements that load the results from an array of accumulators, or store them there.

        `slots`: the vectors of the accumulators (`Lowering.points`), from the place `first` on.
        """
        places = {offsets: at for (offsets, _), (at, _) in zip(self.low.points(), slots, strict=True)}
        size, width = self.low.nest.accumulator_bytes, self.low.width
        do = self.instructions.load if into else self.instructions.store

        def place(offsets: Offsets) -> int:
            along = offsets[self.lane]
            return places[replaced(offsets, self.lane, along // width * width)] + along % width

        found = []
        for block in self.results:
            at = place(block.offsets)
            further = place(_next(block.offsets, self.rows_along)) if self.rows > 1 else at
            found.append(do(block.register, address_of(memory, plus(first, at)), (further - at) * size))
        return found

    def step(self, state: State, place: tuple[Position, ...]) -> list[Stmt]:
        """Returns one step along the reduction: operands into registers, and all products of their blocks."""
        statements, held, kept = list[Stmt](), dict[Offsets, int](), 1 - self.passing
        point = Point(self.low.nest, place)
        for block in self.results:
            part = self._part(kept, block.offsets)
            if part not in held:
                held[part] = self.free[kept][len(held)]
                statements += self._loaded(kept, held[part], state, point, block.offsets)
        passed = sorted(self.results, key=lambda block: self._part(self.passing, block.offsets))
        groups = itertools.groupby(passed, key=lambda block: self._part(self.passing, block.offsets))
        for number, (_, blocks) in enumerate(groups):
            register = self.free[self.passing][number % len(self.free[self.passing])]
            for first, block in enumerate(blocks):
                if not first:
                    statements += self._loaded(self.passing, register, state, point, block.offsets)
                operands = {self.passing: register, kept: held[self._part(kept, block.offsets)]}
                rows, columns = operands[1 - self.across], operands[self.across]
                statements.append(self.instructions.multiply(self.low.program.atom, block.register, rows, columns))
        return statements

    def _part(self, factor: int, offsets: Offsets) -> Offsets:
        return tuple(o for o, touched in zip(offsets, self.low.nest.factor_touches(factor), strict=True) if touched)

    def _loaded(self, factor: int, register: int, state: State, point: Point, offsets: Offsets) -> list[Stmt]:
        """Returns the statements that load a block of a factor: from its panel, or where its array lies."""
        panel, word = self.low.panels.get(factor), self.low.nest.accumulator_bytes
        along = self.deep if factor == self.across else self.rows_along
        if panel is None:
            return self._in_place(factor, register, point.moved(offsets))
        inside = tuple(o if t else 0 for o, t in zip(offsets, panel.touches, strict=True))
        first = panel_offset(self.low.program, panel.touches, inside)
        further = panel_offset(self.low.program, panel.touches, _next(inside, along))
        place = address_of(panel.buffer, plus(slot_address(panel, state), first))
        return [self.instructions.load(register, place, (further - first) * word)]

    def _in_place(self, factor: int, register: int, point: Point) -> list[Stmt]:
        """Returns the statements that load rows of words where an array has them; elsewhere by way of the stack."""
        low, node = self.low, operand_value(self.low.nest, factor, self.low.program.atom)
        assert node is not None
        window = low.reader.plain(node) if isinstance(node, Load) else None
        if window is not None and isinstance(node, Load) and holds_its_type(window.buffer):
            step = 0 if self.rows_along is None else lane_stride(low.nest, window, node.index, self.rows_along)
            if step is not None:
                place = address_of(window.buffer, base_address(low.nest, window, node.index, point))
                return [self.instructions.load(register, place, step * ELEMENT_BYTES[low.program.atom.stored_dtype])]
        words = buffer("words", self.rows * self.words, word_dtype(low.program))
        statements = [allocate_on_stack(words), *self._copied(factor, point, words)]
        return [*statements, self.instructions.load(register, address_of(words, 0), self.words * low.nest.accumulator_bytes)]

    def _copied(self, factor: int, point: Point, words: Buffer) -> Iterator[Stmt]:
        depth = self.low.program.atom.depth
        for row, word in itertools.product(range(self.rows), range(self.words)):
            offsets = replaced((0,) * len(self.steps), self.deep, word * depth)
            offsets = offsets if self.rows_along is None else replaced(offsets, self.rows_along, row)
            held = Held()
            value = word_values(self.low.program, self.low.reader, factor, point.moved(offsets), depth, held)
            yield from (*held.statements, store(words, value, index(row * self.words + word)))


def instructions_of(low: Lowering) -> TileRegisters | None:
    """Returns the instructions by which a stage computes in registers of its atom's own; None for other stages."""
    return low.options.tile_registers if low.program.atom.registers is not None and low.reducer is not None else None


def around_unit(low: Lowering, body: list[Stmt]) -> list[Stmt]:
    """Returns the statements of a unit's tile, with the registers' shapes set before them."""
    instructions = instructions_of(low)
    if instructions is None:
        return body
    return [instructions.configure(Blocks(low).shapes()), *body, instructions.release()]


def _next(offsets: Offsets, dim: int | None) -> Offsets:
    return offsets if dim is None else replaced(offsets, dim, offsets[dim] + 1)
