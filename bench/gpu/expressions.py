"""Roller's expression of a described operator."""

from __future__ import annotations

from bench.gpu.operators import Operator
from roller import SymbolicTensor, ops


def expression(op: Operator) -> SymbolicTensor:
    """The operator as roller compiles it; inputs keep their names and order."""
    t = {name: ops.tensor(shape, op.dtype, name) for name, shape in op.shapes.items()}
    o = op.options
    match op.kind:
        case "matmul":
            return ops.matmul(t["a"], t["b"])
        case "batch_matmul":
            return ops.batch_matmul(t["a"], t["b"], transpose_b=bool(o.get("transpose_b")))
        case "matmul_bias_gelu":
            return ops.gelu(ops.matmul(t["a"], t["b"]) + t["bias"])
        case "matmul_bias_residual":
            return ops.matmul(t["a"], t["b"]) + t["bias"] + t["residual"]
        case "conv2d":
            return ops.conv2d(t["x"], t["w"], o["stride"], tuple(o["pads"]))
        case "conv_bias_relu":
            return ops.relu(ops.conv2d(t["x"], t["w"], o["stride"], tuple(o["pads"])) + t["bias"])
        case "depthwise":
            return ops.depthwise_conv2d(t["x"], t["w"], o["stride"], tuple(o["pads"]))
        case "avg_pool":
            return ops.avg_pool2d(t["x"], tuple(o["kernel"]), o["stride"], tuple(o["pads"]))
        case "max_pool":
            return ops.max_pool2d(t["x"], tuple(o["kernel"]), o["stride"], tuple(o["pads"]))
        case "reduce_sum":
            return ops.reduce_sum(t["x"], list(o["axes"]))
        case "transpose":
            return ops.transpose(t["x"], list(o["axes"]))
        case "relu":
            return ops.relu(t["x"])
        case "gelu":
            return ops.gelu(t["x"])
        case "add":
            return t["x"] + t["y"]
        case "scale_bias_relu":
            return ops.relu(t["x"] * t["scale"] + t["bias"])
    raise ValueError(f"{op.id}: no kind of operator is called {op.kind!r}")
