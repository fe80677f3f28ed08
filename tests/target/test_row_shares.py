"""Shares of a bandwidth for rows that are read in turn: between the numbers of a table, beyond them, and for some of the units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from roller.device.chip import load_spec
from roller.errors import SpecError
from roller.target.catalog import spec_from_dict
from roller.target.hardware import MemoryLevel, RowShares
from roller.target.subset import narrowed
from roller.testing import toy_atom, toy_level, toy_spec

TABLE = RowShares(rows=(1, 4, 16), run_bytes=(64, 256), shares=((1.0, 0.8), (0.6, 0.4), (0.2, 0.5)))


@st.composite
def tables(draw: st.DrawFn) -> RowShares:
    """Any table of two to four rows and runs."""
    rows, runs = (sorted(draw(st.sets(st.integers(1, 1 << 16), min_size=2, max_size=4))) for _ in range(2))
    line = st.lists(st.floats(0.05, 1.0), min_size=len(runs), max_size=len(runs)).map(tuple)
    return RowShares(rows=tuple(rows), run_bytes=tuple(runs), shares=tuple(draw(line) for _ in rows))


@given(tables())
def test_the_numbers_of_the_table_are_found_again(table: RowShares) -> None:
    for rows, line in zip(table.rows, table.shares, strict=True):
        assert table.share(np.full(len(line), rows), np.array(table.run_bytes)) == pytest.approx(line)
        assert [table.share(rows, run) for run in table.run_bytes] == pytest.approx(line)


@given(tables(), st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_between_them_and_outside_a_share_is_no_better_than_the_best_and_no_worse_than_the_worst(
    table: RowShares, rows: int, run: int
) -> None:
    every = [share for line in table.shares for share in line]
    found = float(table.share(rows, run))
    assert min(every) * (1 - 1e-9) <= found <= (max(every) if run <= table.run_bytes[-1] else 1.0) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rows", "run", "share"),
    [
        (2, 64, 0.8),  # half of the way from 1 to 4
        (4, 128, 0.5),
        (8, 128, (0.5 + 0.35) / 2),
        (1, 8, 1.0),
        (1000, 64, 0.2),
        (4, 2560, 1 / (1 + (1 / 0.4 - 1) / 10)),  # ten times the longest run loses as much time
    ],
)
def test_shares_by_hand(rows: int, run: int, share: float) -> None:
    assert TABLE.share(rows, run) == pytest.approx(share)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rows": (4, 1, 16)}, "rows: must be two numbers or more that ascend"),
        ({"rows": (4,), "shares": ((1.0, 1.0),)}, "rows: must be two"),
        ({"run_bytes": (64, 64)}, "run_bytes: must be two"),
        ({"shares": ((1.0, 0.8), (0.6, 0.4))}, "shares: must be 3 lines"),
        ({"shares": ((1.0,), (0.6,), (0.2,))}, "2 numbers"),
        ({"shares": ((1.0, 0.8), (0.6, 0.4), (0.2, 0.0))}, "shares"),
    ],
)
def test_what_is_no_table_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        RowShares.model_validate(TABLE.model_dump() | changes)


@pytest.mark.parametrize("table", ["row_shares", "unit_row_shares"])
def test_a_misspelt_key_in_a_file_is_named(table: str) -> None:
    data = load_spec("cpu:zen4").model_dump(mode="json", exclude_defaults=True) | {"schema_version": 1}
    given = TABLE.model_dump(mode="json")
    data["levels"][1] |= {"row_shares": given, "unit_row_shares": given}
    data["levels"][1][table] = {("run_byte" if key == "run_bytes" else key): value for key, value in given.items()}
    with pytest.raises(SpecError, match=rf"levels\.L3\.{table}\.run_byte: unknown key.*did you mean 'run_bytes'"):
        spec_from_dict(data)


def test_a_units_table_is_about_the_rows_of_all_units() -> None:
    with pytest.raises(ValidationError, match="unit_row_shares: must have the rows and run_bytes of row_shares"):
        toy_level("cache", 1 << 20, 16, 1, managed=False, unit_row_shares=TABLE)
    other = TABLE.model_copy(update={"rows": (1, 4, 32)})
    with pytest.raises(ValidationError, match="must have the rows"):
        toy_level("cache", 1 << 20, 16, 1, managed=False, row_shares=TABLE, unit_row_shares=other)


def test_some_of_the_units_read_as_fast_as_they_would_alone_and_together_no_faster_than_all() -> None:
    alone = TABLE.model_copy(update={"shares": tuple(tuple(share / 2 for share in line) for line in TABLE.shares)})
    # Units of 8 GB/s, 16 for all of them: one alone reads half of the table's rate, two all of it, and so do four.
    cache = toy_level("cache", 1 << 20, 16, 1, managed=False, unit_bandwidth_gbps=8.0, row_shares=TABLE, unit_row_shares=alone)
    spec = toy_spec([cache, toy_level("register", 256, 256, 4)], [toy_atom("scalar", 8.0)], count=4)
    shares = {units: level(narrowed(spec, units)).row_shares for units in (1, 2, 3, 4)}
    assert np.array(shares[1].shares) == pytest.approx(np.array(alone.shares))
    assert np.array(shares[2].shares) == pytest.approx(np.array(TABLE.shares) / 2)  # two units, each with its own half
    assert np.array(shares[3].shares) == pytest.approx(np.minimum(np.array(TABLE.shares) * 0.75, TABLE.shares))
    assert shares[4] == TABLE


def test_a_private_cache_is_read_by_each_unit_as_by_one_alone() -> None:
    alone = TABLE.model_copy(update={"shares": tuple(tuple(share * 0.9 for share in line) for line in TABLE.shares)})
    cache = toy_level("cache", 1 << 20, 16, 4, managed=False, row_shares=TABLE, unit_row_shares=alone)
    spec = toy_spec([cache, toy_level("register", 256, 256, 4)], [toy_atom("scalar", 8.0)], count=4)
    assert np.array(level(narrowed(spec, 1)).row_shares.shares) == pytest.approx(np.array(alone.shares))


def level(spec: object) -> MemoryLevel:
    """The cache of the chip above."""
    found: MemoryLevel = spec.level("cache")  # type: ignore[attr-defined]
    return found
