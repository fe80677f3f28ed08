"""The innermost tile of a reduction (micro-kernel): unrolled accumulators in local storage, around the reduce loops inside it.

If reduce loops lie outside spatial ones, accumulators are saved to a scratch tile between visits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce

from tvm import tirx

from roller.ir.sliding_windows import windows
from roller.lowering.simd import epilogue, panel_layout
from roller.lowering.simd.context import Lowering, Slots
from roller.lowering.simd.panel_layout import Panel
from roller.lowering.simd.prefetching import prefetches
from roller.lowering.simd.tile_registers import Blocks, instructions_of
from roller.lowering.simd.words import word_values
from roller.lowering.tir import tile_starts
from roller.lowering.tir.addresses import Point, replaced
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Held,
    Stmt,
    allocate_on_stack,
    buffer,
    every,
    greatest,
    index,
    least,
    load,
    loop,
    plus,
    ramp,
    sequence,
    spread,
    store,
    times,
    variable,
    when,
)
from roller.lowering.tir.expressions import combine, identity, product
from roller.lowering.tir.tile_starts import Position, State
from roller.program.window_steps import window_steps
from roller.program.words import vector_factor

Place = tuple[Position, ...]
Chunks = list[tuple[int, int]]


def reducing_tile(low: Lowering, state: State, place: Place) -> list[Stmt]:
    """Returns the tile: accumulators initialised or restored, the reduce loops, and the result stored or saved to scratch."""
    slots = _slots(low)
    size = sum(lanes for _, lanes in slots)
    acc = buffer("acc", size, low.dtype)
    tile = Blocks(low) if instructions_of(low) is not None else None
    first = identity(low.reducer or "sum", low.dtype)
    zero = [store(acc, spread(first, n), ramp(at, 1, n)) for at, n in slots] if tile is None else tile.begin()
    loops = _reduce_loops(low, state, place, acc, low.tile_depth)
    stored = [] if tile is None else tile.moved(slots, acc, 0, into=False)
    finish = [*stored, *epilogue.finish(low, place, acc)]
    if low.scratch is None:
        return [allocate_on_stack(acc), *zero, loops, *finish]
    begins, ends, slot = _visit(low, state, size)
    if tile is None:
        restore = [store(acc, load(low.scratch, ramp(plus(slot, at), 1, n)), ramp(at, 1, n)) for at, n in slots]
        keep = [store(low.scratch, load(acc, ramp(at, 1, n)), ramp(plus(slot, at), 1, n)) for at, n in slots]
    else:
        restore, keep = (tile.moved(slots, low.scratch, slot, into) for into in (True, False))
    begin, end = when(begins, sequence(zero), sequence(restore)), when(ends, sequence(finish), sequence(keep))
    return [allocate_on_stack(acc), begin, loops, end]


def scratch_tile(low: Lowering) -> Buffer:
    """Returns the buffer for the accumulators of all tiles that are saved at the same time."""
    tiles = [low.program.loops[i].trips for i in range(low.scratch_depth or 0, low.tile_depth) if not low.reduces(i)]
    return buffer("scratch", math.prod(tiles) * sum(lanes for _, lanes in _slots(low)), low.dtype)


def _slots(low: Lowering) -> Slots:
    """Returns accumulator vectors: points in order, and for a vector along a reduction its partial results."""
    slots: Slots = []
    at = 0
    for _, lanes in low.points():
        for _, partial in low.chunks():
            wide = partial if low.lane_reduces else lanes
            slots.append((at, wide))
            at += wide
    return slots


def _visit(low: Lowering, state: State, size: int) -> tuple[Expr, Expr, Position]:
    """Returns the tests for the first and the last visit to the tile's accumulators, and their address in the scratch tile."""
    assert low.scratch_depth is not None
    begins, ends = [], []
    trips = dict(state.trips)
    slot: Position = 0
    for number in reversed(range(low.scratch_depth, low.tile_depth)):
        var = state.variable(number)
        if low.reduces(number):
            begins.append(tirx.EQ(index(var), index(0)))
            ends.append(tirx.EQ(index(var), index(trips[number]) - index(1)))
        else:
            slot = plus(slot, times(var, size))
            size *= low.program.loops[number].trips
    return every(begins), every(ends), slot


