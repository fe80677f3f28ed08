"""Growing tiles at one level: the dimension with the best data-reuse score first, to its next aligned extent.

Score of growing dimension a:  S_a = (Q(T) - Q(T + a)) / (F(T + a) - F(T))  with Q the operator's whole traffic into the level
and F the tile's footprint (ROLLER, section 3.3, at the next aligned size).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from roller.align import next_aligned
from roller.cost import accumulators
from roller.nest import Access, Nest, Tile
from roller.program import StageProgram
from roller.search import Search
from roller.tile import padding_waste

EPSILONS = (0.125, math.inf)  # rounds of tensor padding; each admits more waste
INNER_VISITS = 40  # tiles looked at by one growth at the innermost level: its lattice is small
OUTER_VISITS = 24  # … at an outer level, where growth follows one path
IDLE_GROWTH = 4  # growth goes on below full occupation to this share of it: fewer, larger tiles may still be faster
REDUCE_STEPS = 2  # largest reduce extents that are kept for a tile
STREAM_ROWS = 8  # rows of a streamed input read side by side: as many as prefetchers follow
LARGEST = 2  # last tiles of a growth path that are kept, beside one for every doubling of its length
BOUND_SLACK = 0.02  # memory no longer bounds when what it adds is less than this share of compute


def tiles_at(search: Search, position: int, inner: Tile) -> Iterator[Tile]:
    """The tiles worth keeping at a level around an inner one: a spread of the growth path with its reduce extents."""
    yield from _spread(search, position, inner, grow(search, position, inner))


def grow(search: Search, position: int, inner: Tile) -> list[Tile]:
    """Tiles at one level, reached by growing the best-scored dimension first; every padding round in turn."""
    seen: dict[Tile, None] = {}
    if search.levels[position] == len(search.spec.levels):
        return [inner]  # the atom itself
    visits = INNER_VISITS if position == len(search.levels) - 1 else OUTER_VISITS
    if not search.fit.fits(search.levels, position, inner, inner, search.mapping, search.atom):
        search.refusals[search.fit.rule(search.levels, position)] += 1
        return []
    for epsilon in EPSILONS if _pads(search, position) else EPSILONS[-1:]:
        _grow_round(search, position, inner, epsilon, visits, seen)
    return list(seen)


def _pads(search: Search, position: int) -> bool:
    """True if tiles of this level run whole, so that their extents decide how much padding is executed."""
    return position == len(search.levels) - 1 or search.lane_level is not None


def _grow_round(search: Search, position: int, inner: Tile, epsilon: float, visits: int, seen: dict[Tile, None]) -> None:
    """One round at one padding allowance: best score first, at most `visits` new tiles; adds to `seen`."""
    frontier, done = [(0.0, inner)], set[Tile]()
    while frontier and visits:
        frontier.sort(key=lambda item: (-item[0], item[1]))
        _, tile = frontier.pop(0)
        if tile in done:
            continue
        done.add(tile)
        visits -= 1
        seen[tile] = None
        # The innermost level is small enough to look around; further out one path is followed, as in the paper.
        siblings = frontier if position == len(search.levels) - 1 else []
        frontier = siblings + (
            list(_steps(search, position, inner, tile, epsilon)) if _memory_bounds(search, position, tile) else []
        )


def _legal(search: Search, position: int, inner: Tile, tile: Tile) -> bool:
    broken = search.fit.legal(search.levels, position, tile, inner, search.mapping, search.atom)
    if broken is not None:
        search.refusals[broken] += 1
    return broken is None


def _steps(search: Search, position: int, inner: Tile, tile: Tile, epsilon: float) -> Iterator[tuple[float, Tile]]:
    """The next aligned tiles of a tile with their reuse scores."""
    nest, innermost = search.nest, position == len(search.levels) - 1
    traffic, footprint = search.fit.traffic(search.levels, position, tile), _footprint(search, position, tile, inner)
    for dim in range(len(nest.dims)):
        if nest.dims[dim].is_reduce and not (innermost and any(d == dim for _, d in search.mapping)):
            continue
        grown = _next_tile(search, position, inner, tile, dim, epsilon)
        if grown is None:
            continue
        if not search.fit.fits(search.levels, position, grown, inner, search.mapping, search.atom):
            search.refusals[search.fit.rule(search.levels, position)] += 1
            continue
        if position == 0 and _too_few(search, tile, inner) and _too_few(search, grown, inner):
            search.refusals["parallelism"] += 1
            continue
        saved = traffic - search.fit.traffic(search.levels, position, grown)
        added = _footprint(search, position, grown, inner) - footprint
        score = math.inf if saved > 0 >= added else saved / max(added, 1e-9)
        yield score, grown


def _too_few(search: Search, tile: Tile, inner: Tile) -> bool:
    """True if the tiles leave most units idle, even with the reduction cut over units where units can combine."""
    parts = math.prod([-(-search.nest.extents[i] // inner[i]) for i in search.nest.reduce]) if search.spec.unit.combine else 1
    return search.fit.tiles(tile) * parts * IDLE_GROWTH < search.spec.unit.count


def _footprint(search: Search, position: int, tile: Tile, inner: Tile) -> int:
    if position == len(search.levels) - 1:
        return search.fit.inner_bytes(tile, search.mapping, search.atom)
    return search.fit.footprint(search.levels, position, tile, inner)


def _next_tile(search: Search, position: int, inner: Tile, tile: Tile, dim: int, epsilon: float) -> Tile | None:
    """The tile with one dimension at its next aligned extent that keeps padding within the allowance."""
    nest = search.nest
    multiple = search.rules.multiple(search.levels[position], nest.dims[dim].name)
    allowed = max(epsilon, padding_waste(nest.extents, inner)) + 1e-9
    extent: int | None = tile[dim]
    while extent is not None:
        extent = next_aligned(nest.extents[dim], inner[dim], extent, multiple)
        if extent is None or (extent > nest.extents[dim] and search.atom.kind != "matrix" and position == len(search.levels) - 1):
            return None
        grown = (*tile[:dim], extent, *tile[dim + 1 :])
        if not _lane_shape(search, position, dim, grown, inner):
            continue
        if not _pads(search, position) or padding_waste(nest.extents, grown) <= allowed:
            return grown
    return None


def _lane_shape(search: Search, position: int, dim: int, tile: Tile, inner: Tile) -> bool:
    """True unless the sub-tiles along the dimension run on lanes and are no power of two: whole groups come of such shapes."""
    if search.lane_level is None or position != len(search.levels) - 2 or search.spec.unit.lanes_fixed:
        return True
    count = -(-tile[dim] // inner[dim])
    return count & (count - 1) == 0


def _memory_bounds(search: Search, position: int, tile: Tile) -> bool:
    """False once growing further cannot help: what loads add to compute is negligible and all chains are busy."""
    program = StageProgram(
        search.nest,
        search.atom,
        search.mapping,
        search.levels[-1:],
        (tile,),
        (tuple(range(len(tile))),),
        lane_level=search.lane_level,
    )
    if position == len(search.levels) - 1:
        if search.nest.stage.reducer is not None and search.model.chain_efficiency(program) < 1:
            return True
        return accumulators(program) >= 1
    rate = search.atom.gflops * 1e9 / 2
    compute = math.prod(search.nest.extents) / rate
    bandwidth = search.spec.levels[search.levels[position]].bandwidth_gbps or 1.0
    load = search.fit.traffic(search.levels, position, tile) / (bandwidth * 1e9)
    return max(0.0, load - compute) + search.spec.overlap_loss * load >= BOUND_SLACK * compute


def _spread(search: Search, position: int, inner: Tile, tiles: list[Tile]) -> Iterator[Tile]:
    """Each tile with the reduce extents worth trying at this level."""
    units = search.spec.unit.count
    busy = [search.fit.tiles(t) >= units for t in tiles]
    edge = [i for i in range(len(tiles)) if busy[i] != busy[min(i + 1, len(tiles) - 1)] or (i and busy[i] != busy[i - 1])]
    kept = [i for i in range(len(tiles)) if i >= len(tiles) - LARGEST or i & (i + 1) == 0 or i in edge]
    chosen = [tiles[i] for i in kept]
    for tile in chosen:
        deeper = _with_reduce(search, position, inner, tile) if search.nest.reduce else (tile,)
        yield from (t for t in deeper if _legal(search, position, inner, t))


def _with_reduce(search: Search, position: int, inner: Tile, tile: Tile) -> Iterator[Tile]:
    """The tile with reduce extents doubled as long as it fits: the largest three, and the whole where the level is a cache.

    Where an input streams, also a short extent: its rows are then read side by side, each along its whole length.
    """
    steps = [tile]
    if not search.spec.levels[search.levels[position]].managed:
        yield from _short(search, inner, tile)
    managed = search.spec.levels[search.levels[position]].managed
    for dim in reversed(search.nest.reduce):
        while True:
            last = steps[-1]
            whole = -(-search.nest.extents[dim] // inner[dim]) * inner[dim]
            extent = min(last[dim] * 2, whole)
            if extent <= last[dim]:
                break
            grown = (*last[:dim], extent, *last[dim + 1 :])
            if managed and not search.fit.fits(search.levels, position, grown, inner, search.mapping, search.atom):
                yield from steps[-REDUCE_STEPS - 1 :]
                return
            steps.append(grown)
    yield from steps[-REDUCE_STEPS:]


def _streams(nest: Nest) -> list[Access]:
    """The inputs that are read once: every dimension moves on in them."""
    wide = [i for i, e in enumerate(nest.extents) if e > 1]
    return [a for a in nest.inputs if all(a.touches[i] for i in wide)]


def _short(search: Search, inner: Tile, tile: Tile) -> Iterator[Tile]:
    """The tile with `STREAM_ROWS` steps of the longest reduction that a stream's rows do not lie along."""
    nest = search.nest
    across = [i for i in nest.reduce if any(a.strides[i] != 1 for a in _streams(nest))]
    if across:
        dim = max(across, key=lambda i: (nest.extents[i], i))
        extent = min(STREAM_ROWS, nest.extents[dim] // inner[dim]) * inner[dim]
        if extent > tile[dim]:
            yield (*tile[:dim], extent, *tile[dim + 1 :])
