"""ResNet-50's convolutions at batch 1, weights at call time and as constants, against torch and oneDNN. python -m bench.cpu.conv"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from bench.common import harness, peers, report
from bench.common.harness import Case, Side
from bench.common.networks import RESNET
from roller import ops

CALL, CONSTANT = "weights at call time", "weights as constants"


def build(options: argparse.Namespace, layer: tuple[int, ...], constant: bool) -> list[Side]:
    """All sides of one layer."""
    channels, size, filters, kernel, stride = layer
    padding = kernel // 2
    given = peers.arrays(x=(1, channels, size, size), w=(filters, channels, kernel, kernel))
    op = ops.conv2d(ops.tensor(given["x"].shape, name="x"), ops.tensor(given["w"].shape, name="w"), stride, padding)
    mine = peers.ours(op, given, options, constants=["w"] if constant else [])
    if constant:
        return [mine, *peers.conv2d_constant(given["x"], given["w"], stride, padding)]
    return [mine, *peers.conv2d(given["x"], given["w"], stride, [padding] * 4)]


def cases() -> Iterator[Case]:
    """Every layer in both ways."""
    for family, constant in ((CALL, False), (CONSTANT, True)):
        for layer in RESNET:
            channels, size, filters, kernel, stride = layer
            side = -(-size // stride)
            depth = channels * kernel * kernel
            name = f"{channels}x{size}x{size} -> {filters} k{kernel} s{stride}" + (" const" if constant else "")
            need = 4 * peers.bytes_of((channels, size, size), (filters, depth), (filters, side, side))
            flops = 2.0 * filters * side * side * depth
            yield Case(name, family, partial(build, layer=layer, constant=constant), need, flops, depth=depth)


if __name__ == "__main__":
    sys.exit(report.run("conv", cases(), harness.start(__doc__)))
