"""Running CUDA kernels on the emulator in tests, from outputs full of NaN."""

from __future__ import annotations

import shutil
from typing import Any

import numpy.typing as npt
import pytest

from bench.emulating import computed
from roller import ops
from roller.expr import TensorExpr
from roller.fusion import fuse
from roller.hardware import HardwareSpec
from roller.kernel import Artifact
from roller.program import RProgram
from roller_cuda import codegen, emulator, toolchain

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
    """The result in one order of events, from an output full of NaN before guard bytes."""
    return computed(expr, artifact, arrays, emulator.Emulator(artifact, [emulator.Order(backwards, eager)]))


def expression(op: ops.SymbolicTensor) -> TensorExpr:
    return fuse(ops.expression(op))
