"""Results that several tiles of a simulated IPU add up, finished with further arrays and with positions."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import roller
from ipu_programs import BOW, CHIPS, agrees, agrees_if_legal, interpreted, programs
from random_operators import random_examples
from roller import ops, verify
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ops import SymbolicTensor
from roller.program.dispatch import Dispatch
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.search.tile_space import mappings
from roller_ipu_sim.cost import model
from roller_ipu_sim.manifest.models import Manifest, Map
from roller_ipu_sim.plan.pieces import axes_of, pieces_of


def halves(*shape: int) -> SymbolicTensor:
    return ops.tensor(shape, "float16")


def cut(operator: SymbolicTensor, tile: tuple[int, ...], kind: str = "matrix") -> RProgram:
    """An operator of one stage with a unit tile on the first atom of a kind, its reduction cut over tiles as the tile says."""
    expr = fuse(ops.expression(operator))
    nest = variants(expr.stages[0], expr.tensors, BOW.spread)[0]
    atom, mapping = next(pair for pair in mappings(nest, BOW.atoms, BOW.spread) if pair[0].kind == kind)
    levels, order = tiled_levels(BOW), (*nest.spatial, *nest.reduce)
    parts = math.prod([-(-nest.extents[d] // tile[d]) for d in nest.reduce])
    stage = StageProgram(nest, atom, mapping, levels, (tile,) * len(levels), (order,) * len(levels), dispatch=Dispatch(split=parts))
    return RProgram(expr, (stage,))


def last_map(manifest: Manifest) -> Map:
    """The vertex of the first tiles that finish results."""
    found = next(group.vertex for group in manifest.steps[-1].compute or ())
    assert isinstance(found, Map)
    return found


# --- pieces by hand --------------------------------------------------------------------------------------------------


def test_loops_over_results_are_as_few_as_walk_everything_evenly() -> None:
    results = [(0, 4), (1, 6), (2, 8)]
    dense, along, rows, images = (48, 8, 1), (0, 0, 1), (6, 1, 0), (1, 0, 0)
    assert axes_of(results, [dense, dense]) == ((2, 192),)
    assert axes_of(results, [dense, along]) == ((1, 24), (2, 8))
    assert axes_of(results, [dense, rows]) == ((1, 24), (2, 8))
    assert axes_of(results, [dense, images]) == ((0, 4), (2, 48))
    assert axes_of(results, [dense, along, images]) == tuple(results)
    assert axes_of([(0, 1), (1, 8)], [(8, 1), (0, 3)]) == ((1, 8),)


@pytest.mark.parametrize(
    ("extents", "parts", "grain", "size", "shape"),
    [
        ((6016,), 8, 4, 752, (752,)),
        ((94, 64), 8, 4, 768, (12, 64)),  # whole rows
        ((2, 96), 8, 4, 24, (1, 24)),  # a quarter of a row
        ((2, 94), 8, 4, 188, (2, 94)),  # 94 is 2 x 47: no part of a row is whole grains
        ((3, 5, 8), 4, 4, 40, (1, 5, 8)),
        ((5, 3), 2, 4, 12, (4, 3)),  # as many rows as make whole grains
    ],
)
def test_pieces_are_whole_rows_or_even_parts_of_one(
    extents: tuple[int, ...], parts: int, grain: int, size: int, shape: tuple[int, ...]
) -> None:
    found = pieces_of(tuple(enumerate(extents)), parts, grain, 2)
    assert (found.size, found.shape(found.most)) == (size, shape)
    assert found.count <= parts
    covered = [found.of(number) for number in range(found.count)]
    assert sum(covered) == math.prod(extents)
    for number in range(found.count):
        begin, step, at = found.begin(number), 1, 0
        for dim in reversed(range(len(extents))):
            at, step = at + begin[dim] * step, step * extents[dim]
        assert at == number * size


# --- single programs -------------------------------------------------------------------------------------------------


def test_a_residual_lies_where_results_are_finished() -> None:
    """Nothing is brought but the operands: each of eight tiles has its eighth of the residual's box from the beginning."""
    bare, with_residual = (cut(op, (32, 32, 16)) for op in (_product(), _product() + halves(64, 64)))
    manifest, _ = agrees(BOW, with_residual, model.estimate(BOW, with_residual), 1, False)
    (kept,) = [b for b in manifest.buffers if b.name == "in2"]
    assert kept.elements == 32 * 32 // 8
    traffic = [dict(model.estimate(BOW, program).terms)["exchange"] for program in (bare, with_residual)]
    assert traffic[0] == traffic[1]
    assert last_map(manifest).loops == (128, 8)


def _product() -> SymbolicTensor:
    return ops.matmul(halves(64, 128), halves(128, 64))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", [(64,), (64, 1), (1,), (1, 64)])
@pytest.mark.parametrize("tile", [(32, 32, 16), (32, 64, 32), (4, 64, 16), (12, 64, 16)])
def test_what_rows_share_is_read_by_rows(tile: tuple[int, int, int], shape: tuple[int, ...]) -> None:
    product = ops.matmul(halves(64, 64), halves(64, 64))  # no larger, as the interpreter goes element by element
    program = cut(ops.relu(product + halves(*shape)), tile)
    manifest, _ = agrees(BOW, program, model.estimate(BOW, program), 1, False)
    interpreted(BOW, manifest, verify.random_inputs(program.expr, 2, False))


