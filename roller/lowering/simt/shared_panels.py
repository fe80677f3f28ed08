"""Layout of panels in a block's shared memory.

Rows hold the values of one reduce point. Rows, and the runs in them, have the program's padding (`roller.layout.banks`).
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
    """A factor's values for one unit tile: its buffer, and the step of each dimension in it (0: the factor does not use it)."""

    staging: Staging
    value: Scalar
    buffer: Buffer
    steps: tuple[int, ...]
    row: tuple[int, ...]  # the dimensions of a row
    size: int  # elements of one copy
    ahead: int | None  # the loop whose trips fill further copies ahead; None for a single copy
    depth: int | None = None  # the dimension along which `beside` neighbours are interleaved; `steps`: between multiples of it
    beside: int = 1
    windows: tuple[Window, ...] = ()  # windows of which the panel holds each element once

    def seen(self, offsets: Offsets) -> Offsets:
        """Returns the value that a lane's point reads, as offsets along the panel's dimensions.

        Offsets along a window are combined to one offset along its mover.
        """
        found = [o if step else 0 for o, step in zip(offsets, self.steps, strict=True)]
        for window in self.windows:
            for dim, _ in window.steps:
                found[dim] = window.place(offsets) if dim == window.mover else 0
        return tuple(found)

    @property
    def copies(self) -> int:
        """Number of copies in memory."""
        return 1 if self.ahead is None else self.staging.depth

    def place(self, names: Mapping[int, Position], slot: Position) -> Position:
        """Returns the address of a value of the unit's tile in a copy."""
        target: Position = times(slot, self.size)
        for dim, name in names.items():
            target = plus(target, times(name, self.steps[dim]))
        return target

    def regular(self, block: Block) -> bool:
        """Returns True if the addresses of a lane's points are a common base plus constants: no tile extends beyond the problem."""
        nest, tile = block.program.nest, block.program.unit_tile
        return all(nest.dims[d].is_reduce or nest.extents[d] >= tile[d] for d, step in enumerate(self.steps) if step)

    def widths(self, block: Block, offsets: Offsets) -> Offsets:
        """Returns `Block.widths` along the dimensions that the panel depends on."""
        return tuple(w if step else 0 for w, step in zip(block.widths(offsets), self.steps, strict=True))

    def near(self, block: Block, slot: Position, widths: Offsets) -> Position:
        """Returns the base address of a lane's pieces of these widths in a copy, as if they were the first ones."""
        total: Position = times(slot, self.size)
        for dim, (width, step) in enumerate(zip(widths, self.steps, strict=True)):
            if width and step:
                total = plus(total, times(block.names[dim], width * step))
        return total

    def moved(self, block: Block, reduced: dict[int, Position], offsets: Offsets) -> Position:
        """Returns the offset of the value of a lane's point from `near`, if addresses are regular."""
        total: Position = 0
        for dim, step in enumerate(self.steps):
            if step:
                total = plus(total, times(plus(reduced.get(dim, 0), block.apart(dim, offsets[dim])), step))
        return total

    def address(self, block: Block, reduced: dict[int, Position], slot: Position, offsets: Offsets) -> Position:
        """Returns the address of a lane point's value in a copy; `reduced`: start of the lane's tile along each reduction."""
        total: Position = times(slot, self.size)
        for dim, step in enumerate(self.steps):
            if step:
                total = plus(total, times(plus(reduced.get(dim, 0), block.offset(dim, offsets[dim])), step))
        return total


def shared_panel(block: Block, staging: Staging, ahead: int | None) -> SharedPanel:
    """Returns the panel with a fresh buffer: rows of spatial dimensions, reductions outside them.

    For a matrix atom, `roller.layout.banks` determines the layout.
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
    size = -(-size // whole) * whole  # every copy is aligned for the widest access
    elements = size * (1 if ahead is None else staging.depth)
    held = shared_buffer(f"panel{staging.operand}", elements, value.dtype, block.shared_scope)
    return SharedPanel(staging, value, held, steps, row, size, ahead, depth, beside, windows_of(program.nest, staging))


def in_cells(tile: Tile, depth: int | None, beside: int) -> Tile:
    """Returns a tile in which `beside` neighbours along a dimension count as one."""
    return tuple(extent // beside if d == depth else extent for d, extent in enumerate(tile))
