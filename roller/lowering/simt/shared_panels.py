"""Panels in the memory that the lanes of a block share: how they lie there.

Rows hold the values of one reduce point; they and the runs in them are padded as the program says (`roller.layout.banks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from roller.ir.expr import ELEMENT_BYTES
from roller.ir.nest import Tile
from roller.ir.scalar import Scalar
from roller.ir.sliding_windows import Window
from roller.layout.banks import WIDEST_ACCESS, interleaved, panel_steps, row_dim, windows_of
from roller.lowering.simt.threads import Block, Offsets
from roller.lowering.tir.builder import Buffer, plus, shared_buffer, times
from roller.lowering.tir.tile_starts import Position
from roller.program.rprogram import Staging, operand_value, staged_touches


@dataclass(frozen=True)
class SharedPanel:
    """A factor's values for one unit tile: its buffer, and the step of each dimension in it (0: it does not depend on it)."""

    staging: Staging
    value: Scalar
    buffer: Buffer
    steps: tuple[int, ...]
    row: tuple[int, ...]  # the dimensions of a row
    size: int  # elements of one copy
    ahead: int | None  # the loop whose trips fill other copies ahead; None where there is one copy
    depth: int | None = None  # the dimension of whose neighbours `beside` lie side by side: steps are those of multiples of it
    beside: int = 1
    windows: tuple[Window, ...] = ()  # of which it holds what they pass over

    def seen(self, offsets: Offsets) -> Offsets:
        """The value that a lane's point reads: its offsets along the dimensions that the panel depends on, those of a window as
        so many values further.
        """
        found = [o if step else 0 for o, step in zip(offsets, self.steps, strict=True)]
        for window in self.windows:
            for dim, _ in window.steps:
                found[dim] = window.place(offsets) if dim == window.mover else 0
        return tuple(found)

    @property
    def copies(self) -> int:
        """Copies of it in memory."""
        return 1 if self.ahead is None else self.staging.depth

    def place(self, names: Mapping[int, Position], slot: Position) -> Position:
        """Where the value at a place of the unit's tile lies in a copy."""
        target: Position = times(slot, self.size)
        for dim, name in names.items():
            target = plus(target, times(name, self.steps[dim]))
        return target

    def regular(self, block: Block) -> bool:
        """True if the places of a lane's points are a common one and known steps: no tile reaches beyond the problem."""
        nest, tile = block.program.nest, block.program.unit_tile
        return all(nest.dims[d].is_reduce or nest.extents[d] >= tile[d] for d, step in enumerate(self.steps) if step)

    def widths(self, block: Block, offsets: Offsets) -> Offsets:
        """`Block.widths` along the dimensions that the panel depends on."""
        return tuple(w if step else 0 for w, step in zip(block.widths(offsets), self.steps, strict=True))

    def near(self, block: Block, slot: Position, widths: Offsets) -> Position:
        """Where a lane's pieces of such widths would begin in a copy if they were the first ones."""
        total: Position = times(slot, self.size)
        for dim, (width, step) in enumerate(zip(widths, self.steps, strict=True)):
            if width and step:
                total = plus(total, times(block.names[dim], width * step))
        return total

    def moved(self, block: Block, reduced: dict[int, Position], offsets: Offsets) -> Position:
        """How far the value of a lane's point lies from there, where places are regular."""
        total: Position = 0
        for dim, step in enumerate(self.steps):
            if step:
                total = plus(total, times(plus(reduced.get(dim, 0), block.apart(dim, offsets[dim])), step))
        return total

    def address(self, block: Block, reduced: dict[int, Position], slot: Position, offsets: Offsets) -> Position:
        """Where the value of a lane's point lies in a copy; `reduced`: where the lane's tile starts along each reduction."""
        total: Position = times(slot, self.size)
        for dim, step in enumerate(self.steps):
            if step:
                total = plus(total, times(plus(reduced.get(dim, 0), block.offset(dim, offsets[dim])), step))
        return total


def shared_panel(block: Block, staging: Staging, ahead: int | None) -> SharedPanel:
    """The panel with a fresh buffer: rows of spatial dimensions, reductions outside; for a matrix atom as `roller.layout.banks`
    says.
    """
    program, touches = block.program, staged_touches(block.program.nest, staging)
    factor, matrix = program.nest.factors[staging.operand], program.atom.kind == "matrix"
    row, outside = program.nest.spatial, program.nest.reduce
    if matrix:
        row = (row_dim(program.nest, program.atom, program.mapping, staging.operand, program.unit_tile),)
        outside = tuple(d for d in range(len(touches)) if d not in row)
    depth, beside = program.role("k") if matrix else None, 1
    if matrix:
        beside = interleaved(program.nest, program.atom, program.mapping, staging.operand, program.unit_tile)
    cells = replace(staging, row_padding=staging.row_padding // beside, run_padding=staging.run_padding // beside)
    steps, size = panel_steps(program.nest, cells, in_cells(program.unit_tile, depth, beside), row, outside)
    steps, size = tuple(s * (1 if d == depth else beside) for d, s in enumerate(steps)), size * beside
    value = operand_value(program.nest, staging.operand, program.atom) if matrix else factor
    assert value is not None, "a matrix atom has both operands in its own type"
    whole = WIDEST_ACCESS // ELEMENT_BYTES[value.dtype]
    size = -(-size // whole) * whole  # every copy starts where the widest access may
    elements = size * (1 if ahead is None else staging.depth)
    held = shared_buffer(f"panel{staging.operand}", elements, value.dtype, block.shared_scope)
    return SharedPanel(staging, value, held, steps, row, size, ahead, depth, beside, windows_of(program.nest, staging))


def in_cells(tile: Tile, depth: int | None, beside: int) -> Tile:
    """A tile in which so many neighbours along a dimension count as one."""
    return tuple(extent // beside if d == depth else extent for d, extent in enumerate(tile))
