"""Rounding once for each operator, on every device: halves, and what stages of one kernel hand one another (`docs/numerics.md`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from everywhere import EMULATORS, WHERE
from roller import ops, verify
from roller.ir.fusion import fuse
from roller.ir.row_groups import row_groups
from roller.ir.scalar import Unary

F32 = np.float32


CHAINS: dict[str, Callable[[ops.SymbolicTensor, ops.SymbolicTensor], ops.SymbolicTensor]] = {
    "product": lambda h, g: h * g - h,
    "negated": lambda h, g: -(h * g) + h,
    "sum": lambda h, g: (h + g) * h + g,
    "quotient": lambda h, g: h / g * h - g,
    "root": lambda h, g: ops.sqrt(ops.abs(h)) * h + g,
}


@pytest.mark.parametrize("where", ["cpu", *EMULATORS])
@pytest.mark.parametrize("kind", CHAINS)
def test_each_operator_on_halves_is_rounded_once(kind: str, where: str) -> None:
    """Whether or not the chip has instructions for halves, and whatever of several they do at a time; NaN and infinities, too."""
    expr = fuse(ops.expression(CHAINS[kind](*(ops.tensor((300,), "float16", name) for name in "hg"))))
    for seed in range(2):
        arrays = verify.random_inputs(expr, seed, special=True)
        verify.check(expr, arrays, WHERE[where](expr, arrays))


def _sum_scaled(x: ops.SymbolicTensor) -> ops.SymbolicTensor:
    return x + ops.reduce_sum(x, 1, keepdims=True) * float(F32(1 / 3))


def _product_kept(x: ops.SymbolicTensor) -> ops.SymbolicTensor:
    kept = ops.sqrt(x) * ops.sqrt(x + 1.0)
    return kept + ops.reduce_max(kept, 1, keepdims=True)


def _product_taken(x: ops.SymbolicTensor) -> ops.SymbolicTensor:
    kept = ops.sqrt(x) * ops.sqrt(x + 1.0)
    return ops.reduce_max(kept, 1, keepdims=True) - kept


def _kept(x: np.ndarray) -> np.ndarray:
    return np.sqrt(x) * np.sqrt(x + F32(1))


STAGES: dict[str, tuple[Callable[[ops.SymbolicTensor], ops.SymbolicTensor], Callable[[np.ndarray], np.ndarray]]] = {
    "sum scaled": (_sum_scaled, lambda x: x + x.sum(1, keepdims=True, dtype=F32) * F32(1 / 3)),
    "product kept": (_product_kept, lambda x: _kept(x) + _kept(x).max(1, keepdims=True)),
    "product taken": (_product_taken, lambda x: _kept(x).max(1, keepdims=True) - _kept(x)),
}


@pytest.mark.parametrize("where", ["cpu", *EMULATORS])
@pytest.mark.parametrize("kind", STAGES)
def test_what_stages_hand_one_another_is_rounded(kind: str, where: str) -> None:
    """Also where one kernel computes them, whose compiler sees the product and the sum that takes it. Sums are of whole numbers."""
    op, wanted = STAGES[kind]
    expr = fuse(ops.expression(op(ops.tensor((8, 96), name="x"))))
    assert len(expr.stages) > 1
    x = np.random.default_rng(3).integers(0, 50, (8, 96)).astype(F32)
    np.testing.assert_array_equal(WHERE[where](expr, {"x": x}), wanted(x))


@pytest.mark.parametrize("kind", STAGES)
def test_products_that_a_group_holds_are_rounded(kind: str) -> None:
    (group,) = row_groups(fuse(ops.expression(STAGES[kind][0](ops.tensor((8, 96), name="x")))))
    assert isinstance(group[0].result, Unary) and group[0].result.op == "rounded"
