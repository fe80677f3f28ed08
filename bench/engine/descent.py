"""A search for programs with the engine's own model: what construction is compared with. Nothing runs.

Seeded descents over everything that a program leaves open: tiles at every level, copies and their depth, loop orders, how a
reduction is cut, all units or one. For every nest, atom and mapping they start at the best constructed programs and at the best of
random ones, and go down by construction's own steps; from the best ends they go on by all neighbours, to the best of those that the
device can run, until none is better. There may be still better programs: what is found is no proof of an optimum.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from roller.program.alignment import aligned_extents
from roller.program.rprogram import StageProgram, Staging
from roller.search.choices import cut, every_staging, orders_of, program_of
from roller.search.funnel.descent import descended
from roller.search.funnel.screens import screen_of
from roller.search.retiled import recopied
from roller.search.tile_space import Chain, TileSpace, start

DRAWN, STARTS, STEPS = 60, 3, 300  # random tiles for every search, how many of the best of them are begun at, steps of each
LEAST = 1e-9  # a share of the time that counts as better
Able = Callable[[StageProgram], bool]


@dataclass(frozen=True)
class Point:
    """What is open about a program of one search; `parts` of the reduce dimension `cut`: 1 for a whole reduction."""

    chain: Chain
    orders: tuple[tuple[int, ...], ...] | None = None
    staged: tuple[Staging, ...] | None = None
    depth: int = 0
    cut: int = -1
    parts: int = 1
    parallel: bool = True

    def program(self, space: TileSpace) -> StageProgram | None:
        """The program, None where a rule forbids it."""
        if not _legal(space, self.chain):
            return None
        plain = program_of(space, space.levels, self.chain)
        plain = replace(plain, orders=self.orders or plain.orders).dispatched(parallel=self.parallel)
        found: StageProgram | None = plain
        if self.staged is not None and not _managed(space):
            found = replace(plain, staged=self.staged)
        elif self.depth and plain.staged:
            found = _deep(space, plain, self.depth)
        if found is not None and self.parts > 1:
            extent = space.nest.extents[self.cut]
            share = -(-extent // self.parts)
            share = -(-share // found.inner[self.cut]) * found.inner[self.cut]
            found = next(cut(space, found, self.cut, share), None) if share < extent else None
        return found


def _managed(space: TileSpace) -> bool:
    return space.spec.levels[space.levels[0]].managed


def _deep(space: TileSpace, program: StageProgram, depth: int) -> StageProgram | None:
    if depth > space.spec.levels[space.levels[0]].depth_max:
        return None
    return recopied(space, replace(program, staged=tuple(replace(s, depth=depth) for s in program.staged)))


def _legal(space: TileSpace, chain: Chain) -> bool:
    for position in reversed(range(len(chain))):
        inner = chain[position + 1] if position + 1 < len(chain) else start(space)
        rules = (space.levels, position, chain[position], inner, space.mapping, space.atom)
        if space.levels[position] == len(space.spec.levels):
            continue
        if any(t % i for t, i in zip(chain[position], inner, strict=True)):
            return False
        if not space.fit.fits(*rules) or space.fit.legal(*rules):
            return False
    return True


@dataclass
class Descent:
    """Descents of one search; `rated` counts the programs that the model was asked about."""

    space: TileSpace
    able: Able
    rated: int = 0
    _known: dict[Point, tuple[float, StageProgram] | None] = field(default_factory=dict)

    def rate(self, point: Point) -> tuple[float, StageProgram] | None:
        """Predicted seconds and the program; None where it is forbidden."""
        if point not in self._known:
            program = point.program(self.space)
            self._known[point] = None if program is None else (self.space.model.estimate(program).seconds, program)
            self.rated += program is not None
        return self._known[point]

    def from_point(self, point: Point, budget: int) -> tuple[float, StageProgram] | None:
        """The best program on the way down from a point, of those that the device can run."""
        best, limit = self.rate(point), self.rated + budget
        if best is None or not self.able(best[1]):
            return None
        while self.rated < limit:
            around = [(*found, p) for p in self.neighbours(point) if (found := self.rate(p)) is not None]
            better = sorted((item for item in around if item[0] < best[0] * (1 - LEAST)), key=lambda item: item[0])
            step = next((item for item in better if self.able(item[1])), None)
            if step is None:
                break
            best, point = (step[0], step[1]), step[2]
        return best[0], best[1]

    def settled(self, program: StageProgram) -> tuple[float, StageProgram]:
        """Where construction's own last step leads from a program, among those that the device can run."""
        best = [math.inf]

        def rate(other: StageProgram, _: float = math.inf) -> float:
            self.rated += 1
            seconds = self.space.model.estimate(other).seconds
            if seconds < best[0] and not self.able(other):
                return math.inf
            best[0] = min(best[0], seconds)
            return seconds

        last, seconds = descended(screen_of(self.space), program, rate(program), rate)
        return seconds, last

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Points that differ in one choice, or in two extents of a tile of which one grows and one shrinks."""
        base = replace(point, parts=1).program(self.space)
        if base is None:
            return
        yield from (replace(point, orders=o) for o in orders_of(base))
        yield from (replace(point, staged=s) for s in every_staging(self.space, self.space.levels))
        yield from (replace(point, depth=d) for d in range(1, self.space.spec.levels[self.space.levels[0]].depth_max + 1))
        yield replace(point, parallel=not point.parallel)
        if self.space.spec.unit.combine:
            yield from (replace(point, cut=dim, parts=parts) for dim, parts in self._cuts(point))
        yield from (replace(point, chain=chain) for chain in dict.fromkeys(self._chains(point.chain)))

    def _cuts(self, point: Point) -> Iterator[tuple[int, int]]:
        nest, units = self.space.nest, self.space.spec.unit.count
        tiles = max(1, self.space.fit.tiles(point.chain[0]))
        for dim in nest.reduce:
            now = point.parts if point.cut == dim else 1
            wanted = {1, 2, now - 1, now + 1, now // 2, now * 2, units // tiles, -(-units // tiles), 2 * units // tiles}
            yield from ((dim, parts) for parts in sorted(wanted) if 1 <= parts <= nest.extents[dim])

    def _chains(self, chain: Chain) -> Iterator[Chain]:
        for position in range(len(chain)):
            if self.space.levels[position] == len(self.space.spec.levels):
                continue
            moves = {d: self._extents(chain, position, d) for d in range(len(chain[position]))}
            for dim, extents in moves.items():
                yield from (self._with(chain, position, {dim: e}) for e in extents)
            for up, down in itertools.permutations(moves, 2):
                more, less = ([e for e in moves[d] if (e > chain[position][d]) == (d == up)] for d in (up, down))
                yield from (self._with(chain, position, {up: m, down: s}) for m in more for s in less)

    def _extents(self, chain: Chain, position: int, dim: int) -> list[int]:
        """The next extents below and above, and those about half and twice as long."""
        now = chain[position][dim]
        inner = chain[position + 1][dim] if position + 1 < len(chain) else start(self.space)[dim]
        every = extents(self.space, position, dim, inner)
        near, far = (
            (bisect_left(every, now) - 1, bisect_right(every, now)),
            (bisect_right(every, now // 2) - 1, bisect_left(every, 2 * now)),
        )
        places = {*near, *far}
        return [every[p] for p in sorted(places) if 0 <= p < len(every) and every[p] != now]

    def _with(self, chain: Chain, position: int, changes: dict[int, int]) -> Chain:
        """The chain with extents of one tile changed; tiles outside become multiples again, of about their size."""
        tiles = [list(tile) for tile in chain]
        for dim, extent in changes.items():
            tiles[position][dim] = extent
            for outer in range(position - 1, -1, -1):
                step = tiles[outer + 1][dim]
                multiple = self.space.rules.multiple(self.space.levels[outer], self.space.nest.dims[dim].name)
                step = math.lcm(step, multiple.step)
                tiles[outer][dim] = max(1, round(tiles[outer][dim] / step)) * step
        return tuple(tuple(tile) for tile in tiles)

    def drawn(self, chance: random.Random) -> Chain:
        """A random chain of aligned tiles, fitting or not: extents evenly spread over the aligned ones of each dimension."""
        space = self.space
        chain: tuple[tuple[int, ...], ...] = (start(space),)
        for position in reversed(range(len(space.levels))):
            outside = position < len(space.levels) - 1
            if space.levels[position] == len(space.spec.levels):
                continue
            tile = tuple(chance.choice(extents(space, position, d, i)) for d, i in enumerate(chain[0]))
            chain = (tile, *chain) if outside else (tile,)
        return chain


def extents(space: TileSpace, position: int, dim: int, inner: int) -> list[int]:
    """The extents that a dimension of a tile may have around an inner extent, rising."""
    nest, innermost = space.nest, position == len(space.levels) - 1
    if innermost and nest.dims[dim].is_reduce and not any(d == dim for _, d in space.mapping):
        return [inner]
    multiple = space.rules.multiple(space.levels[position], nest.dims[dim].name)
    found = [inner, *(e for e in aligned_extents(nest.extents[dim], inner, multiple) if e > inner)]
    return [e for e in found if e <= max(nest.extents[dim], inner)] if innermost else found


def point_of(program: StageProgram) -> Point:
    """A constructed program as a point (cut reductions: as good as possible)."""
    dim, parts = -1, 1
    chain = program.tiles
    if program.dispatch.split > 1:
        reduce = program.nest.reduce
        dim = program.dispatch.share[0] if program.dispatch.share else max(reduce, key=lambda i: program.nest.extents[i])
        parts = program.dispatch.split
    depth = program.staged[0].depth if program.staged else 0
    return Point(chain, program.orders, program.staged, depth, dim, parts, program.dispatch.parallel)


def search_best(
    found: Iterable[TileSpace], constructed: Iterable[StageProgram], able: Able, budget: int, seed: int = 0
) -> tuple[float, StageProgram | None, int]:
    """The best seconds and program that the descents meet, and how many programs they rated: about `budget` in one of the last."""
    chance, given = random.Random(seed), list(constructed)
    settled: list[tuple[float, int, Descent, StageProgram]] = []
    descents = [Descent(space, able) for space in found]
    for number, descent in enumerate(descents):
        for program in _starts(descent, given, chance):
            seconds, last = descent.settled(program)
            settled.append((seconds, number, descent, last))
    settled.sort(key=lambda item: item[:2])
    best = min(((s, p) for s, _, _, p in settled), key=lambda r: r[0], default=(math.inf, None))
    for _, _, descent, program in settled[:STARTS]:
        result = descent.from_point(point_of(program), budget)
        if result is not None and result[0] < best[0]:
            best = result
    return *best, sum(d.rated for d in descents)


def _starts(descent: Descent, given: list[StageProgram], chance: random.Random) -> list[StageProgram]:
    """The constructed programs of this search, and the best of random ones."""
    space = descent.space
    mine = [p for p in given if p.way == space.way]
    rated = [r for _ in range(DRAWN) if (r := descent.rate(Point(descent.drawn(chance)))) is not None]
    rated.sort(key=lambda r: r[0])
    return [*mine[:STARTS], *[p for _, p in rated if descent.able(p)][:STARTS]]
