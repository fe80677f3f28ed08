"""`docs/numerics.md`, the contract of every device and emulator, rule by rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

import ieee_trees
import roller
from everywhere import EMULATORS, SIMULATED, WHERE
from roller import ops
from roller.ir.fusion import fuse
from roller.ir.scalar import Const, Load
from roller.lowering.tir import arithmetic, expressions
from roller.precision import permitted
from roller.runtime.arrays import narrowed, numpy_dtype
from roller_cuda.toolchain import compiling

Array = npt.NDArray[Any]
FLOATS = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int32", "int64", "int16", "int8", "uint8")
ELEMENTS = 33  # of a tree's inputs: vectors and what is left of them
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# --- whole trees -------------------------------------------------------------------------------------------------------------


def check_trees(where: str, dtype: str, seed: int, count: int) -> None:
    expr = ieee_trees.expression(seed, dtype, count, ELEMENTS)
    arrays = ieee_trees.arrays(expr, seed)
    got = WHERE[where](expr, arrays)
    for row, stage in zip(got, expr.stages[:count], strict=True):
        alternatives = ieee_trees.right(stage, arrays)
        wrong = ieee_trees.wrong(row, alternatives)
        place = int(np.argmax(wrong))
        wanted = [np.broadcast_to(one, row.shape)[place] for one in alternatives]
        given = {name: array[place] for name, array in arrays.items()}
        assert not wrong.any(), f"{stage.body}\n{given} gives {row[place]}, one of {wanted} is right"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_trees_here(dtype: str, seed: int) -> None:
    check_trees("cpu", dtype, seed, 18)


@pytest.mark.parametrize("where", EMULATORS)
@pytest.mark.parametrize(("dtype", "count"), [("float32", 20), ("float16", 10), ("int32", 12), ("uint8", 8)])
def test_trees_on_emulators(where: str, dtype: str, count: int) -> None:
    check_trees(where, dtype, 100, count)


@pytest.mark.long
@pytest.mark.parametrize("where", ["cpu", *EMULATORS])
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_many_trees(where: str, dtype: str, seed: int) -> None:
    check_trees(where, dtype, seed, 18)


BROKEN: dict[str, dict[str, Any]] = {
    "sub": {"subtract": lambda a, b: a - b},
    "zero": {"held_literal": lambda value, every=False: value},
    "eq": {"equal": tirx.EQ},
    "wrapped": {"wrapped": lambda op, a, b: {"add": a + b, "sub": a - b, "mul": a * b}[op]},
    "condition": {"condition": lambda test: test},
}


@pytest.mark.parametrize("what", BROKEN)
def test_trees_notice_what_is_folded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of the guards some tree of a few hundred is wrong."""
    for name, function in BROKEN[what].items():
        monkeypatch.setattr(arithmetic, name, function)
        operation = {"subtract": "sub", "equal": "eq"}.get(name)
        if operation is not None:
            monkeypatch.setitem(expressions._FLOAT, operation, function)
    with pytest.raises((AssertionError, roller.RollerError)):
        for seed in range(40):
            check_trees("cpu", "int32" if what == "wrapped" else "float32", seed, 18)


# --- kinds that were wrong once ------------------------------------------------------------------------------------------------

M = 12582912.0  # 1.5 x 2^23: what is added to it is rounded to a whole number


def t(*shape: int, dtype: str = "float32", name: str = "x") -> ops.SymbolicTensor:
    return ops.tensor(shape, dtype, name)


def same(got: Array, wanted: Array) -> None:
    assert not ieee_trees.wrong(got, [wanted]).any(), f"{got} for {wanted}"


