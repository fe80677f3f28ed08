"""Reductions across lanes: lanes that share a reduction combine their partial results, and each lane gets the total.

Lanes of one reduction are neighbours, or are in neighbouring groups where a group computes together. Inside a lane group (warp), as
many lanes as the largest power of two that divides them reduce by butterfly shuffles. These results are then exchanged through
shared memory. If their number is a power of two and no more than a group's lanes, each lane reads one, and the lanes reduce by
shuffles again. Else every lane reads all values of its reduction in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvm import tirx

from roller.ir.expr import ELEMENT_BYTES
from roller.lowering.simt.threads import Block, in_shared
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Stmt,
    allocate,
    barrier,
    index,
    load,
    loop,
    plus,
    sequence,
    shared_buffer,
    store,
    variable,
    when,
)
from roller.lowering.tir.expressions import combine

MEETING_BYTES = 8192  # shared memory for exchanged values; at least one value per lane
EXCHANGED_BYTES = 4  # of a register: wider and narrower types are exchanged through shared memory


def combined_lanes(block: Block, acc: Buffer, lanes: int, reducer: str, settled: Mapping[str, str]) -> Stmt:
    """Replaces every accumulator by its reduction over the lanes that share it; `settled`: see `Machine`."""
    dtype = str(acc.dtype)
    near = _exchanging(block, lanes, ELEMENT_BYTES[dtype])
    statements = [_exchanged(acc, at, near, block.group, reducer) for at in range(int(acc.shape[0]))] if near > 1 else []
    return sequence([*statements, *(_met(block, acc, near, lanes, reducer, settled.get(dtype)) if near < lanes else [])])


def meeting_bytes(block: Block, count: int | None) -> int:
    """Returns the max bytes of shared memory that `combined_lanes` takes for the reductions of all stages.

    `count`: accumulators of each reduction; None: any number.
    """
    nest = block.program.nest
    lanes = math.prod(block.lanes[d] for d in nest.columns)
    total = 0
    for stage in nest.stages:
        size = ELEMENT_BYTES[stage.body.dtype]
        near = _exchanging(block, lanes, size)
        if stage.reducer is not None and near < lanes:
            room = _together(block, near, size)
            total += in_shared((room if count is None else min(count, room)) * block.threads // near * size)
    return total


def _exchanging(block: Block, lanes: int, size: int) -> int:
    """Returns the lanes of a reduction that exchange values of `size` bytes by shuffles inside their group."""
    exchange = block.threads % block.group == 0 and size == EXCHANGED_BYTES and block.each == 1
    return min(lanes & -lanes, block.group) if exchange else 1


def _together(block: Block, near: int, size: int) -> int:
    """Returns the accumulators that are exchanged through shared memory at a time."""
    return max(1, MEETING_BYTES // (block.threads // near * size))


def _met(block: Block, acc: Buffer, near: int, lanes: int, reducer: str, settled: str | None) -> list[Stmt]:
    """Reduces values through shared memory, as many at a time as fit; every `near` neighbouring lanes hold the same value."""
    groups, each = block.threads // near, lanes // near
    mine = block.thread // index(near) if near > 1 else block.thread
    whole = lanes * block.each  # threads of one reduction
    first = (block.thread // index(whole)) * index(each * block.each) if whole < block.threads else index(0)
    first = first if block.each == 1 else first + tirx.floormod(block.thread, index(block.each))
    count = int(acc.shape[0])
    together = min(count, _together(block, near, ELEMENT_BYTES[str(acc.dtype)]))
    halves = near > 1 and each & (each - 1) == 0 and each <= near
    room = shared_buffer("meeting", together * groups, str(acc.dtype), block.shared_scope)
    statements = allocate([room])
    for start in range(0, count, together):
        mates = range(start, min(start + together, count))
        puts = sequence(store(room, load(acc, at), plus(mine, (at - start) * groups)) for at in mates)
        here = puts if near == 1 else when(tirx.EQ(tirx.floormod(block.thread, index(near)), index(0)), puts)
        if halves:
            one = plus(first, tirx.floormod(block.thread, index(each)))
            takes = [store(acc, load(room, plus(one, (at - start) * groups)), at) for at in mates]
            takes += [_exchanged(acc, at, each, block.group, reducer) for at in mates]
        else:
            takes = [_taken(room, acc, at, plus(first, (at - start) * groups), (each, block.each), reducer) for at in mates]
        ends = [] if settled is None else [_settled(acc, at, settled) for at in mates]
        statements += [barrier(), here, barrier(), *takes, *ends]
    return statements


def _taken(room: Buffer, acc: Buffer, at: int, first: Expr, others: tuple[int, int], reducer: str) -> Stmt:
    """Replaces an accumulator by the reduction of `count` values, a constant distance apart."""
    count, apart = others
    var = variable("other")
    step = store(acc, combine(reducer, load(acc, at), load(room, first + (var + index(1)) * index(apart))), at)
    return sequence([store(acc, load(room, first), at), loop(var, count - 1, step) if count > 1 else None])


def _settled(acc: Buffer, at: int, function: str) -> Stmt:
    """Returns the accumulator, with its computation forced to happen here."""
    return store(acc, tirx.call_extern(str(acc.dtype), function, load(acc, at)), at)


def _exchanged(acc: Buffer, at: int, lanes: int, group: int, reducer: str) -> Stmt:
    """Reduces by butterfly shuffles: after log2(lanes) steps, every lane has the total."""
    statements, distance = [], lanes // 2
    mask = tirx.const(0xFFFFFFFF, "uint32")
    while distance:
        other = tirx.op.tvm_warp_shuffle_xor(mask, load(acc, at), index(distance), index(group), index(group))
        statements.append(store(acc, combine(reducer, load(acc, at), other), at))
        distance //= 2
    return sequence(statements)
