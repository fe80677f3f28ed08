"""Which lanes of a unit run in step, and how often their group goes to a memory of banks for what it reads of a panel.

A lane reads its points along a panel's rows in pieces of neighbours, each with one access. What the lanes of a group read with one
access is served by all banks at a time: it takes a whole transaction, however few words it moves, and as many as the busiest bank
has words to give.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from roller.ir.sliding_windows import Window
from roller.layout.banks import WIDEST_ACCESS, laid_tile, panel_steps, pieces, run_dim, windows_of
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes, staged_touches
from roller.target.hardware import Banks, HardwareSpec


def lanes_along(program: StageProgram) -> dict[int, int]:
    """Lanes along each dimension over which they are spread."""
    return {lp.dim: lp.trips for lp in program.loops if lp.over == "lanes"}


def lane_order(program: StageProgram) -> tuple[int, ...]:
    """Dimensions over which lanes are spread, the one along which neighbouring lanes lie last: reductions, then the output's
    contiguous dimension.
    """
    nest = program.nest
    return tuple(sorted(lanes_along(program), key=lambda d: (d in nest.columns, nest.output.strides[d] == 1, d)))


def group_tile(program: StageProgram, group: int) -> dict[int, int]:
    """Lanes of one group along each dimension over which lanes are spread, in powers of two.

    Where panels hold what lanes read, the group takes the block of sub-tiles that reads least together (`blocked`), which divides
    the unit's tile, of equal ones that along the panels' runs, or near them; where lanes share reductions, their neighbours, who
    exchange values; else, and while no unit's tile is chosen, one as square as it gets in points.
    """
    trips, inner, spatial = lanes_along(program), program.inner, program.nest.spatial
    if len(program.tiles) > 1 and any(d in program.nest.columns for d in trips):
        return _neighbours(program, group)
    found, together = dict.fromkeys(trips, 1), blocked(program) and len(program.tiles) > 1
    touched = [staged_touches(program.nest, s) for s in program.staged]
    operands = [[d for d, t in enumerate(touches) if t] for touches in touched]
    runs = {run_dim(program.nest, touches, program.unit_tile) for touches in touched} if together else set()

    def apart(dim: int, dims: list[int]) -> bool:
        """True if neighbours along a dimension are none of what the group has of a panel's row, which may lie in their banks."""
        return dim in dims and any(d > dim and found.get(d, 1) * inner[d] < program.unit_tile[d] for d in dims if d in spatial)

    def read(dim: int) -> tuple[int, bool, int]:
        """Elements that the group would read with twice as many lanes along a dimension, twice those that lie apart; and for ties
        how far it is from runs.
        """
        if not together:
            return found[dim] * inner[dim], False, dim
        twice = [inner[d] * found.get(d, 1) * (2 if d == dim else 1) for d in range(len(inner))]
        read = sum(math.prod([twice[d] for d in dims]) * (2 if apart(dim, dims) else 1) for dims in operands)
        return read, dim not in runs, dim if dim in runs else -dim

    while math.prod(found.values()) < group:
        free = [d for d in trips if found[d] * 2 <= trips[d] and not (together and trips[d] % (found[d] * 2))]
        if not free:
            break
        found[min(free, key=read)] *= 2
    return found


def _neighbours(program: StageProgram, group: int) -> dict[int, int]:
    """Lanes of a group along each dimension, in the order in which lanes are numbered."""
    trips = lanes_along(program)
    found, left = dict.fromkeys(trips, 1), group
    for dim in reversed(lane_order(program)):
        found[dim] = min(trips[dim], left)
        left = max(1, left // found[dim])
    return found


def blocked(program: StageProgram) -> bool:
    """True if a lane group takes a block of neighbouring sub-tiles: where panels hold what they read. Lanes that share a reduction
    are neighbours, and those that read arrays follow the array.
    """
    dims = program.nest.dims
    return bool(program.staged) and program.atom.kind != "matrix" and not any(dims[d].is_reduce for d in lanes_along(program))


def lane_digits(program: StageProgram, group: int) -> list[tuple[int, int, int]]:
    """How the numbers of lanes are made up, outermost digit first, those inside a group last: a dimension, lanes along it, and how
    many lanes further along it the next one is.
    """
    lanes, order = lanes_along(program), lane_order(program)
    near = group_tile(program, group) if blocked(program) else {}
    inside = [(d, near[d], 1) for d in order if near.get(d, 1) > 1]
    return [*((d, lanes[d] // near.get(d, 1), near.get(d, 1)) for d in order if lanes[d] > near.get(d, 1)), *inside]


def lane_pieces(program: StageProgram, dim: int) -> tuple[int, ...]:
    """The pieces of neighbours that a lane has along a dimension, one after another: as wide as an access may be to a panel whose
    runs go along it, else to an array that lanes touch where it is; single points where neither is. One piece where a panel holds
    what windows pass over along it: those of a lane's neighbours overlap.
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
    """The dimension along which a lane reads neighbours in a panel, None if there is none, and its accesses: of each the elements,
    and how many elements further the next lane has its own: those of the piece that it is a part of. Pieces are cut where the
    places of others are no multiples of them.
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
        others.append(nest.extents[run])  # lanes move back to its end
    while any(s % widest for s in others):
        widest //= 2
    return run, tuple((width, piece) for piece in lane_pieces(program, run) for width in pieces(piece, widest))


def reads(program: StageProgram) -> int:
    """Accesses with which a lane reads its parts of all panels, for one innermost tile."""
    found = 0
    for staging in program.staged:
        touches, (run, each) = staged_touches(program.nest, staging), accesses(program, staging)
        inner = laid_tile(program.nest, staging, program.inner)
        found += len(each) * math.prod([inner[d] for d, t in enumerate(touches) if t and d != run])
    return found


def transactions(program: StageProgram, staging: Staging, group: Mapping[int, int], banks: Banks) -> int:
    """How often the lanes of a group (`group_tile`) go to the banks for their parts of an innermost tile's operand, together."""
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
    """A panel with as many elements added to each run, where rows have several, as lanes want to read them with wide accesses and
    a group of them in different banks: the fewest with which it goes to the banks least often.
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
    """The accesses of a lane to what its window passes over in a panel with these steps."""
    along, inner, unit = dict(window.steps), program.inner, program.unit_tile
    apart = [n * inner[d] for d, n in window.steps if unit[d] > inner[d]]
    across = [s for d, s in enumerate(steps) if s and d not in along and unit[d] > 1]
    while any(s % widest for s in (*apart, *across)):
        widest //= 2
    return tuple((width, along[window.spatial] * inner[window.spatial]) for width in pieces(window.length(inner), widest))


@lru_cache(maxsize=1 << 16)
def _busiest(lanes: tuple[tuple[int, int], ...], width: int, size: int, banks: Banks) -> int:
    """Words that the busiest bank gives, where lanes so many along each dimension, so many elements apart, read `width` each."""
    starts = {0}
    for count, step in lanes:
        starts = {start + number * step for start in starts for number in range(count)}
    unit = banks.width_bytes
    words = {w for s in starts for w in range(s * size // unit, -(-(s + width) * size // unit))}
    return max(Counter(word % banks.count for word in words).values(), default=1)
