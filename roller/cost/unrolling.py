"""Loop unrolling: the steps of a reduction in one unrolled body. Lanes read for all of these steps at a time."""

from __future__ import annotations

import math

from roller.cost.parameters import Unrolling
from roller.ir.elementwise import Extents, Value, largest, least
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, copy_depth

MOST_UNROLLED = 8  # steps of a reduction in an unrolled body, where these are enough
MOST_SHORT = 32  # the same where each step is short
# Values that an unrolled body reads of windows that are only summed: compilers load all of them before the first addition.
MOST_READ = 64


def steps_repeated(program: StageProgram, number: int, unrolling: Unrolling) -> int | None:
    """Returns the unroll factor of a loop that is the innermost one over a reduction.

    Returns None for other loops, and where the compiler decides.
    """
    loops, dims = program.loops, program.nest.dims
    inside = any(lp.over == "time" for lp in loops[number + 1 :])
    if inside or not dims[loops[number].dim].is_reduce:
        return None
    if program.atom.kind == "matrix" and not unrolling.atoms:
        return None
    often = int(unrolled(program, program.inner, unrolling))
    if program.windowed and len(program.nest.factors) == 1:  # no dependence orders the loads behind the uses
        often = min(often, MOST_READ // Geometry(program.nest).panel_elements(0, program.inner, windowed=True))
    return max(1, often)


def unrolled(program: StageProgram, inner: Extents, unrolling: Unrolling) -> Value:
    """Returns the steps of a reduction in an unrolled body around innermost tiles, before limits of windows.

    `program` has the same atom and copies, but any tiles.
    """
    points = math.prod(inner)
    if program.atom.kind == "matrix":
        atoms = largest(points // math.prod([e for e in program.atom.roles.values() if isinstance(e, int)]), 1)
        return largest(1, least(MOST_UNROLLED, unrolling.atoms // atoms))
    body = largest(points, 1)
    often = least(MOST_UNROLLED, unrolling.most // body)
    if program.staged:
        often = largest(often, least(MOST_SHORT, unrolling.least // body))
    return largest(1, often)


def steps_together(program: StageProgram, unrolling: Unrolling) -> int:
    """Returns the steps of an unrolled body without a panel fill between them: lanes read for all of these at a time."""
    last = max((n for n, lp in enumerate(program.loops) if lp.over == "time"), default=None)
    if last is None or any(copy_depth(program, s) > last for s in program.staged):
        return 1
    return max(1, min(steps_repeated(program, last, unrolling) or 1, program.loops[last].trips))
