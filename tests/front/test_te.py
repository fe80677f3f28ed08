"""The bridge from TVM: te expressions mean the same here as compiled by TVM, and what cannot be said is refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from roller import ops, verify
from roller.errors import ExpressionError
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse

tvm = pytest.importorskip("tvm")
from tvm import te, tirx, topi  # noqa: E402

from roller.te import from_te  # noqa: E402

A, B, V = te.placeholder((16, 8), name="A"), te.placeholder((8, 12), name="B"), te.placeholder((16,), name="V")
X, W = te.placeholder((2, 4, 9, 9), name="X"), te.placeholder((6, 4, 3, 3), name="W")
I8 = te.placeholder((5, 8), "int8", name="I8")
INDEX = te.placeholder((3,), "int32", name="INDEX")
PLACEHOLDERS = {str(p.op.name): p for p in (A, B, V, X, W, I8)}


def by_tvm(expr: TensorExpr, output: Any, arrays: dict[str, Any]) -> Any:
    function = te.create_prim_func([*(PLACEHOLDERS[t.name] for t in expr.inputs), output])
    result = tvm.runtime.tensor(np.zeros(expr.output.shape, verify.numpy_dtype(expr.output.dtype)))
    tvm.compile(function, target="llvm")(*(tvm.runtime.tensor(arrays[t.name]) for t in expr.inputs), result)
    return result.numpy()


def rows_of_products(i: Any) -> Any:
    k = te.reduce_axis((2, 8), name="k")
    return te.sum(A[i, k] * A[15 - i, k - 2], axis=k)


def integer_product() -> Any:
    k = te.reduce_axis((0, 8), name="k")
    return te.compute((5, 5), lambda i, j: te.sum(I8[i, k].astype("int32") * I8[j, k].astype("int32"), axis=k))


def smallest() -> Any:
    k = te.reduce_axis((0, 8), name="k")
    return te.compute((16,), lambda i: te.min(A[i, k], axis=k))


EXPRESSIONS: dict[str, tuple[Callable[[], Any], int]] = {
    "matmul": (lambda: topi.matmul(A, B), 1),
    "relu of matmul": (lambda: topi.nn.relu(topi.matmul(A, B)), 1),
    "padded convolution": (lambda: topi.nn.conv2d_nchw(X, W, 2, 1, 1), 1),
    "max pooling": (lambda: topi.nn.pool2d(X, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max"), 1),
    "average pooling": (lambda: topi.nn.pool2d(X, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "avg", count_include_pad=True), 1),
    "softmax": (lambda: topi.nn.softmax(A), 4),
    "transpose": (lambda: topi.transpose(A), 1),
    "functions": (lambda: topi.sigmoid(topi.exp(A) + topi.tanh(A) * topi.cos(A)), 1),
    "erf and powers": (lambda: te.compute((16, 8), lambda i, j: tirx.erf(A[i, j]) + tirx.power(tirx.abs(A[i, j]) + 1.0, 2.5)), 1),
    "rounding": (lambda: te.compute((16,), lambda i: tirx.nearbyint(V[i] * 3.0) + tirx.floor(V[i]) - tirx.ceil(V[i])), 1),
    "ranges not from 0": (lambda: te.compute((16,), rows_of_products), 1),
    "integers": (integer_product, 1),
    "minimum": (smallest, 1),
    "strided and reversed": (lambda: te.compute((4, 8), lambda i, j: A[15 - 3 * i, 7 - j]), 1),
    "simplified indices": (lambda: te.compute((16, 8), lambda i, j: A[(i * 2 + 1) // 2, tirx.floormod(j, 8)]), 1),
    "selects": (
        lambda: te.compute((18,), lambda i: te.if_then_else(tirx.all(i >= 1, i < 17), V[i - 1], tirx.const(0.0, "float32"))),
        1,
    ),
    "coordinates": (lambda: te.compute((16,), lambda i: tirx.Select(i % 16 < 3, V[i], (i * 2 + 1).astype("float32"))), 1),
    "either or": (lambda: te.compute((16,), lambda i: te.if_then_else(tirx.any(i < 3, tirx.Not(i < 9)), V[i], -V[i])), 1),
    "casts": (lambda: te.compute((16,), lambda i: (V[i].astype("float16") + tirx.const(1, "float16")).astype("float32")), 1),
    "same names": (lambda: te.compute((16,), lambda i: te.compute((16,), lambda i: V[i] * 2.0, name="s")[i] + 1.0, name="s"), 1),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_it_means_what_tvm_compiles(name: str) -> None:
    build, stages = EXPRESSIONS[name]
    output = build()
    expr = from_te(output)
    fused = fuse(expr)
    assert len(fused.stages) == stages
    arrays = verify.random_inputs(expr, 1)
    result = by_tvm(expr, output, arrays)
    verify.check(expr, arrays, result)
    verify.check(fused, arrays, result)


def test_padding_of_topi_becomes_a_guarded_load() -> None:
    expr = fuse(from_te(topi.nn.conv2d_nchw(X, W, 1, 1, 1)))
    assert [load.fill for load in expr.stages[0].reads] == [0.0, None]


def test_a_reduction_with_a_condition() -> None:
    k = te.reduce_axis((0, 8), name="k")
    expr = from_te(te.compute((16,), lambda i: te.sum(A[i, k], axis=k, where=k > 3)))
    arrays = verify.random_inputs(expr)
    np.testing.assert_allclose(verify.reference(expr, arrays), arrays["A"][:, 4:].astype(np.float64).sum(1), rtol=1e-12)


def test_a_list_gives_the_order_of_inputs() -> None:
    product = topi.matmul(A, B)
    assert [t.name for t in from_te(product).inputs] == ["A", "B"]
    assert [t.name for t in from_te([B, A, product]).inputs] == ["B", "A"]


def test_it_composes_with_the_library() -> None:
    value = ops.relu(ops.from_te(topi.matmul(A, B)) + ops.tensor((12,), name="bias"))
    expr = ops.expression(value)
    assert [t.name for t in expr.inputs] == ["A", "B", "bias"]
    assert len(fuse(expr).stages) == 1


def test_equal_names_are_told_apart() -> None:
    p, q = te.placeholder((4,), name="p"), te.placeholder((4,), name="p")
    assert [t.name for t in from_te(te.compute((4,), lambda i: p[i] - q[i])).inputs] == ["p", "p_1"]
    assert from_te(te.compute((4,), lambda i: te.placeholder((4,), name="a.b-c")[i])).inputs[0].name == "a_b_c"


def test_long_chains_of_stages_are_read() -> None:
    value = V
    for _ in range(1500):
        value = topi.add(value, tirx.const(1.0, "float32"))
    assert len(from_te(value).stages) == 1500


def nested(depth: int) -> Any:
    def body(i: Any) -> Any:
        x = V[i]
        for _ in range(depth):
            x = x + 1.0
        return x

    return te.compute((16,), body)


def doubled(depth: int) -> Any:
    def body(i: Any) -> Any:
        x = V[i]
        for _ in range(depth):
            x = x + x
        return x

    return te.compute((16,), body)


def product_reduction() -> Any:
    times = te.comm_reducer(lambda x, y: x * y, lambda t: tirx.const(1, dtype=t))
    k = te.reduce_axis((0, 8), name="k")
    return te.compute((16,), lambda i: times(A[i, k], axis=k))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "reshape": (lambda: topi.reshape(A, (64, 2)), "index of 'A' in dimension 0 is .* not affine in the axes"),
    "product of axes": (lambda: te.compute((3, 3), lambda i, j: V[i * j]), "not affine"),
    "gather": (lambda: topi.take(A, INDEX, axis=0), "index of 'A' in dimension 0 depends on data"),
    "argmax": (lambda: topi.argmax(A, 1), "2 outputs together"),
    "scan": (lambda: topi.cumsum(A, 1), "'cumsum_generic': ExternOp is not supported.* pass their result as an input"),
    "sort": (lambda: topi.exp(topi.sort(A)), "ExternOp is not supported"),
    "part of a sort": (lambda: topi.topk(A, 3)[0], "ExternOp is not supported"),
    "call": (lambda: te.extern((16,), [V], lambda i, o: tirx.call_packed("f", i[0], o[0])), "ExternOp is not supported"),
    "product": (product_reduction, "use te.sum, te.max or te.min"),
    "halves away": (lambda: te.compute((16,), lambda i: tirx.round(V[i])), "the function 'round' is not supported; tirx.nearbyint"),
    "unknown function": (
        lambda: te.compute((16,), lambda i: tirx.atan(te.if_then_else(i < 3, V[i] * 2.5, V[i] + tirx.Cast("float32", i)))),
        r"occurs in atan\(if_then_else\(\(i < 3\), \(\w+\[i\] \* 2.5\), \(\w+\[i\] \+ float32\(i\)\)\)\)$",
    ),
    "integer division": (lambda: te.compute((5,), lambda i: te.floordiv(I8[i, 0], I8[i, 1])), "FloorDiv is not supported"),
    "symbolic shape": (lambda: te.compute((te.var("n"),), lambda i: A[i, 0]), "depends on n; give every extent as a number"),
    "free variable": (lambda: te.compute((4,), lambda i: V[i + te.var("q")]), "not affine"),
    "deep": (lambda: nested(20000), "nested more than 100 deep"),
    "wide": (lambda: doubled(14), "more than 2000 parts"),
    "two outputs": (lambda: [A, topi.exp(A), topi.tanh(A)], "one computed tensor, got 2"),
    "an input": (lambda: A, "one computed tensor, got 0"),
    "no tensor": (lambda: 3, "expected a te tensor, got int"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused_by_name(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ExpressionError, match=message):
        from_te(build())


def test_a_tvm_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "roller.te", None)  # what importing it gives where TVM lacks what it imports
    with pytest.raises(ExpressionError, match=r"from_te cannot use the TVM that is installed .*pip install --force-reinstall"):
        ops.from_te(te.compute((4,), lambda i: A[i, 0]))
