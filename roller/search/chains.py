"""The chains of tiles of which programs are made: those on the short lists of the screen, as the model rates them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from roller.ir.nest import Tile
from roller.program.rprogram import StageProgram
from roller.search.choices import program_of, split
from roller.search.screen import short_lists, trusted
from roller.search.tile_space import Chain, Search

OUTER_KEEP = 8  # chains of a search that are kept
EACH_KEEP = 3  # … and of one innermost tile at most so many: a nest or mapping that brought only few is not likely to be the best
# Where the screen does not tell chains apart: of those around each of many innermost tiles so many are rated first, from the begin
# of their path of growth, and each of so many along it; then all around so many innermost tiles.
SMALLEST, SAMPLED, PROMISING = 3, 8, 12


_RatedChain = tuple[float, int, Chain]


def kept_of(innermost_tiles: list[Chain]) -> int:
    """How many chains of a search are kept: fewer around few innermost tiles."""
    return min(OUTER_KEEP, EACH_KEEP * len(innermost_tiles))


def best_chains(pursued: list[tuple[Search, list[Chain]]], grown: list[list[Chain]]) -> list[list[Chain]]:
    """Of each search the best chains, of those that the model rates."""
    keep = [kept_of(chains) for _, chains in pursued]
    every = [search for search, _ in pursued]
    if not all(trusted(search) for search in every):
        return [_several_inner(_sampled(s, c))[:k] for s, c, k in zip(every, grown, keep, strict=True)]
    for lists in short_lists(every, grown):
        rated = [_rated(search, chains) for search, chains in zip(every, lists, strict=True)]
        if any(rated):
            return [_several_inner(sorted(mine))[:k] for mine, k in zip(rated, keep, strict=True)]
    return [[] for _ in every]


def _sampled(search: Search, chains: list[Chain]) -> list[_RatedChain]:
    """Rated chains, the best first, where the screen does not tell them apart. Around many innermost tiles first some along each
    path of growth; then all around the innermost tiles that turned out best.
    """
    around: dict[Tile, list[Chain]] = {}
    for chain in chains:
        around.setdefault(chain[-1], []).append(chain)
    if len(around) <= PROMISING:
        return sorted(_rated(search, chains))
    first = dict.fromkeys(chain for path in around.values() for chain in (*path[::-SAMPLED], *path[:SMALLEST]))
    found = sorted(_rated(search, first))
    promising = [*dict.fromkeys(chain[-1] for *_, chain in found)][:PROMISING]
    others = [chain for inner in promising for chain in around[inner] if chain not in first]
    return sorted([*found, *_rated(search, others)])


def _rated(search: Search, chains: Iterable[Chain]) -> list[_RatedChain]:
    """The chains with the seconds of what is best made of each; without those that would be the best and have no room on a unit."""
    found, best = [], math.inf
    for chain in chains:
        program = program_of(search, search.levels, chain)
        seconds = min(search.model.estimate(p).seconds for p in (program, *split(search, program)))
        if seconds < best:
            if not runs(search, program):
                continue
            best = seconds
        found.append((seconds, search.fit.touched_bytes(chain[-1]), chain))
    return found


def _several_inner(rated: list[_RatedChain]) -> list[Chain]:
    """Chains, the best first, with only the best few of one innermost tile: copies, which are tried later, may do more for another
    one.
    """
    seen: Counter[Tile] = Counter()
    found = []
    for *_, chain in rated:
        seen[chain[-1]] += 1
        if seen[chain[-1]] <= EACH_KEEP:
            found.append(chain)
    return found


def runs(search: Search, program: StageProgram) -> bool:
    """False where the device predicts that a unit has no room for a tile of the program; that is counted."""
    room = search.model.parameters.resident_tiles
    if room is None or room(program) > 0:
        return True
    search.refusals["room"] += 1
    return False


__all__ = ["best_chains", "kept_of", "runs"]
