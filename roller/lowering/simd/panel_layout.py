"""The layout of packed panels: staged factors in the order in which the nest reads them.

There is a slot for each loop inside the copy that the factor depends on. Innermost are the points of the register tile, with the
vector's lanes last. For a dot-product atom they are words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from roller.lowering.tir.builder import Buffer, buffer, plus, times
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram, Staging, copy_depth, staged_touches
from roller.program.words import in_words, word_dim, word_dtype


@dataclass(frozen=True)
class Panel:
    """A staged factor: its buffer and, for every loop it depends on, the elements (or words) between two trips."""

    staging: Staging
    buffer: Buffer
    strides: tuple[tuple[int, int], ...]  # (number of the loop, elements)
    touches: tuple[bool, ...]
    depth: int


def panel_shape(program: StageProgram, staging: Staging) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Returns the elements of a panel, and the slot stride of each loop inside its copy."""
    touches = staged_touches(program.nest, staging)
    size = math.prod([t for t, x in zip(in_words(program, program.inner), touches, strict=True) if x])
    strides: list[tuple[int, int]] = []
    depth = copy_depth(program, staging)
    for number in reversed(range(depth, len(program.loops))):
        if touches[program.loops[number].dim]:
            strides.append((number, size))
            size *= program.loops[number].trips
    return size, tuple(reversed(strides))


def make_panel(program: StageProgram, staging: Staging, name: str) -> Panel:
    """Returns the panel with a fresh buffer."""
    elements, strides = panel_shape(program, staging)
    dtype = program.nest.stage.body.dtype if program.atom.depth == 1 else word_dtype(program)
    touches = staged_touches(program.nest, staging)
    return Panel(staging, buffer(name, elements, dtype), strides, touches, copy_depth(program, staging))


def tile_offsets(program: StageProgram, touches: tuple[bool, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields offsets of the points of an innermost tile in a panel's order, one for each vector, with the vector's lanes."""
    lane, width = program.lane, program.width
    ranges = []
    for dim, (extent, touched) in enumerate(zip(in_words(program, program.inner), touches, strict=True)):
        ranges.append(range(0, extent if touched else 1, width if dim == lane and touched else 1))
    for offsets in itertools.product(*ranges):
        lanes = 1
        if lane is not None and touches[lane]:
            lanes = min(width, program.inner[lane] - offsets[lane])
        yield offsets, lanes


def panel_offset(program: StageProgram, touches: tuple[bool, ...], offsets: tuple[int, ...]) -> int:
    """Returns the address of a tile's point in its slot: dimensions in order, the vector's last, or that of the words of a row."""
    inner, last = in_words(program, program.inner), program.lane
    if last is not None and not touches[last]:
        last = word_dim(program.atom, program.mapping)
    order = [d for d in range(len(offsets)) if touches[d] and d != last]
    if last is not None and touches[last]:
        order.append(last)
    place = 0
    for dim in order:
        place = place * inner[dim] + offsets[dim]
    return place


def slot_address(panel: Panel, state: State) -> Position:
    """Returns the address of the first element of the current tile's slot."""
    total: Position = 0
    for number, stride in panel.strides:
        total = plus(total, times(state.variable(number), stride))
    return total
