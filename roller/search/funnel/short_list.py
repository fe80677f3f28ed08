"""The short list of a stage: of all chains on the lattices of its tile spaces, the programs that the screen rates best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from roller.program.elementwise import Value
from roller.program.rprogram import StageProgram
from roller.search.choices import bare, parts_of
from roller.search.funnel.lattice import Chains, Tiles, best_places, chains_around, chains_of, inner_tiles
from roller.search.funnel.screen import CacheScreen, Way
from roller.search.tile_space import Chain, TileSpace

INNER = 12  # innermost tiles around which chains are screened, over all tile spaces of a stage; more take more time
EACH = 6  # and at least this many of each tile space
SHORT = 24  # programs that the model rates; more take more time

Listed = tuple[float, Chain, int, int]  # seconds, tiles, numbers of the tile space and of the way


def short_list(screens: Sequence[CacheScreen]) -> Iterator[tuple[CacheScreen, StageProgram]]:
    """Yields the best `SHORT` programs by the screen, best first; of equal ones the one with the smaller tiles."""
    best: list[Listed] = []
    for number, inner, least in _promising(screens):
        worst = best[SHORT - 1][0] if len(best) >= SHORT else math.inf
        if np.any(least < worst):
            chains = chains_around(screens[number].space, inner[:, least < worst])
            seconds = screens[number].seconds(chains, float(least.min()), worst)
            best = sorted([*best, *_listed(screens[number], number, chains, seconds, worst)])[:SHORT]
    for _, chain, number, way in best:
        yield screens[number], program_in(screens[number].space, chain, screens[number].ways[way])


def _promising(screens: Sequence[CacheScreen]) -> Iterator[tuple[int, Tiles, Value]]:
    """Yields for each tile space the innermost tiles with the least lower bounds; the most promising tile space first."""
    inner = [inner_tiles(screen.space) for screen in screens]
    least = [screen.least_seconds(tiles) for screen, tiles in zip(screens, inner, strict=True)]
    order = [np.argsort(bounds, kind="stable") for bounds in least]
    every = np.sort(np.concatenate(least))
    worth = every[min(INNER, len(every)) - 1] if len(every) else 0.0
    for number in sorted(range(len(screens)), key=lambda n: (least[n].min(initial=math.inf), n)):
        chosen = order[number][: max(EACH, int(np.count_nonzero(least[number] <= worth)))]
        yield number, inner[number][:, chosen], least[number][chosen]


def _listed(screen: CacheScreen, number: int, chains: Chains, rated: list[Value], worst: float) -> Iterator[Listed]:
    """Yields the best chains that take less than `worst` seconds, at most `SHORT` of each way."""
    for way, seconds in enumerate(rated):
        near = best_places(seconds, chains, SHORT, worst)
        for place, chain in zip(near, chains_of(chains, near), strict=True):
            yield float(seconds[place]), chain, number, way


def program_in(space: TileSpace, chain: Chain, way: Way) -> StageProgram:
    """Returns the program of a chain with the default loop orders."""
    program = bare(space, space.levels, chain, way.staged)
    return replace(program, split=parts_of(space, chain[0])) if way.cut else program
