"""Instructions that lanes start beside arithmetic: reading operands from panels, filling panels, and what goes with every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from roller.filling import share
from roller.hardware import HardwareSpec
from roller.lanes import reads
from roller.program import Loop, StageProgram, Staging, copy_depth, staged_touches
from roller.rates import CostParameters


@dataclass
class Issued:
    """Issue slots of one nest's programs; panels that are filled alike share an answer."""

    spec: HardwareSpec
    parameters: CostParameters
    _known: dict[tuple[object, ...], tuple[int, bool]] = field(default_factory=dict)

    def beside(self, program: StageProgram) -> float:
        """Slots of a lane for one innermost tile: its reads, and the tile's part of filling panels and of the step around it."""
        found, given = float(reads(program)), self.parameters
        tiles, steps = _trips(program.loops), 0
        if not (given.fill_slots or given.step_slots) or not tiles or not program.lanes:
            return found
        for staging in program.staged:
            fills = _trips(program.loops[: copy_depth(program, staging)])
            accesses, follows = self._share(program, staging)
            found += fills / tiles * accesses * (given.fill_slots + (0.0 if follows else given.place_slots))
            steps = max(steps, fills)
        return found + steps / tiles * given.step_slots

    def _share(self, program: StageProgram, staging: Staging) -> tuple[int, bool]:
        touches = staged_touches(program.nest, staging)
        tile = tuple(extent if touched else 1 for extent, touched in zip(program.unit_tile, touches, strict=True))
        key = staging.operand, tile, staging.row_padding, staging.run_padding, staging.windowed, program.lanes
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = share(program, staging, self.spec.levels[-1].access_lanes)
        return found


def _trips(loops: Sequence[Loop]) -> int:
    """Trips of those that a lane walks one after another."""
    return math.prod([lp.trips for lp in loops if lp.over == "time"])
