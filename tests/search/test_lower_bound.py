"""A lower bound of a stage: no program takes less, and what cannot be faster is not constructed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import compiler, ops, pipeline
from roller.cost.parameters import CostParameters
from roller.device.chip import resolve
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ir.relayout import layouts
from roller.ops import SymbolicTensor
from roller.program.alignment import Rules
from roller.search.construct import rated_stages, rated_ways
from roller.search.lower_bound import least_seconds
from roller.search.tile_space import tile_spaces
from roller.target.hardware import HardwareSpec

LANES = ("cuda:a100", "cuda:h100", "rocm:mi300x")
CHIPS = (*LANES, "cpu:zen5", "ipu_sim:bow")


@st.composite
def operators(draw: st.DrawFn) -> SymbolicTensor:
    """Products, convolutions and sums, small and large."""
    m, n, k = (draw(st.sampled_from((1, 3, 31, 64, 100, 1000))) for _ in range(3))
    dtype = draw(st.sampled_from(("float32", "float16")))
    match draw(st.sampled_from(("product", "convolution", "sum", "strided"))):
        case "product":
            return ops.matmul(ops.tensor((m, k), dtype), ops.tensor((k, n), dtype))
        case "convolution":
            return ops.conv2d(ops.tensor((2, m, 14, 14), dtype), ops.tensor((n, m, 3, 3), dtype), draw(st.sampled_from((1, 2))), 1)
        case "strided":
            return ops.relu(ops.avg_pool2d(ops.tensor((2, m, 28, 28), dtype), 1, 4))
    return ops.reduce_sum(ops.tensor((m, k), dtype), draw(st.sampled_from((0, 1))))


def on(chip: str, op: SymbolicTensor) -> tuple[TensorExpr, HardwareSpec, tuple[Rules, CostParameters]]:
    """The fused expression, the chip, and what its plugin says of both."""
    plugin, spec = resolve(chip)
    expr = fuse(ops.expression(op), spec.spread)
    return expr, spec, (plugin.rules(spec, expr), plugin.cost_parameters(spec, expr))


@pytest.mark.parametrize("chip", CHIPS)
@given(op=operators())
@settings(max_examples=4)
def test_no_program_takes_less_than_the_least(chip: str, op: SymbolicTensor) -> None:
    expr, spec, (rules, parameters) = on(chip, op)
    if parameters.own_model is not None:
        return
    for stage, rated in zip(expr.stages, rated_stages(expr, spec, rules, parameters), strict=True):
        nests = variants(stage, expr.tensors, spec.spread)
        least = least_seconds(tile_spaces(nests, spec, rules.of(stage.name), parameters))
        assert 0 < least <= 1.000001 * rated[0][1].seconds


def test_what_is_worth_nothing_is_not_constructed() -> None:
    expr, spec, given = on("cuda:a100", ops.matmul(ops.tensor((100, 70), "float16"), ops.tensor((70, 90), "float16")))
    whole = rated_ways(expr, spec, *given)
    best = whole[0][0][0][1].seconds
    assert rated_ways(expr, spec, *given, worth=best) == []
    assert rated_ways(expr, spec, *given, worth=1.001 * best)[0][0][0][1].seconds == best


def test_copies_that_cannot_pay_are_no_more_than_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small product whose rows are odd nothing but the product itself is constructed: copying alone takes longer."""
    op = ops.matmul(ops.tensor((100, 70), "float16"), ops.tensor((70, 90), "float16"))
    expr, spec, _ = on("cuda:a100", op)
    plugin = resolve("cuda:a100")[0]
    assert len(layouts(expr, spec, plugin.cost_parameters(spec, expr).row_bytes)) > 1
    asked: list[tuple[int, int]] = []
    rate = rated_ways

    def noted(expr: TensorExpr, *given: Any) -> Any:
        found = rate(expr, *given)
        asked.append((len(expr.stages), len(found)))
        return found

    monkeypatch.setattr(pipeline, "rated_ways", noted)
    expr = ops.expression(op)
    pipeline.constructed(*compiler.planned(expr, "cuda:a100", None, None, None, False), 10)
    assert asked[0] == (1, 1)
    assert all(stages > 1 and not found for stages, found in asked[1:])
