"""Running CUDA kernels on the emulator in tests, from outputs full of NaN."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from typing import Any

import numpy.typing as npt
import pytest

from bench.emulated.emulating import computed
from roller import ops
from roller.device.plugins import load_device
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.serialization import expr_from_json, expr_to_json
from roller.program.rprogram import RProgram
from roller.runtime.artifact import Artifact
from roller.search.construct import construct
from roller.target.hardware import HardwareSpec
from roller_cuda.codegen import generator, limits
from roller_cuda.emulator import emulator
from roller_cuda.toolchain import compiling

needs_compiler = pytest.mark.skipif(bool(compiling.problems()), reason="; ".join(compiling.problems()))
needs_cxx = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="the emulator needs g++ or clang++"
)


def text_of(spec: HardwareSpec, program: RProgram) -> Artifact:
    """What the emulator needs of an artifact; nothing is compiled for a GPU."""
    source = generator.generate(spec, program)
    return Artifact(compiling.FORMAT, b"none", {**source.launch, "text": source.text}, {}, "cuda", spec)


def emulated(
    expr: TensorExpr, artifact: Artifact, arrays: dict[str, Any], backwards: bool = False, eager: bool = False
) -> npt.NDArray[Any]:
    """The result in one order of events, from an output full of NaN before guard bytes."""
    return computed(expr, artifact, arrays, emulator.Emulator(artifact, [emulator.Order(backwards, eager)]))


def ranked(op: ops.SymbolicTensor, spec: HardwareSpec, count: int) -> list[RProgram]:
    """The best programs for a CUDA chip that it can run, of so many; constructed once for a process, built by nobody."""
    expr = expression(op)
    return _ranked(json.dumps(expr_to_json(expr)), spec.model_dump_json(), count)


@lru_cache(64)
def _ranked(expression: str, chip: str, count: int) -> list[RProgram]:
    expr, spec, plugin = expr_from_json(json.loads(expression)), HardwareSpec.model_validate_json(chip), load_device("cuda")
    found = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), count)
    return [candidate.program for candidate in found if limits.refusal(spec, candidate.program) is None]


def expression(op: ops.SymbolicTensor) -> TensorExpr:
    return fuse(ops.expression(op))