IDENTITIES: dict[str, tuple[Callable[[Any], Any], tuple[float, ...]]] = {
    "x - x": (lambda x: x - x, (math.inf, 1.0, math.nan)),
    "x + M - M": (lambda x: (x + M) - M, (0.3, 2.5, -7.7)),
    "M + x - M": (lambda x: (M + x) - M, (0.3, 2.5, -7.7)),
    "x - (x + M)": (lambda x: x - (x + M), (0.3, 2.5, 1e30)),
    "0 x": (lambda x: x * 0.0, (math.inf, -1.0, math.nan)),
    "0 x from the left": (lambda x: 0.0 * x, (math.inf, -1.0, math.nan)),
    "1 / (x + 0)": (lambda x: 1.0 / (x + 0.0), (-0.0, 0.0, 4.0)),
    "1 / (0 - x)": (lambda x: 1.0 / (0.0 - x), (-0.0, 0.0, 4.0)),
    "1 / (x - -0)": (lambda x: 1.0 / (x - (-0.0)), (-0.0, 0.0, 4.0)),
    "0 / x": (lambda x: 0.0 / x, (0.0, math.inf, math.nan)),
    "x / 3": (lambda x: x / 3.0, (10.0, 1.0, 7.0)),
    "x / 0": (lambda x: x / 0.0, (10.0, 0.0, -1.0)),
    "x / x": (lambda x: x / x, (0.0, math.inf, 3.0)),
    "x / 1e-39": (lambda x: x / 1e-39, (1e-39, 2.0, 0.0)),
}


@pytest.mark.parametrize("count", [1, 3, 16])
@pytest.mark.parametrize("what", IDENTITIES)
def test_identities_of_real_numbers_are_not_used(what: str, count: int) -> None:
    function, values = IDENTITIES[what]
    x = np.resize(np.array(values, np.float32), count)
    with np.errstate(all="ignore"):
        same(roller.compile(function(t(count)))(x), function(x).astype(np.float32))


def test_they_are_not_used_in_epilogues() -> None:
    a, b = t(3, 3, name="a"), t(3, 3, name="b")
    x = np.array([[1, math.nan, 0], [math.inf, 1, 1], [1, 1, 1]], np.float32)
    with np.errstate(all="ignore"):
        same(
            roller.compile(ops.matmul(a, b) * 0.0)(x, np.eye(3, dtype=np.float32)),
            (x @ np.eye(3, dtype=np.float32)) * np.float32(0),
        )
        same(roller.compile(ops.reduce_max(a, 1) * 0.0)(x), x.max(1) * np.float32(0))


def test_what_is_not_less_may_be_no_number() -> None:
    """In the branch where x < y fails, y <= x is not known."""
    x, y = t(4), t(4, name="y")
    chosen = ops.where(ops.less(x, y), 1.0, ops.where(ops.less_equal(y, x), x * 0.0 + 2.0, x * 0.0 + 3.0))
    a, b = np.array([1, 2, math.nan, 1], np.float32), np.array([2, 1, 1, math.nan], np.float32)
    got = roller.compile(chosen)(a, b)
    assert got[:2].tolist() == [1, 2] and np.isnan(got[2]) and got[3] == 3


def test_zeros_of_both_signs_are_two_values() -> None:
    x = t(4)
    values = np.array([-0.0, 0.0, 1, -1], np.float32)
    with np.errstate(all="ignore"):
        wanted = np.where(values < 1, 1 / (values + np.float32(-0.0)), 1 / (values + np.float32(0.0)))
    got = roller.compile(ops.where(ops.less(x, 1.0), 1.0 / (x + (-0.0)), 1.0 / (x + 0.0)))(values)
    same(got, wanted.astype(np.float32))
    assert Const(0.0, "float32") != Const(-0.0, "float32") and Const(math.nan, "float32") == Const(math.nan, "float32")
    assert Const(0, "float32") == Const(0.0, "float32") and hash(Const(0, "float32")) == hash(Const(0.0, "float32"))
    assert Load("x", (), "float32", 0) == Load("x", (), "float32", 0.0) and Load("x", (), "float32", 0).zero_outside
    assert Load("x", (), "float32", 0.0) != Load("x", (), "float32", -0.0) and Load("x", (), "float32", -0.0).zero_outside is False


