"""Multi-buffering: the time that units wait for a copy of a panel in its circular buffer.

A copy is filled, which takes the latency and the transfer (W and X for all fills of a unit), then used (C for all of them).

    several copies                             (W + X) / (R (D - 1))    all but one of D copies of R resident tiles are in flight
    producers fill, or there is one copy       (W + X + C) / (R D)      each copy cycles through filling and using
    producer lanes carry the data              W / R                    they fill one copy after another

The second is the bound of a closed queue. The first is that bound if no fill starts before a step ends. Where producers fill copies
for atoms that read them in place (warp specialisation), both hold: a copy is released once the next one is in use. The third holds
in addition, and W then includes the producer lanes' instructions. The part of the bound that neither using nor moving covers is
waiting. With no transfer and no use, the first two are Little's law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller.cost import formulas
from roller.cost.loops import NestWalk
from roller.cost.occupancy import lane_groups
from roller.cost.parameters import Rates
from roller.cost.traffic import level_traffic
from roller.cost.unrolling import steps_together
from roller.ir.nest import Access
from roller.program.rprogram import StageProgram, Staging, copy_depth


def waiting_seconds(rates: Rates, walk: NestWalk, index: int, using: float, moving: float) -> float:
    """Returns the seconds in which units or lanes wait for transfers into a level; arguments as in `ring_seconds`."""
    waited = ring_seconds(rates, walk, index, using, moving)
    if index == walk.program.levels[0]:
        waited = max(waited, reading_seconds(walk, index, using, moving))
    if index == len(walk.spec.levels) - 1:
        waited = max(waited, operand_seconds(walk, using, moving))
    return waited


def ring_seconds(rates: Rates, walk: NestWalk, index: int, using: float, moving: float) -> float:
    """Returns the seconds of waiting for panels at a level.

    `using`: the seconds of using all of them; `moving`: those of all transfers into the level.
    """
    program, level = walk.program, walk.spec.levels[index]
    panels = [s for s in program.staged if s.level == index]
    if not panels or not level.latency_ns or not level.managed:
        return 0.0
    depth, carried = walk.copies_around(index), _carried(walk, panels)
    waits = _latencies(walk, index, panels) + carried
    filling, serial = waits + _transfers(rates, walk, index), waits if carried else 0.0
    in_turn = walk.spec.in_place(program.atom)
    return float(formulas.ring_seconds(filling, using, moving, depth, walk.resident, in_turn, serial))


def reading_seconds(walk: NestWalk, index: int, using: float, moving: float) -> float:
    """Returns the seconds in which lanes wait for unstaged reads from outside a level; arguments as in `ring_seconds`.

    A lane issues the reads of one step of a unit's tile (of all steps of an unrolled body) and waits for them. No more bytes are in
    flight than its compiler keeps. Meanwhile other tiles run, and other parts of its tile. Each part cycles through waiting, moving
    and using, as the copies of a panel do: n of them take at least an n-th of the time of one. The level's overlap number gives the
    share of the hidden time that is lost.
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
    units = walk.working
    steps = math.prod([lp.trips for lp in loops[:last]]) / together / units
    waits = steps * _turns(walk, read, together) * _latency(walk, index)
    panels = [s for s in program.staged if s.level == index]
    if panels and walk.copies_around(index) == 1:
        waits += _latencies(walk, index, panels)  # in sequence: lanes read after the barrier that follows a fill
    share, parts = max(1.0, min(float(walk.resident), program.unit_tiles / units)), _parts(walk, together, bool(copied))
    return float(formulas.reading_seconds(waits, using, moving, share, parts, walk.spec.loss(level)))


