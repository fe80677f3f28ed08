"""What lanes read from panels and arrays, and the instructions for it, for arrays of tile chains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roller.cost.model import Model
from roller.ir.elementwise import Value
from roller.ir.nest import Access
from roller.ir.sliding_windows import stored_extents, windows
from roller.layout.banks import WIDEST_ACCESS
from roller.program.rprogram import Staging, panel_element_bytes
from roller.search.funnel.lattice import Tiles
from roller.search.funnel.placed import Placed
from roller.search.funnel.placed_fills import widest_access

APART = 1 << 40  # more than any tile reads


@dataclass(frozen=True)
class Slots:
    """A lane's issue slots for one innermost tile, beside arithmetic: of all other instructions, and of filling panels alone."""

    together: Value
    filling: Value


def group_along(placed: Placed) -> Tiles:
    """Returns the lanes of a group along each dimension, powers of two (`roller.layout.lanes.group_tile`)."""
    spec, atom = placed.space.spec, placed.base.atom
    lanes = spec.levels[-1].access_lanes
    group = lanes // atom.lanes if atom.kind == "matrix" else lanes
    trips, found = placed.lanes_along, np.ones_like(placed.unit)
    if placed.space.fit.cooperate:
        return _neighbours(placed, trips, group)
    places, order = np.arange(found.shape[1]), _preferred(placed)
    for _ in range(max(group, 1).bit_length() - 1 if order else 0):
        reads = np.array([np.where(found[d] * 2 <= trips[d], _read_with(placed, found, d), APART) for d in order])
        best = reads.argmin(axis=0)  # of equal ones the first
        found[np.array(order)[best], places] *= np.where(reads[best, places] < APART, 2, 1)
    return found


def _preferred(placed: Placed) -> list[int]:
    """Returns the spatial dimensions: those along which panels' runs lie, then the others, innermost first."""
    nest, inwards = placed.nest, (*placed.nest.reduce, *placed.nest.spatial)
    runs = {max([d for d in inwards if nest.factor_touches(s.operand)[d]], key=inwards.index) for s in _read_panels(placed)}
    return sorted(nest.spatial, key=lambda d: (d not in runs, d if d in runs else -d))


def _read_panels(placed: Placed) -> list[Staging]:
    return [s for s in placed.base.staged if placed.base.atom.kind != "matrix"]


def _read_with(placed: Placed, found: Tiles, dim: int) -> Value:
    """Returns the elements that a group would read with twice as many lanes along a dimension; those apart count twice."""
    nest, panels, along = placed.nest, _read_panels(placed), placed.inner * found
    if not panels:
        return along[dim]
    total: Value = 0
    for staging in panels:
        touches = nest.factor_touches(staging.operand)
        elements = math.prod([along[d] for d, t in enumerate(touches) if t])
        if touches[dim]:
            outside = [along[d] < placed.unit[d] for d in nest.spatial if touches[d] and d > dim]
            elements = 2 * elements * (np.where(np.logical_or.reduce(outside), 2, 1) if outside else 1)
        total = total + elements
    return total


