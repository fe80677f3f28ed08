"""What storing results takes where lanes divide labour: nobody computes meanwhile, so the cost model asks a device for it.

Where results leave as boxes, lanes lay them into the memory that they share, row beside row. Elsewhere they store them as the atom
left them: with one access a group of lanes touches as many rows of the array as it has, a few bytes of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from roller.expr import ELEMENT_BYTES
from roller.program import StageProgram
from roller.schedule.arena import block_of, layout_of
from roller.schedule.machine import Machine
from roller.schedule.matrix import SIDES, GroupBlock
from roller.schedule.outlet import run_of
from roller.schedule.swizzled import WIDEST_ROW
from roller.schedule.tir import index


@dataclass
class StoreAccesses:
    """Accesses that storing the results of one unit tile takes, each of one row of up to 128 bytes. Programs whose results lie
    alike are answered once.
    """

    machine: Machine
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __call__(self, program: StageProgram) -> float:
        """0 where others compute meanwhile."""
        roles = {role for role, _ in program.mapping}
        if not self.machine.in_place(program.atom) or not program.staged or roles != {*SIDES, "k"}:
            return 0.0
        names, copies = tuple(d.name for d in program.nest.dims), tuple(s.depth for s in program.staged)
        chosen = program.atom.name, program.mapping, program.unit_tile, program.inner, copies, program.split
        key = program.nest.stage.name, names, *chosen
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._accesses(program, block_of(program, self.machine))
        return found

    def _accesses(self, program: StageProgram, block: GroupBlock) -> float:
        results, outlet = math.prod([program.unit_tile[d] for d in program.nest.spatial]), layout_of(block, self.machine).outlet
        if outlet is not None:
            return results * ELEMENT_BYTES[outlet.map.dtype] / WIDEST_ROW
        unit, spots = block.panel_unit, dict(program.mapping)
        along = next((role for role in SIDES if program.nest.output.strides[spots[role]] == 1), None)
        beside = run_of(unit) if along == "n" else 1
        return results / (self.machine.group * beside) * self._rows(block, along)

    def _rows(self, block: GroupBlock, along: str | None) -> int:
        """Rows of the array that a group's lanes stand in; one each where neither side of the atom lies along rows."""
        group = self.machine.group
        if along is None:
            return group
        across = next(role for role in SIDES if role != along)
        return len({int(block.panel_unit.first(across, index(lane))) for lane in range(group)})
