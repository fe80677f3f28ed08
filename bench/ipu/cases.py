"""What is compared on the simulated IPUs: products, convolutions, windows, sums, element by element; and drawn operators."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from roller import ops
from roller.ops import SymbolicTensor

SEED, DRAWN = 0, 20
HALF, SINGLE = "float16", "float32"


@dataclass(frozen=True)
class Case:
    """One operator: its name, its family, and how to build it."""

    name: str
    family: str
    build: Callable[[], SymbolicTensor]


def product(rows: int, columns: int, depth: int, dtype: str) -> SymbolicTensor:
    """Rows times weights, added up in the operands' type."""
    return ops.matmul(ops.tensor((rows, depth), dtype, "a"), ops.tensor((depth, columns), dtype, "b"), acc_dtype=dtype)


def batched(batch: int, rows: int, columns: int, depth: int, dtype: str) -> SymbolicTensor:
    """Products side by side."""
    a, b = ops.tensor((batch, rows, depth), dtype, "a"), ops.tensor((batch, depth, columns), dtype, "b")
    return ops.batch_matmul(a, b, acc_dtype=dtype)


def convolution(
    images: int, channels: int, size: int, filters: int, kernel: int, stride: int, dtype: str = SINGLE
) -> SymbolicTensor:
    """Square images, padded so that a stride of 1 keeps their size."""
    x = ops.tensor((images, channels, size, size), dtype, "x")
    w = ops.tensor((filters, channels, kernel, kernel), dtype, "w")
    return ops.conv2d(x, w, stride, kernel // 2, acc_dtype=dtype)


def depthwise(images: int, channels: int, size: int, kernel: int, stride: int) -> SymbolicTensor:
    """One filter a channel, padded alike."""
    x, w = ops.tensor((images, channels, size, size), name="x"), ops.tensor((channels, 1, kernel, kernel), name="w")
    return ops.depthwise_conv2d(x, w, stride, kernel // 2)


PRODUCTS = {  # rows, columns, depth
    "square": ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048)),
    "skinny": ((4, 4096, 4096), (16, 4096, 4096), (4096, 16, 4096), (64, 64, 16384), (4096, 4096, 64), (8, 8192, 2048)),
    "layers": ((384, 768, 768), (384, 3072, 768), (384, 768, 3072), (128, 1000, 2048)),
    "ragged": ((1000, 1000, 1000), (333, 556, 778), (509, 1021, 257), (729, 1152, 4304)),
}
BATCHED = ((12, 384, 384, 64, HALF), (16, 729, 729, 72, HALF), (48, 128, 128, 64, SINGLE), (8, 256, 64, 256, SINGLE))
CONVOLUTIONS = (  # images, channels, size, filters, kernel, stride
    (1, 64, 56, 64, 3, 1), (1, 64, 56, 256, 1, 1), (1, 256, 56, 64, 1, 1), (1, 128, 28, 128, 3, 1), (1, 128, 56, 128, 3, 2),
    (1, 256, 14, 256, 3, 1), (1, 1024, 14, 256, 1, 1), (1, 512, 7, 512, 3, 1), (4, 64, 56, 64, 3, 1), (1, 3, 224, 64, 7, 2),
)  # fmt: skip
DEPTHWISE = ((1, 32, 112, 3, 1), (1, 144, 56, 3, 2), (1, 384, 14, 3, 1), (1, 960, 7, 3, 1), (4, 256, 28, 5, 1))


def cases() -> list[Case]:
    """All of them, family by family, drawn ones last."""
    found = [
        Case(f"{kind} {r}x{c}x{d} {dtype}", "gemm", lambda r=r, c=c, d=d, t=dtype: product(r, c, d, t))  # type: ignore[misc]
        for dtype in (HALF, SINGLE)
        for kind, shapes in PRODUCTS.items()
        for r, c, d in shapes
    ]
    found += [Case("x".join(map(str, s)), "batch_matmul", lambda s=s: batched(*s)) for s in BATCHED]  # type: ignore[misc]
    found += [Case(_window(s), "conv", lambda s=s: convolution(*s)) for s in CONVOLUTIONS]  # type: ignore[misc]
    found += [Case(_window((*s[:3], *s[3:])), "depthwise", lambda s=s: depthwise(*s)) for s in DEPTHWISE]  # type: ignore[misc]
    return [*found, *plain(), *drawn(DRAWN)]


def _window(shape: tuple[int, ...]) -> str:
    images, channels, size, *rest = shape
    return f"{images}x{channels}x{size}x{size}, " + " ".join(map(str, rest))


