"""How lanes fill panels, for arrays of tile chains (`roller.layout.fill_order`)."""

from __future__ import annotations

import math

import numpy as np

from roller.ir.elementwise import Value
from roller.ir.nest import Access
from roller.ir.sliding_windows import windows
from roller.layout.banks import most_together
from roller.program.rprogram import StageProgram, Staging
from roller.search.funnel.lattice import Tiles
from roller.search.tile_space import TileSpace


def fill_accesses(
    space: TileSpace, base: StageProgram, staging: Staging, unit: Tiles, elements: Value, lanes: Value
) -> tuple[Value, Value]:
    """Returns the accesses of one lane that fill a panel, and whether their addresses follow from that of the first.

    It is `roller.layout.fill_order.share` with the values in the order of their array. `unit`: tiles of units; `elements`: those of
    the panel; `lanes`: those of a tile.
    """
    nest, touches = space.nest, space.nest.factor_touches(staging.operand)
    mine = [a for a in nest.inputs if a.factor == staging.operand]
    along = next((d for d in range(len(touches)) if len(mine) == 1 and mine[0].strides[d] == 1 and touches[d]), None)
    width: Value = 1
    if along is not None and not (space.fit.windowed and windows(nest, staging.operand)):
        widest = widest_access(mine[0], along, nest.extents[along])
        wide = unit[along] <= nest.extents[along]
        if base.atom.kind != "matrix":  # rows of other panels go along their last dimension, whatever the array's do
            inwards = (*nest.reduce, *nest.spatial)
            wide = wide & (math.prod([unit[d] for d in inwards[inwards.index(along) + 1 :] if touches[d]]) == 1)
        width = np.where(wide, np.gcd(unit[along], widest), 1)
    accesses = -(-elements // (width * lanes))
    order = sorted((d for d, t in enumerate(touches) if t), key=lambda d: -max([abs(a.strides[d] or 0) for a in mine], default=0))
    left, follows, open_ = lanes, np.full(accesses.shape, True), np.full(accesses.shape, True)
    for d in reversed(order[1:]):
        count = unit[d] // (width if d == along else 1)
        ends = open_ & (left % count != 0)
        follows = np.where(ends, count % left == 0, follows)
        open_ = open_ & ~ends
        left = np.where(open_, np.maximum(left // count, 1), left)
    return accesses, (accesses == 1) | follows


def widest_access(access: Access, along: int, extent: int) -> int:
    """Returns the elements of the widest access along a dimension in which an array is contiguous."""
    steps = [s or 0 for d, s in enumerate(access.strides) if d != along] if access.linear else list(access.tensor.strides[:-1])
    offset = sum(i.offset * s for i, s in zip(access.index, access.tensor.strides, strict=True)) if access.linear else 0
    return math.gcd(most_together(access.tensor.dtype), extent, offset, *steps)
