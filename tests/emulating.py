"""Running CUDA kernels on the emulator in tests, from outputs full of NaN."""

from __future__ import annotations

import math
import shutil
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from roller import ops, verify
from roller.arrays import aligned_empty
from roller.expr import TensorExpr
from roller.fusion import fuse
from roller.hardware import HardwareSpec
from roller.kernel import Artifact
from roller.program import RProgram
from roller_cuda import codegen, emulator, toolchain

GUARD = 0xFB

needs_compiler = pytest.mark.skipif(bool(toolchain.problems()), reason="; ".join(toolchain.problems()))
needs_cxx = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="the emulator needs g++ or clang++"
)


def text_of(spec: HardwareSpec, program: RProgram) -> Artifact:
    """What the emulator needs of an artifact; nothing is compiled for a GPU."""
    source = codegen.generate(spec, program)
    return Artifact(toolchain.FORMAT, b"none", {**source.launch, "text": source.text}, {}, "cuda", spec)


def emulated(
    expr: TensorExpr, artifact: Artifact, arrays: dict[str, Any], backwards: bool = False, eager: bool = False
) -> npt.NDArray[Any]:
    """The result, from an output full of NaN inside guard bytes."""
    dtype = verify.numpy_dtype(expr.output.dtype)
    size = math.prod(expr.output.shape) * dtype.itemsize
    raw = aligned_empty((size + 256,), np.dtype(np.uint8))
    raw[...] = GUARD
    raw[:size] = 0xFF
    out = raw[:size].view(dtype).reshape(expr.output.shape)
    inputs = tuple(np.ascontiguousarray(arrays[t.name]) for t in expr.inputs)
    emulator.Emulator(artifact, [emulator.Order(backwards, eager)]).run(inputs, out)
    assert (raw[size:] == GUARD).all(), "written beyond the output"
    return out


def expression(op: ops.SymbolicTensor) -> TensorExpr:
    return fuse(ops.expression(op))
