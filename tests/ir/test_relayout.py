"""Layouts: what copies of inputs hold, that nothing of their padding shows, and that they are taken where they are worth it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from emulating import emulated, needs_cxx, text_of
from roller import ops, pipeline, verify
from roller.compiler import expression_of
from roller.device.chip import resolve
from roller.ir.expr import ELEMENT_BYTES, Stage, TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ir.relayout import layouts
from roller.target.hardware import HardwareSpec

ROW_BYTES = 16
H100 = roller.load_spec("cuda:h100")


def product_of(expr: TensorExpr) -> Stage:
    """The stage that multiplies; others only copy."""
    (found,) = (stage for stage in expr.stages if stage.reducer is not None)
    return found


def laid(op: ops.SymbolicTensor, spec: HardwareSpec = H100) -> tuple[TensorExpr, ...]:
    return layouts(fuse(expression_of(op)), spec, ROW_BYTES)


@st.composite
def products(draw: st.DrawFn) -> ops.SymbolicTensor:
    """Matrix products in all transposes and convolutions, mostly with rows that are not aligned."""
    dtype = draw(st.sampled_from(("float16", "bfloat16", "int8")))
    extent = st.integers(0, 21)
    if draw(st.booleans()):
        m, n, k = (draw(extent) for _ in "mnk")
        turned = {name: draw(st.booleans()) for name in ("transpose_a", "transpose_b")}
        a, b = ((k, m) if turned["transpose_a"] else (m, k)), ((n, k) if turned["transpose_b"] else (k, n))
        return ops.matmul(ops.tensor(a, dtype, name="a"), ops.tensor(b, dtype, name="b"), **turned)
    c, f, size, taps = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(3, 9)), draw(st.integers(1, 3))
    x, w = ops.tensor((2, c, size, size), dtype, name="x"), ops.tensor((f, c, taps, taps), dtype, name="w")
    return ops.conv2d(x, w, stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 1)))


@settings(max_examples=150, deadline=None)
@given(products(), st.integers(0, 1 << 30))
def test_they_compute_the_same_whatever_stands_beside_the_ends(op: ops.SymbolicTensor, seed: int) -> None:
    """With infinities and NaN among the values: zeros that a copy adds meet no other factor's values."""
    first, *others = laid(op)
    arrays = verify.random_inputs(first, seed % 1000)
    drawn = np.random.default_rng(seed)
    for array in arrays.values():
        if array.size and array.dtype.kind != "i":
            flat = array.reshape(-1)
            for special in (np.inf, -np.inf, np.nan):
                flat[drawn.integers(flat.size)] = special
    with np.errstate(all="ignore"):
        want = verify.reference(first, arrays)
        for other in others:
            got = verify.reference(other, arrays)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)


@given(products())
def test_copies_have_aligned_rows_and_hold_every_element_once(op: ops.SymbolicTensor) -> None:
    first, *others = laid(op)
    for other in others:
        product = product_of(other)
        read = {load.tensor for load in product.reads}
        for stage in other.stages[: other.stages.index(product)]:
            assert stage.name in read and stage.reducer is None
            assert stage.output.shape[-1] * ELEMENT_BYTES[stage.output.dtype] % ROW_BYTES == 0
            (load,) = stage.reads
            source = first.tensors[load.tensor]
            assert stage.output.elements >= source.elements
            assert {index.terms for index in load.index} == {((axis.name, 1),) for axis in stage.axes}
        assert other.output == first.output and other.inputs == first.inputs


def test_aligned_operands_stay_where_they_are() -> None:
    a, b = (ops.tensor((64, 64), "float16", name=name) for name in "ab")
    assert len(laid(ops.matmul(a, b))) == len(laid(ops.matmul(a, b, transpose_b=True))) == 1
    assert len(layouts(fuse(expression_of(ops.matmul(a, b))), H100, 0)) == 1, "a device for which it makes no difference"
    wide = ops.matmul(ops.tensor((65, 67), name="a"), ops.tensor((67, 63), name="b"))
    assert len(laid(wide)) == 1, "no matrix atom multiplies float32"


def test_filters_are_not_padded_where_images_cannot_be() -> None:
    """Taps that a filter has not would meet values of the image, and 0 times an infinity is no zero."""
    x, w = ops.tensor((1, 3, 9, 9), "float16", name="x"), ops.tensor((8, 3, 7, 7), "float16", name="w")
    for other in laid(ops.conv2d(x, w, padding=3))[1:]:
        extents = product_of(other).extents
        assert (extents["r"], extents["s"], extents["c"]) == (7, 7, 8)


