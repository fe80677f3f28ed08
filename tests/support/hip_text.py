"""HIP C++ of programs in tests: written, compiled by a clang without HIP's headers, run on the emulator of assembly."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from roller import ops
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.program.rprogram import RProgram
from roller.runtime.arrays import aligned_empty
from roller.runtime.artifact import Artifact, KernelSource
from roller.search.construct import construct
from roller.target.catalog import find_spec
from roller.target.hardware import HardwareSpec
from roller.verify import numpy_dtype
from roller_rocm.codegen import hip_source
from roller_rocm.emulator import emulator
from roller_rocm.toolchain import assembly, launching, waits

HEADERS = Path(__file__).parent / "hip_shim"
TOP_K = 10
GUARD, GUARD_BYTES, NAN = 0xFB, 256, 0xFF
FLAGS = ("-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "-O3", "-std=c++17", "-Wall", "-Werror", "-Wno-unused")
ONE_ORDER = (emulator.Order(backwards=True, eager=False),)


@cache
def clang() -> tuple[str, ...] | None:
    """A clang that compiles HIP for AMD GPUs: the one in PyPI's `ziglang`, or none."""
    return (sys.executable, "-m", "ziglang", "clang") if util.find_spec("ziglang") is not None else None


needs_clang = pytest.mark.skipif(clang() is None, reason="compiling HIP needs a clang: pip install ziglang")


def best(op: ops.SymbolicTensor, chip: str, unit: str = "") -> tuple[HardwareSpec, RProgram]:
    """The best program of an operator for a chip, all of it by the units whose names start so."""
    plugin, spec = resolve("rocm", find_spec("rocm", chip))
    expr = fuse(ops.expression(op), spec.spread)
    only = spec.model_copy(update={"atoms": tuple(atom for atom in spec.atoms if atom.name.startswith(unit))})
    found = construct(expr, only, plugin.rules(only, expr), plugin.cost_parameters(only, expr), TOP_K)
    return spec, next(c.program for c in found if plugin.refusal(spec, c.program) is None)


def compiled(text: str, arch: str) -> str:
    """The assembly of a text; an assertion fails with clang's words where it refuses it or warns."""
    found = clang()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="roller-hip-") as folder:
        source, listing = Path(folder) / "kernel.hip", Path(folder) / "kernel.s"
        source.write_text(text, encoding="utf-8")
        call = [*found, *FLAGS, f"--offload-arch={arch}", "-I", str(HEADERS), "-S", str(source), "-o", str(listing)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
        return listing.read_text(encoding="utf-8")


def built(spec: HardwareSpec, program: RProgram) -> tuple[KernelSource, Artifact]:
    """The text of a program and what the emulator needs of an artifact; no barrier is reached by a write that nobody waited for."""
    source = hip_source.generate(spec, program)
    arch = str(spec.options["arch"])
    listing = compiled(source.text, arch)
    waits.check(assembly.parsed(listing).kernels.values())
    launch = {**source.launch, "arch": arch, "assembly": listing}
    return source, Artifact(launching.FORMAT, b"none", launch, {}, spec.device, spec)


def computed(
    program: RProgram, artifact: Artifact, arrays: dict[str, Any], orders: Sequence[emulator.Order] = ONE_ORDER
) -> npt.NDArray[Any]:
    """The result on the emulator, from an output full of NaN before guard bytes."""
    output = program.expr.output
    dtype = numpy_dtype(output.dtype)
    size = math.prod(output.shape) * dtype.itemsize
    raw = aligned_empty((size + GUARD_BYTES,), np.dtype(np.uint8))
    raw[:size], raw[size:] = NAN, GUARD
    out = raw[:size].view(dtype).reshape(output.shape)
    emulator.Emulator(artifact, orders).run(tuple(np.ascontiguousarray(arrays[t.name]) for t in program.expr.inputs), out)
    assert (raw[size:] == GUARD).all(), "written beyond the output"
    return out
