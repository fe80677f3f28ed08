"""Consumer lanes: they start matrix atoms that read panels in shared memory, and store the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roller.lowering.simt.matrix_atoms import SIDES, GroupLane
from roller.lowering.simt.threads import Offsets
from roller.lowering.specialised.staged_store import StoreBuffer
from roller.lowering.specialised.swizzle import SwizzledPanel
from roller.lowering.tir.builder import Buffer, Stmt, allocate, every, index, load, plus, pointer, register_buffer, sequence, when
from roller.lowering.tir.tile_starts import Position, State


@dataclass
class PanelLane(GroupLane):
    """One consumer lane of a group (warpgroup) whose atoms read panels in shared memory.

    `slots`: the copy (pipeline stage) of each operand's panel that is read. `store_buffer`: where the epilogue store is staged in
    shared memory (`arena`); None if lanes store the results themselves.
    """

    slots: dict[int, Position] = field(default_factory=dict)
    store_buffer: StoreBuffer | None = None
    arena: Buffer | None = None

    def step(self, state: State, slot: Position) -> Stmt:
        """Issues every atom of the group's tile for one step of the reduction."""
        corners = self.corners((True,) * len(self.nest.dims))
        return sequence(self._product(state, corner, reduced, slot) for reduced in self.depths() for corner in corners)

    def _product(self, state: State, corner: Offsets, reduced: Mapping[int, int], slot: Position) -> Stmt:
        operands = []
        for _, number in self.sides:
            panel = self.panels[number]
            assert isinstance(panel, SwizzledPanel)
            names = {d: self._start(state, d, corner, reduced) for d, step in enumerate(panel.steps) if step}
            operands.append(panel.operand(names, self.slots[number]))
        first, second = operands
        place, steps = self._results_at(corner)
        return self.block.panel_unit.multiply(pointer(self.acc, plus(slot, place), True), steps, first, second)

    def _start(self, state: State, dim: int, corner: Offsets, reduced: Mapping[int, int]) -> Position:
        """Returns the start of an atom in the unit's tile."""
        if dim in reduced:
            return plus(self._reduced(state, dim), reduced[dim])
        return plus(self.block.corner(dim), corner[dim])

    def _results_at(self, corner: Offsets) -> tuple[int, tuple[int, int]]:
        """Returns the number of an atom's first result among the lane's, and the steps to its next row and column."""
        roles, results = self.block.roles, self.block.unit.results
        first = tuple(o // self.block.extent(roles[d]) * len(results[roles[d]]) if d in roles else o for d, o in enumerate(corner))
        found = []
        for side in SIDES:
            dim = self.program.role(side)
            following = tuple(o + (d == dim) for d, o in enumerate(first))
            found.append(self.numbers[following] - self.numbers[first])
        return self.numbers[first], (found[0], found[1])

    def results(self, state: State, slot: Position) -> Stmt:
        """Stores the results of the lane's accumulators, staged through shared memory if there is space for it."""
        if self.store_buffer is None:
            return super().results(state, slot)
        return sequence(self._staged(self.store_buffer, state, slot))

    def _staged(self, store_buffer: StoreBuffer, state: State, slot: Position) -> list[Stmt]:
        """Returns for each box: the epilogue's loads, the lane's values, their stores to shared memory, the bulk copy."""
        values = register_buffer("result", len(self.spatial), store_buffer.map.dtype)
        statements, at = allocate([values]), 0
        for number, box in enumerate(store_buffer.boxes(self.spatial)):
            points = [point for run in box.runs for point in run.points]
            reads, arrays = ([], {}) if self.partial is not None else self._operands(state, "epilogue", points)
            laid: list[Stmt] = []
            for run in box.runs:
                laid += self._valued(state, arrays, slot, run.points, values, at)
                laid.append(store_buffer.lay(self.arena, number, run, [load(values, at + n) for n in range(len(run.points))]))
                at += len(run.points)
            statements += [*reads, *store_buffer.leave(self.arena, number, laid, store_buffer.corner(state, box, self.part))]
        return statements

    def _kept(self, put: Stmt, offsets: Offsets) -> Stmt:
        """Guards a store: rows and columns beyond the problem are not stored."""
        block = self.block
        beyond = [(d, o) for d, o in enumerate(offsets) if block.beyond(d)]
        inside = every(index(block.position(d, o)) < index(self.nest.extents[d]) for d, o in beyond)
        return put if inside is None else when(inside, put)
