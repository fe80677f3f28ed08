"""Grid of tiles and serial steps from the loops of a stage's program.

Unit loops become a grid: along each loop there are `parts` parallel tiles, and each runs `serial` neighbouring unit tiles in
sequence. The loops over time follow inside. All tiles do the same work at the same time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from roller.plugin import Loop, StageProgram


@dataclass(frozen=True, slots=True)
class UnitLoop:
    """A loop over tiles: `parts` parallel tiles, each with `serial` trips in sequence; `step` positions per trip."""

    dim: int
    trips: int
    step: int
    parts: int
    serial: int


@dataclass(frozen=True, slots=True)
class SerialLoop:
    """A loop with sequential trips: a unit loop's, or one over time."""

    dim: int
    trips: int
    step: int
    unit: bool


@dataclass(frozen=True)
class Grid:
    """The loops of a program as a grid of tiles and serial steps."""

    loops: tuple[UnitLoop, ...]
    time: tuple[SerialLoop, ...]

    @cached_property
    def tiles(self) -> int:
        """The number of active tiles."""
        return math.prod([lp.parts for lp in self.loops])

    @cached_property
    def serial(self) -> tuple[SerialLoop, ...]:
        """All serial loops, outermost first."""
        own = [SerialLoop(lp.dim, lp.serial, lp.step, True) for lp in self.loops if lp.serial > 1]
        return (*own, *self.time)

    @cached_property
    def steps(self) -> int:
        """The number of serial steps."""
        return math.prod([lp.trips for lp in self.serial])

    def last(self, dim: int) -> int:
        """Returns the position of the last tile in its last step along a dimension of the nest."""
        unit = [(lp.parts * lp.serial - 1) * lp.step for lp in self.loops if lp.dim == dim]
        return sum(unit) + sum([(lp.trips - 1) * lp.step for lp in self.time if lp.dim == dim])

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """The distance of the numbers of neighbouring tiles along each unit loop."""
        found: list[int] = []
        size = 1
        for lp in reversed(self.loops):
            found.insert(0, size)
            size *= lp.parts
        return tuple(found)


def grid_of(program: StageProgram, most: int) -> Grid:
    """Returns the grid of a program on at most `most` tiles.

    Reductions get their tiles first, as split-K parts require parallel tiles, then inner loops before outer ones.
    """
    dims = program.nest.dims
    unit = [lp for lp in program.loops if lp.over == "units"]
    inner_first = range(len(unit) - 1, -1, -1)
    reduced = [dims[lp.dim].is_reduce for lp in unit]
    found: list[UnitLoop | None] = [None] * len(unit)
    left = most
    for number in (*[n for n in inner_first if reduced[n]], *[n for n in inner_first if not reduced[n]]):
        lp = unit[number]
        serial = max(1, -(-lp.trips // max(1, min(lp.trips, left))))
        parts = max(1, -(-lp.trips // serial))
        found[number] = UnitLoop(lp.dim, lp.trips, program.step(lp), parts, serial)
        left //= parts
    first = program.levels[0]
    time = [SerialLoop(lp.dim, max(1, lp.trips), program.step(lp), False) for lp in program.loops if _in_time(lp, first)]
    return Grid(tuple([lp for lp in found if lp is not None]), tuple(time))


def _in_time(lp: Loop, level: int) -> bool:
    return lp.over == "time" and lp.level == level
