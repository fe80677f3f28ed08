"""The lattice of aligned tiles around which construction screens programs, as integer arrays of [dimension, tile].

An innermost tile is any aligned one that fits. The tiles around it have 1, 2, 4 … times its extents, or the whole dimension. Where
these are too many, multiples grow by larger factors. Steps (`roller.search.funnel.steps`) lead to the extents between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roller.ir.elementwise import Value
from roller.ir.nest import Tile
from roller.layout.banks import most_together
from roller.program.alignment import aligned_extents, even_extents
from roller.program.words import word_dim
from roller.search.tile_space import Chain, TileSpace, start

Tiles = NDArray[np.int64]  # [dimension, tile]
Chains = list[Tiles]  # for each tiled level, outermost first
Able = Callable[[Chains], Any]  # for each chain, whether it may have longer extents

MOST_RUN = 32  # positions of a reduction, each of another row, that a lane reads at once; more are more time
FINER = 8  # octaves of chains that are listed beyond the budget, as few of them fit; more take more time
OUTER = 1024  # chains of a tile space that are screened at first; more take more time


def tiles_of(tiles: Sequence[Tile]) -> Tiles:
    """Returns tiles as an array of [dimension, tile]."""
    return np.array(tiles, dtype=np.int64).reshape(len(tiles), -1).T


def chains_of(chains: Chains, chosen: Iterable[int]) -> list[Chain]:
    """Returns the chains at these places as tuples."""
    return [tuple(tuple(level[:, number].tolist()) for level in chains) for number in chosen]


def joined(several: Sequence[Chains]) -> Chains:
    """Returns the chains of several arrays in one."""
    return [np.concatenate(tiles, axis=1) for tiles in zip(*several, strict=True)]


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
        return found[:, _divides_named(space, found)] if space.named else found
    along = runs_along(space)
    for dim in range(len(space.nest.dims)):
        if not space.nest.dims[dim].is_reduce or dim in along:
            found = _longer(found, dim, _innermost(space, dim))
            found = found[:, _fitting(space, found)]
    for dim, widths in run_widths(space).items():
        found = _longer(found, dim, widths)
    found = found[:, _fitting(space, found)]
    return found[:, _divides_named(space, found)] if space.named else found


def _innermost(space: TileSpace, dim: int) -> list[int]:
    """Returns the aligned extents of a dimension of innermost tiles; if that of a unit is named, all that divide it."""
    extent, named, last = space.nest.extents[dim], space.named.get(dim), len(space.levels) - 1
    first, *longer = extents(space, last, dim, start(space)[dim])
    if named is not None:
        step = space.rules.multiple(space.levels[last], space.nest.dims[dim].name).around(first)
        limit = min(extent, space.fit.limits.get((space.levels[last], dim), extent), named)
        longer = [e for e in range(step, limit + 1, step) if named % e == 0 and e > first]
    return [first, *[e for e in longer if e <= extent]]


def _divides_named(space: TileSpace, inner: Tiles) -> Any:
    """Returns for each innermost tile whether a unit's tile of the named extents can be around it."""
    return reduce(and_, [named_around(space, dim, inner[dim]) for dim in space.named])


