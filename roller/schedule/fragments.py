"""What a lane reads into registers before it computes: each element once, neighbours with one access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roller.banks import WIDEST_ACCESS
from roller.schedule.place import Point, base_address
from roller.schedule.reading import Reader
from roller.schedule.shared import SharedPanel
from roller.schedule.threads import Block, Offsets
from roller.schedule.tir import Buffer, Expr, Stmt, allocate, index, load, most_together, ramp, register_buffer, store
from roller.schedule.walk import Position


@dataclass(frozen=True)
class Source:
    """Where a lane's points read one operand: buffer, address, and the dimension along which `width` neighbours are one access."""

    buffer: Buffer
    touches: tuple[bool, ...]
    address: Callable[[Offsets], Position]
    along: int
    width: int


@dataclass(frozen=True)
class Fragment:
    """Elements of one operand in registers, by the offsets of the points that read them."""

    held: Buffer
    places: dict[Offsets, int]
    touches: tuple[bool, ...]

    def value(self, offsets: Offsets) -> Expr:
        """The element that a point reads."""
        return load(self.held, index(self.places[_projected(self.touches, offsets)]))


def fragment(source: Source, points: list[Offsets]) -> tuple[Fragment, list[Stmt]]:
    """The elements at some points, and the statements that read them."""
    wanted = list(dict.fromkeys(_projected(source.touches, o) for o in points))
    width = source.width
    while width > 1 and len({o[source.along] for o in wanted}) % width:
        width //= 2
    if width > 1:
        along = source.along
        wanted.sort(key=lambda o: (*o[:along], *o[along + 1 :], o[along]))
    places = {offsets: at for at, offsets in enumerate(wanted)}
    held = register_buffer(f"{source.buffer.name}_held", len(places), str(source.buffer.dtype))
    reads = [
        store(held, load(source.buffer, ramp(source.address(offsets), 1, width)), ramp(at, 1, width))
        for offsets, at in places.items()
        if at % width == 0
    ]
    return Fragment(held, places, source.touches), [*allocate([held]), *reads]


def array_source(block: Block, reader: Reader, number: int, point_of: Callable[[Offsets], Point]) -> Source:
    """An array that is read where it is, without guards."""
    nest = block.program.nest
    access, window = nest.accesses[number], reader.window(number)
    along, width = array_width(block, number)
    return Source(window.buffer, access.touches, lambda o: base_address(nest, window, access.index, point_of(o)), along, width)


def array_width(block: Block, number: int) -> tuple[int, int]:
    """The dimension along which a lane's points are neighbours in an array, and how many of them one access may touch."""
    nest = block.program.nest
    access = nest.accesses[number]
    offset = sum(i.offset * s for i, s in zip(access.index, access.tensor.strides, strict=True))
    for dim, stride in enumerate(access.strides):
        if stride == 1 and access.linear:
            width = min(block.pieces[dim], most_together(access.tensor.dtype))
            others = [s or 0 for d, s in enumerate(access.strides) if d != dim and nest.extents[d] > 1]
            while width > 1 and (not block.aligned(dim, width) or any(s % width for s in (*others, offset))):
                width //= 2
            return dim, width
    return 0, 1


def panel_source(
    block: Block, panel: SharedPanel, reduced: dict[int, Position], slot: Position, near: Buffer | None = None
) -> Source:
    """One copy of a panel in shared memory; `reduced`: where the lane's tile starts along each reduction. `near`: a view of that
    copy from the lane's first point on.
    """
    touches = tuple(step > 0 for step in panel.steps)
    along = next((d for d, step in enumerate(panel.steps) if step == 1), 0)
    width = min(block.pieces[along], WIDEST_ACCESS // block.program.nest.accumulator_bytes, most_together(panel.value.dtype))
    others = [*(s for d, s in enumerate(panel.steps) if s and d != along), panel.size]
    while width > 1 and (not block.aligned(along, width) or any(s % width for s in others)):
        width //= 2
    if near is not None:
        return Source(near, touches, lambda o: panel.moved(block, reduced, o), along, width)
    return Source(panel.buffer, touches, lambda o: panel.address(block, reduced, slot, o), along, width)


def _projected(touches: tuple[bool, ...], offsets: Offsets) -> Offsets:
    return tuple(o if t else 0 for o, t in zip(offsets, touches, strict=True))
