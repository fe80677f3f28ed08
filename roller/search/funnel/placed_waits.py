"""The time that units and lanes wait for transfers, for arrays of tile chains (`roller.cost.multibuffering`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roller.cost.model import Model
from roller.cost.unrolling import MOST_SHORT, MOST_UNROLLED
from roller.ir.elementwise import Value
from roller.search.funnel.placed import Placed
from roller.search.funnel.placed_reads import fill_accesses


@dataclass(frozen=True)
class Moved:
    """The bytes and the seconds that move into each level but the outermost one, and the bytes that fill panels."""

    bytes: list[Value]
    seconds: list[Value]
    filled: Value


def waiting_seconds(model: Model, placed: Placed, compute: Value, moved: Moved) -> Value:
    """Returns the seconds in which nothing computes or moves, as everything waits for transfers."""
    total: Value = np.zeros(placed.parts.shape)
    unit, last = placed.space.levels[0], len(model.spec.levels) - 1
    for index in range(1, len(model.spec.levels)):
        using = np.maximum.reduce([compute, *moved.seconds[index:]])
        moving, waited = moved.seconds[index - 1], 0.0
        if index == unit:
            waited = np.maximum(_ring(model, placed, index, using, moved), _reading(model, placed, index, using, moved))
        if index == last:
            waited = np.maximum(waited, _operands(model, placed, using, moving))
        total = total + waited
    return total


def _latency(model: Model, index: int, moved: Moved) -> Value:
    """Returns the latency of a transfer into a level, in seconds."""
    level = model.spec.levels[index]
    if index <= 1:
        return level.latency_ns * 1e-9
    share = np.minimum(1.0, moved.bytes[index - 2] / np.maximum(moved.bytes[index - 1], 1.0))
    return (level.latency_ns + share * model.spec.levels[index - 1].latency_ns) * 1e-9


def _ring(model: Model, placed: Placed, index: int, using: Value, moved: Moved) -> Value:
    """Returns the seconds of waiting for panels (`roller.cost.multibuffering.ring_seconds`)."""
    level, spec, rates = model.spec.levels[index], model.spec, model.rates
    if not placed.base.staged or not level.latency_ns or not level.managed:
        return np.zeros(placed.parts.shape)
    units, copies, resident = spec.unit.count * placed.busy, placed.copies, placed.resident
    filling = _fill_waits(model, placed) / units * _latency(model, index, moved)
    into = moved.filled / rates.into(level, placed.busy)
    if index > 1:
        outside = np.minimum(moved.filled, moved.bytes[index - 2] * moved.filled / np.maximum(moved.bytes[index - 1], 1.0))
        into = np.maximum(into, outside / rates.into(spec.levels[index - 1], placed.busy))
    filling, moving = filling + into, moved.seconds[index - 1]
    ahead = filling / (resident * np.maximum(1, copies - 1))
    closed = (copies == 1) | spec.in_place(placed.base.atom)
    ahead = np.where(closed, np.maximum((filling + using) / (resident * copies), ahead), ahead)
    return np.maximum(0.0, ahead - np.where(resident * copies == 1, using + moving, np.maximum(using, moving)))


def _fill_waits(model: Model, placed: Placed) -> Value:
    """Returns the latencies of all fills, one after another."""
    given, waits = model.parameters, 1.0
    if not model.spec.in_place(placed.base.atom):
        for staging in placed.base.staged:
            size = max([a.element_bytes for a in placed.nest.inputs if a.factor == staging.operand], default=1)
            if given.copy_sizes and not any(size <= wide for wide in given.copy_sizes):
                waits = np.maximum(waits, fill_accesses(placed, staging)[0] / given.carried)
    return placed.unit_tiles * math.prod(placed.fill_trips) * waits


def _reading(model: Model, placed: Placed, index: int, using: Value, moved: Moved) -> Value:
    """Returns the seconds in which lanes wait for unstaged reads (`roller.cost.multibuffering.reading_seconds`)."""
    spec, level, given = model.spec, model.spec.levels[index], model.parameters
    copied = {s.operand for s in placed.base.staged}
    read = [a for a in placed.nest.inputs if a.factor not in copied]
    lanes = placed.space.lane_level is not None and not spec.spread
    if not lanes or not read or not level.latency_ns or not level.managed or placed.base.atom.kind == "matrix":
        return np.zeros(placed.parts.shape)
    units, moving = spec.unit.count * placed.busy, moved.seconds[index - 1]
    every = math.prod(placed.fill_trips) * math.prod(placed.turns)
    together = 1 if copied else np.minimum(_unrolled(model, placed), every)
    step = sum([a.element_bytes * math.prod([placed.inner[d] for d, t in enumerate(a.touches) if t]) for a in read])
    turns = np.maximum(1.0, step * together / given.reading_bytes) if given.reading_bytes else 1.0
    waits = placed.unit_tiles * every / together / units * turns * _latency(model, index, moved)
    others, share = np.maximum(using, moving), np.clip(placed.unit_tiles / units, 1.0, placed.resident)
    groups = np.maximum(1, placed.sub_tiles // spec.unit.lane_group)
    parts = np.where(every <= together, 1, np.minimum(groups, spec.partitions) if copied else groups)
    cycle = waits / share + (using + moving) / (share * parts)
    return np.maximum(0.0, cycle - others) + spec.loss(level) * np.minimum(cycle, others)


def _unrolled(model: Model, placed: Placed) -> Value:
    """Returns the steps of a reduction in an unrolled body (`roller.cost.unrolling.steps_repeated`)."""
    unrolling, atom = model.parameters.unrolling, placed.base.atom
    if atom.kind == "matrix":
        atoms = math.prod(placed.inner) // math.prod([e for e in atom.roles.values() if isinstance(e, int)])
        return np.clip(unrolling.atoms // np.maximum(atoms, 1), 1, MOST_UNROLLED) if unrolling.atoms else 1
    body = np.maximum(math.prod(placed.inner), 1)
    often = np.minimum(MOST_UNROLLED, unrolling.most // body)
    if placed.base.staged:
        often = np.maximum(often, np.minimum(MOST_SHORT, unrolling.least // body))
    return np.maximum(1, often)


def _operands(model: Model, placed: Placed, using: Value, moving: Value) -> Value:
    """Returns the seconds in which lanes wait for reads from panels (`roller.cost.multibuffering.operand_seconds`)."""
    spec, level, given = model.spec, model.spec.levels[-1], model.parameters
    lanes = placed.space.lane_level is not None and placed.base.staged
    if not lanes or not given.lanes_wait or not level.latency_ns or spec.in_place(placed.base.atom):
        return np.zeros(placed.parts.shape)
    units, fills = spec.unit.count * placed.busy, placed.unit_tiles * math.prod(placed.fill_trips)
    inside = math.prod(placed.turns)
    together = np.minimum(_unrolled(model, placed), inside)
    bodies = fills * inside / together / units
    begun, waits = fills / units * given.begin_ns * 1e-9, bodies * level.latency_ns * 1e-9
    groups = np.maximum(1.0, placed.groups / spec.partitions)
    cycle = begun + np.maximum(waits + (using + moving / together) / groups, using)
    return np.maximum(0.0, cycle / placed.resident - np.maximum(using, moving))
