"""Loops whose trips fill the panels of later ones, by copies that run by themselves or by what lanes carry in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from roller.lowering.simt.cooperative_fill import Filling
from roller.lowering.simt.lane import Lane
from roller.lowering.simt.machine import Machine
from roller.lowering.tir.builder import Expr, Stmt, allocate, barrier, index, loop, sequence, variable, when
from roller.lowering.tir.tile_starts import Position, State


@dataclass
class Pipeline:
    """One such loop: its panels' fillings, its number in the program, the state inside one trip, and what a trip computes."""

    machine: Machine
    lane: Lane
    fillings: list[Filling]
    number: int
    entered: Callable[[Position], State]
    inside: Callable[[State], Stmt]

    def loop(self, trips: int | Expr, left: list[Stmt]) -> Stmt:
        """The loop and what comes before it; `left`: all lanes have left what they read before."""
        carried = all(f.copies is None for f in self.fillings)
        return self._carried(trips, left) if self.machine.across and carried else self._started(trips, left)

    def _started(self, trips: int | Expr, left: list[Stmt]) -> Stmt:
        """Each trip starts copies for a later one, reads ahead what lanes have to carry for the next one, computes, and then stores
        what it read. At its start what it needs is there, and nobody needs what it replaces.
        """
        started, carried = ([f for f in self.fillings if (f.copies is None) == alone] for alone in (False, True))
        stages, var = min(f.panel.copies for f in self.fillings), variable(f"i{self.number}")
        later = var + index(stages - 1)
        more = later < index(trips)
        self.lane.copy = tirx.floormod(var, index(stages))
        target = tirx.floormod(later, index(stages))
        following = self.entered(later)
        body = [
            *self._wait(started, stages - 2),
            barrier(),
            *self._start(started, following, target, more),
            *([when(more, sequence(f.fetch(following) for f in carried))] if carried else []),
            self.inside(self.entered(var)),
            *([when(more, sequence(f.put(target) for f in carried))] if carried else []),
        ]
        self.lane.copy = 0
        begun = [*allocate([f.held for f in carried]), *left]
        for first in range(stages - 1):
            at = self.entered(first)
            begun += self._start(started, at, first, index(first) < index(trips) if first else None)
            begun += [f.at_once(at, first) for f in carried]
        return sequence([*begun, loop(var, trips, sequence(body))])

    def _carried(self, trips: int | Expr, left: list[Stmt]) -> Stmt:
        """Each trip stores what lanes carry for the next one, reads what they carry for the one after it, and computes: what was
        read is on its way while lanes compute and wait for one another.
        """

        def when_there(at: Position, statements: list[Stmt]) -> Stmt:
            return when(index(at) < index(trips), sequence(statements))

        var = variable(f"i{self.number}")
        following, after = var + index(1), var + index(2)
        self.lane.copy = tirx.floormod(var, index(2))
        body = [
            barrier(),
            when_there(following, [f.put(tirx.floormod(following, index(2))) for f in self.fillings]),
            when_there(after, [f.fetch(self.entered(after)) for f in self.fillings]),
            self.inside(self.entered(var)),
        ]
        self.lane.copy = 0
        first = [f.at_once(self.entered(0), 0) for f in self.fillings]
        second = when_there(1, [f.fetch(self.entered(1)) for f in self.fillings])
        begun = [*allocate([f.held for f in self.fillings]), *left, *first, second]
        return sequence([*begun, loop(var, trips, sequence(body))])

    def _start(self, fillings: list[Filling], state: State, slot: Position, wanted: Expr | None) -> list[Stmt]:
        """Copies started where they are wanted, and a group closed, so that groups can be counted."""
        if not fillings or self.machine.copies is None:
            return []
        copies = sequence(f.start(state, slot) for f in fillings)
        return [copies if wanted is None else when(wanted, copies), self.machine.copies.close()]

    def _wait(self, fillings: list[Filling], open_groups: int) -> list[Stmt]:
        return [self.machine.copies.wait(open_groups)] if fillings and self.machine.copies is not None else []