# --- reduce loops ----------------------------------------------------------------------------------------------------


def _reduce_loops(low: Lowering, state: State, place: Place, acc: Buffer, depth: int) -> Stmt:
    """Returns the loops inside the tile; the last one along a vector's dimension ends with the remainder."""
    loops, lane = low.program.loops, low.lane
    taps = _taps(low, state, depth)
    if taps is not None:
        return _under_windows(low, state, place, acc, depth, taps)
    ragged = low.lane_reduces and lane is not None and not tile_starts.exact(low.program, lane)
    if depth == len(loops):
        if ragged and all(lp.dim != lane for lp in loops[low.tile_depth :]):
            return _ragged(low, state, place, lambda s, p, c: _step(low, s, p, acc, c), None)
        return _step(low, state, place, acc, low.chunks())
    dim = loops[depth].dim
    if ragged and dim == lane and all(lp.dim != dim for lp in loops[depth + 1 :]):
        return _ragged(low, state, place, lambda s, p, c: _rest(low, s, p, acc, depth + 1, c), depth)

    def inside(s: State) -> Stmt:
        return _reduce_loops(low, s, replaced(place, dim, s.bases[dim]), acc, depth + 1)

    return _serial(low, state, place, depth, inside)


def _serial(low: Lowering, state: State, place: Place, depth: int, body: Callable[[State], Stmt]) -> Stmt:
    """Returns a reduce loop around a body, without the taps of a padded window that add nothing to any point of the tile."""
    padded = low.padded.get(depth)
    if padded is None:
        return tile_starts.serial(low.program, state, depth, body)
    spatial, var = padded.window.spatial, variable(f"i{depth}")
    first, end = padded.inside(place[spatial], low.program.inner[spatial], least, greatest)
    begin, trips = variable(f"first{depth}"), tile_starts.trips_of(low.program, state, depth)
    inside = tile_starts.enter(low.program, state, depth, plus(begin, var), trips)
    return sequence([tirx.Bind(begin, index(first)), loop(var, end - first, body(inside))])


def _taps(low: Lowering, state: State, depth: int) -> int | None:
    """Returns the loop over the taps of a window that slides along the tile, if the loops from this depth may take them innermost.

    Neighbouring points of the tile then share values: the step that computes all taps loads each once. No other loop over the taps
    may be left: it would lie around those, and they would be taken from a part of the window.
    """
    loops, inner = low.program.loops, low.program.inner
    for step in window_steps(low.program):
        fits = inner[step.window.spatial] > 1 and step.vectors(low.program, inner) <= low.options.registers
        left = [number for number in range(depth, len(loops)) if loops[number].dim == step.tap]
        fits = fits and inner[step.tap] == 1 and len(left) == 1
        if fits and isinstance(tile_starts.trips_of(low.program, state, left[0]), int):
            return left[0]
    return None


def _under_windows(low: Lowering, state: State, place: Place, acc: Buffer, depth: int, taps: int) -> Stmt:
    """Returns the loops inside the tile with those taps innermost: one step takes all, in the order of the values read."""
    loops = low.program.loops
    if depth < len(loops) and depth != taps:
        dim = loops[depth].dim
        return _serial(
            low, state, place, depth,
            lambda s: _under_windows(low, s, replaced(place, dim, s.bases[dim]), acc, depth + 1, taps),
        )  # fmt: skip
    if depth == taps and taps + 1 < len(loops):
        return _under_windows(low, state, place, acc, depth + 1, taps)
    trips, dim = tile_starts.trips_of(low.program, state, taps), loops[taps].dim
    assert isinstance(trips, int)
    states = [tile_starts.enter(low.program, state, taps, tap, trips) for tap in range(trips)]
    first = _before(low)
    statements = []
    for tap, inside in enumerate(states):
        for offsets, one in _products(low, inside, replaced(place, dim, inside.bases[dim]), acc, low.chunks()):
            moved = (*offsets[:dim], tap * tile_starts.step_of(low.program, taps), *offsets[dim + 1 :])
            statements.append((_read(low, moved), tap, one))
    statements.sort(key=lambda item: item[:2])
    return sequence([*first, *(part for *_, one in statements for part in one)])


