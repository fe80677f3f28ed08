"""Selection of tile chains (one tile for each level): the best of those on the screen's short lists, as the model rates them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from roller.ir.nest import Tile
from roller.program.rprogram import StageProgram
from roller.search.choices import program_of, split
from roller.search.screen import short_lists, trusted
from roller.search.tile_space import Chain, TileSpace

OUTER_KEEP = 8  # chains of a tile space that are kept
EACH_KEEP = 3  # at most, for each innermost tile: a nest or mapping with only few of these is not likely to be the best
# Without a trusted screen and with many innermost tiles, the model first rates some chains around each of them: the `SMALLEST`
# first of the growth path, and every one in `SAMPLED` along it. Then it rates all chains around the `PROMISING` best innermost
# tiles.
SMALLEST, SAMPLED, PROMISING = 3, 8, 12


_RatedChain = tuple[float, int, Chain]


def kept_of(innermost_tiles: list[Chain]) -> int:
    """Returns how many chains of a tile space are kept: fewer around few innermost tiles."""
    return min(OUTER_KEEP, EACH_KEEP * len(innermost_tiles))


def best_chains(pursued: list[tuple[TileSpace, list[Chain]]], grown: list[list[Chain]]) -> list[list[Chain]]:
    """Returns the best chains of each tile space, among those that the model rates."""
    keep = [kept_of(chains) for _, chains in pursued]
    every = [space for space, _ in pursued]
    if not all(trusted(space) for space in every):
        return [_several_inner(_sampled(s, c))[:k] for s, c, k in zip(every, grown, keep, strict=True)]
    for lists in short_lists(every, grown):
        rated = [_rated(space, chains) for space, chains in zip(every, lists, strict=True)]
        if any(rated):
            return [_several_inner(sorted(mine))[:k] for mine, k in zip(rated, keep, strict=True)]
    return [[] for _ in every]


def _sampled(space: TileSpace, chains: list[Chain]) -> list[_RatedChain]:
    """Returns rated chains, the best first, where the screen does not distinguish them.

    With many innermost tiles it first rates some chains along each growth path, then all chains around the best innermost tiles.
    """
    around: dict[Tile, list[Chain]] = {}
    for chain in chains:
        around.setdefault(chain[-1], []).append(chain)
    if len(around) <= PROMISING:
        return sorted(_rated(space, chains))
    first = dict.fromkeys(chain for path in around.values() for chain in (*path[::-SAMPLED], *path[:SMALLEST]))
    found = sorted(_rated(space, first))
    promising = [*dict.fromkeys(chain[-1] for *_, chain in found)][:PROMISING]
    others = [chain for inner in promising for chain in around[inner] if chain not in first]
    return sorted([*found, *_rated(space, others)])


def _rated(space: TileSpace, chains: Iterable[Chain]) -> list[_RatedChain]:
    """Returns the chains with the seconds of the best program of each, except those that would be best but do not fit a unit."""
    found, best = [], math.inf
    for chain in chains:
        program = program_of(space, space.levels, chain)
        seconds = min(space.model.estimate(p).seconds for p in (program, *split(space, program)))
        if seconds < best:
            if not runs(space, program):
                continue
            best = seconds
        found.append((seconds, space.fit.touched_bytes(chain[-1]), chain))
    return found


def _several_inner(rated: list[_RatedChain]) -> list[Chain]:
    """Returns the chains, the best first, with only the best few of each innermost tile.

    Copies are tried later, and may gain more for another innermost tile.
    """
    seen: Counter[Tile] = Counter()
    found = []
    for *_, chain in rated:
        seen[chain[-1]] += 1
        if seen[chain[-1]] <= EACH_KEEP:
            found.append(chain)
    return found


def runs(space: TileSpace, program: StageProgram) -> bool:
    """Returns False, and counts it, where the device predicts that a unit has no room for a tile of the program."""
    room = space.model.parameters.resident_tiles
    if room is None or room(program) > 0:
        return True
    space.refusals["room"] += 1
    return False


__all__ = ["best_chains", "kept_of", "runs"]
