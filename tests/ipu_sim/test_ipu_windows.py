"""Convolutions and pooling whose boxes overlap: what tiles keep lies in their boxes, padding included, and costs what it takes."""

from __future__ import annotations

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import roller
from ipu_programs import BOW, CHIPS, agrees, agrees_if_legal, interpreted, programs
from random_operators import random_examples
from roller import ops, verify
from roller.device.plugins import load_device
from roller.errors import ExpressionError
from roller.frozen import FrozenMap
from roller.ir.fusion import fuse
from roller.ops import SymbolicTensor
from roller.search.construct import construct
from roller.target.hardware import HardwareSpec
from roller_ipu_sim.codegen.generator import refusal
from roller_ipu_sim.codegen.program_plan import Whole, whole_of
from roller_ipu_sim.manifest.models import Manifest
from roller_ipu_sim.plan.stage_plan import uneven

FEW = CHIPS[2]  # five tiles


def received(spec: HardwareSpec) -> HardwareSpec:
    """The chip for programs whose tiles receive their boxes whole."""
    placing = {**spec.options["placing"], "in_place": False}
    return spec.model_copy(update={"options": FrozenMap({**spec.options, "placing": placing})})


@st.composite
def windows(draw: st.DrawFn) -> SymbolicTensor:
    """A convolution, depthwise or grouped too, or pooling: any stride, dilation and padding, extents that nothing divides."""
    dtype, kind = draw(st.sampled_from(("float16", "float32"))), draw(st.sampled_from(("conv", "depthwise", "pool")))
    images, channels = draw(st.integers(1, 3)), draw(st.integers(1, 18))
    height, width, kernel = draw(st.integers(1, 17)), draw(st.integers(1, 17)), draw(st.integers(1, 4))
    ways = {"stride": draw(st.integers(1, 4)), "padding": draw(st.integers(0, kernel - 1))}
    x = ops.tensor((images, channels, height, width), dtype)
    if kind == "pool":
        return draw(st.sampled_from((ops.max_pool2d, ops.avg_pool2d)))(x, (kernel, kernel), **ways)
    ways["dilation"] = draw(st.integers(1, 3))
    if kind == "depthwise":
        return ops.depthwise_conv2d(x, ops.tensor((channels, 1, kernel, kernel), dtype), **ways)
    return ops.conv2d(x, ops.tensor((draw(st.integers(1, 18)), channels, kernel, kernel), dtype), **ways)


def any_windows(data: st.DataObject) -> None:
    """One operator, one legal program, its arrays in place and received whole."""
    try:
        expr = fuse(ops.expression(data.draw(windows())))
    except ExpressionError:
        assume(False)
        return
    chip = CHIPS[data.draw(st.integers(0, len(CHIPS) - 1))]
    program, seed, integer = data.draw(programs(expr, chip)), data.draw(st.integers(0, 99)), data.draw(st.booleans())
    note(f"{program.describe()} on {chip.unit.count} tiles")
    for spec in (chip, received(chip)):
        manifest = agrees_if_legal(spec, program, seed, integer)
        if manifest is not None and expr.output.elements < 100:
            interpreted(spec, manifest, verify.random_inputs(expr, seed, integer))


def test_windows_cost_what_they_take_in_place_or_not() -> None:
    random_examples(any_windows, 0, 120)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_windows_cost_what_they_take_in_place_or_not(part: int) -> None:
    random_examples(any_windows, 100 + part, 1000)


def built(operator: SymbolicTensor, spec: HardwareSpec) -> tuple[Manifest, int]:
    """The manifest of the best program for an operator, and its cycles as the closed form and the simulator count them."""
    device, expr = load_device("ipu_sim"), fuse(ops.expression(operator))
    found = construct(expr, spec, device.rules(spec, expr), device.cost_parameters(spec, expr), 1)[0]
    manifest, done = agrees(spec, found.program, found.estimate, 0, True)
    return manifest, done.profile.cycles


def test_padding_is_stored_with_the_array_and_neighbours_send_the_rest() -> None:
    x, w = ops.tensor((1, 32, 24, 24), "float32"), ops.tensor((32, 1, 3, 3), "float32")
    manifest, cycles = built(ops.depthwise_conv2d(x, w, padding=1), BOW)
    image = next(t for t in manifest.tensors if t.shape[-1] == 24 and t.role == "input")
    assert image.stored != image.shape and not any("fill" in step.name for step in manifest.steps)
    assert {place.strides is None for place in image.placements} == {False}
    assert cycles < built(ops.depthwise_conv2d(x, w, padding=1), received(BOW))[1]


def test_windows_that_no_neighbour_shares_are_not_exchanged() -> None:
    x = ops.tensor((1, 1472, 7, 7), "float32")
    manifest, _ = built(ops.avg_pool2d(x, (3, 3), 1, 1), BOW)
    assert not any(step.exchange for step in manifest.steps)


def test_padding_that_is_not_zero_is_filled() -> None:
    manifest, _ = built(ops.max_pool2d(ops.tensor((1, 1472, 7, 7), "float32"), (3, 3), 1, 1), BOW)
    assert any("fill" in step.name for step in manifest.steps)


def test_programs_of_too_many_uneven_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op = ops.max_pool2d(ops.tensor((2, 8, 17, 17)), 3, 2, 1)
    space = roller.enumerate_programs(op, "ipu_sim:bow", threads=5)
    wholes = [(program, whole_of(FEW, program)) for program in space.sample(60, 1)]
    serial = [
        p for p, found in wholes if isinstance(found, Whole) and found.plans[0].grid.steps > 1 and uneven(found.plans[0].arrays)
    ]
    assert serial
    monkeypatch.setattr("roller_ipu_sim.plan.stage_plan.MOST_STEPS", 1)
    monkeypatch.setattr("roller_ipu_sim.codegen.program_plan.MOST_STEPS", 1)
    for program in serial:
        rule, reason = whole_of(FEW, program)
        assert rule == "steps" and "at most 1 are told apart" in reason
        assert refusal(FEW, program) == (rule, reason)
