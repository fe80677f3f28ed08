"""Roller's expression of a described operator."""

from __future__ import annotations

from bench.gpu.operators import EPSILON, Operator
from roller import SymbolicTensor, ops


def expression(op: Operator) -> SymbolicTensor:
    """The operator as roller compiles it; inputs keep their names and order."""
    t = {name: ops.tensor(shape, op.dtype, name) for name, shape in op.shapes.items()}
    o = op.options
    match op.kind:
        case "matmul":
            return ops.matmul(t["a"], t["b"], bool(o.get("transpose_a")), bool(o.get("transpose_b")))
        case "batch_matmul":
            return ops.batch_matmul(t["a"], t["b"], transpose_b=bool(o.get("transpose_b")))
        case "matmul_bias_gelu":
            return ops.gelu(ops.matmul(t["a"], t["b"]) + t["bias"])
        case "matmul_bias_residual":
            return ops.matmul(t["a"], t["b"]) + t["bias"] + t["residual"]
        case "conv2d":
            return ops.conv2d(t["x"], t["w"], o["stride"], tuple(o["pads"]), layout=o.get("layout", "NCHW"))
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
        case "softmax":
            return softmax(t["x"])
        case "layer_norm":
            return layer_norm(t["x"]) * t["scale"] + t["bias"]
        case "attention":
            scores = ops.batch_matmul(t["q"], t["k"], transpose_b=True) * (op.shapes["q"][-1] ** -0.5)
            return ops.batch_matmul(softmax(scores), t["v"])
    raise ValueError(f"{op.id}: no kind of operator is called {op.kind!r}")


def softmax(x: SymbolicTensor) -> SymbolicTensor:
    """Over the last axis."""
    e = ops.exp(x - ops.reduce_max(x, -1, keepdims=True))
    return e / ops.reduce_sum(e, -1, keepdims=True)


def layer_norm(x: SymbolicTensor) -> SymbolicTensor:
    """Over the last axis, before scale and bias."""
    off = x - ops.reduce_mean(x, -1, keepdims=True)
    return off * ops.rsqrt(ops.reduce_mean(off * off, -1, keepdims=True) + EPSILON)
