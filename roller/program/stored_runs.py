"""Runs of contiguous results that an innermost tile stores."""

from __future__ import annotations

import math

from roller.ir.elementwise import Extent, Value, each
from roller.ir.nest import Access


def in_lines(output: Access, elements: Extent, run: Extent, line: int) -> Value:
    """Returns whether a tile of so many results, in runs of so many, stores whole lines; for one tile or an array of them.

    Runs are whole lines of so many bytes, wherever in the array they begin. Or all results are one run, and the next tile goes on.
    """

    def whole(length: int) -> bool:
        steps = [step or 1 for step in output.strides if step is None or step >= length]  # between the first addresses of runs
        return math.gcd(length, *steps) * output.element_bytes % line == 0

    return each(whole, run) | (run >= elements)
