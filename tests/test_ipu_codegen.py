"""Operators of every kind on the simulated IPU: execution, the slow interpreter and the estimate agree, and the numbers are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest
from ipu_programs import BOW, CHIPS, agrees, interpreted

import roller
from roller import ops, verify
from roller.errors import ConstructionError
from roller.ops import SymbolicTensor
from roller_ipu_sim.codegen import AGAIN, manifest_of
from roller_ipu_sim.manifest import Exchange, Manifest, from_json

FEW = CHIPS[2]  # five tiles


def t(*shape: int, dtype: str = "float32", name: str | None = None) -> SymbolicTensor:
    return ops.tensor(shape, dtype, name)


def softmax(x: SymbolicTensor) -> SymbolicTensor:
    raised = ops.exp(x - ops.reduce_max(x, 1, keepdims=True))
    return raised / ops.reduce_sum(raised, 1, keepdims=True)


def layer_norm(x: SymbolicTensor, scale: SymbolicTensor, shift: SymbolicTensor) -> SymbolicTensor:
    centred = x - ops.reduce_mean(x, 1, keepdims=True)
    variance = ops.reduce_mean(centred * centred, 1, keepdims=True)
    return centred * ops.rsqrt(variance + 1e-5) * scale + shift


def twice(x: SymbolicTensor) -> SymbolicTensor:
    return ops.matmul(x, x, transpose_b=True) + ops.matmul(x, x, transpose_b=True)


OPERATORS: dict[str, Callable[[], SymbolicTensor]] = {
    "softmax": lambda: softmax(t(12, 20)),
    "softmax in half precision": lambda: softmax(t(12, 20, dtype="float16")),
    "two products": lambda: ops.matmul(ops.relu(ops.matmul(t(20, 24), t(24, 16))), t(16, 12)),
    "two products in half precision": lambda: ops.matmul(
        ops.relu(ops.matmul(t(20, 32, dtype="float16"), t(32, 16, dtype="float16"))), t(16, 20, dtype="float16")
    ),
    "layer norm": lambda: layer_norm(t(10, 24), t(24), t(24)),
    "a product and its neighbour's sum": lambda: ops.matmul(t(9, 8), t(8, 16)) + ops.reduce_sum(t(9, 5), 1, keepdims=True),
    "grouped convolution": lambda: ops.conv2d(t(1, 8, 6, 6), t(12, 4, 3, 3), groups=2, padding=1),
    "depthwise convolution": lambda: ops.depthwise_conv2d(t(1, 6, 7, 7), t(6, 2, 3, 3), stride=2),
    "convolution with channels last": lambda: ops.conv2d(
        t(1, 6, 6, 16, dtype="float16"), t(3, 3, 16, 16, dtype="float16"), layout="NHWC"
    ),
    "pooling": lambda: ops.max_pool2d(t(1, 4, 7, 7), (3, 3), stride=2, padding=1),
    "average pooling": lambda: ops.avg_pool2d(t(1, 4, 7, 7), (3, 3), stride=2, padding=1),
    "broadcast rows and columns": lambda: t(9, 1) * t(1, 10) + t(10),
    "broadcast whole": lambda: ops.broadcast_to(t(1, 7), (5, 7)) + t(5, 7),
    "transposed": lambda: ops.transpose(t(9, 6, 4), (2, 0, 1)),
    "padded": lambda: ops.pad(t(5, 7), [(1, 2), (0, 3)], 2),
    "average at the border": lambda: ops.avg_pool2d(t(1, 2, 5, 6), (3, 3), padding=1, count_include_pad=False),
    "nothing to add up": lambda: ops.reduce_sum(t(6, 0), 1),
    "nothing to multiply": lambda: ops.matmul(t(6, 0), t(0, 5)),
    "no results": lambda: ops.matmul(t(0, 6), t(6, 5)),
    "nothing in between": lambda: ops.matmul(ops.relu(ops.matmul(t(4, 6), t(6, 0))), t(0, 5)),
    "a scalar": lambda: ops.relu(t()),
    "a scalar of everything": lambda: ops.reduce_sum(t(30, 40), (0, 1)),
    "a scalar in half precision": lambda: ops.reduce_max(t(30, 40, dtype="float16"), (0, 1)) + t(dtype="float16"),
    "one input in two roles": lambda: (lambda x: ops.matmul(x, x, transpose_b=True))(t(16, 16)),
    "one input in three roles": lambda: (lambda x: ops.matmul(x, x) + x)(t(16, 16)),
    "one input in two stages": lambda: twice(t(8, 16)),
    "whole numbers": lambda: ops.matmul(t(9, 17, dtype="int8"), t(17, 12, dtype="int8")),
    "conditions": lambda: (lambda x: ops.where(x > t(6, 8), x, t(8)))(t(6, 8)),
}


def compiled(make: Callable[[], SymbolicTensor]) -> roller.Kernel:
    return roller.compile(make(), device="ipu_sim", spec=FEW, top_k=3)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_interpreter_agrees(name: str) -> None:
    kernel = compiled(OPERATORS[name])
    arrays = verify.random_inputs(kernel.expr, 3)
    for candidate in kernel.candidates[:2]:
        manifest, _ = agrees(FEW, candidate.program, candidate.estimate, 3, False)
        interpreted(FEW, manifest, arrays)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_whole_chip_agrees(name: str) -> None:
    kernel = roller.compile(OPERATORS[name](), device="ipu_sim", top_k=3)
    for candidate in kernel.candidates:
        agrees(BOW, candidate.program, candidate.estimate, 4, True)


def manifest_for(operator: SymbolicTensor) -> Manifest:
    return from_json(roller.compile(operator, device="ipu_sim").source)


def homes(manifest: Manifest) -> list[str]:
    return [tensor.name for tensor in manifest.tensors if tensor.role != "output"]
