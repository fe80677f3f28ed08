"""Even parts: programs that only a search over all numbers of parts finds, on a simulated IPU."""

from __future__ import annotations

import pytest

from bench.ipu import cases, sides
from ipu_programs import BOW
from roller import ops


def constructed(operator: ops.SymbolicTensor) -> sides.Side:
    return sides.constructed(operator, BOW)


def test_tiles_that_differ_in_three_dimensions_are_reached() -> None:
    """From tiles of 10 x 2 x 4 no step of two dimensions leads to 6 x 7 x 2, of which more tiles get one."""
    assert constructed(cases.depthwise(1, 144, 56, 3, 2)).cycles <= 2541


@pytest.mark.parametrize(("rows", "columns", "cycles"), [(64, 65536, 2880), (512, 2000, 1503)])
def test_parts_of_a_reduction_may_be_longer_than_equal_ones(rows: int, columns: int, cycles: int) -> None:
    """46 equal parts of 65536 are 1425 long, which 12 partial results of each of two rows do not divide; 1428 is 12 x 119."""
    found = constructed(ops.reduce_sum(ops.tensor((rows, columns), name="x"), (1,)))
    assert found.cycles <= cycles
