"""Running kernels suspiciously: outputs poisoned first, guard bytes around outputs, NaN around inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from roller import verify
from roller.ir.expr import FLOATS, Tensor, TensorExpr
from roller.program.rprogram import RProgram
from roller.runtime.arrays import aligned_empty
from roller.runtime.artifact import Artifact, BuildOptions
from roller.target.hardware import HardwareSpec
from roller_cpu.codegen import dot_products, generator, plain_tiles
from roller_cpu.runtime.runner import CpuRunner
from roller_cpu.toolchain import compiling

Array = npt.NDArray[Any]
GUARD, GUARD_BYTES = 0xFB, 256
NOT_A_NUMBER, POISON = 0xFF, 0x7F  # all bits set is a NaN of every floating type


def artifact(spec: HardwareSpec, program: RProgram, constants: Mapping[str, Array] | None = None) -> Artifact:
    """The program built without reading its assembly."""
    fixed = {name: array.tobytes() for name, array in (constants or {}).items()}
    source = generator.generate(spec, program, BuildOptions(constants=tuple(fixed)))
    source = replace(source, text=plain_tiles.emulated(dot_products.emulated(source.text)))  # any machine runs the test
    return replace(compiling.build(spec, source), constants=fixed)


def surrounded(shape: tuple[int, ...], dtype: np.dtype[Any], byte: int, inside: int, shift: int = 0) -> tuple[Array, Array]:
    """An array full of one byte, and all that lies around it: `GUARD_BYTES` of another byte on both sides.

    It is aligned to 64 bytes, or lies `shift` elements further.
    """
    size, before = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, GUARD_BYTES + shift * dtype.itemsize
    raw = aligned_empty((before + size + GUARD_BYTES,), np.dtype(np.uint8))
    raw[...] = byte
    raw[before : before + size] = inside
    return np.ndarray(shape, dtype, raw, before), raw


def placed(array: Array, dtype: str, shift: int = 0) -> Array:
    """A read-only copy with poison on both sides, so that whoever reads too far computes nonsense."""
    poison = NOT_A_NUMBER if dtype in FLOATS else POISON
    copy, _ = surrounded(array.shape, array.dtype, poison, poison, shift)
    copy[...] = array
    copy.flags.writeable = False
    return copy


def run(built: Artifact, output: Tensor, inputs: tuple[Array, ...], shift: int = 0) -> Array:
    """The kernel's result; an assertion fails where it writes beside its output."""
    dtype = verify.numpy_dtype(output.dtype)
    out, raw = surrounded(output.shape, dtype, GUARD, NOT_A_NUMBER if output.dtype in FLOATS else POISON, shift)
    runner = CpuRunner(built)
    if out.size:
        runner.run(inputs, out)
    runner.close()
    assert (raw[: -GUARD_BYTES - out.nbytes] == GUARD).all(), "bytes before the output were written"
    assert (raw[-GUARD_BYTES:] == GUARD).all(), "bytes after the output were written"
    return out


def check(
    expr: TensorExpr, built: Artifact, arrays: Mapping[str, Array], fixed: frozenset[str] = frozenset(), shift: int = 0
) -> None:
    """The kernel against the reference; `WrongResultError` where it is wrong. `shift` misaligns every array, if it may be."""
    shift = shift if built.launch.get("alignment") == "element" else 0
    inputs = tuple(placed(arrays[t.name], t.dtype, shift) for t in expr.inputs if t.name not in fixed)
    verify.check(expr, arrays, run(built, expr.output, inputs, shift))
