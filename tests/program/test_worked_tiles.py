"""The worked examples of the engine's design, on the four kinds of machine: shapes, shares and binding terms, not digits.

Machines: a processor of two cores (zen5), a grid of lanes (h100), a bulk-synchronous chip of 1472 small memories (bow), and an
invented accelerator with a scratchpad, an accumulator memory and a weight-stationary matrix unit (npu-demo).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from roller import ops
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.device.plugins import load_device
from roller.ir.expr import TensorExpr
from roller.ir.nest import variants
from roller.program.alignment import Multiple, Rules
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, tiled_levels
from roller.search.construct import construct
from roller.search.stages import Candidate
from roller.target.catalog import load_spec
from roller.target.hardware import HardwareSpec
from roller.target.subset import narrowed
from roller.testing import constructed, expression, gemm

SPECS = Path(__file__).parents[2] / "specs"
MACHINES = {
    "cpu": "cpu/zen5.toml",
    "gpu": "cuda/h100.toml",
    "ipu": "ipu_sim/bow.toml",
    "npu": "npu_demo/npu-demo.toml",
}


@cache
def machine(name: str) -> HardwareSpec:
    return load_spec(SPECS / MACHINES[name])


OPERATORS: dict[str, TensorExpr] = {
    "gemm": gemm(1024, 1024, 1024),
    "half gemm": expression(ops.matmul(ops.tensor((1024, 1024), "float16", "a"), ops.tensor((1024, 1024), "float16", "b"))),
    "conv": expression(ops.conv2d(ops.tensor((1, 64, 56, 56), name="x"), ops.tensor((64, 64, 3, 3), name="w"), padding=1)),
    "row max": expression(ops.reduce_max(ops.tensor((4096, 1024), name="x"), 1)),
    "sum": expression(ops.reduce_sum(ops.tensor((2**24,), name="x"))),
}


@cache
def built(operator: str, name: str) -> list[Candidate]:
    return constructed(OPERATORS[operator], machine(name), 10)


def best(operator: str, name: str) -> tuple[StageProgram, dict[str, float], str]:
    """The best program, its terms in microseconds, and the term that bounds."""
    found = built(operator, name)[0]
    terms = {term: seconds * 1e6 for term, seconds in found.estimate.terms}
    print(f"{found.program.describe()}: {found.estimate.seconds * 1e6:.1f} us, {terms}, {found.estimate.utilisation}")
    return found.program.stages[0], terms, found.estimate.bound_by


def share_of_units(operator: str, name: str) -> float:
    return dict(built(operator, name)[0].estimate.utilisation)["units"]


def micros(operator: str, name: str) -> float:
    return built(operator, name)[0].estimate.seconds * 1e6


# --- GEMM 1024 x 1024 x 1024 -----------------------------------------------------------------------------------------


def test_gemm_on_the_processor_keeps_rows_of_four_vectors_in_registers() -> None:
    program, terms, bound = best("gemm", "cpu")
    assert bound == "compute"
    assert program.inner in ((6, 64, 1), (5, 64, 1), (4, 64, 1))  # 16 to 24 accumulators, 4 + 1 others, of 32 registers
    assert program.unit_tiles >= 2 * machine("cpu").unit.count
    assert {lp.over for lp in program.loops if program.nest.dims[lp.dim].is_reduce} == {"time"}
    assert terms["compute"] == pytest.approx(2 * 1024**3 / 476.2e3, rel=0.02)


def test_gemm_on_the_processor_refuses_seven_rows_and_starves_on_four() -> None:
    spec, (program, _, _) = machine("cpu"), best("gemm", "cpu")
    nest, (atom, mapping, levels) = program.nest, (program.atom, program.mapping, program.levels)
    fit, model = Fit(spec, nest, Geometry(nest)), Model(spec, CostParameters(), Geometry(nest))
    last = len(levels) - 1
    assert fit.fits(levels, last, (6, 64, 1), (1, 16, 1), mapping, atom)
    assert not fit.fits(levels, last, (7, 64, 1), (1, 16, 1), mapping, atom)  # 28 + 4 + 1
    small = replace(program, tiles=((96, 256, 1024), (4, 16, 1)))
    assert model.chain_efficiency(model.walk(small)) == 0.5  # four of eight chains


def test_gemm_on_the_grid_fills_one_wave_with_square_lane_tiles() -> None:
    program, terms, bound = best("gemm", "gpu")
    assert bound == "compute"
    assert share_of_units("gemm", "gpu") >= 0.95
    assert program.dispatch.split == 1
    m, n, _ = program.inner
    assert 64 <= m * n <= 128 and max(m, n) <= 4 * min(m, n)
    assert 128 <= program.lanes <= 256
    rows, columns, depth = program.unit_tile
    assert rows * columns == 64 * 128 and 16 <= depth <= 128
    assert 10 <= terms["shared"] <= 30 and 30 <= terms["compute"] <= 36


def rated(like: StageProgram, name: str, tiles: tuple[tuple[int, ...], ...], split: int = 1) -> tuple[float, dict[str, float]]:
    """The same program with other tiles: its time and its terms in microseconds."""
    program = replace(like, tiles=tiles).dispatched(split=split)
    found = Model(machine(name), CostParameters(), Geometry(like.nest)).estimate(program)
    return found.seconds * 1e6, {term: seconds * 1e6 for term, seconds in found.terms}


def test_gemm_on_the_grid_in_half_precision_gives_nearly_every_unit_one_tile() -> None:
    """128 tiles of 64 x 128 for 132 units. The one warp group of each keeps its matrix units busy, and what moves into the units
    takes longest. Tiles twice as tall, for half of the units or cut in two along the reduction, take longer. Two tiles in a cluster
    would bring one factor once for both, but each to a port of its own: that saves less than they wait for one another.
    """
    program, terms, bound = best("half gemm", "gpu")
    assert (program.atom.kind, program.unit_tiles, program.dispatch.cluster, bound) == ("matrix", 128, 1, "shared")
    assert dict(built("half gemm", "gpu")[0].estimate.utilisation)["chains"] == 1.0
    tall, halved = rated(program, "gpu", ((128, 128, 128), (64, 128, 16)))
    parts, cut = rated(program, "gpu", ((128, 128, 512), (64, 64, 16)), split=2)
    assert micros("half gemm", "gpu") < min(tall, parts)
    assert halved["compute"] == pytest.approx(terms["compute"]) and halved["tail"] > 10 * terms["tail"]
    assert cut["shared"] < terms["shared"] and cut["combine"] > terms["shared"]
    _, together = rated(program.dispatched(cluster=2), "gpu", program.tiles)
    assert 0.95 * terms["shared"] < together["shared"] < terms["shared"] and together["overhead"] > terms["overhead"]


def test_one_warp_of_matrix_units_leaves_the_others_of_its_unit_idle() -> None:
    """Four groups of 32 lanes issue in a cycle: with one of them, computing takes four times as long; with four, no longer."""
    grid = machine("gpu")
    unit = next(a for a in grid.atoms if a.name == "mma_m16n8k16_f16")
    nest = variants(OPERATORS["half gemm"].stages[0], OPERATORS["half gemm"].tensors)[0]
    model = Model(grid, CostParameters(), Geometry(nest))
    program = replace(best("half gemm", "gpu")[0], atom=unit, mapping=(("m", 0), ("n", 1), ("k", 2)), nest=nest)
    one, four, eight = (
        model.compute_seconds(model.walk(replace(program, tiles=((64, 128, 64), inner))))
        for inner in ((64, 128, 16), (32, 64, 16), (32, 32, 16))
    )
    assert one == pytest.approx(4 * four) and eight == pytest.approx(four)


def test_gemm_on_the_bulk_synchronous_chip_occupies_it_by_cutting_the_reduction() -> None:
    program, terms, bound = best("gemm", "ipu")
    total = micros("gemm", "ipu")
    assert (program.atom.name, bound) == ("amp_f32", "compute")
    assert 8 <= program.dispatch.split <= 32
    assert 4096 <= program.unit_tile[0] * program.unit_tile[1] <= 16384
    assert terms["combine"] >= 0.1 * total and terms["SRAM"] >= 0.1 * total
    terms_that_never_overlap = sum(terms.values())
    assert total == pytest.approx(terms_that_never_overlap, rel=0.01)


def test_gemm_on_the_bulk_synchronous_chip_gives_its_units_equal_shares() -> None:
    """As far as extents are those that growth goes through; where any number of equal parts will do, more so."""
    _, terms, _ = best("gemm", "ipu")
    assert share_of_units("gemm", "ipu") >= 0.9
    assert terms["compute"] == pytest.approx(28.7, rel=0.1)
    spec, expr = machine("ipu"), OPERATORS["gemm"]
    even = Rules(spec.atoms, {(tiled_levels(spec)[0], dim): Multiple(even=True) for dim in "mnk"})
    found = construct(expr, spec, even, CostParameters(), 10)[0].estimate
    assert dict(found.utilisation)["units"] >= 0.95
    assert found.seconds <= built("gemm", "ipu")[0].estimate.seconds


def test_gemm_on_the_accelerator_accumulates_in_place() -> None:
    program, terms, bound = best("gemm", "npu")
    assert (program.atom.name, bound) == ("mxu", "compute")
    assert program.accumulator_visits == 1
    assert program.unit_tile[0] * program.unit_tile[1] == 256 * 256  # all that the accumulators hold
    assert share_of_units("gemm", "npu") == 1
    assert terms["scratchpad"] < terms["compute"]


def test_gemm_on_the_accelerator_streams_long_rows_rather_than_move_least() -> None:
    """256 x 256 moves 38 MB, the least, but starts the matrix unit anew every 256 rows; 1024 rows by 64 compute for less."""
    program, _, _ = best("gemm", "npu")
    seconds, square = rated(program, "npu", ((256, 256, 128), (256, 256, 16)))
    assert square["compute"] == pytest.approx(1114, rel=0.05)
    assert square["scratchpad"] == pytest.approx(189, rel=0.05)
    assert micros("gemm", "npu") <= seconds


def test_gemm_on_the_accelerator_ranks_spilled_accumulators_lower() -> None:
    """512 x 512 accumulators do not fit: they wait in memory between visits, which costs more than half of all time there."""
    spec, found = machine("npu"), built("gemm", "npu")[0]
    program = found.program.stages[0]
    nest = program.nest
    spilling = replace(
        program, tiles=((512, 512, 64), (256, 256, 16)), orders=((0, 1, 2), (0, 1, 2)), mapping=(("m", 0), ("n", 1), ("k", 2))
    )
    assert spilling.accumulator_visits > 1
    rating = Model(spec, CostParameters(), Geometry(nest)).estimate(spilling)
    assert rating.seconds > found.estimate.seconds
    assert dict(rating.terms)["scratchpad"] * 1e6 >= 400


@pytest.mark.parametrize("chip", ["x86-64-v3", "zen3", "zen4", "zen5", "skylake-avx512"])
def test_a_panel_of_a_thin_product_is_filled_once_for_all_its_rows(chip: str) -> None:
    """256 x 4096 by 4096 x 4096: if b is copied, half a cache holds a part of it, and all 256 rows use it before the next one.

    Where one core may draw the bandwidth of twelve memory channels (Neoverse V2), copying all of b once costs less.
    """
    spec = narrowed(load_spec(SPECS / f"cpu/{chip}.toml"), 1)
    device, expr = load_device("cpu"), gemm(256, 4096, 4096)
    program = construct(expr, spec, device.rules(spec, expr), device.cost_parameters(spec, expr), 1)[0].program.stages[0]
    (panel,) = [staging for staging in program.staged if staging.operand == 1]
    assert panel.level > 0
    assert program.unit_tile[0] >= 256 > program.inner[0]


def test_a_tile_around_a_panel_obeys_the_limits_of_the_device() -> None:
    spec, expr = narrowed(load_spec(SPECS / "cpu/zen3.toml"), 1), gemm(256, 4096, 4096)
    limited = Rules(spec.atoms, {(level, "m"): Multiple(1, 64) for level in tiled_levels(spec)})
    found = construct(expr, spec, limited, CostParameters(), 10)
    assert all(c.program.stages[0].unit_tile[0] <= 64 for c in found)


# --- convolution: 64 x 56 x 56, 64 filters of 3 x 3 ------------------------------------------------------------------


def test_convolution_on_the_processor_is_bound_by_compute_without_a_window_innermost() -> None:
    """Vectors lie along filters (a panel lays the weights so) or along pixels (padded to whole vectors), never along a tap."""
    program, terms, bound = best("conv", "cpu")
    assert bound == "compute"
    assert program.atom.kind == "vector"
    assert program.nest.dims[program.mapping[0][1]].name in ("f", "w", "h.w")
    arithmetic = 231.2e6 / 476.2e3
    assert 0.99 * arithmetic <= terms["compute"] <= 1.01 * arithmetic * 64 / 56  # 56 pixels are three and a half vectors
    assert micros("conv", "cpu") <= 1.37 * arithmetic


def test_convolution_on_the_grid_takes_one_launch_and_its_arithmetic() -> None:
    program, terms, _ = best("conv", "gpu")
    assert program.dispatch.split == 1
    assert share_of_units("conv", "gpu") >= 0.95  # one tile for each, or small ones that leave few idle at the end
    assert terms["compute"] + terms["overhead"] >= 0.6 * micros("conv", "gpu")
    assert 7 <= micros("conv", "gpu") <= 13


def test_convolution_on_the_bulk_synchronous_chip_cuts_the_channels() -> None:
    program, terms, _ = best("conv", "ipu")
    assert program.atom.kind == "matrix"
    assert 4 <= program.dispatch.split <= 23
    assert terms["combine"] >= 0.05 * micros("conv", "ipu")
    assert share_of_units("conv", "ipu") >= 0.7
    assert micros("conv", "ipu") <= 15  # 27 on vectors


def test_convolution_on_the_accelerator_finds_the_matrix_unit() -> None:
    program, _, bound = best("conv", "npu")
    assert (program.atom.name, bound) == ("mxu", "compute")
    lies = {role: program.nest.dims[dim].name for role, dim in program.mapping}
    assert lies["n"] == "f" and lies["m"] in ("h.w", "h", "w") and lies["k"].startswith("c")
    assert micros("conv", "npu") <= 160  # 1800 on vectors


# --- the greatest of each row: the first pass of a softmax -----------------------------------------------------------


def test_row_maximum_on_the_processor_streams_rows_along_vectors() -> None:
    program, terms, bound = best("row max", "cpu")
    assert bound == "L3"
    assert program.nest.dims[program.mapping[0][1]].is_reduce
    assert terms["L3"] == pytest.approx(4096 * 1024 * 4 / 70e3, rel=0.05)
    assert micros("row max", "cpu") <= 1.25 * terms["L3"]


@pytest.mark.parametrize("shape", [(61, 97), (35, 121), (33, 259)])
@pytest.mark.parametrize("chip", ["x86-64-v3", "zen3", "zen5"])
def test_a_row_maximum_that_one_core_does_is_vectorised(shape: tuple[int, int], chip: str) -> None:
    """What starting a second core costs is no property of the innermost tile: it used to favour one tile over all rows."""
    expr = expression(ops.reduce_max(ops.tensor(shape), 1))
    program = constructed(expr, load_spec(SPECS / f"cpu/{chip}.toml"), 1)[0].program.stages[0]
    assert (program.unit_tiles, program.atom.kind) == (1, "vector")


def test_row_maximum_on_the_grid_puts_lanes_on_the_row() -> None:
    program, terms, _ = best("row max", "gpu")
    along = math.prod(lp.trips for lp in program.loops if lp.over == "lanes" and program.nest.dims[lp.dim].is_reduce)
    assert along * program.inner[1] * 4 >= 128, "neighbouring lanes read whole lines"
    assert terms["L2"] == pytest.approx(5.0, rel=0.1)
    assert micros("row max", "gpu") <= 15  # memory, and one launch


def test_row_maximum_on_the_bulk_synchronous_chip_gives_every_tile_a_few_rows() -> None:
    program, _, bound = best("row max", "ipu")
    assert share_of_units("row max", "ipu") >= 0.9
    assert bound in ("compute", "SRAM")
    assert micros("row max", "ipu") <= 5
    assert program.dispatch.split <= 16


def test_row_maximum_on_the_accelerator_is_bound_by_memory() -> None:
    program, terms, bound = best("row max", "npu")
    assert bound == "scratchpad"
    assert terms["scratchpad"] == pytest.approx(84, rel=0.05)
    assert program.unit_tile[0] >= 16 and program.unit_tile[1] == 1024


# --- the sum of 2^24 numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bounds", "low", "high"),
    [
        ("cpu", "L3", 958, 1100),
        ("gpu", "L2", 20, 40),
        ("ipu", "", 6, 15),
        ("npu", "scratchpad", 335, 400),
    ],
)
def test_a_sum_is_cut_over_all_units_and_along_all_lanes(name: str, bounds: str, low: float, high: float) -> None:
    program, _, bound = best("sum", name)
    # The last part may be shorter; 128 parts of 32 steps each take as long as 132 of which the last ones have less to do.
    assert 0.96 * machine(name).unit.count <= program.dispatch.split <= machine(name).unit.count
    assert 0.96 <= share_of_units("sum", name) <= 1
    assert low <= micros("sum", name) <= high
    assert bound == bounds or not bounds
    if program.lane_level is not None:
        assert 128 <= program.lanes <= machine(name).unit.lanes_max
    elif program.atom.kind == "vector":
        assert program.nest.dims[program.mapping[0][1]].is_reduce


def test_a_sum_on_the_processor_keeps_eight_chains_busy() -> None:
    program, _, _ = best("sum", "cpu")
    assert program.inner[0] >= 8 * 16
    assert dict(built("sum", "cpu")[0].estimate.utilisation)["chains"] == 1


def test_the_matrix_nest_is_the_one_that_the_tests_mean() -> None:
    assert [d.name for d in variants(OPERATORS["gemm"].stages[0], OPERATORS["gemm"].tensors)[0].dims] == ["m", "n", "k"]