def test_results_of_mixed_dimensions_are_written_by_factors_and_turned() -> None:
    """Images by filters by pixels: what lies along the images and their pixels is one dimension of the product then."""
    x, w = ops.tensor((64, 512, 7, 7), "float16", name="x"), ops.tensor((2048, 512, 1, 1), "float16", name="w")
    first, *others = laid(ops.conv2d(x, w))
    *_, product, turning = others[-1].stages
    assert [product.output.shape, turning.output] == [(64, 7, 7, 2048), first.output]
    assert turning.reducer is None and [load.tensor for load in turning.reads] == [product.name]
    assert any(dim.extent == 64 * 7 * 7 for nest in variants(product, others[-1].tensors) for dim in nest.dims)
    plugin, spec = resolve("cuda:h100", None)
    assert len(pipeline.choices_of(first, plugin, spec, 1, frozenset())[0].program.stages) == 3
    assert len(laid(ops.conv2d(ops.tensor((1, 512, 7, 7), "float16"), w))) == len(others), "one image's lie together"
    gathered = laid(ops.conv2d(ops.tensor((4, 9, 9, 5), "float16"), ops.tensor((3, 3, 5, 7), "float16"), layout="NHWC"))
    assert all(
        len(other.stages) == len({s.name for s in other.stages}) and product_of(other) is other.stages[-1] for other in gathered
    )


def groups_alone() -> HardwareSpec:
    """The H100, whose products all go to its warp groups."""
    return H100.model_copy(update={"atoms": tuple(a for a in H100.atoms if not a.name.startswith("mma"))})


@pytest.mark.one_in(3)
@needs_cxx
@pytest.mark.parametrize("chip", ["h100", "a100", "groups"])
@pytest.mark.parametrize("name", ["odd", "ends", "int8", "window"])
def test_kernels_that_read_copies_are_right(name: str, chip: str) -> None:
    """Also where a tile that moves back to an extent's end would begin inside a piece of a row ("ends")."""
    made: dict[str, Any] = {
        "odd": lambda: ops.matmul(ops.tensor((67, 133), "float16", name="a"), ops.tensor((133, 77), "float16", name="b")),
        "ends": lambda: ops.matmul(
            ops.tensor((67, 141), "float16", name="a"), ops.tensor((67, 301), "float16", name="b"), transpose_a=True
        ),
        "int8": lambda: ops.matmul(ops.tensor((65, 100), "int8", name="a"), ops.tensor((100, 77), "int8", name="b")),
        "window": lambda: ops.conv2d(
            ops.tensor((2, 24, 9, 9), "float16", name="x"), ops.tensor((40, 24, 3, 3), "float16", name="w"), padding=1
        ),
    }
    spec = groups_alone() if chip == "groups" else roller.load_spec(f"cuda:{chip}")
    plugin, _ = resolve(f"cuda:{chip}" if chip != "groups" else "cuda:h100", None)
    expr = fuse(expression_of(made[name]()))
    for other in layouts(expr, spec, ROW_BYTES)[1:]:
        program = pipeline._of_one(other, plugin, spec, 1, frozenset())[0].program
        assert len(program.stages) > 1, program.describe()
        arrays = verify.random_inputs(expr, 3)
        verify.check(expr, arrays, emulated(expr, text_of(spec, program), arrays))


@pytest.mark.parametrize(
    "op",
    [
        lambda: ops.matmul(ops.tensor((4095, 4095), "float16", name="a"), ops.tensor((4095, 4095), "float16", name="b")),
        lambda: ops.matmul(ops.tensor((4096, 4096), "int8", name="a"), ops.tensor((4096, 4096), "int8", name="b")),
        lambda: ops.conv2d(
            ops.tensor((64, 256, 14, 14), "float16", name="x"), ops.tensor((256, 256, 3, 3), "float16", name="w"), padding=1
        ),
    ],
)
def test_they_are_chosen_where_lanes_would_carry_every_element(op: Any) -> None:
    plugin, spec = resolve("cuda:h100", None)
    assert plugin.cost_parameters(spec, expression_of(op())).row_bytes == ROW_BYTES
    best = pipeline.choices_of(fuse(expression_of(op())), plugin, spec, 1, frozenset())[0]
    names = [stage.nest.stage.name for stage in best.program.stages]
    assert any("_laid" in name for name in names), best.program.describe()
    last = best.program.stages[-1]
    waits = plugin.cost_parameters(spec, best.program.expr).fill_waits
    assert waits is not None and waits(last) == 1, "nobody carries values and waits for them"