def named_around(space: TileSpace, dim: int, inner: Value) -> Value:
    """Returns whether the named extent of a dimension is aligned around inner extents, and not longer than the whole of it.

    Reductions contain any number of inner tiles. A tile equal to the one inside it is aligned like that one.
    """
    extent, named = space.nest.extents[dim], space.named[dim]
    rule = space.rules.multiple(space.levels[0], space.nest.dims[dim].name)
    base = np.lcm(np.maximum(inner, 1), rule.step)
    aligned = space.nest.dims[dim].is_reduce or named % rule.step == 0
    if rule.limit is not None and rule.limit < named:
        return inner < 0
    return (named % np.maximum(inner, 1) == 0) & ((inner == named) | (aligned & (named <= -(-extent // base) * base)))


def with_named(space: TileSpace, chains: Chains) -> Chains:
    """Returns the chains of which the unit's tile has the named extents."""
    if not space.named:
        return chains
    kept = space.has_named(chains[0]) & _divides_named(space, chains[1])
    return [tiles[:, kept] for tiles in chains]


def runs_along(space: TileSpace) -> frozenset[int]:
    """Returns the dimensions along which an innermost tile may hold several atoms of a mapping: all but that of a word."""
    return frozenset({dim for _, dim in space.mapping} - {word_dim(space.atom, space.mapping)})


def run_widths(space: TileSpace) -> dict[int, list[int]]:
    """Returns the runs of a shared reduction that a lane may read at once: for a dimension, numbers of its positions.

    They make accesses fewer or concurrent. Along a reduction in which an array is contiguous and read in place, a run is as long as
    the widest access. If each position is an access of its own, runs are powers of two, as many as lanes keep in flight.
    """
    nest = space.nest
    if not space.fit.cooperate or space.atom.kind != "scalar" or space.fit.windowed:
        return {}
    alone = [a for a in nest.inputs if not a.guarded and not space.fit.reused(a.touches)]
    wide = [
        (math.gcd(most_together(a.tensor.dtype), nest.extents[dim]), dim)
        for dim in nest.reduce
        for a in alone
        if a.strides[dim] == 1
    ]
    if wide:
        width, dim = min(wide)
        return {dim: [1, width]} if width > 1 else {}
    walked = [dim for dim in nest.reduce if any(a.touches[dim] for a in alone)]
    longest = min(MOST_RUN, nest.extents[walked[-1]]) if walked else 0
    return {walked[-1]: [1 << n for n in range(longest.bit_length())]} if walked and longest else {}


def _fitting(space: TileSpace, inner: Tiles) -> Any:
    """Returns for each innermost tile whether it fits; counts those that do not."""
    fits = _has_room(space, inner)
    space.refusals[space.fit.rule(space.levels, len(space.levels) - 1)] += int(np.count_nonzero(~fits))
    return fits & np.logical_not(space.vectorised(tuple(inner)))


def innermost_fits(space: TileSpace, inner: Tiles) -> Any:
    """Returns for each innermost tile whether its level has room for it, and no other atom has the same tile."""
    return _has_room(space, inner) & np.logical_not(space.vectorised(tuple(inner)))


def _has_room(space: TileSpace, inner: Tiles) -> Any:
    last = space.levels[-1]
    if last == len(space.spec.levels) or not space.spec.levels[last].managed:
        return np.full(inner.shape[1], True)
    needed = space.fit.inner_bytes_of(tuple(inner), space.mapping, space.atom)
    return np.broadcast_to(needed <= space.fit.lane_bytes(space.spec.levels[last], space.atom), inner.shape[1:])


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


def chains_around(space: TileSpace, inner: Tiles, able: Able | None = None, often: int = 1) -> Chains:
    """Returns the chains of coarse multiples around innermost tiles.

    `able` says of chains whether longer extents may fit. It keeps the number of chains small, so that multiples may be finer.
    `often`: so many times the usual number of chains.

    Extents are aligned, except that one dimension of a tile may be as long as in the tile inside. Where each unit takes a run of
    tiles, one dimension may also be cut into as many parts as there are units.
    """
    chains = [inner]
    for position in reversed(range(len(space.levels) - 1)):
        budget, found = max(1, often * OUTER >> position), list[Chains]()
        base, times = _bases(space, position, chains[0])
        apart = [dim for dim in np.flatnonzero(np.any(base != chains[0], axis=1)).tolist() if position or dim not in space.named]
        for own in (None, *apart):
            around = partial(_around, chains, *_with_own(chains[0], base, times, own))
            several = budget if own is None else max(1, budget // (2 * len(apart)))
            found.append(around(several) if able is None else _finest(around, several, able))
        if not position and space.lane_level is None:
            found += list(_in_parts(chains, base, times, space.spec.unit.count, budget))
        chains = joined(found)
    return with_named(space, chains)


def _with_own(tiles: Tiles, base: Tiles, times: Tiles, own: int | None) -> tuple[Tiles, Tiles]:
    """Returns bases and their most multiples where one dimension, if any, is as long as inside."""
    if own is None:
        return base, times
    base, times = base.copy(), times.copy()
    base[own], times[own] = tiles[own], 1
    return base, times


def _in_parts(chains: Chains, base: Tiles, times: Tiles, parts: int, budget: int) -> Iterator[Chains]:
    """Yields chains of which one dimension is cut into so many parts, where its coarse multiples do not do that."""
    shares = -(-times // parts)
    differs = (shares & (shares - 1) != 0) & (shares < times)
    dims = np.flatnonzero(differs.any(axis=1)).tolist()
    for dim in dims:
        some = differs[dim]
        longer, several = base[:, some], times[:, some]
        longer[dim], several[dim] = longer[dim] * shares[dim, some], 1
        yield _around([level[:, some] for level in chains], longer, several, max(1, budget // (2 * len(dims))))


def even_chains(space: TileSpace, inner: Tiles, most: int, able: Able, steps: bool) -> Chains:
    """Returns the chains whose units' tiles cut the results into equal parts, at most `most` of them, around one innermost tile.

    Reductions are whole, or with `steps` as long as a unit has room for. Where there are too many, some sizes are left out.
    """
    nest = space.nest
    unit, parts = np.array(nest.extents, dtype=np.int64)[:, None], np.ones(1, dtype=np.int64)
    for dim in (*nest.reduce, *nest.spatial):
        rule, least = space.rules.multiple(space.levels[0], nest.dims[dim].name), int(inner[dim, 0])
        if nest.dims[dim].is_reduce:
            unit[dim] = extents(space, 0, dim, least)[-1]
            continue
        sizes = np.array(even_extents(nest.extents[dim], least, rule), dtype=np.int64)
        coarser = -(-len(parts) * len(sizes) // (OUTER << FINER))
        sizes = sizes[(len(sizes) - 1) % coarser :: coarser]  # the whole dimension stays
        unit, parts = np.repeat(unit, len(sizes), axis=1), np.repeat(parts, len(sizes))
        unit[dim] = np.tile(sizes, len(parts) // len(sizes))
        parts = parts * -(-nest.extents[dim] // unit[dim])
        unit, parts = unit[:, parts <= most], parts[parts <= most]
    chains = [unit, np.repeat(inner, unit.shape[1], axis=1)]
    fits = able(chains)
    if steps:
        return _shortened(space, [tile[:, ~fits] for tile in chains], able)
    return [tile[:, fits] for tile in chains]


def _shortened(space: TileSpace, chains: Chains, able: Able) -> Chains:
    """Returns the chains with reductions halved, the outermost one first, until they are able; without those that never are."""
    unit, inner = chains
    bad = ~able(chains)
    for dim in [d for d in space.nest.reduce if d not in space.named]:
        while True:
            steps = unit[dim] // np.maximum(inner[dim], 1)
            halved = bad & (steps > 1)
            if not halved.any():
                break
            unit[dim] = np.where(halved, -(-steps // 2) * inner[dim], unit[dim])
            bad = ~able(chains)
    return [unit[:, ~bad], inner[:, ~bad]]


def _finest(around: Callable[..., Chains], budget: int, able: Able) -> Chains:
    """Returns the chains of the finest multiples that are not many more than the budget."""
    found: Chains = []
    for octaves in range(FINER, -1, -2):
        found = around(budget << octaves, able, 2 * budget)
        if found[0].shape[1] <= budget:
            break
    return found


def _around(chains: Chains, base: Tiles, times: Tiles, count: int, able: Able | None = None, most: float = math.inf) -> Chains:
    """Returns chains with about `count` tiles of a level around the tiles of others: multiples of `base`, up to `times` of it.

    `most`: it stops, with some of them, where more than so many are able.
    """
    tiles = chains[0]
    steps = _multiples(times.max(axis=1, initial=1), max(1, count // max(1, tiles.shape[1])))
    outer, places = base, np.arange(tiles.shape[1])
    for dim, multiples in enumerate(steps):
        last = np.repeat(times[dim, places], len(multiples))
        wanted, before = (np.tile(np.array(m, dtype=np.int64), len(places)) for m in (multiples, [0, *multiples[:-1]]))
        outer, places = np.repeat(outer, len(multiples), axis=1), np.repeat(places, len(multiples))
        outer[dim] *= np.minimum(wanted, last)
        different = before < last
        outer, places = outer[:, different], places[different]
        if able is not None and len(multiples) > 1:
            fitting = able([outer, *[level[:, places] for level in chains]])
            outer, places = outer[:, fitting], places[fitting]
            if outer.shape[1] > most:
                break
    return [outer, *[level[:, places] for level in chains]]


def _bases(space: TileSpace, position: int, tiles: Tiles) -> tuple[Tiles, Tiles]:
    """Returns the extents around tiles of which others are multiples, and how many times these extents others may be."""
    base, most = tiles.copy(), np.ones_like(tiles)
    for dim, extent in enumerate(space.nest.extents):
        rule = space.rules.multiple(space.levels[position], space.nest.dims[dim].name)
        limit = space.fit.limits.get((space.levels[position], dim), max(extent, 1) + int(tiles[dim].max(initial=1)) * rule.step)
        aligned = rule.around(tiles[dim])
        base[dim] = np.where(aligned <= limit, aligned, tiles[dim])
        most[dim] = np.maximum(1, np.minimum(-(-extent // np.maximum(base[dim], 1)), limit // np.maximum(base[dim], 1)))
    return base, most


def _multiples(most: Tiles, count: int) -> list[list[int]]:
    """Returns for each dimension multiples of the inner extent up to `most`, about `count` combinations of them.

    They are powers of two, of four, of eight …
    """
    for step in range(1, int(most.max(initial=1)).bit_length() + 1):
        found = [[1 << n for n in range(0, int(m - 1).bit_length(), step)] + [int(m)] if m > 1 else [1] for m in most]
        if math.prod(map(len, found)) <= count:
            break
    return found
