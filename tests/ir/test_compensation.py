"""Products of signed integers with one unsigned factor: equal to the last bit, and only where an atom needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import ops, verify
from roller.ir.compensation import compensated, unbiased
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import factors_of
from roller.ir.scalar import Cast, Load, walk
from roller.target.catalog import find_spec

ATOMS = find_spec("cpu", "zen5").atoms


def t(*shape: int, dtype: str = "int8", name: str | None = None) -> ops.SymbolicTensor:
    return ops.tensor(shape, dtype, name)


def split(op: ops.SymbolicTensor) -> tuple[TensorExpr, ...]:
    return compensated(fuse(ops.expression(op)), ATOMS)


def unsigned_of(expr: TensorExpr) -> str:
    """The name of the input that the product takes unsigned."""
    values = [unbiased(f.value) for f in factors_of(expr.stages[-1]) if isinstance(f, Cast)]
    (found,) = [node.tensor for value in values if value is not None for node in walk(value) if isinstance(node, Load)]
    return found


def products(m: int, n: int, k: int) -> dict[str, ops.SymbolicTensor]:
    a, b = t(m, k, name="a"), t(k, n, name="b")
    image, weights = t(2, k, 5, 6, name="x"), t(n, k, 3, 3, name="w")
    summed = ops.matmul(a, b, out_dtype="int32")
    return {
        "product": summed,
        "turned": ops.matmul(t(k, m, name="a"), t(n, k, name="b"), True, True, out_dtype="int32"),
        "batch": ops.batch_matmul(t(3, m, k, name="a"), t(3, k, n, name="b"), out_dtype="int32"),
        "einsum": ops.einsum("bmk,nk->bnm", t(2, m, k, name="a"), t(n, k, name="b"), out_dtype="int32"),
        "convolution": ops.conv2d(image, weights, 2, 1, out_dtype="int32"),
        "quantised": ops.cast(ops.clip(ops.cast(summed, "float32") * t(n, dtype="float32", name="s"), -128.0, 127.0), "int8"),
        "computed": ops.matmul(ops.maximum(a, t(1, k, name="floor")), b, out_dtype="int32"),
        "narrow": ops.matmul(a, b, out_dtype="int8"),
    }


@pytest.mark.parametrize("name", list(products(1, 1, 1)))
@settings(max_examples=8)
@given(st.integers(2, 7), st.integers(2, 7), st.integers(1, 9), st.integers(0, 99))
def test_results_are_equal(name: str, m: int, n: int, k: int, seed: int) -> None:
    op = products(m, n, k)[name]
    expr, (first, second) = ops.expression(op), split(op)
    rng = np.random.default_rng(seed)
    whole = {i.name: rng.integers(-128, 128, i.shape).astype(np.int8) for i in expr.inputs if i.dtype == "int8"}
    arrays: dict[str, Any] = verify.random_inputs(expr, seed) | whole
    for changed in (first, second):
        np.testing.assert_array_equal(verify.reference(changed, arrays), verify.reference(expr, arrays))
        assert len(changed.stages) == len(fuse(expr).stages) + 1


@pytest.mark.parametrize(("name", "factors"), [("product", "ba"), ("turned", "ba"), ("convolution", "wx")])
def test_either_factor_is_unsigned(name: str, factors: str) -> None:
    assert [unsigned_of(expr) for expr in split(products(4, 9, 5)[name])] == list(factors)


def test_what_needs_none_gets_none() -> None:
    a, b = t(4, 8), t(8, 4)
    others = [
        ops.matmul(t(4, 8, dtype="uint8"), t(8, 4, dtype="uint8")),
        ops.matmul(t(4, 8, dtype="float32"), t(8, 4, dtype="float32")),
        ops.matmul(a, b, acc_dtype="int64"),
        ops.reduce_sum(a, (1,)),
        ops.cast(a, "int32") + 1,
    ]
    assert not any(compensated(fuse(ops.expression(op)), ATOMS) for op in others)
    signed = [atom for atom in ATOMS if atom.n_dtype is None]
    assert not compensated(fuse(ops.expression(ops.matmul(a, b))), signed)


def test_a_factor_that_lacks_a_reduction_is_not_summed() -> None:
    """Its sums would count once for each j."""
    op = ops.einsum("mk,knj->mn", t(3, 4, name="a"), t(4, 5, 2, name="b"), out_dtype="int32")
    assert all(unsigned_of(expr) == "a" for expr in split(op))
