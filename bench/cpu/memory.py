"""Depthwise, pooling, reductions, elementwise, transposes, batched products, against torch and NumPy. python -m bench.cpu.memory"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from bench.common import harness, peers, report
from bench.common.harness import Array, Case, Side
from roller import SymbolicTensor, ops

Shape = tuple[int, ...]
Torch: TypeAlias = Any  # a tensor of torch, which ships its types only with itself

# Channels, input height and width, kernel, stride: MobileNet-V2's and EfficientNet's.
DEPTHWISE = ((32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 3, 2), (384, 14, 3, 1), (960, 7, 3, 1), (240, 28, 5, 1))
# Kind, channels, input height and width, kernel, stride, padding.
POOLING = (
    ("max", 64, 112, 3, 2, 1), ("max", 192, 28, 3, 1, 1), ("max", 128, 56, 2, 2, 0),
    ("avg", 64, 112, 3, 2, 1), ("avg", 192, 28, 3, 1, 1), ("avg", 2048, 7, 7, 1, 0),
)  # fmt: skip
# Kind, shape, axes.
REDUCE = (
    ("sum", (4096, 1024), (1,)), ("sum", (4096, 1024), (0,)), ("max", (4096, 1024), (1,)), ("max", (1024, 4096), (0,)),
    ("mean", (64, 256, 14, 14), (2, 3)), ("sum", (32, 64, 56, 56), (0, 2, 3)), ("sum", (1 << 24,), (0,)),
    ("min", (12, 384, 384), (2,)),
)  # fmt: skip
ELEMENTS = (1 << 14, 1 << 20, 1 << 24)
TRANSPOSE = (
    ((1024, 1024), (1, 0)), ((384, 768), (1, 0)), ((4096, 4096), (1, 0)), ((1, 384, 12, 64), (0, 2, 1, 3)),
    ((1, 64, 56, 56), (0, 2, 3, 1)), ((1, 56, 56, 64), (0, 3, 1, 2)), ((12, 384, 64), (0, 2, 1)),
)  # fmt: skip
# Batch, M, N, K, second operand transposed: heads of BERT-base at 384 and 128 tokens, and of BERT-large.
BATCHED = (
    (12, 384, 384, 64, True), (12, 384, 64, 384, False), (12, 384, 384, 64, False), (12, 128, 128, 64, True),
    (12, 128, 64, 128, False), (16, 384, 384, 64, True), (192, 128, 128, 64, True), (192, 128, 64, 128, False),
)  # fmt: skip


def depthwise(options: argparse.Namespace, channels: int, size: int, kernel: int, stride: int) -> list[Side]:
    """A depthwise convolution; weights come with the call."""
    given = peers.arrays(x=(1, channels, size, size), w=(channels, 1, kernel, kernel))
    x, w = (ops.tensor(given[name].shape, name=name) for name in "xw")
    mine = peers.ours(ops.depthwise_conv2d(x, w, stride, kernel // 2), given, options)
    return [mine, *peers.conv2d(given["x"], given["w"], stride, [kernel // 2] * 4, channels)]


def pooling(options: argparse.Namespace, kind: str, channels: int, size: int, kernel: int, stride: int, padding: int) -> list[Side]:
    """A pooling layer; padded zeros count in an average."""
    given = peers.arrays(x=(1, channels, size, size))
    pool = ops.max_pool2d if kind == "max" else ops.avg_pool2d
    mine = peers.ours(pool(ops.tensor(given["x"].shape, name="x"), kernel, stride, padding), given, options)
    if kind == "max":
        return [mine, *peers.max_pool(given["x"], kernel, stride, padding)]
    return [mine, *peers.average_pool(given["x"], kernel, stride, [padding] * 4)]


REDUCTIONS: dict[str, tuple[Callable[..., SymbolicTensor], Callable[..., Torch], Callable[..., Array]]] = {
    "sum": (ops.reduce_sum, torch.sum, np.sum),
    "mean": (ops.reduce_mean, torch.mean, np.mean),
    "max": (ops.reduce_max, torch.amax, np.max),
    "min": (ops.reduce_min, torch.amin, np.min),
}


def reduce(options: argparse.Namespace, kind: str, shape: Shape, axes: Shape) -> list[Side]:
    """A reduction over some axes."""
    given = peers.arrays(x=shape)
    mine, theirs, numpys = REDUCTIONS[kind]
    x = torch.from_numpy(given["x"])
    kept = [e for axis, e in enumerate(shape) if axis not in axes]
    c, d = peers.empty(kept), peers.empty(kept)
    y = torch.from_numpy(c)
    return [
        peers.ours(mine(ops.tensor(shape, name="x"), axes), given, options),
        peers.of_torch("torch", lambda: theirs(x, dim=axes, out=y), c),
        Side("numpy", lambda: numpys(given["x"], axis=axes, out=d), outs=(d,)),
    ]


Elementwise = tuple[
    Callable[[SymbolicTensor, SymbolicTensor], SymbolicTensor],
    Callable[[Torch, Torch, Torch], Torch],
    Callable[[Array, Array, Array], Array] | None,
]
ELEMENTWISE: dict[str, Elementwise] = {
    "relu": (
        lambda x, y: ops.relu(x),
        lambda x, y, out: torch.clamp_min(x, 0, out=out),
        lambda x, y, out: np.maximum(x, np.float32(0), out=out),
    ),
    "add": (lambda x, y: x + y, lambda x, y, out: torch.add(x, y, out=out), lambda x, y, out: np.add(x, y, out=out)),
    "exp": (lambda x, y: ops.exp(x), lambda x, y, out: torch.exp(x, out=out), lambda x, y, out: np.exp(x, out=out)),
    "tanh": (lambda x, y: ops.tanh(x), lambda x, y, out: torch.tanh(x, out=out), lambda x, y, out: np.tanh(x, out=out)),
    "sigmoid": (lambda x, y: ops.sigmoid(x), lambda x, y, out: torch.sigmoid(x, out=out), None),
    "gelu": (lambda x, y: ops.gelu(x), lambda x, y, out: torch.ops.aten.gelu.out(x, out=out), None),
}


def elementwise(options: argparse.Namespace, kind: str, shape: Shape, second: Shape) -> list[Side]:
    """A function of every element, or a sum with a second tensor that broadcasts."""
    mine, theirs, numpys = ELEMENTWISE[kind]
    given = peers.arrays(x=shape, y=second)
    x, y = (torch.from_numpy(given[name]) for name in "xy")
    c, d = peers.empty(shape), peers.empty(shape)
    out = torch.from_numpy(c)
    sides = [
        peers.ours(mine(ops.tensor(shape, name="x"), ops.tensor(second, name="y")), given, options),
        peers.of_torch("torch", lambda: theirs(x, y, out), c),
    ]
    if numpys is not None:
        sides.append(Side("numpy", lambda: numpys(given["x"], given["y"], d), outs=(d,)))
    return sides


def transpose(options: argparse.Namespace, shape: Shape, axes: Shape) -> list[Side]:
    """A copy in another order."""
    given = peers.arrays(x=shape)
    x, turned = torch.from_numpy(given["x"]).permute(axes), given["x"].transpose(axes)
    c, d = peers.empty(turned.shape), peers.empty(turned.shape)
    y = torch.from_numpy(c)

    def copied() -> Array:
        np.copyto(d, turned)
        return d

    return [
        peers.ours(ops.transpose(ops.tensor(shape, name="x"), axes), given, options),
        peers.of_torch("torch", lambda: y.copy_(x), c),
        Side("numpy", copied, outs=(d,)),
    ]


def batched(options: argparse.Namespace, batch: int, m: int, n: int, k: int, transposed: bool) -> list[Side]:
    """A batched matrix product."""
    second = (batch, n, k) if transposed else (batch, k, n)
    given = peers.arrays(a=(batch, m, k), b=second)
    a, b = torch.from_numpy(given["a"]), torch.from_numpy(given["b"])
    b = b.transpose(1, 2) if transposed else b
    plain, turned = given["a"], given["b"].transpose(0, 2, 1) if transposed else given["b"]
    c, d = peers.empty((batch, m, n)), peers.empty((batch, m, n))
    y = torch.from_numpy(c)
    op = ops.batch_matmul(ops.tensor((batch, m, k), name="a"), ops.tensor(second, name="b"), transpose_b=transposed)
    packed = b.contiguous()
    return [
        peers.ours(op, given, options),
        peers.of_torch("torch.bmm", lambda: torch.bmm(a, b, out=y), c),
        peers.of_torch("torch.bmm, row-major", lambda: torch.bmm(a, packed, out=y), c, boundary=False),
        Side("numpy", lambda: np.matmul(plain, turned, out=d), outs=(d,)),
    ]


def _case(
    name: str, family: str, build: Callable[[argparse.Namespace], list[Side]], shapes: Sequence[Shape], **more: float
) -> Case:
    """A case over operands of these shapes, the result's last."""
    moved = peers.bytes_of(*shapes)
    return Case(name, family, build, 3 * moved, more.get("flops", 0.0), moved, int(more.get("depth", 1)))


