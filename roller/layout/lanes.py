"""Lane groups: which lanes of a unit run in lockstep, and how often a group accesses the banks for its panel reads.

A lane reads its points along a panel's rows in pieces of neighbours, each with one access. All banks together serve one access of a
lane group (warp, wavefront). It takes a whole transaction, however few words it moves, and as many transactions as the busiest bank
has words to serve.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from roller.ir.sliding_windows import Window
from roller.layout.banks import WIDEST_ACCESS, laid_tile, panel_steps, pieces, run_dim, windows_of
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes, staged_touches
from roller.target.hardware import Banks, HardwareSpec


def lanes_along(program: StageProgram) -> dict[int, int]:
    """Returns the lanes along each dimension over which they are spread."""
    return {lp.dim: lp.trips for lp in program.loops if lp.over == "lanes"}


def lane_order(program: StageProgram) -> tuple[int, ...]:
    """Returns the dimensions over which lanes are spread; neighbouring lanes lie along the last one.

    The order ends with the output's contiguous dimension and then the reductions.
    """
    nest = program.nest
    return tuple(sorted(lanes_along(program), key=lambda d: (d in nest.columns, nest.output.strides[d] == 1, d)))


def group_tile(program: StageProgram, group: int) -> dict[int, int]:
    """Returns the lanes of one group along each dimension over which lanes are spread, in powers of two.

    Where panels hold the operands, the group takes the block of sub-tiles that reads least together (`blocked`) and divides the
    unit's tile. Of equal blocks it takes the one along the panels' runs, or near them. Where lanes share reductions, the group
    takes neighbours, which exchange values. Otherwise, and before the unit's tile is chosen, it takes a block as square as possible
    in points.
    """
    trips, whole = lanes_along(program), len(program.tiles) > 1
    if whole and any(d in program.nest.columns for d in trips):
        return _neighbours(program, group)
    reads = _GroupReads.of(program) if whole and blocked(program) else None
    block = dict.fromkeys(trips, 1)
    while math.prod(block.values()) < group:
        free = [d for d in trips if block[d] * 2 <= trips[d] and (reads is None or trips[d] % (block[d] * 2) == 0)]
        if not free:
            break
        longer = min(free, key=lambda d: (block[d] * program.inner[d], d) if reads is None else reads.doubled(block, d))
        block[longer] *= 2
    return block


@dataclass(frozen=True, slots=True)
class _GroupReads:
    """What a block of lanes reads of the panels: the dimensions of each one, and those along which their runs lie."""

    program: StageProgram
    panels: tuple[tuple[int, ...], ...]
    runs: frozenset[int | None]

    @classmethod
    def of(cls, program: StageProgram) -> _GroupReads:
        touched = [staged_touches(program.nest, s) for s in program.staged]
        panels = tuple([tuple([d for d, t in enumerate(touches) if t]) for touches in touched])
        return cls(program, panels, frozenset([run_dim(program.nest, touches, program.unit_tile) for touches in touched]))

    def doubled(self, block: Mapping[int, int], dim: int) -> tuple[int, bool, int]:
        """Returns the elements that a block twice as long along `dim` reads, then the distance of `dim` from the runs (for ties).

        Elements that lie apart count twice.
        """
        tile = [points * block.get(d, 1) * (2 if d == dim else 1) for d, points in enumerate(self.program.inner)]
        read = sum(math.prod([tile[d] for d in panel]) * (2 if self._apart(block, dim, panel) else 1) for panel in self.panels)
        return read, dim not in self.runs, dim if dim in self.runs else -dim

    def _apart(self, block: Mapping[int, int], dim: int, panel: tuple[int, ...]) -> bool:
        """True if neighbours along `dim` lie outside the block's part of the panel's row, possibly in the same banks."""
        program, inner = self.program, [d for d in panel if d > dim and d in self.program.nest.spatial]
        return dim in panel and any(block.get(d, 1) * program.inner[d] < program.unit_tile[d] for d in inner)


def _neighbours(program: StageProgram, group: int) -> dict[int, int]:
    """Returns the lanes of a group along each dimension, in the order in which lanes are numbered."""
    trips = lanes_along(program)
    found, left = dict.fromkeys(trips, 1), group
    for dim in reversed(lane_order(program)):
        found[dim] = min(trips[dim], left)
        left = max(1, left // found[dim])
    return found


def blocked(program: StageProgram) -> bool:
    """True if a lane group takes a block of neighbouring sub-tiles, which it does where panels hold the operands.

    Lanes that share a reduction are neighbours, and those that read arrays follow the array.
    """
    dims = program.nest.dims
    return bool(program.staged) and program.atom.kind != "matrix" and not any(dims[d].is_reduce for d in lanes_along(program))


def lane_digits(program: StageProgram, group: int) -> list[tuple[int, int, int]]:
    """Returns the digits of lane numbers, outermost first, those inside a group last.

    A digit is a dimension, the lanes along it, and how many lanes further along it the next one is.
    """
    lanes, order = lanes_along(program), lane_order(program)
    near = group_tile(program, group) if blocked(program) else {}
    inside = [(d, near[d], 1) for d in order if near.get(d, 1) > 1]
    return [*((d, lanes[d] // near.get(d, 1), near.get(d, 1)) for d in order if lanes[d] > near.get(d, 1)), *inside]


def lane_pieces(program: StageProgram, dim: int) -> tuple[int, ...]:
    """Returns the pieces of neighbours that a lane has along a dimension, one after another.

    They are as wide as an access may be to a panel whose runs go along the dimension, else to an array that lanes access in place.
    Without either, they are single points. It is one piece where windows of a windowed panel slide along the dimension, as the
    values of neighbouring lanes overlap.
    """
    nest, tile = program.nest, program.unit_tile
    if program.windowed and any(dim == w.spatial for s in program.staged for w in windows_of(nest, s)):
        return (program.inner[dim],)
    panels = [s for s in program.staged if s.kind == "panel"]
    along = [s for s in panels if run_dim(nest, staged_touches(nest, s), tile) == dim]
    held = {s.operand for s in panels}
    sizes = [a.element_bytes for a in nest.accesses if a.strides[dim] == 1 and not (a.role == "body" and a.factor in held)]
    size = panel_element_bytes(nest, program.atom) if along else min(sizes, default=WIDEST_ACCESS)
    widest = max(1, WIDEST_ACCESS // size)
    while widest > max(nest.extents[dim], 1):
        widest //= 2
    return pieces(program.inner[dim], widest)


def accesses(program: StageProgram, staging: Staging) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """Returns the dimension along which a lane reads neighbours in a panel (None if there is none), and its accesses.

    An access is its elements, and the elements to the next lane's access, which are those of the piece that it is a part of. Pieces
    are cut where the addresses of others are no multiples of them.
    """
    nest, touches, tile = program.nest, staged_touches(program.nest, staging), program.unit_tile
    run, widest = run_dim(nest, touches, laid_tile(nest, staging, tile)), WIDEST_ACCESS // panel_element_bytes(nest, program.atom)
    if run is None:
        return None, ((1, 1),)
    steps, _ = panel_steps(nest, staging, tile, nest.spatial, nest.reduce)
    window = next((w for w in windows_of(nest, staging) if w.spatial == run), None)
    if window is not None:
        return run, _passed(program, window, widest, steps)
    others = [s for d, s in enumerate(steps) if d != run and touches[d] and tile[d] > 1]
    if nest.extents[run] < tile[run]:
        others.append(nest.extents[run])  # boundary tiles are shifted inwards to its end
    while any(s % widest for s in others):
        widest //= 2
    return run, tuple((width, piece) for piece in lane_pieces(program, run) for width in pieces(piece, widest))


def reads(program: StageProgram) -> int:
    """Returns the accesses with which a lane reads its parts of all panels, for one innermost tile."""
    found = 0
    for staging in program.staged:
        touches, (run, each) = staged_touches(program.nest, staging), accesses(program, staging)
        inner = laid_tile(program.nest, staging, program.inner)
        found += len(each) * math.prod([inner[d] for d, t in enumerate(touches) if t and d != run])
    return found


def transactions(program: StageProgram, staging: Staging, group: Mapping[int, int], banks: Banks) -> int:
    """Returns the transactions in which the lanes of a group (`group_tile`) read their parts of an innermost tile's operand."""
    nest, touches = program.nest, staged_touches(program.nest, staging)
    size = panel_element_bytes(nest, program.atom)
    run, each = accesses(program, staging)
    inner = laid_tile(nest, staging, program.inner)
    together = {d: n for d, n in group.items() if touches[d] and n > 1}
    steps, _ = panel_steps(nest, staging, program.unit_tile, nest.spatial, nest.reduce)
    apart = {d: lane_pieces(program, d)[0] * steps[d] for d in together if d != run}
    found = 0
    for width, piece in each:
        found += _busiest(tuple([(n, apart.get(d, piece)) for d, n in together.items()]), width, size, banks)
    return found * math.prod([inner[d] for d, t in enumerate(touches) if t and d != run])


