"""The reference and its tolerance: right values, bounds that honest kernels keep and faults break."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from roller import ops, verify
from roller.errors import ExpressionError, WrongResultError
from roller.ir.expr import Axis, Stage, Tensor, TensorExpr
from roller.ir.scalar import Affine, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary
from roller.ops import SymbolicTensor
from roller.ops import tensor as T
from roller.precision import permitted

Array = np.ndarray[Any, Any]


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> TensorExpr:
    return ops.expression(ops.matmul(T((m, k), dtype, "a"), T((k, n), dtype, "b")))


def elementwise(body: Scalar, extent: int, dtype: str, inputs: tuple[Tensor, ...] = ()) -> TensorExpr:
    return TensorExpr(inputs, (Stage((Axis("i", extent),), body, Tensor("y", (extent,), dtype), (Affine.axis("i"),)),))


def test_arrays_by_name_or_in_order() -> None:
    expr = matmul(4, 6, 5)
    arrays = verify.random_inputs(expr)
    np.testing.assert_array_equal(verify.reference(expr, arrays), verify.reference(expr, list(arrays.values())))


def test_points_agree_with_the_whole() -> None:
    x, w = T((2, 4, 9, 9)), T((6, 2, 3, 3))
    value = ops.conv2d(ops.relu(ops.conv2d(x, w, 1, 1, groups=2)), T((4, 6, 3, 3)), 2, "same")
    for whatever in (value, ops.transpose(value) + T((4, 2)), ops.reduce_max(value, (1, 3), keepdims=True)):
        expr = ops.expression(whatever)
        arrays = verify.random_inputs(expr, 5)
        points = verify.sample_points(expr, 40, seed=1)
        whole = verify.reference(expr, arrays)
        np.testing.assert_allclose(verify.reference(expr, arrays, points), whole[tuple(points.T)], rtol=1e-13, atol=1e-13)
        bound = verify.tolerance(expr, arrays)
        np.testing.assert_allclose(verify.tolerance(expr, arrays, points), bound[tuple(points.T)], rtol=1e-9)


def test_large_operators_at_points_stay_small() -> None:
    expr = ops.expression(ops.relu(ops.matmul(ops.relu(T((65536, 1024))), T((1024, 4096)))))
    arrays = {t.name: np.broadcast_to(np.float32(0.5), t.shape) for t in expr.inputs}
    points = verify.sample_points(expr, 200)
    tracemalloc.start()
    result = verify.reference(expr, arrays, points)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(result, np.full(len(points), 256.0))
    assert peak < 200e6


def test_a_full_reference_is_chunked() -> None:
    expr = matmul(120, 120, 300)
    arrays = verify.random_inputs(expr)
    tracemalloc.start()
    bound = verify.tolerance(expr, arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bound.shape == (120, 120)
    assert peak < 200e6


def test_sample_points() -> None:
    expr = matmul(30, 40, 2)
    points = verify.sample_points(expr, 50)
    assert len(points) <= 50 and len(np.unique(points, axis=0)) == len(points)
    for corner in ([0, 0], [29, 39]):
        assert (points == corner).all(axis=1).any()
    assert verify.sample_points(matmul(2, 3, 2), 50).tolist() == [[i, j] for i in range(2) for j in range(3)]
    assert verify.sample_points(ops.expression(ops.reduce_sum(T((3,)))), 5).shape == (1, 0)
    assert verify.sample_points(matmul(0, 3, 2), 5).shape == (0, 2)


# Tolerance


def kernel(expr: TensorExpr, arrays: dict[str, Array], order: np.random.Generator, dtype: Any = np.float32) -> Array:
    """A product summed one term after another, in any order, in the given type: an honest and slow kernel."""
    a, b = arrays["a"], arrays["b"]
    total = np.zeros(expr.output.shape, dtype)
    for k in order.permutation(a.shape[1]):
        total = (total + a[:, k : k + 1].astype(dtype) * b[k : k + 1].astype(dtype)).astype(dtype)
    return total


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("k", [1, 17, 400])
def test_honest_kernels_pass_and_a_missing_term_does_not(dtype: str, k: int) -> None:
    expr = matmul(8, 9, k, dtype)
    accumulate = np.float64 if dtype == "float64" else np.float32
    for seed in range(3):
        arrays = verify.random_inputs(expr, seed)
        good = kernel(expr, arrays, np.random.default_rng(seed), accumulate)
        given = good.astype(verify.numpy_dtype(dtype))
        verify.check(expr, arrays, given)
        short = dict(arrays, a=arrays["a"].copy())
        short["a"][:, -1] = 0
        if dtype in ("float64", "float32"):
            with pytest.raises(WrongResultError):
                verify.check(expr, arrays, kernel(expr, short, np.random.default_rng(seed), accumulate))


def test_integer_inputs_make_the_bound_zero() -> None:
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        expr = ops.expression(
            ops.relu(ops.matmul(T((5, 30), dtype), T((30, 4), dtype), out_dtype="float32" if dtype != "int8" else None))
        )
        arrays = verify.random_inputs(expr, 0, integer=True)
        assert not verify.tolerance(expr, arrays).any()
    expr = matmul(2, 3, 30522)
    assert not verify.tolerance(expr, verify.random_inputs(expr, 0, integer=True)).any()


def test_half_precision_accumulation_is_bounded_by_its_own_type() -> None:
    value = ops.matmul(T((6, 300), "float16", "a"), T((300, 7), "float16", "b"), acc_dtype="float16")
    expr = ops.expression(value)
    arrays = verify.random_inputs(expr, 2)
    verify.check(expr, arrays, kernel(expr, arrays, np.random.default_rng(0), np.float16))
    single = ops.expression(ops.matmul(T((6, 300), "float16", "a"), T((300, 7), "float16", "b")))
    assert verify.tolerance(single, arrays).max() < verify.tolerance(expr, arrays).min()
    long = ops.expression(ops.matmul(T((1, 20000), "float16"), T((20000, 1), "float16"), acc_dtype="float16"))
    assert np.isfinite(verify.tolerance(long, verify.random_inputs(long))).all()


def single(value: SymbolicTensor, f: Any, seed: int = 0) -> None:
    """An elementwise operator computed by NumPy in float32 passes, and changed by a thousandth fails."""
    expr = ops.expression(value)
    arrays = verify.random_inputs(expr, seed)
    got = f(*arrays.values())
    assert got.dtype == np.float32
    verify.check(expr, arrays, got)
    with pytest.raises(WrongResultError):
        verify.check(expr, arrays, got * np.float32(1.001))


def test_functions_in_single_precision_pass() -> None:
    x = T((50,))
    single(ops.exp(x * 5.0), lambda a: np.exp(a * np.float32(5)))
    single(ops.sigmoid(x), lambda a: 1 / (1 + np.exp(-a)))
    single(ops.tanh(x), np.tanh)
    single(ops.log(x), np.log)
    single(ops.rsqrt(x), lambda a: 1 / np.sqrt(a))
    single(x / T((50,)), np.divide)
    single(ops.pow(x, 3.0), lambda a: a * a * a)
    single(ops.sin(x), np.sin)
    single(ops.exp(ops.tanh(x) + 1.0) * x - 0.25, lambda a: np.exp(np.tanh(a) + 1) * a - np.float32(0.25))
    single(
        ops.gelu(x, "tanh"),
        lambda a: np.float32(0.5) * a * (1 + np.tanh(np.float32(0.7978845608) * (a + np.float32(0.044715) * a**3))),
    )


F32 = np.float32
X, Y, Z = (np.random.default_rng(n).uniform(0.5, 2, 1000).astype(F32) for n in range(3))


def accepted(operator: SymbolicTensor, result: Array, math: str = "ieee") -> bool:
    expr = permitted(ops.expression(operator), math=math)
    try:
        verify.check(expr, dict(zip("xyz", (X, Y, Z), strict=True)), result)
    except WrongResultError:
        return False
    return True


def test_operations_that_are_rounded_correctly_are_known_to_the_last_bit() -> None:
    x, y, z = (T((1000,), name=name) for name in "xyz")
    whole = x * y / ops.sqrt(z)
    exact = (X * Y) / np.sqrt(Z)
    assert accepted(whole, exact)
    assert not accepted(whole, np.nextafter(exact, F32(9)))
    assert not accepted(whole, X * Y * (F32(1) / np.sqrt(Z))), "a reciprocal"
    shifted = (x + 12582912.0) - 12582912.0 + 0 * y + 0 * z
    assert accepted(shifted, np.rint(X)) and not accepted(shifted, X), "folded"
    assert accepted(shifted + x, np.rint(X) + X)


def test_a_product_in_a_sum_may_keep_all_of_its_bits() -> None:
    """Directly, negated or chosen, in one stage or several that may become one; but nowhere else, and where it is forbidden not."""
    x, y, z = (T((1000,), name=name) for name in "xyz")
    double = np.float64
    apart, fused = X * Y - Z, (X.astype(double) * Y - Z).astype(F32)
    assert (apart != fused).any()
    for operator in (x * y - z, -(z - x * y), ops.where(z > 0, x * y, z) - z):
        assert accepted(operator, apart) and accepted(operator, fused)
        assert accepted(operator, apart, "strict") and not accepted(operator, fused, "strict")
    halved = ops.maximum(x * y, 0.0) - z
    assert accepted(halved, apart) and not accepted(halved, fused)
    assert not accepted(x * y - z, np.nextafter(np.maximum(apart, fused), F32(9)) + F32(1e-6))


def test_a_doubtful_condition_allows_both_sides() -> None:
    x = Load("x", (Affine.axis("i"),), "float32")
    third = Binary("mul", x, Const(0.1, "float32"))
    body = Select(Binary("gt", Binary("sub", third, third), Const(0.0, "float32")), Const(1.0, "float32"), Const(2.0, "float32"))
    expr = elementwise(body, 1, "float32", (Tensor("x", (1,)),))
    arrays = [np.array([0.3], np.float32)]
    assert verify.reference(expr, arrays).tolist() == [2.0]
    verify.check(expr, arrays, np.array([1.0], np.float32))
    with pytest.raises(WrongResultError):
        verify.check(expr, arrays, np.array([0.0], np.float32))


# Meaning of single nodes


def test_integers_are_exact_and_wrap() -> None:
    x = Load("x", (Affine.axis("i"),), "int32")
    big = elementwise(Binary("mul", x, x), 2, "int32", (Tensor("x", (2,), "int32"),))
    np.testing.assert_array_equal(verify.reference(big, [np.array([46341, -3], np.int32)]), [46341**2 - 2**32, 9])
    total = ops.expression(ops.reduce_sum(T((3,), "int64")))
    assert verify.reference(total, [np.array([2**62, 1, 2**61])]) == 2**62 + 2**61 + 1


def test_casts() -> None:
    x = Load("x", (Affine.axis("i"),), "float32")
    arrays = [np.array([2.7, -2.7, 0.1], np.float32)]
    inputs = (Tensor("x", (3,)),)
    np.testing.assert_array_equal(verify.reference(elementwise(Cast(x, "int8"), 3, "int8", inputs), arrays), [2, -2, 0])
    half = verify.reference(elementwise(Cast(x, "float16"), 3, "float16", inputs), arrays)
    np.testing.assert_array_equal(half, arrays[0].astype(np.float16).astype(np.float64))
    brain = verify.reference(elementwise(Cast(Cast(x, "bfloat16"), "float32"), 3, "float32", inputs), arrays)
    np.testing.assert_array_equal(brain, arrays[0].astype(ml_dtypes.bfloat16).astype(np.float64))
    assert verify.reference(elementwise(Cast(x, "bool"), 3, "bool", inputs), arrays).tolist() == [True, True, True]


def test_coordinates_logic_and_the_untaken_side() -> None:
    i = Affine.axis("i")
    inside = Binary(
        "and", Binary("ge", Coordinate(i), Const(1, "int32")), Unary("not", Binary("eq", Coordinate(i), Const(3, "int32")))
    )
    body = Select(inside, Load("x", (i.plus(-1),), "float32"), Cast(Coordinate(i.times(10)), "float32"))
    expr = elementwise(body, 4, "float32", (Tensor("x", (2,)),))
    assert verify.reference(expr, [np.array([5, 6], np.float32)]).tolist() == [0, 5, 6, 30]


def test_fill_is_read_outside_only() -> None:
    load = Load("x", (Affine.axis("i").plus(-2),), "float32", 9.0)
    expr = elementwise(load, 6, "float32", (Tensor("x", (3,)),))
    assert verify.reference(expr, [np.arange(3, dtype=np.float32)]).tolist() == [9, 9, 0, 1, 2, 9]
    nothing = elementwise(load, 2, "float32", (Tensor("x", (0,)),))
    assert verify.reference(nothing, [np.zeros(0, np.float32)]).tolist() == [9, 9]


# Check and inputs


def test_check_says_where_and_by_how_much() -> None:
    expr = matmul(4, 6, 5)
    arrays = verify.random_inputs(expr, 0, integer=True)
    result = verify.reference(expr, arrays).astype(np.float32)
    verify.check(expr, arrays, result)
    result[2, 3] += 7
    result[1, 1] += 2
    with pytest.raises(
        WrongResultError, match=r"matmul: 2 of 24 elements are wrong; the worst is .* expected .* at \(2, 3\) by 7"
    ) as caught:
        verify.check(expr, arrays, result)
    assert (caught.value.index, caught.value.error) == ((2, 3), 7.0)
    verify.check(expr, arrays, result, np.array([[0, 0], [3, 5]]))
    with pytest.raises(WrongResultError, match=r"1 of 2 elements .* at \(1, 1\)"):
        verify.check(expr, arrays, result, np.array([[0, 0], [1, 1]]))


def test_check_of_special_values() -> None:
    expr = ops.expression(ops.log(T((4,))))
    arrays = [np.array([-1, 0, np.inf, 1], np.float32)]
    with np.errstate(all="ignore"):
        right = np.log(arrays[0])
    verify.check(expr, arrays, right)
    for place in range(4):
        wrong = right.copy()
        wrong[place] = 3 if np.isnan(right[place]) else np.nan
        with pytest.raises(WrongResultError):
            verify.check(expr, arrays, wrong)


def test_mistakes_are_named() -> None:
    expr = matmul(4, 6, 5)
    arrays = verify.random_inputs(expr)
    with pytest.raises(ExpressionError, match="2 inputs are expected"):
        verify.reference(expr, [arrays["a"]])
    with pytest.raises(ExpressionError, match="no array for the input 'b'"):
        verify.reference(expr, {"a": arrays["a"]})
    with pytest.raises(ExpressionError, match=r"input 'a' has shape \(5, 4\), expected \(4, 5\)"):
        verify.reference(expr, dict(arrays, a=arrays["a"].T))
    with pytest.raises(ExpressionError, match="points must be an array"):
        verify.reference(expr, arrays, np.array([[0, 6]]))
    with pytest.raises(WrongResultError, match=r"has shape \(6, 4\), expected \(4, 6\)"):
        verify.check(expr, arrays, np.zeros((6, 4)))


def test_random_inputs() -> None:
    value = ops.relu(T((40, 40), name="x") - 1.0) + ops.log(T((40, 40), name="p")) / ops.exp(T((40, 40), name="q"))
    expr = ops.expression(value + T((40,), "int8").astype("float32"))
    first, second = verify.random_inputs(expr, 3), verify.random_inputs(expr, 3)
    assert list(first) == [t.name for t in expr.inputs] == ["x", "p", "q", "t0"]
    for tensor in expr.inputs:
        np.testing.assert_array_equal(first[tensor.name], second[tensor.name])
        assert first[tensor.name].dtype == verify.numpy_dtype(tensor.dtype)
    assert first["x"].min() < 0
    assert first["p"].min() >= 0.5
    assert np.isfinite(verify.reference(expr, first)).all()
    whole = verify.random_inputs(expr, 3, integer=True)
    assert all((a == np.rint(a.astype(np.float64))).all() and abs(a.astype(np.float64)).max() <= 4 for a in whole.values())
    assert verify.random_inputs(ops.expression(T((), "bfloat16") * 2.0))["t0"].dtype == ml_dtypes.bfloat16
