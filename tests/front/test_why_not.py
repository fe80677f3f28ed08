"""Why a tile that the user names was not chosen."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import roller
from roller import ops
from roller.cli.app import app
from roller.cost.model import Model
from roller.device.chip import resolve
from roller.errors import ExpressionError
from roller.program.footprint import Geometry

CHIPS = ("cpu:x86-64-v3", "cuda:a100", "rocm:mi300x", "ipu_sim:gc200")


@cache
def made(chip: str) -> Any:
    return roller.construct(ops.matmul(roller.tensor((256, 128), name="a"), roller.tensor((128, 384), name="b")), chip)


def about(chip: str, **tile: int) -> Any:
    return made(chip).explain(why_not=tile).alternative


def unit_tile(program: Any) -> dict[str, int]:
    return {dim.name: extent for dim, extent in zip(program.nest.dims, program.unit_tile, strict=True)}


@pytest.mark.parametrize("chip", CHIPS)
def test_the_chosen_tile_is_predicted_no_slower(chip: str) -> None:
    chosen = made(chip).program.stages[0]
    found = about(chip, **unit_tile(chosen))
    assert found.rule is None and found.change <= 1e-9, "the chosen program has this tile"
    assert found.program.unit_tile == chosen.unit_tile


OPERATORS = {
    "a product of 100": lambda: ops.matmul(roller.tensor((100, 100)), roller.tensor((100, 100))),
    "exp": lambda: ops.exp(roller.tensor((1024, 1000))),
    "pool": lambda: ops.max_pool2d(roller.tensor((1, 64, 56, 56)), 3, 2),
    "transpose": lambda: ops.transpose(roller.tensor((2048, 1000))),
    "sum": lambda: ops.reduce_sum(roller.tensor((512, 4096)), 1),
}


@pytest.mark.parametrize("chip", ["cpu:zen5", "cuda:a100", "rocm:mi300x", "ipu_sim:bow"])
@pytest.mark.parametrize("name", OPERATORS)
def test_tiles_of_candidates_are_rated_as_these(name: str, chip: str) -> None:
    """A tile that construction itself offers is neither excluded nor slower, wholly named or one extent alone."""
    made = roller.construct(OPERATORS[name](), chip, top_k=2)
    for candidate in made.candidates:
        (program,) = candidate.program.stages
        whole = unit_tile(program)
        for tile in (whole, *[{dim: extent} for dim, extent in whole.items()]):
            found = made.explain(tile).alternative
            assert found.rule is None, (tile, found.rule)
            assert tile.items() <= unit_tile(found.program).items()
            assert found.estimate.seconds <= 1.01 * candidate.estimate.seconds  # occupancy is confirmed for the best one only


@pytest.mark.parametrize("chip", ["cpu:zen5", "cuda:a100"])
def test_answers_are_no_slower_than_programs_drawn_with_the_tile(chip: str) -> None:
    made = roller.construct(ops.matmul(roller.tensor((1024, 1024)), roller.tensor((1024, 1024))), chip)
    parameters = resolve(chip)[0].cost_parameters(made.spec, made.program.expr)
    for drawn in roller.enumerate_programs(made.program.expr, chip).sample(4, seed=7):
        (program,) = drawn.stages
        rated = Model(made.spec, parameters, Geometry(program.nest)).estimate(program).seconds
        for named in (("m", "n", "k"), ("m", "n"), ("m",)):
            tile = {name: unit_tile(program)[name] for name in named}
            found = made.explain(tile).alternative
            assert found.rule is None and found.estimate.seconds <= 1.05 * rated, tile


def test_row_groups_answer_for_all_of_their_stages() -> None:
    x = roller.tensor((512, 768))
    powers = ops.exp(x - ops.reduce_max(x, 1, True))
    made = roller.construct(powers / ops.reduce_sum(powers, 1, True), "cuda:a100")
    assert made.program.stages[0].nest.before, "one program for all stages"
    same = made.explain(unit_tile(made.program.stages[0])).alternative
    assert same.program == made.program.stages[0] and same.change == pytest.approx(0)
    assert made.explain({"i0": 4}).alternative.change > 0
    assert made.explain({"i1": 512}).alternative.rule.endswith("whole rows, and those that fit have 768, 1024")


@pytest.mark.parametrize("chip", CHIPS)
def test_another_tile_is_rated_with_all_that_it_leaves_open(chip: str) -> None:
    found = about(chip, m=64)
    assert found.program is not None and unit_tile(found.program)["m"] == 64
    assert {name for name, *_ in found.terms} == {n for n, s in [*found.estimate.terms, *found.chosen.terms] if s}
    assert found.change == pytest.approx(found.estimate.seconds / found.chosen.seconds - 1)


@pytest.mark.parametrize(
    ("tile", "innermost"),
    [
        ({"m": 4, "n": 4, "k": 40}, {"m": 1, "n": 2, "k": 1}),
        ({"m": 7, "n": 64, "k": 40}, {"m": 1, "n": 16, "k": 8}),  # with units that share results
    ],
)
def test_named_steps_of_a_reduction_are_kept(tile: dict[str, int], innermost: dict[str, int]) -> None:
    op = ops.matmul(roller.tensor((100, 100)), roller.tensor((100, 100)))
    rated = roller.rate(op, "ipu_sim:bow", tiles=[tile, innermost]).seconds
    made = roller.construct(op, "ipu_sim:bow")
    for named in (tile, {"k": tile["k"]}):
        assert made.explain(named).alternative.estimate.seconds <= rated


def test_of_several_stages_the_longest_is_meant() -> None:
    """A product of signed bytes has a stage that sums rows: both have dimensions m and k."""
    made = roller.construct(ops.matmul(roller.tensor((64, 64), "int8"), roller.tensor((64, 64), "int8")), "cpu:zen5")
    assert len(made.program.stages) > 1
    assert "n" in unit_tile(made.explain({"m": 6}).alternative.program)


def test_nothing_is_computed_in_any_tile() -> None:
    made = roller.construct(ops.matmul(roller.tensor((0, 8)), roller.tensor((8, 8))), "cpu:x86-64-v3")
    assert "nothing is computed" in made.explain({"n": 4}).alternative.rule


def test_rules_that_exclude_are_named() -> None:
    assert about("cpu:x86-64-v3", m=100_000_000).rule == "m = 100000000, more than the dimension's 256"
    assert about("cpu:x86-64-v3", n=4096).rule == "n = 4096, more than the dimension's 384"
    assert "shared capacity: " in about("cuda:a100", m=256, n=384, k=128).rule
    assert about("cuda:a100", m=256, n=384, k=1).rule.startswith("lanes per unit: ")
    assert about("ipu_sim:gc200", k=7).rule.startswith("k = 7, no multiple of 8")
    found = about("cpu:x86-64-v3", n=7)
    assert found.rule is None and found.program is not None and found.change > 0  # single points go into any tile
    excluded = about("cpu:x86-64-v3", n=4096)
    assert excluded.lines() == [f"matmul with a tile of n 4096: excluded by {excluded.rule}"]


@given(m=st.integers(1, 300), n=st.integers(1, 400), chip=st.sampled_from(CHIPS))
def test_every_tile_has_an_answer(m: int, n: int, chip: str) -> None:
    found = about(chip, m=m, n=n)
    assert (found.rule is None) == (found.program is not None) and found.lines()
    assert found.to_dict()["tile"] == {"m": m, "n": n}
    if found.program is not None:
        assert found.estimate.seconds > 0 and found.program.unit_tile[:2] == (m, n)


@pytest.mark.parametrize(
    ("tile", "said"),
    [
        ({"q": 4}, "no loop nest has dimension 'q'; there is: m, n, k"),
        ({"M": 4}, r"no loop nest has dimension 'M' \(did you mean 'm'\?\)"),
        ({}, "a tile such as"),
        ({"m": 0}, "positive integers"),
        ({"m": 10**30}, "positive integers of 63 bits"),
        ({"m": True}, "positive integers"),
        ([1], "a tile such as"),
        ("m=1", "a tile such as"),
        ({1: 2}, "a tile such as"),
    ],
)
def test_what_is_no_tile_is_refused(tile: Any, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        made("cpu:x86-64-v3").explain(why_not=tile)


def test_kernels_and_the_command_line_answer() -> None:
    kernel = roller.compile(ops.matmul(roller.tensor((64, 64)), roller.tensor((64, 64))), "cpu:x86-64-v3")
    assert "with a tile of m 32: predicted" in str(kernel.explain({"m": 32})) and "why_not" in kernel.explain({"m": 32}).to_dict()
    assert "why_not" not in kernel.explain().to_dict()
    words = ["explain", "matmul", "64x64", "64x64", "-d", "cpu:x86-64-v3", "--why-not"]
    assert "with a tile of m 32, n 16: predicted" in " ".join(CliRunner().invoke(app, [*words, "m=32, n=16"]).output.split())
    assert about("cpu:x86-64-v3", m=np.int64(64)).tile == (("m", 64),)
    for wrong in ("m=4,m=8", "m", "m=", "=3", "m=x", "m=3;n=4", "m=-4", "m=0", f"m={'9' * 5000}"):
        done = CliRunner().invoke(app, [*words, wrong])
        assert done.exit_code == 2 and done.exception.code == 2  # type: ignore[union-attr]
        assert any(said in " ".join(done.output.split()) for said in ("is no tile such as", "twice", "no dimension is that long"))