def _parts(walk: NestWalk, together: float, copied: bool) -> int:
    """Returns the parts of a tile that run while others of it wait: its lane groups, if it has more steps than `together`.

    The lane groups of a partition count as one part where they meet at panels that are filled from step to step. In a tile with one
    step (one unrolled body), all lane groups begin and end together.
    """
    groups = max(1, walk.program.lanes // walk.spec.unit.lane_group)
    if math.prod([lp.trips for lp in walk.program.loops if lp.over == "time"]) <= together:
        return 1
    return min(groups, walk.spec.partitions) if copied else groups


def _turns(walk: NestWalk, read: Sequence[Access], together: int) -> float:
    """Returns how often a lane waits for the reads of `together` steps, as its compiler keeps only some bytes in flight."""
    if not walk.parameters.reading_bytes:
        return 1.0
    inner = walk.program.inner
    step = sum(a.element_bytes * math.prod([e for e, t in zip(inner, a.touches, strict=True) if t]) for a in read)
    return max(1.0, step * together / walk.parameters.reading_bytes)


def operand_seconds(walk: NestWalk, using: float, moving: float) -> float:
    """Returns the seconds in which lanes wait for reads from panels; arguments as in `ring_seconds`, at the innermost level.

    A lane group reads for the steps of an unrolled body, waits for the first of them, and computes. Meanwhile the other groups of
    its partition run. After a panel fill, all groups of a tile reach their first product at the same time, and only other tiles
    run.
    """
    program, level, parameters = walk.program, walk.spec.levels[-1], walk.parameters
    panels = [s for s in program.staged if s.kind == "panel"] if program.lane_level is not None else []
    if not panels or not parameters.lanes_wait or not level.latency_ns or walk.spec.in_place(program.atom):
        return 0.0
    units = walk.working
    together = steps_together(program, parameters.unrolling)
    bodies = math.prod([lp.trips for lp in program.loops if lp.over != "lanes"]) / together / units
    fills = math.prod([lp.trips for lp in program.loops[: max(copy_depth(program, s) for s in panels)]]) / units
    begun, waits = fills * parameters.begin_ns * 1e-9, bodies * level.latency_ns * 1e-9
    groups = max(1.0, lane_groups(program, walk.spec) / walk.spec.partitions)
    return float(formulas.operand_seconds(begun, waits, using, moving, together, groups, walk.resident))


def _latency(walk: NestWalk, index: int) -> float:
    """Returns a transfer's latency in seconds."""
    moved = level_traffic(walk, index).bytes
    share = min(1.0, level_traffic(walk, index - 1).bytes / moved) if index > 1 and moved else 0.0
    return float(formulas.latency_seconds(walk.spec, index, share))


def _latencies(walk: NestWalk, index: int, panels: Sequence[Staging]) -> float:
    """Returns the latencies of all fills of a unit, one after another.

    Each is the level's, plus that of the next outer one for the share that comes from there. A panel that arrives in several rounds
    waits for each.
    """
    program, parameters = walk.program, walk.parameters
    units = walk.working
    waits: float = parameters.fill_waits(program) if parameters.fill_waits is not None else 1
    if not walk.spec.in_place(program.atom):
        waits = max(waits, sum(walk.issue.rounds(program, s, walk.issue.share(program, s)) for s in panels))
    return _fills(program, panels) / units * waits * _latency(walk, index)


def _fills(program: StageProgram, panels: Sequence[Staging]) -> int:
    """Returns the fills of these panels over all tiles."""
    return math.prod([lp.trips for lp in program.loops[: max(copy_depth(program, s) for s in panels)]])


def _carried(walk: NestWalk, panels: Sequence[Staging]) -> float:
    """Returns the seconds of the producer lanes' instructions, one after another, for all fills of a unit."""
    program, parameters = walk.program, walk.parameters
    if parameters.crew_slots is None or not walk.spec.in_place(program.atom):
        return 0.0
    fills = _fills(program, panels) / max(1, min(program.unit_tiles, walk.spec.unit.count))
    return fills * parameters.crew_slots(program) * parameters.serial_cycles / (walk.spec.clock_ghz * 1e9)


def _transfers(rates: Rates, walk: NestWalk, index: int) -> float:
    """Returns the seconds of the transfers that fill panels at a level.

    They come from the next outer level, or from the one around that for the bytes that have to come from there.
    """
    traffic = level_traffic(walk, index)
    outside = level_traffic(walk, index - 1).bytes * traffic.filled / traffic.bytes if index > 1 and traffic.bytes else 0.0
    return float(formulas.filling_seconds(rates, index, traffic.filled, outside, walk.busy))
