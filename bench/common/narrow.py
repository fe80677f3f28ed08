"""The sides of products and convolutions of narrow types: roller's, torch's and oneDNN's, each in its good forms.

Results have the operands' type, as the libraries' have; those of int8 are int32, or float32 after an epilogue. The epilogue of int8
multiplies by a scale a column (dequantisation), that of other types adds a bias; relu follows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.common import peers
from bench.common.harness import Array, Side
from bench.common.peers import NHWC, Torch
from roller import SymbolicTensor, ops
from roller.plugin import aligned_empty
from roller.runtime.arrays import numpy_dtype

SUMS = {"int8": "int32", "bfloat16": "float32", "float16": "float32"}
SEED, LARGEST = 22, 100


def arrays(dtype: str, **shapes: Sequence[int]) -> dict[str, Array]:
    """Random operands in aligned memory."""
    generator, found = np.random.default_rng(SEED), {}
    for name, shape in shapes.items():
        found[name] = aligned_empty(tuple(shape), numpy_dtype(dtype))
        drawn = generator.integers(-LARGEST, LARGEST, shape) if dtype == "int8" else generator.random(shape, np.float32) - 0.4
        found[name][...] = drawn.astype(numpy_dtype(dtype))
    return found


def vector(shape: tuple[int, ...]) -> dict[str, Array]:
    """A scale or bias for each column or channel."""
    found = aligned_empty(shape, np.dtype("float32"))
    np.random.default_rng(SEED).random(out=found, dtype=np.float32)
    return {"v": found}


def finished(op: SymbolicTensor, v: SymbolicTensor, dtype: str) -> SymbolicTensor:
    """The operator with its epilogue."""
    return ops.relu(ops.cast(op, "float32") * v if dtype == "int8" else op + v)


def ours(op: SymbolicTensor, given: Mapping[str, Array], options: argparse.Namespace, constants: Sequence[str]) -> Side:
    """Roller's kernel; results of bfloat16 and float16 operands in their type."""
    dtype = str(next(iter(given.values())).dtype)
    op = op if dtype == "int8" else ops.cast(op, dtype)
    return peers.ours(op, given, options, constants=constants, read=_wide)


def _wide(result: Any) -> Array:
    array: Array = result.float().numpy() if isinstance(result, torch.Tensor) else np.asarray(result).astype(np.float32)
    return array


def _torch(array: Array) -> Torch:
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == numpy_dtype("bfloat16")
        else torch.from_numpy(array)
    )


def _side(name: str, call: Callable[[], Torch], boundary: bool = True) -> Side:
    return Side(name, call, _wide, boundary=boundary)


def _epilogue(v: Torch | None, dtype: str, shape: tuple[int, ...]) -> Callable[[Torch], Torch]:
    if v is None:
        return lambda result: result
    if dtype == "int8":
        return lambda result: torch.relu_(result.float().mul_(v.view(shape)))
    return lambda result: torch.relu_(result.add_(v.view(shape).to(result.dtype)))


