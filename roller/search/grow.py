"""Growing tiles at one level: the dimension with the best data-reuse score first, to its next aligned extent.

Score of growing dimension a:  S_a = (Q(T) - Q(T + a)) / (F(T + a) - F(T))  with Q the operator's whole traffic into the level
and F the tile's footprint (ROLLER, section 3.2, at the next aligned size).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush

from roller.ir.nest import Access, Nest, Tile
from roller.ir.sliding_windows import every_window, sliding
from roller.program.alignment import aligned_extents, allows_padding, even_extents
from roller.program.footprint import padding_waste
from roller.search.tile_space import TileSpace

EPSILONS = (0.0, 0.125, math.inf)  # rounds of tensor padding; each admits more waste
INNER_VISITS = 40  # tiles visited by one growth at the innermost level: its lattice is small
# Where tiles run on lanes: more visits, to tiles of sizes with fewer visits than `RARE`, as growth by reuse skips shapes of these.
RARE_VISITS, RARE = 24, 5
OUTER_VISITS = 24  # tiles visited at an outer level, where growth follows one path
IDLE_GROWTH = 4  # growth goes on below full use of the units, to one in this many: fewer, larger tiles may still be faster
# In a cache: the number of largest reduce extents kept for a tile, and of last tiles of a growth path, kept beside one for every
# doubling of its length. Where software places data it is one each, as `roller.search.local_search` continues from there.
REDUCE_STEPS, LARGEST = 2, 2
EVEN_SLACK = 0.02  # share of the units' time by which the load balance must differ to decide
SIDE_BY_SIDE = 8  # rows of a stream that are walked together: enough to keep memory busy, few enough for any cache's sets
BOUND_SLACK = 0.02  # memory no longer bounds when it adds less than this share of compute


def tiles_at(space: TileSpace, position: int, inner: Tile) -> Iterator[Tile]:
    """Yields the tiles worth keeping at a level around an inner one: a spread of the growth path with its reduce extents."""
    yield from _spread(space, position, inner, grow(space, position, inner))


def grow(space: TileSpace, position: int, inner: Tile) -> list[Tile]:
    """Returns the tiles at one level that growth reaches, the best-scored dimension first, in every padding round in turn."""
    if space.levels[position] == len(space.spec.levels):
        return [inner]  # the atom itself
    if not space.fit.fits(space.levels, position, inner, inner, space.mapping, space.atom):
        space.refusals[space.fit.rule(space.levels, position)] += 1
        return []
    level = _Level(space, position, inner)
    seen: dict[Tile, None] = {}
    for epsilon in EPSILONS if level.pads else EPSILONS[-1:]:
        level.grow(epsilon, seen)
        if not level.padded:
            break  # a larger allowance admits nothing more
    return list(seen)


class _Level:
    """Growth at one level around one inner tile; scores of steps are cached from round to round."""

    def __init__(self, space: TileSpace, position: int, inner: Tile) -> None:
        nest = space.nest
        self.space, self.position, self.inner = space, position, inner
        self.innermost = position == len(space.levels) - 1
        self.on_lanes = self.innermost and space.lane_level is not None and space.atom.kind == "scalar"
        self.pads = self.innermost or space.lane_level is not None  # tiles run whole: extents decide how much padding is executed
        self.padded = False  # True once an extent was refused because it pads too much
        self._scores: dict[tuple[Tile, Tile], float | None] = {}
        lanes = {dim for _, dim in space.mapping}
        dims = [d for d, dim in enumerate(nest.dims) if not dim.is_reduce or (self.innermost and d in lanes)]
        self._extents = {d: self._aligned(d) for d in dims}
        self._windows = [] if self.innermost or space.spec.levels[space.levels[position]].managed else sliding(nest)
        self._least_waste = padding_waste(nest.extents, inner)
        self._start = inner if self.innermost else _first(space, position, inner)

    def _aligned(self, dim: int) -> tuple[int, ...]:
        extents = extents_at(self.space, self.position, dim, self.inner)
        if (self.innermost and self.space.atom.kind != "matrix") or self.space.fit.windowed:
            return tuple([e for e in extents if e <= self.space.nest.extents[dim]])
        return tuple(extents)

    def grow(self, epsilon: float, seen: dict[Tile, None]) -> None:
        """Runs one round at one padding allowance: best score first, a bounded number of new tiles; adds to `seen`."""
        visits, rare = (INNER_VISITS, RARE_VISITS if self.on_lanes else 0) if self.innermost else (OUTER_VISITS, 0)
        self.padded = False
        frontier, done, sizes = [(0.0, self._start)], set[Tile](), Counter[int]()
        while frontier and visits + rare:
            _, tile = heappop(frontier)
            size = math.prod(tile).bit_length()
            if tile in done or (not visits and sizes[size] >= RARE):
                continue
            done.add(tile)
            sizes[size] += 1
            visits, rare = (visits - 1, rare) if visits else (0, rare - 1)
            seen[tile] = None
            # The innermost level is small enough for a best-first search; outer levels follow one path, as in the paper.
            if not self.innermost:
                frontier = []
            if self._memory_bounds(tile):
                for step in self._steps(tile, epsilon):
                    heappush(frontier, step)

    def _steps(self, tile: Tile, epsilon: float) -> Iterator[tuple[float, Tile]]:
        """Yields the next aligned tiles of a tile with their negated reuse scores: the least is the best."""
        for dim in self._extents:
            grown = self._next_tile(tile, dim, epsilon)
            if grown is None:
                continue
            if (tile, grown) not in self._scores:
                self._scores[tile, grown] = self._score(tile, grown)
            score = self._scores[tile, grown]
            if score is not None:
                yield -score, grown

    def _next_tile(self, tile: Tile, dim: int, epsilon: float) -> Tile | None:
        """Returns the tile with one dimension at its next aligned extent that keeps padding within the allowance."""
        extents, allowed = self._extents[dim], max(epsilon, self._least_waste)
        for extent in extents[bisect_right(extents, tile[dim]) :]:
            grown = (*tile[:dim], extent, *tile[dim + 1 :])
            if not self._lane_shape(dim, grown):
                continue
            if not self.pads or epsilon == math.inf or allows_padding(self.space.nest, grown, allowed):
                return grown
            self.padded = True
        return None

    def _score(self, tile: Tile, grown: Tile) -> float | None:
        """Returns the traffic saved for each byte of footprint added; None where the grown tile does not fit or idles units."""
        space, position, inner = self.space, self.position, self.inner
        fit, tile, grown = space.fit, self._seen(tile), self._seen(grown)
        if not fit.fits(space.levels, position, grown, inner, space.mapping, space.atom):
            space.refusals[fit.rule(space.levels, position)] += 1
            return None
        if position == 0 and self._too_few(tile) and self._too_few(grown):
            space.refusals["parallelism"] += 1
            return None
        saved = fit.traffic(space.levels, position, tile) - fit.traffic(space.levels, position, grown)
        added = self._footprint(grown) - self._footprint(tile)
        return math.inf if saved > 0 >= added else saved / max(added, 1e-9)

    def _seen(self, tile: Tile) -> Tile:
        """Returns a tile as it counts in a cache: windows slide over it whole before the next tile starts, and overlap there."""
        return tuple([self.space.nest.extents[d] if d in self._windows else t for d, t in enumerate(tile)])

    def _too_few(self, tile: Tile) -> bool:
        """True if the tiles leave most units idle that the inner tiles could occupy.

        Where units can combine partial results, that counts with the reduction cut over units (split-K).
        """
        space, nest = self.space, self.space.nest
        parts = math.prod([-(-nest.extents[i] // self.inner[i]) for i in nest.reduce]) if space.spec.unit.combine else 1
        occupied = min(space.spec.unit.count, space.fit.tiles(self.inner) * parts)
        return space.fit.tiles(tile) * parts * IDLE_GROWTH < occupied

    def _footprint(self, tile: Tile) -> int:
        fit = self.space.fit
        if self.innermost:
            return fit.inner_bytes(tile, self.space.mapping, self.space.atom)
        return fit.footprint(self.space.levels, self.position, tile, self.inner, self.space.atom)

    def _lane_shape(self, dim: int, tile: Tile) -> bool:
        """False if sub-tiles along the dimension run on lanes and are no power of two: only powers make whole lane groups."""
        space = self.space
        if space.lane_level is None or self.position != len(space.levels) - 2 or space.spec.unit.lanes_fixed:
            return True
        count = -(-tile[dim] // self.inner[dim])
        return count & (count - 1) == 0

    def _memory_bounds(self, tile: Tile) -> bool:
        """False once growing further cannot help: loads and the set-up of steps add a negligible time to compute."""
        if self.innermost:
            return True
        space = self.space
        level = space.spec.levels[space.levels[self.position]]
        compute = math.prod(space.nest.extents) / (space.atom.gflops * 1e9 / 2)
        load = space.fit.traffic(space.levels, self.position, tile) / ((level.bandwidth_gbps or 1.0) * 1e9)
        steps = math.prod([-(-e // t) for e, t in zip(space.nest.extents, tile, strict=True) if t]) / space.spec.unit.count
        added = max(0.0, load - compute) + space.spec.loss(level) * load + steps * level.step_overhead_ns * 1e-9
        return added >= BOUND_SLACK * compute


def extents_at(space: TileSpace, position: int, dim: int, inner: Tile) -> Iterator[int]:
    """Yields the aligned extents of a dimension at a level around an inner tile, in rising order."""
    multiple = space.rules.multiple(space.levels[position], space.nest.dims[dim].name)
    return aligned_extents(space.nest.extents[dim], inner[dim], multiple)


def least_tile(space: TileSpace, position: int, inner: Tile) -> Tile:
    """Returns the starting tile of growth at a level: the inner tile, or the least extents where a rule lists the allowed ones."""
    level, dims = space.levels[position], space.nest.dims
    if level == len(space.spec.levels):
        return inner
    steps = [space.rules.multiple(level, d.name) for d in dims]
    return tuple([math.lcm(e, m.step) if m.even and e else e for e, m in zip(inner, steps, strict=True)])


def _first(space: TileSpace, position: int, inner: Tile) -> Tile:
    """Returns the starting tile of growth outside lanes.

    Where panels hold windows, it has whole ones if they fit: only then does growth account for the data that neighbours share.
    """
    least, taps = least_tile(space, position, inner), _taps(space)
    whole = tuple([space.nest.extents[d] if d in taps else e for d, e in enumerate(least)])
    return whole if space.fit.fits(space.levels, position, whole, inner, space.mapping, space.atom) else least


def _taps(space: TileSpace) -> frozenset[int]:
    """Returns the taps (filter offsets) of the windows that panels hold."""
    return frozenset(d for window in every_window(space.nest) for d in window.taps) if space.fit.windowed else frozenset()


def even_at(space: TileSpace, position: int, dim: int, inner: Tile) -> list[int]:
    """Returns the extents of a dimension at a level around an inner tile that cut it into equal parts, in rising order."""
    multiple = space.rules.multiple(space.levels[position], space.nest.dims[dim].name)
    return even_extents(space.nest.extents[dim], inner[dim], multiple)


def _legal(space: TileSpace, position: int, inner: Tile, tile: Tile) -> bool:
    broken = space.fit.legal(space.levels, position, tile, inner, space.mapping, space.atom)
    if broken is not None:
        space.refusals[broken] += 1
    return broken is None


def _spread(space: TileSpace, position: int, inner: Tile, tiles: list[Tile]) -> Iterator[Tile]:
    """Yields each tile with the reduce extents worth trying at this level."""
    units = space.spec.unit.count
    busy = [space.fit.tiles(t) >= units for t in tiles]
    edge = [i for i in range(len(tiles)) if busy[i] != busy[min(i + 1, len(tiles) - 1)] or (i and busy[i] != busy[i - 1])]
    # A matrix atom's steps are large: the local search's steps from the last tile do not lead to the one before it.
    last = 1 if space.spec.levels[space.levels[position]].managed and space.atom.kind != "matrix" else LARGEST
    kept = [i for i in range(len(tiles)) if i >= len(tiles) - last or i & (i + 1) == 0 or i in edge]
    chosen = dict.fromkeys(t for i in kept for t in (tiles[i], *_evener(space, position, inner, tiles[i])))
    for tile in chosen:
        deeper = _with_reduce(space, position, inner, tile) if space.nest.reduce else (tile,)
        yield from (t for t in deeper if _legal(space, position, inner, t))


def _evener(space: TileSpace, position: int, inner: Tile, tile: Tile) -> Iterator[Tile]:
    """Yields a smaller and a larger tile, each with one other extent, whose parts balance the load of the units better.

    This serves units that share reductions, as there are fewer tiles than units. Among several tiles it takes the one with the
    least traffic. Growth by reuse skips such tiles.
    """
    nest, fit, units = space.nest, space.fit, space.spec.unit.count
    if position or not nest.reduce or not space.spec.unit.combine or fit.tiles(tile) >= units:
        return
    others = [
        (*tile[:dim], extent, *tile[dim + 1 :])
        for dim in nest.spatial
        for extent in extents_at(space, position, dim, inner)
        if 2 * extent >= tile[dim] and extent <= 2 * tile[dim]
    ]
    fitting = [
        (_evenness(space, inner, other), other)
        for other in others
        if fit.tiles(other) <= units and fit.fits(space.levels, position, other, inner, space.mapping, space.atom)
    ]
    most = max([even for even, _ in fitting], default=0.0)
    if most > _evenness(space, inner, tile) + EVEN_SLACK:
        even = [(fit.traffic(space.levels, position, other), other) for share, other in fitting if share >= most - EVEN_SLACK]
        for side in ([e for e in even if e[1] < tile], [e for e in even if e[1] > tile]):
            yield from [other for _, other in sorted(side)[:1]]


def _evenness(space: TileSpace, inner: Tile, tile: Tile) -> float:
    """Returns the useful share of the units' time if the longest reduction is cut so that each unit gets one part of a tile."""
    nest, units = space.nest, space.spec.unit.count
    dim = max(nest.reduce, key=lambda i: nest.extents[i])
    tiles, extent = space.fit.tiles(tile), nest.extents[dim]
    if not tiles or not extent:
        return 1.0
    part = -(-extent // (units // tiles))
    share = -(-part // inner[dim]) * inner[dim]
    executed = math.prod([-(-nest.extents[i] // tile[i]) * tile[i] for i in nest.spatial])
    useful = math.prod([nest.extents[i] for i in nest.spatial]) / executed
    return useful * tiles * extent / (units * share)


def _with_reduce(space: TileSpace, position: int, inner: Tile, tile: Tile) -> Iterator[Tile]:
    """Yields the tile with reduce extents doubled as long as it fits: the largest one; in a cache the largest `REDUCE_STEPS`.

    If a managed level is full before the reduction ends, it also yields the one before.

    Where an input streams, it also yields a short extent: rows are then read side by side, each along its whole length.
    """
    steps = [tile]
    managed = space.spec.levels[space.levels[position]].managed
    kept = 1 if managed else REDUCE_STEPS
    if not managed:
        yield from _short(space, inner, tile)
    taps = _taps(space)
    if any(tile[d] > inner[d] for d in taps):
        yield tuple([inner[d] if d in taps else e for d, e in enumerate(tile)])
    for dim in reversed(space.nest.reduce):
        while True:
            last = steps[-1]
            whole = -(-space.nest.extents[dim] // inner[dim]) * inner[dim]
            extent = whole if dim in taps else min(last[dim] * 2, whole)
            if extent <= last[dim]:
                break
            grown = (*last[:dim], extent, *last[dim + 1 :])
            if not space.fit.within(space.levels[position], grown, inner):
                break
            if managed and not space.fit.fits(space.levels, position, grown, inner, space.mapping, space.atom):
                yield from steps[-kept - 1 :]
                return
            steps.append(grown)
    yield from steps[-kept:]


def _streams(nest: Nest) -> list[Access]:
    """Returns the inputs that are read once: they depend on every dimension."""
    wide = [i for i, e in enumerate(nest.extents) if e > 1]
    return [a for a in nest.inputs if all(a.touches[i] for i in wide)]


def _short(space: TileSpace, inner: Tile, tile: Tile) -> Iterator[Tile]:
    """Yields the tile with few steps of the longest reduction that does not run along a stream's rows."""
    nest = space.nest
    across = [i for i in nest.reduce if any(a.strides[i] != 1 for a in _streams(nest))]
    if across:
        dim = max(across, key=lambda i: (nest.extents[i], i))
        extent = min(SIDE_BY_SIDE, nest.extents[dim] // inner[dim]) * inner[dim]
        if extent > tile[dim]:
            yield (*tile[:dim], extent, *tile[dim + 1 :])
