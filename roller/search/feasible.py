"""Feasibility by a device's own model: whether it rules out a way to compute, and why nothing fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

from roller.ir.nest import Tile
from roller.program.estimate import Estimate
from roller.search.choices import program_of
from roller.search.tile_space import TileSpace, start


def hopeless(space: TileSpace) -> bool:
    """True if the device's own model rejects even the smallest tiles for another reason than room.

    The device then cannot compute this way at all. The only term of the estimate is the reason.
    """
    if space.model.parameters.own_model is None:
        return False
    found = _least(space)
    if math.isfinite(found.seconds) or found.bound_by == space.fit.rule(space.levels, 0):
        return False
    space.refusals[found.bound_by] += 1
    return True


def _least(space: TileSpace) -> Estimate:
    """Returns the better of two predictions: for the smallest tiles, and for these with whole reductions."""
    return min(islice(_small(space), 2), key=lambda e: e.seconds)


def _small(space: TileSpace) -> Iterator[Estimate]:
    """Yields predictions for tiles from the smallest up, with spatial extents doubled in turn; each with whole reductions, too."""
    inner = start(space)
    tile = list(_least_tile(space, inner))
    spatial, reduce, extents = space.nest.spatial, space.nest.reduce, space.nest.extents
    while True:
        for dim in (None, *spatial):
            if dim is not None and tile[dim] < extents[dim]:
                tile[dim] *= 2
            whole = tuple([-(-extents[d] // e) * e if d in reduce and e else e for d, e in enumerate(tile)])
            for unit in (tuple(tile), whole):
                yield space.model.estimate(program_of(space, space.levels, (unit, *[inner] * (len(space.levels) - 1))))
        if all(tile[dim] >= extents[dim] for dim in spatial):
            return


def _least_tile(space: TileSpace, inner: Tile) -> Tile:
    """Returns the smallest tile of a unit: the innermost one, or the least extents where a rule lists the allowed ones."""
    steps = [space.rules.multiple(space.levels[0], dim.name) for dim in space.nest.dims]
    return tuple([math.lcm(e, m.step) if m.even and e else e for e, m in zip(inner, steps, strict=True)])


def reason_of(every: list[TileSpace], refused: Mapping[str, int]) -> str:
    """Returns the reason why the device's own model rejects small tiles; empty without such a model.

    It is the reason against the tile that lacks least memory, as only room is missing there. Else it is that of the rule that
    refused most.
    """
    if not every or every[0].model.parameters.own_model is None:
        return ""
    said = [found for space in every for found in _small(space) if found.reason]
    short = min((found for found in said if found.short_bytes), key=lambda found: found.short_bytes, default=None)
    most = max(said, key=lambda found: refused.get(found.bound_by, 0), default=None)
    best = short or most
    return best.reason if best is not None else ""
