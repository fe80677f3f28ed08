"""Rows of arrays that a nest reads in place, a run of each row at a time: what a tile can request ahead (software prefetch).

A nest that walks a block of rows (the reduction of a product, say) reads a short run of each row and goes on to the next row. Cores
find no stream in that: the next run of a row is requested only when the nest is there. A tile may request a later run of every row
that it reads.
"""

from __future__ import annotations

import math

from roller.program.rprogram import StageProgram


def row_dim(program: StageProgram, number: int) -> int | None:
    """Returns the dimension along the rows of an array that the nest reads a run of each row at a time; None for other arrays.

    A spatial loop continues the rows, and inside it another one goes from row to row.
    """
    access, loops = program.nest.accesses[number], program.loops
    copied = any(s.operand == (number if s.kind == "box" else access.factor) for s in program.staged)
    if access.role != "body" or not access.linear or copied:
        return None
    along = next((d for d in program.nest.spatial if access.strides[d] == 1 and access.touches[d]), None)
    continued = max((n for n, lp in enumerate(loops) if lp.dim == along), default=len(loops))
    rows = max((n for n, lp in enumerate(loops) if lp.dim != along and access.touches[lp.dim]), default=-1)
    return along if rows > continued else None


def passes(program: StageProgram, number: int) -> int:
    """Returns how often the nest reads each element of an array."""
    touches = program.nest.accesses[number].touches
    return math.prod([lp.trips for lp in program.loops if not touches[lp.dim]])


def operations(program: StageProgram, lines: int) -> float:
    """Returns the vector operations that a step of the innermost tile makes for each of so many lines that it reads."""
    width = {program.lane: program.width}
    return math.prod([-(-program.inner[d] // width.get(d, 1)) for d in program.nest.spatial]) / lines
