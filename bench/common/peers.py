"""The sides of a case: roller's, and those of NumPy, SciPy's BLAS, and torch with MKL and oneDNN, each in its good forms.

Operands are NumPy arrays in aligned memory, which torch shares. "charged" forms start from and end in row-major arrays of the
operator's own layout; "converted" ones have their operands converted beforehand and leave the result as it comes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.linalg import blas
from torch.nn import functional

import roller
from bench.common.harness import Array, Side
from roller.plugin import aligned_empty
from roller.runtime.arrays import numpy_dtype

Torch: TypeAlias = Any  # a tensor of torch, which ships its types only with itself
NHWC = torch.channels_last
SEED = 22
torch.set_grad_enabled(False)


def arrays(**shapes: Sequence[int]) -> dict[str, Array]:
    """Random operands in aligned memory, with a mean unlike 0 so that long sums do not cancel."""
    generator = np.random.default_rng(SEED)
    return {name: _random(generator, shape) for name, shape in shapes.items()}


def _random(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    array = empty(shape)
    generator.random(out=array, dtype=np.float32)
    array -= 0.4
    return array


def empty(shape: Sequence[int]) -> Array:
    """Aligned float32 memory."""
    return aligned_empty(tuple(shape), np.dtype("float32"))


def bytes_of(*shapes: Sequence[int]) -> int:
    """Bytes of float32 arrays."""
    return 4 * sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)


def ours(
    op: roller.SymbolicTensor,
    given: Mapping[str, Array],
    options: argparse.Namespace,
    name: str = "roller",
    constants: Sequence[str] = (),
    boundary: bool = True,
    read: Callable[[Any], Array] = np.asarray,
) -> Side:
    """Roller's kernel for the operator; inputs by name."""
    begin = time.perf_counter()
    fixed = {n: given[n] for n in constants}
    kernel = roller.compile(op, device="cpu", threads=options.threads, constants=fixed, measure=options.measure).load()
    about = {
        "compile_s": time.perf_counter() - begin,
        "predicted_s": kernel.estimate.seconds,
        "program": kernel.program.describe(),
    }
    inputs = tuple(given[t.name] for t in kernel.inputs)
    out = aligned_empty(kernel.output.shape, numpy_dtype(kernel.output.dtype))
    return Side(name, lambda: kernel(*inputs, out=out), read, (out,), ours=True, boundary=boundary, about=about)


def of_torch(name: str, call: Callable[[], Torch], out: Array | None = None, boundary: bool = True) -> Side:
    """A torch side; `out` where the call writes to an array of ours."""
    return Side(name, call, _dense, () if out is None else (out,), boundary=boundary)


def _dense(result: Torch) -> Array:
    array: Array = (result.to_dense() if result.is_mkldnn else result).numpy()
    return array


def shared(given: Mapping[str, Array]) -> dict[str, Torch]:
    """Torch tensors over the same memory."""
    return {name: torch.from_numpy(array) for name, array in given.items()}


# --- matrix products -------------------------------------------------------------------------------------------------


def matmul(a: Array, b: Array) -> list[Side]:
    """NumPy and SciPy (OpenBLAS), torch.mm (MKL), oneDNN's inner product; and the last two with b packed beforehand."""
    rows = a.shape[0]
    c, d, e = (empty((rows, b.shape[1])) for _ in range(3))
    x, w, y = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(e)
    linear = torch.ops.mkldnn._linear_pointwise
    arguments: tuple[Any, ...] = (None, "none", [], "")
    columns, c_t, a_t, b_t = w.t().contiguous(), d.T, a.T, b.T
    dense_x, dense_w = x.to_mkldnn(), columns.to_mkldnn()
    packed = torch.ops.mkldnn._reorder_linear_weight(columns, rows)
    mkl = torch.ops.mkl._mkl_reorder_linear_weight(columns, rows)
    return [
        Side("numpy (OpenBLAS)", lambda: np.matmul(a, b, out=c), outs=(c,)),
        Side("scipy (OpenBLAS)", lambda: blas.sgemm(1.0, b_t, a_t, 0.0, c_t, overwrite_c=1), lambda r: r.T, (d,)),
        of_torch("torch.mm (MKL)", lambda: torch.mm(x, w, out=y), e),
        of_torch("oneDNN", lambda: linear(x, w.t(), *arguments)),
        of_torch("oneDNN linear, charged", lambda: functional.linear(x.to_mkldnn(), w.t().contiguous().to_mkldnn()).to_dense()),
        of_torch("oneDNN linear", lambda: functional.linear(dense_x, dense_w), boundary=False),
        of_torch("oneDNN packed", lambda: linear(x, packed, *arguments), boundary=False),
        of_torch("MKL packed", lambda: torch.ops.mkl._mkl_linear(x, mkl, columns, None, rows), boundary=False),
    ]


# --- windows ---------------------------------------------------------------------------------------------------------


