"""Loops over windows leave out the taps outside the array where these add nothing, and only there."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from roller import ops
from roller.cost.model import Model
from roller.device.plugins import load_device
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, variants
from roller.ir.padded_windows import PaddedWindow, padded_windows
from roller.ir.serialization import expr_from_json, expr_to_json
from roller.ir.sliding_windows import Window
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram
from roller.program.window_steps import padded_loops
from roller.testing import expression
from roller.verify import reference

Array = npt.NDArray[np.generic]


@given(
    st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(-9, 3), st.integers(1, 12), st.integers(-3, 20),
    st.integers(1, 5),
)  # fmt: skip
def test_taps_inside_are_those_that_some_position_reads(
    taps: int, along: int, step: int, offset: int, extent: int, first: int, points: int
) -> None:
    padded = PaddedWindow(Window(0, (1,), 0, ((0, along), (1, step))), 1, taps, offset, extent)
    read = [
        tap for tap in range(taps) if any(0 <= offset + along * (first + p) + step * tap < extent for p in range(points))
    ]  # fmt: skip
    begin, end = padded.inside(first, points)
    assert 0 <= begin <= end <= taps
    assert set(read) <= set(range(begin, end))
    if points == 1:
        assert list(range(begin, end)) == read


def nest_of(expr: TensorExpr, dims: int) -> Nest:
    return next(n for n in variants(expr.stages[0], expr.tensors) if len(n.dims) == dims)


def known_finite(expr: TensorExpr, name: str) -> TensorExpr:
    return TensorExpr(tuple(replace(t, finite=t.name == name) for t in expr.inputs), expr.stages)


def convolution(dtype: str = "float32") -> TensorExpr:
    image, filters = ops.tensor((1, 8, 7, 7), dtype, "x"), ops.tensor((32, 8, 3, 3), dtype, "w")
    return fuse(expression(ops.conv2d(image, filters, padding=1)))


def test_which_taps_add_nothing() -> None:
    plain = convolution()
    assert not padded_windows(nest_of(plain, 6))  # zero times an infinity is a NaN
    assert {p.taps for p in padded_windows(nest_of(known_finite(plain, "w"), 6))} == {3}
    assert not padded_windows(nest_of(known_finite(plain, "x"), 6))
    assert len(padded_windows(nest_of(convolution("int8"), 6))) == 2
    unpadded = fuse(expression(ops.conv2d(ops.tensor((1, 8, 7, 7), "int8"), ops.tensor((32, 8, 3, 3), "int8"))))
    assert not padded_windows(nest_of(unpadded, 6))
    for pool, dims in ((ops.max_pool2d, 5), (ops.avg_pool2d, 5)):
        assert len(padded_windows(nest_of(fuse(expression(pool(ops.tensor((1, 6, 9, 9)), 3, 1, 1))), dims))) == 2
    widened = fuse(
        expression(ops.conv2d(ops.tensor((1, 8, 7, 7), "bfloat16", "x"), ops.tensor((32, 8, 3, 3), "bfloat16", "w"), padding=1))
    )
    assert len(padded_windows(nest_of(known_finite(widened, "w"), 6))) == 2


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_numbers_with_constant_weights(data: st.DataObject) -> None:
    """Whole numbers, infinities and NaN among them; a weight that is not finite makes the padding beside it a NaN."""
    draw = data.draw
    taps, stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    padding, size = draw(st.integers(0, 5)), draw(st.integers(4, 9))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int8"]))
    if size + 2 * padding < dilation * (taps - 1) + 1:
        return
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    image = ops.tensor((1, 5, size, size), dtype, "x")
    filters = ops.tensor((19, 5, taps, taps), dtype, "w")
    expr = expression(ops.conv2d(image, filters, stride, padding, dilation))
    chance = np.random.default_rng(draw(st.integers(0, 99)))
    x, w = (chance.integers(-3, 4, t.shape).astype(kind) for t in expr.inputs)
    if dtype != "int8":
        x.flat[::41] = draw(st.sampled_from([np.inf, np.nan, -0.0]))
        w.flat[7 :: 10 * taps] = draw(st.sampled_from([1.0, np.inf, np.nan]))
    out = roller.compile(expr, "cpu", constants={"w": w})(x)
    np.testing.assert_array_equal(out.astype(np.float64), reference(expr, [x, w]).astype(np.float64))


def run(expr: TensorExpr, *arrays: Array) -> Array:
    """The results of the kernel of an expression, for weights that are given at call time."""
    return np.asarray(roller.compile(expr, "cpu", threads=1)(*arrays))


def test_taps_on_padding_are_not_computed() -> None:
    """A promise that does not hold shows what is computed: the first row of taps lies outside, for the first row of results."""
    generator = np.random.default_rng(0)
    expr = convolution()
    x, w = (generator.integers(-3, 4, t.shape).astype(np.float32) for t in expr.inputs)
    w[:, :, 0, :] = np.inf
    assert np.isnan(run(expr, x, w)[0, :, 0]).all()
    assert np.isfinite(run(known_finite(expr, "w"), x, w)[0, :, 0]).all()


def program_of(expr: TensorExpr) -> tuple[roller.Kernel, StageProgram]:
    kernel = roller.compile(expr, "cpu:zen5", threads=1)
    return kernel, kernel.program.stages[0]


def test_the_model_counts_the_steps_that_are_computed() -> None:
    kernel, program = program_of(known_finite(convolution(), "w"))
    assert padded_loops(program), program.describe()
    given_ = load_device("cpu").cost_parameters(kernel.spec, kernel.expr)
    walked = [Model(kernel.spec, replace(given_, skips_padding=is_so), Geometry(program.nest)) for is_so in (True, False)]
    less, all_ = (model.compute_seconds(model.walk(program)) for model in walked)
    assert less == pytest.approx(all_ * 19 / 21, rel=1e-3)  # two rows of seven have two rows of taps instead of three
    floor = walked[0].floor_seconds(program)
    assert floor <= less


def test_explanations_name_the_taps() -> None:
    w = np.ones((32, 8, 3, 3), np.float32)
    known, unknown = (str(roller.compile(convolution(), "cpu:zen5", threads=1, constants=c).explain()) for c in ({"w": w}, None))
    assert "taps on padding, left out: r (9.5%)" in known
    assert "taps on padding" not in unknown
    w[0, 0, 0, 0] = np.nan
    assert "taps on padding" not in str(roller.compile(convolution(), "cpu:zen5", threads=1, constants={"w": w}).explain())


def test_what_is_finite_is_stored() -> None:
    expr = known_finite(convolution(), "w")
    assert expr_from_json(expr_to_json(expr)) == expr
    table = expr_to_json(expr)
    table["inputs"][0]["finite"] = 1
    with pytest.raises(roller.ExpressionError, match="neither true nor false"):
        expr_from_json(table)


def test_built_for_finite_constants_only() -> None:
    """Kernels are kept by what is known of constants: one for finite weights does not serve for others."""
    expr = convolution()
    x = np.ones((1, 8, 7, 7), np.float32)
    w = np.ones((32, 8, 3, 3), np.float32)
    assert np.isfinite(roller.compile(expr, "cpu", constants={"w": w})(x)).all()
    w[:, :, 0, :] = np.inf
    assert np.isnan(roller.compile(expr, "cpu", constants={"w": w})(x)[0, :, 0]).all()