def _neighbours(placed: Placed, trips: Tiles, group: int) -> Tiles:
    nest, found = placed.nest, np.ones_like(trips)
    left = np.full(trips.shape[1], group)
    order = sorted(range(len(trips)), key=lambda d: (d in nest.columns, nest.output.strides[d] == 1, d))
    for d in reversed(order):
        found[d] = np.minimum(trips[d], left)
        left = np.maximum(1, left // found[d])
    return found


def reading_bytes(placed: Placed, group: Tiles, cut_off: bool = True) -> Value:
    """Returns the bytes that move into and out of the memory of lanes over the whole stage, group by group.

    `cut_off`: groups at the end of a tile that are not full read as much as others.
    """
    level, total = placed.space.spec.levels[-1], 0.0
    panels = {s.operand: s for s in placed.base.staged}
    tile, seen = placed.inner * group, set[int]()
    groups = math.prod(-(-placed.lanes_along // group) if cut_off else placed.lanes_along / group)
    for number, access in enumerate(placed.nest.accesses):
        body = access.role == "body"
        times = _times(placed, access.touches, body, groups)
        if body and access.factor in panels:
            if access.factor not in seen:
                seen.add(access.factor)
                touches = placed.nest.factor_touches(access.factor)
                moved = _panel_bytes(placed, panels[access.factor], touches, group)
                total = total + moved * _times(placed, touches, True, groups) * _again(placed, touches)
        else:
            moved = placed.space.fit.geometry.reads(number, tile).moved(level.transaction_bytes)
            if placed.base.atom.kind != "matrix":
                moved = np.maximum(moved, lines_bytes(placed, access, group))
            total = total + moved * times
    return total


def _panel_bytes(placed: Placed, staging: Staging, touches: tuple[bool, ...], group: Tiles) -> Value:
    """Returns the bytes that a lane group reads of a panel for one innermost tile: whole transactions of all banks."""
    spec, width = placed.space.spec, panel_element_bytes(placed.nest, placed.base.atom)
    banks = spec.levels[staging.level].banks
    if banks is None or placed.base.atom.kind == "matrix":
        return placed.elements(staging.operand, placed.inner * group) * width
    together = math.prod([group[d] for d, t in enumerate(touches) if t])
    accesses, each = _accesses(placed, staging)
    row = banks.count * banks.width_bytes
    return accesses * np.ceil(together * each * width / row) * row


def _accesses(placed: Placed, staging: Staging) -> tuple[Value, Value]:
    """Returns the accesses with which a lane reads its part of a panel for one innermost tile, and the elements of one."""
    extent = _run(placed, staging)
    along = _pieces(extent, WIDEST_ACCESS // panel_element_bytes(placed.nest, placed.base.atom))
    return placed.elements(staging.operand, placed.inner) / extent * along, extent / along


def _pieces(extent: Value, widest: int) -> Value:
    """Returns the number of accesses that read so many neighbours (`roller.layout.banks.pieces`)."""
    found = extent // widest
    while widest > 1:
        widest //= 2
        found = found + extent // widest % 2
    return found


def _run(placed: Placed, staging: Staging) -> Value:
    """Returns the extent of innermost tiles along a panel's runs."""
    nest, windowed = placed.nest, placed.space.fit.windowed and bool(windows(placed.nest, staging.operand))
    touches = nest.factor_touches(staging.operand)
    unit = stored_extents(nest, staging.operand, placed.unit) if windowed else placed.unit
    inner = stored_extents(nest, staging.operand, placed.inner) if windowed else placed.inner
    extent = np.ones(placed.unit.shape[1], dtype=np.int64)
    for d in (*nest.reduce, *nest.spatial):  # the last one with several values decides
        if touches[d]:
            extent = np.where(unit[d] > 1, inner[d], extent)
    return extent


def _again(placed: Placed, touches: tuple[bool, ...]) -> Value:
    """Returns how often an innermost tile reads an operand that its atoms do not keep (`roller.cost.traffic`)."""
    spec, atom = placed.space.spec, placed.base.atom
    if not spec.in_place(atom):
        return 1
    across = [(d, e) for role, d in placed.base.mapping if isinstance(e := atom.extents[role], int) and not touches[d]]
    return math.prod([-(-placed.inner[d] // e) for d, e in across])


def _times(placed: Placed, touches: tuple[bool, ...], steps: bool, groups: Value) -> Value:
    """Returns how often lane groups load a tile of an array; `steps`: at every step of a reduction that changes it."""
    times: Value = placed.unit_tiles * groups
    changed: Value = np.zeros(placed.parts.shape, dtype=bool)
    for trips in (placed.turns, placed.fill_trips) if steps else ():
        for d in reversed(placed.nest.reduce):
            changed = changed | ((trips[d] > 1) & touches[d])
            times = times * np.where(changed, trips[d], 1)
    return times


def reading_slots(placed: Placed, model: Model) -> Slots:
    """Returns a lane's instructions beside arithmetic (`roller.cost.issue.Issued.beside`)."""
    given, reads, filling = model.parameters, 0.0, 0.0
    if placed.space.lane_level is None or not placed.base.staged:
        return Slots(0.0, 0.0)
    turns = math.prod(placed.turns)
    for staging in placed.base.staged:
        reads = reads + _accesses(placed, staging)[0]
        accesses, follows = placed.fill_accesses(staging)
        guarded = any(a.guarded for a in placed.nest.inputs if a.factor == staging.operand)
        each = given.fill_slots + np.where(follows, 0.0, given.place_slots) + (given.guard_slots if guarded else 0.0)
        filling = filling + accesses / turns * each
    filling = filling + given.step_slots / turns
    return Slots(reads + filling, filling)


def lines_bytes(placed: Placed, access: Access, group: Tiles) -> Value:
    """Returns the bytes of the lines that a lane group touches for one innermost tile (`roller.layout.coalescing`)."""
    spec, level, size = placed.space.spec, placed.space.spec.levels[-1], access.element_bytes
    along = next((d for d, s in enumerate(access.strides) if s == 1 and access.touches[d]), None)
    width: Value = 1
    if along is not None:
        width = np.gcd(placed.inner[along], widest_access(access, along, placed.nest.extents[along]))
    elements = math.prod([placed.inner[d] for d, t in enumerate(access.touches) if t])
    beside = group[along] if along is not None else 1
    apart: Value = 1
    for d in [d for d, t in enumerate(access.touches) if t and d != along]:
        step = access.strides[d]
        near = level.transaction_bytes if step is None else min(abs(step) * size, level.transaction_bytes)
        apart = apart * -(-group[d] * near // level.transaction_bytes)
    touched = -(-beside * width * size // level.transaction_bytes)
    least = spec.levels[placed.space.levels[0]].transaction_bytes if access.role == "output" else 1
    partly = np.where(beside * width * size < least * touched, placed.space.model.parameters.scattered_stores, 1.0)
    return elements / width * apart * touched * partly * level.transaction_bytes