OVERFLOWS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "x + 5 < 0": (lambda x: x + 5 < 0, 2**31 - 1),
    "x + 1 > x": (lambda x: x + 1 > x, 2**31 - 1),
    "-x < 0": (lambda x: -x < 0, -(2**31)),
    "abs": (lambda x: abs(x) < 0 if isinstance(x, np.ndarray) else ops.abs(x) < 0, -(2**31)),
    "3 x < 300": (lambda x: x * 3 < 300, 2**30),
    "max": (lambda x: np.maximum(x + 1, x) if isinstance(x, np.ndarray) else ops.maximum(x + 1, x), 2**31 - 1),
    "wider": (lambda x: (x * x).astype(np.int64) if isinstance(x, np.ndarray) else ops.cast(x * x, "int64"), 2**31 - 1),
}


@pytest.mark.parametrize("count", [1, 3, 16])
@pytest.mark.parametrize("what", OVERFLOWS)
def test_whole_numbers_wrap(what: str, count: int) -> None:
    function, value = OVERFLOWS[what]
    x = np.full(count, value, np.int32)
    with np.errstate(all="ignore"):
        assert (roller.compile(function(t(count, dtype="int32")))(x) == function(x)).all()


def test_sums_of_whole_numbers_wrap_before_they_are_compared() -> None:
    x = np.full((4, 64), 2**31 - 1, np.int32)
    assert (roller.compile(ops.cast(ops.reduce_sum(t(4, 64, dtype="int32"), 1), "int64"))(x) == x.sum(1, dtype=np.int32)).all()
    a, b = np.full((4, 9), 2**30, np.int32), np.full((9, 5), 3, np.int32)
    product = ops.matmul(t(4, 9, dtype="int32", name="a"), t(9, 5, dtype="int32", name="b"))
    assert (roller.compile(ops.relu(product))(a, b) == np.maximum(a @ b, 0)).all()


def test_unsigned_numbers_are_taken_from_smaller_ones() -> None:
    x = np.array([3, 0, 255], np.uint8)
    u = t(3, dtype="uint8")
    assert (roller.compile(u - (u + 7))(x) == x - (x + np.uint8(7))).all()
    assert (roller.compile((u - u) - 1)(x) == 255).all()


@pytest.mark.parametrize("device", ["cpu", "ipu_sim"])
def test_literals_beyond_a_type_are_infinite(device: str) -> None:
    scores, mask = t(4, dtype="float16"), ops.tensor((4,), "bool", "mask")
    given = np.array([1, -1, 3, 65504], np.float16), np.array([True, False, True, False])
    kernel = roller.compile(ops.where(mask, scores, -1e9), device)
    got = kernel(**dict(zip(("x", "mask"), given, strict=True)))
    assert got.tolist() == [1, -math.inf, 3, -math.inf]
    x = np.array([1, -math.inf, 3e38, math.nan], np.float32)
    same(
        roller.compile(ops.clip(t(4), -3.4028235e38, 3.4028235e38), device)(x),
        np.clip(x, np.float32(-3.4028235e38), np.float32(3.4028235e38)),
    )
    same(roller.compile(t(4) * 1e39, device)(x), x * np.float32(math.inf))


