"""XOR-swizzled panels that matrix atoms read in place: rows of up to 128 bytes, whose 16-byte pieces are permuted from row to row.

The swizzle avoids bank conflicts, both for lanes in several rows and for lanes along one row.
A panel is cut along the contiguous direction of its source into blocks one row wide. In a block, rows follow one another along the
atom's other role. Boxes are copied into this layout (`roller.lowering.specialised.bulk_copies`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm import tirx

from roller.ir.expr import ELEMENT_BYTES
from roller.layout.banks import WIDEST_ACCESS, row_dim
from roller.lowering.simt.machine import InPlace
from roller.lowering.simt.shared_panels import SharedPanel
from roller.lowering.tir.builder import Buffer, Expr, index, plus, pointer, times
from roller.lowering.tir.tile_starts import Position
from roller.program.rprogram import StageProgram, Staging, operand_value, staged_touches

WIDEST_ROW = 128  # bytes of a row
SWIZZLE_BYTES = 1024  # bytes after which the swizzle repeats
ALIGNMENT = SWIZZLE_BYTES  # its name for plugins of API 1


@dataclass(frozen=True)
class SwizzledPanel(SharedPanel):
    """A swizzled panel.

    `along`: the dimension along rows. `side`: the dimension across the rows of a block. `width`: elements of a row. `step`:
    elements from block to block. `start`: of the first copy, as all panels share a buffer. `number`: number of copies. `turned`:
    rows lie across the reduction.
    """

    along: int = field(kw_only=True)
    side: int = field(kw_only=True)
    width: int = field(kw_only=True)
    step: int = field(kw_only=True)
    start: int = field(kw_only=True)
    number: int = field(kw_only=True)
    turned: bool = field(kw_only=True)

    @property
    def copies(self) -> int:
        """Number of copies (pipeline stages) in memory."""
        return self.number

    @property
    def element_bytes(self) -> int:
        """Bytes of one value."""
        return ELEMENT_BYTES[self.value.dtype]

    def linear(self, names: Mapping[int, Position], slot: Position) -> Position:
        """Returns the address of a value without the swizzle."""
        total = plus(times(slot, self.size), self.start)
        for dim, name in names.items():
            total = plus(total, self._folded(name) if dim == self.along else times(name, self.steps[dim]))
        return total

    def _folded(self, position: Position) -> Position:
        if isinstance(position, int):
            return position // self.width * self.step + position % self.width
        return tirx.floordiv(position, index(self.width)) * index(self.step) + tirx.floormod(position, index(self.width))

    def place(self, names: Mapping[int, Position], slot: Position) -> Position:
        """Returns the address of a value of the unit's tile: its piece's number in the row, XORed with the row's number."""
        at = index(self.linear(names, slot))
        return tirx.bitwise_xor(at, changed_places(at, self.width * self.element_bytes, self.element_bytes))

    def operand(self, names: Mapping[int, Position], slot: Position) -> InPlace:
        """Returns an atom's operand whose first element is at a position of the unit's tile."""
        size = self.element_bytes
        offset = times(self.linear(names, slot), size)
        return InPlace(pointer(self.buffer, 0), offset, self.width * size, self.step * size, self.turned)


def changed_places(at: Expr, row_bytes: int, element_bytes: int) -> Expr:
    """Returns the XOR mask of an address, in elements from an aligned start: the piece's bits, from the number of its line."""
    piece, line = WIDEST_ACCESS // element_bytes, WIDEST_ROW // element_bytes
    return tirx.floormod(tirx.floordiv(at, index(line)), index(row_bytes // WIDEST_ACCESS)) * index(piece)


def swizzled_panel(program: StageProgram, staging: Staging, buffer: Buffer, start: int) -> SwizzledPanel:
    """Returns a panel that starts at an element of a buffer, with the program's number of copies."""
    nest, tile = program.nest, program.unit_tile
    touches, value = staged_touches(nest, staging), operand_value(nest, staging.operand, program.atom)
    assert value is not None, "a matrix atom has both operands in its own type"
    spots = {role: dim for role, dim in program.mapping if touches[dim]}
    along = row_dim(nest, program.atom, program.mapping, staging.operand, tile)
    side = next(dim for dim in spots.values() if dim != along)
    size_of = ELEMENT_BYTES[value.dtype]
    width = next(w // size_of for w in (WIDEST_ROW, 64, 32) if tile[along] % (w // size_of) == 0)
    step = tile[side] * width
    steps, size = [0] * len(touches), step * (tile[along] // width)
    steps[along], steps[side] = 1, width
    for dim in reversed(range(len(touches))):
        if touches[dim] and dim not in (along, side):
            steps[dim] = size
            size *= tile[dim]
    whole = SWIZZLE_BYTES // size_of
    return SwizzledPanel(
        staging,
        value,
        buffer,
        tuple(steps),
        (along,),
        -(-size // whole) * whole,
        None,
        along=along,
        side=side,
        width=width,
        step=step,
        start=start,
        number=staging.depth,
        turned=along != spots["k"],
    )


def element_address(panel: SwizzledPanel, names: Mapping[int, Position], slot: Position) -> Expr:
    """Returns the unswizzled address to which a box is copied in a panel."""
    return pointer(panel.buffer, panel.linear(names, slot), written=True)
