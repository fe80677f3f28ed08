"""Instructions that lanes issue beside arithmetic: operand reads from panels, panel fills, and the overhead of every step.

The instructions of one lane group (warp, wavefront) mostly depend on one another. A group alone on its partition issues one every
few cycles, whatever the partition's issue rate (`CostParameters.serial_cycles`). Arithmetic instructions are independent: each lane
has many accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from roller.cost import formulas
from roller.cost.occupancy import accumulated_bytes, lane_groups, lanes_of, step_loop
from roller.cost.parameters import CostParameters
from roller.ir.row_groups import REGISTER_BYTES
from roller.layout.fill_order import Share, share
from roller.layout.lanes import reads
from roller.program.dispatch import Loop
from roller.program.rprogram import StageProgram, Staging, copy_depth, staged_touches
from roller.target.hardware import HardwareSpec


@dataclass
class Issued:
    """Issue slots of one nest's programs; panels with equal fills share a cached result."""

    spec: HardwareSpec
    parameters: CostParameters
    _known: dict[tuple[object, ...], Share] = field(default_factory=dict)

    def beside(self, program: StageProgram) -> float:
        """Returns a lane's slots for one innermost tile: its reads, and its part of panel fills and of the step around it."""
        return float(reads(program)) + self._filling(program)

    def crowding(self, program: StageProgram, slots: float) -> float:
        """Returns the factor by which other instructions lengthen computing, as they compete for issue slots.

        It is 1 where arithmetic leaves enough slots free. `slots`: the arithmetic's slots at one point.
        """
        atom = program.atom
        if self.spec.unit.issue_groups is None or atom.kind == "matrix" or not program.staged or program.lane_level is None:
            return 1.0
        steps = math.prod(program.inner) / formulas.outputs_of(atom) * slots
        return float(formulas.crowding(self.spec, atom, self.beside(program), steps))

    def alone_seconds(self, program: StageProgram, slots: float, resident: int) -> float:
        """Returns the seconds in which a lane group issues its instructions one after another, for all tiles of a unit.

        Tiles that are resident together (occupancy) do so at the same time.
        """
        given = self.parameters
        if not program.staged or program.lane_level is None or self.spec.in_place(program.atom) or given.serial_cycles <= 1:
            return 0.0
        arithmetic = math.prod(program.inner) * slots
        one = formulas.alone_seconds(self.spec, given, program.atom, arithmetic, self._filling(program), _trips(program.loops))
        return float(one * -(-program.unit_tiles // self.spec.unit.count) / resident)

    def waiting(self, program: StageProgram, resident: int) -> float:
        """Returns the factor by which dependent instructions, such as those of functions, take longer at low occupancy.

        It exceeds 1 where a partition of a unit has too few lane groups to issue other instructions meanwhile. Where lanes hold
        whole rows, all their instructions are dependent.
        """
        if program.lane_level is None or not program.lanes:
            return 1.0
        cycles = self.parameters.dependent_cycles if program.nest.before else self.parameters.serial_cycles
        return float(formulas.waiting(cycles, lane_groups(program, self.spec), resident, self.spec.partitions))

    def _filling(self, program: StageProgram) -> float:
        """Returns a lane's slots for panel fills and steps, for one innermost tile."""
        given, tiles = self.parameters, _trips(program.loops)
        if not (given.fill_slots or given.step_slots) or not tiles or not program.lanes:
            return 0.0
        slots = steps = 0.0
        for staging in program.staged:
            fills = _trips(program.loops[: copy_depth(program, staging)])
            part = self.share(program, staging)
            slots += fills / tiles * part.accesses * self._access_slots(part)
            steps = max(steps, fills)
        return slots + steps / tiles * given.step_slots

    def _access_slots(self, part: Share) -> float:
        """Returns the slots of one access that fills a panel."""
        given = self.parameters
        apart = 0.0 if part.follows else given.place_slots
        return given.fill_slots + apart + (given.guard_slots if part.guarded else 0.0)

    def rounds(self, program: StageProgram, staging: Staging, part: Share) -> float:
        """Returns the memory latencies, one after another, of a panel fill through lanes; 0 for asynchronous copies."""
        sizes = self.parameters.copy_sizes
        return 0.0 if not sizes or self._access_bytes(program, staging, part) in sizes else part.accesses / self.parameters.carried

    def prefetches(self, program: StageProgram) -> bool:
        """True if a lane has the registers to prefetch panels, or need not: asynchronous copies pass none."""
        most, number = self.parameters.prefetch_registers, step_loop(program)
        if not most or number is None or program.lane_level is None or self.spec.in_place(program.atom):
            return True
        held = accumulated_bytes(program) * program.lanes / lanes_of(program) / REGISTER_BYTES
        carried = 0.0
        for staging in program.staged:
            if copy_depth(program, staging) == number + 1:
                part = self.share(program, staging)
                size = self._access_bytes(program, staging, part)
                if size not in self.parameters.copy_sizes:
                    carried += part.accesses * (self.parameters.place_registers + -(-size // REGISTER_BYTES))
        return not carried or held + carried <= most

    def _access_bytes(self, program: StageProgram, staging: Staging, part: Share) -> int:
        return part.width * max([a.element_bytes for a in program.nest.inputs if a.factor == staging.operand], default=1)

    def share(self, program: StageProgram, staging: Staging) -> Share:
        """Returns one lane's part of a panel fill."""
        touches = staged_touches(program.nest, staging)
        tile = tuple(extent if touched else 1 for extent, touched in zip(program.unit_tile, touches, strict=True))
        lanes = lanes_of(program)
        key = staging.operand, tile, staging.row_padding, staging.run_padding, staging.windowed, lanes
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = share(program, staging, self.spec.levels[-1].access_lanes, lanes)
        return found


def _trips(loops: Sequence[Loop]) -> int:
    """Returns the trips of the loops over time, which a lane runs one after another."""
    return math.prod([lp.trips for lp in loops if lp.over == "time"])
