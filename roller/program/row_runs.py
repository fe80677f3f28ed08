"""Rows of arrays that a nest reads in place, a run of each row at a time: what a tile can request ahead (software prefetch).

A nest that walks a block of rows (the reduction of a product, say) reads a short run of each row and goes on to the next row. Cores
find no stream in that: the next run of a row is requested only when the nest is there. A tile may request a later run of every row
that it reads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from roller.ir.expr import Tensor
from roller.program.rprogram import StageProgram

Pays = Callable[[Tensor, float, int], bool]


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


def run_lines(program: StageProgram, number: int, line_bytes: int) -> list[tuple[int, ...]]:
    """Returns the offsets in an innermost tile of the lines that a step reads of such an array; none for other arrays."""
    access, along = program.nest.accesses[number], row_dim(program, number)
    if along is None:
        return []
    ranges = [range(extent if touched else 1) for extent, touched in zip(program.inner, access.touches, strict=True)]
    ranges[along] = range(0, program.inner[along], max(1, line_bytes // access.element_bytes))
    return list(itertools.product(*ranges))


def requested_lines(program: StageProgram, line_bytes: int, pays: Pays) -> dict[int, list[tuple[int, ...]]]:
    """Returns the lines of each step that it pays to request ahead, by array: `run_lines` of those for which `pays` says so.

    `pays` takes an input, the vector operations that a step makes for each of its lines, and how often it reads each of them.
    """
    found: dict[int, list[tuple[int, ...]]] = {}
    if program.nest.stage.reducer is None:
        return found
    for number, access in enumerate(program.nest.accesses):
        lines = run_lines(program, number, line_bytes)
        if lines and pays(access.tensor, operations(program, len(lines)), passes(program, number)):
            found[number] = lines
    return found


def passes(program: StageProgram, number: int) -> int:
    """Returns how often the nest reads each element of an array."""
    touches = program.nest.accesses[number].touches
    return math.prod([lp.trips for lp in program.loops if not touches[lp.dim]])


def operations(program: StageProgram, lines: int) -> float:
    """Returns the vector operations that a step of the innermost tile makes for each of so many lines that it reads."""
    width = {program.lane: program.width}
    return math.prod([-(-program.inner[d] // width.get(d, 1)) for d in program.nest.spatial]) / lines
