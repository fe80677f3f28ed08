"""rate(): the prediction for tiles that the user names."""

from __future__ import annotations

import pytest

import roller
from roller import ops
from roller.errors import ConstructionError, ExpressionError
from roller.target.catalog import find_spec


def matmul(m=24, n=32, k=16):
    return ops.relu(ops.matmul(roller.tensor((m, k), name="a"), roller.tensor((k, n), name="b")))


TILES = [{"m": 24, "n": 32, "k": 16}, {"m": 6, "n": 16}]


def test_rating_agrees_with_construction():
    spec = find_spec("cpu", "zen3")
    kernel = roller.compile(matmul(), "cpu:zen3")
    stage = kernel.program.stages[0]
    names = [d.name for d in stage.nest.dims]
    tiles = [dict(zip(names, tile, strict=True)) for tile in stage.tiles]
    assert roller.rate(matmul(), "cpu", spec=spec, tiles=tiles).seconds <= kernel.estimate.seconds * (1 + 1e-9)
    one, nested = roller.rate(matmul(), "cpu:zen3", tiles=TILES), roller.rate(matmul(), "cpu:zen3", tiles=[TILES])
    assert one == nested and one.seconds >= kernel.estimate.seconds * (1 - 1e-9)


@pytest.mark.parametrize(
    "op",
    [
        ops.exp(roller.tensor((1024, 1000))),  # a tile that no cache has room for
        ops.matmul(roller.tensor((1, 4096)), roller.tensor((4096, 4096))),  # split-K
        ops.transpose(roller.tensor((2048, 1000))),
    ],
)
def test_what_construction_chooses_on_caches_can_be_rated(op):
    made = roller.construct(op, "cpu:zen5", top_k=5)
    for candidate in made.candidates:
        (stage,) = candidate.program.stages
        tiles = [dict(zip([d.name for d in stage.nest.dims], tile, strict=True)) for tile in stage.tiles]
        assert roller.rate(op, "cpu:zen5", tiles=tiles).seconds <= candidate.estimate.seconds * (1 + 1e-9)


def test_what_a_device_refuses_is_refused():
    op = ops.matmul(roller.tensor((1024, 1024)), roller.tensor((1024, 1024)))
    with pytest.raises(ConstructionError, match="whole number of 8 bytes"):
        roller.rate(op, "ipu_sim", tiles=[{"m": 1, "n": 1, "k": 1024}, {"m": 1, "n": 1, "k": 1}])


@pytest.mark.parametrize(
    ("tiles", "error", "said"),
    [
        (TILES[:1], ExpressionError, "1 tiles given, cpu:zen3 has 2 levels: L2, register"),
        ([], ExpressionError, "tiles of 0 stages given"),
        ([TILES, TILES], ExpressionError, "tiles of 2 stages given, the fused operator has 1: relu"),
        ([{"m": 24}, {"mm": 6}], ExpressionError, "no dimension|has dimension 'mm' .did you mean 'm'"),
        ([{"m": 24}, {"m": 0}], ExpressionError, "positive"),
        ([{"m": 24}, {"m": 2.0}], ExpressionError, "positive"),
        ([{"m": 24, "n": 32}, {"m": 24, "n": 32}], ConstructionError, "register capacity"),
        (None, ExpressionError, "tiles: a list of"),
        ({"m": 24}, ExpressionError, "tiles: a list of"),
        ("mn", ExpressionError, "tiles: a list of"),
        ([24, 6], ExpressionError, "tiles: a list of"),
        ([[24], [6]], ExpressionError, "tiles: a list of"),
        ([{"m": 96, "n": 16}, {"m": 6, "n": 16}], ConstructionError, "m = 96, more than the dimension's 24"),
        ([{"m": 25, "n": 16}, {"m": 6, "n": 16}], ConstructionError, "m = 25 is no multiple of the 6 inside"),
    ],
)
def test_tiles_that_do_not_suit(tiles, error, said):
    with pytest.raises(error, match=said):
        roller.rate(matmul(), "cpu:zen3", tiles=tiles)
