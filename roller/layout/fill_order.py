"""The order in which the lanes of a unit fill a panel together.

Lanes take a panel's values by number, neighbouring lanes neighbouring values: first some neighbours of a row, then the rows one
after another, then the rest of the rows. Lanes therefore read contiguous parts of an array together (coalesced), whichever way it
is contiguous. They write into as many rows at a time as there are; `row_padding` keeps these rows in different banks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from roller.ir.expr import ELEMENT_BYTES
from roller.ir.nest import Access, Nest, Tile
from roller.ir.scalar import Scalar, loads
from roller.ir.sliding_windows import filled_steps, filled_tile, in_rows
from roller.layout.banks import most_together, panel_steps, row_dim
from roller.program.rprogram import StageProgram, Staging, operand_value

LEAST_RUN_BYTES = 32  # of an array that neighbouring lanes read, where they could read single values across a panel's rows
FEWEST_NEAR = 4  # values that must lie in such a run where they are not contiguous

Digit = tuple[int, int, int]  # a dimension, how many values, and how far apart they are


@dataclass(frozen=True, slots=True)
class FillOrder:
    """The digits of the numbers of a panel's values, outermost first, and the accesses of the fill.

    `along`: the dimension along which the source is contiguous; `width`: the elements that one access reads along it; `stored`:
    those that one access stores.
    """

    digits: tuple[Digit, ...]
    along: int | None
    width: int
    stored: int

    def follows(self, lanes: int) -> bool:
        """True if the addresses of a lane's values follow from that of the first, however many there are.

        From one value to the next, `lanes` lanes together advance by a multiple of the step of one digit; the digits further in
        stay.
        """
        for _, count, _ in reversed(self.digits[1:]):
            if lanes % count:
                return count % lanes == 0
            lanes //= count
        return True


class Points(NamedTuple):
    """The points whose values fill a panel: extents, steps, and the dimensions of rows.

    A step is 0 along a dimension on which the panel does not depend, or depends only through another dimension.
    """

    tile: Tile
    steps: tuple[int, ...]
    row: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """The fill of a panel, before the distance of its rows is known.

    `inwards`: its dimensions from the outermost in; `row`: those of its rows; `along`: the one along which the source is
    contiguous; `width`: the elements that one access reads along it (more than 1 only along rows); `far`: dimensions in the
    source's order; `most`: elements of the widest access; `group`: lanes of a group; `size`: bytes of an element.
    """

    tile: Tile
    inwards: tuple[int, ...]
    row: tuple[int, ...]
    along: int | None
    width: int
    far: tuple[int, ...]
    most: int
    group: int
    size: int

    def order(self, steps: Sequence[int]) -> FillOrder:
        """Returns the order in which the panel with these steps is filled.

        Where neighbours of a row are neighbours in the source, a lane takes as many as one access may, or lanes take one each of
        whole runs. Where rows are neighbours in the source, a group takes blocks: some neighbours of a row, in as many rows as
        there are lanes for.
        """
        tile, along = self.tile, self.along
        if along is not None and self.width > 1:
            digits = tuple((d, tile[d] // (self.width if d == along else 1), self.width if d == along else 1) for d in self.far)
            return FillOrder(digits, along, self.width, _stored(steps, along, min(self.width, self.most)))
        turned = along if along is not None and along not in self.row else None
        own = self.own
        near = _run(tile, own, self.most) if turned is None else self._block(own, steps)
        far = 1 if turned is None else _power(tile[turned], self.group // math.prod(near.values()))
        beside = [(d, tile[d] // near.get(d, 1), near.get(d, 1)) for d in reversed(own) if tile[d] > near.get(d, 1)]
        across = sorted((d for d in self.inwards if d not in self.row), key=lambda d: d == turned)
        rows = [(d, tile[d] // (far if d == turned else 1), far if d == turned else 1) for d in across]
        block = [(d, near[d], 1) for d in reversed(own) if d in near]
        return FillOrder((*beside, *rows, *([] if turned is None else [(turned, far, 1)]), *block), along, 1, 1)

    def run(self) -> int:
        """Returns the neighbours of a row that lanes take before the next row; 0 where that follows from the rows' distance."""
        if self.along is not None and self.width > 1:
            return self.tile[self.along]
        if self.along is not None and self.along not in self.row:
            return 0
        return math.prod(_run(self.tile, self.own, self.most).values())

    @property
    def own(self) -> list[int]:
        """The dimensions of rows, innermost first."""
        return [d for d in reversed(self.inwards) if d in self.row]

    def _block(self, own: Sequence[int], steps: Sequence[int]) -> dict[int, int]:
        """Returns the neighbours of a row that lanes take before the next row, where rows are neighbours in the source.

        It is a whole short row where the next one follows at once, else the largest power of two that divides the rows' distance.
        Rows that lie an odd multiple of this power apart start at different multiples of it in the banks, until there is none left.
        """
        pitch = min(steps[d] for d in self.inwards if d not in self.row)
        if math.prod([self.tile[d] for d in own]) == pitch <= 2 * self.most:
            return {d: self.tile[d] for d in own}
        found: dict[int, int] = {}
        left = _power(pitch, max(self.most, self.group * self.size // LEAST_RUN_BYTES))
        for dim in own:
            found[dim] = _power(self.tile[dim], left)
            left //= found[dim]
            if found[dim] < self.tile[dim]:
                break
        return found


def fill(
    nest: Nest,
    tile: Tile,
    value: Scalar,
    steps: Sequence[int],
    row: tuple[int, ...],
    group: int,
    cell: tuple[int, int] | None = None,
) -> Fill:
    """Returns how lanes in groups of `group` fill a panel of `value`, whose rows go along the dimensions `row`.

    `steps`: the panel's steps, or those with another distance of the rows. `cell`: a dimension, and how many neighbours along it
    count as one value in `tile` and `steps`: a lane takes them together.
    """
    mine, (deep, many) = _sources(nest, value), cell or (None, 1)
    along = _along(nest, tuple(1 if d == deep else extent for d, extent in enumerate(tile)), steps, mine)
    width = _width(nest, tile, along, mine[0], many) if along is not None and len(mine) == 1 else 1
    if along is None:
        along = _nearest(tile, steps, mine, ELEMENT_BYTES[value.dtype])
    inwards = tuple(sorted((d for d, s in enumerate(steps) if s), key=lambda d: -steps[d]))
    if along is not None and steps[along] != 1 and any(steps[d] == 1 and tile[d] > 1 for d in inwards):
        width = 1
    far = tuple(sorted(inwards, key=lambda d: (d == along, -_source_step(mine, d), d)))
    most = max(1, most_together(value.dtype) // many)
    return Fill(tile, inwards, row, along, width, far, most, group, many * ELEMENT_BYTES[value.dtype])


def filled(nest: Nest, staging: Staging, tile: Tile, steps: Sequence[int], row: tuple[int, ...]) -> Points:
    """Returns the points of a unit's tile whose values fill a panel: extents, steps in the panel, dimensions of its rows."""
    if not staging.windowed:
        return Points(tile, tuple(steps), row)
    factor = staging.operand
    return Points(filled_tile(nest, factor, tile), filled_steps(nest, factor, steps), in_rows(nest, factor))


class Share(NamedTuple):
    """One lane's part of a panel fill: accesses, and the elements that one reads.

    `follows`: the address of each follows from that of the first. `guarded`: they may lie outside the array.
    """

    accesses: int
    width: int
    follows: bool
    guarded: bool


def share(program: StageProgram, staging: Staging, group: int, lanes: int) -> Share:
    """Returns the part of each of `lanes` lanes in filling a panel with unconverted values."""
    nest, tile, atom, factor = program.nest, program.unit_tile, program.atom, staging.operand
    row, outside, value = nest.spatial, nest.reduce, nest.factors[factor]
    if atom.kind == "matrix":
        row = (row_dim(nest, atom, program.mapping, factor, tile),)
        outside = tuple(d for d in range(len(tile)) if d not in row)
        value = operand_value(nest, factor, atom) or value
    steps, _ = panel_steps(nest, staging, tile, row, outside)
    points = filled(nest, staging, tile, steps, row)
    order = fill(nest, points.tile, value, points.steps, points.row, group).order(points.steps)
    accesses = -(-math.prod([count for _, count, _ in order.digits]) // lanes)
    guarded = any(a.guarded for a in nest.inputs if a.factor == staging.operand)
    return Share(accesses, order.width, accesses == 1 or order.follows(lanes), guarded)


def _run(tile: Tile, inwards: Sequence[int], most: int) -> dict[int, int]:
    """Returns the neighbours of a row that lanes take before the next row, where they are neighbours in the source.

    These are all along the innermost dimension, and along others until they are a multiple of the widest access.
    """
    found: dict[int, int] = {}
    for dim in inwards:
        if found and math.prod(found.values()) % most == 0:
            break
        found[dim] = tile[dim]
    return found


def _power(extent: int, most: int) -> int:
    """Returns the largest power of two that divides an extent, up to a limit."""
    found = 1
    while 2 * found <= most and extent % (2 * found) == 0:
        found *= 2
    return found


def _sources(nest: Nest, value: Scalar) -> list[Access]:
    """Returns the array of each load of a panel's value."""
    known = {(a.tensor.name, a.index): a for a in reversed([a for a in nest.accesses if a.role != "output"])}
    return [known[node.tensor, node.index] for node in loads(value)]


def _along(nest: Nest, tile: Tile, steps: Sequence[int], mine: Sequence[Access]) -> int | None:
    """Returns the dimension along which the source is contiguous: that of the panel's runs rather than one across rows."""
    dims = [d for d, s in enumerate(steps) if s and tile[d] > 1 and any(_neighbours(a, d, s == 1) for a in mine)]
    return min(dims, key=lambda d: (steps[d] != 1, d in nest.spatial, d), default=None)


def _nearest(tile: Tile, steps: Sequence[int], mine: Sequence[Access], size: int) -> int | None:
    """Returns the dimension along which neighbours lie nearest in a source that is contiguous along none.

    Several of them have to lie in the bytes that memory delivers at a time, such as every other value of a row. Else it is None.
    """
    found = [(max(abs(_step(a, d)) for a in mine), d) for d, s in enumerate(steps) if s and tile[d] > 1] if mine else []
    near = [(step, d) for step, d in found if step and FEWEST_NEAR * step * size <= LEAST_RUN_BYTES]
    return min(near, default=(0, None))[1]


def _step(access: Access, dim: int) -> int:
    """Returns how far apart neighbours along a dimension lie in an array, except where an inner axis ends."""
    step = access.strides[dim]
    if step is None:
        step = sum(i.coefficient(access.innermost[dim]) * s for i, s in zip(access.index, access.tensor.strides, strict=True))
    return step


def _neighbours(access: Access, dim: int, mostly: bool) -> bool:
    """True if neighbours along a dimension are neighbours in an array; `mostly`: except where an inner axis ends."""
    return access.strides[dim] == 1 or (mostly and access.strides[dim] is None and _step(access, dim) == 1)


def _width(nest: Nest, tile: Tile, dim: int, access: Access, many: int) -> int:
    extent = nest.extents[dim]
    if extent < tile[dim] or not (access.linear or access.alone(dim, extent)):
        return 1
    width = max(1, most_together(access.tensor.dtype) // many)
    if access.linear:
        offset = sum(i.offset * s for i, s in zip(access.index, access.tensor.strides, strict=True))
        steps = [s or 0 for d, s in enumerate(access.strides) if d != dim and nest.extents[d] > 1]
    else:
        offset, steps = 0, list(access.tensor.strides[:-1])
    while width > 1 and any(n % width for n in (*steps, offset, extent, tile[dim])):
        width //= 2
    return width


def _source_step(mine: Sequence[Access], dim: int) -> int:
    return max((abs(a.strides[dim] or 0) for a in mine), default=0)


def _stored(steps: Sequence[int], along: int, together: int) -> int:
    """Returns the number of contiguous values in a panel that one access may store."""
    if steps[along] != 1:
        return 1
    others = [s for d, s in enumerate(steps) if s and d != along]
    while any(s % together for s in others):
        together //= 2
    return together


# --- rows far enough apart ---------------------------------------------------------------------------------------------
