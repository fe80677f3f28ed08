"""Comparisons, logic and choices: what they give, beside NumPy, NaN and infinities too; and what is refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import te, tirx

import roller
from roller import ops
from roller.errors import ExpressionError
from roller.ops import SymbolicTensor
from roller.runtime.arrays import numpy_dtype
from roller.te import from_te

NAMES = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
T = roller.tensor


def values(dtype: str, *shape: int) -> npt.NDArray[Any]:
    """Few different numbers; of floating types infinities and NaN, too."""
    rng = np.random.default_rng(len(shape))
    pool = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan] if "float" in dtype else [0, 1, 1, 100, 0, 2]
    return rng.choice(np.array(pool).astype(numpy_dtype(dtype)), shape)


def computed(op: SymbolicTensor, **arrays: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kernel = roller.compile(op, device="cpu:x86-64-v3")
    return kernel(**{t.name: arrays[t.name] for t in kernel.expr.inputs})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint8", "bool"])
@pytest.mark.parametrize("name", NAMES)
def test_comparisons_are_numpys(name: str, dtype: str) -> None:
    x, y = values(dtype, 5, 37), values(dtype, 37)
    with np.errstate(invalid="ignore"):
        wanted, beside_1 = getattr(np, name)(x, y), getattr(np, name)(x.dtype.type(1), x)
    both = T(x.shape, dtype, "x"), T(y.shape, dtype, "y")
    result = computed(getattr(ops, name)(*both), x=x, y=y)
    assert result.dtype == np.bool_
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(computed(ops.logical_not(getattr(ops, name)(*both)), x=x, y=y), ~wanted)
    if name in SIGNS and dtype != "bool":
        assert ops.expression(SIGNS[name](*both)) == ops.expression(getattr(ops, name)(*both))
        np.testing.assert_array_equal(computed(SIGNS[name](1, both[0]), x=x), beside_1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_what_is_compared_with_itself_may_be_no_number(dtype: str) -> None:
    x = values(dtype, 3, 41)
    symbol = T(x.shape, dtype, "x")
    np.testing.assert_array_equal(computed(ops.equal(symbol, symbol), x=x), ~np.isnan(x))
    cleaned = computed(ops.where(ops.not_equal(symbol, symbol), 0.5, symbol), x=x)
    np.testing.assert_array_equal(cleaned, np.where(np.isnan(x), x.dtype.type(0.5), x))


def test_logic_is_numpys_and_nothing_follows_from_a_comparison_that_fails() -> None:
    x, y = values("float32", 4, 33), values("float32", 33)
    a, b = T(x.shape, name="x"), T(y.shape, name="y")
    np.testing.assert_array_equal(computed((a < b) | (b <= a), x=x, y=y), (x < y) | (y <= x))
    np.testing.assert_array_equal(computed(~((a < b) & ~ops.equal(b, 1.0)), x=x, y=y), ~((x < y) & (y != 1)))
    np.testing.assert_array_equal(computed(ops.logical_or(a > 0, ops.logical_not(a > 0)), x=x), np.ones(x.shape, bool))


def test_a_choice_takes_numbers_and_any_condition() -> None:
    x, y = values("float32", 4, 33), values("float32", 33)
    a, b = T(x.shape, name="x"), T(y.shape, name="y")
    np.testing.assert_array_equal(computed(ops.where(a > b, a, 0.25), x=x, y=y), np.where(x > y, x, np.float32(0.25)))
    np.testing.assert_array_equal(computed(ops.where(a, -1, b), x=x, y=y), np.where(x, np.float32(-1), y))  # NaN is not 0
    counted = ops.reduce_sum(ops.cast(a > 0, "int32"), 1)
    np.testing.assert_array_equal(computed(counted, x=x), (x > 0).sum(1))
    leaky = ops.matmul(T((9, 20), name="m"), T((20, 33), name="n"))
    m, n = (np.random.default_rng(i).integers(-3, 4, s).astype(np.float32) for i, s in enumerate(((9, 20), (20, 33))))
    np.testing.assert_array_equal(
        computed(ops.where(leaky > 0, leaky, leaky * 0.5), m=m, n=n), np.where(m @ n > 0, m @ n, m @ n / 2)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_greatest_of_several_is_no_number_where_one_is_none(dtype: str) -> None:
    x, y = values(dtype, 9, 70), values(dtype, 9, 70)
    images = values(dtype, 2, 3, 9, 11)
    a, b, i = T(x.shape, dtype, "x"), T(y.shape, dtype, "y"), T(images.shape, dtype, "i")
    np.testing.assert_array_equal(computed(ops.maximum(a, b), x=x, y=y), np.maximum(x, y))
    np.testing.assert_array_equal(computed(ops.minimum(a, b), x=x, y=y), np.minimum(x, y))
    np.testing.assert_array_equal(computed(ops.maximum(0, a), x=x), np.maximum(x.dtype.type(0), x))
    np.testing.assert_array_equal(computed(ops.clip(a, -0.5, 0.5), x=x), np.clip(x, -0.5, 0.5).astype(dtype))
    for axis in (0, 1, None):
        np.testing.assert_array_equal(computed(ops.reduce_max(a, axis), x=x), x.max(axis))
        np.testing.assert_array_equal(computed(ops.reduce_min(a, axis), x=x), x.min(axis))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 2), (2, 3))[:, :, ::2, ::2]
    np.testing.assert_array_equal(computed(ops.max_pool2d(i, (3, 2), 2), i=images), windows.max((-2, -1)))


def test_comparisons_of_te_know_what_is_no_number() -> None:
    x = values("float32", 64)
    source = te.placeholder((64,), "float32", "x")
    clean = te.compute((64,), lambda i: tirx.Select(tirx.Not(source[i] <= 0.0), source[i], tirx.const(-2.0, "float32")), "clean")
    odd = te.compute((64,), lambda i: tirx.Select(tirx.NE(source[i], 1.0), source[i] + 1.0, source[i]), "odd")
    np.testing.assert_array_equal(computed(from_te([source, clean]), x=x), np.where(~(x <= 0), x, np.float32(-2)))
    np.testing.assert_array_equal(computed(from_te([source, odd]), x=x), np.where(x != 1, x + 1, x))


def test_symbolic_tensors_are_equal_to_themselves_alone() -> None:
    a, b = T((3,)), T((3,))
    assert a in (b, a) and a != b and len({a, b}) == 2


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "types": (lambda: T((3,)) < T((3,), "float64"), "lt: operands are float32 and float64; cast them to one type"),
    "shapes": (lambda: T((3,)) >= T((4,)), r"ge: shapes \(3,\) and \(4,\) do not broadcast"),
    "number": (lambda: T((3,), "uint8") > -1, "-1 does not fit uint8"),
    "fraction": (lambda: T((3,), "int32") <= 0.5, "0.5 is not an integer"),
    "word": (lambda: T((3,)) < "x", "lt: expected a symbolic tensor, got str"),
    "logic of numbers": (lambda: T((3,)) & T((3,)), r"not float32; compare them first, such as ops.not_equal\(x, 0\)"),
    "not of numbers": (lambda: ~T((3,), "int8"), "not: takes booleans, not int8"),
    "logic with a number": (lambda: T((3,), "bool") | 1, "or: expected a symbolic tensor, got int"),
    "two numbers": (lambda: ops.where(T((3,)), 1, 0), "where: at least one of its two branches must be a tensor"),
    "choice of types": (lambda: ops.where(T((3,)), T((3,)), T((3,), "int8")), "where: operands are float32 and int8"),
    "truth": (lambda: bool(T((3,)) < 1), "has no truth value"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    call, said = REFUSED[case]
    with pytest.raises(ExpressionError, match=said):
        call()
