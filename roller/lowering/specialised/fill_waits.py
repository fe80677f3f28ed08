"""Memory latencies that producer lanes wait for: a quantity that the cost model requests from warp-specialised devices.

All boxes and asynchronous copies are in flight at once. Values that pass through registers come in rounds, limited by a lane's
registers, and each round waits for memory separately.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.lowering.simt.cooperative_fill import Filling
from roller.lowering.simt.machine import Machine
from roller.lowering.simt.matrix_atoms import SIDES, GroupBlock
from roller.lowering.specialised.bulk_copies import bulk_of
from roller.lowering.specialised.producer_consumer import CARRIED_REGISTERS, filling_of
from roller.lowering.specialised.shared_memory import block_of
from roller.lowering.specialised.swizzle import swizzled_panel
from roller.lowering.tir.loads import Reader
from roller.program.rprogram import StageProgram, Staging


@dataclass(frozen=True)
class Crew:
    """The work of the producer lanes for one copy of all panels.

    `waits`: latencies one after another, at least one. `accesses`: values that each lane copies; `apart`: accesses whose addresses
    do not follow from the first one; `guarded`: accesses that may lie outside the array.
    """

    waits: int
    accesses: int = 0
    apart: int = 0
    guarded: int = 0


@dataclass
class FillWaits:
    """The cost of filling one copy of all panels; programs that fill the same panels share one cached answer."""

    machine: Machine
    _known: dict[tuple[object, ...], Crew] = field(default_factory=dict)

    def __call__(self, program: StageProgram) -> int:
        """Returns the number of latencies one after another: 1 if all copies are in flight at once."""
        return self.crew(program).waits

    def crew(self, program: StageProgram) -> Crew:
        """Returns the work of the producer lanes; empty for a program without producers."""
        roles = {role for role, _ in program.mapping}
        if not self.machine.in_place(program.atom) or not program.staged or roles != {*SIDES, "k"}:
            return Crew(1)
        names = tuple(d.name for d in program.nest.dims)
        key = program.nest.stage.name, names, program.atom.name, program.mapping, program.unit_tile, program.beside
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._counted(program)
        return found

    def _counted(self, program: StageProgram) -> Crew:
        block = block_of(program, self.machine)
        waits = accesses = apart = guarded = 0
        for staging in program.staged:
            filling = self._by_lanes(block, staging)
            if filling is None:
                continue
            waits += 0 if filling.copies is not None else filling.rounds(CARRIED_REGISTERS)
            accesses += filling.trips
            apart += 0 if filling.follows else filling.trips
            guarded += filling.trips if filling.guarded else 0
        return Crew(max(1, waits), accesses, apart, guarded)

    def _by_lanes(self, block: GroupBlock, staging: Staging) -> Filling | None:
        """Returns the filling by lanes of a panel that bulk copies cannot fill."""
        panel, reader = swizzled_panel(block.program, staging, None, 0), Reader(block.program.nest, {})
        if bulk_of(block, panel, reader) is not None:
            return None
        return filling_of(block, block.panel_unit, panel, reader, self.machine)
