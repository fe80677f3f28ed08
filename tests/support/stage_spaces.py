"""Operators of all kinds, and the tile spaces of their first stages on a chip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from roller import ops
from roller.device.chip import resolve
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ops import SymbolicTensor
from roller.search.tile_space import TileSpace, tile_spaces
from roller.target.hardware import HardwareSpec

CHIPS = ("cpu:zen5", "cpu:x86-64-v3", "cpu:neoverse-v2")


@st.composite
def operators(draw: st.DrawFn) -> SymbolicTensor:
    """Products, convolutions, pools, sums and elementwise work, with extents that tiles divide and that they do not."""
    m, n, k = (draw(st.sampled_from((1, 3, 16, 31, 64, 100, 384))) for _ in range(3))
    match draw(st.sampled_from(("product", "words", "turned", "convolution", "depthwise", "pool", "sum", "chain"))):
        case "product":
            return ops.matmul(ops.tensor((m, k)), ops.tensor((k, n)))
        case "words":
            dtype = draw(st.sampled_from(("int8", "bfloat16")))
            b = ops.tensor((n, k) if draw(st.booleans()) else (k, n), dtype)
            return ops.matmul(ops.tensor((m, k), dtype), b, transpose_b=b.shape != (k, n))
        case "turned":
            return ops.matmul(ops.tensor((m, k)), ops.tensor((n, k)), transpose_b=True)
        case "convolution":
            return ops.conv2d(ops.tensor((2, m, 14, 14)), ops.tensor((n, m, 3, 3)), draw(st.sampled_from((1, 2))), 1)
        case "depthwise":
            return ops.depthwise_conv2d(ops.tensor((2, m, 20, 20)), ops.tensor((m, 1, 3, 3)), draw(st.sampled_from((1, 2))), 1)
        case "pool":
            return ops.max_pool2d(ops.tensor((2, m, 28, 28)), 3, 2, 1)
        case "sum":
            return ops.reduce_sum(ops.tensor((m, k, n)), draw(st.sampled_from((0, 1, 2))))
    return ops.transpose(ops.exp(ops.tensor((m, n))), (1, 0))


def spaces_of(chip: str, op: SymbolicTensor, change: Callable[[HardwareSpec], HardwareSpec] = lambda s: s) -> list[TileSpace]:
    """The tile spaces of an operator's first stage, whose arrays have finite elements: taps on padding add nothing."""
    plugin, spec = resolve(chip)
    spec = change(spec)
    expr = fuse(ops.expression(op), spec.spread)
    expr = TensorExpr(tuple(replace(t, finite=True) for t in expr.inputs), expr.stages)
    stage = expr.stages[0]
    rules, parameters = plugin.rules(spec, expr).of(stage.name), plugin.cost_parameters(spec, expr)
    return tile_spaces(variants(stage, expr.tensors, spec.spread), spec, rules, parameters)
