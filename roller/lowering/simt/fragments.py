"""Fragments: operands that a lane loads into registers before it computes, each element once, neighbours with one access."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from roller.ir.nest import Tile
from roller.ir.sliding_windows import windows
from roller.layout.banks import laid_tile, most_together
from roller.layout.lanes import accesses
from roller.lowering.simt.shared_panels import SharedPanel
from roller.lowering.simt.threads import REGISTER_BYTES, Block, Offsets
from roller.lowering.tir.addresses import Point, base_address
from roller.lowering.tir.builder import Buffer, Expr, Stmt, allocate, index, load, ramp, register_buffer, store
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position
from roller.program.rprogram import StageProgram, panel_element_bytes, staged_touches

Views = dict[Offsets, Buffer]


@dataclass(frozen=True)
class Source:
    """The addresses from which a lane's points read one operand.

    `seen`: maps a point to the element that it reads, as offsets. `place`: the element's buffer and address. `along`: the dimension
    along which points read neighbours. `accesses`: the first element of each access, and the number of its elements.
    """

    name: str
    dtype: str
    seen: Callable[[Offsets], Offsets]
    place: Callable[[Offsets], tuple[Buffer, Position]]
    along: int
    accesses: dict[int, int]


@dataclass(frozen=True)
class Fragment:
    """Elements of one operand in registers, indexed by the offsets of the points that read them."""

    held: Buffer
    places: dict[Offsets, int]
    seen: Callable[[Offsets], Offsets]

    def value(self, offsets: Offsets) -> Expr:
        """Returns the element that a point reads."""
        return load(self.held, index(self.places[self.seen(offsets)]))


def fragment(source: Source, points: list[Offsets]) -> tuple[Fragment, list[Stmt]]:
    """Returns the elements at some points, and the statements that load them."""
    wanted = list(dict.fromkeys(source.seen(o) for o in points))
    places: dict[Offsets, int] = {}
    reads = []
    held = register_buffer(f"{source.name}_held", len(wanted), source.dtype)
    for offsets, width in runs(wanted, source.along, source.accesses):
        at, (buffer, start) = len(places), source.place(offsets)
        reads.append(store(held, load(buffer, ramp(start, 1, width)), ramp(at, 1, width)))
        places |= {member: at + n for n, member in enumerate(neighbours(offsets, source.along, width))}
    return Fragment(held, places, source.seen), [*allocate([held]), *reads]


def runs(wanted: list[Offsets], along: int, accesses: dict[int, int]) -> list[tuple[Offsets, int]]:
    """Returns points as accesses: the first point and the width of each, the widest ones first.

    In this order, wide accesses start at multiples of their width in registers too. An access with points that are not wanted is
    split into single points.
    """
    left, found = dict.fromkeys(sorted(wanted)), []
    for offsets in list(left):
        members = neighbours(offsets, along, accesses.get(offsets[along], 1) if offsets else 1)
        if all(member in left for member in members):
            found.append((offsets, len(members)))
            for member in members:
                del left[member]
    found += [(offsets, 1) for offsets in left]
    return sorted(found, key=lambda run: (-run[1], *run[0][:along], *run[0][along + 1 :], *run[0][along : along + 1]))


def neighbours(offsets: Offsets, along: int, width: int) -> list[Offsets]:
    """Returns a point and its successors along a dimension."""
    return [offsets, *((*offsets[:along], offsets[along] + n, *offsets[along + 1 :]) for n in range(1, width))]


def array_source(block: Block, reader: Reader, number: int, point_of: Callable[[Offsets], Point]) -> Source:
    """Returns the source of an unguarded array that is read in place."""
    nest = block.program.nest
    access, window = nest.accesses[number], reader.window(number)

    def place(offsets: Offsets) -> tuple[Buffer, Position]:
        return window.buffer, base_address(nest, window, access.index, point_of(offsets))

    seen = partial(_projected, access.touches)
    return Source(window.buffer.name, str(window.buffer.dtype), seen, place, *array_accesses(block, number))


def array_accesses(block: Block, number: int) -> tuple[int, dict[int, int]]:
    """Returns the dimension along which a lane's points are neighbours in an array, and the accesses along it.

    An access has its first point and the number of elements that it may touch.
    """
    nest = block.program.nest
    access = nest.accesses[number]
    offset = sum(i.offset * s for i, s in zip(access.index, access.tensor.strides, strict=True))
    for dim, stride in enumerate(access.strides):
        if stride == 1 and access.linear:
            width = most_together(access.tensor.dtype)
            others = [s or 0 for d, s in enumerate(access.strides) if d != dim and nest.extents[d] > 1]
            while width > 1 and (not block.aligned(dim, width) or any(s % width for s in (*others, offset))):
                width //= 2
            return dim, block.accesses(dim, width)
    return 0, {}


def panel_source(block: Block, panel: SharedPanel, reduced: dict[int, Position], slot: Position, near: Views | None) -> Source:
    """Returns the source of one copy of a panel in shared memory.

    `reduced`: start of the lane's tile along each reduction. `near`: views of that copy, by the widths of the points' pieces.
    """
    run, each = accesses(block.program, panel.staging)
    most = most_together(str(panel.buffer.dtype))
    widths = [part for width, _ in each for part in (width // min(width, most)) * [min(width, most)]]
    first = dict(zip(itertools.accumulate(widths, initial=0), widths, strict=False))

    def place(offsets: Offsets) -> tuple[Buffer, Position]:
        if near is None:
            return panel.buffer, panel.address(block, reduced, slot, offsets)
        return near[panel.widths(block, offsets)], panel.moved(block, reduced, offsets)

    along = next((w.mover for w in panel.windows if w.spatial == run), run or 0)
    return Source(panel.buffer.name, str(panel.buffer.dtype), panel.seen, place, along, first)


def read_tile(program: StageProgram, factor: int) -> Tile:
    """Returns a lane's tile as extents of the values that it reads of a factor."""
    panel = next((s for s in program.staged if s.kind == "panel" and s.operand == factor), None)
    return program.inner if panel is None else laid_tile(program.nest, panel, program.inner)


def read_registers(program: StageProgram) -> int:
    """Returns the registers for the panel values that a lane reads in a step: one per value, or its share of a group's."""
    tiles = [(read_tile(program, s.operand), staged_touches(program.nest, s)) for s in program.staged if s.kind == "panel"]
    values = sum(math.prod([extent for extent, touched in zip(*pair, strict=True) if touched]) for pair in tiles)
    if program.atom.kind != "matrix":
        return values
    return -(-values * panel_element_bytes(program.nest, program.atom) // (REGISTER_BYTES * program.atom.lanes))


def window_row(program: StageProgram) -> int:
    """Returns the values that a lane reads of its largest operand along the innermost window in a step; 0 without windows."""
    if not program.windowed:
        return 0

    def values(factor: int) -> int:
        touches = program.nest.factor_touches(factor)
        return math.prod([extent for extent, touched in zip(read_tile(program, factor), touches, strict=True) if touched])

    found = windows(program.nest, max([s.operand for s in program.staged if s.kind == "panel"], key=values))
    return int(found[-1].length(program.inner)) if found else 0


def narrower_widths(program: StageProgram) -> int:
    """Returns the number of access widths besides the widest one, summed over the panels that a lane reads."""
    panels = [s for s in program.staged if s.kind == "panel"]
    return sum(len({width for width, _ in accesses(program, s)[1]}) - 1 for s in panels)


def _projected(touches: tuple[bool, ...], offsets: Offsets) -> Offsets:
    return tuple(o if t else 0 for o, t in zip(offsets, touches, strict=True))
