"""Instructions that lanes issue beside arithmetic: operand reads from panels, panel fills, and the overhead of every step.

The instructions of one lane group (warp, wavefront) mostly depend on one another. A group alone on its partition issues one every
few cycles, whatever the partition's issue rate (`CostParameters.serial_cycles`). Arithmetic instructions are independent: each lane
has many accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from roller.cost.occupancy import lane_groups, lanes_of
from roller.cost.parameters import CostParameters
from roller.layout.fill_order import Share, share
from roller.layout.lanes import reads
from roller.program.rprogram import Loop, StageProgram, Staging, copy_depth, staged_touches
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
        most, atom = self.spec.unit.issue_groups, program.atom
        if most is None or atom.kind == "matrix" or not program.staged or program.lane_level is None:
            return 1.0
        outputs = math.prod([e for r, e in atom.roles.items() if r != "k" and isinstance(e, int)])
        steps = math.prod(program.inner) / outputs * slots
        arithmetic = (atom.flops_per_cycle_per_unit or 0.0) / 2 / outputs / self.spec.unit.lane_group
        return max(1.0, arithmetic / most * (1 + self.beside(program) / max(steps, 1)))

    def alone_seconds(self, program: StageProgram, slots: float, resident: int) -> float:
        """Returns the seconds in which a lane group issues its instructions one after another, for all tiles of a unit.

        Tiles that are resident together (occupancy) do so at the same time.
        """
        unit, cycles = self.spec.unit, self.parameters.serial_cycles
        if not program.staged or program.lane_level is None or self.spec.in_place(program.atom) or cycles <= 1:
            return 0.0
        arithmetic = self._arithmetic_cycles(program, slots) * self.parameters.arithmetic_cycles
        visit = arithmetic + self._filling(program) * cycles
        one = _trips(program.loops) * visit / (self.spec.clock_ghz * 1e9)
        return one * -(-program.unit_tiles // unit.count) / resident

    def waiting(self, program: StageProgram, resident: int) -> float:
        """Returns the factor by which dependent instructions, such as those of functions, take longer at low occupancy.

        It exceeds 1 where a partition of a unit has too few lane groups to issue other instructions meanwhile. Where lanes hold
        whole rows, all their instructions are dependent.
        """
        if program.lane_level is None or not program.lanes:
            return 1.0
        cycles = self.parameters.dependent_cycles if program.nest.before else self.parameters.serial_cycles
        return max(1.0, cycles / max(1.0, lane_groups(program, self.spec) * resident / self.spec.partitions))

    def _arithmetic_cycles(self, program: StageProgram, slots: float) -> float:
        """Returns the cycles in which a lane group, alone on its partition, issues the arithmetic of one innermost tile."""
        atom = program.atom
        rate = (atom.flops_per_cycle_per_unit or 0.0) / 2 / self.spec.partitions  # multiply-adds of a partition a cycle
        together = 1 if atom.kind == "matrix" else self.spec.unit.lane_group
        return math.prod(program.inner) * slots * together / rate if rate else 0.0

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
        size = part.width * max([a.element_bytes for a in program.nest.inputs if a.factor == staging.operand], default=1)
        if not self.parameters.copy_sizes or size in self.parameters.copy_sizes:
            return 0.0
        return part.accesses / self.parameters.carried

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
