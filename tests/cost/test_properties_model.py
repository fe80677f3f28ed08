"""What any prediction must obey: bounds, monotonicity, transparent levels, scaling laws (properties 2 to 5)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import assume, example, given, note, settings, target
from hypothesis import strategies as st

from roller import ops
from roller.cost.model import estimate
from roller.cost.parameters import CostParameters
from roller.errors import ConstructionError
from roller.ir.expr import Axis, Stage, Tensor, TensorExpr
from roller.ir.scalar import Affine, Load, reindex, rewrite
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram
from roller.search.stages import Candidate
from roller.target.catalog import load_spec
from roller.target.hardware import HardwareSpec
from roller.testing import (
    FAMILIES,
    constructed,
    expression,
    expressions,
    gemm,
    programs,
    scaled_units,
    specs,
    toy_atom,
    toy_level,
    toy_spec,
    with_level,
    with_levels,
    with_unit,
)

SPECS = Path(__file__).parents[2] / "specs"
MACHINES = {
    "cpu": "cpu/zen5.toml",
    "gpu": "cuda/h100.toml",
    "ipu": "ipu_sim/bow.toml",
    "npu": "npu_demo/npu-demo.toml",
}
DENSE = tuple(f for f in FAMILIES if f != "convolution")  # every element of every input is read
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 64, 127, 128)
GREEDY = 1.03  # a search with budgets is not exactly monotone


def machine(name: str) -> HardwareSpec:
    return load_spec(SPECS / MACHINES[name])


def seconds(expr: TensorExpr, spec: HardwareSpec) -> float:
    """The best prediction; an example without any program is skipped."""
    try:
        return constructed(expr, spec)[0].estimate.seconds
    except ConstructionError:
        assume(False)
        raise


def shown(found: Candidate) -> str:
    return f"{found.program.describe()}: {found.estimate.to_dict()}"


def not_slower(expr: TensorExpr, spec: HardwareSpec, better: HardwareSpec) -> None:
    before = seconds(expr, spec)
    found = constructed(expr, better)[0]
    ratio = found.estimate.seconds / before if before else 1.0
    target(ratio)
    note(f"before: {shown(constructed(expr, spec)[0])}\nafter: {shown(found)}\n{ratio} of the time")
    assert found.estimate.seconds <= before * GREEDY


# --- 2: bounds -------------------------------------------------------------------------------------------------------


def check_bounds(expr: TensorExpr, spec: HardwareSpec, program: RProgram, found: Estimate) -> None:
    terms = dict(found.terms)
    for stage in program.stages:
        if stage.nest.reduce:
            points = math.prod([-(-e // t) * t if t else 0 for e, t in zip(stage.nest.extents, stage.executed, strict=True)])
            assert found.seconds >= 2 * points / (stage.atom.gflops * 1e9) * (1 - 1e-9), "padding is work"
    assert all(value >= 0 and math.isfinite(value) for value in terms.values())
    assert all(0 < share <= 1 for _, share in found.utilisation)
    assert found.seconds >= max(terms.values()) * (1 - 1e-9)
    fastest = max(atom.gflops for atom in spec.atoms)
    assert found.seconds >= expr.flops / (fastest * 1e9) * (1 - 1e-9)
    for level in spec.levels[1:]:
        assert terms[level.name] >= expr.compulsory_bytes / (level.bandwidth_gbps * 1e9) * (1 - 1e-9), level.name


@given(specs(), expressions(EXTENTS, DENSE))
def test_nothing_constructed_is_faster_than_the_arithmetic_and_the_compulsory_bytes(spec: HardwareSpec, expr: TensorExpr) -> None:
    seconds(expr, spec)
    for candidate in constructed(expr, spec, 5):
        note(candidate.program.describe())
        check_bounds(expr, spec, candidate.program, candidate.estimate)


@given(st.data(), specs(), expressions(EXTENTS, DENSE))
def test_no_program_whatever_is_faster_than_the_arithmetic_and_the_compulsory_bytes(
    data: st.DataObject, spec: HardwareSpec, expr: TensorExpr
) -> None:
    program = data.draw(programs(expr, spec, staging=True))
    note(program.describe())
    check_bounds(expr, spec, program, estimate(program, spec, CostParameters()))


# --- 3: monotonicity -------------------------------------------------------------------------------------------------

CHIPS = specs(units=(1, 2, 4, 64))


@given(CHIPS, expressions(EXTENTS), st.data())
def test_more_bandwidth_is_never_slower(spec: HardwareSpec, expr: TensorExpr, data: st.DataObject) -> None:
    index = data.draw(st.integers(1, len(spec.levels) - 1))
    not_slower(expr, spec, with_level(spec, index, bandwidth_gbps=spec.levels[index].bandwidth_gbps * 2))


@given(CHIPS, expressions(EXTENTS), st.data())
def test_more_capacity_is_never_slower(spec: HardwareSpec, expr: TensorExpr, data: st.DataObject) -> None:
    index = data.draw(st.integers(1, len(spec.levels) - 1))
    not_slower(expr, spec, with_level(spec, index, capacity_bytes=spec.levels[index].capacity_bytes * 2))


@given(CHIPS, expressions(EXTENTS), st.sampled_from((2, 3)))
def test_more_units_are_never_slower(spec: HardwareSpec, expr: TensorExpr, factor: int) -> None:
    not_slower(expr, spec, scaled_units(spec, factor))


@given(specs(units=(1, 2, 64), lanes=(4, 64)), expressions(EXTENTS))
def test_more_lanes_are_never_slower(spec: HardwareSpec, expr: TensorExpr) -> None:
    not_slower(expr, spec, with_unit(spec, lanes_max=spec.unit.lanes_max * 2))


@pytest.mark.parametrize(("budget", "fewer"), [("lattice.OUTER", 64), ("short_list.SHORT", 4), ("short_list.EACH", 2)])
@given(CHIPS, expressions(EXTENTS))
def test_more_of_a_budget_is_never_worse(budget: str, fewer: int, spec: HardwareSpec, expr: TensorExpr) -> None:
    with mock.patch(f"roller.search.funnel.{budget}", fewer):
        small = seconds(expr, spec)
    assert seconds(expr, spec) <= small * GREEDY


@given(CHIPS, expressions(EXTENTS))
def test_more_peak_is_never_slower(spec: HardwareSpec, expr: TensorExpr) -> None:
    faster = tuple(a.model_copy(update={"gflops": a.gflops * 2}) for a in spec.atoms)
    not_slower(expr, spec, with_levels(spec, spec.levels, atoms=faster))


@given(CHIPS, expressions(EXTENTS), st.data())
def test_more_copies_in_flight_are_never_slower(spec: HardwareSpec, expr: TensorExpr, data: st.DataObject) -> None:
    index = data.draw(st.integers(1, len(spec.levels) - 1))
    not_slower(expr, spec, with_level(spec, index, depth_max=spec.levels[index].depth_max + 1))


@given(CHIPS, expressions(EXTENTS))
def test_better_overlap_is_never_slower(spec: HardwareSpec, expr: TensorExpr) -> None:
    assume(spec.overlap_loss > 0)
    not_slower(expr, spec, with_levels(spec, spec.levels, overlap_loss=spec.overlap_loss / 2))


@given(st.sampled_from((32, 96, 512)), st.sampled_from((32, 80, 1024)), st.sampled_from((64, 256, 2048)))
@settings(max_examples=5)
def test_what_lanes_do_in_turn_adds_up_and_hides_behind_memory_alone(m: int, n: int, k: int) -> None:
    gpu = machine("gpu")
    atoms = tuple(a for a in gpu.atoms if a.name == "mma_m16n8k16_f16")
    assert [a.in_turn for a in atoms] == [True]
    chip = with_levels(gpu, gpu.levels, atoms=atoms)
    for candidate in constructed(gemm(m, n, k, "float16"), chip, 3):
        (stage,) = candidate.program.stages
        overlapping = replace(stage, atom=stage.atom.model_copy(update={"in_turn": False}))
        hidden = estimate(replace(candidate.program, stages=(overlapping,)), chip, CostParameters())
        turns = estimate(candidate.program, chip, CostParameters())
        terms = dict(turns.terms)
        assert terms == dict(hidden.terms)
        own = terms["compute"] + terms["tail"] + sum(terms[level.name] for level in chip.levels[2:])
        assert max(own, hidden.seconds) <= turns.seconds <= hidden.seconds + own


@given(CHIPS, expressions(EXTENTS))
def test_another_atom_is_never_slower(spec: HardwareSpec, expr: TensorExpr) -> None:
    assume(len(spec.atoms) > 1)
    not_slower(expr, with_levels(spec, spec.levels, atoms=spec.atoms[:1]), spec)


@given(CHIPS, expressions(EXTENTS), st.integers(1, 4), st.integers(1, 8))
def test_asking_for_more_programs_never_gives_a_worse_best(spec: HardwareSpec, expr: TensorExpr, few: int, more: int) -> None:
    seconds(expr, spec)
    short, long = constructed(expr, spec, few), constructed(expr, spec, few + more)
    assert long[0].estimate.seconds <= short[0].estimate.seconds
    assert [c.estimate.seconds for c in long] == sorted(c.estimate.seconds for c in long)
    assert len(short) <= few and len(long) <= few + more


@pytest.mark.xfail(
    reason="known gap of the engine: an innermost tile is no longer than its dimension, even where that takes longer"
)
@given(CHIPS, st.tuples(*[st.sampled_from((7, 16, 31, 64, 127, 128, 255, 1023))] * 3), st.integers(0, 2))
def test_a_larger_problem_is_never_faster(spec: HardwareSpec, extents: tuple[int, int, int], axis: int) -> None:
    larger = tuple(e + (1 if i == axis else 0) for i, e in enumerate(extents))
    small, large = seconds(gemm(*extents), spec), seconds(gemm(*larger), spec)
    target(small / large)
    note(f"{extents}: {small} s, {larger}: {large} s: {small / large}")
    assert large >= small / GREEDY


@pytest.mark.parametrize("name", MACHINES)
def test_1023_cubed_is_not_faster_than_1024_cubed(name: str) -> None:
    spec = machine(name)
    odd, even = seconds(gemm(1023, 1023, 1023), spec), seconds(gemm(1024, 1024, 1024), spec)
    assert even <= odd * GREEDY


# --- 4: what must not matter -----------------------------------------------------------------------------------------


def still(spec: HardwareSpec) -> HardwareSpec:
    """The chip without latencies: a level that is not there has none."""
    return with_levels(spec, [lv.model_copy(update={"latency_ns": 0.0, "step_overhead_ns": 0.0}) for lv in spec.levels])


@given(CHIPS, expressions(EXTENTS), st.data())
def test_a_shared_level_that_costs_nothing_changes_nothing(spec: HardwareSpec, expr: TensorExpr, data: st.DataObject) -> None:
    spec = still(spec)
    assume(spec.unit.count > 1)
    shared = toy_level("nothing", 1 << 40, 1e15, 1, managed=data.draw(st.booleans()))
    before = seconds(expr, spec)
    plain = constructed(expr, spec)[0]
    after = constructed(expr, with_levels(spec, (spec.levels[0], shared, *spec.levels[1:])))[0]
    assert after.estimate.seconds == pytest.approx(before, rel=1e-6)
    assert [s.unit_tile for s in after.program.stages] == [s.unit_tile for s in plain.program.stages]


@pytest.mark.xfail(
    reason="known gap of the engine: the innermost level is loaded an atom at a time, so that one more inside it changes what it is"
)
@given(CHIPS, expressions(EXTENTS), st.data())
def test_a_private_scratchpad_that_costs_nothing_changes_no_seconds(
    spec: HardwareSpec, expr: TensorExpr, data: st.DataObject
) -> None:
    spec = still(spec)
    own = [i for i, lv in enumerate(spec.levels) if i and lv.managed and lv.instances == spec.unit.count]
    index = data.draw(st.sampled_from(own))
    twin = spec.levels[index].model_copy(update={"name": "twin", "bandwidth_gbps": 1e15, "carved_from": None})
    before = seconds(expr, spec)
    after = constructed(expr, with_levels(spec, (*spec.levels[: index + 1], twin, *spec.levels[index + 1 :])))[0]
    note(after.program.describe())
    assert after.estimate.seconds == pytest.approx(before, rel=GREEDY - 1)


@given(CHIPS, expressions(EXTENTS))
def test_names_mean_nothing(spec: HardwareSpec, expr: TensorExpr) -> None:
    before = seconds(expr, spec)
    plain = constructed(expr, spec, 3)
    renamed = with_levels(
        spec, [lv.model_copy(update={"name": f"z{9 - i}"}) for i, lv in enumerate(spec.levels)], device="other", chip="x"
    )
    found = constructed(_renamed(expr), renamed, 3)
    assert found[0].estimate.seconds == before
    for was, now in zip(plain, found, strict=True):
        assert [(s.tiles, s.orders) for s in was.program.stages] == [(s.tiles, s.orders) for s in now.program.stages]


def _renamed(expr: TensorExpr) -> TensorExpr:
    """The same with names that sort the other way round."""
    (stage,) = expr.stages
    tensors = {t.name: f"z{9 - i}" for i, t in enumerate(expr.inputs)}
    axes = {a.name: f"q{9 - i}" for i, a in enumerate(stage.axes)}
    mapping = {old: Affine.axis(new) for old, new in axes.items()}

    def change(node: object) -> Load | None:
        if not isinstance(node, Load):
            return None
        return replace(node, tensor=tensors[node.tensor], index=tuple(i.substitute(mapping) for i in node.index))

    renamed = Stage(
        tuple(replace(a, name=axes[a.name]) for a in stage.axes),
        rewrite(stage.body, change),
        Tensor("aaa", stage.output.shape, stage.output.dtype),
        tuple(i.substitute(mapping) for i in stage.store),
        stage.reducer,
        stage.epilogue,
    )
    return TensorExpr(tuple(replace(t, name=tensors[t.name]) for t in expr.inputs), (renamed,))


@given(CHIPS, expressions(EXTENTS), st.data())
def test_the_order_in_which_axes_are_listed_means_nothing(spec: HardwareSpec, expr: TensorExpr, data: st.DataObject) -> None:
    (stage,) = expr.stages
    axes = tuple(data.draw(st.permutations(stage.axes)))
    before = seconds(expr, spec)
    plain = constructed(expr, spec)[0].program
    found = constructed(TensorExpr(expr.inputs, (replace(stage, axes=axes),)), spec)[0]
    assert found.estimate.seconds == before
    assert _by_name(found.program) == _by_name(plain)


def _by_name(program: RProgram) -> list[list[dict[str, int]]]:
    return [stage["tiles"] for stage in program.to_dict()["stages"]]


# --- 5: scaling ------------------------------------------------------------------------------------------------------


@given(CHIPS, expressions(EXTENTS))
def test_a_clock_twice_as_fast_halves_every_time(spec: HardwareSpec, expr: TensorExpr) -> None:
    seconds(expr, spec)
    levels = []
    for level in spec.levels:
        halves = {"latency_ns": level.latency_ns / 2, "step_overhead_ns": level.step_overhead_ns / 2}
        rate = None if level.bandwidth_gbps is None else level.bandwidth_gbps * 2
        levels.append(level.model_copy(update={**halves, "bandwidth_gbps": rate}))
    atoms = tuple(a.model_copy(update={"gflops": a.gflops * 2}) for a in spec.atoms)
    unit = {"launch_overhead_us": spec.unit.launch_overhead_us / 2, "sync_ns": spec.unit.sync_ns / 2}
    fast = with_unit(with_levels(spec, levels, atoms=atoms, clock_ghz=spec.clock_ghz * 2), **unit)
    for was, now in zip(constructed(expr, spec, 3), constructed(expr, fast, 3), strict=True):
        assert now.program == was.program or now.program.to_dict() == was.program.to_dict()
        for (name, slow), (_, quick) in zip(was.estimate.terms, now.estimate.terms, strict=True):
            assert quick == pytest.approx(slow / 2, rel=1e-9), name


@given(CHIPS, st.tuples(*[st.sampled_from(EXTENTS)] * 3))
def test_elements_and_chips_twice_as_wide_give_the_same_tiles(spec: HardwareSpec, extents: tuple[int, int, int]) -> None:
    before = seconds(gemm(*extents), spec)
    levels = []
    for level in spec.levels:
        twice = {"capacity_bytes": level.capacity_bytes * 2, "transaction_bytes": level.transaction_bytes * 2}
        rate = None if level.bandwidth_gbps is None else level.bandwidth_gbps * 2
        levels.append(level.model_copy(update={**twice, "bandwidth_gbps": rate}))
    atoms = tuple(a.model_copy(update={"in_dtype": "float64", "acc_dtype": "float64"}) for a in spec.atoms)
    wide = with_unit(with_levels(spec, levels, atoms=atoms), lane_storage_bytes=spec.unit.lane_storage_bytes * 2)
    narrow = constructed(gemm(*extents), spec)[0]
    found = constructed(gemm(*extents, dtype="float64"), wide)[0]
    assert found.estimate.seconds == pytest.approx(before, rel=1e-9)
    assert found.program.to_dict() == narrow.program.to_dict()


@pytest.mark.xfail(
    reason="known gap of the engine: equal chains come in the order of their dimensions, and budgets then cut others"
)
@settings(max_examples=40)
@example((127, 16, 13), 3, 64)
@example((64, 127, 13), 16, 64)
@given(st.tuples(*[st.sampled_from(EXTENTS)] * 3), st.sampled_from((1, 3, 16)), st.sampled_from((64, 1024)))
def test_the_transposed_product_on_a_symmetric_chip_takes_the_same_time(
    extents: tuple[int, int, int], units: int, registers: int
) -> None:
    """Element-sized transactions, scalars, no latency: nothing tells rows from columns."""
    m, n, k = extents
    levels = [toy_level("pad", 1 << 14, 4 * units, units), toy_level("register", registers, 8 * units, units)]
    spec = toy_spec(levels, [toy_atom("scalar", 2.0 * units)], count=units)
    swapped = expression(ops.einsum("nk,mk->nm", ops.tensor((n, k), name="b"), ops.tensor((m, k), name="a")))
    straight = expression(ops.einsum("mk,nk->mn", ops.tensor((m, k), name="a"), ops.tensor((n, k), name="b")))
    one, other = constructed(straight, spec)[0], constructed(swapped, spec)[0]
    assert other.estimate.seconds == pytest.approx(one.estimate.seconds, rel=1e-9)
    for tile, flipped in zip(_by_name(one.program)[0], _by_name(other.program)[0], strict=True):
        # Ties go to the first axis, so of two tiles as good as one another either may come out.
        assert sorted([tile.get("m", 1), tile.get("n", 1)]) == sorted([flipped.get("m", 1), flipped.get("n", 1)])
        assert tile.get("k") == flipped.get("k")


def test_reindexing_keeps_the_axes_apart() -> None:
    """The renaming above must not merge axes: a guard for the test itself."""
    load = Load("x", (Affine.axis("i"), Affine.axis("j")), "float32")
    swapped = reindex(load, {"i": Affine.axis("j"), "j": Affine.axis("i")})
    assert swapped == Load("x", (Affine.axis("j"), Affine.axis("i")), "float32")
    assert Axis("i", 1) != Axis("j", 1)
