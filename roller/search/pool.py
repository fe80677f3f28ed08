"""The rated programs of a stage."""

from __future__ import annotations

import math

from roller.cost.model import Model
from roller.cost.occupancy import as_kept
from roller.ir.nest import Tile
from roller.program.estimate import Estimate
from roller.program.rprogram import StageProgram
from roller.search.stages import Rated
from roller.search.tile_space import TileSpace

Pooled = tuple[tuple[float, int, tuple[Tile, ...]], Rated]  # with its ranking key


class Pool:
    """The rated programs of a stage, over all tile spaces."""

    def __init__(self) -> None:
        self.programs: dict[tuple[object, ...], Pooled] = {}
        self.best = math.inf  # seconds of the best of them

    def rate(self, space: TileSpace, program: StageProgram, worth: float = math.inf) -> float:
        """Returns the predicted seconds of a program and keeps it, unless it cannot run.

        A program that would be the best one is rated with as many copies as its kernel keeps, and for as many tiles on a unit as
        the device itself predicts. From `worth` seconds on a device's own model need not be exact, and the program is not kept. A
        program without the extents that the rules name for a unit's tile counts as one that cannot run.
        """
        if space.vectorised(program.inner) or not space.has_named(program.unit_tile):
            return math.inf
        if worth < math.inf and space.model.parameters.own_model is not None:
            below = space.model.seconds_below(program, worth)
            if below >= worth:
                return below
        rating = space.model.estimate(program)
        if math.isinf(rating.seconds):
            if program.dispatch.parallel:  # others are tried as well
                space.refusals[rating.bound_by] += 1
            return rating.seconds
        if rating.seconds <= self.best:
            known = _confirmed(space, program, rating)
            if known is None:
                return math.inf
            kept = as_kept(program, space.spec, space.model.parameters.copies)
            if kept is not program:
                return self.rate(space, kept)
            rating = known
            self.best = min(self.best, rating.seconds)
        order = rating.seconds, space.fit.touched_bytes(program.inner), program.tiles
        self.programs.setdefault((space.nest.dims, *program.key), (order, (program, rating)))
        return rating.seconds

    def leaders(self, count: int) -> list[StageProgram]:
        """Returns good programs: the best one of each tile space, then others with other innermost tiles, the best first."""
        best, others = list[StageProgram](), list[StageProgram]()
        ways, seen = set[object](), set[object]()
        for program, _ in self.ranked:
            if program.way not in ways:
                best.append(program)
            elif (program.way, program.inner) not in seen:
                others.append(program)
            ways.add(program.way)
            seen.add((program.way, program.inner))
        return [*best, *others][:count]

    @property
    def ranked(self) -> list[Rated]:
        """The programs, best first."""
        return [rated for _, rated in sorted(self.programs.values(), key=lambda item: item[0])]


def _confirmed(space: TileSpace, program: StageProgram, rating: Estimate) -> Estimate | None:
    """Returns the rating for as many tiles on a unit as the device predicts; None, and counts it, where none has room."""
    tiles = space.model.parameters.room_of(program)
    if tiles is None:
        return rating
    if not tiles:
        space.refusals["room"] += 1
        return None
    if tiles >= space.model.walk(program).resident:
        return rating
    return Model(space.spec, space.model.parameters, space.model.geometry, tiles).estimate(program)
