"""Fusion: which stages join, which stay, and that nothing changes its value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roller import ops, verify
from roller.ir.expr import Axis, Stage, Tensor, TensorExpr
from roller.ir.fusion import NODES, cheap, fuse
from roller.ir.guards import canonical
from roller.ir.scalar import Affine, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary, loads, walk
from roller.ir.serialization import expr_from_json, expr_to_json
from roller.ops import SymbolicTensor
from roller.ops import tensor as T


def fused(value: SymbolicTensor) -> TensorExpr:
    """The fused expression, checked against the one it came from."""
    expr = ops.expression(value)
    result = fuse(expr)
    assert (result.inputs, result.output) == (expr.inputs, expr.output)
    assert len(result.stages) <= len(expr.stages)
    for integer in (False, True):
        arrays = verify.random_inputs(expr, 1, integer)
        expected = verify.reference(expr, arrays)
        np.testing.assert_allclose(verify.reference(result, arrays), expected, rtol=1e-11, atol=1e-11)
    assert fuse(result) == result
    return result


X, W = T((2, 6, 9, 7), name="x"), T((8, 3, 3, 3), name="w")
A, B = T((5, 7), name="a"), T((7, 3), name="b")
H, K = T((5, 7), "float16", "a"), T((7, 3), "float16", "b")


def product() -> SymbolicTensor:
    return ops.matmul(A, B)


def gated() -> SymbolicTensor:
    y = product()
    return y * ops.sigmoid(y) + ops.relu(y)


ONE_STAGE: dict[str, Callable[[], SymbolicTensor]] = {
    "relu(conv + bias)": lambda: ops.relu(ops.conv2d(X, T((8, 6, 3, 3)), padding=1) + T((8, 1, 1))),
    "relu(grouped conv + bias)": lambda: ops.relu(ops.conv2d(X, W, 2, 1, groups=2) + T((8, 1, 1))),
    "depthwise with a multiplier, scaled": lambda: ops.depthwise_conv2d(X, T((6, 2, 3, 3))) * T((12, 1, 1)),
    "gelu(matmul + bias)": lambda: ops.gelu(product() + T((3,))),
    "gelu(matmul + bias), half": lambda: ops.gelu(ops.matmul(H, K) + T((3,), "float16"), "tanh"),
    "matmul + bias + residual": lambda: product() + T((3,)) + T((5, 3)),
    "residual + matmul": lambda: T((5, 3)) + product(),
    "matmul read three times": gated,
    "transposed matmul": lambda: ops.relu(ops.transpose(product())),
    "matmul of a transposed view": lambda: ops.matmul(A, ops.transpose(T((3, 7)))),
    "matmul of relu": lambda: ops.matmul(ops.relu(A), B),
    "matmul with a new dimension": lambda: ops.expand_dims(product(), 1) * 2.0,
    "conv of a pad": lambda: ops.conv2d(ops.pad(X, [(0, 0), (0, 0), (1, 1), (2, 2)]), T((8, 6, 3, 3))),
    "conv with padding of a pad": lambda: ops.conv2d(ops.pad(X, [(0, 0), (0, 0), (1, 1), (1, 1)]), T((8, 6, 3, 3)), padding=1),
    "conv with padding of relu": lambda: ops.conv2d(ops.relu(X), T((8, 6, 3, 3)), padding=1),
    "max pool with padding of relu": lambda: ops.max_pool2d(ops.relu(X), 3, 2, 1),
    "avg pool over what is inside": lambda: ops.relu(ops.avg_pool2d(X, 3, 2, 1, count_include_pad=False)),
    "mean of squares": lambda: ops.sqrt(ops.reduce_mean(A * A, 1) + 1e-5),
    "elementwise chain": lambda: ops.exp(ops.tanh(ops.sigmoid(A) + 1.0) * A),
    "matmul of a cast": lambda: ops.matmul(T((5, 7), "int8").astype("float32"), B),
    "empty reduction": lambda: ops.relu(ops.matmul(T((5, 0)), T((0, 3))) + T((3,))),
    "empty output": lambda: ops.relu(ops.matmul(T((0, 7)), B) + T((3,))),
    "sum to a scalar": lambda: ops.reduce_sum(A) * 2.0,
}


@pytest.mark.parametrize("name", ONE_STAGE)
def test_one_stage(name: str) -> None:
    assert len(fused(ONE_STAGE[name]()).stages) == 1


def softmax() -> SymbolicTensor:
    e = ops.exp(A - ops.reduce_max(A, 1, keepdims=True))
    return e / ops.reduce_sum(e, 1, keepdims=True)


def residual_block() -> SymbolicTensor:
    r = ops.relu(ops.conv2d(X, T((6, 6, 3, 3)), padding=1))
    return ops.conv2d(r, T((6, 6, 3, 3)), padding=1) + r


SEVERAL: dict[str, tuple[Callable[[], SymbolicTensor], list[str]]] = {
    "softmax": (softmax, ["reduce_max", "exp", "reduce_sum", "div"]),
    "residual block": (residual_block, ["relu", "add"]),
    "conv, relu, conv": (lambda: ops.conv2d(ops.relu(ops.conv2d(X, T((6, 6, 3, 3)))), T((4, 6, 3, 3))), ["relu", "conv2d_1"]),
    "sum of products": (lambda: product() + ops.matmul(T((5, 2)), T((2, 3))), ["matmul", "add"]),
    "gelu before a product": (lambda: ops.matmul(ops.gelu(T((5, 7))), T((7, 30))), ["gelu", "matmul"]),
    "a product broadcast": (lambda: ops.reduce_sum(A, 1, keepdims=True) + A, ["reduce_sum", "add"]),
    "a product and its transpose": (lambda: ops.matmul(A, T((7, 5))) + ops.transpose(ops.matmul(A, T((7, 5)))), ["matmul", "add"]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_stages(name: str) -> None:
    build, expected = SEVERAL[name]
    assert [s.name for s in fused(build()).stages] == expected


def test_a_product_read_at_two_places_keeps_its_own_stage() -> None:
    y = ops.matmul(A, T((7, 5)))
    assert [s.name for s in fused(y + ops.transpose(y)).stages] == ["matmul", "add"]


def test_a_transcendental_may_be_repeated_a_few_times_only() -> None:
    def stages(columns: int) -> int:
        return len(fused(ops.matmul(ops.gelu(T((5, 7))), T((7, columns)))).stages)

    assert [stages(n) for n in (1, 4, 5)] == [1, 1, 2]


def test_long_chains_stay_below_the_limit_and_terminate() -> None:
    value = T((3, 3))
    for _ in range(6):
        value = ops.gelu(value)
    expr = fused(value)
    assert 1 < len(expr.stages) < 6
    assert all(sum(1 for _ in walk(s.body)) <= NODES for s in expr.stages)
    value = T((3, 3))
    for _ in range(150):
        value = ops.relu(value + 1.0)
    assert len(fused(value).stages) < 10


SPREAD: dict[str, tuple[Callable[[], SymbolicTensor], list[str]]] = {
    "matmul of relu": (ONE_STAGE["matmul of relu"], ["relu", "matmul"]),
    "matmul of a cast": (ONE_STAGE["matmul of a cast"], ["cast", "matmul"]),
    "conv with padding of relu": (ONE_STAGE["conv with padding of relu"], ["relu", "conv2d"]),
    "conv of a pad": (ONE_STAGE["conv of a pad"], ["conv2d"]),
    "matmul of a transposed view": (ONE_STAGE["matmul of a transposed view"], ["matmul"]),
    "one column of relu": (lambda: ops.matmul(ops.relu(A), T((7, 1))), ["matmul"]),
    "gelu(matmul + bias)": (ONE_STAGE["gelu(matmul + bias)"], ["gelu"]),
    "mean of squares": (ONE_STAGE["mean of squares"], ["sqrt"]),
    "max pool with padding of relu": (ONE_STAGE["max pool with padding of relu"], ["max_pool2d"]),
    "sum of gelu": (lambda: ops.reduce_sum(ops.gelu(A), 1), ["reduce_sum"]),
}


@pytest.mark.parametrize("name", SPREAD)
def test_where_arrays_are_spread_products_take_in_only_what_moves_data(name: str) -> None:
    build, expected = SPREAD[name]
    expr = ops.expression(build())
    result = fuse(expr, spread=True)
    assert [s.name for s in result.stages] == expected
    arrays = verify.random_inputs(expr, 1, False)
    np.testing.assert_allclose(verify.reference(result, arrays), verify.reference(expr, arrays), rtol=1e-11, atol=1e-11)


def test_unread_stages_and_unread_inputs() -> None:
    expr = ops.expression(ops.relu(ops.exp(A)))
    unread = Stage((Axis("i", 2),), Const(1.0, "float32"), Tensor("unread", (2,)), (Affine.axis("i"),))
    more = TensorExpr((*expr.inputs, Tensor("spare", (4,))), (unread, *expr.stages))
    assert [s.name for s in fuse(more).stages] == ["relu"]
    assert [t.name for t in fuse(more).inputs] == ["a", "spare"]


def test_padding_ends_as_guarded_loads_without_selects() -> None:
    for name in ("conv of a pad", "conv with padding of a pad", "conv with padding of relu"):
        body = fused(ONE_STAGE[name]()).stages[0].body
        assert not any(isinstance(n, Select) for n in walk(body))
        assert [load.fill for load in loads(body)] == [0.0, None]


# Guards

I = Affine.axis("i")  # noqa: E741
INSIDE = Binary("and", Binary("ge", Coordinate(I), Const(1, "int32")), Binary("lt", Coordinate(I), Const(5, "int32")))
ELEMENT = Load("x", (I.plus(-1),), "float32")


def simplified(node: Scalar, extent: int = 8) -> Scalar:
    return canonical(node, {"x": (4,)}, {"i": extent})


def test_a_select_on_bounds_is_a_guarded_load() -> None:
    guarded = Load("x", (I.plus(-1),), "float32", 0.0)
    zero = Const(0.0, "float32")
    assert simplified(Select(INSIDE, ELEMENT, zero)) == guarded
    assert simplified(Select(INSIDE, Cast(ELEMENT, "float64"), Const(0.0, "float64"))) == Cast(guarded, "float64")
    assert simplified(Select(INSIDE, Binary("max", ELEMENT, zero), zero)) == Binary("max", guarded, zero)
    low = Const(float("-inf"), "float32")
    assert simplified(Select(INSIDE, ELEMENT, low)) == Load("x", (I.plus(-1),), "float32", float("-inf"))
    reversed_sides = Binary("and", Binary("le", Const(1, "int32"), Coordinate(I)), Binary("gt", Const(5, "int32"), Coordinate(I)))
    assert simplified(Select(reversed_sides, ELEMENT, zero)) == guarded


def test_other_selects_stay() -> None:
    zero = Const(0.0, "float32")
    narrower = Binary("and", Binary("ge", Coordinate(I), Const(2, "int32")), Binary("lt", Coordinate(I), Const(5, "int32")))
    for kept in (
        Select(narrower, ELEMENT, zero),
        Select(INSIDE, Unary("exp", ELEMENT), zero),
        Select(INSIDE, ELEMENT, Unary("exp", zero)),
        Select(INSIDE, Binary("max", ELEMENT, zero), Const(float("-inf"), "float32")),
        Select(Binary("or", INSIDE.left, INSIDE.right), ELEMENT, zero),
        Select(INSIDE, Load("x", (I.plus(-1),), "float32", 1.0), zero),
    ):
        assert simplified(kept) == kept


def test_guards_that_never_fail_go() -> None:
    element = Load("x", (I,), "float32", 0.0)
    assert simplified(element, 4) == Load("x", (I,), "float32")
    assert simplified(element, 5) == element
    always = Binary("ge", Coordinate(I), Const(0, "int32"))
    assert simplified(Select(always, Const(1.0, "float32"), Const(2.0, "float32"))) == Const(1.0, "float32")
    assert simplified(element, 0) == element


def test_cheap() -> None:
    x = Load("x", (I,), "float32")
    assert cheap(Binary("max", Binary("mul", x, x), x))
    assert not cheap(Unary("exp", x))
    assert not cheap(Binary("div", x, x))


# Any program

SHAPES = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=3)


@st.composite
def programs(draw: st.DrawFn) -> SymbolicTensor:
    """A random DAG of elementwise operators, broadcasts, reductions, transposes, pads, products and windows."""
    shape = tuple(draw(SHAPES))
    pool = [T(shape), T(shape), T(shape[-1:])]
    for _ in range(draw(st.integers(1, 7))):
        x = draw(st.sampled_from(pool))
        kind = draw(st.sampled_from(["unary", "binary", "binary", "reduce", "transpose", "pad", "matmul", "pool", "cast"]))
        if kind == "unary":
            f = draw(st.sampled_from([ops.relu, ops.tanh, ops.sigmoid, ops.silu, ops.neg, ops.floor]))
            pool.append(f(x))
        elif kind == "binary":
            y = draw(st.sampled_from([p for p in pool if _fits(x, p)]))
            f = draw(st.sampled_from([ops.add, ops.sub, ops.mul, ops.maximum]))
            pool.append(f(x, y))
        elif kind == "reduce" and x.ndim:
            axis = draw(st.integers(0, x.ndim - 1))
            f = draw(st.sampled_from([ops.reduce_sum, ops.reduce_max, ops.reduce_mean]))
            pool.append(f(x, axis, keepdims=draw(st.booleans())))
        elif kind == "transpose":
            pool.append(ops.transpose(x, draw(st.permutations(range(x.ndim)))))
        elif kind == "pad" and max(x.shape, default=9) < 8:
            pool.append(
                ops.pad(x, [(draw(st.integers(0, 1)), draw(st.integers(0, 2))) for _ in x.shape], draw(st.sampled_from([0, 1])))
            )
        elif kind == "matmul" and x.ndim == 2:
            pool.append(ops.matmul(x, draw(st.sampled_from([T((x.shape[1], 3)), ops.transpose(x)]))))
        elif kind == "pool" and x.ndim == 2:
            window = ops.max_pool2d if draw(st.booleans()) else ops.avg_pool2d
            image = ops.expand_dims(ops.expand_dims(x, 0), 0)
            pool.append(window(image, 2, draw(st.integers(1, 2)), 1))
        elif kind == "cast":
            pool.append(x.astype("float16").astype("float32"))
    return ops.add(pool[-1], 1.0) if len(pool) == 3 else pool[-1] if pool[-1].stage is not None else ops.relu(pool[-1])


def _fits(x: SymbolicTensor, y: SymbolicTensor) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], derandomize=True
)
@given(programs())
def test_any_program_keeps_its_value(value: SymbolicTensor) -> None:
    expr = ops.expression(value)
    result = fuse(expr)
    assert (result.inputs, result.output) == (expr.inputs, expr.output)
    arrays = verify.random_inputs(expr, 3)
    expected = verify.reference(expr, arrays)
    np.testing.assert_array_equal(verify.reference(result, arrays), expected)
    points = verify.sample_points(expr, 7)
    np.testing.assert_array_equal(verify.reference(result, arrays, points), expected[tuple(points.T)])
    verify.check(expr, arrays, expected)


@pytest.mark.parametrize("length", [300, 600])
def test_what_is_joined_can_be_written(length: int) -> None:
    """However long a chain of operations is: an artifact holds its stages."""
    value = ops.tensor((8,), name="x")
    for _ in range(length):
        value = -value
    expr = fuse(ops.expression(value))
    assert 1 < len(expr.stages) < length and expr_from_json(expr_to_json(expr)) == expr