def test_positions_are_known_where_results_are_finished() -> None:
    """A mean over windows that leave the image divides by how many points lie inside: every piece begins elsewhere."""
    pooled = ops.avg_pool2d(ops.tensor((1, 4, 12, 12)), (4, 4), stride=1, padding=2, count_include_pad=False)
    program = cut(pooled + ops.tensor((4, 1, 1)), (4, 4, 4, 2, 2), "scalar")
    manifest, _ = agrees(BOW, program, model.estimate(BOW, program), 1, False)
    interpreted(BOW, manifest, verify.random_inputs(program.expr, 2, False))


def test_a_single_result_is_finished_with_another_array() -> None:
    program = cut(ops.reduce_sum(ops.tensor((64,)), (0,), keepdims=True) + ops.tensor((1,)), (16,), "scalar")
    manifest, _ = agrees(BOW, program, model.estimate(BOW, program), 1, False)
    interpreted(BOW, manifest, verify.random_inputs(program.expr, 2, False))


def test_a_residual_that_an_earlier_stage_computed_is_brought_in_pieces() -> None:
    """Both products are cut into four parts of the reduction; the second one adds the first one's results."""
    first = ops.matmul(halves(64, 64), halves(64, 64))
    expr = fuse(ops.expression(ops.matmul(first, halves(64, 64)) + first))
    stages = []
    for stage in expr.stages:
        nest = variants(stage, expr.tensors, BOW.spread)[0]
        atom, mapping = next(pair for pair in mappings(nest, BOW.atoms, BOW.spread) if pair[0].kind == "matrix")
        levels, tile = tiled_levels(BOW), (32, 32, 16)
        stages.append(
            StageProgram(nest, atom, mapping, levels, (tile,) * len(levels), ((0, 1, 2),) * len(levels), dispatch=Dispatch(split=4))
        )
    program = RProgram(expr, tuple(stages))
    manifest, _ = agrees(BOW, program, model.estimate(BOW, program), 1, False)
    (kept,) = [b for b in manifest.buffers if b.name == "s1.in2"]
    assert kept.elements == 32 * 32 // 4


# --- any -------------------------------------------------------------------------------------------------------------


@st.composite
def finished(draw: st.DrawFn) -> SymbolicTensor:
    """A product, convolution, pooling or sum that one to three further arrays finish, a residual or what some dimensions share."""
    dtype, size = draw(st.sampled_from(("float16", "float32"))), st.integers(1, 12)
    m, n, k, b = 2 * draw(size), 4 * draw(size), draw(st.integers(8, 96)), draw(st.integers(1, 3))
    side, window = draw(st.integers(3, 7)), draw(st.integers(1, 3))
    out_dtype = draw(st.sampled_from((dtype, "float32")))
    image = ops.tensor((b, 4 * draw(size), side, side), dtype)
    made = draw(
        st.sampled_from(
            (
                ops.matmul(ops.tensor((m, k), dtype), ops.tensor((k, n), dtype), out_dtype=out_dtype),
                ops.batch_matmul(ops.tensor((b, m, k), dtype), ops.tensor((b, k, n), dtype)),
                ops.conv2d(image, ops.tensor((n, image.shape[1], window, window), dtype)),
                ops.avg_pool2d(image, (window, window), padding=window - 1, count_include_pad=draw(st.booleans())),
                ops.reduce_sum(ops.tensor((m, k, n), dtype), (draw(st.integers(0, 2)),)),
                ops.reduce_max(ops.tensor((m, n, k), dtype), (1, 2)),
            )
        )
    )
    for _ in range(draw(st.integers(1, 3))):
        shared = [draw(st.booleans()) for _ in made.shape] if draw(st.integers(0, 2)) else [False]
        shape = [1 if one else extent for one, extent in zip(shared, made.shape, strict=False)] if any(shared) else made.shape
        other = ops.tensor(tuple(shape), made.dtype)
        made = draw(st.sampled_from((made + other, made * other, other - made)))
    return ops.relu(made) if draw(st.booleans()) else made


def any_finished(data: st.DataObject) -> None:
    """A reduction that tiles cut is refused by a rule, or right in numbers and cycles, whatever finishes it."""
    expr = fuse(ops.expression(data.draw(finished())))
    assume(len(expr.stages) == 1)
    spec = CHIPS[data.draw(st.integers(0, len(CHIPS) - 1))]
    program = data.draw(programs(expr, spec))
    stage = program.stages[0]
    parts = math.prod([-(-stage.nest.extents[d] // stage.unit_tile[d]) for d in stage.nest.reduce])
    assume(parts > 1)
    program = RProgram(expr, (stage if stage.dispatch.split > 1 else stage.dispatched(split=parts),))
    note(f"{program.describe()} on {spec.unit.count} tiles")
    manifest = agrees_if_legal(spec, program, data.draw(st.integers(0, 99)), data.draw(st.booleans()))
    if manifest is not None:
        interpreted(spec, manifest, verify.random_inputs(expr, 1, False))


@pytest.mark.parametrize("part", [0, 1])
def test_any_parts_are_finished(part: int) -> None:
    random_examples(any_finished, part, 12)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_many_parts_are_finished(part: int) -> None:
    random_examples(any_finished, 100 + part, 500)


# --- what the engine chooses -----------------------------------------------------------------------------------------


def test_what_finishes_a_product_does_not_keep_its_reduction_whole() -> None:
    """Adding a bias or a residual takes little more than the product alone, cut as that is."""
    every = large(), large() + halves(1024), large() + halves(1024, 1024)
    bare, *others = [roller.compile(operator, device="ipu_sim").estimate.cycles() for operator in every]
    assert all(cycles < 1.06 * bare for cycles in others)


def large() -> SymbolicTensor:
    return ops.matmul(halves(1024, 1024), halves(1024, 1024))
