"""Descent: from a program to neighbouring tiles on the lattice, as long as the model rates one of them better.

The screen orders the neighbours (`roller.search.funnel.steps`); the model rates the best ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from roller.program.rprogram import StageProgram
from roller.search.funnel.lattice import chains_of, tiles_of
from roller.search.funnel.short_list import Screen, budget
from roller.search.funnel.steps import nearby
from roller.search.retiled import with_tiles
from roller.search.tile_space import Chain

TRIED = 4  # neighbours that the model rates at a step: more take more time

Rate = Callable[[StageProgram, float], float]  # the seconds of a program; from the number on they need not be exact


def descended(screen: Screen, program: StageProgram, seconds: float, rate: Rate) -> tuple[StageProgram, float]:
    """Returns the program at the end of the descent and its seconds. `rate` is asked about no chain of tiles twice."""
    seen = {program.tiles}
    while True:
        rated = []
        for tiles in _best(screen, program, seen):
            rated += [(rate(choice, seconds), choice.tiles, choice) for choice in with_tiles(screen.space, program, tiles)]
        least = min(rated, key=lambda item: item[:2], default=(math.inf, (), program))
        if least[0] >= seconds:
            return program, seconds
        seconds, _, program = least


def _best(screen: Screen, program: StageProgram, seen: set[Chain]) -> Iterator[Chain]:
    """Yields the neighbours that the screen rates best, and adds them to those that were seen."""
    near = nearby(screen.space, [tiles_of([tile]) for tile in program.tiles])
    seconds = screen.seconds_of(near, program) if near[0].shape[1] else []
    left = TRIED * budget(screen.space)
    for place in np.argsort(seconds, kind="stable").tolist():
        if not left or math.isinf(seconds[place]):
            return
        (tiles,) = chains_of(near, [place])
        if tiles not in seen:
            seen.add(tiles)
            left -= 1
            yield tiles


__all__ = ["descended"]
