"""How many steps of a reduction stand one after another in what lanes run: they read for all of these at a time."""

from __future__ import annotations

import math

from roller.cost.parameters import Unrolling
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, copy_depth

MOST_UNROLLED = 8  # steps of a reduction that stand one after another, where these are enough
MOST_SHORT = 32  # and where each is short
# … and values that these read of windows that are only added up: compilers read them all before they add the first.
MOST_READ = 64


def steps_repeated(program: StageProgram, number: int, unrolling: Unrolling) -> int | None:
    """How often the body of a loop is worth repeating, where it is the innermost one over a reduction; None for others, and where
    the compiler is left to decide.
    """
    loops, dims = program.loops, program.nest.dims
    inside = any(lp.over == "time" for lp in loops[number + 1 :])
    if inside or not dims[loops[number].dim].is_reduce:
        return None
    if program.atom.kind == "matrix":
        atoms = math.prod(program.inner) // math.prod([e for e in program.atom.roles.values() if isinstance(e, int)])
        return max(1, min(MOST_UNROLLED, unrolling.atoms // max(atoms, 1))) if unrolling.atoms else None
    body = max(math.prod(program.inner), 1)
    often = min(MOST_UNROLLED, unrolling.most // body)
    if program.staged:
        often = max(often, min(MOST_SHORT, unrolling.least // body))
    if program.windowed and len(program.nest.factors) == 1:  # nothing keeps one from being read before another is used
        often = min(often, MOST_READ // Geometry(program.nest).panel_elements(0, program.inner, windowed=True))
    return max(1, often)


def steps_together(program: StageProgram, unrolling: Unrolling) -> int:
    """Steps that stand one after another with no panel filled between them: lanes read for all of these at a time."""
    last = max((n for n, lp in enumerate(program.loops) if lp.over == "time"), default=None)
    if last is None or any(copy_depth(program, s) > last for s in program.staged):
        return 1
    return max(1, min(steps_repeated(program, last, unrolling) or 1, program.loops[last].trips))
