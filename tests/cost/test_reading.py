"""What lanes read in place: how long they wait for it, for how many steps at a time they read, and runs along shared reductions."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import roller
from emulating import emulated, expression, needs_cxx, text_of
from roller import ops, verify
from roller.cost.model import Model
from roller.cost.parameters import CostParameters, Unrolling
from roller.cost.unrolling import MOST_UNROLLED, steps_together
from roller.device.chip import load_spec, resolve
from roller.ir.nest import variants
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram, Staging, lane_level, tiled_levels
from roller.search.construct import construct
from roller.search.funnel.lattice import MOST_RUN
from roller.target.hardware import HardwareSpec

H100 = load_spec("cuda:h100")
SHARED = 2  # the level


def times_vector(m: int, k: int, dtype: str = "float32") -> ops.SymbolicTensor:
    return ops.einsum("mk,k->m", ops.tensor((m, k), dtype, name="a"), ops.tensor((k,), dtype, name="x"))


def program(m: int, k: int, tile: tuple[int, int], inner: tuple[int, int], staged: bool = True) -> StageProgram:
    """Rows times a vector; lanes share the reduction."""
    expr = expression(times_vector(m, k))
    nest = variants(expr.stages[0], expr.tensors)[0]
    atom, order = next(a for a in H100.atoms if a.name == "f32"), ((0, 1),) * 2
    panels = (Staging("panel", 1, SHARED, 2),) if staged else ()
    return StageProgram(
        nest, atom, (), tiled_levels(H100), (tile, inner), order, panels, lane_level=lane_level(H100), cooperate=True
    )


def waited(stage: StageProgram, spec: HardwareSpec = H100) -> float:
    """Predicted seconds of waiting."""
    return dict(Model(spec, CostParameters(), Geometry(stage.nest)).estimate(stage).terms)["latency"]


def without_latencies() -> HardwareSpec:
    levels = [level.model_copy(update={"latency_ns": 0.0}) for level in H100.levels]
    return H100.model_copy(update={"levels": tuple(levels)})


def test_a_tile_alone_waits_for_each_of_its_steps() -> None:
    """132 tiles, one for each multiprocessor, of 128 lanes with a row each; a panel is filled in between. Half of what they read,
    the vector, was read by others before and comes from the cache.
    """
    stage = program(132, 65536, (1, 128), (1, 1))
    each = (H100.levels[SHARED].latency_ns + H100.levels[SHARED - 1].latency_ns / 2) * 1e-9
    assert waited(stage) == pytest.approx(512 * each, rel=0.02)
    assert waited(stage, without_latencies()) == 0


def test_more_bytes_under_way_wait_less() -> None:
    """Four times the lanes, or runs of four, take a quarter of the steps; tiles on a multiprocessor wait beside one another."""
    one = waited(program(132, 65536, (1, 128), (1, 1)))
    assert waited(program(132, 65536, (1, 512), (1, 1))) == pytest.approx(one / 4, rel=0.05)
    assert waited(program(132, 65536, (1, 512), (1, 4))) == pytest.approx(one / 4, rel=0.05)
    four = program(528, 65536, (1, 128), (1, 1))
    assert waited(four) < 1.05 * one, "four times the work"


def test_steps_that_nothing_stands_between_read_together() -> None:
    """Steps of sums are repeated, and their reads started before the first is added; where a panel is filled they are not."""
    rows = expression(ops.reduce_sum(ops.tensor((132, 65536)), 1))
    alone = replace(program(132, 65536, (1, 128), (1, 1), staged=False), nest=variants(rows.stages[0], rows.tensors)[0])
    assert steps_together(alone, Unrolling()) == MOST_UNROLLED
    assert steps_together(replace(alone, tiles=((1, 16384), (1, 1))), Unrolling()) == 4, "no more than there are"
    assert steps_together(alone, Unrolling(4)) == 4
    assert steps_together(program(132, 65536, (1, 128), (1, 1)), Unrolling()) == 1
    assert waited(alone) < waited(program(132, 65536, (1, 128), (1, 1))) / 4


def test_the_kernel_repeats_as_many_steps_as_the_model_says() -> None:
    rows = expression(ops.reduce_sum(ops.tensor((132, 65536)), 1))
    stage = replace(program(132, 65536, (1, 128), (1, 1), staged=False), nest=variants(rows.stages[0], rows.tensors)[0])
    text = str(text_of(H100, RProgram(rows, (stage,))).launch["text"])
    assert re.findall(r"#pragma unroll (\d+)\s+for \(int \w+ = 0; \w+ < 512;", text) == [str(steps_together(stage, Unrolling()))]


@pytest.mark.parametrize(("dtype", "run"), [("float16", 8), ("float32", 4), ("int8", 16)])
def test_lanes_that_share_a_reduction_take_as_much_of_a_row_as_one_access(dtype: str, run: int) -> None:
    op = times_vector(4096, 4096, dtype)
    plugin, spec = resolve("cuda:h100")
    expr = expression(op)
    best = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 1)[0].program
    (stage,) = best.stages
    assert stage.cooperate and stage.inner[1] == run, stage.describe()


def test_rows_that_no_wide_access_fits_have_no_runs() -> None:
    plugin, spec = resolve("cuda:h100")
    expr = expression(times_vector(4096, 4095))
    for found in construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 5):
        assert found.program.stages[0].inner[1] == 1


def test_lanes_read_several_rows_at_once_where_each_is_an_access_of_its_own() -> None:
    """A sum over row-major rows: nothing lies along the reduction, and loads of several rows are on their way together."""
    plugin, spec = resolve("cuda:h100")
    expr = expression(ops.reduce_sum(ops.tensor((65536, 1024), "float16"), 0))
    best = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 1)[0]
    (stage,) = best.program.stages
    assert stage.cooperate and 1 < max(stage.inner[dim] for dim in stage.nest.reduce) <= MOST_RUN, stage.describe()


@needs_cxx
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("lanes", [2, 24, 48, 64, 96, 320, 384, 512, 1024])
def test_values_of_any_number_of_lanes_meet_right_and_by_halves_where_they_can(lanes: int, backwards: bool) -> None:
    """The largest power of two that divides the lanes of a reduction exchange values; as many groups exchange theirs, too."""
    rows = max(1, 64 // lanes)
    expr = expression(times_vector(3 * rows, 2 * lanes + 1))
    stage = replace(program(3 * rows, 2 * lanes + 1, (rows, lanes), (1, 1)), nest=variants(expr.stages[0], expr.tensors)[0])
    artifact = text_of(H100, RProgram(expr, (stage,)))
    text = str(artifact.launch["text"])
    near = min(32, lanes & -lanes) if lanes * rows % 32 == 0 else 1
    groups = lanes // near
    halves = near > 1 and groups & (groups - 1) == 0
    exchanged = near.bit_length() - 1 + (groups.bit_length() - 1 if halves else 0)
    assert text.count("__shfl_xor_sync") == exchanged
    assert ("int other" in text) == (groups > 1 and not halves)
    arrays = verify.random_inputs(expr, 3)
    verify.check(expr, arrays, emulated(expr, artifact, arrays, backwards, True))


@needs_cxx
@pytest.mark.parametrize(("dtype", "alone", "beside"), [("float16", "uint4", "half4"), ("float32", "float4", "float4")])
@pytest.mark.parametrize("chip", ["cuda:v100", "cuda:h100"])
def test_runs_are_right_and_are_read_in_wide_accesses(chip: str, dtype: str, alone: str, beside: str) -> None:
    """Of 16 bytes; where lanes read a panel of float32 with the same pieces, of four values."""
    plugin, spec = resolve(chip)
    for op, wide in ((ops.reduce_sum(ops.tensor((24, 1536), dtype, name="a"), 1), alone), (times_vector(24, 1536, dtype), beside)):
        expr = expression(op)
        found = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 50)
        whole = 8 if wide == "uint4" else 4
        drawn = next(c.program for c in found if c.program.stages[0].cooperate and c.program.stages[0].inner[1] % whole == 0)
        artifact = text_of(spec, drawn)
        assert f"*({wide}*)(a_ptr" in str(artifact.launch["text"])
        arrays = verify.random_inputs(expr, 3)
        verify.check(expr, arrays, emulated(expr, artifact, arrays, False, True))


def test_sums_in_place_are_rated_by_the_same_rules_as_they_are_constructed() -> None:
    op = ops.reduce_sum(ops.tensor((4096, 4096), "float16"), 1)
    kernel = roller.compile(op, "cuda:h100")
    (stage,) = kernel.program.stages
    tiles = [{d.name: extent for d, extent in zip(stage.nest.dims, tile, strict=True)} for tile in stage.tiles]
    assert roller.rate(op, "cuda:h100", tiles=tiles).seconds <= 1.001 * kernel.estimate.seconds
