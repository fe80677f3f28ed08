"""The cost of packing: seconds to fill a panel or a box, by issue slots or by bandwidth, whichever takes longer."""

from __future__ import annotations

import math

from roller.cost.loops import NestWalk
from roller.cost.parameters import TRANSPOSE_SLOTS, Rates
from roller.ir.elementwise import Value, largest, least, where
from roller.ir.nest import Access, Nest
from roller.program.footprint import whole_tiles
from roller.program.halo import lane_step, turned
from roller.program.rprogram import StageProgram, Staging, copy_depth, panel_element_bytes
from roller.program.words import interleaves, steps_along, word_dim
from roller.target.hardware import HardwareSpec

DECODE_TRIPS = 2  # loop trips that take as long as dividing an index by a known extent, remainder included
INSERT_SLOTS = 2  # instructions that put one word into a vector: broadcast or move, then blend
ROW_TRIPS = 6  # loops around one row of a box: the row itself, three spans of it, their vectors and remainders


def copy_seconds(rates: Rates, walk: NestWalk, staging: Staging) -> float:
    """Computes the seconds of filling one panel or box over all trips outside it; 0 where the spec's levels already charge it."""
    spec = rates.spec
    if staging.constant or (spec.levels[staging.level].managed and staging.level):
        return 0.0  # the managed level's own term counts the copies that fill it
    program, geometry, nest = walk.program, walk.geometry, walk.program.nest
    depth = copy_depth(program, staging)
    tile = walk.tiles[depth]
    times = math.prod([lp.trips for lp in walk.loops[:depth]])
    if staging.kind == "box":
        held = geometry.held(staging.operand, tile)
        sources, width = [staging.operand], nest.accesses[staging.operand].element_bytes
        elements, trips = held.tile.elements * times, held.runs * times * ROW_TRIPS
    else:
        sources = [n for n, a in enumerate(nest.inputs) if a.factor == staging.operand]
        width = panel_element_bytes(nest, program.atom)
        elements = geometry.panel_elements(staging.operand, tuple(whole_tiles(tile, program.inner))) * times
        trips = _slot_trips(program, staging, elements)
    busy = walk.busy if staging.level else 1.0
    level = spec.levels[max(1, staging.level)]
    taken = geometry.held if staging.kind == "box" else geometry.read
    read = sum([taken(n, tile).moved(level.transaction_bytes) for n in sources]) * times
    written = elements * width
    # Reads of a copy inside the nest from further out are part of the traffic of those levels.
    issue = elements * element_slots(rates, program, staging), trips
    return float(packing_seconds(rates, staging.level, issue, read, written, times, busy))


def packing_seconds(
    rates: Rates, index: int, issue: tuple[Value, Value], read: Value, written: Value, times: Value, busy: Value
) -> Value:
    """Returns the seconds of filling a panel or box `times` times: by issue slots or by bandwidth, whichever takes longer.

    `index`: its level; `issue`: slots, and loop trips; `read`, `written`: bytes; `busy`: the share of the units that fill.
    """
    spec, (slots, trips), further = rates.spec, issue, rates.from_outside(busy)
    issued = slots / (rates.vector_slots * busy)
    issued = issued + trips * rates.parameters.trip_overhead_ns * 1e-9 / (spec.unit.count * largest(busy, 1e-9))
    fits = written <= (panel_room(spec, index) * times if index else rates.near_bytes)
    rate = where(fits, rates.into(spec.levels[index], busy), further) if index else further
    launch = 0.0 if index else spec.unit.launch_overhead_us * 1e-6
    moved = (read + where(fits, 0, 2 * written)) / rate
    return largest(issued, moved) + evicting_seconds(rates, index, written / largest(times, 1), times, busy) + launch


def evicting_seconds(rates: Rates, level: int, filled: Value, times: Value, units: Value) -> Value:
    """Returns the seconds in which what a copy writes leaves the caches inside its level that have no room for it.

    `filled`: bytes that it writes at a time. `times`: how often. `units`: the share of the units that do so.
    """
    seconds: Value = 0.0
    for cache in (cache for cache in rates.spec.levels[level + 1 :] if level and not cache.managed):
        leaves = least(1.0, largest(0.0, filled / (cache.capacity_bytes * cache.usable_fraction) - 1.0))
        seconds = largest(seconds, leaves * filled * times / rates.into(cache, units))
    return seconds


