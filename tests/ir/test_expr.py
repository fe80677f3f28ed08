"""Tensor expressions as values: what they say of themselves, and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.errors import ExpressionError
from roller.ir.expr import Axis, Stage, Tensor, TensorExpr, stage_flops
from roller.ir.scalar import Accumulator, Affine, Binary, Cast, Const, Load, Scalar, Select, Unary, loads, operations, reindex, walk

NAMES = ("i", "j", "k")
AFFINES = st.builds(
    lambda terms, offset: Affine.of(*terms, offset=offset),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-3, 3)), max_size=4),
    st.integers(-5, 5),
)


def value(index: Affine, point: dict[str, int]) -> int:
    return index.offset + sum(c * point[n] for n, c in index.terms)


def matmul_stage(epilogue: Scalar | None = None) -> Stage:
    a = Load("a", (Affine.axis("m"), Affine.axis("k")), "float32")
    b = Load("b", (Affine.axis("k"), Affine.axis("n")), "float32")
    axes = (Axis("m", 4), Axis("n", 6), Axis("k", 5, "reduce"))
    return Stage(axes, Binary("mul", a, b), Tensor("c", (4, 6)), (Affine.axis("m"), Affine.axis("n")), "sum", epilogue)


@given(AFFINES, AFFINES, st.integers(-4, 4), st.fixed_dictionaries({n: st.integers(0, 6) for n in NAMES}))
def test_affine_arithmetic_is_arithmetic(a: Affine, b: Affine, factor: int, point: dict[str, int]) -> None:
    assert value(a.plus(b), point) == value(a, point) + value(b, point)
    assert value(a.times(factor), point) == value(a, point) * factor
    assert value(a.substitute({"i": b}), point) == value(a, point | {"i": value(b, point)})
    assert all(c for _, c in a.plus(b).terms)


@given(AFFINES, st.fixed_dictionaries({n: st.integers(1, 4) for n in NAMES}))
def test_bounds_are_reached_and_never_passed(index: Affine, extents: dict[str, int]) -> None:
    every = [
        value(index, {"i": i, "j": j, "k": k})
        for i in range(extents["i"])
        for j in range(extents["j"])
        for k in range(extents["k"])
    ]
    assert index.bounds(extents) == (min(every), max(every))


def test_derived_values() -> None:
    stage = matmul_stage(Binary("max", Accumulator("float32"), Const(0.0, "float32")))
    expr = TensorExpr((Tensor("a", (4, 5)), Tensor("b", (5, 6)), Tensor("unused", (9,))), (stage,))
    assert [a.name for a in stage.spatial] == ["m", "n"]
    assert stage_flops(stage) == expr.flops == 2 * 4 * 6 * 5 + 24
    assert expr.compulsory_bytes == 4 * (20 + 30 + 24)
    assert Tensor("t", (2, 3, 4), "float16").strides == (12, 4, 1)
    assert Tensor("t", (2, 0, 4), "float16").nbytes == 0
    assert Tensor("t", ()).elements == 1


def test_result_is_cast_to_the_output_type() -> None:
    x = Load("x", (Affine.axis("i"),), "float16")
    stage = Stage((Axis("i", 3),), Cast(x, "float32"), Tensor("y", (3,), "float16"), (Affine.axis("i"),))
    assert stage.result == Cast(Cast(x, "float32"), "float16")


def test_trees() -> None:
    x, y = Load("x", (Affine.axis("i"),), "float32"), Load("y", (Affine.axis("i"),), "float32")
    tree = Select(Binary("lt", x, y), Unary("exp", x), Binary("add", x, y))
    assert loads(tree) == (x, y)
    assert operations(tree) == 2
    assert sum(1 for _ in walk(tree)) == 9
    assert loads(reindex(tree, {"i": Affine((), 3)}))[0].index == (Affine((), 3),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axes": (Axis("m", 4), Axis("m", 6))}, "axis names must differ"),
        ({"axes": (Axis("m", -1), Axis("n", 6))}, "negative extent"),
        ({"reducer": None}, "need a reducer"),
        ({"axes": (Axis("m", 4), Axis("n", 6), Axis("k", 0, "reduce")), "reducer": "max"}, "at least one element"),
        ({"store": (Affine.axis("m"), Affine.axis("k"))}, "spatial axes only"),
        ({"store": (Affine.axis("m"),)}, "1 store indices"),
    ],
)
def test_impossible_stages_are_refused(change: dict[str, object], message: str) -> None:
    stage = matmul_stage()
    fields: dict[str, object] = {
        "axes": stage.axes,
        "body": stage.body,
        "output": stage.output,
        "store": stage.store,
        "reducer": "sum",
    }
    with pytest.raises(ExpressionError, match=message):
        Stage(**(fields | change))  # type: ignore[arg-type]


def test_impossible_expressions_are_refused() -> None:
    a, b = Tensor("a", (4, 5)), Tensor("b", (5, 6))
    with pytest.raises(ExpressionError, match="at least one stage"):
        TensorExpr((a,), ())
    with pytest.raises(ExpressionError, match="two tensors are called 'a'"):
        TensorExpr((a, a, b), (matmul_stage(),))
    with pytest.raises(ExpressionError, match="neither an input nor an earlier stage"):
        TensorExpr((a,), (matmul_stage(),))
    with pytest.raises(ExpressionError, match=r"runs from 0 to 4, outside 0\.\.3"):
        TensorExpr((a, Tensor("b", (4, 6))), (matmul_stage(),))
    with pytest.raises(ExpressionError, match="has 1 dimensions, indexed by 2"):
        TensorExpr((a, Tensor("b", (30,))), (matmul_stage(),))
    with pytest.raises(ExpressionError, match="unknown element type"):
        TensorExpr((a, Tensor("b", (5, 6), "float8")), (matmul_stage(),))


def test_equal_programs_are_equal_and_hashable() -> None:
    def build() -> TensorExpr:
        return ops.expression(ops.relu(ops.matmul(ops.tensor((4, 5)), ops.tensor((5, 6))) + 1.0))

    assert build() == build()
    assert hash(build()) == hash(build())