def matmul(a: Array, b: Array, v: Array | None, dtype: str, constant: bool) -> list[Side]:
    """torch.mm and torch._int_mm, and oneDNN's inner product with weights packed in the call, or beforehand where constant."""
    x, w, more = _torch(a), _torch(b), None if v is None else torch.from_numpy(v)
    finish, columns = _epilogue(more, dtype, (1, -1)), _torch(b).t().contiguous()
    if dtype == "int8":
        scale = torch.ones(b.shape[1]) if more is None else more
        zero, post = torch.zeros(b.shape[1], dtype=torch.int32), "none" if more is None else "relu"

        shifted = x.view(torch.uint8) ^ 128  # of signed operands oneDNN has a reference implementation only, of seconds

        def inner(given: Torch, packed: Torch) -> Torch:
            return torch.ops.onednn.qlinear_pointwise(
                given, 1.0, 128, packed, scale, zero, None, 1.0, 0, torch.float32, post, [], ""
            )

        def pack() -> Torch:
            return torch.ops.onednn.qlinear_prepack(w.t().contiguous(), list(a.shape))

        packed = pack()
        sides = [
            _side("torch._int_mm", lambda: finish(torch._int_mm(x, w))),
            _side("oneDNN, charged", lambda: inner(x.view(torch.uint8) ^ 128, packed if constant else pack())),
        ]
        turned = [
            _side("torch._int_mm, turned", lambda: finish(torch._int_mm(x, columns.t()))),
            _side("oneDNN packed", lambda: inner(shifted, packed), boundary=False),
        ]
        return sides + turned if constant else sides
    bias, post = None if more is None else more.to(x.dtype), "none" if more is None else "relu"
    linear = torch.ops.mkldnn._linear_pointwise
    sides = [_side("torch.mm", lambda: finish(torch.mm(x, w))), _side("oneDNN", lambda: linear(x, w.t(), bias, post, [], ""))]
    if not constant:
        return sides
    sides.append(_side("torch.linear", lambda: finish(functional.linear(x, columns))))
    try:
        reordered = torch.ops.mkldnn._reorder_linear_weight(columns, a.shape[0])
    except RuntimeError:  # this CPU lacks the type
        return sides
    return [*sides, _side("oneDNN packed", lambda: linear(x, reordered, bias, post, [], ""))]


def conv2d(x: Array, w: Array, v: Array | None, stride: int, padding: int, dtype: str, constant: bool) -> list[Side]:
    """torch's convolution in NCHW and NHWC, and oneDNN's with weights packed in the call, or beforehand where constant."""
    images, weights, more = _torch(x), _torch(w), None if v is None else torch.from_numpy(v).flatten()
    window, post = ([stride] * 2, [padding] * 2, [1, 1], 1), "none" if more is None else "relu"
    if dtype == "int8":
        scale = torch.ones(w.shape[0]) if more is None else more
        zero, shifted = torch.zeros(w.shape[0], dtype=torch.int32), (images.view(torch.uint8) ^ 128).contiguous(memory_format=NHWC)

        def pack() -> Torch:
            return torch.ops.onednn.qconv_prepack(weights, scale, 1.0, 128, *window, list(x.shape))

        def convolve(given: Torch, packed: Torch) -> Torch:
            return torch.ops.onednn.qconv2d_pointwise(
                given, 1.0, 128, packed, scale, zero, None, *window, 1.0, 0, torch.float32, post, [], ""
            )

        def in_order(packed: Torch) -> Torch:
            return convolve(images.view(torch.uint8) ^ 128, packed).contiguous()

        ready = pack()
        free = _side("oneDNN NHWC", lambda: convolve(shifted, ready), boundary=False)
        return [_side("oneDNN, charged", lambda: in_order(ready if constant else pack())), free]
    finish, turned, turned_w = (
        _epilogue(more, dtype, (1, -1, 1, 1)),
        images.contiguous(memory_format=NHWC),
        weights.contiguous(memory_format=NHWC),
    )

    def torchs(given: Torch, kernel: Torch) -> Torch:
        return finish(functional.conv2d(given, kernel, None, stride, padding))

    def charged() -> Torch:
        kernel = turned_w if constant else weights.contiguous(memory_format=NHWC)
        return torchs(images.contiguous(memory_format=NHWC), kernel).contiguous()

    sides = [
        _side("torch NCHW", lambda: torchs(images, weights)),
        _side("torch NHWC, charged", charged),
        _side("torch NHWC", lambda: torchs(turned, turned_w), boundary=False),
    ]
    if not constant or dtype == "float16":
        return sides
    bias, pointwise = None if more is None else more.to(images.dtype), torch.ops.mkldnn._convolution_pointwise
    order = [padding] * 2, [stride] * 2, [1, 1], 1
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(weights.to_mkldnn(), *order, list(x.shape))
    return [
        *sides,
        _side("oneDNN packed, charged", lambda: pointwise(images, packed, bias, *order, post, [], "").contiguous()),
        _side("oneDNN packed NHWC", lambda: pointwise(turned, packed, bias, *order, post, [], ""), boundary=False),
    ]
