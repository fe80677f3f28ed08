"""Products of words: what dot products and tiles have to compute, and the check that a program of another chip does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import launching
from roller import ops, verify
from roller.program.rprogram import RProgram
from roller.target.catalog import find_spec
from roller.target.subset import limited

HOST = limited(find_spec("cpu", "x86-64-v3"), 1)  # what any machine runs, with the other chip's instructions in plain IR
SUMS = {"int8": "int32", "uint8": "int32", "int16": "int32", "bfloat16": "float32", "float16": "float32"}


def product(m: int, n: int, k: int, dtype: str, turned: str = "NN") -> ops.SymbolicTensor:
    """A product; `turned`: which of its factors lie transposed."""
    a, b = ((k, m) if turned[0] == "T" else (m, k)), ((n, k) if turned[1] == "T" else (k, n))
    factors = ops.tensor(a, dtype, "a"), ops.tensor(b, dtype, "b")
    return ops.matmul(*factors, turned[0] == "T", turned[1] == "T", SUMS[dtype], SUMS[dtype])


def convolution(dtype: str, stride: int) -> ops.SymbolicTensor:
    """A convolution with padding, and with a remainder along every dimension."""
    x, w = ops.tensor((1, 18, 9, 9), dtype, "x"), ops.tensor((20, 18, 3, 3), dtype, "w")
    return ops.conv2d(x, w, stride, 1, out_dtype=SUMS[dtype], acc_dtype=SUMS[dtype])


def scaled_batches() -> ops.SymbolicTensor:
    """Products of batches of int8, dequantised."""
    a, b = ops.tensor((3, 20, 33), "int8", "a"), ops.tensor((3, 33, 40), "int8", "b")
    summed = ops.batch_matmul(a, b, out_dtype="int32", acc_dtype="int32")
    return ops.relu(ops.cast(summed, "float32") * ops.tensor((40,), name="scale"))


def check(
    op: ops.SymbolicTensor, program: RProgram, arrays: Mapping[str, Any] | None = None, constants: frozenset[str] = frozenset()
) -> None:
    """Runs a program on this machine, which need not have its instructions, and compares."""
    expr = ops.expression(op)
    given = arrays or verify.random_inputs(expr, 0, integer=True)
    built = launching.artifact(HOST, program, {name: given[name] for name in constants})
    launching.check(expr, built, given, constants)