def padded(x: Torch, pads: Sequence[int]) -> tuple[Callable[[Torch], Torch], list[int]]:
    """What pads x beforehand, and the padding that torch's operators take: they know only as much at both ends.

    `pads` are top, bottom, left, right.
    """
    top, bottom, left, right = pads
    if (top, left) == (bottom, right):
        return (lambda t: t), [top, left]
    return (lambda t: functional.pad(t, (left, right, top, bottom))), [0, 0]


def layouts(operation: Callable[[Torch], Torch], x: Torch, name: str = "torch") -> list[Side]:
    """An operation on images in NCHW and in NHWC: converted in every call, or beforehand."""
    turned = x.contiguous(memory_format=NHWC)
    return [
        of_torch(f"{name} NCHW", lambda: operation(x)),
        of_torch(f"{name} NHWC, charged", lambda: operation(x.contiguous(memory_format=NHWC)).contiguous()),
        of_torch(f"{name} NHWC", lambda: operation(turned), boundary=False),
    ]


def conv2d(x: Array, w: Array, stride: int, pads: Sequence[int], groups: int = 1) -> list[Side]:
    """torch's convolution (oneDNN, and its own depthwise kernels); weights come with the call."""
    images, weights = torch.from_numpy(x), torch.from_numpy(w)
    pad, padding = padded(images, pads)
    turned, turned_w = images.contiguous(memory_format=NHWC), weights.contiguous(memory_format=NHWC)

    def convolve(t: Torch, k: Torch) -> Torch:
        return functional.conv2d(pad(t), k, None, stride, padding, 1, groups)

    def charged() -> Torch:
        return convolve(images.contiguous(memory_format=NHWC), weights.contiguous(memory_format=NHWC)).contiguous()

    return [
        of_torch("torch NCHW", lambda: convolve(images, weights)),
        of_torch("torch NHWC, charged", charged),
        of_torch("torch NHWC", lambda: convolve(turned, turned_w), boundary=False),
    ]


def conv2d_constant(x: Array, w: Array, stride: int, padding: int) -> list[Side]:
    """The same with weights known beforehand: converted to NHWC, or packed by oneDNN for these very extents."""
    images, weights = torch.from_numpy(x), torch.from_numpy(w)
    turned, turned_w = images.contiguous(memory_format=NHWC), weights.contiguous(memory_format=NHWC)
    window = ([padding] * 2, [stride] * 2, [1, 1], 1)
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(weights.to_mkldnn(), *window, list(x.shape))
    blocked = images.to_mkldnn()
    convolve, pointwise = torch.ops.aten.mkldnn_convolution, torch.ops.mkldnn._convolution_pointwise

    def fused(t: Torch) -> Torch:
        return pointwise(t, packed, None, *window, "none", [], "")

    return [
        of_torch("torch NCHW", lambda: functional.conv2d(images, weights, None, stride, padding)),
        of_torch(
            "torch NHWC, charged",
            lambda: functional.conv2d(images.contiguous(memory_format=NHWC), turned_w, None, stride, padding).contiguous(),
        ),
        of_torch("torch NHWC", lambda: functional.conv2d(turned, turned_w, None, stride, padding), boundary=False),
        of_torch("oneDNN packed, charged", lambda: fused(images).contiguous()),
        of_torch("oneDNN packed NHWC", lambda: fused(turned), boundary=False),
        of_torch("oneDNN blocked, charged", lambda: convolve(images.to_mkldnn(), packed, None, *window).to_dense()),
        of_torch("oneDNN blocked", lambda: convolve(blocked, packed, None, *window), boundary=False),
    ]


def average_pool(x: Array, kernel: int, stride: int, pads: Sequence[int]) -> list[Side]:
    """torch's average pooling; padded zeros count."""
    images = torch.from_numpy(x)
    pad, padding = padded(images, pads)
    return layouts(lambda t: functional.avg_pool2d(pad(t), kernel, stride, padding), images)


def max_pool(x: Array, kernel: int, stride: int, padding: int) -> list[Side]:
    """torch's maximum pooling."""
    return layouts(lambda t: functional.max_pool2d(t, kernel, stride, padding), torch.from_numpy(x))


# --- reductions, elementwise -----------------------------------------------------------------------------------------


def reduce_sum(x: Array, axes: Sequence[int]) -> list[Side]:
    """torch and NumPy."""
    images, where = torch.from_numpy(x), tuple(axes)
    shape = [e for axis, e in enumerate(x.shape) if axis not in where]
    c, d = empty(shape), empty(shape)
    y = torch.from_numpy(d)
    return [
        of_torch("torch", lambda: torch.sum(images, dim=where, out=y), d),
        Side("numpy", lambda: np.sum(x, axis=where, out=c), outs=(c,)),
    ]


def relu(x: Array) -> list[Side]:
    """torch's relu and clamp, NumPy's maximum."""
    images = torch.from_numpy(x)
    c, d = empty(x.shape), empty(x.shape)
    y, zero = torch.from_numpy(d), np.float32(0)
    return [
        of_torch("torch.clamp_min", lambda: torch.clamp_min(images, 0, out=y), d),
        of_torch("torch.relu", lambda: torch.relu(images)),
        Side("numpy", lambda: np.maximum(x, zero, out=c), outs=(c,)),
    ]
