"""Fills of panels whose source is contiguous along a reduction instead of along the vector, by transposing blocks.

A block has as many runs along the reduction as a vector has lanes, one vector each.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from roller.ir.compensation import unbiased
from roller.ir.scalar import Load
from roller.lowering.simd.panel_layout import Panel, panel_offset, slot_address, tile_offsets
from roller.lowering.simd.transpose import transposed
from roller.lowering.simd.words import loaded_words, unsigned
from roller.lowering.tir import tile_starts
from roller.lowering.tir.addresses import ArrayView, Point, base_address, lane_stride, member_steps
from roller.lowering.tir.builder import (
    Expr,
    Held,
    Stmt,
    holds_its_type,
    index,
    load,
    loop,
    plus,
    ramp,
    sequence,
    store,
    times,
    variable,
)
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram, operand_value
from roller.program.words import in_words, steps_along, word_dim


@dataclass(frozen=True)
class Runs:
    """The contiguous runs of a panel's source, along the innermost loops of the copy, taken together."""

    window: ArrayView
    load: Load
    loops: int  # the innermost loops that together walk the run
    slot: int  # elements of the panel between two steps of the run
    unit: int = 1  # elements of the source in one of the panel's: several in a word
    biased: StageProgram | None = None  # the program whose atom takes these operands unsigned, though the source is signed


def transposed_runs(program: StageProgram, panel: Panel, reader: Reader, reduce_loops: list[int]) -> Runs | None:
    """Returns the runs; None if the factor is no plain array, is guarded, or is not contiguous along a reduction."""
    nest, lane, width, unit = program.nest, program.lane, program.width, program.atom.depth
    factor = nest.factors[panel.staging.operand]
    node = factor if unit == 1 else operand_value(nest, panel.staging.operand, program.atom) or factor
    signed = unbiased(node) if unit > 1 else None
    node = signed or node
    if lane is None or not panel.touches[lane] or nest.dims[lane].is_reduce or not reduce_loops or width < 2 or width & (width - 1):
        return None
    deep = word_dim(program.atom, program.mapping)
    if not isinstance(node, Load) or any(not steps_along(program, i) for i in nest.reduce if panel.touches[i]):
        return None
    if deep is not None and nest.extents[deep] % program.inner[deep]:
        return None
    window = reader.plain(node)
    if window is None or lane_stride(nest, window, node.index, lane) in (None, 1):
        return None
    if deep is not None and lane_stride(nest, window, node.index, deep) != 1:
        return None  # its words do not lie one after another
    if unit > 1 and not holds_its_type(window.buffer):
        return None
    strides, loops, length, whole = dict(panel.strides), 0, _words(program, panel), True
    slot = strides[reduce_loops[-1]] // length
    if length > 1 and panel_offset(program, panel.touches, tuple(int(d == deep) for d in range(len(nest.dims)))) != slot:
        return None
    for number in reversed(reduce_loops):
        lp = program.loops[number]
        step = _step(program, window, node, number)
        if step != length * unit or strides[number] != slot * length or not whole:
            break
        loops, length, whole = loops + 1, length * lp.trips, _whole(program, number)
    return Runs(window, node, loops, slot, unit, program if signed is not None else None) if loops and length >= width else None


def _words(program: StageProgram, panel: Panel) -> int:
    """Returns the words along the reduction of one slot."""
    deep = word_dim(program.atom, program.mapping)
    return int(in_words(program, program.inner)[deep]) if deep is not None and panel.touches[deep] else 1


def _step(program: StageProgram, window: ArrayView, node: Load, number: int) -> int | None:
    """Returns the address step of one trip of a loop; None if trips are not whole steps of a linear dimension."""
    dim = program.loops[number].dim
    steps = member_steps(program.nest.dims[dim], window, node.index)
    stride = lane_stride(program.nest, window, node.index, dim)
    return stride * tile_starts.step_of(program, number) if stride is not None and any(steps) else None


