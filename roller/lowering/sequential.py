"""Lowering for devices whose units run sub-tiles one after another: loops over units run in parallel, all others serially.

The innermost tile is unrolled over accumulators in local storage; its vector dimension becomes vector operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from roller.lowering.simd import halo_fill, panel_fill
from roller.lowering.simd.accumulators import reducing_tile, scratch_tile
from roller.lowering.simd.context import Lowering, Options
from roller.lowering.simd.epilogue import put
from roller.lowering.simd.panel_layout import Panel, make_panel
from roller.lowering.simd.partial_results import combine_parts
from roller.lowering.simd.tile_registers import around_unit
from roller.lowering.simd.transpose import tile_points
from roller.lowering.tir import tile_starts
from roller.lowering.tir.addresses import Point
from roller.lowering.tir.builder import Buffer, Stmt, allocate, buffer, plus, sequence, times, variable
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import RProgram, StageProgram, Staging, copy_depth

__all__ = ["Options", "lower", "prepack"]


def lower(program: RProgram, buffers: Mapping[str, Buffer], options: Options) -> Stmt:
    """Lowers the whole program: stages one after another, intermediates in buffers of their own."""
    statements: list[Stmt] = []
    known = dict(buffers)
    for stage in program.stages:
        output = stage.nest.stage.output
        if output.name not in known:
            known[output.name] = buffer(output.name, output.elements, output.dtype)
            statements += allocate([known[output.name]])
        if output.elements:
            statements.append(_stage(Lowering(stage, known, options)))
    return sequence(statements)


def prepack(program: StageProgram, panel: Panel, buffers: Mapping[str, Buffer]) -> Stmt:
    """Fills a panel of constant operands ahead of time."""
    return panel_fill.fill_panel(program, panel, Reader(program.nest, buffers), tile_starts.start(program), parallel=False)


def _stage(low: Lowering) -> Stmt:
    """Returns the copies of whole operands, the nest, and the reduction of partial results."""
    if low.reducer is not None and not all(low.nest.extents[i] for i in low.nest.reduce):
        nothing = buffer("nothing", 0, low.dtype)
        return sequence([*allocate([nothing]), combine_parts(low, nothing, 0)])
    state = tile_starts.start(low.program)
    statements = _copies(low, 0, state, root=True)
    shared, low.rooms = low.rooms, []
    if low.partial is not None:
        shared.append(low.partial)
    if low.units:
        statements.append(tile_starts.fused_units(low.program, state, low.units, lambda s: _unit(low, s)))
    else:
        statements.append(_unit(low, state))
    if low.partial is not None:
        statements.append(combine_parts(low, low.partial, low.parts))
    return sequence([*allocate(shared), *statements])


def _unit(low: Lowering, state: State) -> Stmt:
    """Returns the tile of a unit. Buffers are allocated once, around all loops: an allocation costs as much as a small copy."""
    for number in range(low.units):
        if low.reduces(number):
            low.part = plus(times(low.part, low.program.loops[number].trips), state.variable(number))
    body = around_unit(low, [_inside(low, low.units, state)])
    if low.options.after_unit is not None:
        body.append(low.options.after_unit())
    return sequence([*allocate(low.rooms), *body])


def _inside(low: Lowering, depth: int, state: State) -> Stmt:
    """Returns the statements inside this many loops: copies that are due here, then the next loop or the tile."""
    statements = _copies(low, depth, state, root=False)
    if depth == low.scratch_depth:
        low.scratch = scratch_tile(low)
        low.rooms.append(low.scratch)
    if depth == low.tile_depth:
        statements.append(_tile(low, state))
    else:
        statements.append(tile_starts.serial(low.program, state, depth, lambda s: _inside(low, depth + 1, s)))
    return sequence(statements)


def _tile(low: Lowering, state: State) -> Stmt:
    """Returns the innermost tile, with its start positions bound to names."""
    place: list[Position] = []
    bindings: list[Stmt] = []
    for dim in range(len(low.nest.dims)):
        start = tile_starts.tile_start(low.program, state, dim)
        if not isinstance(start, int):
            var = variable(f"at_{dim}")
            bindings.append(tirx.Bind(var, start))
            start = var
        place.append(start)
    if low.reducer is not None:
        return sequence([*bindings, *reducing_tile(low, state, tuple(place))])
    return sequence([*bindings, *_elementwise(low, Point(low.nest, tuple(place)))])


def _elementwise(low: Lowering, place: Point) -> list[Stmt]:
    """Loads, computes and stores every vector of points of the tile."""
    statements: list[Stmt] = []
    for before, point, vectors in tile_points(low, place):
        low.reader.vectors = vectors
        statements += [] if before is None else [before]
        statements.append(put(low, point, low.nest.stage.result, None))
    low.reader.vectors = {}
    return statements


# --- copies ----------------------------------------------------------------------------------------------------------


def _copies(low: Lowering, depth: int, state: State, root: bool) -> list[Stmt]:
    """Returns the copies placed inside this many loops; boxes first, as panels may read them."""
    statements: list[Stmt] = []
    due = [s for s in low.program.staged if (s.level == 0) == root and copy_depth(low.program, s) == depth and not _useless(low, s)]
    for staging in sorted(due, key=lambda s: s.kind != "box"):
        statements += _box(low, staging, state, root) if staging.kind == "box" else _panel(low, staging, state, root)
    return statements


def _useless(low: Lowering, staging: Staging) -> bool:
    """Returns True for a box whose values a ready panel already holds: the array itself may be absent."""
    return staging.kind == "box" and low.ready(low.nest.accesses[staging.operand].factor) is not None


def _box(low: Lowering, staging: Staging, state: State, root: bool) -> list[Stmt]:
    name = f"{low.nest.accesses[staging.operand].tensor.name}_box"
    window, bindings = halo_fill.box_window(low.program, staging, state, name)
    fill = halo_fill.fill_box(low.program, staging, window, low.reader, parallel=root and low.program.dispatch.parallel)
    low.reader.boxes[staging.operand] = window
    low.rooms.append(window.buffer)
    return [*bindings, fill]


def _panel(low: Lowering, staging: Staging, state: State, root: bool) -> list[Stmt]:
    ready = low.ready(staging.operand)
    if ready is not None:
        low.panels[staging.operand] = ready
        return []
    panel = make_panel(low.program, staging, f"panel{staging.operand}")
    low.panels[staging.operand] = panel
    fill = panel_fill.fill_panel(low.program, panel, low.reader, state, parallel=root and low.program.dispatch.parallel)
    low.rooms.append(panel.buffer)
    return [fill]
