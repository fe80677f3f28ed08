"""How often those who fill panels wait for memory: what the cost model asks a device whose blocks divide labour.

Boxes and copies that run by themselves are all under way at once; what lanes carry comes in rounds, as many values at a time as a
lane has registers for, and each round waits for memory by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.program import StageProgram, Staging
from roller.schedule.arena import block_of
from roller.schedule.bulk import bulk_of
from roller.schedule.machine import Machine
from roller.schedule.matrix import SIDES, GroupBlock
from roller.schedule.reading import Reader
from roller.schedule.specialised import CARRIED_REGISTERS, filling_of
from roller.schedule.swizzled import swizzled_panel


@dataclass
class FillWaits:
    """Latencies, one after another, that filling one copy of all panels takes. Programs that fill the same panels are answered
    once.
    """

    machine: Machine
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __call__(self, program: StageProgram) -> int:
        """1 where everything is under way at once."""
        roles = {role for role, _ in program.mapping}
        if not self.machine.in_place(program.atom) or not program.staged or roles != {*SIDES, "k"}:
            return 1
        names = tuple(d.name for d in program.nest.dims)
        key = program.nest.stage.name, names, program.atom.name, program.mapping, program.unit_tile, program.beside
        found = self._known.get(key)
        if found is None:
            block = block_of(program, self.machine)
            found = self._known[key] = max(1, sum(self._rounds(block, staging) for staging in program.staged))
        return found

    def _rounds(self, block: GroupBlock, staging: Staging) -> int:
        """Rounds in which lanes carry what no box brings into a panel."""
        panel, reader = swizzled_panel(block.program, staging, None, 0), Reader(block.program.nest, {})
        if bulk_of(block, panel, reader) is not None:
            return 0
        filling = filling_of(block, block.panel_unit, panel, reader, self.machine)
        return 0 if filling.copies is not None else filling.rounds(CARRIED_REGISTERS)
