"""The contract suite of every device, and this device's own tests."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
import roller_plain_c
from roller import ops, verify
from roller.testing import DeviceContract, expressions, programs

LACKING = roller_plain_c.roller_requirements()
pytestmark = pytest.mark.skipif(bool(LACKING), reason="; ".join(LACKING))


class TestPlainC(DeviceContract):
    device = "plain_c"
    chips = ("one-core",)


def test_types_without_a_name_in_c_are_refused():
    op = ops.relu(roller.tensor((8,), "float16", name="x"))
    with pytest.raises(roller.RollerError, match="C has no type for float16"):
        roller.compile(op, device="plain_c")


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8"])
def test_other_types_are_computed_as_they_are(dtype):
    a, b = roller.tensor((7, 9), dtype, name="a"), roller.tensor((9, 5), dtype, name="b")
    kernel = roller.compile(ops.matmul(a, b), device="plain_c")
    arrays = verify.random_inputs(kernel.expr, seed=1, integer=True)
    verify.check(kernel.expr, arrays, kernel(**arrays))


@pytest.mark.parametrize("constants", [False, True])
def test_every_candidate_computes_the_same(constants):
    x, w = roller.tensor((2, 5, 13, 13), name="x"), roller.tensor((6, 5, 3, 3), name="w")
    op = ops.relu(ops.conv2d(x, w, padding=1) + roller.tensor((6, 1, 1), name="bias"))
    arrays = verify.random_inputs(ops.expression(op), seed=2, integer=True)
    kernel = roller.compile(op, device="plain_c", top_k=20, constants={"w": arrays["w"]} if constants else None)
    moving = tuple(arrays[t.name] for t in kernel.expr.inputs if t.name != "w" or not constants)
    staged = set()
    drawn = [] if constants else roller.enumerate_programs(op, "plain_c").sample(20)  # among them some with panels
    for program in [*(candidate.program for candidate in kernel.candidates), *drawn]:
        source = roller_plain_c.roller_codegen(program)
        artifact = roller_plain_c.roller_build(kernel.spec, source)
        out = np.full(kernel.expr.output.shape, np.nan, "float32")
        roller_plain_c.roller_load_kernel(replace(artifact, constants=kernel.artifact.constants)).run(moving, out)
        verify.check(kernel.expr, arrays, out)
        staged |= {copy.kind for stage in program.stages for copy in stage.staged}
    assert "panel" in staged, "none of the programs copies anything"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_programs_that_no_engine_chose_are_printed_right(data):
    """Any order of loops, any tiles, any panels: accumulators are saved and restored, panels are filled where needed."""
    spec = roller_plain_c.roller_default_spec()
    expr = data.draw(expressions(zero=True))
    program = data.draw(programs(expr, spec, staging=True))
    arrays = verify.random_inputs(expr, seed=4, integer=True)
    out = np.full(expr.output.shape, np.nan, expr.output.dtype)
    artifact = roller_plain_c.roller_build(spec, roller_plain_c.roller_codegen(program))
    roller_plain_c.roller_load_kernel(artifact).run(tuple(arrays[t.name] for t in expr.inputs), out)
    verify.check(expr, arrays, out)


def test_a_reduction_that_units_share_is_added_up():
    """A chip of two cores with split-K: the printed loops run in sequence, and accumulate into the stored values."""
    one = roller_plain_c.roller_default_spec()
    unit = one.unit.model_copy(update={"count": 2, "combine": ("second_pass",)})
    shared = one.model_copy(update={"unit": unit, "levels": tuple(lv.model_copy(update={"instances": 2}) for lv in one.levels)})
    op = ops.reduce_sum(roller.tensor((8, 4096), name="x"), 1)
    (stage,) = roller.compile(op, device="plain_c").program.stages
    cut = replace(stage, tiles=((8, 2048), (2, 1))).dispatched(split=2)
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr, seed=5, integer=True)
    artifact = roller_plain_c.roller_build(shared, roller_plain_c.roller_codegen(roller.RProgram(expr, (cut,))))
    out = np.full(8, np.nan, "float32")
    roller_plain_c.roller_load_kernel(artifact).run((arrays["x"],), out)
    assert [(lp.dim, lp.over) for lp in cut.loops[:2]] == [(1, "units"), (0, "time")] and cut.accumulator_visits == 1
    verify.check(expr, arrays, out)


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert roller_plain_c.roller_requirements() == (
        "no C compiler 'no-such-compiler': install gcc or clang, or set CC to the one to use",
    )
    with pytest.raises(roller.CodegenError, match="no C compiler"):
        roller.compile(ops.relu(roller.tensor((8,), name="x")), device="plain_c")
