"""Partial results of a reduction that units share: reduced in vectors, whatever their number, and in the order of the parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import by_hand
import launching
from by_hand import SPEC, right, t
from roller import ops
from roller.ops import SymbolicTensor
from roller.program.dispatch import Dispatch
from roller.program.rprogram import RProgram
from roller_cpu.toolchain import compiling

REDUCTIONS = {"sum": ops.reduce_sum, "max": ops.reduce_max, "min": ops.reduce_min}
DTYPES = ("float32", "float64", "int32")


def cut(op: SymbolicTensor, results: int, parts: int) -> RProgram:
    """Columns of two rows a part, all parts at once."""
    return by_hand.given(op, ((results, 2), (min(8, results), 1)), 0, dispatch=Dispatch(split=parts))


@given(st.integers(2, 5000), st.integers(2, 40), st.sampled_from(sorted(REDUCTIONS)), st.sampled_from(DTYPES))
@settings(max_examples=40, deadline=None)
@example(2, 2, "sum", "float32")
@example(31, 2, "sum", "float32")  # less than four vectors
@example(33, 3, "max", "float32")
@example(2049, 40, "sum", "float32")  # more than a block, and rather many values: in parallel
@example(16 * 2048 + 7, 3, "min", "float32")
def test_any_number_of_results_of_any_number_of_parts(results: int, parts: int, reducer: str, dtype: str) -> None:
    op = REDUCTIONS[reducer](t(2 * parts, results, dtype=dtype, name="x"), (0,))
    right(op, cut(op, results, parts))


@pytest.mark.parametrize("reducer", sorted(REDUCTIONS))
def test_special_values_of_parts(reducer: str) -> None:
    """NaN stays, infinities of both signs give NaN, and a sum of negative zeros is the neutral zero and they: positive."""
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, np.finfo(np.float32).max, 1e-45], np.float32)
    rows = np.stack([np.roll(special, shift) for shift in range(8)]).repeat(5, axis=1)
    rows[:, 7] = -0.0
    op = REDUCTIONS[reducer](t(*rows.shape, name="x"), (0,))
    built = launching.artifact(SPEC, cut(op, rows.shape[1], 4), {})
    found = launching.run(built, ops.expression(op).output, (rows,))
    with np.errstate(all="ignore"):
        wanted = {"sum": rows.sum(0), "max": rows.max(0), "min": rows.min(0)}[reducer]
    assert np.array_equal(found, wanted, equal_nan=True)
    assert reducer != "sum" or not np.signbit(found[7])


def test_parts_are_reduced_by_vectors() -> None:
    """With whole vectors no instruction adds single numbers, one after another for each result."""
    op = ops.reduce_sum(t(128, 4096, name="x"), (0,))
    assembly = compiling.assembly(launching.artifact(SPEC, cut(op, 4096, 64), {}).source)
    assert "vaddps" in assembly and "vaddss" not in assembly
