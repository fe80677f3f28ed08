"""The operators of the GPU benchmark, as plain descriptions from which roller's expression and torch's reference are both made.

Nothing here needs roller, torch or NumPy: the same descriptions are read where kernels are built and where they run.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.common.networks import RESNET

DATA = Path(__file__).parent.parent / "data"
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4}
Shape = tuple[int, ...]

PAPER = {"M": "matmul", "C": "conv2d", "D": "depthwise", "E": "elementwise", "P": "pooling", "R": "reduce"}
# Families, the most telling ones first: so run the first cases of each. Afterwards those of a lower tier come first.
TIERS = {
    "fp16 GEMM square": 0,
    "fp16 GEMM turned": 0,
    "fused": 0,
    "fp16 GEMM skinny": 0,
    "paper119 matmul": 1,
    "paper119 conv2d": 1,
    "NHWC fp16": 0,
    "ResNet-50 fp16, batch 64": 1,
    "BERT fp16": 1,
    "rows": 0,
    "int8": 0,
    "reductions fp16": 0,
    "fp16 GEMM ragged": 1,
    "bf16 GEMM square": 1,
    "bf16 GEMM turned": 1,
    "tf32": 1,
    "Fig 15 tensor cores": 1,
    **{f"paper119 {kind}": 1 for kind in ("depthwise", "elementwise", "pooling", "reduce")},
    "fp16 GEMM random": 2,
    "bf16 GEMM skinny": 2,
    "bf16 GEMM ragged": 2,
    "bf16 GEMM random": 2,
    "ResNet-50 fp16, batch 1": 2,
}

# Extents of products, the most telling first.
SQUARES = (4096, 8192, 1024, 2048, 512, 16384)
SKINNY = tuple((m, n, n) for n in (8192, 4096) for m in (1, 16, 128, 64))
RAGGED = ((4095, 4095, 4095), (1000, 1000, 1000), (4096, 50257, 768), (2047, 4097, 1023), (777, 3333, 555))
TURNED = ((4096, 4096, 4096), (1, 8192, 8192), (16, 8192, 8192), (8192, 8192, 1024))
NHWC = (
    (256, 14, 256, 3, 1),
    (64, 56, 64, 3, 1),
    (128, 56, 128, 3, 2),
    (256, 56, 64, 1, 1),
    (3, 224, 64, 7, 2),
    (512, 7, 512, 3, 1),
)
RANDOM, SEED = 8, 1
EPSILON = 1e-5  # of layer norm

# Those whose ten best programs all run: the first choice is compared with the best of them.
TEN = frozenset(
    {
        *("M1", "M3", "C3", "C12", "C27", "D5", "D14", "E4", "P4", "R1", "TC_M4", "TC_M5"),
        *(f"fp16 {n}x{n}x{n}" for n in (1024, 4096, 8192)),
        *("fp16 16x4096x4096", "fp16 4095x4095x4095", "bf16 4096x4096x4096"),
        *("64x64x56x56 -> 64 k3 s1 fp16", "fp16 3072x3072x768 matmul+bias+gelu"),
    }
)


@dataclass(frozen=True)
class Operator:
    """One operator: what kind it is, its inputs by name in order, one element type for all, and what else decides it.

    `options`: `stride`, `pads` (top, bottom, left, right), `kernel` (high, wide), `axes`, `transpose_a`, `transpose_b`; `layout`:
    "NHWC" where images and weights are x (N, H, W, C), w (KH, KW, C, F); `precision`: "tf32" where factors of float32 products may
    be rounded to that.
    """

    id: str
    family: str
    kind: str
    dtype: str
    shapes: Mapping[str, Shape]
    options: Mapping[str, Any] = field(default_factory=dict)
    ten: bool = False

    @property
    def output(self) -> Shape:
        """The result's shape."""
        return _output(self)

    @property
    def out_dtype(self) -> str:
        """The result's element type: sums of products of narrow integers are wider."""
        return "int32" if self.dtype == "int8" else self.dtype

    @property
    def channels_last(self) -> bool:
        """Whether channels are the innermost axis of images."""
        return self.options.get("layout") == "NHWC"

    @property
    def depth(self) -> int:
        """Terms that are summed for one output."""
        match self.kind:
            case "matmul" | "batch_matmul" | "matmul_bias_gelu" | "matmul_bias_residual":
                return self.shapes["a"][-2 if self.options.get("transpose_a") else -1]
            case "conv2d" | "conv_bias_relu" | "depthwise":
                w = self.shapes["w"]
                return math.prod(w[:-1] if self.channels_last else w[1:])
            case "softmax" | "layer_norm":
                return self.shapes["x"][-1]
            case "attention":
                return self.shapes["k"][-2]
            case "avg_pool":
                return int(math.prod(self.options["kernel"]))
            case "reduce_sum":
                return math.prod(self.shapes["x"][a] for a in self.options["axes"])
        return 1

    @property
    def flops(self) -> float:
        """Operations of products and convolutions, a multiply-add as two; 0 for others, whose time is that of their bytes."""
        if self.kind == "attention":
            return 4.0 * math.prod(self.shapes["q"]) * self.shapes["k"][-2]
        return 2.0 * self.depth * math.prod(self.output) if {"w", "b"} & set(self.shapes) else 0.0

    @property
    def factor_dtype(self) -> str:
        """The type in which factors of products may be multiplied."""
        return "tfloat32" if self.options.get("precision") == "tf32" else self.dtype

    @property
    def moved(self) -> int:
        """Bytes of all inputs and of the result."""
        return BYTES[self.dtype] * sum(math.prod(s) for s in self.shapes.values()) + BYTES[self.out_dtype] * math.prod(self.output)

    @property
    def need(self) -> int:
        """Bytes in use at once: everything twice in the operator's type (another layout, another library's result), and once in
        float64 (the reference, its bound)."""
        return 2 * self.moved + 8 * self.moved // BYTES[self.dtype] + 16 * math.prod(self.output)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def from_json(table: Mapping[str, Any]) -> Operator:
    """The operator that `to_json` described."""
    shapes = {name: tuple(shape) for name, shape in table["shapes"].items()}
    return Operator(**{**table, "shapes": shapes})


