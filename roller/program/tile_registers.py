"""Registers that a matrix instruction has for itself (`ComputeAtom.registers`, AMX's tiles): how an innermost tile lies in them.

The results of the tile are blocks of rows and columns, one register each. A step along the reduction reads each block of each
factor. The blocks of one factor stay in registers for the step; those of the other pass through the registers that are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from roller.ir.elementwise import Extent, Value, each, least
from roller.ir.nest import Nest
from roller.program.words import Mapping
from roller.target.hardware import ComputeAtom


def block_extent(extent: int, most: int) -> int:
    """Returns the rows (or columns) of a block: all blocks of a tile are equally large, as a register has one shape."""
    return extent if extent <= most else math.gcd(extent, most)


def blocks(nest: Nest, atom: ComputeAtom, mapping: Mapping, tile: Sequence[Extent], touches: Sequence[bool]) -> Value:
    """Returns the blocks of a tile along the spatial dimensions that some values depend on; for one tile or an array of them."""
    most = {dim: extent for role, dim in mapping if isinstance(extent := atom.extents[role], int)}
    return math.prod([each(partial(_count, most=most.get(d, 1)), tile[d]) for d in nest.spatial if touches[d]])


def _count(extent: int, most: int) -> int:
    return extent // block_extent(extent, most) if extent else 0


def registers_of(nest: Nest, atom: ComputeAtom, mapping: Mapping, tile: Sequence[Extent]) -> Value:
    """Returns the registers that an innermost tile needs: for its results, the blocks of one factor, and one of the other."""
    results = blocks(nest, atom, mapping, tile, (True,) * len(nest.dims))
    return results + least(*(blocks(nest, atom, mapping, tile, nest.factor_touches(f)) for f in (0, 1))) + 1