def windowed() -> Iterator[Case]:
    """Depthwise convolutions and pooling."""
    for c, size, kernel, stride in DEPTHWISE:
        build = partial(depthwise, channels=c, size=size, kernel=kernel, stride=stride)
        shapes = [(c, size, size), (c, size // stride, size // stride)]
        yield _case(f"depthwise {c}x{size}x{size} k{kernel} s{stride}", "depthwise", build, shapes, depth=kernel**2)
    for kind, c, size, kernel, stride, padding in POOLING:
        build = partial(pooling, kind=kind, channels=c, size=size, kernel=kernel, stride=stride, padding=padding)
        side = (size + 2 * padding - kernel) // stride + 1
        shapes = [(c, size, size), (c, side, side)]
        yield _case(f"{kind} pool {c}x{size}x{size} k{kernel} s{stride} p{padding}", "pooling", build, shapes, depth=kernel**2)


def cases() -> Iterator[Case]:
    """Every case of every family."""
    yield from windowed()
    for kind, shape, axes in REDUCE:
        name = f"{kind} {'x'.join(map(str, shape))} over {','.join(map(str, axes))}"
        depth = math.prod(shape[a] for a in axes)
        yield _case(name, "reduce", partial(reduce, kind=kind, shape=shape, axes=axes), [shape], depth=depth)
    for kind in ELEMENTWISE:
        for count in ELEMENTS if kind in ("relu", "add") else ELEMENTS[1:2]:
            build = partial(elementwise, kind=kind, shape=(count,), second=(count,))
            yield _case(f"{kind} {count}", "elementwise", build, [(count,)] * (3 if kind == "add" else 2))
    wide = partial(elementwise, kind="add", shape=(384, 3072), second=(3072,))
    yield _case("add 384x3072 + 3072", "elementwise", wide, [(384, 3072)] * 2)
    for extents, order in TRANSPOSE:
        name = f"transpose {'x'.join(map(str, extents))} to {','.join(map(str, order))}"
        yield _case(name, "transpose", partial(transpose, shape=extents, axes=order), [extents] * 2)
    for b, m, n, k, turned in BATCHED:
        build = partial(batched, batch=b, m=m, n=n, k=k, transposed=turned)
        name = f"bmm {b}x{m}x{n}x{k}" + (" NT" if turned else "")
        yield _case(name, "batch_matmul", build, [(b, m, k), (b, k, n), (b, m, n)], flops=2.0 * b * m * n * k, depth=k)


if __name__ == "__main__":
    sys.exit(report.run("memory", cases(), harness.start(__doc__)))
