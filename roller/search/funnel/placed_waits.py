"""The time that units and lanes wait for transfers, for arrays of tile chains (`roller.cost.multibuffering`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roller.cost import formulas
from roller.cost.model import Model
from roller.cost.unrolling import unrolled
from roller.ir.elementwise import Value
from roller.search.funnel.placed import Placed


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
    share = np.minimum(1.0, moved.bytes[index - 2] / np.maximum(moved.bytes[index - 1], 1.0)) if index > 1 else 0.0
    return formulas.latency_seconds(model.spec, index, share)


def _ring(model: Model, placed: Placed, index: int, using: Value, moved: Moved) -> Value:
    """Returns the seconds of waiting for panels (`roller.cost.multibuffering.ring_seconds`)."""
    level, spec, rates = model.spec.levels[index], model.spec, model.rates
    if not placed.base.staged or not level.latency_ns or not level.managed:
        return np.zeros(placed.parts.shape)
    waits = _fill_waits(model, placed) / (spec.unit.count * placed.busy) * _latency(model, index, moved)
    outside = moved.bytes[index - 2] * moved.filled / np.maximum(moved.bytes[index - 1], 1.0) if index > 1 else 0.0
    filling = waits + formulas.filling_seconds(rates, index, moved.filled, outside, placed.busy)
    in_turn = spec.in_place(placed.base.atom)
    return formulas.ring_seconds(filling, using, moved.seconds[index - 1], placed.copies, placed.resident, in_turn)


def _fill_waits(model: Model, placed: Placed) -> Value:
    """Returns the latencies of all fills, one after another."""
    given, waits = model.parameters, 1.0
    if not model.spec.in_place(placed.base.atom):
        for staging in placed.base.staged:
            if given.copy_sizes and placed.carried(staging):
                waits = np.maximum(waits, placed.fill_accesses(staging)[0] / given.carried)
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
    together = 1 if copied else np.minimum(unrolled(placed.base, placed.inner, model.parameters.unrolling), every)
    step = sum([a.element_bytes * math.prod([placed.inner[d] for d, t in enumerate(a.touches) if t]) for a in read])
    turns = np.maximum(1.0, step * together / given.reading_bytes) if given.reading_bytes else 1.0
    waits = placed.unit_tiles * every / together / units * turns * _latency(model, index, moved)
    share = np.clip(placed.unit_tiles / units, 1.0, placed.resident)
    groups = np.maximum(1, placed.sub_tiles // spec.unit.lane_group)
    parts = np.where(every <= together, 1, np.minimum(groups, spec.partitions) if copied else groups)
    return formulas.reading_seconds(waits, using, moving, share, parts, spec.loss(level))


def _operands(model: Model, placed: Placed, using: Value, moving: Value) -> Value:
    """Returns the seconds in which lanes wait for reads from panels (`roller.cost.multibuffering.operand_seconds`)."""
    spec, level, given = model.spec, model.spec.levels[-1], model.parameters
    lanes = placed.space.lane_level is not None and placed.base.staged
    if not lanes or not given.lanes_wait or not level.latency_ns or spec.in_place(placed.base.atom):
        return np.zeros(placed.parts.shape)
    units, fills = spec.unit.count * placed.busy, placed.unit_tiles * math.prod(placed.fill_trips)
    inside = math.prod(placed.turns)
    together = np.minimum(unrolled(placed.base, placed.inner, model.parameters.unrolling), inside)
    bodies = fills * inside / together / units
    begun, waits = fills / units * given.begin_ns * 1e-9, bodies * level.latency_ns * 1e-9
    groups = np.maximum(1.0, placed.groups / spec.partitions)
    return formulas.operand_seconds(begun, waits, using, moving, together, groups, placed.resident)
