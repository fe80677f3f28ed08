"""int8, bfloat16 and float16 on CPUs: products and convolutions, against torch and oneDNN. python -m bench.cpu.dtypes

Weights come with the call or are constants; alone, or with an epilogue (scale and relu of dequantised int8, bias and relu).
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np

from bench.common import harness, narrow, report
from bench.common.harness import Case, Side
from roller import ops

PRODUCTS = ((256, 256, 256), (1024, 1024, 1024), (16, 1024, 1024), (128, 4096, 1024), (384, 768, 3072), (1000, 1000, 1000))
CONVOLUTIONS = ((64, 56, 64, 3, 1), (256, 14, 256, 3, 1), (256, 56, 64, 1, 1), (512, 7, 2048, 1, 1))
WAYS = ((False, False), (True, False), (True, True))  # constant weights, epilogue


def product(options: argparse.Namespace, shape: tuple[int, ...], dtype: str, constant: bool, epilogue: bool) -> list[Side]:
    """All sides of one product of a row-major matrix with a row-major, or with constant weights."""
    m, n, k = shape
    given = narrow.arrays(dtype, a=(m, k), b=(k, n)) | narrow.vector((n,))
    a, b = (ops.tensor(given[name].shape, dtype, name) for name in "ab")
    summed = narrow.SUMS[dtype]
    op = ops.matmul(a, b, out_dtype=summed, acc_dtype=summed)
    if epilogue:
        op = narrow.finished(op, ops.tensor((n,), name="v"), dtype)
    return [
        narrow.ours(op, given, options, ["b"] if constant else []),
        *narrow.matmul(given["a"], given["b"], given["v"] if epilogue else None, dtype, constant),
    ]


def convolution(options: argparse.Namespace, layer: tuple[int, ...], dtype: str, constant: bool, epilogue: bool) -> list[Side]:
    """All sides of one convolution of NCHW images."""
    channels, size, filters, kernel, stride = layer
    given = narrow.arrays(dtype, x=(1, channels, size, size), w=(filters, channels, kernel, kernel)) | narrow.vector(
        (filters, 1, 1)
    )
    x, w = (ops.tensor(given[name].shape, dtype, name) for name in "xw")
    summed = narrow.SUMS[dtype]
    op = ops.conv2d(x, w, stride, kernel // 2, out_dtype=summed, acc_dtype=summed)
    if epilogue:
        op = narrow.finished(op, ops.tensor((filters, 1, 1), name="v"), dtype)
    return [
        narrow.ours(op, given, options, ["w"] if constant else []),
        *narrow.conv2d(given["x"], given["w"], given["v"] if epilogue else None, stride, kernel // 2, dtype, constant),
    ]


def _rounded(dtype: str) -> str:
    """The type to which results are rounded, which decides how far two may lie apart; sums of int8 are exact."""
    return "float32" if dtype == "int8" else dtype


def cases() -> Iterator[Case]:
    """Every operator in each type and way."""
    for dtype, (constant, epilogue) in itertools.product(narrow.SUMS, WAYS):
        tail = (" const" if constant else "") + (" + epilogue" if epilogue else "")
        for shape in PRODUCTS:
            m, n, k = shape
            name = f"{dtype} {m}x{n}x{k}{tail}"
            build = partial(product, shape=shape, dtype=dtype, constant=constant, epilogue=epilogue)
            yield Case(name, f"{dtype} products", build, 8 * (m * k + k * n + 4 * m * n), 2.0 * m * n * k, dtype=_rounded(dtype))
        for layer in CONVOLUTIONS:
            channels, size, filters, kernel, stride = layer
            side, depth = -(-size // stride), channels * kernel * kernel
            name = f"{dtype} {channels}x{size}x{size} -> {filters} k{kernel}{tail}"
            build = partial(convolution, layer=layer, dtype=dtype, constant=constant, epilogue=epilogue)
            need = 8 * (channels * size * size + filters * depth + 4 * filters * side * side)
            yield Case(name, f"{dtype} convolutions", build, need, 2.0 * filters * side * side * depth, dtype=_rounded(dtype))


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(report.run("dtypes", cases(), harness.start(__doc__)))
