"""Software-pipelined loops: each trip prefetches the panels of later ones, by asynchronous copies or through registers."""

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
    """A software-pipelined loop: its panels' fillings, its number in the program, the state inside one trip, and its body."""

    machine: Machine
    lane: Lane
    fillings: list[Filling]
    number: int
    entered: Callable[[Position], State]
    inside: Callable[[State], Stmt]

    def loop(self, trips: int | Expr, left: list[Stmt]) -> Stmt:
        """Returns the prologue and the loop; `left`: the barrier after which all lanes have read the previous panels."""
        carried = all(f.copies is None for f in self.fillings)
        return self._carried(trips, left) if self.machine.across and carried else self._started(trips, left)

    def _started(self, trips: int | Expr, left: list[Stmt]) -> Stmt:
        """Returns a multi-buffered loop: each trip starts asynchronous copies for a later trip and then computes.

        Operands copied through registers are prefetched for the next trip before the computation and stored to shared memory after
        it. At the start of a trip, its panels are complete, and the buffers that it overwrites are no longer read.
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
        """Returns a double-buffered loop through registers, with loads two trips ahead.

        Each trip stores the values for the next trip, loads those for the one after it, and computes. The loads stay in flight
        across the computation and the barrier.
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
        """Starts the copies under a condition, and commits a group unconditionally, so that groups can be counted."""
        if not fillings or self.machine.copies is None:
            return []
        copies = sequence(f.start(state, slot) for f in fillings)
        return [copies if wanted is None else when(wanted, copies), self.machine.copies.close()]

    def _wait(self, fillings: list[Filling], open_groups: int) -> list[Stmt]:
        return [self.machine.copies.wait(open_groups)] if fillings and self.machine.copies is not None else []
