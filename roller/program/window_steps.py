"""Windows in the innermost tiles of units without lanes: steps with all taps, and taps that are left out.

Neighbouring points of a tile share values of a window. A step with all taps loads each once. It takes as many vectors as it has
accumulators, one value of the window, and the values of all other factors at all taps. If the unit has fewer registers, a step
takes one tap, and loads each value once a tap. A loop over such steps leaves out the taps outside the array, if these add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from roller.ir.elementwise import Extent, Value, each, least, where
from roller.ir.nest import Nest
from roller.ir.padded_windows import PaddedWindow, padded_windows
from roller.ir.sliding_windows import MOST_TAPS, Window, windows
from roller.program.rprogram import StageProgram


@dataclass(frozen=True)
class WindowStep:
    """A factor, one of its windows, and the reduction whose taps are one step."""

    factor: int
    window: Window
    tap: int

    def vectors(self, program: StageProgram, inner: Sequence[Extent]) -> Value:
        """Returns the vectors that stay in registers, for one innermost tile or for an array of them."""
        nest, taps = program.nest, program.nest.extents[self.tap]
        others = [nest.factor_touches(f) for f in range(len(nest.factors)) if f != self.factor]
        held = [_vectors(program, inner, touches) for touches in others]
        return _vectors(program, inner, (True,) * len(nest.dims)) + 1 + taps * sum(held)

    def share(self, nest: Nest, inner: Sequence[Extent]) -> Value:
        """Returns the values that are loaded, over the points that read them."""
        steps, taps, points = dict(self.window.steps), nest.extents[self.tap], inner[self.window.spatial]
        length = 1 + steps[self.window.spatial] * (points - 1) + steps[self.tap] * (taps - 1)
        return least(1.0, length / (points * taps))


def window_steps(program: StageProgram) -> Iterator[WindowStep]:
    """Yields the steps that programs with this atom, mapping and these copies may have; the first with enough registers counts."""
    nest, panels = program.nest, {s.operand for s in program.staged if s.kind == "panel"}
    if program.atom.registers is not None or (program.lane is not None and nest.dims[program.lane].is_reduce):
        return
    for factor in range(len(nest.factors)):
        for window in windows(nest, factor) if factor not in panels else ():
            for tap in window.taps:
                if window.spatial != program.lane and 1 < nest.extents[tap] <= MOST_TAPS:
                    yield WindowStep(factor, window, tap)


def whole_loops(program: StageProgram) -> dict[int, int]:
    """Returns by dimension the loops that walk all of a reduction inside the innermost tile, one element a trip.

    Only there a step may take all taps of a window, or a loop leave out some: parts of a window differ from place to place.
    """
    numbers: dict[int, list[int]] = {}
    for number, lp in enumerate(program.loops):
        numbers.setdefault(lp.dim, []).append(number)
    single = {dim: found[0] for dim, found in numbers.items() if len(found) == 1 and program.nest.dims[dim].is_reduce}
    return {dim: n for dim, n in single.items() if n >= program.tile_depth and program.inner[dim] == 1}


def padded_loops(program: StageProgram) -> dict[int, PaddedWindow]:
    """Returns the loops that leave out taps of padded windows: inside the innermost tile, over all taps, one a trip.

    Where some point of every tile reads each tap, the number of trips is constant, and loops are unrolled.
    """
    found, whole = {}, whole_loops(program)
    for padded in padded_windows(program.nest):
        spatial = padded.window.spatial
        if padded.tap in whole and padded.share(program.nest.extents[spatial], program.inner[spatial]) < 1:
            found[whole[padded.tap]] = padded
    return found


def computed_taps(program: StageProgram, inner: Sequence[Extent], registers: int, taps: Sequence[PaddedWindow]) -> Value:
    """Returns the share of the steps that loops over these taps compute, for one innermost tile or for an array of them.

    Taps that a step takes all at once are not left out.
    """
    nest, found = program.nest, 1.0
    for padded in taps:
        positions = nest.extents[padded.window.spatial]
        share = each(partial(padded.share, positions), inner[padded.window.spatial])
        for step in window_steps(program):
            if step.tap == padded.tap:
                fits = (step.vectors(program, inner) <= registers) & (inner[step.window.spatial] > 1)
                share = where(fits, 1.0, share)
        found = found * where(inner[padded.tap] == 1, share, 1.0)
    return found


def _vectors(program: StageProgram, inner: Sequence[Extent], touches: Sequence[bool]) -> Value:
    """Returns the different vectors of a tile along the spatial dimensions that some values depend on."""
    found = [-(-inner[d] // program.width) if d == program.lane else inner[d] for d in program.nest.spatial if touches[d]]
    return math.prod(found)
