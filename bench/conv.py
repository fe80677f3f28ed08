"""ResNet-50's convolutions at batch 1, weights at call time and as constants, against torch and oneDNN. python -m bench.conv"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from bench import harness, peers, report
from bench.harness import Case, Side
from roller import ops

# Input channels, input height and width, output channels, kernel, stride: the distinct ones, in the network's order.
LAYERS = (
    (3, 224, 64, 7, 2),
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1),
    (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (128, 28, 512, 1, 1), (256, 56, 512, 1, 2), (512, 28, 128, 1, 1),
    (128, 28, 128, 3, 1),
    (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2), (1024, 14, 256, 1, 1),
    (256, 14, 256, 3, 1),
    (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2), (2048, 7, 512, 1, 1),
    (512, 7, 512, 3, 1),
)  # fmt: skip
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
        for layer in LAYERS:
            channels, size, filters, kernel, stride = layer
            side = -(-size // stride)
            depth = channels * kernel * kernel
            name = f"{channels}x{size}x{size} -> {filters} k{kernel} s{stride}" + (" const" if constant else "")
            need = 4 * peers.bytes_of((channels, size, size), (filters, depth), (filters, side, side))
            flops = 2.0 * filters * side * side * depth
            yield Case(name, family, partial(build, layer=layer, constant=constant), need, flops, depth=depth)


if __name__ == "__main__":
    sys.exit(report.run("conv", cases(), harness.start(__doc__)))