def _read(low: Lowering, offsets: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the position of a point's value among those that a window's factor reads."""
    for factor in range(len(low.nest.factors)):
        found = windows(low.nest, factor)
        if found:
            slides = {d for window in found for d, _ in window.steps}
            places = [window.place(offsets) for window in found]
            touched = low.nest.factor_touches(factor)
            return (*(o for d, o in enumerate(offsets) if touched[d] and d not in slides), *places)
    return offsets


def _rest(low: Lowering, state: State, place: Place, acc: Buffer, depth: int, chunks: Chunks) -> Stmt:
    """Returns the loops inside the loop with the remainder, around a step."""
    if depth == len(low.program.loops):
        return _step(low, state, place, acc, chunks)
    dim = low.program.loops[depth].dim

    def inside(s: State) -> Stmt:
        return _rest(low, s, replaced(place, dim, s.bases[dim]), acc, depth + 1, chunks)

    return _serial(low, state, place, depth, inside)


def _ragged(low: Lowering, state: State, place: Place, body: Callable[[State, Place, Chunks], Stmt], depth: int | None) -> Stmt:
    """Returns a loop over whole vectors along a reduce dimension, then the remainder.

    The remainder is one more whole vector, shifted back to overlap the one before; only its last elements count. It is walked
    element by element if a panel or box moves along the dimension (it may start later), or if the dimension is shorter than the
    step.
    """
    assert low.lane is not None
    lane, step = low.lane, low.program.inner[low.lane]
    base, left = state.bases[lane], state.limits[lane]
    whole: Position = left // step if isinstance(left, int) else tirx.floordiv(left, index(step))
    vector = variable("kv")
    at = plus(base, times(vector, step))
    rest = left % step if isinstance(left, int) else left - whole * step
    known = low.chunks()

    def entered(position: Position, tile: Position, shift: Position = 0, skipped: Position = 0) -> State:
        variables = state.variables if depth is None else (*state.variables, (depth, tile))
        return State(replaced(state.bases, lane, position), replaced(state.limits, lane, 1), variables, state.trips, shift, skipped)

    main = loop(vector, whole, body(entered(at, vector), replaced(place, lane, at), known))
    if _copied(low, lane) or low.nest.extents[lane] < step:
        single = variable("ks")
        tail = plus(plus(base, times(whole, step)), single)
        return sequence([main, loop(single, rest, body(entered(tail, whole, single), replaced(place, lane, tail), [(0, 1)]))])
    end = plus(plus(base, left), -step)
    last = body(entered(end, whole, skipped=step - rest), replaced(place, lane, end), known)
    if isinstance(rest, int):
        return sequence([main, last]) if rest else main
    return sequence([main, when(rest > index(0), last)])


def _copied(low: Lowering, dim: int) -> bool:
    """True if a panel or a box moves along a dimension."""
    panels = [panel.touches[dim] for panel in low.panels.values()]
    return any(panels) or any(low.nest.accesses[number].touches[dim] for number in low.reader.boxes)


# --- one step --------------------------------------------------------------------------------------------------------


def _step(low: Lowering, state: State, place: Place, acc: Buffer, chunks: Chunks) -> Stmt:
    """Returns one step of the innermost tile: each accumulator vector accumulates the body."""
    if instructions_of(low) is not None:
        return sequence([*prefetches(low, place), *Blocks(low).step(state, place)])
    ahead = [*_before(low), *prefetches(low, place)]
    return sequence([*ahead, *(part for _, one in _products(low, state, place, acc, chunks) for part in one)])


def _before(low: Lowering) -> list[Stmt]:
    """Returns what a device puts in front of each step."""
    first = low.options.before_step(len(_slots(low))) if low.options.before_step is not None else None
    return [] if first is None else [first]


def _products(
    low: Lowering, state: State, place: Place, acc: Buffer, chunks: Chunks
) -> Iterator[tuple[tuple[int, ...], list[Stmt]]]:
    """Yields for each accumulator vector of a step its offsets, and the statements by which it accumulates the body."""
    if low.program.atom.depth > 1:
        yield from _dots(low, state, place, acc)
        return
    for at, offsets, lanes in _streamed(low):
        for chunk, partial in chunks:
            wide = partial if low.lane_reduces else lanes
            if isinstance(state.skipped, int) and state.skipped >= chunk + wide:
                continue  # all of it is already accumulated
            moved = offsets if low.lane is None or not low.lane_reduces else (*offsets[: low.lane], chunk, *offsets[low.lane + 1 :])
            point = Point(low.nest, place, low.lane, wide).moved(moved)
            where = ramp(at + (chunk if low.lane_reduces else 0), 1, wide)
            held = Held()
            body = _counted(low, state, _body(low, state, point, moved, held), chunk, wide)
            value = combine(low.reducer or "sum", load(acc, where), body, held)
            yield moved, [*held.statements, store(acc, value, where)]


def _counted(low: Lowering, state: State, value: Expr, chunk: int, lanes: int) -> Expr:
    """Returns the value for lanes whose elements count, and the neutral value for leading lanes that are already accumulated."""
    skipped = state.skipped
    if isinstance(skipped, int) and skipped <= chunk:
        return value
    nothing = spread(identity(low.reducer or "sum", low.dtype), lanes)
    counts = ramp(index(chunk), 1, lanes) >= spread(index(skipped), lanes)
    return tirx.Select(counts, value, nothing)


def _dots(low: Lowering, state: State, place: Place, acc: Buffer) -> Iterator[tuple[tuple[int, ...], list[Stmt]]]:
    """Yields for each accumulator vector of a step its offsets, and the statements by which it adds products of words."""
    atom, dot = low.program.atom, low.options.dot
    across = vector_factor(low.nest, low.program.mapping)
    assert dot is not None
    for at, offsets, lanes in _streamed(low):
        held = Held()
        point = Point(low.nest, place, low.lane, lanes).moved(offsets)
        broadcast, vector = (_words(low, state, factor, point, offsets, held) for factor in (1 - across, across))
        statements = [
            *held.statements,
            store(acc, dot(atom, lanes, load(acc, ramp(at, 1, lanes)), broadcast, vector), ramp(at, 1, lanes)),
        ]
        yield offsets, statements


def _words(low: Lowering, state: State, factor: int, point: Point, offsets: tuple[int, ...], held: Held) -> Expr:
    """Returns a factor's words for the lanes of a point; those that do not depend on the lane fill a vector each."""
    panel = low.panels.get(factor)
    if panel is not None:
        return _panel_value(low, panel, state, point, offsets)
    return spread(word_values(low.program, low.reader, factor, point.scalar(), low.program.atom.depth, held), point.lanes)


def _streamed(low: Lowering) -> list[tuple[int, tuple[int, ...], int]]:
    """Returns first accumulator, offsets and lanes of each vector of points, ordered by their value of the largest factor.

    With this order, the largest factor's values pass through one register, and only the other factors stay in registers in a step.
    """
    found: list[tuple[int, tuple[int, ...], int]] = []
    at = 0
    for offsets, lanes in low.points():
        found.append((at, offsets, lanes))
        at += low.apart if low.lane_reduces else lanes

    largest = max(range(len(low.nest.factors)), key=lambda f: len({_part(low, f, offsets) for _, offsets, _ in found}))
    return sorted(found, key=lambda item: _part(low, largest, item[1]))


def _part(low: Lowering, factor: int, offsets: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the offsets on which a factor's value depends."""
    return tuple(o for o, touched in zip(offsets, low.nest.factor_touches(factor), strict=True) if touched)


def _body(low: Lowering, state: State, point: Point, offsets: tuple[int, ...], held: Held) -> Expr:
    values = []
    for number, factor in enumerate(low.nest.factors):
        panel = low.panels.get(number)
        values.append(low.reader.value(factor, point, held) if panel is None else _panel_value(low, panel, state, point, offsets))
    return reduce(product, values)


def _panel_value(low: Lowering, panel: Panel, state: State, point: Point, offsets: tuple[int, ...]) -> Expr:
    inside = tuple(o if t else 0 for o, t in zip(offsets, panel.touches, strict=True))
    where = plus(panel_layout.slot_address(panel, state), panel_layout.panel_offset(low.program, panel.touches, inside))
    if low.lane is not None and panel.touches[low.lane]:
        where = plus(where, state.shift)
        return load(panel.buffer, ramp(where, 1, point.lanes))
    return spread(load(panel.buffer, where), point.lanes)
