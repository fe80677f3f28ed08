"""The space of all aligned programs: everything in it fits, and drawing from it favours nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import roller
from roller import ops
from roller.cost.parameters import CostParameters
from roller.errors import ConstructionError
from roller.program.alignment import Rules
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.search.construct import construct
from roller.search.enumeration import ProgramSpace, program_space
from roller.target.catalog import find_spec
from roller.testing import toy_atom, toy_level, toy_spec

DRAWN = 10_000


def product() -> roller.SymbolicTensor:
    return ops.matmul(roller.tensor((4, 6)), roller.tensor((6, 8)))


def small() -> ProgramSpace:
    """All programs for the small product on a chip with caches."""
    return roller.enumerate_programs(product(), "cpu:zen3", threads=1)


TINY = toy_spec(
    [toy_level("cache", 1 << 12, 10, managed=False), toy_level("register", 64, 20)],
    [toy_atom("scalar", 2.0), toy_atom("vector", 8.0, n=2)],
)
EXPR = ops.expression(ops.matmul(ops.tensor((2, 2)), ops.tensor((2, 4))))
RULES = Rules(TINY.atoms, {})


def tiny() -> ProgramSpace:
    """A few hundred programs, whose stagings differ in number from mapping to mapping."""
    return program_space(EXPR, TINY, RULES, CostParameters())


def test_drawing_is_uniform() -> None:
    """Programs around each innermost tile come up as often as there are such programs, within five standard deviations."""
    (stage,) = tiny().stages
    everything = [(p.nest.dims, p.key) for p in stage]
    assert len(set(everything)) == len(everything) > 100
    generator = random.Random(1)
    drawn = [stage.draw(generator) for _ in range(DRAWN)]
    assert {(p.nest.dims, p.key) for p in drawn} <= set(everything)
    there, found = (Counter((p.mapping, p.inner) for p in programs) for programs in (stage, drawn))
    for group, count in there.items():
        expected = DRAWN * count / len(everything)
        assert abs(found[group] - expected) <= 5 * expected**0.5, (group, found[group], expected)


def test_samples_differ_and_are_the_same_for_a_seed() -> None:
    drawn = [small().sample(50, seed) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({p.stages[0].key for p in drawn[0]}) > 40


def test_everything_fits_and_is_aligned() -> None:
    spec = find_spec("cpu", "zen3")
    for program in small().sample(200):
        stage = program.stages[0]
        fit = Fit(spec, stage.nest, Geometry(stage.nest))
        for position, tile in enumerate(stage.tiles[:-1]):
            inner = stage.tiles[position + 1]
            assert all(t % i == 0 for t, i in zip(tile, inner, strict=True))
            assert fit.fits(stage.levels, position, tile, inner, stage.mapping, stage.atom)


def test_what_construction_chooses_is_in_the_space() -> None:
    """But for cut reductions and single units."""
    (stage,) = tiny().stages
    everything = {(p.nest.dims, p.key) for p in stage}
    chosen = [c.program.stages[0] for c in construct(EXPR, TINY, RULES, CostParameters(), 10)]
    whole = [p for p in chosen if p.dispatch.split == 1 and p.dispatch.parallel]
    assert whole and all((p.nest.dims, p.key) in everything for p in whole)


def test_a_chip_that_fits_nothing_has_an_empty_space() -> None:
    levels = [toy_level("pad", 8, 10), toy_level("register", 8, 20)]
    expr = ops.expression(ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64))))
    spec = toy_spec(levels, [toy_atom("vector", 2.0, n=64)])
    space = program_space(expr, spec, Rules(spec.atoms, {}), CostParameters())
    assert not list(space.stages[0])
    with pytest.raises(ConstructionError, match="no aligned program fits"):
        space.sample(1)


@pytest.mark.parametrize("count", [-1, 1.5, "3", None, True])
def test_a_count_is_a_whole_number(count: object) -> None:
    with pytest.raises(ConstructionError, match=r"count=.* must be a non-negative integer"):
        tiny().sample(count)  # type: ignore[arg-type]
