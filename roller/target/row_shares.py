"""How fast a memory is read in rows: a table of a spec, measured or absent, and what lies between its numbers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Self

import numpy as np
from pydantic import model_validator

from roller.target.quantities import Count, Fraction, Frozen


class RowShares(Frozen):
    """The share of a bandwidth that a reduction reaches which reads rows in turn: a run of each, then the first one's next run.

    `shares[i][j]` is that of `rows[i]` rows and runs of `run_bytes[j]` bytes. Between runs of a row the nest stores its results.
    """

    rows: tuple[Count, ...]
    run_bytes: tuple[Count, ...]
    shares: tuple[tuple[Fraction, ...], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, values in (("rows", self.rows), ("run_bytes", self.run_bytes)):
            if len(values) < 2 or list(values) != sorted(set(values)):
                raise ValueError(f"{field}: must be two numbers or more that ascend")
        if len(self.shares) != len(self.rows) or any(len(line) != len(self.run_bytes) for line in self.shares):
            raise ValueError(f"shares: must be {len(self.rows)} lines (rows) of {len(self.run_bytes)} numbers (run_bytes)")
        return self

    def alike(self, other: RowShares) -> bool:
        """Returns whether another table is about the same rows and runs."""
        return (self.rows, self.run_bytes) == (other.rows, other.run_bytes)

    def among(self, alone: RowShares, bandwidth: float, unit_bandwidth: float, units: int) -> RowShares:
        """Returns the shares for some of the units: each reads no faster than alone, and together no faster than all of them."""
        own, whole = units * unit_bandwidth, min(bandwidth, units * unit_bandwidth)
        lines = zip(self.shares, alone.shares, strict=True)
        found = [[min(bandwidth * all_, own * one, whole) / whole for all_, one in zip(*pair, strict=True)] for pair in lines]
        return self.model_copy(update={"shares": tuple(map(tuple, found))})

    def share(self, rows: Any, run_bytes: Any) -> Any:
        """Returns the share for so many rows and bytes of a run, numbers or arrays: linear between logarithms, the edges' outside.

        Beyond the longest run of the table, each run loses as much time as that one.
        """
        heights, widths, table = _grid(self)
        i, up = _place(heights, rows)
        j, along = _place(widths, run_bytes)
        low = table[i, j] * (1 - along) + table[i, j + 1] * along
        high = table[i + 1, j] * (1 - along) + table[i + 1, j + 1] * along
        found = low * (1 - up) + high * up
        return 1 / (1 + (1 / found - 1) / np.maximum(run_bytes / self.run_bytes[-1], 1.0))


@lru_cache(64)
def _grid(given: RowShares) -> tuple[Any, Any, Any]:
    """Returns the logarithms of rows and of runs, and the shares, as arrays."""
    return np.log2(given.rows), np.log2(given.run_bytes), np.array(given.shares)


def _place(grid: Any, numbers: Any) -> tuple[Any, Any]:
    """Returns the position of the grid's line below each number, and the share of the way to the next line."""
    at = np.clip(np.log2(np.maximum(numbers, 1)), grid[0], grid[-1])
    below = np.minimum(np.searchsorted(grid, at, side="right") - 1, len(grid) - 2)
    return below, (at - grid[below]) / (grid[below + 1] - grid[below])