def _whole(program: StageProgram, number: int) -> bool:
    return program.nest.extents[program.loops[number].dim] == program.loops[number].trips * tile_starts.step_of(program, number)


def fill_transposed(program: StageProgram, panel: Panel, reader: Reader, state: State, runs: Runs) -> Stmt:
    """Fills all steps of the runs of one tile: whole blocks, then single steps."""
    width = program.width
    numbers = [number for number, _ in panel.strides][-runs.loops :]
    length = times(_length(program, state, numbers), _words(program, panel))
    whole = length // width if isinstance(length, int) else tirx.floordiv(length, index(width))
    rest = length - whole * width
    inside = state
    for number in numbers:
        inside = tile_starts.enter(program, inside, number, 0, program.loops[number].trips)
    statements: list[Stmt] = []
    spatial = tuple(t and not d.is_reduce for t, d in zip(panel.touches, program.nest.dims, strict=True))
    # One vector's runs at a time: more rows, often a power of two apart, would evict one another from a cache's sets.
    for offsets, lanes in tile_offsets(program, spatial):
        addresses = _addresses(program, inside, runs, offsets, lanes)
        target = plus(slot_address(panel, state), panel_offset(program, panel.touches, offsets))
        block, single, step = variable("block"), variable("single"), variable("step")
        first = times(block, width)
        if lanes == width:
            places = [plus(a, times(first, runs.unit)) for a in addresses]
            body = _block(panel, runs, places, plus(target, times(first, runs.slot)), width)
        else:
            body = loop(step, width, _single(panel, runs, addresses, plus(first, step), target))
        statements.append(loop(block, whole, body))
        statements.append(loop(single, rest, _single(panel, runs, addresses, plus(times(whole, width), single), target)))
    return sequence(statements)


def _length(program: StageProgram, state: State, numbers: list[int]) -> Position:
    length: Position = 1
    for number in numbers:
        trips = tile_starts.trips_of(program, state, number)
        length = trips * length if isinstance(trips, int) else times(trips, length) if isinstance(length, int) else trips * length
    return length


def _addresses(program: StageProgram, state: State, runs: Runs, offsets: tuple[int, ...], lanes: int) -> list[Position]:
    """Returns the first address of each lane's run."""
    starts = tuple(tile_starts.tile_start(program, state, d) for d in range(len(offsets)))
    point = Point(program.nest, starts, program.lane, lanes).moved(offsets)
    return [base_address(program.nest, runs.window, runs.load.index, p) for p in point.each()]


def _single(panel: Panel, runs: Runs, addresses: list[Position], at: Position, target: Position) -> Stmt:
    """Stores one step: an element of every run, side by side."""
    values = [_loaded(panel, runs, index(plus(a, times(at, runs.unit))), 1) for a in addresses]
    together = values[0] if len(values) == 1 else tirx.Shuffle(values, [index(i) for i in range(len(values))])
    return store(panel.buffer, together, ramp(plus(target, times(at, runs.slot)), 1, len(values)))


def _loaded(panel: Panel, runs: Runs, place: Position, lanes: int) -> Expr:
    """Returns neighbours of a run, from this address on."""
    if runs.unit > 1:
        words = loaded_words(runs.window.buffer, place, runs.unit, lanes, str(panel.buffer.dtype))
        return words if runs.biased is None else unsigned(runs.biased, words, lanes)
    return load(runs.window.buffer, ramp(place, 1, lanes))


def _block(panel: Panel, runs: Runs, addresses: list[Position], target: Position, width: int) -> Stmt:
    held = Held()
    dtype = str(panel.buffer.dtype)
    rows = [held(_loaded(panel, runs, a, width), dtype, width) for a in addresses]
    columns = transposed(rows, dtype, held)
    stores = [store(panel.buffer, row, ramp(plus(target, step * runs.slot), 1, width)) for step, row in enumerate(columns)]
    return sequence([*held.statements, *stores])