def _output(op: Operator) -> Shape:
    s, o = op.shapes, op.options
    match op.kind:
        case "matmul" | "matmul_bias_gelu" | "matmul_bias_residual" | "batch_matmul":
            return *s["a"][:-2], s["a"][-1 if o.get("transpose_a") else -2], s["b"][-2 if o.get("transpose_b") else -1]
        case "conv2d" | "conv_bias_relu" if op.channels_last:
            return s["x"][0], *_windows(s["x"][1:3], s["w"][:2], o), s["w"][3]
        case "conv2d" | "conv_bias_relu" | "depthwise":
            return s["x"][0], s["w"][0], *_windows(s["x"][2:], s["w"][2:], o)
        case "avg_pool" | "max_pool":
            return *s["x"][:2], *_windows(s["x"][2:], tuple(o["kernel"]), o)
        case "reduce_sum":
            return tuple(e for axis, e in enumerate(s["x"]) if axis not in o["axes"])
        case "transpose":
            return tuple(s["x"][axis] for axis in o["axes"])
        case "relu" | "gelu" | "add" | "scale_bias_relu" | "softmax" | "layer_norm":
            return s["x"]
        case "attention":
            return *s["q"][:2], s["v"][2]
    raise ValueError(f"{op.id}: no kind of operator is called {op.kind!r}")


def _windows(size: Shape, kernel: Shape, options: Mapping[str, Any]) -> Shape:
    top, bottom, left, right = options["pads"]
    high = (size[0] + top + bottom - kernel[0]) // options["stride"] + 1
    wide = (size[1] + left + right - kernel[1]) // options["stride"] + 1
    return high, wide


# --- which operators -------------------------------------------------------------------------------------------------


def operators() -> list[Operator]:
    """All of them in the order in which they run; ids are unique."""
    halves = (o for short in ("fp16", "bf16") for o in (*products(short), *turned(short)))
    found = (
        *paper(),
        *tensor_core(),
        *halves,
        *integers(),
        *rounded(),
        *resnet(),
        *channels_last(),
        *bert(),
        *rows(),
        *sums(),
        *chains(),
    )
    return ordered([Operator(o.id, o.family, o.kind, o.dtype, o.shapes, o.options, o.id in TEN) for o in found])


