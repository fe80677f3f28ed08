"""Operators fused into one kernel by roller, against torch's eager mode, which runs them one by one. python -m bench.cpu.fused"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional

from bench.common import harness, peers, report
from bench.common.harness import Case, Side
from roller import ops

# Input channels, height and width, output channels, kernel, stride.
CONV = ((64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (256, 56, 64, 1, 1), (3, 224, 64, 7, 2))
GELU = ((384, 3072, 768), (128, 4096, 1024), (16, 3072, 768))  # M, N, K of BERT's first feed-forward product
RESIDUAL = ((384, 768, 3072), (128, 1024, 4096), (384, 768, 768))
SCALED = ((64, 256, 32, 32), (16, 64, 128, 128))  # 64 MiB each
NHWC = torch.channels_last


def conv_bias_relu(options: argparse.Namespace, layer: tuple[int, ...]) -> list[Side]:
    """relu(conv2d(x, w) + bias); weights come with the call."""
    channels, size, filters, kernel, stride = layer
    padding = kernel // 2
    given = peers.arrays(x=(1, channels, size, size), w=(filters, channels, kernel, kernel), bias=(filters, 1, 1))
    x, w, bias = (ops.tensor(a.shape, name=n) for n, a in given.items())
    t = peers.shared(given)
    flat, images, weights = t["bias"].reshape(-1), t["x"].contiguous(memory_format=NHWC), t["w"].contiguous(memory_format=NHWC)

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, flat, stride, padding).relu_()

    def charged() -> torch.Tensor:
        return run(t["x"].contiguous(memory_format=NHWC), t["w"].contiguous(memory_format=NHWC)).contiguous()

    return [
        peers.ours(ops.relu(ops.conv2d(x, w, stride, padding) + bias), given, options),
        peers.of_torch("torch NCHW", lambda: run(t["x"], t["w"])),
        peers.of_torch("torch NHWC, charged", charged),
        peers.of_torch("torch NHWC", lambda: run(images, weights), boundary=False),
    ]


def matmul_bias_gelu(options: argparse.Namespace, m: int, n: int, k: int) -> list[Side]:
    """gelu(a·b + bias), exact."""
    given = peers.arrays(a=(m, k), b=(k, n), bias=(n,))
    a, b, bias = (ops.tensor(v.shape, name=name) for name, v in given.items())
    t = peers.shared(given)
    linear, columns = torch.ops.aten.linear, t["b"].t()
    c, d = peers.empty((m, n)), peers.empty((m, n))
    product, out = torch.from_numpy(c), torch.from_numpy(d)

    def preallocated() -> torch.Tensor:
        torch.addmm(t["bias"], t["a"], t["b"], out=product)
        return torch.ops.aten.gelu.out(product, out=out)

    return [
        peers.ours(ops.gelu(ops.matmul(a, b) + bias), given, options),
        peers.of_torch("torch addmm, gelu", preallocated, d),
        peers.of_torch("torch linear, gelu", lambda: functional.gelu(linear(t["a"], columns, t["bias"]))),
    ]


def matmul_bias_residual(options: argparse.Namespace, m: int, n: int, k: int) -> list[Side]:
    """a·b + bias + residual."""
    given = peers.arrays(a=(m, k), b=(k, n), bias=(n,), residual=(m, n))
    a, b, bias, residual = (ops.tensor(v.shape, name=name) for name, v in given.items())
    t = peers.shared(given)
    c, d = peers.empty((m, n)), peers.empty((m, n))
    first, second = torch.from_numpy(c), torch.from_numpy(d)
    return [
        peers.ours(ops.matmul(a, b) + bias + residual, given, options),
        peers.of_torch("torch addmm, add", lambda: torch.addmm(t["bias"], t["a"], t["b"], out=first).add_(t["residual"]), c),
        peers.of_torch(
            "torch addmm to residual", lambda: torch.addmm(t["residual"], t["a"], t["b"], out=second).add_(t["bias"]), d
        ),
    ]


def scale_bias_relu(options: argparse.Namespace, shape: tuple[int, ...]) -> list[Side]:
    """relu(x·scale + bias) with a scale and a bias for each channel."""
    given = peers.arrays(x=shape, scale=(shape[1], 1, 1), bias=(shape[1], 1, 1))
    x, scale, bias = (ops.tensor(v.shape, name=name) for name, v in given.items())
    t = peers.shared(given)
    c, d = peers.empty(shape), peers.empty(shape)
    first, second = torch.from_numpy(c), torch.from_numpy(d)
    weight, shift = (t[name].reshape(-1) for name in ("scale", "bias"))
    zero, one = torch.zeros(shape[1]), torch.ones(shape[1])

    def normalised() -> torch.Tensor:
        return functional.batch_norm(t["x"], zero, one, weight, shift, training=False, eps=0.0).relu_()

    return [
        peers.ours(ops.relu(x * scale + bias), given, options),
        peers.of_torch("torch mul, add, relu", lambda: torch.mul(t["x"], t["scale"], out=first).add_(t["bias"]).relu_(), c),
        peers.of_torch("torch addcmul, relu", lambda: torch.addcmul(t["bias"], t["x"], t["scale"], out=second).relu_(), d),
        peers.of_torch("torch batch_norm, relu", normalised),
    ]


def cases() -> Iterator[Case]:
    """Every case of every family."""
    for layer in CONV:
        channels, size, filters, kernel, stride = layer
        depth, side = channels * kernel**2, size // stride
        need = 4 * peers.bytes_of((channels, size, size), (filters, depth), (filters, side, side))
        name = f"{channels}x{size}x{size} -> {filters} k{kernel} s{stride}"
        yield Case(name, "conv+bias+relu", partial(conv_bias_relu, layer=layer), need, 2.0 * filters * side**2 * depth, depth=depth)
    build: Callable[..., list[Side]]
    for family, build, shapes in (
        ("matmul+bias+gelu", matmul_bias_gelu, GELU),
        ("matmul+bias+residual", matmul_bias_residual, RESIDUAL),
    ):
        for m, n, k in shapes:
            need = 4 * peers.bytes_of((m, n), (m, k), (k, n))
            yield Case(f"{m}x{n}x{k} {family}", family, partial(build, m=m, n=n, k=k), need, 2.0 * m * n * k, depth=k)
    for shape in SCALED:
        moved = 2 * peers.bytes_of(shape)
        name = f"scale+bias+relu {'x'.join(map(str, shape))}"
        yield Case(name, "scale+bias+relu", partial(scale_bias_relu, shape=shape), 3 * moved, moved=moved)


if __name__ == "__main__":
    sys.exit(report.run("fused", cases(), harness.start(__doc__)))
