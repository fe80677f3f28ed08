"""Operators against NumPy and hand-written loops, through the reference interpreter."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from roller import ops, verify
from roller.errors import ExpressionError
from roller.ops import SymbolicTensor
from roller.ops import tensor as T

Array = np.ndarray[Any, Any]
FLOATS = ("float64", "float32", "float16", "bfloat16")


def computed(value: SymbolicTensor, *, integer: bool = True, seed: int = 0) -> tuple[Array, list[Array]]:
    """The value of an operator on random inputs, and the inputs, all in float64 (or int64)."""
    expr = ops.expression(value)
    arrays = verify.random_inputs(expr, seed, integer)
    result = verify.reference(expr, arrays)
    assert result.shape == value.shape == expr.output.shape
    assert expr.output.dtype == value.dtype
    return result, [a.astype(np.int64 if a.dtype.kind in "iu" else np.float64) for a in arrays.values()]


# Matrix products


@pytest.mark.parametrize(("m", "n", "k"), [(4, 6, 5), (1, 1, 1), (7, 13, 11), (0, 3, 2), (3, 2, 0), (5, 1, 17)])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
def test_matmul(m: int, n: int, k: int, ta: bool, tb: bool) -> None:
    result, (a, b) = computed(ops.matmul(T((k, m) if ta else (m, k)), T((n, k) if tb else (k, n)), ta, tb))
    np.testing.assert_array_equal(result, (a.T if ta else a) @ (b.T if tb else b))


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
def test_batch_matmul(ta: bool, tb: bool) -> None:
    a_shape, b_shape = ((3, 5, 4) if ta else (3, 4, 5)), ((3, 6, 5) if tb else (3, 5, 6))
    result, (a, b) = computed(ops.batch_matmul(T(a_shape), T(b_shape), ta, tb))
    np.testing.assert_array_equal(result, (a.swapaxes(1, 2) if ta else a) @ (b.swapaxes(1, 2) if tb else b))


@pytest.mark.parametrize(
    ("dtype", "accumulated", "given"),
    [(d, "float64" if d == "float64" else "float32", d) for d in FLOATS]
    + [("int8", "int32", "int32"), ("int32", "int32", "int32")],
)
def test_element_types(dtype: str, accumulated: str, given: str) -> None:
    value = ops.matmul(T((4, 5), dtype), T((5, 6), dtype))
    stage = ops.expression(value).stages[0]
    assert (stage.body.dtype, value.dtype) == (accumulated, given)
    result, (a, b) = computed(value)
    np.testing.assert_array_equal(result, a @ b)


def test_asked_element_types() -> None:
    value = ops.matmul(T((4, 5), "float16"), T((5, 6), "float16"), out_dtype="float32", acc_dtype="float16")
    assert value.dtype == "float32"
    assert ops.expression(value).stages[0].body.dtype == "float16"


def test_the_operator_for_products() -> None:
    result, (a, b) = computed(T((4, 5)) @ T((5, 6)))
    np.testing.assert_array_equal(result, a @ b)
    result, (a, b) = computed(T((3, 4, 5)) @ T((3, 5, 6)))
    np.testing.assert_array_equal(result, a @ b)


@pytest.mark.parametrize("other", [3, T((2, 5, 6)), T((6, 5)), T((5,)), np.zeros((5, 6))])
def test_wrong_products(other: Any) -> None:
    for build in (lambda: T((4, 5)) @ other, lambda: other @ T((4, 4))):
        with pytest.raises(ExpressionError, match="matmul"):
            build()


def test_axis_names_are_short_and_stable() -> None:
    def names(value: SymbolicTensor) -> str:
        return " ".join(a.name for a in ops.expression(value).stages[0].axes)

    x, y = T((2, 4, 5, 5)), T((2, 5, 5, 4))
    assert names(ops.matmul(T((2, 3)), T((3, 4)))) == "m n k"
    assert names(ops.batch_matmul(T((1, 2, 3)), T((1, 3, 4)))) == "b m n k"
    assert names(ops.conv2d(x, T((6, 4, 3, 3)))) == "n f h w c r s"
    assert names(ops.conv2d(x, T((6, 2, 3, 3)), groups=2)) == "n g f h w c r s"
    assert names(ops.conv2d(y, T((3, 3, 4, 6)), layout="NHWC")) == "n h w f r s c"
    assert names(ops.depthwise_conv2d(x, T((4, 1, 3, 3)))) == "n c h w r s"
    assert names(ops.depthwise_conv2d(x, T((4, 2, 3, 3)))) == "n c m h w r s"
    assert names(ops.max_pool2d(x, 2)) == "n c h w r s"
    assert names(ops.relu(x)) == "i0 i1 i2 i3"
    assert names(ops.reduce_sum(x, 1)) == "i0 i2 i3 i1"


# Convolutions and pooling


def pads(padding: Any, size: tuple[int, int], reach: tuple[int, int], stride: tuple[int, int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0), (0, 0)]
    if padding == "same":
        totals = [max((math.ceil(e / s) - 1) * s + r - e, 0) for e, r, s in zip(size, reach, stride, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    if isinstance(padding, int):
        return [(padding, padding)] * 2
    return [(padding[0],) * 2, (padding[1],) * 2] if len(padding) == 2 else [padding[:2], padding[2:]]


def two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def patches(x: Array, kernel: tuple[int, int], stride: Any, padding: Any, dilation: Any, fill: float = 0.0) -> Array:
    """(N, C, OH, OW, KH, KW) windows of x (N, C, H, W), by loops."""
    stride, dilation = two(stride), two(dilation)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    around = pads(padding, x.shape[2:], reach, stride)
    x = np.pad(x, [(0, 0), (0, 0), *around], constant_values=fill)
    high, wide = ((x.shape[2 + d] - reach[d]) // stride[d] + 1 for d in range(2))
    result = np.zeros((*x.shape[:2], high, wide, *kernel))
    for h, w, r, s in itertools.product(range(high), range(wide), range(kernel[0]), range(kernel[1])):
        result[:, :, h, w, r, s] = x[:, :, h * stride[0] + r * dilation[0], w * stride[1] + s * dilation[1]]
    return result


GEOMETRIES = [
    ((9, 9), (3, 3), 1, 0, 1),
    ((9, 8), (3, 3), 1, 1, 1),
    ((11, 7), (3, 5), (2, 1), (1, 2), 1),
    ((10, 10), (3, 3), 2, "same", 1),
    ((13, 7), (3, 3), 1, "valid", (2, 1)),
    ((7, 9), (2, 3), 3, (1, 0, 2, 1), (1, 2)),
    ((1, 1), (1, 1), 1, 0, 1),
    ((5, 5), (1, 1), 2, 0, 1),
    ((6, 6), (5, 5), 1, "same", 1),
]


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "dilation"), GEOMETRIES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, layout: Any, groups: int) -> None:
    nchw = layout == "NCHW"
    x = T((2, 4, *size) if nchw else (2, *size, 4))
    w = T((6, 4 // groups, *kernel) if nchw else (*kernel, 4 // groups, 6))
    result, (a, b) = computed(ops.conv2d(x, w, stride, padding, dilation, groups, layout))
    if not nchw:
        a, b, result = a.transpose(0, 3, 1, 2), b.transpose(3, 2, 0, 1), result.transpose(0, 3, 1, 2)
    windows = patches(a, kernel, stride, padding, dilation)
    parts = zip(np.split(windows, groups, axis=1), np.split(b, groups, axis=0), strict=True)
    expected = np.concatenate([np.einsum("nchwrs,fcrs->nfhw", p, q) for p, q in parts], axis=1)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "dilation"), GEOMETRIES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_conv2d(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, layout: Any, multiplier: int) -> None:
    nchw = layout == "NCHW"
    x = T((2, 5, *size) if nchw else (2, *size, 5))
    w = T((5, multiplier, *kernel) if nchw else (*kernel, 5, multiplier))
    result, (a, b) = computed(ops.depthwise_conv2d(x, w, stride, padding, dilation, layout))
    if not nchw:
        a, b, result = a.transpose(0, 3, 1, 2), b.transpose(2, 3, 0, 1), result.transpose(0, 3, 1, 2)
    expected = np.einsum("nchwrs,cmrs->ncmhw", patches(a, kernel, stride, padding, dilation), b)
    np.testing.assert_array_equal(result, expected.reshape(2, 5 * multiplier, *expected.shape[3:]))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_conv2d_element_types(dtype: str) -> None:
    value = ops.conv2d(T((1, 3, 5, 5), dtype), T((2, 3, 3, 3), dtype), padding=1)
    result, (a, b) = computed(value)
    assert value.dtype == ("int32" if dtype == "int8" else dtype)
    expected = np.einsum("nchwrs,fcrs->nfhw", patches(a, (3, 3), 1, 1, 1), b)
    rounded = expected.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else expected
    np.testing.assert_array_equal(result, rounded.astype(np.float64))


def test_convolutions_of_nothing() -> None:
    assert computed(ops.conv2d(T((0, 3, 5, 5)), T((2, 3, 3, 3))))[0].shape == (0, 2, 3, 3)
    np.testing.assert_array_equal(computed(ops.conv2d(T((1, 0, 5, 5)), T((2, 0, 3, 3))))[0], np.zeros((1, 2, 3, 3)))


POOLS = [g for g in GEOMETRIES if g[0] != (7, 9)] + [((7, 9), (2, 3), 2, (1, 0, 2, 1), (1, 2))]


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "dilation"), POOLS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pooling(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, layout: Any) -> None:
    x = T((2, 3, *size) if layout == "NCHW" else (2, *size, 3))

    def nchw(array: Array) -> Array:
        return array if layout == "NCHW" else array.transpose(0, 3, 1, 2)

    result, (a,) = computed(ops.max_pool2d(x, kernel, stride, padding, dilation, layout))
    expected = patches(nchw(a), kernel, stride, padding, dilation, -np.inf).max(axis=(4, 5))
    np.testing.assert_array_equal(nchw(result), expected)
    zeros = patches(nchw(a), kernel, stride, padding, dilation)
    result, _ = computed(ops.avg_pool2d(x, kernel, stride, padding, dilation, layout))
    np.testing.assert_array_equal(nchw(result), zeros.mean(axis=(4, 5)).astype(np.float32))
    result, _ = computed(ops.avg_pool2d(x, kernel, stride, padding, dilation, layout, count_include_pad=False))
    counts = patches(np.ones_like(nchw(a)), kernel, stride, padding, dilation).sum(axis=(4, 5))
    np.testing.assert_array_equal(nchw(result), (zeros.sum(axis=(4, 5)) / counts).astype(np.float32))


def test_integer_max_pool_ignores_padding() -> None:
    result, (a,) = computed(ops.max_pool2d(T((1, 1, 4, 4), "int8") - 100, 3, 1, 1))
    np.testing.assert_array_equal(result, patches(a - 100.0, (3, 3), 1, 1, 1, -np.inf).max(axis=(4, 5)))


# Reductions, elementwise, movement, einsum

REDUCTIONS = {"sum": ops.reduce_sum, "max": ops.reduce_max, "min": ops.reduce_min, "mean": ops.reduce_mean}


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, 0, -1, (0, 2), (), (-2, 0)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(kind: str, axes: Any, keepdims: bool) -> None:
    result, (a,) = computed(REDUCTIONS[kind](T((3, 5, 7)), axes, keepdims))  # type: ignore[operator]
    np.testing.assert_array_equal(result, getattr(np, kind)(a, axis=axes, keepdims=keepdims).astype(np.float32))


def test_reductions_of_integers_and_of_nothing() -> None:
    total = ops.reduce_sum(T((5, 100), "int8"), 1)
    assert total.dtype == "int32"
    assert ops.reduce_max(T((5, 100), "int8"), 1).dtype == "int8"
    np.testing.assert_array_equal(computed(ops.reduce_sum(T((3, 0)), 1))[0], np.zeros(3))
    assert computed(ops.reduce_max(T((0, 3)), 1))[0].shape == (0,)
    assert computed(ops.reduce_sum(T(())))[0].shape == ()


UNARY: dict[str, tuple[Callable[[SymbolicTensor], SymbolicTensor], Callable[[Array], Array]]] = {
    "relu": (ops.relu, lambda x: np.maximum(x, 0)),
    "gelu": (ops.gelu, lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))),
    "gelu_tanh": (
        lambda x: ops.gelu(x, "tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "exp": (ops.exp, np.exp),
    "log": (ops.log, np.log),
    "sqrt": (ops.sqrt, np.sqrt),
    "rsqrt": (ops.rsqrt, lambda x: 1 / np.sqrt(x)),
    "tanh": (ops.tanh, np.tanh),
    "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (ops.silu, lambda x: x / (1 + np.exp(-x))),
    "erf": (ops.erf, np.vectorize(math.erf)),
    "sin": (ops.sin, np.sin),
    "cos": (ops.cos, np.cos),
    "abs": (ops.abs, np.abs),
    "neg": (ops.neg, np.negative),
    "floor": (lambda x: ops.floor(x * 3.0), lambda x: np.floor(x * 3)),
    "ceil": (lambda x: ops.ceil(x * 3.0), lambda x: np.ceil(x * 3)),
    "round": (lambda x: ops.round(x * 3.0), lambda x: np.rint(x * 3)),
    "clip": (lambda x: ops.clip(x, -0.5, 0.25), lambda x: np.clip(x, -0.5, 0.25)),
    "clip_low": (lambda x: ops.clip(x, -0.5), lambda x: np.maximum(x, -0.5)),
    "numbers": (lambda x: 2 * x + 1 - x / 4 - (3 - abs(-x)), lambda x: 2 * x + 1 - x / 4 - (3 - np.abs(x))),
    "square": (lambda x: x**2, np.square),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", FLOATS)
def test_unary(name: str, dtype: str) -> None:
    build, expected = UNARY[name]
    result, (a,) = computed(build(T((3, 7), dtype)), integer=False)
    coarse = {"float16": 4e-3, "bfloat16": 4e-2}.get(dtype, 3e-7)
    np.testing.assert_allclose(result, expected(a), rtol=coarse, atol=coarse)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (ops.add, np.add),
        (ops.sub, np.subtract),
        (ops.mul, np.multiply),
        (ops.div, np.divide),
        (ops.maximum, np.maximum),
        (ops.minimum, np.minimum),
        (ops.pow, np.power),
    ],
)
@pytest.mark.parametrize(("left", "right"), [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 2)), ((0, 3), (1, 3))])
def test_binary_broadcasts(build: Any, expected: Any, left: Any, right: Any) -> None:
    result, (a, b) = computed(build(T(left, "float64"), T(right, "float64")), integer=False)
    np.testing.assert_allclose(result, expected(a, b), rtol=1e-14)


def test_integers_wrap_and_halves_round_once() -> None:
    expr = ops.expression(T((2,), "int8") + T((2,), "int8"))
    arrays = [np.array([100, -100], np.int8)] * 2
    np.testing.assert_array_equal(verify.reference(expr, arrays), [-56, 56])
    body = ops.expression(ops.gelu(T((2,), "float16"))).stages[0].body
    assert (body.dtype, body.value.dtype) == ("float16", "float32")  # type: ignore[union-attr]


def test_where_and_cast() -> None:
    result, (c, a, b) = computed(ops.where(T((3, 1), "int8"), T((3, 4)), T((4,))))
    np.testing.assert_array_equal(result, np.where(c != 0, a, b))
    result, (a,) = computed(ops.cast(T((9,)) * 3.7, "int8"), integer=False)
    np.testing.assert_array_equal(result, np.trunc(a * 3.7))
    assert T((3,)).astype("bfloat16").dtype == "bfloat16"


def test_movement() -> None:
    result, (a,) = computed(ops.transpose(T((2, 3, 4)), (1, -1, 0)))
    np.testing.assert_array_equal(result, a.transpose(1, 2, 0))
    np.testing.assert_array_equal(computed(ops.transpose(T((2, 3))))[0], computed(ops.transpose(T((2, 3))))[1][0].T)
    result, (a,) = computed(ops.pad(T((2, 3)), [(1, 0), (2, 3)], 7))
    np.testing.assert_array_equal(result, np.pad(a, [(1, 0), (2, 3)], constant_values=7))
    result, (a,) = computed(ops.broadcast_to(T((3, 1)), (2, 3, 4)))
    np.testing.assert_array_equal(result, np.broadcast_to(a, (2, 3, 4)))
    result, (a,) = computed(ops.expand_dims(T((3, 2)), -2))
    np.testing.assert_array_equal(result, a[:, None, :])


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("mk,kn->mn", [(4, 5), (5, 6)]),
        ("mk,kn", [(4, 5), (5, 6)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("ij->ji", [(3, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,ij,ij->i", [(2, 3)] * 3),
        ("ijk->", [(2, 3, 4)]),
        ("zA, Ab -> bz", [(2, 3), (3, 4)]),
        ("iij,j->i", [(3, 3, 4), (4,)]),
        (",i->i", [(), (3,)]),
        ("ab,b->a", [(2, 0), (0,)]),
    ],
)
def test_einsum(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    result, arrays = computed(ops.einsum(subscripts, *(T(s) for s in shapes)))
    np.testing.assert_array_equal(result, np.einsum(subscripts, *arrays))


# Expressions


def test_inputs_come_in_order_of_first_appearance() -> None:
    a, b, c = T((4, 5), name="a"), T((5, 6)), T((6,), name="t0")
    expr = ops.expression(ops.relu(c + ops.matmul(a, b)) + ops.transpose(ops.matmul(ops.transpose(b), ops.transpose(a))))
    assert [t.name for t in expr.inputs] == ["t0", "a", "t1"]
    names = [s.name for s in expr.stages]
    assert names == ["matmul", "add", "relu", "transpose", "transpose_1", "matmul_1", "transpose_2", "add_1"]


def test_a_long_chain_needs_no_recursion() -> None:
    value = T((2,))
    for _ in range(3000):
        value = value + 1.0
    assert len(ops.expression(value).stages) == 3000


def test_one_tensor_used_twice_is_one_input() -> None:
    x = T((3,), name="x")
    result, (a,) = computed(x * x + x)
    np.testing.assert_array_equal(result, a * a + a)


def test_tensors_are_compared_by_identity_and_leave_numpy_alone() -> None:
    assert T((3,)) != T((3,))
    assert len({T((3,)), T((3,))}) == 2
    with pytest.raises((TypeError, ExpressionError)):
        np.ones(3) + T((3,))
    assert (np.float32(2) * T((3,))).shape == (3,)


def test_the_library_needs_neither_tvm_nor_numpy() -> None:
    code = "import sys, roller.ops; assert 'tvm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    for file in Path(ops.__file__).parent.glob("*.py"):
        assert not re.search(r"^\s*(import|from) (numpy|tvm)", file.read_text(), re.MULTILINE), file


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("f2"), "float16"], ids=str)
def test_element_types_are_named_or_numpys(dtype: object) -> None:
    assert ops.tensor((3,), dtype).dtype == ops.tensor((3,)).astype(dtype).dtype == "float16"
    assert ops.tensor((3,), bool).dtype == "bool"
    assert ops.matmul(ops.tensor((2, 3)), ops.tensor((3, 2)), out_dtype=dtype).dtype == "float16"
