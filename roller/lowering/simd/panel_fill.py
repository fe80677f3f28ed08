"""Fills of packed panels.

A panel is laid out in the order in which the nest reads it. It has a slot for each loop inside the copy that the factor depends on;
innermost are the points of the register tile, with the vector's lanes last.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from tvm import tirx

from roller.ir.nest import Nest
from roller.ir.scalar import Load, Scalar, loads
from roller.lowering.simd.panel_layout import Panel, panel_offset, slot_address, tile_offsets
from roller.lowering.simd.row_fill import fill_rows
from roller.lowering.simd.transposed_fill import fill_transposed, transposed_runs
from roller.lowering.simd.words import word_values
from roller.lowering.tir import expressions, tile_starts
from roller.lowering.tir.addresses import Point, base_address, lane_stride, replaced
from roller.lowering.tir.builder import Expr, Held, Stmt, index, load, loop, plus, ramp, sequence, store, times, variable, when
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram
from roller.program.words import word_dim


def fill_panel(program: StageProgram, panel: Panel, reader: Reader, state: State, parallel: bool) -> Stmt:
    """Computes every slot of a panel, with loops in the order of its layout.

    If the lanes decode a fused dimension, neighbouring lanes are contiguous except at the end of a row. One comparison of
    addresses, outside the reduce loops, selects between whole vectors and single elements.
    """
    numbers = [n for n, _ in panel.strides]
    nest, lane = program.nest, program.lane
    steps = list(itertools.takewhile(lambda n: nest.dims[program.loops[n].dim].is_reduce, reversed(numbers)))[::-1]
    around = numbers[: len(numbers) - len(steps)]
    node = nest.factors[panel.staging.operand]
    ragged = (
        lane is not None and panel.touches[lane] and not nest.dims[lane].is_reduce and _decodes(reader, nest, loads(node), lane)
    )
    runs = transposed_runs(program, panel, reader, steps)
    if runs is not None:
        outer = numbers[: len(numbers) - runs.loops]
        return tile_starts.nested(program, state, outer, lambda s: fill_transposed(program, panel, reader, s, runs), parallel)
    rows = _rows(program, state, numbers) if around and steps else None
    if not ragged and rows is not None:
        return _fill_in_bands(program, panel, reader, state, numbers, rows, parallel)
    if not ragged:
        return tile_starts.nested(program, state, numbers, lambda s: _fill_slot(program, panel, reader, s, False, None), parallel)
    vectors = list(tile_offsets(program, tuple(t and not d.is_reduce for t, d in zip(panel.touches, nest.dims, strict=True))))

    def columns(at: State) -> Stmt:
        return sequence(_column(program, panel, reader, at, steps, offsets, lanes) for offsets, lanes in vectors)

    return tile_starts.nested(program, state, around, columns, parallel)


BAND = 8  # rows of the source read side by side: the number of streams that hardware prefetchers follow


def _rows(program: StageProgram, state: State, numbers: list[int]) -> int | None:
    """Returns the trips of the last loop inside all others; None if they differ between tiles."""
    for number in numbers[:-1]:  # at any trip: the first trip may be whole although a later one is not
        state = tile_starts.enter(program, state, number, variable("any"), tile_starts.trips_of(program, state, number))
    trips = tile_starts.trips_of(program, state, numbers[-1])
    return trips if isinstance(trips, int) else None


def _fill_in_bands(
    program: StageProgram, panel: Panel, reader: Reader, state: State, numbers: list[int], trips: int, parallel: bool
) -> Stmt:
    """Fills in bands of rows (steps of the last reduce loop): each row is read along its whole length, not a vector at a time."""
    last = numbers[-1]

    def band(first: Position, rows: int) -> Stmt:
        def columns(at: State) -> Stmt:
            row = variable("row")
            inside = tile_starts.enter(program, at, last, plus(first, row), trips)
            return loop(row, rows, _fill_slot(program, panel, reader, inside, False, None))

        return tile_starts.nested(program, state, numbers[:-1], columns)

    block = variable("band")
    statements = [loop(block, trips // BAND, band(times(block, BAND), BAND), parallel)] if trips >= BAND else []
    if trips % BAND:
        statements.append(band(trips // BAND * BAND, trips % BAND))
    return sequence(statements)


def _decodes(reader: Reader, nest: Nest, reads: tuple[Load, ...], lane: int) -> bool:
    if len(reads) != 1:
        return False
    number = next(n for n, a in enumerate(nest.accesses) if (a.tensor.name, a.index) == (reads[0].tensor, reads[0].index))
    window = reader.window(number)
    if nest.accesses[number].guarded and number not in reader.boxes:
        return False
    return lane_stride(nest, window, reads[0].index, lane) is None


def _column(
    program: StageProgram, panel: Panel, reader: Reader, at: State, inner: list[int], offsets: tuple[int, ...], lanes: int
) -> Stmt:
    """Fills one vector of a panel with a remainder, for all its reduce loops: contiguous or gathered, selected once."""

    def run(side_by_side: bool) -> Stmt:
        return tile_starts.nested(
            program, at, inner, lambda s: _fill_slot(program, panel, reader, s, side_by_side, (offsets, lanes))
        )

    if lanes == 1:
        return run(False)
    lane = program.lane
    assert lane is not None
    read = loads(program.nest.factors[panel.staging.operand])[0]
    number = next(n for n, a in enumerate(program.nest.accesses) if (a.tensor.name, a.index) == (read.tensor, read.index))
    first = _point(program, at, offsets, 1)
    last = _point(program, at, tuple(o + (lanes - 1 if d == lane else 0) for d, o in enumerate(offsets)), 1)
    window = reader.window(number)
    gap = base_address(program.nest, window, read.index, last) - base_address(program.nest, window, read.index, first)
    return when(tirx.EQ(gap, index(lanes - 1)), run(True), run(False))


def _point(program: StageProgram, state: State, offsets: tuple[int, ...], lanes: int) -> Point:
    starts = tuple(tile_starts.tile_start(program, state, d) for d in range(len(offsets)))
    return Point(program.nest, starts, program.lane, lanes).moved(offsets)


def _fill_slot(
    program: StageProgram, panel: Panel, reader: Reader, state: State, side_by_side: bool, only: tuple[tuple[int, ...], int] | None
) -> Stmt:
    """Computes the points of one slot, or one vector of it; `side_by_side` loads neighbours from the first one's address.

    The last slot along a reduction is not shifted inwards: only its elements inside the array are computed.
    """
    if program.atom.depth > 1:
        return _fill_words(program, panel, reader, state, side_by_side, only)

    def put(offsets: tuple[int, ...], lanes: int, shift: Position = 0) -> Stmt:
        node, lane = program.nest.factors[panel.staging.operand], program.lane
        point = _point(program, state, offsets, lanes)
        if lane is not None:
            point = replace(point, positions=replaced(point.positions, lane, plus(point.positions[lane], shift)))
        held = Held()
        value = _side_by_side(program, reader, node, point, held) if side_by_side else reader.value(node, point, held)
        where = plus(plus(slot_address(panel, state), panel_offset(program, panel.touches, offsets)), shift)
        return sequence([*held.statements, store(panel.buffer, value, ramp(where, 1, lanes))])

    wanted = [only] if only is not None else list(tile_offsets(program, panel.touches))
    lane = program.lane
    whole = sequence(put(offsets, lanes) for offsets, lanes in wanted)
    if lane is None or not panel.touches[lane] or not program.nest.dims[lane].is_reduce or tile_starts.exact(program, lane):
        return whole
    left, single = state.limits[lane], variable("single")
    rest = loop(single, left, sequence(put(offsets, 1, single) for offsets, _ in wanted if offsets[lane] == 0))
    return when(index(left) >= index(program.inner[lane]), whole, rest)


def _fill_words(
    program: StageProgram, panel: Panel, reader: Reader, state: State, side_by_side: bool, only: tuple[tuple[int, ...], int] | None
) -> Stmt:
    """Computes the words of one slot, or one vector of them: whole ones, or at the reduction's end what is left of them."""
    deep, depth = word_dim(program.atom, program.mapping), program.atom.depth
    assert deep is not None
    step = program.inner[deep]
    wanted = [only] if only is not None else list(tile_offsets(program, panel.touches))
    if only is not None and panel.touches[deep]:
        wanted = [(replaced(only[0], deep, word), only[1]) for word in range(step // depth)]

    def words(count: int) -> Stmt:
        filled = fill_rows(program, panel, reader, state, count) if only is None else None
        if filled is not None:
            return filled
        statements: list[Stmt] = []
        for offsets, lanes in wanted:
            held, first = Held(), offsets[deep] * depth
            point = _point(program, state, replaced(offsets, deep, first), lanes)
            near = partial(_side_by_side, program, reader, held=held) if side_by_side else None
            value = word_values(program, reader, panel.staging.operand, point, min(depth, max(0, count - first)), held, near)
            where = plus(slot_address(panel, state), panel_offset(program, panel.touches, offsets))
            statements += [*held.statements, store(panel.buffer, value, ramp(where, 1, lanes))]
        return sequence(statements)

    rest, left = program.nest.extents[deep] % step, state.limits[deep]
    if not rest:
        return words(step)
    if isinstance(left, int):
        return words(min(left, step))
    return when(left >= index(step), words(step), words(rest))


def _side_by_side(program: StageProgram, reader: Reader, node: Scalar, point: Point, held: Held) -> Expr:
    """Returns the value at a point whose loads are known to be contiguous along the lanes."""

    def read(leaf: Load) -> Expr:
        number = next(n for n, a in enumerate(program.nest.accesses) if (a.tensor.name, a.index) == (leaf.tensor, leaf.index))
        window = reader.window(number)
        return load(window.buffer, ramp(base_address(program.nest, window, leaf.index, point.scalar()), 1, point.lanes))

    return expressions.emit(node, point.lanes, read, lambda i: index(0), held)
