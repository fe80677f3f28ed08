"""Lanes of groups whose matrix atoms read panels where they lie: they start products, and send off what comes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roller.lowering.simt.matrix_atoms import SIDES, GroupLane
from roller.lowering.simt.threads import Offsets
from roller.lowering.specialised.staged_store import Outlet
from roller.lowering.specialised.swizzle import SwizzledPanel
from roller.lowering.tir.builder import Buffer, Stmt, allocate, every, index, load, plus, pointer, register_buffer, sequence, when
from roller.lowering.tir.tile_starts import Position, State


@dataclass
class PanelLane(GroupLane):
    """One lane of a group whose atoms read panels. `slots`: the copy of each operand's panel that is read; `outlet`: how results
    leave through the block's memory, `arena`, where lanes do not store them.
    """

    slots: dict[int, Position] = field(default_factory=dict)
    outlet: Outlet | None = None
    arena: Buffer | None = None

    def step(self, state: State, slot: Position) -> Stmt:
        """Every atom of the group's tile takes in its step of the reduction."""
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
        """Where an atom starts in the unit's tile."""
        if dim in reduced:
            return plus(self._reduced(state, dim), reduced[dim])
        return plus(self.block.corner(dim), corner[dim])

    def _results_at(self, corner: Offsets) -> tuple[int, tuple[int, int]]:
        """The number of an atom's first result among a lane's, and the steps to those of its next row and column."""
        roles, results = self.block.roles, self.block.unit.results
        first = tuple(o // self.block.extent(roles[d]) * len(results[roles[d]]) if d in roles else o for d, o in enumerate(corner))
        found = []
        for side in SIDES:
            dim = self.program.role(side)
            following = tuple(o + (d == dim) for d, o in enumerate(first))
            found.append(self.numbers[following] - self.numbers[first])
        return self.numbers[first], (found[0], found[1])

    def results(self, state: State, slot: Position) -> Stmt:
        """The results of the lane's accumulators, through the block's memory where they leave from there."""
        return super().results(state, slot) if self.outlet is None else sequence(self._leaving(self.outlet, state, slot))

    def _leaving(self, outlet: Outlet, state: State, slot: Position) -> list[Stmt]:
        """Box after box: what the epilogue reads, the values of the lane's points, their rows laid, the copy started."""
        values = register_buffer("result", len(self.spatial), outlet.map.dtype)
        statements, at = allocate([values]), 0
        for number, box in enumerate(outlet.boxes(self.spatial)):
            points = [point for run in box.runs for point in run.points]
            reads, arrays = ([], {}) if self.partial is not None else self._operands(state, "epilogue", points)
            laid: list[Stmt] = []
            for run in box.runs:
                laid += self._valued(state, arrays, slot, run.points, values, at)
                laid.append(outlet.lay(self.arena, number, run, [load(values, at + n) for n in range(len(run.points))]))
                at += len(run.points)
            statements += [*reads, *outlet.leave(self.arena, number, laid, outlet.corner(state, box, self.part))]
        return statements

    def _kept(self, put: Stmt, offsets: Offsets) -> Stmt:
        """Rows and columns beyond the problem hold what no array holds: nobody stores them."""
        block = self.block
        beyond = [(d, o) for d, o in enumerate(offsets) if block.beyond(d)]
        inside = every(index(block.position(d, o)) < index(self.nest.extents[d]) for d, o in beyond)
        return put if inside is None else when(inside, put)
