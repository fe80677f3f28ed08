"""Descent: from a program to neighbouring tiles on the lattice, as long as the model rates one of them better.

A neighbour differs in one extent, or in two of the innermost tile, where one grows and another one shrinks. An extent changes to
the next one, to about twice or half of it, or to the whole dimension. The screen orders the neighbours; the model rates the best
ones.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from roller.program.rprogram import StageProgram
from roller.search.choices import split
from roller.search.funnel.lattice import extents, tiles_of
from roller.search.funnel.screen import CacheScreen
from roller.search.tile_space import Chain, TileSpace, start

TRIED = 6  # neighbours that the model rates at a step: more take more time

Rate = Callable[[StageProgram], float]


def descended(screen: CacheScreen, program: StageProgram, seconds: float, rate: Rate) -> tuple[StageProgram, float]:
    """Returns the program at the end of the descent and its seconds. `rate` is asked about no chain of tiles twice."""
    space, seen = screen.space, {program.tiles}
    while True:
        near = [tiles for tiles in dict.fromkeys(neighbours(space, program.tiles)) if tiles not in seen]
        rated = []
        for tiles in _best(screen, program, near):
            seen.add(tiles)
            rated += [(rate(choice), choice.tiles, choice) for choice in _choices(space, program, tiles)]
        least = min(rated, key=lambda item: item[:2], default=(math.inf, (), program))
        if least[0] >= seconds:
            return program, seconds
        seconds, _, program = least


def _best(screen: CacheScreen, program: StageProgram, near: list[Chain]) -> Iterator[Chain]:
    """Yields the neighbours that the screen rates best."""
    if near:
        chains = [tiles_of([tiles[position] for tiles in near]) for position in range(len(program.tiles))]
        seconds = screen.seconds_of(chains, program)
        order = np.argsort(seconds, kind="stable")[:TRIED]
        yield from [near[number] for number in order.tolist()]


def _choices(space: TileSpace, program: StageProgram, tiles: Chain) -> Iterator[StageProgram]:
    """Yields the program with other tiles, whole and with its reduction cut (split-K)."""
    around = zip(space.levels, tiles, [*tiles[1:], start(space)], strict=True)
    within = all(space.fit.within(level, tile, inner) for level, tile, inner in around)
    if within and space.fit.fits(space.levels, len(tiles) - 1, tiles[-1], start(space), space.mapping, space.atom):
        whole = replace(program, tiles=tiles, split=1)
        yield from (whole, *split(space, whole))


def neighbours(space: TileSpace, tiles: Chain) -> Iterator[Chain]:
    """Yields the chains of tiles around one; they may not fit."""
    last = len(tiles) - 1
    for position in range(len(tiles)):
        if space.levels[position] == len(space.spec.levels):
            continue
        dims = [d for d in range(len(tiles[0])) if _open(space, position, d)]
        steps = {d: _steps(space, tiles, position, d) for d in dims}
        for dim in dims:
            for extent in steps[dim]:
                yield from _with(space, tiles, position, {dim: extent})
        for one, other in ((a, b) for a in dims for b in dims if a != b and position == last):
            for longer in [e for e in steps[one] if e > tiles[position][one]]:
                for shorter in [e for e in steps[other] if e < tiles[position][other]]:
                    yield from _with(space, tiles, position, {one: longer, other: shorter})


def _open(space: TileSpace, position: int, dim: int) -> bool:
    """True if a dimension of a tile may have several extents: reductions stay whole atoms in the innermost."""
    innermost = position == len(space.levels) - 1
    whole = innermost and space.nest.dims[dim].is_reduce and all(d != dim for _, d in space.mapping)
    return space.nest.extents[dim] > 1 and not whole


def _steps(space: TileSpace, tiles: Chain, position: int, dim: int) -> list[int]:
    """Returns the aligned extents of a dimension after a step."""
    inside = tiles[position + 1] if position + 1 < len(tiles) else start(space)
    every, now = extents(space, position, dim, inside[dim]), tiles[position][dim]
    if position == len(tiles) - 1:
        every = [e for e in every if e <= max(space.nest.extents[dim], inside[dim])]
    places = bisect_left(every, now) - 1, bisect_right(every, now), bisect_right(every, now // 2) - 1, bisect_left(every, 2 * now)
    return list(dict.fromkeys(every[p] for p in (*places, len(every) - 1) if 0 <= p < len(every) and every[p] != now))


def _with(space: TileSpace, tiles: Chain, position: int, changed: dict[int, int]) -> Iterator[Chain]:
    """Yields the chain with other extents of one tile. Tiles around it keep about their size, or their number of these tiles."""
    for along in (False, True) if position else (False,):
        found = [list(tile) for tile in tiles]
        for dim, extent in changed.items():
            found[position][dim] = extent
            for outer in range(position - 1, -1, -1):
                inside, now, whole = found[outer + 1][dim], tiles[outer][dim], space.nest.extents[dim]
                step = math.lcm(inside, space.rules.multiple(space.levels[outer], space.nest.dims[dim].name).step)
                wanted = now * inside / tiles[outer + 1][dim] if along else now
                most = -(-whole // step)
                found[outer][dim] = step * (most if wanted >= whole else min(most, max(1, round(wanted / step))))
        yield tuple(tuple(tile) for tile in found)
