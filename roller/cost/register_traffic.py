"""Bytes loaded into and stored from registers by units without lanes.

Whole vectors move where an array is contiguous along the atom. A broadcast or gathered array takes one transaction an element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from roller.cost.parameters import TRANSPOSE_SLOTS
from roller.ir.nest import Access, Nest
from roller.program.halo import lane_step
from roller.program.rprogram import StageProgram

Bytes = tuple[float, float]  # of inputs, and of the output for one pass


@dataclass
class RegisterTraffic:
    """Register traffic of one nest's programs; those with the same innermost tile and copies share a cached result."""

    nest: Nest
    gather_slots: float
    _known: dict[tuple[object, ...], Bytes] = field(default_factory=dict)

    def bytes(self, program: StageProgram, transaction: int) -> float:
        """Returns the bytes over the whole stage; resumed accumulators move twice for every further visit."""
        copies = frozenset([(s.kind, s.operand) for s in program.staged])
        key = program.atom.name, program.mapping, program.inner, copies, transaction, program.split > 1
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._sum(program, transaction)
        inputs, output = found
        return inputs + output * (2 * program.accumulator_visits - 1)

    def _sum(self, program: StageProgram, transaction: int) -> Bytes:
        nest = self.nest
        trips = [-(-e // t) if t else 0 for e, t in zip(nest.extents, program.inner, strict=True)]
        steps, spatial_steps = math.prod(trips), math.prod([trips[i] for i in nest.spatial])
        panels = {s.operand for s in program.staged if s.kind == "panel"}
        boxes = {s.operand for s in program.staged if s.kind == "box"}
        width = max((e for e in program.atom.roles.values() if isinstance(e, int)), default=1)
        inputs = output = 0.0
        for number, access in enumerate(nest.accesses):
            panel = access.factor in panels and access.role == "body"
            loads = self._vector_loads(program, number, panel, access.guarded and number not in boxes)
            vector = width * access.element_bytes if program.lane is not None and access.touches[program.lane] else 0
            moved = loads * max(transaction, vector) * (steps if access.role == "body" else spatial_steps)
            if access.role == "output":
                output += moved
            else:
                inputs += moved
        return inputs, output

    def _vector_loads(self, program: StageProgram, number: int, panel: bool, guarded: bool) -> float:
        """Returns the load (or store) slots of one array for one innermost tile."""
        access = self.nest.accesses[number]
        touched = math.prod([t for t, x in zip(program.inner, access.touches, strict=True) if x])
        lane = program.lane
        if lane is None or not access.touches[lane]:
            # Points along a decoded fused dimension have no constant stride: each needs an address, which is loaded too.
            apart = any(s is None and t > 1 for s, t in zip(access.strides, program.inner, strict=True))
            return touched * (2 if apart and not panel else 1)
        width = program.width
        whole, rest = divmod(program.inner[lane], width)
        vectors = touched / program.inner[lane] * (whole + 2 * rest.bit_count())  # a part of a vector moves in pieces
        step = lane_step(program, number)
        if panel or (step == 1 and not guarded):
            return vectors
        if step is not None and 1 < step <= width // 2 and not guarded and not rest:
            return 2 * step * vectors  # shuffled out of this many whole vectors
        gathered = 1 + self.gather_slots + (1 if step is None or guarded else 0)
        if access.role == "output" and program.across is not None and program.split == 1:
            return touched / program.inner[program.across] / width * _transposed(program.inner[program.across], width)
        blocks = 0.0 if guarded or rest else in_blocks(program, access)
        return touched * (1 - blocks) * gathered + vectors * blocks * (1 + TRANSPOSE_SLOTS * math.log2(width))


def in_blocks(program: StageProgram, access: Access) -> float:
    """Returns the share of an innermost tile that is read in square blocks, along another dimension than the vector's."""
    nest, width = program.nest, program.width
    if nest.stage.reducer is not None or access.role == "output" or width & (width - 1):
        return 0.0
    along = [i for i in nest.spatial if access.strides[i] == 1 and program.inner[i] >= width]
    return program.inner[along[0]] // width * width / program.inner[along[0]] if along else 0.0


def _transposed(rows: int, width: int) -> float:
    """Returns the slots of storing `rows` vectors of results along another dimension, in transposed blocks (the last smaller)."""
    slots = 0.0
    for first in range(0, rows, width):
        block = 1 << (min(width, rows - first) - 1).bit_length()
        slots += width * (1 + TRANSPOSE_SLOTS * math.log2(block))
    return slots
