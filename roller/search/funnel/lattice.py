"""The lattice of aligned tiles around which construction screens programs, as integer arrays of [dimension, tile].

An innermost tile is any aligned one that fits. The tiles around it have 1, 2, 4 … times its extents, or the whole dimension. Where
these are too many, multiples grow by larger factors. `neighbours` leads to the extents between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roller.ir.nest import Tile
from roller.program.alignment import aligned_extents
from roller.search.tile_space import Chain, TileSpace, start

Tiles = NDArray[np.int64]  # [dimension, tile]
Chains = list[Tiles]  # for each tiled level, outermost first

OUTER = 1024  # chains of a tile space that are screened at first; more take more time


def tiles_of(tiles: Sequence[Tile]) -> Tiles:
    """Returns tiles as an array of [dimension, tile]."""
    return np.array(tiles, dtype=np.int64).reshape(len(tiles), -1).T


def chains_of(chains: Chains, chosen: Iterable[int]) -> list[Chain]:
    """Returns the chains at these places as tuples."""
    return [tuple(tuple(level[:, number].tolist()) for level in chains) for number in chosen]


def best_places(seconds: Any, chains: Chains, count: int, worst: float) -> list[int]:
    """Returns the places of the `count` best chains below `worst` seconds; equal ones in the order of their tiles.

    Partial sorts order equal values differently from machine to machine, so they only give the limit here.
    """
    limit = np.partition(seconds, count)[count] if len(seconds) > count else math.inf
    near = np.flatnonzero((seconds <= limit) & (seconds < worst))
    rows = [row[near] for level in reversed(chains) for row in level[::-1]]  # the last key decides first
    found: list[int] = near[np.lexsort((*rows, seconds[near]))][:count].tolist()
    return found


def inner_tiles(space: TileSpace) -> Tiles:
    """Returns all aligned innermost tiles that fit. Reductions stay whole atoms, unless the atom lies along them.

    A longer extent takes no less room. So a tile that does not fit excludes those that are longer in some dimension.
    """
    found, last = tiles_of([start(space)]), len(space.levels) - 1
    if space.levels[last] == len(space.spec.levels):
        return found
    lanes = {dim for _, dim in space.mapping}
    for dim, extent in enumerate(space.nest.extents):
        if not space.nest.dims[dim].is_reduce or dim in lanes:
            inner, *longer = extents(space, last, dim, start(space)[dim])
            found = _longer(found, dim, [inner, *[e for e in longer if e <= extent]])
            found = found[:, _fitting(space, found)]
    return found[:, _fitting(space, found)]


def _fitting(space: TileSpace, inner: Tiles) -> Any:
    """Returns for each innermost tile whether it fits; counts those that do not."""
    level = space.spec.levels[space.levels[-1]]
    if not level.managed:
        return np.full(inner.shape[1], True)
    fits = np.broadcast_to(
        space.fit.inner_bytes_of(tuple(inner), space.mapping, space.atom) <= space.fit.lane_bytes(level), inner.shape[1:]
    )
    space.refusals[space.fit.rule(space.levels, len(space.levels) - 1)] += int(np.count_nonzero(~fits))
    return fits


def extents(space: TileSpace, position: int, dim: int, inner: int) -> list[int]:
    """Returns the aligned extents of a dimension at a level around an inner extent, in rising order; the inner one is the first."""
    multiple = space.rules.multiple(space.levels[position], space.nest.dims[dim].name)
    limit = space.fit.limits.get((space.levels[position], dim))
    every = aligned_extents(space.nest.extents[dim], inner, multiple)
    return [inner, *[e for e in every if e > inner and (limit is None or e <= limit)]]


def _longer(tiles: Tiles, dim: int, wanted: Sequence[int]) -> Tiles:
    """Returns each tile with each of these extents of a dimension."""
    found = np.repeat(tiles, len(wanted), axis=1)
    found[dim] = np.tile(np.array(wanted, dtype=np.int64), tiles.shape[1])
    return found


def chains_around(space: TileSpace, inner: Tiles) -> Chains:
    """Returns the chains of coarse multiples around innermost tiles."""
    chains = [inner]
    for position in reversed(range(len(space.levels) - 1)):
        outer, places = _around(space, position, chains[0], max(1, OUTER >> position))
        chains = [outer, *[level[:, places] for level in chains]]
    return chains


def _around(space: TileSpace, position: int, tiles: Tiles, count: int) -> tuple[Tiles, Tiles]:
    """Returns about `count` tiles of a level around some, and for each the place of the one inside it."""
    base, most = _bases(space, position, tiles)
    steps = _multiples(most.max(axis=1, initial=1), max(1, count // max(1, tiles.shape[1])))
    outer, places = base, np.arange(tiles.shape[1])
    for dim, multiples in enumerate(steps):
        last = np.repeat(most[dim, places], len(multiples))
        wanted, before = (np.tile(np.array(m, dtype=np.int64), len(places)) for m in (multiples, [0, *multiples[:-1]]))
        outer, places = np.repeat(outer, len(multiples), axis=1), np.repeat(places, len(multiples))
        outer[dim] *= np.minimum(wanted, last)
        different = before < last
        outer, places = outer[:, different], places[different]
    return outer, places


def _bases(space: TileSpace, position: int, tiles: Tiles) -> tuple[Tiles, Tiles]:
    """Returns the extents around tiles of which others are multiples, and how many times these extents others may be."""
    base, most = tiles.copy(), np.ones_like(tiles)
    for dim, extent in enumerate(space.nest.extents):
        rule = space.rules.multiple(space.levels[position], space.nest.dims[dim].name)
        limit = space.fit.limits.get((space.levels[position], dim), max(extent, 1) + int(tiles[dim].max(initial=1)) * rule.step)
        aligned = np.lcm(np.maximum(tiles[dim], 1), rule.step)
        base[dim] = np.where(aligned <= limit, aligned, tiles[dim])
        most[dim] = np.maximum(1, np.minimum(-(-extent // np.maximum(base[dim], 1)), limit // np.maximum(base[dim], 1)))
    return base, most


def _multiples(most: Tiles, count: int) -> list[list[int]]:
    """Returns for each dimension multiples of the inner extent up to `most`, about `count` combinations of them.

    They are powers of two, of four, of eight …
    """
    for step in range(1, 64):
        found = [[1 << n for n in range(0, int(m - 1).bit_length(), step)] + [int(m)] if m > 1 else [1] for m in most]
        if math.prod(map(len, found)) <= count:
            break
    return found