def panel_room(spec: HardwareSpec, level: int) -> int:
    """Returns the bytes that one unit may fill at this level, or in a cache outside it, before they spill to the outermost memory.

    That is half of the cache, as the data that the copy reads pass through it too.
    """
    caches = [lv for lv in spec.levels[1 : level + 1] if not lv.managed]
    return max((lv.usable_bytes // spec.units_sharing(lv) // 2 for lv in caches), default=0)


def _slot_trips(program: StageProgram, staging: Staging, elements: float) -> float:
    """Returns the trips of the loops that fill a panel: one a slot, two more for each division that decodes a fused reduction."""
    nest = program.nest
    touches = nest.factor_touches(staging.operand)
    mine = [a for a in nest.inputs if a.factor == staging.operand]
    slot = math.prod([t for t, x in zip(program.inner, touches, strict=True) if x])
    decoded = [i for i in nest.reduce if touches[i] and any(a.strides[i] is None for a in mine)]
    divisions = sum(len(nest.dims[i].members) - 1 for i in decoded)
    return elements / max(slot, 1) * (1 + DECODE_TRIPS * divisions)


def element_slots(rates: Rates, program: StageProgram, staging: Staging) -> float:
    """Returns the issue slots of copying one element: a load and a store, of vectors where source and copy are both contiguous.

    The first and the last vector of a row that reaches beyond its array are copied element by element.
    """
    slots, ends = _inside_slots(rates, program, staging), _ends(program, staging)
    return slots + ends * max(0.0, 2.0 * program.atom.width - slots)


def _ends(program: StageProgram, staging: Staging) -> float:
    """Returns the share of a panel's vectors at ends of rows of arrays that are read with guards: no box has been filled before."""
    nest, lane = program.nest, program.lane
    if staging.kind == "box" or lane is None or not nest.factor_touches(staging.operand)[lane]:
        return 0.0
    boxes = {s.operand for s in program.staged if s.kind == "box" and s.level <= staging.level}
    guarded = any(
        a.guarded and a.touches[lane] and n not in boxes for n, a in enumerate(nest.inputs) if a.factor == staging.operand
    )
    return min(1.0, 2 / -(-nest.extents[lane] // program.atom.width)) if guarded else 0.0


def _inside_slots(rates: Rates, program: StageProgram, staging: Staging) -> float:
    nest, lane = program.nest, program.lane
    width = program.atom.width
    vector = 2.0 * rates.parameters.copy_slots
    if staging.kind == "box" and interleaves(program, staging.operand):
        return _interleaving_slots(program.atom.depth)
    if staging.kind == "box":
        return vector + (TRANSPOSE_SLOTS * math.log2(width) if turned(program, staging.operand) else 0.0)
    mine = [a for a in nest.inputs if a.factor == staging.operand]
    if program.atom.depth > 1:
        return _word_slots(program, mine, width)
    if lane is None or not nest.factor_touches(staging.operand)[lane]:
        return vector * width
    boxes = {s.operand for s in program.staged if s.kind == "box"}
    moving = [(n, a) for n, a in enumerate(nest.inputs) if a.factor == staging.operand and a.touches[lane]]
    steps = [lane_step(program, n) if n in boxes else _lane_step(a, lane) for n, a in moving]
    if any(step != 1 for step in steps):
        return vector + TRANSPOSE_SLOTS * math.log2(width) if _transposes(program, mine) else vector * width
    return vector if all(a.strides[lane] == 1 or n in boxes for n, a in moving) else 2 * vector


def _word_slots(program: StageProgram, sources: list[Access], width: int) -> float:
    """Returns the issue slots of one operand in the words of a dot-product atom, by how its array lies.

    Along the words, one by one or in transposed blocks; along the vector, whose rows are interleaved; else operand by operand.
    """
    deep, depth = word_dim(program.atom, program.mapping), program.atom.depth
    lane = program.lane
    assert deep is not None and lane is not None
    along = all(a.strides[deep] == 1 for a in sources)
    if not all(a.touches[lane] for a in sources):
        rows = dict(program.mapping).get("m") if program.atom.registers is not None else None
        if rows is not None and (along or all(a.strides[rows] == 1 for a in sources)):
            return 2.0 / depth if along else (2.0 + TRANSPOSE_SLOTS * math.log2(depth * width)) / depth
        return 2.0 * width / (depth if along else 1)
    if along:
        blocks = _transposes(program, sources)
        return (2.0 + TRANSPOSE_SLOTS * math.log2(width) if blocks else (1.0 + INSERT_SLOTS) * width) / depth
    if all(a.strides[lane] == 1 for a in sources):
        return _interleaving_slots(depth)
    return 2.0 * width


def _interleaving_slots(depth: int) -> float:
    """Returns the issue slots of one operand where vectors of several rows become vectors of words."""
    return 1.0 + 1.0 / depth + TRANSPOSE_SLOTS * math.log2(depth)


def _lane_step(access: Access, dim: int) -> int:
    """Returns the address step between neighbours along the innermost member of a dimension."""
    steps = access.tensor.strides
    return sum(i.coefficient(access.innermost[dim]) * s for i, s in zip(access.index, steps, strict=True))


def _transposes(program: StageProgram, sources: list[Access]) -> bool:
    """True if blocks of vectors along a reduction can be transposed: the source is one plain array, contiguous there."""
    nest: Nest = program.nest
    along = [i for i in nest.reduce if steps_along(program, i)]
    plain = len(sources) == 1 and not sources[0].guarded and program.lane not in nest.reduce
    return plain and sources[0].strides[program.lane or 0] is not None and any(sources[0].strides[i] == 1 for i in along)
