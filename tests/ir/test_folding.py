"""Partial results that a vector holds of many rows: folded together, and the rest of a row taken with them."""

from __future__ import annotations

import pytest

import launching
from by_hand import SPEC, given, right, t
from roller import ops


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("reduced", ["reduce_sum", "reduce_max", "reduce_min"])
@pytest.mark.parametrize("inner", [(1, 8), (4, 8), (7, 8), (8, 16), (13, 8), (9, 24), (2, 5)])
def test_partial_results_of_many_rows_are_folded_together(inner: tuple[int, int], reduced: str, dtype: str) -> None:
    """Rows of 49, 61 and 24 elements, ragged in both dimensions; a vector, several, and less than one along the reduction."""
    for length in (49, 61, 24):
        op = getattr(ops, reduced)(t(2 * inner[0] + 3, length, dtype=dtype) * t(2 * inner[0] + 3, 1, dtype=dtype), 1)
        right(op, given(op, ((2 * inner[0], -(-length // inner[1]) * inner[1]), inner), 1))
        right(op, given(op, ((inner[0], 2 * inner[1]), inner), 1))


def test_folding_takes_no_element_out_of_its_vector() -> None:
    """Eight rows: seven pairs of vectors become one, stored as a whole; what is left of a row of 61 is no loop of elements."""
    op = ops.reduce_sum(t(64, 61), 1)
    text = launching.artifact(SPEC, given(op, ((64, 64), (8, 8)), 1)).source
    assert "extractelement" not in text and "store float" not in text and "load float" not in text
