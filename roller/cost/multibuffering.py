"""Copies of panels that go around between those who fill them and those who use them: how long units wait for one.

A copy is filled, which takes the latency and the transfer (W and X for all fills of a unit), then used (C for all of them).

    several copies                             (W + X) / (R (D - 1))    all but one of D copies of R tiles are under way
    others fill them, or there is one copy     (W + X + C) / (R D)      each copy goes around by itself
    lanes that do nothing else carry them      W / R                    they fill one copy after another

The second is what the cycle of a closed queue allows, the first what it allows if nothing is started before a step ends. Where
others fill copies for atoms that read them in place, both hold: a copy is given back once the next one is in use. The third holds
beside them, and W then has the instructions of those lanes, too. What of it neither using nor moving covers is waited for. With
no transfer and no use the first two are Little's law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller.cost.issue import Issued
from roller.cost.loops import NestWalk
from roller.cost.occupancy import copies_around, lane_groups
from roller.cost.parameters import Rates
from roller.cost.traffic import level_traffic
from roller.cost.unrolling import steps_together
from roller.ir.nest import Access
from roller.program.rprogram import StageProgram, Staging, copy_depth


def waiting_seconds(rates: Rates, walk: NestWalk, index: int, resident: int, using: float, moving: float) -> float:
    """Seconds in which units or lanes wait for what comes into a level; arguments as of `ring_seconds`."""
    waited = ring_seconds(rates, walk, index, resident, using, moving)
    if index == walk.program.levels[0]:
        waited = max(waited, reading_seconds(rates, walk, index, resident, using, moving))
    if index == len(walk.spec.levels) - 1:
        waited = max(waited, operand_seconds(rates, walk, resident, using, moving))
    return waited


def ring_seconds(rates: Rates, walk: NestWalk, index: int, resident: int, using: float, moving: float) -> float:
    """Seconds of waiting for panels at a level. `using`, `moving`: what using all of them takes, and moving all that is moved into
    the level; `resident`: tiles on a unit at a time.
    """
    program, level = walk.program, walk.spec.levels[index]
    panels = [s for s in program.staged if s.level == index]
    if not panels or not level.latency_ns or not level.managed:
        return 0.0
    depth, carried = copies_around(program, walk.spec, index), _carried(walk, panels)
    waits = _latencies(rates, walk, index, panels) + carried
    filling = waits + _transfers(rates, walk, index)
    ahead = filling / (resident * max(1, depth - 1))  # of an atom's copies too: each is given back when the next one is in use
    if depth == 1 or walk.spec.in_place(program.atom):
        ahead = max((filling + using) / (resident * depth), ahead, waits / resident if carried else 0.0)
    return max(0.0, ahead - (using + moving if resident * depth == 1 else max(using, moving)))


def reading_seconds(rates: Rates, walk: NestWalk, index: int, resident: int, using: float, moving: float) -> float:
    """Seconds in which lanes wait for what they read from outside a level where nobody staged it. A lane starts what it reads for
    one step of a unit's tile (for as many as stand one after another) at a time, no more than its compiler keeps on its way, and
    waits for that; other tiles go on meanwhile, and other parts of its tile. Each goes around through waiting, moving and using, as
    copies of a panel do: n of them take at least an n-th of what one takes. Of what others hide the level's overlap number is lost.
    Arguments as of `ring_seconds`.
    """
    program, level = walk.program, walk.spec.levels[index]
    if program.lane_level is None or walk.spec.spread:
        return 0.0
    copied = {s.operand for s in program.staged if s.kind == "panel"}
    read = [a for a in program.nest.inputs if a.factor not in copied]
    if not read or not level.latency_ns or not level.managed or program.atom.kind == "matrix":
        return 0.0
    loops = [lp for lp in program.loops if lp.over != "lanes"]
    last = max((n for n, lp in enumerate(loops, 1) if any(a.touches[lp.dim] for a in read)), default=0)
    together = steps_together(program, walk.parameters.unrolling)
    units = walk.spec.unit.count * max(rates.busy(program), 1e-9)
    steps = math.prod([lp.trips for lp in loops[:last]]) / together / units
    waits = steps * _turns(walk, read, together) * _latency(walk, index)
    panels = [s for s in program.staged if s.level == index]
    if panels and copies_around(program, walk.spec, index) == 1:
        waits += _latencies(rates, walk, index, panels)  # one after the other: lanes read behind the barrier after a fill
    others, share = max(using, moving), max(1.0, min(float(resident), program.unit_tiles / units))
    cycle = waits / share + (using + moving) / (share * _parts(walk, together, bool(copied)))
    return max(0.0, cycle - others) + walk.spec.loss(level) * min(cycle, others)


def _parts(walk: NestWalk, together: float, copied: bool) -> int:
    """Parts of a tile that go on while others of it wait: its groups of lanes, where it has several steps that do not all stand
    `together`; those of a partition meet where panels are filled from step to step. All of a tile with one step begin and end
    together.
    """
    groups = max(1, walk.program.lanes // walk.spec.unit.lane_group)
    if math.prod([lp.trips for lp in walk.program.loops if lp.over == "time"]) <= together:
        return 1
    return min(groups, walk.spec.partitions) if copied else groups


def _turns(walk: NestWalk, read: Sequence[Access], together: int) -> float:
    """How often a lane waits for what it reads for so many steps, as its compiler keeps only some bytes on their way."""
    if not walk.parameters.reading_bytes:
        return 1.0
    inner = walk.program.inner
    step = sum(a.element_bytes * math.prod([e for e, t in zip(inner, a.touches, strict=True) if t]) for a in read)
    return max(1.0, step * together / walk.parameters.reading_bytes)


def operand_seconds(rates: Rates, walk: NestWalk, resident: int, using: float, moving: float) -> float:
    """Seconds in which lanes wait for what they read of panels. A group of lanes reads for the steps of a body (those that stand
    one after another), waits for the first of them, and computes; meanwhile the other groups of its partition go on. Where panels
    are filled all groups of a tile come to their first product at the same time, and only other tiles go on. Arguments as of
    `ring_seconds`, at the innermost level.
    """
    program, level, parameters = walk.program, walk.spec.levels[-1], walk.parameters
    panels = [s for s in program.staged if s.kind == "panel"] if program.lane_level is not None else []
    if not panels or not parameters.lanes_wait or not level.latency_ns or walk.spec.in_place(program.atom):
        return 0.0
    units = walk.spec.unit.count * max(rates.busy(program), 1e-9)
    together = steps_together(program, parameters.unrolling)
    bodies = math.prod([lp.trips for lp in program.loops if lp.over != "lanes"]) / together / units
    fills = math.prod([lp.trips for lp in program.loops[: max(copy_depth(program, s) for s in panels)]]) / units
    begun, waits = fills * parameters.begin_ns * 1e-9, bodies * level.latency_ns * 1e-9
    groups = max(1.0, lane_groups(program, walk.spec) / walk.spec.partitions)
    cycle = begun + max(waits + (using + moving / together) / groups, using)
    return max(0.0, cycle / resident - max(using, moving))


def _latency(walk: NestWalk, index: int) -> float:
    """Seconds until what comes into a level is there: the level's, and the next outer one's for the share that comes from there."""
    level, moved = walk.spec.levels[index], level_traffic(walk, index).bytes
    further = walk.spec.levels[index - 1].latency_ns if index > 1 and moved else 0.0
    share = min(1.0, level_traffic(walk, index - 1).bytes / moved) if further else 0.0
    return (level.latency_ns + share * further) * 1e-9


def _latencies(rates: Rates, walk: NestWalk, index: int, panels: Sequence[Staging]) -> float:
    """The latencies of all fills of a unit, one after another: the level's, and that of the next outer one for the share of them
    that comes from there. A panel that comes in several rounds waits for each.
    """
    program, parameters = walk.program, walk.parameters
    units = walk.spec.unit.count * max(rates.busy(program), 1e-9)
    waits: float = parameters.fill_waits(program) if parameters.fill_waits is not None else 1
    if not walk.spec.in_place(program.atom):
        carried = Issued(walk.spec, parameters)
        waits = max(waits, sum(carried.rounds(program, s, carried.share(program, s)) for s in panels))
    return _fills(program, panels) / units * waits * _latency(walk, index)


def _fills(program: StageProgram, panels: Sequence[Staging]) -> int:
    """How often copies of these panels are filled, over all tiles."""
    return math.prod([lp.trips for lp in program.loops[: max(copy_depth(program, s) for s in panels)]])


def _carried(walk: NestWalk, panels: Sequence[Staging]) -> float:
    """Seconds that the instructions of lanes take that do nothing but fill panels, for all fills of a unit, one after another."""
    program, parameters = walk.program, walk.parameters
    if parameters.crew_slots is None or not walk.spec.in_place(program.atom):
        return 0.0
    fills = _fills(program, panels) / max(1, min(program.unit_tiles, walk.spec.unit.count))
    return fills * parameters.crew_slots(program) * parameters.serial_cycles / (walk.spec.clock_ghz * 1e9)


def _transfers(rates: Rates, walk: NestWalk, index: int) -> float:
    """The time in which what fills panels at a level arrives: from the next outer one, or from the one around that for as much of
    it as has to come from there.
    """
    traffic, busy = level_traffic(walk, index), rates.busy(walk.program)
    seconds = traffic.filled / rates.into(walk.spec.levels[index], busy)
    if index == 1 or not traffic.bytes:
        return seconds
    outside = level_traffic(walk, index - 1).bytes * traffic.filled / traffic.bytes
    return max(seconds, min(traffic.filled, outside) / rates.into(walk.spec.levels[index - 1], busy))
