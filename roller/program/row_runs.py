"""Rows of arrays that a nest reads in place, a run of each row at a time: what a tile can request ahead (software prefetch).

A nest that walks a block of rows (the reduction of a product, say) reads a short run of each row and goes on to the next row. Cores
find no stream in that: the next run of a row is requested only when the nest is there. A tile may request a later run of every row
that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller.ir.nest import Access
from roller.program.rprogram import StageProgram, Staging

RUNS_AHEAD = 3  # 8 x 5000 x 3000 on a Zen 5: 3.6 ms without prefetches, 2.5 with the next run, 1.5 with the second to the sixth
LINE = 64  # bytes of a cache line on CPUs with vectors; of longer lines, each is requested several times


def _row_dim(access: Access, number: int, staged: Sequence[Staging]) -> int | None:
    """Returns the dimension along the rows of array `number` of a nest, if it is read in place and as they lie; else None."""
    copied = any(s.operand == (number if s.kind == "box" else access.factor) for s in staged)
    if access.role != "body" or not access.linear or copied:
        return None
    return next((d for d, stride in enumerate(access.strides) if access.touches[d] and stride == 1), None)


def part_by_part(program: StageProgram, number: int) -> int | None:
    """Returns the dimension along the rows of an array that the nest reads a run of each row at a time; None for other arrays.

    A spatial loop continues the rows, and inside it another one goes from row to row.
    """
    access, loops = program.nest.accesses[number], program.loops
    along = _row_dim(access, number, program.staged)
    if along is None or program.nest.dims[along].is_reduce:
        return None
    continued = max((n for n, lp in enumerate(loops) if lp.dim == along), default=len(loops))
    rows = max((n for n, lp in enumerate(loops) if lp.dim != along and access.touches[lp.dim]), default=-1)
    return along if rows > continued else None


def passes(program: StageProgram, number: int) -> int:
    """Returns how often the nest reads each element of an array."""
    touches = program.nest.accesses[number].touches
    return math.prod([lp.trips for lp in program.loops if not touches[lp.dim]])


def operations(program: StageProgram, number: int, along: int) -> float:
    """Returns the vector operations that a step of the innermost tile makes for each line of an array that it reads."""
    inner, access, width = program.inner, program.nest.accesses[number], {program.lane: program.width}
    points = math.prod([-(-inner[d] // width.get(d, 1)) for d in program.nest.spatial])
    rows = math.prod([extent for d, extent in enumerate(inner) if access.touches[d] and d != along])
    return points / (rows * -(-inner[along] * access.element_bytes // LINE))
