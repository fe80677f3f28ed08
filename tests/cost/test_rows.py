"""Rows that a nest reads in turn, and what a level loses from row to row: worked out by hand, and what holds for any chip."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roller import ops
from roller.cost import formulas
from roller.cost.loops import rows_in_turn
from roller.cost.model import estimate
from roller.cost.parameters import CostParameters
from roller.cost.traffic import level_traffic
from roller.errors import ConstructionError
from roller.ir.expr import TensorExpr
from roller.ops import expression
from roller.program.rprogram import RProgram, StageProgram
from roller.target.hardware import HardwareSpec, RowShares
from roller.testing import constructed, expressions, specs, with_level
from small_caches import by_hand, cached, predicted, walk_of

ROWS, RUNS = (1, 4, 64), (64, 1024)


def table(*shares: tuple[float, float]) -> RowShares:
    """Shares for 1, 4 and 64 rows and runs of 64 and 1024 bytes."""
    return RowShares(rows=ROWS, run_bytes=RUNS, shares=shares)


def columns(*tiles: tuple[int, int], spec: HardwareSpec | None = None, axis: int = 0) -> tuple[StageProgram, HardwareSpec]:
    """Sums over an axis of 64 rows of 256 numbers (float32), in these tiles: (columns, rows), or (rows, columns) for axis 1."""
    expr = expression(ops.reduce_sum(ops.tensor((64, 256), name="x"), (axis,)))
    chip = spec or cached(1 << 12)
    return by_hand(expr, chip, *tiles), chip


@pytest.mark.parametrize(
    ("tiles", "axis", "turns"),
    [
        (((256, 64), (32, 1)), 0, [(64, 128)]),  # all rows, a run of each at a time
        (((256, 8), (32, 1)), 0, [(8, 128)]),  # eight rows at a time, then the next eight: they follow in memory
        (((256, 1), (32, 1)), 0, [(1, 128)]),  # row by row, but sums are stored after each run
        (((64, 8), (16, 1)), 0, [(8, 64), (64, 256)]),  # runs of 16 numbers inside blocks of 64 columns
        (((64, 64), (64, 1)), 0, [(64, 256)]),
        (((8, 256), (8, 16)), 1, [(8, 64)]),  # sums along rows: eight rows side by side in the innermost tile
        (((1, 256), (1, 16)), 1, []),  # in the order of memory; one sum is stored after each row
    ],
)
def test_rows_in_turn(tiles: tuple[tuple[int, int], ...], axis: int, turns: list[tuple[int, int]]) -> None:
    program, chip = columns(*tiles, axis=axis)
    found = list(rows_in_turn(walk_of(program, chip), 0))
    assert [pair for pair in found if pair[1] < 1024] == turns  # blocks of whole rows follow one another
    assert all(rows == 1 for rows, run in found if run >= 1024)


def test_the_slowest_of_its_rows_decides() -> None:
    rows = table((1.0, 1.0), (0.5, 1.0), (0.25, 0.5))
    program, chip = columns((64, 4), (16, 1), spec=with_level(cached(1 << 12), 1, row_shares=rows))
    walk = walk_of(program, chip)
    assert list(rows_in_turn(walk, 0))[:2] == [(4, 64), (64, 256)]
    traffic = level_traffic(walk, 1)
    assert traffic.lost == pytest.approx(64 * 256 * 4 * (1 / rows.share(64, 256) - 1))


def test_a_level_that_is_read_in_rows_takes_as_long_as_its_shares_say() -> None:
    """64 KiB at 16 GB/s: 4.096 us; 64 rows of 64 bytes in turn get a quarter of that rate. The rest of the chip is fast."""
    rows = table((1.0, 1.0), (0.5, 1.0), (0.25, 0.5))
    fast = with_level(cached(1 << 12), 1, latency_ns=0.0)
    slow = with_level(fast, 1, row_shares=rows)
    atom = fast.atoms[0].model_copy(update={"gflops": 1e9})
    fast, slow = (chip.model_copy(update={"atoms": (atom,)}) for chip in (fast, slow))
    program, _ = columns((256, 64), (16, 1), spec=fast)
    moving = 64 * 256 * 4 / 16e9
    terms = dict(predicted(program, fast).terms)
    assert terms["cache"] == pytest.approx(moving, rel=0.02)  # and the sums
    more = predicted(program, slow).seconds - predicted(program, fast).seconds
    assert more == pytest.approx(3 * moving, rel=0.02)
    assert dict(predicted(program, slow).terms)["latency"] == pytest.approx(3 * moving, rel=0.02)


@pytest.mark.parametrize(("compute", "seconds"), [(0.0, 3.0), (1.0, 1.5), (2.0, 0.0), (9.0, 0.0)])
def test_computing_hides_what_is_lost(compute: float, seconds: float) -> None:
    assert formulas.lost_seconds(2.0, 3.0, compute) == pytest.approx(seconds)
    assert formulas.lost_seconds(0.0, 0.0, compute) == 0.0


@given(specs(units=(1, 4), lanes=(1,)), expressions(), st.lists(st.tuples(*[st.floats(0.1, 1.0)] * 2), min_size=3, max_size=3))
@settings(max_examples=40, deadline=None)
def test_no_table_makes_a_program_faster_and_one_of_ones_changes_nothing(
    spec: HardwareSpec, expr: TensorExpr, shares: list[tuple[float, float]]
) -> None:
    caches = [index for index, level in enumerate(spec.levels) if index and not level.managed]

    def seconds(program: RProgram, rows: RowShares | None) -> float:
        chip = reduce(lambda chip, index: with_level(chip, index, row_shares=rows), caches, spec)
        return estimate(program, chip, CostParameters()).seconds

    try:
        program = constructed(expr, spec)[0].program
    except ConstructionError:
        assume(False)
    plain = seconds(program, None)
    assert seconds(program, table((1.0, 1.0), (1.0, 1.0), (1.0, 1.0))) == plain
    assert seconds(program, table(*shares)) >= plain