@pytest.mark.parametrize("where", ["cpu", *EMULATORS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("columns", [0, 1])
def test_padding_counts_where_nothing_else_does(where: str, dtype: str, columns: int) -> None:
    """A compiler that finds a position always outside its array must not drop the product: 0 times an infinity is NaN."""
    a, b = ops.tensor((1, columns), dtype, "a"), ops.tensor((columns + 1, 1), dtype, "b")
    expr = ops.expression(ops.matmul(ops.pad(a, ((0, 0), (0, 1))), b))
    given = {"a": np.ones((1, columns)), "b": np.full((columns + 1, 1), math.inf)}
    got = WHERE[where](expr, {name: array.astype(numpy_dtype(dtype)) for name, array in given.items()})
    assert np.isnan(got.astype(np.float32)).all()


def test_padding_beyond_a_type_is_infinite() -> None:
    assert roller.compile(ops.pad(t(2, dtype="float16"), [(1, 1)], 70000))(np.ones(2, np.float16)).tolist() == [
        math.inf,
        1,
        1,
        math.inf,
    ]


# --- rounding ------------------------------------------------------------------------------------------------------------------


def nearest(exact: Fraction) -> float:
    """The bfloat16 nearest to a number, to even of two."""
    return float(ieee_trees.nearest(exact, 8, -133, 128))


@given(st.floats(allow_nan=False, allow_infinity=False, width=64) | st.integers(0, 2**16).map(lambda n: 1 + n / 2**16 + 2.0**-45))
def test_narrowing_rounds_once(value: float) -> None:
    got = float(narrowed(np.array(value), "bfloat16"))
    assert got == nearest(Fraction(value)), value


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(8, 62).map(lambda k: 2**k + 2 ** (k - 8) + 1))
def test_narrowing_whole_numbers_rounds_once(value: int) -> None:
    assert float(narrowed(np.array(value, np.int64), "bfloat16")) == nearest(Fraction(value))


@pytest.mark.parametrize("where", ["cpu", *EMULATORS, "ipu_sim"])
@pytest.mark.parametrize("dtype", ["int32", "int16", "int8"])
def test_floats_become_whole_numbers_towards_zero(where: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    drawn = np.random.default_rng(0).uniform(max(info.min, -(2**24)), min(info.max, 2**24), 500)
    x = np.concatenate([drawn, [0.5, -0.5, 0.999, -0.999, 1.5, -1.5, 2.5, -2.5, 0.0, -0.0]]).astype(np.float32)
    expr = fuse(ops.expression(ops.cast(t(len(x)), dtype)))
    run = SIMULATED if where == "ipu_sim" else WHERE[where]
    np.testing.assert_array_equal(run(expr, {"x": x}), np.trunc(x).astype(dtype))


@pytest.mark.parametrize("where", ["cpu", *EMULATORS])
@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_conversions_to_bfloat16_round_once(where: str, dtype: str) -> None:
    drawn = np.random.default_rng(0)
    if dtype == "float64":
        near = 1 + drawn.integers(0, 256, 500) * 2.0**-8 + drawn.choice([0, 2.0**-40, -(2.0**-40)], 500)
        x = np.concatenate(
            [near, drawn.standard_normal(500) * 10.0 ** drawn.integers(-44, 40, 500), [math.nan, math.inf, -math.inf, -0.0]]
        )
    else:
        info = np.iinfo(dtype)
        ties = [s * (2**k + 2 ** max(k - 8, 0) + d) for k in range(1, info.bits - 1) for d in (-1, 0, 1) for s in (1, -1)]
        x = np.array([info.min, info.max, 0, *ties], dtype)
    expr = fuse(ops.expression(ops.cast(t(len(x), dtype=dtype), "bfloat16")))
    got = WHERE[where](expr, {"x": x})
    assert got.dtype == ml_dtypes.bfloat16
    same(got.astype(np.float32), narrowed(x, "bfloat16").astype(np.float32))


# --- math= -----------------------------------------------------------------------------------------------------------------


def cancelling() -> dict[str, Array]:
    """Products, and what they nearly cancel: the low bits of a product are all that is left, where it keeps them."""
    drawn = np.random.default_rng(0)
    x, y = (drawn.standard_normal(ELEMENTS).astype(np.float32) for _ in range(2))
    return {"x": x, "y": y, "z": -(x * y)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("where", ["cpu", *EMULATORS])
@pytest.mark.parametrize("kind", ["sum", "difference", "negated", "chosen", "fused from another operator"])
def test_strict_math_rounds_products(kind: str, where: str) -> None:
    x, y, z = (t(ELEMENTS, name=name) for name in "xyz")
    made = {
        "sum": x * y + z,
        "difference": -z - x * y,
        "negated": z - (-(x * y)),
        "chosen": ops.where(ops.less(x, 10.0), x * y, 0.0) + z,
        "fused from another operator": ops.relu(x * y + z) - ops.relu(-(x * y + z)),
    }
    expr = fuse(permitted(ops.expression(made[kind]), math="strict"))
    arrays = cancelling()
    got = WHERE[where](expr, arrays)
    assert (got == 0).all()
    if where != "cuda" and kind != "chosen":  # where products keep their bits without it
        assert (WHERE[where](fuse(ops.expression(made[kind])), arrays) != 0).any()


@pytest.mark.parametrize("where", ["cpu", *EMULATORS])
@pytest.mark.parametrize("kind", ["half", "negated", "chosen", "float32"])
def test_a_product_that_is_narrowed_keeps_no_bits(kind: str, where: str) -> None:
    """Multiplied in the narrower type it has the same value, and could then be added to another in one instruction."""
    wide, narrow = ("float64", "float32") if kind == "float32" else ("float32", "float16")
    x, y, z = (t(ELEMENTS, dtype=narrow, name=name) for name in "xyz")
    product = ops.cast(x, wide) * ops.cast(y, wide)
    made = {"negated": -product, "chosen": ops.where(ops.less(x, 10.0), product, 0.0)}.get(kind, product)
    expr = fuse(ops.expression(ops.cast(made, narrow) + z))
    held = numpy_dtype(narrow)
    a, b = (np.random.default_rng(n).uniform(1, 2, ELEMENTS).astype(held) for n in range(2))
    exact = a.astype(numpy_dtype(wide)) * b.astype(numpy_dtype(wide)) * (-1 if kind == "negated" else 1)
    arrays = {"x": a, "y": b, "z": -exact.astype(held)}
    got = WHERE[where](expr, arrays)
    assert (got == 0).all()


def test_reductions_keep_their_multiply_adds_and_epilogues_do_not() -> None:
    a, b = t(8, 16, name="a"), t(16, 8, name="b")
    op = ops.matmul(a, b) * 0.1 + t(8, name="c")
    (stage,) = fuse(permitted(ops.expression(op), math="strict")).stages
    assert stage.sums_products and "rounded" in str(stage.epilogue) and "rounded" not in str(stage.body)
    roller.compile(op, math="strict", verify=True)
    assert "roller_product" in roller.compile(op, "cuda:a100", math="strict").source
    assert "roller_product" in roller.compile(op, "rocm:mi300x", math="strict").source_in("hip-c++")


def test_fast_math_divides_by_literals_as_it_multiplies() -> None:
    x = np.linspace(-5, 5, ELEMENTS, dtype=np.float32)
    assert (roller.compile(t(ELEMENTS) / 3.0, math="fast")(x) == x * np.float32(1 / 3)).all()
    assert (roller.compile(t(ELEMENTS) / 3.0, math="ieee")(x) == x / np.float32(3)).all()
    tiny = np.full(1, 1e-39, np.float32)
    assert (roller.compile(t(1) / 1e-39, math="fast")(tiny) == 1).all(), "the reciprocal is beyond float32"
    assert np.isnan(roller.compile(t(1) / 0.0, math="fast")(np.zeros(1, np.float32))).all()


def test_unknown_math_is_refused() -> None:
    with pytest.raises(roller.ExpressionError, match="unknown math 'quick'; choose one of ieee, strict, fast"):
        roller.compile(t(4) + 1.0, math="quick")


# --- how kernels are compiled ----------------------------------------------------------------------------------------------------


def test_flags_say_what_arithmetic_is() -> None:
    assert {"-fmad=true", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"} <= set(compiling.FLAGS)
    assert not any("fast" in flag for flag in compiling.FLAGS)
