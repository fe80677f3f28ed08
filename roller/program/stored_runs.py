"""Runs of contiguous results that an innermost tile stores."""

from __future__ import annotations

import math

from roller.ir.nest import Access


def whole_lines(output: Access, run: int, line: int) -> bool:
    """True if runs of so many results are whole lines of so many bytes, wherever in the array they begin."""
    steps = [step or 1 for step in output.strides if step is None or step >= run]  # between the first addresses of runs
    return math.gcd(run, *steps) * output.element_bytes % line == 0
