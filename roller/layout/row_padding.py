"""The padding of a panel's rows against bank conflicts of the lanes that fill it and of those that read it.

Both are counted, lane by lane; the padding with the fewest conflicts is chosen, weighted with the memory that it takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from roller.ir.sliding_windows import in_rows
from roller.layout.banks import panel_rows, panel_steps
from roller.layout.fill_order import Digit, Fill, fill, filled
from roller.layout.lanes import accesses, lane_digits, lane_pieces, lanes_along
from roller.program.rprogram import StageProgram, Staging
from roller.target.hardware import Banks, HardwareSpec

SAMPLE = 128  # first values of a panel, for which bank conflicts are counted: four accesses of 32 lanes


def rows_padded(program: StageProgram, spec: HardwareSpec, banks: Banks, staging: Staging) -> Staging:
    """Returns a panel with the row padding that leaves the fewest bank conflicts for the room that it takes.

    For a matrix atom, and before a unit's tile is chosen, it is the padding of `roller.layout.banks`. Otherwise it counts the
    conflicts of the lanes that fill the panel and of those that read it.
    """
    nest, group = program.nest, spec.levels[-1].access_lanes
    rows, value = panel_rows(program, spec, staging), nest.factors[staging.operand]
    if program.atom.kind == "matrix" or len(program.tiles) == 1 or rows.row == 1 or rows.rows == 1:
        return replace(staging, row_padding=rows.padding(banks))  # in rows of one value, lanes read neighbouring rows
    size, pitched = rows.element_bytes, Pitched(program, staging, rows.row)
    points = filled(nest, staging, program.unit_tile, pitched.steps(0), nest.spatial)
    filling = fill(nest, points.tile, value, points.steps, points.row, group)
    wide = replace(staging, row_padding=-rows.row % filling.most)
    least = filled(nest, staging, program.unit_tile, pitched.steps(wide.row_padding), nest.spatial).steps
    whole = max(filling.order(least).stored, *(width for width, _ in accesses(program, wide)[1]))
    reading = _read(program, wide, group)
    room = rows.padding_bytes(1) * staging.depth / spec.levels[staging.level].capacity_bytes  # share of the level for each element
    best = math.inf, 0
    for padding in _choices(rows.row, whole, filling, banks.count * banks.width_bytes // size):
        if best[0] <= (1 + len(reading)) * (1 + room * padding):
            break
        steps = pitched.steps(padding)
        order = filling.order(filled(nest, staging, program.unit_tile, steps, nest.spatial).steps)
        found = conflicts(order.digits, steps, order.stored, SAMPLE, banks, size)
        found += sum(conflicts(digits, steps, width, group, banks, size) for digits, width in reading)
        best = min(best, (found * (1 + room * padding), padding))
    return replace(staging, row_padding=best[1])


def _choices(row: int, whole: int, filling: Fill, period: int) -> list[int]:
    """Returns paddings of rows to multiples of `whole` elements that may avoid bank conflicts.

    These are the least one, those with which rows lie an odd multiple of each power of two apart, and those with which the next row
    continues in the banks where lanes leave the one before.
    """
    powers = [whole << n for n in range(period) if whole << n < period]
    ending = [near for near in (filling.run(), *powers) if near and near % whole == 0]
    odd = [(power - row) % (2 * power) for power in powers]
    return sorted({-row % whole, *odd, *((near - row) % period for near in ending)})


class Pitched:
    """The steps of a panel's dimensions for each distance of its rows."""

    def __init__(self, program: StageProgram, staging: Staging, length: int) -> None:
        self.length, self.row = length, in_rows(program.nest, staging.operand) if staging.windowed else program.nest.spatial
        bare = replace(staging, row_padding=0)
        self.bare, _ = panel_steps(program.nest, bare, program.unit_tile, program.nest.spatial, program.nest.reduce)

    def steps(self, padding: int) -> tuple[int, ...]:
        """Returns the step of each dimension with `padding` elements added to each row."""
        pitch = self.length + padding
        return tuple(s if d in self.row else s // self.length * pitch for d, s in enumerate(self.bare))


def _read(program: StageProgram, staging: Staging, group: int) -> list[tuple[tuple[Digit, ...], int]]:
    """Returns the addresses of the first lanes of a unit (as digits), and how wide they read, for each width of panel access.

    Returns nothing where all lanes read the same row, whatever the distance of rows.
    """
    if not any(program.nest.dims[d].is_reduce for d in lanes_along(program)):
        return []
    run, each = accesses(program, staging)
    digits = lane_digits(program, group)
    own = {d: lane_pieces(program, d)[0] for d, _, _ in digits}
    return [
        (tuple((d, count, step * (piece if d == run else own[d])) for d, count, step in digits), width)
        for width, piece in dict.fromkeys(each)
    ]


def conflicts(digits: Sequence[Digit], steps: Sequence[int], width: int, count: int, banks: Banks, size: int) -> float:
    """Returns how often the banks serve lanes, over how often they would without two words in one bank.

    The first `count` lanes, whose addresses are made up of digits as in `FillOrder`, move `width` elements of `size` bytes each, to
    or from a panel with these steps.
    """
    period = banks.count * banks.width_bytes // size
    lanes: list[tuple[int, int, bool]] = []
    together, parts = 1, width * size < banks.width_bytes  # parts of a word are served together: their addresses count, too
    for dim, many, step in reversed(digits):
        needed, apart = min(many, -(-count // together)), step * steps[dim]
        if needed > 1:
            lanes.append((needed, apart, False) if parts else (needed, apart % period, apart > 0))
            together *= needed
    return _conflicts(tuple(lanes), width * size, min(count, together), banks, size)


@lru_cache(maxsize=1 << 14)
def _conflicts(lanes: tuple[tuple[int, int, bool], ...], wide: int, count: int, banks: Banks, size: int) -> float:
    """Returns the conflicts. `lanes`: digits of addresses, innermost first: number, distance, whether whole periods come on top."""
    unit = max(wide, banks.width_bytes)  # addresses are multiples of it: two that share one bank share all
    period = banks.count * banks.width_bytes
    slots, places = max(1, period // unit), [0]
    for number, (many, step, apart) in enumerate(lanes):
        far = step * size + period * SAMPLE ** (number + 1) * apart  # different addresses also differ beyond the banks
        places = [p + n * far for n in range(many) for p in places]
    least = found = 0
    for first in range(0, count, slots):
        distinct = {p // unit for p in places[first : min(first + slots, count)]}
        least += -(-len(distinct) // slots)
        found += max(Counter(u % slots for u in distinct).values())
    return found / least
