"""The space of all aligned programs that fit, from which construction chooses: for studies of the model and of its choices.

The space is too large to list for all but small operators, so it is lazy: iterate over it, or draw from it uniformly. Its programs
use all units and do not cut reductions over them (split-K). Construction also tries that where there are too few tiles.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from roller.cost.parameters import CostParameters
from roller.errors import ConstructionError
from roller.ir.expr import TensorExpr
from roller.ir.nest import Tile, variants
from roller.program.alignment import Rules, aligned_extents
from roller.program.rprogram import RProgram, StageProgram, Staging
from roller.search.choices import bands_of, clusters_of, every_staging, orders_of, program_of
from roller.search.tile_space import Chain, Search, searches, start
from roller.target.hardware import HardwareSpec

Orders = tuple[tuple[int, ...], ...]

DRAWS = 10_000  # misses in a row after which a space counts as empty
PATIENCE = 10  # draws without a new program, for each program drawn: the last of equally likely ones is missed once in e^10


@dataclass(frozen=True)
class _Part:
    """The programs of one search around one innermost tile; each chain of tiles has `ways` of them."""

    search: Search
    inner: Tile
    ways: int

    @cached_property
    def ranges(self) -> list[list[list[int]]]:
        """The multiples of the innermost extent, for every outer level, innermost first, and every dimension."""
        return [_extents(self.search, position, self.inner) for position in reversed(range(len(self.search.levels) - 1))]

    @cached_property
    def size(self) -> int:
        """The number of programs of all combinations of outer extents, fitting or not."""
        return math.prod([len(r) for level in self.ranges for r in level]) * self.ways

    def chain(self, tiles: tuple[Tile, ...]) -> Chain | None:
        """Returns the chain of these outer tiles (innermost first) around the inner one, None where it breaks a rule."""
        search = self.search
        chain: Chain = (self.inner,)
        for position, tile in zip(reversed(range(len(tiles))), tiles, strict=True):
            inner = chain[0]
            rules = (search.levels, position, tile, inner, search.mapping, search.atom)
            if any(t % i for t, i in zip(tile, inner, strict=True)) or not search.fit.fits(*rules) or search.fit.legal(*rules):
                return None
            chain = (tile, *chain)
        return chain

    def programs(self, chain: Chain) -> list[StageProgram]:
        """Returns the chain's programs, with every loop order and every staging."""
        base, choices = _choices(self.search, chain)
        return [replace(base, orders=o, staged=s) for o, s in choices]

    def one(self, chain: Chain, generator: random.Random) -> StageProgram:
        """Returns one of these programs, drawn at random."""
        base, choices = _choices(self.search, chain)
        orders, staged = generator.choice(choices)
        return replace(base, orders=orders, staged=staged)


def _choices(search: Search, chain: Chain, pad: bool = True) -> tuple[StageProgram, list[tuple[Orders, tuple[Staging, ...]]]]:
    """Returns a chain's program, and its loop orders with its stagings; every chain of a search has the same number of these."""
    base = program_of(search, search.levels, chain, pad)
    stagings = dict.fromkeys((base.staged, *every_staging(search, search.levels)))
    return base, list(itertools.product(orders_of(base), stagings))


def _parts(search: Search) -> Iterator[_Part]:
    tiles = list(_inner_tiles(search))
    ways = len(_choices(search, (tiles[0],) * len(search.levels), pad=False)[1]) if tiles else 0
    yield from (_Part(search, tile, ways) for tile in tiles)