def ordered(found: list[Operator]) -> list[Operator]:
    """The first of each family, the most telling families first; then by tier, and within a tier so that wherever one stops about
    the same share of every family is done.
    """
    places: dict[str, int] = {}
    sizes = {f: sum(o.family == f for o in found) for f in {o.family for o in found}}
    rank = {family: n for n, family in enumerate(TIERS)}
    keys = {}
    for op in found:
        place = places[op.family] = places.get(op.family, 0) + 1
        later = (TIERS[op.family], (place - 0.5) / sizes[op.family])
        keys[op.id] = (0, rank[op.family], 0.0) if place == 1 else (1, *later)
    return sorted(found, key=lambda op: keys[op.id])


def paper() -> Iterator[Operator]:
    """The 119 operators of ROLLER's evaluation."""
    with (DATA / "ops119.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield _of_row(row, f"paper119 {PAPER[row['id'][0]]}", "float32")


def tensor_core() -> Iterator[Operator]:
    """The products of its figure 15; here they add up in float32, as libraries do."""
    with (DATA / "ops_other.csv").open(newline="", encoding="utf-8") as file:
        yield from (_of_row(row, "Fig 15 tensor cores", row["dtype"]) for row in csv.DictReader(file) if row["figure"] == "Fig15")


def _of_row(row: Mapping[str, str], family: str, dtype: str) -> Operator:
    """An operator from a row of the paper's tables."""
    name, kind = row["id"], row["kind"]
    if kind == "matmul":
        m, n, k = (int(row[c]) for c in "MNK")
        return Operator(name, family, kind, dtype, {"a": (m, k), "b": (k, n)})
    x = tuple(int(row[c]) for c in ("batch", "in_channels", "height", "width") if row[c])
    if kind == "elementwise_relu":
        return Operator(name, family, "relu", dtype, {"x": x})
    if kind == "reduce_sum":
        return Operator(name, family, kind, dtype, {"x": x}, {"axes": [int(a) for a in row["reduce_axes"].split()]})
    kernel, stride = (int(row["kernel_h"]), int(row["kernel_w"])), int(row["stride"])
    options: dict[str, Any] = {"stride": stride, "pads": _same(x[2:], kernel, stride) if row["padding"] == "SAME" else [0] * 4}
    if kind == "pool_avg":
        return Operator(name, family, "avg_pool", dtype, {"x": x}, {**options, "kernel": list(kernel)})
    depthwise = kind == "depthwise_conv2d"
    weights = (x[1], 1, *kernel) if depthwise else (int(row["out_channels"]), x[1], *kernel)
    return Operator(name, family, "depthwise" if depthwise else kind, dtype, {"x": x, "w": weights}, options)


def _same(sizes: Shape, kernel: Shape, stride: int) -> list[int]:
    """Top, bottom, left, right of TensorFlow's padding: the odd element lies at the end."""
    found = []
    for size, extent in zip(sizes, kernel, strict=True):
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        found += [total // 2, total - total // 2]
    return found


def products(short: str) -> Iterator[Operator]:
    """Matrix products in half precision: squares, few rows, extents that no tile divides, and log-uniform random ones."""
    dtype = {"fp16": "float16", "bf16": "bfloat16"}[short]
    drawn = random.Random(SEED)
    some = [tuple(int(math.exp(drawn.uniform(math.log(32), math.log(8192)))) for _ in "mnk") for _ in range(RANDOM)]
    shapes = {"square": tuple((n, n, n) for n in SQUARES), "skinny": SKINNY, "ragged": RAGGED, "random": tuple(some)}
    for group, cases in shapes.items():
        for m, n, k in cases:
            yield Operator(f"{short} {m}x{n}x{k}", f"{short} GEMM {group}", "matmul", dtype, {"a": (m, k), "b": (k, n)})


def _turned(prefix: str, family: str, dtype: str, extents: tuple[int, int, int], turns: str) -> Operator:
    """A product whose operands lie as BLAS's letters say: "NT" is `torch.nn.Linear`, whose weights are (n, k)."""
    m, n, k = extents
    flags = {f"transpose_{name}": True for name, turn in zip("ab", turns, strict=True) if turn == "T"}
    shapes = {"a": (k, m) if turns[0] == "T" else (m, k), "b": (n, k) if turns[1] == "T" else (k, n)}
    return Operator(f"{prefix} {m}x{n}x{k} {turns}", family, "matmul", dtype, shapes, flags)


def turned(short: str) -> Iterator[Operator]:
    """Products whose operands do not lie as rows of the left and columns of the right one ("NN", which `products` has)."""
    dtype = {"fp16": "float16", "bf16": "bfloat16"}[short]
    for extents in TURNED:
        yield _turned(short, f"{short} GEMM turned", dtype, extents, "NT")
    for turns in ("TN", "TT"):
        yield _turned(short, f"{short} GEMM turned", dtype, TURNED[0], turns)


def integers() -> Iterator[Operator]:
    """Products of int8 that add up in int32."""
    for extents, turns in (
        ((4096,) * 3, "NT"),
        ((4096,) * 3, "NN"),
        ((8192,) * 3, "NT"),
        ((16, 8192, 8192), "NT"),
        ((1000,) * 3, "NN"),
    ):
        yield _turned("int8", "int8", "int8", extents, turns)


def rounded() -> Iterator[Operator]:
    """Products of float32 values that tensor cores may round to tf32: squares, one with both operands along the reduction, and a
    convolution.
    """
    family, permitted = "tf32", {"precision": "tf32"}
    for n in (4096, 1024, 8192):
        yield Operator(f"tf32 {n}x{n}x{n}", family, "matmul", "float32", {"a": (n, n), "b": (n, n)}, permitted)
    a, b = (1, 4096, 4096), (1, 4096, 4096)
    options = {**permitted, "transpose_b": True}
    yield Operator("tf32 4096x4096x4096, b turned", family, "batch_matmul", "float32", {"a": a, "b": b}, options)
    shapes = {"x": (64, 128, 28, 28), "w": (128, 128, 3, 3)}
    options = {**permitted, "stride": 1, "pads": [1] * 4}
    yield Operator("64x128x28x28 -> 128 k3 s1 tf32", family, "conv2d", "float32", shapes, options)


def resnet() -> Iterator[Operator]:
    """ResNet-50's distinct convolutions and its first pooling, at two sizes of the batch."""
    for batch in (64, 1):
        family = f"ResNet-50 fp16, batch {batch}"
        for channels, size, filters, kernel, stride in RESNET:
            name = f"{batch}x{channels}x{size}x{size} -> {filters} k{kernel} s{stride} fp16"
            shapes = {"x": (batch, channels, size, size), "w": (filters, channels, kernel, kernel)}
            yield Operator(name, family, "conv2d", "float16", shapes, {"stride": stride, "pads": [kernel // 2] * 4})
        options = {"kernel": [3, 3], "stride": 2, "pads": [1] * 4}
        yield Operator(f"max pool {batch}x64x112x112 fp16", family, "max_pool", "float16", {"x": (batch, 64, 112, 112)}, options)


def channels_last() -> Iterator[Operator]:
    """Convolutions of ResNet-50 with channels innermost: the 3 x 3 ones, a strided one, the first, and one of 1 x 1."""
    family = "NHWC fp16"
    for c, size, f, kernel, stride in NHWC:
        name = f"NHWC 64x{size}x{size}x{c} -> {f} k{kernel} s{stride} fp16"
        shapes = {"x": (64, size, size, c), "w": (kernel, kernel, c, f)}
        options = {"stride": stride, "pads": [kernel // 2] * 4, "layout": "NHWC"}
        yield Operator(name, family, "conv2d", "float16", shapes, options)


def rows() -> Iterator[Operator]:
    """What reduces rows more than once: softmax, layer norm, attention (heads, sequence, depth of a head)."""
    family = "rows"
    for dtype, short in (("float16", "fp16"), ("float32", "fp32")):
        yield Operator(f"softmax 8192x4096 {short}", family, "softmax", dtype, {"x": (8192, 4096)})
        shapes = {"x": (16384, 1024), "scale": (1024,), "bias": (1024,)}
        yield Operator(f"layer norm 16384x1024 {short}", family, "layer_norm", dtype, shapes)
    for heads, length, depth in ((96, 384, 64), (32, 2048, 128)):
        shapes = dict.fromkeys("qkv", (heads, length, depth))
        yield Operator(f"attention {heads}x{length}x{depth} fp16", family, "attention", "float16", shapes)


def sums() -> Iterator[Operator]:
    """Sums of halves along rows, along columns, and of everything."""
    for shape, axes in (((65536, 1024), [1]), ((65536, 1024), [0]), ((16, 1 << 22), [1]), ((64, 256, 56, 56), [2, 3])):
        name = f"sum {'x'.join(map(str, shape))} over {','.join(map(str, axes))} fp16"
        yield Operator(name, "reductions fp16", "reduce_sum", "float16", {"x": shape}, {"axes": axes})


def bert() -> Iterator[Operator]:
    """The operators of a layer of BERT-base and BERT-large: batch 8, sequences of 384."""
    batch, length = 8, 384
    rows, family = batch * length, "BERT fp16"
    for hidden, heads in ((768, 12), (1024, 16)):
        per, inner = hidden // heads, 4 * hidden
        for name, n, k in (("projection", hidden, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            yield Operator(f"{name} {rows}x{n}x{k} fp16", family, "matmul", "float16", {"a": (rows, k), "b": (k, n)})
        q, p = (batch * heads, length, per), (batch * heads, length, length)
        yield Operator(f"scores {q} fp16", family, "batch_matmul", "float16", {"a": q, "b": q}, {"transpose_b": True})
        yield Operator(f"context {p} fp16", family, "batch_matmul", "float16", {"a": p, "b": q})
        x = (batch, length, heads, per)
        yield Operator(f"heads {x} fp16", family, "transpose", "float16", {"x": x}, {"axes": [0, 2, 1, 3]})
        yield Operator(f"residual {rows}x{hidden} fp16", family, "add", "float16", {"x": (rows, hidden), "y": (rows, hidden)})
        yield Operator(f"gelu {rows}x{inner} fp16", family, "gelu", "float16", {"x": (rows, inner)})


def chains() -> Iterator[Operator]:
    """Products and convolutions with what is fused into them, and a chain that only moves data."""
    rows = 8 * 384
    for m, n, k in ((rows, 3072, 768), (rows, 4096, 1024), (128, 4096, 1024), (16, 3072, 768)):
        name, shapes = f"fp16 {m}x{n}x{k} matmul+bias+gelu", {"a": (m, k), "b": (k, n), "bias": (n,)}
        yield Operator(name, "fused", "matmul_bias_gelu", "float16", shapes)
    for m, n, k in ((rows, 768, 3072), (rows, 1024, 4096), (128, 1024, 4096), (rows, 768, 768)):
        name, shapes = f"fp16 {m}x{n}x{k} matmul+bias+residual", {"a": (m, k), "b": (k, n), "bias": (n,), "residual": (m, n)}
        yield Operator(name, "fused", "matmul_bias_residual", "float16", shapes)
    for c, size, f, kernel, stride in ((64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (256, 56, 64, 1, 1)):
        name = f"64x{c}x{size}x{size} -> {f} k{kernel} s{stride} fp16 conv+bias+relu"
        shapes = {"x": (64, c, size, size), "w": (f, c, kernel, kernel), "bias": (f, 1, 1)}
        yield Operator(name, "fused", "conv_bias_relu", "float16", shapes, {"stride": stride, "pads": [kernel // 2] * 4})
    for dtype, short in (("float32", "fp32"), ("float16", "fp16")):
        x = (64, 256, 56, 56)
        shapes = {"x": x, "scale": (256, 1, 1), "bias": (256, 1, 1)}
        yield Operator(f"{short} 64x256x56x56 scale+bias+relu", "fused", "scale_bias_relu", dtype, shapes)
