"""Load balancing by even parts, for chips with so many units that a program is good only if its parts are equal.

With the other dimensions fixed, it rates every number of equal parts of a dimension. It also rates every pair of such numbers that
keeps as many units busy. It takes the best, and repeats.

Steps to neighbouring extents (`roller.search.local_search`) do not get there: one more part along one dimension leaves room for
fewer parts along another, and the tiles between keep few units busy.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from roller.program.alignment import Multiple, even_extents
from roller.program.rprogram import StageProgram
from roller.search.choices import cut
from roller.search.grow import even_at
from roller.search.local_search import with_tiles
from roller.search.tile_space import Chain, TileSpace

LEAST_SAVING = 0.001  # share of the time that another program must save
LINE = 80  # extents of a dimension that are evaluated around the present one
LEAST_BUSY, FILLING = 0.85, 240  # share of the units, and number of tiles evaluated first that keep at least this share busy
LONGER = 24  # steps by which a part of a reduction is lengthened
NEIGHBOURS = 1  # extents of the other dimension that are tried on either side of the one that keeps as many units busy


def evened(space: TileSpace, program: StageProgram, limit: int) -> StageProgram:
    """Returns the best program that equal parts lead to, or the program itself. At most `limit` tiles are evaluated."""
    dims = [d for d in space.nest.spatial if _even(space, d)]
    if not dims or len(program.tiles) < 2:
        return program
    best, seconds = program, space.model.estimate(program).seconds
    seen, left, found = {program.tiles}, limit, True
    # A matrix atom's rate is known; only the device's own model has the time of a point for vectors.
    known = space.atom.kind == "matrix"
    every_point = space.model.floor_seconds(program) / max(1, math.prod(space.nest.extents)) if known else 0.0
    first = _filling(space, program, dims) if len(dims) > 2 and program.split == 1 else []
    while found and left > 0:
        found, from_here = False, best
        for tiles in itertools.chain(first, _others(space, from_here, dims)):
            if tiles in seen or left <= 0 or every_point * _points(space, tiles[0]) >= seconds:
                continue
            seen.add(tiles)
            left -= 1
            for choice in with_tiles(space, from_here, tiles):
                predicted = space.model.seconds_below(choice, seconds * (1 - LEAST_SAVING))
                if predicted < seconds * (1 - LEAST_SAVING):
                    best, seconds, found = choice, predicted, True
        first = []
        for choice in _cut_otherwise(space, best):
            predicted = space.model.seconds_below(choice, seconds * (1 - LEAST_SAVING))
            if predicted < seconds * (1 - LEAST_SAVING):
                best, seconds, found = choice, predicted, True
    return best


def _cut_otherwise(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields the program with its longest reduction cut into equal parts: any number for which there are units.

    Also into parts that are a little longer: one that divides well may take a unit less time.
    """
    nest, units = space.nest, space.spec.unit.count
    if not nest.reduce or not space.spec.unit.combine or space.fit.cooperate:
        return
    dim = max(nest.reduce, key=lambda d: nest.extents[d])
    tiles = space.fit.tiles(program.unit_tile)
    whole = replace(program, split=1, share=None, cluster=1, staged=tuple([replace(s, shifts=False) for s in program.staged]))
    extent, step = nest.extents[dim], program.inner[dim]
    longer = [program.unit_tile[dim] + step * more for more in range(1, LONGER + 1)] if program.split > 1 else []
    for share in (*even_extents(extent, step, Multiple()), *longer):
        parts = -(-extent // share)
        if parts > 1 and parts * tiles <= max(units, tiles * (program.split if program.split > 1 else 1)):
            yield from cut(space, whole, dim, share)


def _points(space: TileSpace, tile: tuple[int, ...]) -> float:
    """Returns the points of the fullest unit, times the units: a lower bound of the time, however the rest is distributed."""
    nest, units = space.nest, space.spec.unit.count
    tiles = space.fit.tiles(tile)
    parts = max(1, units // max(tiles, 1)) if nest.reduce and space.spec.unit.combine else 1
    rounds = -(-tiles // units)
    return math.prod([tile[d] for d in nest.spatial]) * rounds * math.prod([nest.extents[d] for d in nest.reduce]) / parts * units


def _even(space: TileSpace, dim: int) -> bool:
    rule = space.rules.multiple(space.levels[0], space.nest.dims[dim].name)
    return rule.even and space.nest.extents[dim] > 1


def _others(space: TileSpace, program: StageProgram, dims: list[int]) -> Iterator[Chain]:
    """Yields tiles with another extent of one dimension, and of two whose numbers of parts have about the same product."""
    nest, unit, inner = space.nest, program.unit_tile, program.tiles[1]
    every = {d: even_at(space, 0, d, inner) for d in dims}
    for dim in dims:
        for extent in _line(space, unit, dim, every[dim]):
            yield (_with(unit, {dim: extent}), *program.tiles[1:])
    for one in dims:
        for other in dims:
            if one == other:
                continue
            parts = math.prod([-(-nest.extents[d] // unit[d]) for d in (one, other)])
            for extent in _line(space, unit, one, every[one]):
                wanted = max(1, parts // -(-nest.extents[one] // extent))
                place = bisect_left(every[other], -(-nest.extents[other] // wanted))
                for near in every[other][max(0, place - NEIGHBOURS) : place + NEIGHBOURS]:
                    yield (_with(unit, {one: extent, other: near}), *program.tiles[1:])


def _filling(space: TileSpace, program: StageProgram, dims: list[int]) -> list[Chain]:
    """Returns tiles that give nearly every unit one, those of fewest points first.

    Where three dimensions have to change at a time, steps in pairs do not get there.
    """
    nest, units = space.nest, space.spec.unit.count
    others = math.prod([-(-nest.extents[d] // program.unit_tile[d]) for d in nest.spatial if d not in dims])
    made: list[tuple[int, dict[int, int]]] = [(others, {})]
    for dim in dims:
        every = [(-(-nest.extents[dim] // e), e) for e in even_at(space, 0, dim, program.tiles[1])]
        made = [(parts * more, {**chosen, dim: e}) for parts, chosen in made for more, e in every if parts * more <= units]
    busy = [_with(program.unit_tile, chosen) for parts, chosen in made if parts >= LEAST_BUSY * units]
    return [(tile, *program.tiles[1:]) for tile in sorted(busy, key=lambda tile: (math.prod(tile), tile))[:FILLING]]


def _line(space: TileSpace, unit: tuple[int, ...], dim: int, every: list[int]) -> list[int]:
    """Returns the extents of a dimension to evaluate: those that make one, two or three whole waves, then the nearest."""
    extent, units = space.nest.extents[dim], space.spec.unit.count
    others = space.fit.tiles((*unit[:dim], extent, *unit[dim + 1 :]))
    rounds = [-(-extent // max(1, units * number // max(others, 1))) for number in (1, 2, 3)]
    whole = [every[min(bisect_left(every, size), len(every) - 1)] for size in rounds]
    nearest = sorted(every, key=lambda e: abs(math.log(e / unit[dim])))[:LINE]
    return list(dict.fromkeys([*whole, *nearest]))


def _with(tile: tuple[int, ...], extents: dict[int, int]) -> tuple[int, ...]:
    return tuple([extents.get(d, e) for d, e in enumerate(tile)])
