"""Reductions cut inside a tile of a simulated IPU, and parts of results added up by whichever vertex takes less."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

from ipu_programs import BOW, CHIPS, agrees, agrees_if_legal, interpreted, programs, simulated
from random_operators import random_examples
from roller import ops, verify
from roller.frozen import FrozenMap
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ops import SymbolicTensor
from roller.program.dispatch import Dispatch
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.search.tile_space import mappings
from roller.target.hardware import HardwareSpec
from roller_ipu_sim.codegen.generator import manifest_of
from roller_ipu_sim.cost import model
from roller_ipu_sim.manifest.models import Manifest, Map, Reduce
from roller_ipu_sim.simulator.execute import execute


def without(*choices: str) -> HardwareSpec:
    """The Bow for programs that do not make use of some choices."""
    placing = {**BOW.options["placing"], **dict.fromkeys(choices, False)}
    return BOW.model_copy(update={"options": FrozenMap({**BOW.options, "placing": placing})})


def laid(operator: SymbolicTensor, tile: tuple[int, ...], lane: int | None = None, variant: int = -1) -> RProgram:
    """An operator of one stage with a unit tile, reductions cut over tiles as it says; a vector along a dimension, or none."""
    expr = fuse(ops.expression(operator))
    nest = variants(expr.stages[0], expr.tensors, BOW.spread)[variant]
    every = [(a, m) for a, m in mappings(nest, BOW.atoms, BOW.spread) if a.kind != "matrix"]
    atom, mapping = next((a, m) for a, m in every if [d for _, d in m] == ([] if lane is None else [lane]))
    levels, order = tiled_levels(BOW), (*nest.spatial, *nest.reduce)
    parts = math.prod([max(1, -(-nest.extents[d] // tile[d])) for d in nest.reduce])
    stage = StageProgram(nest, atom, mapping, levels, (tile,) * len(levels), (order,) * len(levels), dispatch=Dispatch(split=parts))
    return RProgram(expr, (stage,))


def rows(count: int, points: int, dtype: str = "float32") -> SymbolicTensor:
    return ops.tensor((count, points), dtype, "x")


def taken(program: RProgram, spec: HardwareSpec = BOW) -> int:
    return simulated(spec, model.estimate(spec, program))


def vertices_of(manifest: Manifest) -> list[tuple[str, object]]:
    return [(step.name.split(" (")[0].rpartition(" ")[0], group.vertex) for step in manifest.steps for group in step.compute or ()]


# --- cut inside a tile -----------------------------------------------------------------------------------------------


def test_one_long_row_by_hand() -> None:
    """A row of 2856: 24 partial results of 119 points fill 6 workers with two vectors of accumulators; one worker adds them up."""
    partial, added = 33 + 6 * (20 + 10 + 2 * 119), 33 + 6 * (20 + 10 + 24)
    program = laid(ops.reduce_sum(rows(4, 2856), (1,)), (2, 2856), lane=1)
    two = 33 + 6 * (20 + 10 + 2 * 238), 33 + 6 * (20 + 10 + 12)  # of two rows: 12 partial results of each
    assert taken(program) == sum(two)
    single = laid(ops.reduce_sum(rows(1, 2 * 2856), (0, 1)), (2856,), lane=0)
    assert model.estimate(BOW, single).seconds < math.inf
    terms = dict(model.estimate(BOW, single).terms)
    assert round(terms["compute"] * BOW.clock_ghz * 1e9) == partial + added


@pytest.mark.parametrize("lane", [None, 0, 1])
@pytest.mark.parametrize(("tile", "names"), [((2, 96), {"compute", "add inside"}), ((48, 4), {"compute"})])
def test_steps_of_a_reduction_cut_inside(tile: tuple[int, int], names: set[str], lane: int | None) -> None:
    operator = ops.reduce_sum(rows(96, tile[1]), (1,))
    program = laid(operator, tile, lane)
    manifest, _ = agrees(BOW, program, model.estimate(BOW, program), 1, True)
    interpreted(BOW, manifest, verify.random_inputs(program.expr, 2, False))
    found = {name for name, _ in vertices_of(manifest)}
    assert found == names


def test_points_left_over_are_added_to_the_first_partial_results() -> None:
    """1021 is a prime number: no number of partial results divides it."""
    program = laid(ops.reduce_max(rows(2944, 1021), (1,)), (2, 1021), lane=0)
    manifest, _ = agrees(BOW, program, model.estimate(BOW, program), 3, False)
    made = dict(vertices_of(manifest))
    rest = made["compute rest of"]
    assert isinstance(rest, Map)
    assert rest.accumulate
    assert 0 < rest.loops[0] < 1021
    assert taken(program) < taken(program, without("inside")) / 3


def test_a_mean_is_finished_by_what_adds_up() -> None:
    program = laid(ops.reduce_mean(rows(64, 512), (1,)), (2, 512), lane=1)
    manifest, _ = agrees(BOW, program, model.estimate(BOW, program), 3, False)
    last = vertices_of(manifest)[-1][1]
    assert isinstance(last, Map)
    assert last.epilogue is not None


def test_products_of_points_are_cut_inside_too() -> None:
    summed = ops.reduce_sum(rows(2, 48), (1,))
    assert summed.stage is not None
    program = laid(replace(summed, stage=replace(summed.stage, reducer="prod")), (2, 48), lane=0)
    manifest = manifest_of(BOW, program)
    x = np.random.default_rng(0).uniform(0.8, 1.3, (2, 48)).astype(np.float32)
    assert "add inside" in {name for name, _ in vertices_of(manifest)}
    found = execute(manifest, BOW, {"x": x})
    (out,) = found.outputs.values()
    np.testing.assert_allclose(out.reshape(-1), np.prod(x.astype(np.float64), axis=1), rtol=1e-5)
    assert found.profile.cycles == taken(program)


def test_partial_results_take_room() -> None:
    program = laid(ops.reduce_sum(rows(64, 512), (1,)), (2, 512), lane=1)
    manifest = manifest_of(BOW, program)
    (partial,) = [b for b in manifest.buffers if b.name == "inside"]
    (added,) = [v for name, v in vertices_of(manifest) if name == "add inside"]
    assert isinstance(added, Map)
    assert partial.elements == 2 * added.loops[-1]


def test_vectors_along_a_reduction_are_for_single_steps() -> None:
    program = laid(ops.reduce_sum(rows(64, 512), (1,)), (2, 64), lane=1)
    stepped = replace(program, stages=(program.stages[0].dispatched(split=1),))
    assert math.isinf(model.estimate(BOW, stepped).seconds)
    assert model.estimate(BOW, stepped).bound_by == "vector along the reduction"
    assert model.estimate(without("inside"), program).bound_by == "vector along the reduction"


@st.composite
def reductions(draw: st.DrawFn) -> SymbolicTensor:
    """Reductions of few results over many points, of all kinds, some finished by an epilogue."""
    dtype = draw(st.sampled_from(("float32", "float32", "float16", "int32")))
    m, n, k = draw(st.integers(1, 9)), draw(st.integers(1, 130)), draw(st.integers(1, 9))
    kinds = [ops.reduce_sum, ops.reduce_max, ops.reduce_min]
    function = draw(st.sampled_from(kinds if dtype == "int32" else [*kinds, ops.reduce_mean]))
    axes = draw(st.sampled_from(((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2))))
    x = ops.tensor((m, n, k), dtype)
    made = function(x * x if draw(st.booleans()) else x, axes)
    return ops.relu(made) if draw(st.booleans()) else made + ops.tensor((1,), dtype) if draw(st.booleans()) else made


def any_reduction(data: st.DataObject) -> None:
    """A reduction is refused by a rule, or right in numbers and cycles; never slower than without cuts inside tiles."""
    expr = fuse(ops.expression(data.draw(reductions())))
    spec = CHIPS[data.draw(st.integers(0, len(CHIPS) - 1))]
    program = data.draw(programs(expr, spec))
    note(f"{program.describe()} on {spec.unit.count} tiles")
    manifest = agrees_if_legal(spec, program, data.draw(st.integers(0, 99)), data.draw(st.booleans()))
    assume(manifest is not None and "inside" in {b.name for b in manifest.buffers})
    assert manifest is not None
    interpreted(spec, manifest, verify.random_inputs(expr, 1, False))
    placing = FrozenMap({**spec.options, "placing": {**spec.options["placing"], "inside": False}})
    assert model.estimate(spec, program).seconds <= model.estimate(spec.model_copy(update={"options": placing}), program).seconds


@pytest.mark.parametrize("part", [0, 1])
def test_any_reduction_costs_what_it_takes(part: int) -> None:
    random_examples(any_reduction, part, 25)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_many_reductions_cost_what_they_take(part: int) -> None:
    random_examples(any_reduction, 100 + part, 300)


# --- over tiles ------------------------------------------------------------------------------------------------------


def added(program: RProgram, spec: HardwareSpec = BOW) -> Map | Reduce:
    """The vertex that adds up what several tiles have."""
    manifest = manifest_of(spec, program)
    found = next(v for name, v in vertices_of(manifest) if name == "add")
    assert isinstance(found, Map | Reduce)
    return found


def test_few_parts_are_added_by_a_reduction_over_them() -> None:
    """4 results of 2 parts: 33 + 6 (20 + 10 + 2 x 2) as a reduction, 282 + 6 (11 + 2) by the vertex for partial results."""
    program = laid(ops.reduce_sum(rows(4, 64), (1,)), (4, 32), lane=0)
    assert isinstance(added(program), Map)
    assert isinstance(added(program, without("cheapest")), Reduce)
    agrees(BOW, program, model.estimate(BOW, program), 1, False)
    terms = [dict(model.estimate(spec, program).terms)["combine"] * BOW.clock_ghz * 1e9 for spec in (BOW, without("cheapest"))]
    assert [round(t) for t in terms] == [33 + 6 * (20 + 10 + 2), 282 + 6 * (11 + 2)]


def test_many_parts_are_added_by_the_vertex_for_them() -> None:
    """22 or more sets of 24 results a worker: what a set takes more then weighs more than what starting takes less."""
    program = laid(ops.reduce_sum(rows(1200, 4), (1,)), (1200, 2), lane=0)
    assert isinstance(added(program), Reduce)
    agrees(BOW, program, model.estimate(BOW, program), 1, False)


def test_parts_are_finished_as_they_are_added_up() -> None:
    operator = ops.reduce_sum(rows(16, 64, "float16"), (1,))  # added up in float32
    program = laid(operator, (8, 16), lane=0)
    vertex = added(program)
    assert isinstance(vertex, Map)
    assert vertex.epilogue is not None
    assert "finish" not in {name for name, _ in vertices_of(manifest_of(BOW, program))}
    assert "sum" not in {b.name for b in manifest_of(BOW, program).buffers}
    agrees(BOW, program, model.estimate(BOW, program), 1, False)


def test_a_sum_over_nothing_is_set_once_whatever_else_is_reduced() -> None:
    summed = ops.einsum("ij->", ops.tensor((0, 12), "int32") + ops.tensor((12,), "int32"))
    program = laid(summed, (1, 4))
    stepped = RProgram(program.expr, (program.stages[0].dispatched(split=1),))
    manifest, _ = agrees(BOW, stepped, model.estimate(BOW, stepped), 1, True)
    assert [name for name, _ in vertices_of(manifest)] == ["compute"]
