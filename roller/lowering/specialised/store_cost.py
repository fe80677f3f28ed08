"""The cost of storing results of matrix atoms, which the cost model requests from a device: other work hides little of it.

A staged epilogue store writes results to shared memory, row beside row. Direct stores keep the atom's layout: one access of a lane
group touches as many rows of the array as the group covers, a few bytes of each (poor coalescing). If that is less than the
granularity of memory writes, each row costs as much as several whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from roller.ir.expr import ELEMENT_BYTES
from roller.lowering.simt.machine import Machine
from roller.lowering.simt.matrix_atoms import SIDES
from roller.lowering.specialised.shared_memory import block_of, layout_of
from roller.lowering.specialised.staged_store import run_of
from roller.lowering.specialised.swizzle import WIDEST_ROW
from roller.lowering.tir.builder import Expr, index
from roller.program.rprogram import StageProgram

First = Callable[[str, Expr], Expr]


@dataclass
class StoreAccesses:
    """The number of accesses that store the results of one unit tile, each of one row of up to 128 bytes.

    `whole_bytes`: the granularity of memory writes. `partly`: the cost of a partially written row relative to a whole one. Programs
    with the same result layout share one cached answer.
    """

    machine: Machine
    whole_bytes: int = 1
    partly: float = 1.0
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)
    _rows: dict[tuple[str, str], int] = field(default_factory=dict)

    def __call__(self, program: StageProgram) -> float:
        """Returns the accesses; 0 for programs without matrix atoms."""
        roles = {role for role, _ in program.mapping}
        if program.atom.kind != "matrix" or not program.staged or roles != {*SIDES, "k"}:
            return 0.0
        names, copies = tuple(d.name for d in program.nest.dims), tuple(s.depth for s in program.staged)
        chosen = program.atom.name, program.mapping, program.unit_tile, program.inner, copies, program.dispatch.split
        key = program.nest.stage.name, names, *chosen
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._accesses(program)
        return found

    def _accesses(self, program: StageProgram) -> float:
        results = math.prod([program.unit_tile[d] for d in program.nest.spatial])
        if self.machine.in_place(program.atom):
            block = block_of(program, self.machine)
            store_buffer = layout_of(block, self.machine).store_buffer
            if store_buffer is not None:
                return results * ELEMENT_BYTES[store_buffer.map.dtype] / WIDEST_ROW
            return self._by_lanes(program, results, block.panel_unit.first, run_of(block.panel_unit))
        unit = self.machine.units[program.atom.name]
        columns = unit.results["n"]
        run = next((n for n in range(1, len(columns)) if columns[n] != columns[0] + n), len(columns))
        return self._by_lanes(program, results, unit.first, run)

    def _by_lanes(self, program: StageProgram, results: int, first: First, run: int) -> float:
        """Counts the accesses of direct stores: `first` gives a lane's first row or column in an atom, `run` its neighbours."""
        group, output, spots = self.machine.group, program.nest.output, dict(program.mapping)
        along = next((role for role in SIDES if output.strides[spots[role]] == 1), None)
        beside, rows = (run if along == "n" else 1), group
        if along is not None:
            rows = self._apart(program.atom.name, next(role for role in SIDES if role != along), first)
        written = group // rows * beside * ELEMENT_BYTES[output.tensor.dtype]
        return results / (group * beside) * rows * (self.partly if written < self.whole_bytes else 1.0)

    def _apart(self, atom: str, role: str, first: First) -> int:
        """Returns the number of distinct rows or columns of an atom in which a group's lanes have their first results."""
        found = self._rows.get((atom, role))
        if found is None:
            found = self._rows[atom, role] = len({int(first(role, index(lane))) for lane in range(self.machine.group)})
        return found
