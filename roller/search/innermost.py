"""The innermost tiles that construction starts from: grown for every nest, atom and mapping, rated by what they compute and read,
and the best kept that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from roller.ir.nest import Tile
from roller.layout.banks import most_together
from roller.search.choices import program_of, required_staging
from roller.search.grow import grow
from roller.search.tile_space import Chain, TileSpace, packs, reads_whole, start, stores_whole

INNER_KEEP = 8  # tiles kept, where none run on lanes, beside the best one of each nest, atom and mapping
SAME_SIZE = 8  # tiles of about one size that are kept where tiles run on lanes, each of another shape
SAME_WINDOWED = 4  # … of those that panels of windows are read for: half as many, as there are fewer ways to fuse axes around them
MAPPING_SLACK = 1.5  # a tile predicted this much slower than the best one is not pursued
OWN_SLACK = 4.0  # … where the device has a model of its own, of which this one knows too little
RUN_WIDTHS = (4, 16)  # positions of a reduction, each of another row, that a lane reads at once; more are more time
PACKED_GAIN = 0.97  # a vector where only a copy is side by side must save this much padding, as its results are scattered


class _Inner(NamedTuple):
    """An innermost tile: its part of the prediction, what it touches, and which tile space it belongs to; the least is the best."""

    seconds: float
    touched: int
    number: int
    chain: Chain


def innermost(found: list[TileSpace]) -> Iterator[tuple[TileSpace, list[Chain]]]:
    """Yields the tile spaces with their innermost tiles worth pursuing, over all nests, atoms and mappings together."""
    hidden = found[0].model.compulsory_seconds if found else 0.0  # moving every array once hides work that takes no longer
    floors = [max(hidden, s.model.floor_seconds(program_of(s, s.levels[-1:], (start(s),)))) for s in found]
    rated: list[_Inner] = []
    worth = _worth_packing(found, floors)
    # Lanes that share reductions have the same tiles: their value appears when the unit's tile is chosen.
    grown: dict[tuple[object, ...], list[tuple[float, int, Tile]]] = {}
    for number, space in enumerate(found):
        if floors[number] > _slack(space) * min(floors) or (packs(space) and floors[number] > worth and not space.spec.spread):
            continue
        runs = _runs(space) if floors[number] <= hidden else ()
        alike = space.nest.dims, space.atom.name, space.mapping, space.fit.windowed, runs
        if alike not in grown:
            grown[alike] = list(_grown_innermost(space, runs))
        rated += [_Inner(seconds, touched, number, (tile,)) for seconds, touched, tile in grown[alike]]
    rated.sort()
    kept = _several_sizes(found, rated, hidden)
    for number, space in enumerate(found):
        chains = [item.chain for item in kept if item.number == number]
        if chains:
            yield space, chains


def _grown_innermost(space: TileSpace, runs: tuple[tuple[int, int], ...]) -> Iterator[tuple[float, int, Tile]]:
    """Yields innermost tiles, with and without runs of a reduction: partial seconds, bytes touched, tile."""
    position = len(space.levels) - 1
    for grown in grow(space, position, start(space)):
        for tile in (grown, *[(*grown[:dim], width, *grown[dim + 1 :]) for dim, width in runs]):
            program = program_of(space, space.levels[-1:], (tile,))
            if tile is grown or space.fit.fits(space.levels, position, tile, tile, space.mapping, space.atom):
                yield space.model.partial_seconds(program, space.levels[-1]), space.fit.touched_bytes(tile), tile


def _runs(space: TileSpace) -> tuple[tuple[int, int], ...]:
    """Returns runs of a shared reduction that a lane may read at once: a dimension, and a number of its positions.

    Growth, which looks for reuse, does not reach them: they make accesses fewer or concurrent, and leave the traffic as it is.
    Along a reduction in which an array is contiguous and read in place, a run is as long as the widest access. If each position is
    an access of its own, runs are as long as `RUN_WIDTHS`.
    """
    nest = space.nest
    if not space.fit.cooperate or space.atom.kind != "scalar" or space.fit.windowed:
        return ()
    alone = [a for a in nest.inputs if not a.guarded and not space.fit.reused(a.touches)]
    wide = [
        (math.gcd(most_together(access.tensor.dtype), nest.extents[dim]), dim)
        for dim in nest.reduce
        for access in alone
        if access.strides[dim] == 1
    ]
    if wide:
        width, dim = min(wide)
        return ((dim, width),) if width > 1 else ()
    walked = [dim for dim in nest.reduce if any(access.touches[dim] for access in alone)]
    return tuple((walked[-1], width) for width in RUN_WIDTHS if width <= nest.extents[walked[-1]]) if walked else ()


def _slack(space: TileSpace) -> float:
    return MAPPING_SLACK if space.model.parameters.own_model is None else OWN_SLACK


def _worth_packing(found: list[TileSpace], floors: list[float]) -> float:
    """Returns the floor (seconds) below which a mapping may need a copy to make its vector contiguous.

    It is infinite if no mapping that stores whole vectors reads its inputs in place. Otherwise the mapping must save padding, as
    its stores are scattered.
    """
    whole = [(f, reads_whole(s)) for f, s in zip(floors, found, strict=True) if stores_whole(s)]
    if not any(reads for _, reads in whole):
        return math.inf
    return PACKED_GAIN * min(floor for floor, _ in whole)


def _several_sizes(found: list[TileSpace], rated: list[_Inner], hidden: float) -> list[_Inner]:
    """Returns the best innermost tiles. On lanes it keeps some of every size, as only large ones leave lanes and units idle, and
    some of every atom, as an atom's value appears when the unit's tile is chosen.
    """
    if not any(s.lane_level is not None for s in found):
        first = {item.number: item for item in reversed(rated)}  # the best of each nest, atom and mapping
        # Where memory decides, this part of the prediction tells them apart less.
        keep = 2 * INNER_KEEP if rated and rated[0].seconds < hidden else INNER_KEEP
        worth = dict.fromkeys([*rated[:keep], *(first[n] for n in sorted(first))])
        return [item for item in worth if item.seconds <= _slack(found[item.number]) * max(rated[0].seconds, hidden)]
    copied = [_copied(space) for space in found]
    shapes: dict[tuple[int, bool, bool], set[tuple[object, ...]]] = {}
    atoms: set[tuple[str, bool, bool]] = set()
    kept = []
    for item in rated:
        space, tile = found[item.number], item.chain[-1]
        # This part of the prediction does not tell shared reductions from others, and differs for windowed panels: neither kind
        # displaces the other.
        seen = shapes.setdefault((math.prod(tile).bit_length(), space.fit.cooperate, space.fit.windowed), set())
        shape = space.atom.kind, copied[item.number], _shape(space, tile)
        own = space.atom.name, space.fit.cooperate, space.fit.windowed
        if own not in atoms or (len(seen) < (SAME_WINDOWED if space.fit.windowed else SAME_SIZE) and shape not in seen):
            seen.add(shape)
            atoms.add(own)
            kept.append(item)
    return kept


def _copied(space: TileSpace) -> frozenset[tuple[str, int]]:
    """Returns the operands that the nest reads from copies, for any tile.

    A mapping may need a copy that another one does not, and the partial prediction does not charge copies.
    """
    levels = space.levels
    return frozenset((s.kind, s.operand) for s in required_staging(space, levels, (start(space),) * len(levels), pad=False))


def _shape(space: TileSpace, tile: Tile) -> frozenset[tuple[tuple[bool, ...], int]]:
    """Returns the determinants of reuse: a tile's points along each set of dimensions that the same arrays depend on.

    Other mappings, and nests with other fused axes, repeat much the same tiles.
    """
    points: dict[tuple[bool, ...], int] = {}
    for dim, extent in enumerate(tile):
        touched = tuple([access.touches[dim] for access in space.nest.accesses])
        points[touched] = points.get(touched, 1) * extent
    return frozenset(item for item in points.items() if item[1] > 1)