class StageSpace:
    """The aligned, fitting programs of one stage."""

    def __init__(self, found: list[Search]) -> None:
        self._parts = [part for search in found for part in _parts(search)]
        self._weights = list(itertools.accumulate(p.size for p in self._parts))

    def __iter__(self) -> Iterator[StageProgram]:
        """Every program, in a fixed order."""
        for part in self._parts:
            for extents in itertools.product(*(itertools.product(*level) for level in part.ranges)):
                chain = part.chain(extents)
                for program in part.programs(chain) if chain is not None else []:
                    yield from _dealt(part.search, program)

    def draw(self, generator: random.Random) -> StageProgram:
        """Returns one program, each equally likely; `ConstructionError` where none fits.

        Only a program's variants with bands and clusters share the probability of the one without.
        """
        for _ in range(DRAWS):
            if not self._weights or not self._weights[-1]:
                break
            part = generator.choices(self._parts, cum_weights=self._weights)[0]
            chain = part.chain(tuple(tuple(generator.choice(r) for r in level) for level in part.ranges))
            if chain is not None:
                program = part.one(chain, generator)
                return generator.choice(list(_dealt(part.search, program)))
        raise ConstructionError("no aligned program fits")


@dataclass(frozen=True)
class ProgramSpace:
    """The aligned, fitting programs of an expression: every combination of its stages' programs."""

    expr: TensorExpr
    stages: tuple[StageSpace, ...]

    def __iter__(self) -> Iterator[RProgram]:
        """Every program, in a fixed order; the last stage varies fastest."""
        for chosen in itertools.product(*self.stages):
            yield RProgram(self.expr, chosen)

    def sample(self, count: int, seed: int = 0) -> list[RProgram]:
        """Returns different programs drawn uniformly, fewer where the space has fewer; the same ones for the same seed.

        Raises `ConstructionError` where no program fits, or where `count` is not a valid number of programs.
        """
        if type(count) is not int or count < 0:
            raise ConstructionError(f"count={count!r} must be a non-negative integer")
        return list(itertools.islice(self.drawn(seed), count))

    def drawn(self, seed: int = 0) -> Iterator[RProgram]:
        """Yields different programs drawn uniformly, until many draws give no new one: the space has hardly another.

        The same seed gives the same programs. Raises `ConstructionError` where no program fits.
        """
        generator, found, misses = random.Random(seed), set[tuple[object, ...]](), 0
        while misses <= PATIENCE * (len(found) + 1):
            chosen = tuple(stage.draw(generator) for stage in self.stages)
            key = tuple((s.nest.dims, s.key) for s in chosen)
            misses += 1
            if key not in found:
                found.add(key)
                misses = 0
                yield RProgram(self.expr, chosen)


def program_space(expr: TensorExpr, spec: HardwareSpec, rules: Rules, parameters: CostParameters) -> ProgramSpace:
    """Returns the space that `construct` searches greedily, for a fused expression on a chip."""
    nests = [variants(stage, expr.tensors, spec.spread) for stage in expr.stages]
    return ProgramSpace(
        expr, tuple(StageSpace(searches(found, spec, rules.of(found[0].stage.name), parameters)) for found in nests)
    )


def _dealt(search: Search, program: StageProgram) -> Iterator[StageProgram]:
    """Yields a program in every order in which units get its tiles (bands), alone and in clusters."""
    for ordered in (program, *bands_of(search, program)):
        yield ordered
        yield from clusters_of(search, ordered)


def _inner_tiles(search: Search) -> Iterator[Tile]:
    """Yields the aligned innermost tiles that fit."""
    position, base = len(search.levels) - 1, start(search)
    if search.levels[position] == len(search.spec.levels):
        yield base
        return
    for tile in itertools.product(*_extents(search, position, base)):
        if search.fit.fits(search.levels, position, tile, base, search.mapping, search.atom):
            yield tile


def _extents(search: Search, position: int, base: Tile) -> list[list[int]]:
    """Returns the aligned extents of each dimension at a level: multiples of the base; innermost reductions stay whole atoms."""
    innermost = position == len(search.levels) - 1
    found = []
    for dim, (extent, step) in enumerate(zip(search.nest.extents, base, strict=True)):
        multiple = search.rules.multiple(search.levels[position], search.nest.dims[dim].name)
        if innermost and search.nest.dims[dim].is_reduce and not any(d == dim for _, d in search.mapping):
            found.append([step])
            continue
        choices = [step, *(e for e in aligned_extents(extent, step, multiple) if e > step)]
        found.append([e for e in choices if e <= max(extent, step)] if innermost else choices)
    return found