def runs_padded(program: StageProgram, staging: Staging, spec: HardwareSpec, banks: Banks) -> Staging:
    """Returns a panel with padded runs, where rows have several runs.

    Lanes can then read with wide accesses, and the lanes of a group in different banks. The padding is the smallest one with the
    fewest transactions of the group.
    """
    nest, touches = program.nest, staged_touches(program.nest, staging)
    tile, inner = laid_tile(nest, staging, program.unit_tile), laid_tile(nest, staging, program.inner)
    run, size = run_dim(nest, touches, tile), panel_element_bytes(nest, program.atom)
    runs = math.prod([tile[d] for d in nest.spatial if touches[d] and d != run])
    if program.atom.kind == "matrix" or run is None or nest.dims[run].is_reduce or runs == 1 or len(program.tiles) == 1:
        return staging
    wide, lanes = max(pieces(inner[run], WIDEST_ACCESS // size)), spec.levels[-1].access_lanes
    least, group = -tile[run] % wide, group_tile(program, lanes)
    choices = [replace(staging, run_padding=padding) for padding in sorted({0, least, least + wide})]
    return min(choices, key=lambda choice: (transactions(program, choice, group, banks), choice.run_padding))


def _passed(program: StageProgram, window: Window, widest: int, steps: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Returns the accesses of a lane to the values under its sliding window, in a panel with these steps."""
    along, inner, unit = dict(window.steps), program.inner, program.unit_tile
    apart = [n * inner[d] for d, n in window.steps if unit[d] > inner[d]]
    across = [s for d, s in enumerate(steps) if s and d not in along and unit[d] > 1]
    while any(s % widest for s in (*apart, *across)):
        widest //= 2
    return tuple((width, along[window.spatial] * inner[window.spatial]) for width in pieces(window.length(inner), widest))


@lru_cache(maxsize=1 << 16)
def _busiest(lanes: tuple[tuple[int, int], ...], width: int, size: int, banks: Banks) -> int:
    """Returns the words that the busiest bank serves where lanes read `width` elements each.

    `lanes`: for each dimension the number of lanes along it, and how many elements they lie apart.
    """
    starts = {0}
    for count, step in lanes:
        starts = {start + number * step for start in starts for number in range(count)}
    unit = banks.width_bytes
    words = {w for s in starts for w in range(s * size // unit, -(-(s + width) * size // unit))}
    return max(Counter(word % banks.count for word in words).values(), default=1)
