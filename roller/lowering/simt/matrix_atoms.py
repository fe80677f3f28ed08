"""Matrix atoms that a group of lanes computes together: the results that each lane holds, and the group's step.

A sub-tile belongs to one group. Its operands come from panels, one fragment per atom, and every fragment is loaded once a step. The
results stay in the lanes' registers, in the atom's layout. Device plugins describe that layout by a `MatrixUnit` for each atom.

Panels hold zeros beyond the end of a reduction and copies of the last row beyond the end of the problem, so steps have no guards.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from tvm import tirx

from roller.lowering.simt.lane import Lane
from roller.lowering.simt.machine import Machine, MatrixUnit, Operand, PanelUnit
from roller.lowering.simt.threads import Block, Offsets
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Stmt,
    allocate,
    index,
    least,
    plus,
    pointer,
    register_buffer,
    sequence,
    store,
    times,
)
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram

SIDES = ("m", "n")  # the roles of rows and columns of an atom's results; the first operand has rows, the second columns


@dataclass(frozen=True)
class GroupBlock(Block):
    """A block whose sub-tiles belong to whole groups of lanes."""

    unit: MatrixUnit | PanelUnit = field(kw_only=True)

    @property
    def each(self) -> int:
        """Lanes that compute one sub-tile together."""
        return self.program.atom.lanes

    @property
    def member(self) -> Expr:
        """The lane's number in its group."""
        return tirx.floormod(self.thread, index(self.each))

    @property
    def panel_unit(self) -> PanelUnit:
        """The unit, if its atoms read panels."""
        return cast("PanelUnit", self.unit)

    def extent(self, role: str) -> int:
        """Returns the atom's extent in a role."""
        found = self.program.atom.extents[role]
        assert isinstance(found, int)
        return found

    @cached_property
    def roles(self) -> dict[int, str]:
        """The role of each dimension along which a group's results lie."""
        return {d: role for role, d in self.program.mapping if role in SIDES}

    @cached_property
    def share(self) -> tuple[int, ...]:
        """Points of one lane along each dimension."""
        return tuple(self._share(d, extent) for d, extent in enumerate(self.program.inner))

    def _share(self, dim: int, extent: int) -> int:
        role = self.roles.get(dim)
        return extent if role is None else extent // self.extent(role) * len(self.unit.results[role])

    def _pieces(self, dim: int) -> tuple[int, ...]:
        """Returns a lane's runs of neighbouring results; single ones if tiles extend beyond the problem: results do not shift."""
        role, whole = self.roles.get(dim), self.share[dim]
        if role is None or self.program.nest.extents[dim] < self.program.unit_tile[dim]:
            return (1,) * whole
        places = self.unit.results[role]
        piece = next((n for n in (8, 4, 2) if len(places) % n == 0 and places[:n] == tuple(range(n))), 1)
        return (piece,) * (whole // piece)

    def corner(self, dim: int) -> Position:
        """Returns the start of the group's tile in the unit's tile."""
        return times(self.names[dim], self.program.inner[dim]) if dim in self.names else 0

    def offset(self, dim: int, point: int) -> Position:
        """Returns the position of a lane's point in the unit's tile; beyond the problem's end, the last position (same value)."""
        start = self.position(dim, point)
        return least(start, self.program.nest.extents[dim] - 1) if self.beyond(dim) else start

    def position(self, dim: int, point: int) -> Position:
        """Returns the position of a lane's point in the unit's tile, also beyond the problem's end."""
        role, start = self.roles.get(dim), self.corner(dim)
        if role is None:
            return plus(start, point)
        places = self.unit.results[role]
        atom, place = divmod(point, len(places))
        return plus(plus(start, self.unit.first(role, self.member)), atom * self.extent(role) + places[place])

    def beyond(self, dim: int) -> bool:
        """Returns True if a tile extends beyond the problem's end along a spatial dimension."""
        return not self.program.nest.dims[dim].is_reduce and self.program.nest.extents[dim] < self.program.unit_tile[dim]


@dataclass
class GroupLane(Lane):
    """One lane of a group: its share of every atom's operands and results."""

    block: GroupBlock

    @property
    def _unit(self) -> MatrixUnit:
        return cast("MatrixUnit", self.block.unit)

    def step(self, state: State, slot: Position) -> Stmt:
        """Issues every atom of the group's tile for one step of the reduction."""
        spare = register_buffer("spare", 1, self.nest.stage.body.dtype)
        statements = [*allocate([spare]), store(spare, tirx.const(0, str(spare.dtype)), 0)]
        for reduced in self.depths():
            statements += self._products(state, reduced, slot, spare)
        return sequence(statements)

    def placed(self) -> list[Stmt]:
        """Returns no views: fragments have addresses of their own."""
        return []

    def depths(self) -> list[dict[int, int]]:
        """Returns the start of each atom of a step along the reductions."""
        deep, depth = self.block.extent("k"), self.program.role("k")
        steps = [range(0, self.program.inner[d], deep if d == depth else 1) for d in self.nest.reduce]
        return [dict(zip(self.nest.reduce, offsets, strict=True)) for offsets in itertools.product(*steps)]

    def _products(self, state: State, reduced: Mapping[int, int], slot: Position, spare: Buffer) -> list[Stmt]:
        """Returns all atoms at one step of the reduction: loads of their operands, then the multiplications."""
        fragments = [self._fragments(role, operand, state, reduced) for role, operand in self.sides]
        statements = [*allocate([held for _, held, _ in fragments]), *(read for *_, reads in fragments for read in reads)]
        for corner in self.corners(tuple(True for _ in self.nest.dims)):
            parts = []
            for (role, operand), (places, held, _) in zip(self.sides, fragments, strict=True):
                parts.append(pointer(held, places[self._projected(corner, operand)] * self._unit.registers[role]))
            statements.append(self._unit.multiply(self._results_of(corner, slot, spare), parts[0], parts[1], self._turned))
        return statements

    @cached_property
    def _turned(self) -> tuple[bool, bool]:
        """For each operand, whether the panel's rows lie across the reduction."""
        depth = self.program.role("k")
        assert depth is not None
        first, second = (self.panels[operand].steps[depth] != 1 for _, operand in self.sides)
        return first, second

    @cached_property
    def sides(self) -> list[tuple[str, int]]:
        """The factor that has the atom's rows, and the factor that has its columns."""
        spots = dict(self.program.mapping)
        for order in ((0, 1), (1, 0)):
            touched = [(role, self.nest.factor_touches(factor)) for role, factor in zip(SIDES, order, strict=True)]
            if all(role not in spots or touches[spots[role]] for role, touches in touched):
                return list(zip(SIDES, order, strict=True))
        raise AssertionError("an atom's rows are of one factor, its columns of the other")

    def corners(self, touches: tuple[bool, ...]) -> list[Offsets]:
        """Returns the start of each atom of the group's tile, along the dimensions that are touched."""
        roles, inner = self.block.roles, self.program.inner
        steps = []
        for d in range(len(inner)):
            step = self.block.extent(roles[d]) if d in roles else 1
            steps.append(range(0, inner[d], step) if touches[d] and d in self.nest.spatial else range(1))
        return list(itertools.product(*steps))

    def _projected(self, corner: Offsets, operand: int) -> Offsets:
        return tuple(o if t else 0 for o, t in zip(corner, self.nest.factor_touches(operand), strict=True))

    def _fragments(
        self, role: str, operand: int, state: State, reduced: Mapping[int, int]
    ) -> tuple[dict[Offsets, int], Buffer, list[Stmt]]:
        """Returns an operand's fragments: each atom's index in the registers, the registers, and the loads."""
        panel, unit, block = self.panels[operand], self._unit, self.block
        corners = self.corners(self.nest.factor_touches(operand))
        base: Position = times(0 if panel.ahead is None else self.copy, panel.size)
        for dim, step in enumerate(panel.steps):
            if step:
                start = self._reduced(state, dim) if dim in reduced else 0
                base = plus(base, times(plus(start, block.corner(dim)), step))
        fixed = sum(reduced.get(d, 0) * step for d, step in enumerate(panel.steps))
        starts = tuple(fixed + sum(o * s for o, s in zip(corner, panel.steps, strict=True)) for corner in corners)
        side, depth = (self.program.role(name) for name in (role, "k"))
        along, deep = (panel.steps[dim] if dim is not None else 0 for dim in (side, depth))
        held = register_buffer(f"fragments{operand}", unit.registers[role] * len(corners), unit.dtype)
        reads = unit.fetch(role, block.member, Operand(panel.buffer, base, starts, along, deep, panel.beside), held)
        return {corner: at for at, corner in enumerate(corners)}, held, reads

    def _results_of(self, corner: Offsets, slot: Position, spare: Buffer) -> list[Expr]:
        """Returns the accumulators of an atom, row by row; unmapped roles beyond their first position go to a spare register."""
        found = []
        unit, roles = self.block.unit, self.block.roles
        for places in itertools.product(*(range(len(unit.results[role])) for role in SIDES)):
            chosen = dict(zip(SIDES, places, strict=True))
            lost = any(chosen[role] for role in SIDES if role not in roles.values())
            point = tuple(
                o // self.block.extent(roles[d]) * len(unit.results[roles[d]]) + chosen[roles[d]] if d in roles else o
                for d, o in enumerate(corner)
            )
            found.append(pointer(spare, 0, True) if lost else pointer(self.acc, plus(slot, self.numbers[point]), True))
        return found


def block_of(program: StageProgram, machine: Machine) -> Block:
    """Returns the block of a program: of lane groups if its atom is a matrix."""
    if program.atom.kind == "matrix":
        known: Mapping[str, MatrixUnit | PanelUnit] = {**machine.units, **machine.panel_units}
        unit, scope = known[program.atom.name], machine.shared_scope
        return GroupBlock(program, machine.group, shared_scope=scope, functions=machine.functions, unit=unit)
    return Block(program, machine.group, shared_scope=machine.shared_scope, functions=machine.functions)


def lane_of(block: Block, reader: Reader, target: Buffer) -> Lane:
    """Returns a lane of a block."""
    return GroupLane(block, reader, target) if isinstance(block, GroupBlock) else Lane(block, reader, target)


def refusal(program: StageProgram, machine: Machine) -> tuple[str, str] | None:
    """Returns why lane groups cannot run a program with a matrix atom; None if they can, and for all other atoms."""
    name, atom = program.nest.stage.name, program.atom
    if atom.kind != "matrix":
        return None
    if atom.name not in machine.units and not machine.in_place(atom):
        return "matrix atom", f"{name!r} is computed by {atom.name}, for which the device prints nothing"
    if {s.operand for s in program.staged} != set(range(len(program.nest.factors))):
        return "operands", f"{atom.name} takes its operands from panels, {name!r} does not stage both"
    return None
