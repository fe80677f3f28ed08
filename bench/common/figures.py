"""What is computed from measured numbers, and how numbers are written; of Python's own library only."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def finite(value: float) -> float | None:
    """The value, None for NaN, which JSON has no word for."""
    return None if math.isnan(value) else value


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, ties sharing their mean rank; NaN where one side does not vary."""
    return pearson(_ranks(first), _ranks(second))


def pearson(first: Sequence[float], second: Sequence[float]) -> float:
    """Linear correlation; NaN where one side does not vary, or of fewer than two pairs."""
    try:
        return statistics.correlation(first, second)
    except statistics.StatisticsError:
        return math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def compact(data: Any) -> str:
    """Indented JSON with numbers to six digits, and every list of plain values on one line."""
    text = json.dumps(rounded(data), indent=1, ensure_ascii=False)
    return re.sub(
        r"\[\n[^\[\]{}]*\n\s*\]", lambda found: re.sub(r"\n\s*", " ", found.group()).replace("[ ", "[").replace(" ]", "]"), text
    )


def rounded(data: Any) -> Any:
    """The same data with six digits for every number."""
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [rounded(value) for value in data]
    return float(f"{data:.6g}") if isinstance(data, float) else data
