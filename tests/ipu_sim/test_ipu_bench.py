"""The benchmarks of the simulated IPUs: what the baseline planner tries, ratios, cuts of batches. No IPU, nothing is timed."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

import roller
from bench.common import targets
from bench.ipu import baseline, cases, gemm, naive, ops119, planner, sides, simulated
from bench.ipu.baseline import Row
from bench.ipu.planner import Family, best, families
from bench.ipu.sides import Side
from roller import ops
from roller.ir.fusion import fuse
from roller.ops import SymbolicTensor
from roller.plugin import HardwareSpec, find_spec
from roller_ipu_sim.cost import model

BOW = find_spec("ipu_sim", "bow")


def chip(tiles: int) -> HardwareSpec:
    """A Bow of fewer tiles."""
    return BOW.model_copy(update={"unit": BOW.unit.model_copy(update={"count": tiles})})


def families_of(op: SymbolicTensor, spec: HardwareSpec) -> list[Family]:
    return families(fuse(ops.expression(op)), 0, spec)


def image(*shape: int) -> SymbolicTensor:
    return ops.tensor(shape, name="x")


SMALL: dict[str, SymbolicTensor] = {
    "product": cases.product(24, 40, 48, "float32"),
    "halves": cases.product(9, 32, 64, "float16"),
    "batched": cases.batched(3, 8, 16, 16, "float32"),
    "convolution": cases.convolution(1, 16, 6, 32, 3, 1),
    "depthwise": cases.depthwise(1, 8, 6, 3, 1),
    "pooling": ops.max_pool2d(image(1, 8, 12, 12), (2, 2)),
    "sum": ops.reduce_sum(image(24, 64), (1,)),
    "columns": ops.reduce_sum(image(64, 24), (0,)),
    "relu": ops.relu(image(40, 40)),
    "rows added": image(20, 40) + ops.tensor((40,), name="y"),
}


def test_planner_tries_every_split_of_a_product() -> None:
    (family,) = families_of(cases.product(12, 32, 64, "float32"), BOW)
    found = {family_parts(family, tile) for tile in family.tiles(8)}
    expected = set()
    for rows, columns, depth in itertools.product(range(1, 13), range(1, 3), range(1, 9)):
        size = -(-12 // rows), -(-32 // 16 // columns) * 16, -(-64 // 8 // depth) * 8
        parts = -(-12 // size[0]), -(-32 // size[1]), -(-64 // size[2])
        if parts[1] * parts[2] <= 8:  # rows may follow one another
            expected.add(parts)
    assert found == expected


def family_parts(family: Family, tile: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-e // t) for e, t in zip(family.space.nest.extents, tile, strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_planner_takes_the_least_of_all_splits(name: str) -> None:
    spec = chip(24)
    for family in families_of(SMALL[name], spec):
        placing = planner.poplibs(spec, family.in_place)
        cycles = {tile: model.estimate(placing, family.program(tile)).seconds * spec.clock_ghz * 1e9 for tile in family.tiles(24)}
        assert all(family.least(tile) <= taken for tile, taken in cycles.items())
        found = best(family)
        least = min(cycles.values(), default=math.inf)
        assert (found is None) == math.isinf(least)
        assert found is None or found.cycles == round(least)
        assert found is None or (sum(found.terms.values()) == found.cycles and found.splits == len(cycles))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("product", "product"), ("convolution", "product"), ("depthwise", "window"), ("sum", "reduction"), ("relu", "elementwise")],
)
def test_planner_knows_what_it_plans(name: str, kind: str) -> None:
    assert {family.kind for family in families_of(SMALL[name], BOW)} == {kind}


def test_planner_streams_the_first_operand_only() -> None:
    (family,) = families_of(SMALL["product"], BOW)
    rows = dict(family.space.mapping)["m"]
    assert family.space.nest.factor_touches(0)[rows]
    assert not family.space.nest.factor_touches(1)[rows]
    assert planner.poplibs(BOW, False).options["placing"] == {"in_place": False, "interleaved": False}


def test_linear_spread_leaves_at_least_128_bytes_a_tile() -> None:
    for family in families_of(SMALL["relu"], BOW):
        sizes = [math.prod(tile) * 4 for tile in family.tiles(1472)]
        assert sizes
        assert min(sizes) >= 128
    (least,) = {tile for family in families_of(ops.relu(image(2, 4)), BOW) for tile in family.tiles(1472)}
    assert least == (8,)  # less than 128 bytes in all lies on one tile


def test_one_tile_by_hand() -> None:
    """The matrix unit's vertex: 50 + 6 x 7 + 13, 11 + 18 + 7 + 64 and 6 x 25 + 14 for the rows. Exchange: 96 + 256 elements of 2
    bytes are 176 words, to the tile that keeps them; 52 + 2 x 11 + 250 about it.
    """
    (family,) = families_of(cases.product(6, 16, 16, "float16"), chip(1))
    found = best(family)
    assert found is not None
    assert found.terms == {"compute": 369, "exchange": 500}
    assert found.parts() == {"m": 1, "n": 1, "k": 1}


def test_naive_mapping_has_no_matrix_unit_and_no_split() -> None:
    for name in ("product", "halves", "pooling", "relu"):
        (found,) = naive.planned(ops.expression(SMALL[name]), BOW)
        assert found.program.atom.kind == "scalar"
        assert found.program.dispatch.split == 1


def test_the_operand_that_takes_less_time_is_streamed() -> None:
    """With rows along n, in tiles of 16 x 13 x 16, it takes 1924 cycles."""
    op = cases.product(8, 512, 512, "float16")
    found = sides.constructed(op, BOW)
    assert "rows along m" in found.programs[0] and found.cycles <= 1736
    assert "rows along m" in baseline.without_swap(op, BOW).programs[0]


def side(cycles: int) -> Side:
    return Side(cycles, {"compute": cycles}, ("program",), 0.0)


def row(case: str, family: str, baseline: int, ours: int | None, naive: int = 1000) -> Row:
    mine = side(ours) if ours is not None else None
    reasons = {} if mine is not None else {"constructed": "ConstructionError: no"}
    return Row(
        case,
        family,
        {"baseline": side(baseline), "constructed": mine, "no swap": mine, "no shift": mine, "naive": side(naive)},
        reasons,
    )


def test_ratios_by_hand() -> None:
    rows = [row("a", "gemm", 200, 100), row("b", "gemm", 80, 100), row("c", "conv", 450, 100), row("d", "conv", 9, None)]
    sums = baseline.summary(rows)
    assert sums["all"]["geomean"] == pytest.approx((2 * 0.8 * 4.5) ** (1 / 3))
    assert sums["all"]["worst"] == pytest.approx(0.8)
    assert sums["all"]["worst_case"] == "b"
    assert sums["all"]["worse"] == ["b"]
    assert sums["all"]["not_constructed"] == ["d"]
    assert sums["gemm"]["geomean_to_naive"] == pytest.approx(10.0)
    assert sums["gemm"]["silicon_points"]
    assert not sums["conv"]["silicon_points"]
    said = list(baseline.losses(rows))
    assert [line for line in said if not line.startswith(" ")] == ["conv d: no ratio", "gemm b: 0.800"]
    assert targets.of_sums("ipu_baseline", "all", sums["all"]) == "geomean ≥ 1.2 met, worst ≥ 1 **missed**"


def test_cases_are_enough_and_always_the_same() -> None:
    found = cases.cases()
    names = [(c.family, c.name) for c in found]
    assert len(found) >= 80
    assert len(set(names)) == len(names)
    assert names == [(c.family, c.name) for c in cases.cases()]
    assert sum(name.startswith("drawn") for _, name in names) == 20
    assert {family for family, _ in names} == {"gemm", "batch_matmul", "conv", "depthwise", "pooling", "reduce", "elementwise"}
    for case in found:
        assert ops.expression(case.build()).output.elements


def test_rates_and_errors_by_hand() -> None:
    point = gemm.Point("float16", 1000, 50, 200.0, side(1000), side(500), 2.0)  # 2 x 10^6 x 50 operations in 0.5 µs
    assert point.tflops(point.baseline) == pytest.approx(200.0)
    assert point.error == pytest.approx(0.0)
    assert point.saved == pytest.approx(2.0)
    worse = gemm.Point("float32", 1000, 50, 400.0, side(1000), None, 2.0)
    sums = gemm.summary([point, worse])
    assert sums["all"]["median_error"] == pytest.approx(0.25)
    assert sums["all"]["largest_error"] == pytest.approx(0.5)
    assert sums["all"]["largest_at"] == "float32 1000, batch 50"
    assert sums["all"]["constructed"] == 1
    assert worse.row()["constructed"] is None


def committed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((gemm.FILE.parent / name).read_text(encoding="utf-8"))
    return found


def test_committed_products_meet_silicon_and_the_baseline_is_as_it_was() -> None:
    found = committed("gemm.json")
    assert len(found["points"]) == sum(len(points) for points in gemm.SILICON.values()) == 28
    assert "missed" not in targets.of_sums("ipu_gemm", "all", found["summary"]["all"])
    for point in found["points"]:
        if point["size"] == 1024 and point["batch"] <= 64:
            op = gemm.product(point["dtype"], point["size"], point["batch"])
            assert sides.baseline(op, BOW).cycles == point["baseline"]["cycles"]


def test_batches_are_cut_until_arrays_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = roller.compile(SMALL["relu"], device="ipu_sim:bow")
    monkeypatch.setattr(ops119, "compiled", lambda _: (kernel, 0.5))  # what fits takes long to compile
    number = next(n for n, o in enumerate(ops119.paper_operators()) if ops119.array_bytes(o) > 1472 * 598016)
    operator = ops119.paper_operators()[number]
    row = ops119.at_size(number, operator, BOW)
    assert row["compile_s"] == 0.5
    assert row["batch_compiled"] < row["batch"] == ops119.batch_of(operator)
    assert ops119.batch_of(ops119.with_batch(number, row["batch_compiled"])) == row["batch_compiled"]
    said = row["refused"][str(row["batch"])]
    assert said.endswith(f"{row['array_bytes'] - row['room_bytes']} more than all tiles have for data")


def test_calls_of_the_simulator_are_timed_and_checked() -> None:
    cases = [simulated.timed(simulated.product(acc, 48), 3) for acc in ("float16", "float32")]
    assert all(case["right"] and len(case["call_s"]) == 3 for case in cases)
    assert [case["program"].split(":")[0].split(",")[0] for case in cases] == ["f16x4", "amp_f16"]
    told = simulated.summary([{"call_s": [1.0, 2.0]}, {"call_s": [6.0]}])["call"]
    assert told == {"median_s": 2.0, "worst_s": 6.0}
    assert targets.of_sums("ipu_exec", "call", told) == "worst_s ≤ 5 **missed**"
    held = json.loads(simulated.FILE.read_text(encoding="utf-8"))
    assert "missed" not in targets.of_sums("ipu_exec", "call", held["summary"]["call"])
