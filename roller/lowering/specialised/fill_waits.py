"""How often those who fill panels wait for memory: what the cost model asks a device whose blocks divide labour.

Boxes and copies that run by themselves are all under way at once; what lanes carry comes in rounds, as many values at a time as a
lane has registers for, and each round waits for memory by itself.
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
    """What lanes that do nothing but fill panels do for one copy of all of them: latencies one after another, at least one, and
    what each lane carries: `accesses`, how many of these at places that do not follow from the first, and that may lie outside.
    """

    waits: int
    accesses: int = 0
    apart: int = 0
    guarded: int = 0


@dataclass
class FillWaits:
    """What filling one copy of all panels takes. Programs that fill the same panels are answered once."""

    machine: Machine
    _known: dict[tuple[object, ...], Crew] = field(default_factory=dict)

    def __call__(self, program: StageProgram) -> int:
        """Latencies one after another: 1 where everything is under way at once."""
        return self.crew(program).waits

    def crew(self, program: StageProgram) -> Crew:
        """What the lanes do that do nothing else; nothing where there are none."""
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
        """How lanes fill what no box brings into a panel."""
        panel, reader = swizzled_panel(block.program, staging, None, 0), Reader(block.program.nest, {})
        if bulk_of(block, panel, reader) is not None:
            return None
        return filling_of(block, block.panel_unit, panel, reader, self.machine)
