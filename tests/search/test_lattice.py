"""The lattice has every aligned innermost tile that fits, and chains of multiples around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import ops
from roller.ir.nest import Tile
from roller.ops import SymbolicTensor
from roller.program.alignment import Multiple, aligned_extents
from roller.program.superwords import joined
from roller.search.funnel import lattice
from roller.search.tile_space import TileSpace, start
from roller.target.subset import limited
from stage_spaces import CHIPS, operators, spaces_of


def one_by_one(space: TileSpace) -> Iterator[Tile]:
    """Every combination of aligned extents that fits the innermost level."""
    last, least = len(space.levels) - 1, start(space)
    vector = {dim for _, dim in space.mapping}
    choices = []
    for dim, (extent, step) in enumerate(zip(space.nest.extents, least, strict=True)):
        whole = space.nest.dims[dim].is_reduce and dim not in vector
        longer = [] if whole else [e for e in aligned_extents(extent, step, Multiple()) if step < e <= extent]
        choices.append([step, *longer])
    for tile in itertools.product(*choices):
        joins = space.model.parameters.superwords if space.atom.kind == "scalar" else 0
        vectors = joins and joined(space.nest, tile, joins)
        if space.fit.fits(space.levels, last, tile, least, space.mapping, space.atom) and not vectors:
            yield tile


@given(operators(), st.sampled_from(CHIPS))
@settings(max_examples=30, deadline=None)
def test_the_lattice_has_every_innermost_tile_that_fits(op: SymbolicTensor, chip: str) -> None:
    for space in spaces_of(chip, op):
        tiles = lattice.inner_tiles(space)
        have = {tuple(tile) for tile in tiles.T.tolist()}
        assert len(have) == tiles.shape[1]
        if len(have) < 500:  # to list them one by one takes seconds for more
            assert have == set(one_by_one(space))


@given(operators(), st.sampled_from(CHIPS))
@settings(max_examples=30, deadline=None)
def test_chains_are_nested_multiples_and_differ(op: SymbolicTensor, chip: str) -> None:
    for space in spaces_of(chip, op):
        chains = lattice.chains_around(space, lattice.inner_tiles(space)[:, :3])
        every = lattice.chains_of(chains, range(chains[0].shape[1]))
        assert len(set(every)) == len(every)
        for chain in every:
            for outer, inner in itertools.pairwise(chain):
                assert all(o % i == 0 and o < e + i for o, i, e in zip(outer, inner, space.nest.extents, strict=True) if i)


def test_one_extent_of_a_tile_may_be_that_of_the_tile_inside() -> None:
    """Shared memory asks for multiples of 8: a sum of few rows has a row for each unit nevertheless."""
    for space in spaces_of("cuda:a100", ops.reduce_sum(ops.tensor((23, 3683)), 1)):
        assert space.rules.multiple(space.levels[0], space.nest.dims[0].name).step == 8
        inner = lattice.inner_tiles(space)
        unit, *_, inside = lattice.chains_around(space, inner[:, inner[0] == 1])
        aligned = unit[0][unit[0] != inside[0]]
        assert set(unit[0][unit[0] == inside[0]].tolist()) == {1} and len(aligned) and not np.any(aligned % 8)


@pytest.mark.parametrize("units", [1, 3, 20])
def test_a_dimension_is_cut_into_as_many_parts_as_there_are_units(units: int) -> None:
    """Once: on one unit, that is the whole dimension, which is a coarse multiple already."""
    op = ops.matmul(ops.tensor((1109, 2696)), ops.tensor((2696, 5)))
    for space in spaces_of("cpu:skylake-avx512", op, lambda spec: limited(spec, units)):
        inner = lattice.inner_tiles(space)
        chains = lattice.chains_around(space, inner[:, inner[0] == 4])
        every = lattice.chains_of(chains, range(chains[0].shape[1]))
        assert len(set(every)) == len(every)
        assert not every or units in {-(-1109 // unit[0]) for unit, *_ in every}
