"""Boxes that lie along the vector: their layout, how they are filled, and what the model makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import launching
import roller
from roller import ops, verify
from roller.cost.loops import NestWalk
from roller.cost.packing import copy_seconds
from roller.cost.parameters import Rates
from roller.cost.register_traffic import RegisterTraffic
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, variants
from roller.ir.sliding_windows import sliding
from roller.ops import SymbolicTensor
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.program.halo import box_order, lane_step, turned
from roller.program.rprogram import RProgram, StageProgram, Staging, tiled_levels
from roller.target.catalog import find_spec
from roller.target.hardware import ComputeAtom
from roller.target.subset import narrowed
from roller_cpu.cost.parameters import cost_parameters

SPEC = find_spec("cpu", "x86-64-v3")
N, C, H, W = range(4)  # dimensions of the nests here, and of their input


def t(*shape: int, dtype: str = "float32") -> SymbolicTensor:
    return ops.tensor(shape, dtype)


def atom(dtype: str = "float32", width: int = 8) -> ComputeAtom:
    fields: dict[str, Any] = {"kind": "vector", "roles": {"n": width}, "in_dtype": dtype, "acc_dtype": dtype, "gflops": 64.0}
    return ComputeAtom.model_validate({"name": f"{dtype}_x{width}", **fields})


def nest_of(op: SymbolicTensor) -> Nest:
    """The nest whose axes are not fused."""
    expr = fuse(ops.expression(op))
    return variants(expr.stages[0], expr.tensors)[0]


def boxed(op: SymbolicTensor, tiles: Any, lane: int, level: int = 1, dtype: str = "float32") -> RProgram:
    """A program of these tiles on one unit, the padded input in a box."""
    nest, levels = nest_of(op), tiled_levels(narrowed(SPEC, 1))
    number = next(n for n, a in enumerate(nest.inputs) if a.guarded)
    everywhere = (tuple(range(len(nest.dims))),) * len(levels)
    staged = (Staging("box", number, level),)
    stage = StageProgram(nest, atom(dtype), (("n", lane),), levels, tiles, everywhere, staged)
    return RProgram(fuse(ops.expression(op)), (stage,))


def right(op: SymbolicTensor, program: RProgram) -> None:
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr, 0, integer=True)
    launching.check(expr, launching.artifact(narrowed(SPEC, 1), program), arrays)


# --- the layout ------------------------------------------------------------------------------------------------------


def test_a_box_lies_along_the_dimension_of_the_vector() -> None:
    op = ops.max_pool2d(t(2, 24, 9, 11), 3, stride=2, padding=1)
    for lane, order in ((N, (1, 2, 3, 0)), (C, (0, 2, 3, 1)), (H, (0, 1, 3, 2)), (W, (0, 1, 2, 3))):
        program = boxed(op, ((2, 24, 5, 6, 3, 3),) * 2 + ((1, 8, 1, 1, 1, 1),), lane).stages[0]
        assert box_order(program, 0) == order
        assert turned(program, 0) == (lane != W)
        assert lane_step(program, 0) == (1 if lane in (N, C) else 2)  # windows two rows or columns apart
        assert lane_step(replace(program, staged=()), 0) == (24 * 99, 99, 22, 2)[lane]


def test_a_box_stays_as_its_array_is_where_the_vector_passes_it_by() -> None:
    op = ops.conv2d(t(2, 8, 9, 11), t(16, 8, 3, 3), padding=1)
    program = boxed(op, ((2, 16, 9, 11, 8, 3, 3),) * 2 + ((1, 8, 1, 1, 1, 1, 1),), 1).stages[0]
    assert box_order(program, 0) == (0, 1, 2, 3) and not turned(program, 0) and lane_step(program, 0) is None


def test_a_box_whose_rows_have_one_element_lies_as_its_array_does() -> None:
    op = ops.max_pool2d(t(2, 8, 40, 1), (3, 1), stride=1, padding=(1, 0))
    nest = nest_of(op)
    tiles = (nest.extents, nest.extents, (1, 1, 8, 1))
    assert not turned(boxed(op, tiles, 2).stages[0], 0)
    right(op, boxed(op, tiles, 2))


@pytest.mark.parametrize("level", [0, 1])
def test_a_box_of_one_slab_is_filled_by_all_units(level: int) -> None:
    """A plane alone: no loop lies around its blocks."""
    op = ops.transpose(ops.pad(t(37, 42), ((1, 2), (3, 4)))) + 1
    expr = fuse(ops.expression(op))
    nest, levels = nest_of(op), tiled_levels(SPEC)
    staged = (Staging("box", 0, 0 if level == 0 else levels[0]),)
    stage = StageProgram(nest, atom(), (("n", 1),), levels, ((24, 24), (8, 8)), ((0, 1),) * 2, staged)
    assert turned(stage, 0)
    launching.check(expr, launching.artifact(SPEC, RProgram(expr, (stage,))), verify.random_inputs(expr, 0, integer=True))


# --- filling it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [N, C, H, W])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_turned_boxes_at_any_level(level: int, lane: int) -> None:
    """Halos overlap, ragged tiles move back, edges are filled: with negative infinity, which a sum would never notice."""
    op = ops.max_pool2d(t(9, 10, 19, 21), 3, stride=2, padding=1)
    inner = tuple(8 if d == lane else e for d, e in enumerate((2, 1, 3, 2, 1, 1)))
    outer = tuple(max(e, i) for e, i in zip((4, 4, 5, 6, 3, 3), inner, strict=True))
    right(op, boxed(op, ((8, 8, 10, 8, 3, 3), tuple(8 if d == lane else e for d, e in enumerate(outer)), inner), lane, level))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize(("channels", "height", "width"), [(8, 4, 8), (24, 3, 17), (11, 5, 5), (8, 2, 2), (9, 2, 40), (3, 6, 7)])
def test_turned_boxes_of_any_size(channels: int, height: int, width: int, dtype: str) -> None:
    """Whole blocks, blocks moved back, and less than one block."""
    op = ops.conv2d(t(2, channels, height, width, dtype=dtype), t(channels, 1, 3, 5, dtype=dtype), padding=(1, 2), groups=channels)
    inner = (1, min(8, channels), 1, min(4, width), 1, 1)
    right(op, boxed(op, ((2, channels, height, width, 3, 5),) * 2 + (inner,), C, dtype=dtype))


@pytest.mark.parametrize("lane", [C, H, W])
def test_boxes_cut_along_every_dimension_have_edges_known_only_at_run_time(lane: int) -> None:
    op = ops.max_pool2d(t(2, 12, 40, 45), 5, stride=1, padding=2)
    unit = tuple(8 if d == lane else e for d, e in enumerate((1, 4, 8, 8, 5, 5)))
    inner = tuple(8 if d == lane else 1 for d in range(6))
    right(op, boxed(op, (unit, unit, inner), lane))


def test_turning_needs_no_element_by_element_copy() -> None:
    """Blocks of 8 x 8 transposed in registers: 24 exchanges each, no gather."""
    op = ops.max_pool2d(t(2, 16, 24, 24), 3, stride=1, padding=1)
    program = boxed(op, ((1, 16, 24, 24, 3, 3), (1, 16, 24, 24, 3, 3), (1, 8, 1, 4, 1, 1)), C)
    text = launching.artifact(narrowed(SPEC, 1), program).source
    assert text.count("shufflevector <8 x float>") >= 24
    assert "gather" not in text and "insertelement <8 x float>" not in text


# --- the model -------------------------------------------------------------------------------------------------------

DEPTHWISE = ops.conv2d(t(4, 32, 21, 21), t(32, 1, 5, 5), padding=2, groups=32)
TILES = ((1, 16, 21, 21, 5, 5), (1, 16, 21, 21, 5, 5), (1, 8, 1, 3, 1, 1))


def test_vectors_come_whole_from_a_turned_box() -> None:
    program = boxed(DEPTHWISE, TILES, C).stages[0]
    copied, alone = (RegisterTraffic(program.nest, 1.0).bytes(p, 32) for p in (program, replace(program, staged=())))
    assert copied < alone / 2


def test_turning_is_charged() -> None:
    """A square image read along its rows or across them: the same box but for the exchanges."""
    op = ops.max_pool2d(t(4, 32, 24, 24), 3, stride=1, padding=1)
    spec, seconds = narrowed(SPEC, 1), []
    parameters = cost_parameters(spec, ops.expression(op))
    for lane in (W, H):
        program = boxed(op, ((1, 16, 24, 24, 3, 3),) * 2 + ((1, 1, 8, 8, 1, 1),), lane).stages[0]
        walk = NestWalk(program, spec, Geometry(program.nest), parameters)
        seconds.append(copy_seconds(Rates(spec, parameters), walk, program.staged[0]))
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize(("lane", "run"), [(W, 24 * 24), (H, 24), (C, 24 * 24)])
def test_rows_that_turn_are_followed_one_by_one(lane: int, run: int) -> None:
    """Many rows of one image are read side by side, each to its end; images side by side are each read to theirs."""
    op = ops.max_pool2d(t(4, 32, 24, 24), 3, stride=1, padding=1)
    program = boxed(op, ((1, 8, 24, 24, 3, 3),) * 2 + ((1, 1, 8, 8, 1, 1) if lane != C else (1, 8, 1, 8, 1, 1),), lane).stages[0]
    spec = narrowed(SPEC, 1)
    walk = NestWalk(program, spec, Geometry(program.nest), cost_parameters(spec, ops.expression(op)))
    source = next(n for n, s in enumerate(walk.streams) if s.access == 0 and not s.copy)
    found = walk.run(source, spec.levels[-2])
    assert found == run if lane != W else found >= run


@pytest.mark.parametrize(
    "op",
    [
        DEPTHWISE,
        ops.conv2d(t(2, 64, 11, 11), t(64, 1, 7, 7), padding=3, groups=64),
        ops.conv2d(t(2, 32, 42, 42), t(32, 1, 5, 5), stride=2, padding=2, groups=32),
        ops.avg_pool2d(t(2, 64, 13, 13), 3, stride=2, padding=1),
    ],
)
def test_small_and_strided_images_are_computed_many_channels_at_a_time(op: SymbolicTensor) -> None:
    """Rows of 11, 13 or 21 elements fill vectors badly, and strided ones do not lie in them: the vector lies across images."""
    best = roller.compile(op, "cpu:zen5").program.stages[0]
    assert best.lane in (N, C), best.describe()


def test_a_window_slides_against_spatial_dimensions() -> None:
    assert sliding(nest_of(ops.conv2d(t(2, 8, 9, 11), t(16, 8, 3, 3), padding=1))) == [5, 6]
    assert sliding(nest_of(ops.matmul(t(4, 5), t(5, 6)))) == []
    expr = fuse(ops.expression(ops.conv2d(t(2, 8, 9, 11), t(16, 8, 3, 3))))
    fused = next(n for n in variants(expr.stages[0], expr.tensors) if len(n.reduce) == 1)
    assert sliding(fused) == []  # its channels do not


# --- what the model makes of reading and writing in rows -------------------------------------------------------------


def test_rows_of_a_transposed_tile_are_written_side_by_side() -> None:
    """Sixteen channels, a row of 21 each: every line of them is whole before anything else is written there."""
    op = ops.max_pool2d(t(4, 32, 21, 21), 3, stride=1, padding=1)
    program = boxed(op, ((1, 16, 21, 21, 3, 3),) * 2 + ((1, 16, 1, 21, 1, 1),), C).stages[0]
    spec = narrowed(SPEC, 1)
    parameters = cost_parameters(spec, ops.expression(op))
    runs = []
    for streams in (parameters.write_streams, 4):
        walk = NestWalk(program, spec, Geometry(program.nest), replace(parameters, write_streams=streams))
        output = next(n for n, s in enumerate(walk.streams) if s.access == len(program.nest.accesses) - 1)
        runs.append(walk.run(output, spec.levels[-2]))
    assert runs[0] >= 21 * 21 > runs[1] == 21


def test_what_is_picked_from_vectors_takes_registers() -> None:
    """Every second element: four vectors picked at a time, from two each, and the pattern; nothing where a panel has to hold it."""
    spec, lane = narrowed(SPEC, 1), (("n", W),)
    found = []
    for op in (ops.max_pool2d(t(2, 8, 20, 20), 3, stride=s, padding=1) for s in (1, 2)):
        nest = nest_of(op)
        found.append(Fit(spec, nest, Geometry(nest)).inner_bytes((1, 1, 2, 8, 1, 1), lane, atom()))
    assert found[1] - found[0] == (4 * 2 + 1) * 8 * 4
    dense = [nest_of(ops.conv2d(t(2, 8, 20, 20), t(8, 8, 3, 3), stride=s, padding=1)) for s in (1, 2)]
    alike = {Fit(spec, nest, Geometry(nest)).inner_bytes((1, 1, 1, 8, 1, 1, 1), (("n", 3),), atom()) for nest in dense}
    assert len(alike) == 1


def test_a_unit_keeps_the_rows_that_windows_share() -> None:
    """Windows of three rows, two apart: in tiles of one row every other row of the array would be read twice."""
    program = roller.compile(ops.avg_pool2d(t(128, 42, 165, 165), 3, stride=2, padding=1), "cpu:zen5").program.stages[0]
    assert program.unit_tile[H] >= 4


def test_a_convolution_without_padding_reads_its_input_in_place() -> None:
    """A copy of all windows is nine times as large, and what it saves is waiting that the arithmetic hides."""
    op = ops.conv2d(t(128, 256, 30, 30), t(256, 256, 3, 3), stride=2)
    staged = roller.compile(op, "cpu:zen5").program.stages[0].staged
    assert not any(s.kind == "panel" and s.operand == 0 for s in staged)
