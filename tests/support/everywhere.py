"""Expressions computed everywhere: on the host, on every emulator, on the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import roller
from bench.emulated.emulating import computed
from emulating import needs_cxx, text_of
from roller.device.chip import resolve
from roller.ir.expr import TensorExpr
from roller.runtime.arrays import numpy_dtype
from roller.runtime.artifact import BuildOptions
from roller.search.construct import construct
from roller_cuda.emulator import emulator

Array = npt.NDArray[Any]


def on_device(name: str) -> Callable[[TensorExpr, dict[str, Array]], Array]:
    """The result of a device that is here, from an output full of NaN."""

    def run(expr: TensorExpr, arrays: dict[str, Array]) -> Array:
        kernel = roller.compile(expr, name, top_k=1)
        out = np.full(expr.output.shape, 0xFF, f"V{numpy_dtype(expr.output.dtype).itemsize}").view(numpy_dtype(expr.output.dtype))
        kernel(*(arrays[t.name] for t in expr.inputs), out=out)
        return out

    return run


def on_emulator(device: str, contracted: bool = False) -> Callable[[TensorExpr, dict[str, Array]], Array]:
    """The same on a device's emulator."""

    def run(expr: TensorExpr, arrays: dict[str, Array]) -> Array:
        plugin, spec = resolve(device)
        found = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 1)[0].program
        if not device.startswith("cuda"):
            artifact = plugin.build(spec, plugin.codegen(spec, found, BuildOptions()), BuildOptions())
            return computed(expr, artifact, arrays)
        artifact = text_of(spec, found)
        return computed(expr, artifact, arrays, emulator.Emulator(artifact, emulator.ORDERS[:1], contracted=contracted))

    return run


WHERE: dict[str, Callable[[TensorExpr, dict[str, Array]], Array]] = {
    "cpu": on_device("cpu"),
    "cuda": on_emulator("cuda:a100"),
    "cuda contracted": on_emulator("cuda:a100", contracted=True),
    "rocm": on_emulator("rocm:mi300x"),
    "rocm, graphics": on_emulator("rocm:rx7900xtx"),  # multiply-adds of single halves, too
}
EMULATORS = [pytest.param(where, marks=needs_cxx) for where in WHERE if where != "cpu"]
SIMULATED = on_device("ipu_sim")  # of types that its tiles compute with