def plain() -> list[Case]:
    """Pooling, sums, element by element."""

    def of(*shape: int, dtype: str = SINGLE) -> SymbolicTensor:
        return ops.tensor(shape, dtype, "x")

    pooling: dict[str, Callable[[], SymbolicTensor]] = {
        "max 3 of 64x112x112, stride 2": lambda: ops.max_pool2d(of(1, 64, 112, 112), (3, 3), 2, 1),
        "max 2 of 8x64x56x56": lambda: ops.max_pool2d(of(8, 64, 56, 56), (2, 2)),
        "mean 7 of 2048x7x7": lambda: ops.avg_pool2d(of(1, 2048, 7, 7), (7, 7)),
        "mean 3 of 4x192x28x28, stride 1": lambda: ops.avg_pool2d(of(4, 192, 28, 28), (3, 3), 1, 1),
    }
    reduce: dict[str, Callable[[], SymbolicTensor]] = {
        "sum of rows 1024x1024": lambda: ops.reduce_sum(of(1024, 1024), (1,)),
        "sum of columns 1024x1024": lambda: ops.reduce_sum(of(1024, 1024), (0,)),
        "sum of rows 64x65536": lambda: ops.reduce_sum(of(64, 65536), (1,)),
        "sum of rows 65536x64": lambda: ops.reduce_sum(of(65536, 64), (1,)),
        "mean of images 16x128x56x56": lambda: ops.reduce_mean(of(16, 128, 56, 56), (2, 3)),
        "greatest of rows 512x2000": lambda: ops.reduce_max(of(512, 2000), (1,)),
        "sum of halves 4096x512": lambda: ops.reduce_sum(of(4096, 512, dtype=HALF), (1,)),
    }
    elementwise: dict[str, Callable[[], SymbolicTensor]] = {
        "relu 4096x1024": lambda: ops.relu(of(4096, 1024)),
        "relu 8x8": lambda: ops.relu(of(8, 8)),
        "relu 1000x1001": lambda: ops.relu(of(1000, 1001)),
        "add halves 1024x1024": lambda: of(1024, 1024, dtype=HALF) + ops.tensor((1024, 1024), HALF, "y"),
        "add a row 512x3072": lambda: of(512, 3072) + ops.tensor((3072,), SINGLE, "y"),
        "multiply by a column 512x3072": lambda: of(512, 3072) * ops.tensor((512, 1), SINGLE, "y"),
        "gelu 384x3072": lambda: ops.gelu(of(384, 3072)),
        "exp halves 729x1152": lambda: ops.exp(of(729, 1152, dtype=HALF)),
    }
    families = {"pooling": pooling, "reduce": reduce, "elementwise": elementwise}
    return [Case(name, family, build) for family, made in families.items() for name, build in made.items()]


def drawn(count: int) -> list[Case]:
    """Operators drawn with a fixed seed, kinds in turn."""
    chance = random.Random(SEED)
    kinds = (_any_product, _halves, _thin, _images, _rows)
    return [kinds[number % len(kinds)](chance) for number in range(count)]


def _extent(chance: random.Random, low: int, high: int) -> int:
    """A number between two, spread evenly over orders of magnitude."""
    return max(1, round(math.exp(chance.uniform(math.log(low), math.log(high)))))


def _drawn(kind: str, rows: int, columns: int, depth: int, dtype: str) -> Case:
    return Case(f"drawn {kind} {rows}x{columns}x{depth} {dtype}", "gemm", lambda: product(rows, columns, depth, dtype))


def _any_product(chance: random.Random) -> Case:
    rows, columns, depth = (_extent(chance, 16, 3000) for _ in range(3))
    return _drawn("product", rows, columns, depth, SINGLE)


def _halves(chance: random.Random) -> Case:
    rows, columns, depth = (8 * _extent(chance, 2, 400) for _ in range(3))
    return _drawn("product", rows, columns, depth, HALF)


def _thin(chance: random.Random) -> Case:
    rows, columns = _extent(chance, 1, 24), 4 * _extent(chance, 64, 1024)
    if chance.random() < 0.5:
        rows, columns = columns, rows
    return _drawn("thin", rows, columns, 8 * _extent(chance, 32, 512), chance.choice((SINGLE, HALF)))


def _images(chance: random.Random) -> Case:
    shape = chance.choice((1, 2, 4)), 4 * _extent(chance, 4, 64), _extent(chance, 7, 56), 4 * _extent(chance, 4, 64)
    kernel = chance.choice((1, 3))
    return Case("drawn " + _window((*shape, kernel, 1)), "conv", lambda: convolution(*shape, kernel, 1))


def _rows(chance: random.Random) -> Case:
    shape, axis = (_extent(chance, 30, 5000), _extent(chance, 30, 5000)), chance.choice((0, 1))
    name = f"drawn sum over {'rows' if axis else 'columns'} {shape[0]}x{shape[1]}"
    return Case(name, "reduce", lambda: ops.reduce_sum(ops.tensor(shape, name="x"), (axis,)))
