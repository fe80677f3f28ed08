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
from roller.program.alignment import Rules
from roller.program.rprogram import RProgram, StageProgram, Staging
from roller.search.choices import bands_of, clusters_of, every_staging, orders_of, program_of
from roller.search.funnel.lattice import extents, inner_tiles
from roller.search.tile_space import Chain, TileSpace, tile_spaces
from roller.target.hardware import HardwareSpec

Orders = tuple[tuple[int, ...], ...]

DRAWS = 10_000  # misses in a row after which a space counts as empty
PATIENCE = 10  # draws without a new program, for each program drawn: the last of equally likely ones is missed once in e^10


@dataclass(frozen=True)
class _Part:
    """The programs of one tile space around one innermost tile; each chain of tiles has `ways` of them."""

    space: TileSpace
    inner: Tile
    ways: int

    @cached_property
    def ranges(self) -> list[list[list[int]]]:
        """The multiples of the innermost extent, for every outer level, innermost first, and every dimension."""
        around = reversed(range(len(self.space.levels) - 1))
        return [[extents(self.space, position, dim, e) for dim, e in enumerate(self.inner)] for position in around]

    @cached_property
    def size(self) -> int:
        """The number of programs of all combinations of outer extents, fitting or not."""
        return math.prod([len(r) for level in self.ranges for r in level]) * self.ways

    def chain(self, tiles: tuple[Tile, ...]) -> Chain | None:
        """Returns the chain of these outer tiles (innermost first) around the inner one, None where it breaks a rule."""
        space = self.space
        chain: Chain = (self.inner,)
        for position, tile in zip(reversed(range(len(tiles))), tiles, strict=True):
            inner = chain[0]
            rules = (space.levels, position, tile, inner, space.mapping, space.atom)
            if any(t % i for t, i in zip(tile, inner, strict=True)) or not space.fit.fits(*rules) or space.fit.legal(*rules):
                return None
            chain = (tile, *chain)
        return chain

    def programs(self, chain: Chain) -> list[StageProgram]:
        """Returns the chain's programs, with every loop order and every staging."""
        base, choices = _choices(self.space, chain)
        return [replace(base, orders=o, staged=s) for o, s in choices]

    def one(self, chain: Chain, generator: random.Random) -> StageProgram:
        """Returns one of these programs, drawn at random."""
        base, choices = _choices(self.space, chain)
        orders, staged = generator.choice(choices)
        return replace(base, orders=orders, staged=staged)


def _choices(space: TileSpace, chain: Chain, pad: bool = True) -> tuple[StageProgram, list[tuple[Orders, tuple[Staging, ...]]]]:
    """Returns a chain's program, and its loop orders with its stagings; every chain of a tile space has the same number of
    these.
    """
    base = program_of(space, space.levels, chain, pad)
    stagings = dict.fromkeys((base.staged, *every_staging(space, space.levels)))
    return base, list(itertools.product(orders_of(base), stagings))


def _parts(space: TileSpace) -> Iterator[_Part]:
    tiles: list[Tile] = [tuple(tile) for tile in inner_tiles(space).T.tolist()]
    ways = len(_choices(space, (tiles[0],) * len(space.levels), pad=False)[1]) if tiles else 0
    yield from (_Part(space, tile, ways) for tile in tiles)


class StageSpace:
    """The aligned, fitting programs of one stage."""

    def __init__(self, found: list[TileSpace]) -> None:
        self._parts = [part for space in found for part in _parts(space)]
        self._weights = list(itertools.accumulate(p.size for p in self._parts))

    def __iter__(self) -> Iterator[StageProgram]:
        """Every program, in a fixed order."""
        for part in self._parts:
            for outer in itertools.product(*(itertools.product(*level) for level in part.ranges)):
                chain = part.chain(outer)
                for program in part.programs(chain) if chain is not None else []:
                    yield from _dealt(part.space, program)

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
                return generator.choice(list(_dealt(part.space, program)))
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
    """Returns the space from which `construct` chooses, for a fused expression on a chip."""
    nests = [variants(stage, expr.tensors, spec.spread) for stage in expr.stages]
    return ProgramSpace(
        expr, tuple(StageSpace(tile_spaces(found, spec, rules.of(found[0].stage.name), parameters)) for found in nests)
    )


def _dealt(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields a program in every order in which units get its tiles (bands), alone and in clusters."""
    for ordered in (program, *bands_of(space, program)):
        yield ordered
        yield from clusters_of(space, ordered)
