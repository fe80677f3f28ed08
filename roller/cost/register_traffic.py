"""Bytes loaded into and stored from registers by units without lanes.

Whole vectors move where an array is contiguous along the atom. A broadcast or gathered array takes one transaction an element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from roller.cost.parameters import TRANSPOSE_SLOTS
from roller.ir.elementwise import Extent, Value, each, largest, where
from roller.ir.nest import Access, Nest
from roller.program.halo import lane_step
from roller.program.rprogram import LEAST_BLOCK, StageProgram
from roller.program.window_steps import whole_loops, window_steps
from roller.program.words import in_words

Bytes = tuple[float, float]  # of inputs, and of the output for one pass


@dataclass
class RegisterTraffic:
    """Register traffic of one nest's programs; those with the same innermost tile and copies share a cached result."""

    nest: Nest
    gather_slots: float
    registers: int = 0
    _known: dict[tuple[object, ...], Bytes] = field(default_factory=dict)

    def bytes(self, program: StageProgram, transaction: int, share: Value = 1.0) -> float:
        """Returns the bytes over the whole stage; resumed accumulators move twice for every further visit.

        `share`: that of the steps that are computed, where loops leave out taps.
        """
        copies = frozenset([(s.kind, s.operand) for s in program.staged])
        whole = frozenset(whole_loops(program))
        key = program.atom.name, program.mapping, program.inner, copies, transaction, program.dispatch.split > 1, share, whole
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.bytes_of(program, program.inner, transaction, share, whole.__contains__)
        inputs, output = found
        return float(inputs + output * (2 * program.accumulator_visits - 1))

    def bytes_of(
        self,
        program: StageProgram,
        inner: Sequence[Extent],
        transaction: int,
        share: Value = 1.0,
        whole: Callable[[int], Value] = lambda _: True,
    ) -> tuple[Value, Value]:
        """Returns the bytes of inputs, and of the output for one pass, for one innermost tile or for an array of them.

        `program` has the same atom, mapping, copies and split, but any tiles. `whole`: whether a loop inside the innermost tile
        walks all of a reduction (`whole_loops`).
        """
        nest = self.nest
        trips = [-(-e // t) if e else 0 for e, t in zip(nest.extents, inner, strict=True)]
        steps, spatial_steps = math.prod(trips), math.prod([trips[i] for i in nest.spatial])
        panels = {s.operand for s in program.staged if s.kind == "panel"}
        boxes = {s.operand for s in program.staged if s.kind == "box"}
        width, own = program.atom.width, program.atom.registers is not None
        inner = in_words(program, inner)
        inputs = output = 0.0
        for number, access in enumerate(nest.accesses):
            panel = access.factor in panels and access.role == "body"
            loads = self._vector_loads(program, inner, number, panel, access.guarded and number not in boxes)
            size = nest.accumulator_bytes if program.atom.sums and access.role == "body" else access.element_bytes  # of a word
            vector = width * size if program.lane is not None and access.touches[program.lane] else 0
            loads = loads * self._share(program, inner, access, whole)
            moved = loads * max(transaction, vector) * (steps * share if access.role == "body" else spatial_steps)
            if access.role == "output":
                output += moved
                inputs += 2 * moved if own else 0.0  # registers of its own have no arithmetic: results pass through memory
            else:
                inputs += moved
        return inputs, output

    def _share(self, program: StageProgram, inner: Sequence[Extent], access: Access, whole: Callable[[int], Value]) -> Value:
        """Returns the share of an array's values that a step loads: those under a window once for all taps."""
        found: Value = 1.0
        for step in reversed(list(window_steps(program)) if self.registers and access.role == "body" else []):
            fits = (step.vectors(program, inner) <= self.registers) & (inner[step.window.spatial] > 1) & whole(step.tap)
            found = where(fits, step.share(self.nest, inner) if step.factor == access.factor else 1.0, found)
        return found

    def _vector_loads(self, program: StageProgram, inner: Sequence[Extent], number: int, panel: bool, guarded: bool) -> Value:
        """Returns the load (or store) slots of one array for an innermost tile."""
        access = self.nest.accesses[number]
        touched = math.prod([t for t, x in zip(inner, access.touches, strict=True) if x])
        lane = program.lane
        if lane is None or not access.touches[lane]:
            # Points along a decoded fused dimension have no constant stride: each needs an address, which is loaded too.
            if program.atom.registers is not None and access.role == "body":
                return touched / program.width  # rows of words
            decoded = [t for s, t in zip(access.strides, inner, strict=True) if s is None]
            return touched if panel or not decoded else touched * where(reduce(largest, decoded) > 1, 2, 1)
        width = program.width
        whole, rest = inner[lane] // width, inner[lane] % width
        vectors = touched / inner[lane] * (whole + 2 * each(int.bit_count, rest))  # a part of a vector moves in pieces
        step = lane_step(program, number)
        if panel or (step == 1 and not guarded):
            return vectors
        gathered = touched * (1 + self.gather_slots + (1 if step is None or guarded else 0))
        if not guarded:
            blocks = where(rest == 0, blocks_of(program, inner, access), 0.0)
            gathered = gathered * (1 - blocks) + vectors * blocks * (1 + TRANSPOSE_SLOTS * math.log2(width))
        if access.role == "output" and program.dispatch.split == 1:
            gathered = self._across(program, inner, touched, gathered)
        if step is not None and 1 < step <= width // 2 and not guarded:
            return where(rest == 0, 2 * step * vectors, gathered)  # shuffled out of this many whole vectors
        return gathered

    def _across(self, program: StageProgram, inner: Sequence[Extent], touched: Value, gathered: Value) -> Value:
        """Returns the slots of storing results along the dimension in which they are contiguous, where that suits the tile."""
        for dim in reversed(program.sides):
            slots = touched / inner[dim] / program.width * each(partial(_transposed, width=program.width), inner[dim])
            gathered = where(inner[dim] >= LEAST_BLOCK, slots, gathered)
        return gathered


def in_blocks(program: StageProgram, access: Access) -> float:
    """Returns the share of an innermost tile that is read in square blocks, along another dimension than the vector's."""
    return float(blocks_of(program, program.inner, access))


def blocks_of(program: StageProgram, inner: Sequence[Extent], access: Access) -> Value:
    """Returns the same for an innermost tile, or for an array of them."""
    nest, width, share = program.nest, program.width, 0.0
    if nest.stage.reducer is not None or access.role == "output" or width & (width - 1):
        return share
    for dim in reversed([i for i in nest.spatial if access.strides[i] == 1]):
        share = where(inner[dim] >= width, inner[dim] // width * width / inner[dim], share)
    return share


def _transposed(rows: int, width: int) -> float:
    """Returns the slots of storing `rows` vectors of results along another dimension, in transposed blocks (the last smaller)."""
    slots = 0.0
    for first in range(0, rows, width):
        block = 1 << (min(width, rows - first) - 1).bit_length()
        slots += width * (1 + TRANSPOSE_SLOTS * math.log2(block))
    return slots
