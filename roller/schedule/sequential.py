"""Lowering for devices whose units run sub-tiles one after another: loops over units become parallel, the rest serial.

The innermost tile is unrolled over accumulators in local storage, its vector dimension as vector operations. Where reduce
loops lie outside spatial ones, accumulators wait in a scratch tile between visits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tvm import tirx

from roller.expr import Tensor
from roller.program import RProgram, StageProgram, Staging, copy_depth
from roller.scalar import Scalar, operations
from roller.schedule import copies, walk
from roller.schedule.copies import Panel, lane_of, lanes_of
from roller.schedule.place import Point, Window, address, is_vector
from roller.schedule.reading import Reader
from roller.schedule.scalar import combine, identity
from roller.schedule.tir import (
    Buffer,
    Expr,
    Stmt,
    allocate,
    buffer,
    index,
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
from roller.schedule.walk import Position, State

StoreHook = Callable[[Buffer, Expr, Expr, int], Stmt | None]


@dataclass(frozen=True)
class Options:
    """What the caller decides: buffers of ready panels by (stage, factor), and a hook that may replace whole-vector stores."""

    panels: Mapping[tuple[str, int], Panel] = field(default_factory=dict)
    store: StoreHook | None = None
    after_unit: Callable[[], Stmt] | None = None


def lower(program: RProgram, buffers: Mapping[str, Buffer], options: Options) -> Stmt:
    """The whole program: stages one after another, intermediates in buffers of their own."""
    statements: list[Stmt] = []
    known = dict(buffers)
    for stage in program.stages:
        output = stage.nest.stage.output
        if output.name not in known:
            known[output.name] = buffer(output.name, output.elements, output.dtype)
            statements += allocate([known[output.name]])
        if output.elements:
            statements.append(_Emitter(stage, known, options).emit())
    return sequence(statements)


def prepack(program: StageProgram, panel: Panel, buffers: Mapping[str, Buffer]) -> Stmt:
    """Fill a panel of constant operands ahead of time."""
    return copies.fill_panel(program, panel, Reader(program.nest, buffers), walk.start(program), parallel=False)


class _Emitter:
    """Emits one stage."""

    def __init__(self, program: StageProgram, buffers: Mapping[str, Buffer], options: Options) -> None:
        self.program, self.nest, self.options = program, program.nest, options
        self.buffers = buffers
        self.reader = Reader(program.nest, buffers)
        self.panels: dict[int, Panel] = {}
        self.lane, self.width = lane_of(program), lanes_of(program)
        loops = program.loops
        self.units = next((i for i, lp in enumerate(loops) if lp.over != "units"), len(loops))
        spatial = [i for i, lp in enumerate(loops) if not self.nest.dims[lp.dim].is_reduce]
        self.tile_depth = max(max(spatial, default=-1) + 1, self.units, *(copy_depth(program, s) for s in program.staged), 0)
        waiting = [i for i in range(self.units, self.tile_depth) if self.nest.dims[loops[i].dim].is_reduce]
        self.scratch_depth = waiting[0] if waiting else None
        self.reduces = self.nest.stage.reducer is not None
        self.dtype = self.nest.stage.body.dtype
        self.lane_reduces = self.lane is not None and self.nest.dims[self.lane].is_reduce
        self.part: Position = 0
        self.partial: Buffer | None = None
        self.split = self.reduces and any(self.nest.dims[lp.dim].is_reduce for lp in loops[: self.units])

    def emit(self) -> Stmt:
        """Copies of whole operands, the nest, and the combination of partial results."""
        statements: list[Stmt] = []
        state = walk.start(self.program)
        partial = self._allocate_partial()
        statements += allocate([partial] if partial is not None else [])
        self.partial = partial
        statements += self._copies(0, state, root=True)
        statements.append(self._at(0, state))
        if partial is not None:
            statements.append(self._combine(partial))
        return sequence(statements)

    def _allocate_partial(self) -> Buffer | None:
        if not self.split:
            return None
        parts = math.prod(lp.trips for lp in self.program.loops[: self.units] if self.nest.dims[lp.dim].is_reduce)
        output = self.nest.stage.output
        return buffer(f"{output.name}_partial", parts * output.elements, self.dtype)

    # --- loops -------------------------------------------------------------------------------------------------------

    def _at(self, depth: int, state: State) -> Stmt:
        if depth == 0 and self.units:
            return walk.fused_units(self.program, state, self.units, lambda s: self._unit(s))
        return self._inside(depth, state)

    def _unit(self, state: State) -> Stmt:
        for number in range(self.units):
            if self.nest.dims[self.program.loops[number].dim].is_reduce:
                self.part = plus(times(self.part, self.program.loops[number].trips), state.variable(number))
        body = [self._inside(self.units, state)]
        if self.options.after_unit is not None:
            body.append(self.options.after_unit())
        return sequence(body)

    def _inside(self, depth: int, state: State) -> Stmt:
        statements = self._copies(depth, state, root=False)
        if depth == self.scratch_depth:
            self.scratch = buffer("scratch", self._scratch_elements(), self.dtype)
            statements += allocate([self.scratch])
        if depth == self.tile_depth:
            statements.append(self._tile(state))
        else:
            statements.append(walk.serial(self.program, state, depth, lambda s: self._inside(depth + 1, s)))
        return sequence(statements)

    def _copies(self, depth: int, state: State, root: bool) -> list[Stmt]:
        """Copies whose place is after this many loops; boxes first, as panels may read them."""
        statements: list[Stmt] = []
        due = [s for s in self.program.staged if (s.level == 0) == root and copy_depth(self.program, s) == depth]
        for staging in sorted(due, key=lambda s: s.kind != "box"):
            statements += self._box(staging, state, root) if staging.kind == "box" else self._panel(staging, state, root)
        return statements

    def _box(self, staging: Staging, state: State, root: bool) -> list[Stmt]:
        name = f"{self.nest.accesses[staging.operand].tensor.name}_box"
        window = copies.box_window(self.program, staging, state, name)
        fill = copies.fill_box(self.program, staging, window, self.reader, parallel=root and self._parallel())
        self.reader.boxes[staging.operand] = window
        return [*allocate([window.buffer]), fill]

    def _panel(self, staging: Staging, state: State, root: bool) -> list[Stmt]:
        ready = self.options.panels.get((self.nest.stage.name, staging.operand))
        if ready is not None:
            self.panels[staging.operand] = ready
            return []
        panel = copies.make_panel(self.program, staging, f"panel{staging.operand}")
        self.panels[staging.operand] = panel
        fill = copies.fill_panel(self.program, panel, self.reader, state, parallel=root and self._parallel())
        return [*allocate([panel.buffer]), fill]

    def _parallel(self) -> bool:
        return self.program.parallel

    # --- the innermost tile ------------------------------------------------------------------------------------------

    def _points(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Offsets of the vectors of spatial points of a tile, with their lanes."""
        spatial = tuple(not d.is_reduce for d in self.nest.dims)
        yield from copies.tile_offsets(self.program, spatial)

    def _chunks(self) -> list[tuple[int, int]]:
        """Offsets and lanes along a reduce dimension that carries the vector; one scalar step without."""
        if not self.lane_reduces:
            return [(0, 1)]
        assert self.lane is not None
        extent = self.program.inner[self.lane]
        return [(at, min(self.width, extent - at)) for at in range(0, extent, self.width)]

    def _tile(self, state: State) -> Stmt:
        names = []
        bindings: list[Stmt] = []
        for dim in range(len(self.nest.dims)):
            start = walk.tile_start(self.program, state, dim)
            if isinstance(start, int):
                names.append(start)
            else:
                var = variable(f"at_{dim}")
                bindings.append(tirx.Bind(var, start))
                names.append(var)
        place = tuple(names)
        body = self._reducing_tile(state, place) if self.reduces else self._plain_tile(place)
        return sequence([*bindings, *body])

    def _plain_tile(self, place: tuple[Position, ...]) -> list[Stmt]:
        return [
            self._store(Point(self.nest, place, self.lane, lanes).moved(offsets), self.nest.stage.result, None)
            for offsets, lanes in self._points()
        ]

    def _reducing_tile(self, state: State, place: tuple[Position, ...]) -> list[Stmt]:
        vectors = list(self._points())
        apart = self._chunks()
        size = sum(lanes for _, lanes in vectors) * (sum(n for _, n in apart) if self.lane_reduces else 1)
        acc = buffer("acc", size, self.dtype, scope="local")
        first = identity(self.nest.stage.reducer or "sum", self.dtype)
        slots = self._slots(vectors, apart)
        zero = [store(acc, spread(first, n), ramp(at, 1, n)) for at, n in slots]
        loops = self._reduce_loops(state, place, acc, self.tile_depth)
        finish = self._finish(place, acc)
        if self.scratch_depth is None:
            return [*allocate([acc]), *zero, loops, *finish]
        begins, ends, slot = self._visit(state, size)
        restore = [store(acc, load(self.scratch, ramp(plus(slot, at), 1, n)), ramp(at, 1, n)) for at, n in slots]
        keep = [store(self.scratch, load(acc, ramp(at, 1, n)), ramp(plus(slot, at), 1, n)) for at, n in slots]
        return [
            *allocate([acc]),
            when(begins, sequence(zero), sequence(restore)),
            loops,
            when(ends, sequence(finish), sequence(keep)),
        ]

    def _slots(self, vectors: list[tuple[tuple[int, ...], int]], apart: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Places of accumulator vectors: points in order, and for a vector along a reduction its partial results."""
        slots, at = [], 0
        for _, lanes in vectors:
            for _, partial in apart:
                wide = partial if self.lane_reduces else lanes
                slots.append((at, wide))
                at += wide
        return slots

    def _visit(self, state: State, size: int) -> tuple[Expr, Expr, Position]:
        """Whether this is the first and the last visit to the tile's accumulators, and where they wait."""
        assert self.scratch_depth is not None
        begins = ends = None
        trips = dict(state.trips)
        slot: Position = 0
        stride = size
        for number in reversed(range(self.scratch_depth, self.tile_depth)):
            var = state.variable(number)
            if self.nest.dims[self.program.loops[number].dim].is_reduce:
                first, last = tirx.EQ(index(var), index(0)), tirx.EQ(index(var), index(trips[number]) - index(1))
                begins = first if begins is None else tirx.And(begins, first)
                ends = last if ends is None else tirx.And(ends, last)
            else:
                slot = plus(slot, times(var, stride))
                stride *= self.program.loops[number].trips
        return begins, ends, slot

    def _scratch_elements(self) -> int:
        assert self.scratch_depth is not None
        tiles = [lp.trips for lp in self.program.loops[self.scratch_depth : self.tile_depth] if not self.nest.dims[lp.dim].is_reduce]
        apart = math.prod(self.program.inner[i] for i in self.nest.reduce) if self.lane_reduces else 1
        return math.prod(tiles) * math.prod(self.program.inner[i] for i in self.nest.spatial) * apart

    def _reduce_loops(self, state: State, place: tuple[Position, ...], acc: Buffer, depth: int) -> Stmt:
        loops = self.program.loops
        ragged = self.lane_reduces and self.lane is not None and not walk.exact(self.program, self.lane)
        if depth == len(loops):
            if ragged and all(loops[n].dim != self.lane for n in range(self.tile_depth, len(loops))):
                return self._ragged(state, place, acc, lambda s, p, c: self._step(s, p, acc, c), None)
            return self._step(state, place, acc, self._chunks())
        dim = loops[depth].dim
        last_on_lane = dim == self.lane and all(loops[n].dim != dim for n in range(depth + 1, len(loops)))
        if ragged and last_on_lane:
            return self._ragged(state, place, acc, lambda s, p, c: self._rest(s, p, acc, depth + 1, c), depth)

        def inside(s: State) -> Stmt:
            return self._reduce_loops(s, _replace(place, dim, s.bases[dim]), acc, depth + 1)

        return walk.serial(self.program, state, depth, inside)

    def _rest(self, state: State, place: tuple[Position, ...], acc: Buffer, depth: int, chunks: list[tuple[int, int]]) -> Stmt:
        """The loops inside the ragged one, around a step."""
        if depth == len(self.program.loops):
            return self._step(state, place, acc, chunks)
        dim = self.program.loops[depth].dim
        return walk.serial(
            self.program, state, depth, lambda s: self._rest(s, _replace(place, dim, s.bases[dim]), acc, depth + 1, chunks)
        )

    def _ragged(
        self,
        state: State,
        place: tuple[Position, ...],
        acc: Buffer,
        body: Callable[[State, tuple[Position, ...], list[tuple[int, int]]], Stmt],
        depth: int | None,
    ) -> Stmt:
        """Whole vectors along a reduce dimension, then what is left one by one."""
        assert self.lane is not None
        lane, step = self.lane, self.program.inner[self.lane]
        base, left = state.bases[lane], state.limits[lane]
        whole: Position = left // step if isinstance(left, int) else tirx.floordiv(left, index(step))
        vector, single = variable("kv"), variable("ks")
        at = plus(base, times(vector, step))
        tail = plus(plus(base, times(whole, step)), single)
        rest = left % step if isinstance(left, int) else left - whole * step

        def entered(position: Position, var: Position) -> State:
            known = dict(state.variables)
            if depth is not None:
                known[depth] = var
            bases = _replace(state.bases, lane, position)
            return State(bases, _replace(state.limits, lane, 1), tuple(known.items()), state.trips)

        return sequence(
            [
                loop(vector, whole, body(entered(at, vector), _replace(place, lane, at), self._chunks())),
                loop(single, rest, body(entered(tail, single), _replace(place, lane, tail), [(0, 1)])),
            ]
        )

    def _step(self, state: State, place: tuple[Position, ...], acc: Buffer, chunks: list[tuple[int, int]]) -> Stmt:
        """One step of the innermost tile: each accumulator vector takes in the body."""
        reducer = self.nest.stage.reducer or "sum"
        statements = []
        apart = sum(n for _, n in self._chunks())
        at = 0
        for offsets, lanes in self._points():
            for chunk, partial in chunks:
                wide = partial if self.lane_reduces else lanes
                moved = offsets if not self.lane_reduces else _replace(offsets, self._lane(), chunk)
                point = Point(self.nest, place, self.lane, wide).moved(moved)
                where = ramp(at + (chunk if self.lane_reduces else 0), 1, wide)
                value = combine(reducer, load(acc, where), self._body(state, point, moved))
                statements.append(store(acc, value, where))
            at += apart if self.lane_reduces else lanes
        return sequence(statements)

    def _lane(self) -> int:
        assert self.lane is not None
        return self.lane

    def _body(self, state: State, point: Point, offsets: tuple[int, ...]) -> Expr:
        values = []
        for number, factor in enumerate(self.nest.factors):
            panel = self.panels.get(number)
            values.append(self.reader.value(factor, point) if panel is None else self._panel_value(panel, state, point, offsets))
        product = values[0]
        for value in values[1:]:
            product = product * value
        return product

    def _panel_value(self, panel: Panel, state: State, point: Point, offsets: tuple[int, ...]) -> Expr:
        inside = tuple(o if t else 0 for o, t in zip(offsets, panel.touches, strict=True))
        where = plus(copies.slot_address(panel, state), copies.panel_offset(self.program, panel.touches, inside))
        if self.lane is not None and panel.touches[self.lane]:
            return load(panel.buffer, ramp(where, 1, point.lanes))
        return spread(load(panel.buffer, where), point.lanes)

    # --- results -----------------------------------------------------------------------------------------------------

    def _finish(self, place: tuple[Position, ...], acc: Buffer) -> list[Stmt]:
        """Combine partial results along the lanes, apply the epilogue, store."""
        rows = self._rolled()
        if rows is not None:
            return self._finish_rolled(place, acc, rows)
        statements, at = [], 0
        for offsets, lanes in self._points():
            point = Point(self.nest, place, None if self.lane_reduces else self.lane, lanes).moved(offsets)
            if self.lane_reduces:
                apart = sum(n for _, n in self._chunks())
                value = self._across(acc, at, apart)
                at += apart
            else:
                value = load(acc, ramp(at, 1, lanes))
                at += lanes
            result = self.nest.stage.result
            statements.append(self._store(point, result, value) if self.partial is None else self._store_partial(point, value))
        return statements

    def _rolled(self) -> int | None:
        """The dimension along which a long epilogue is a loop instead of being repeated; None where it stays unrolled."""
        if self.partial is not None or self.lane_reduces or operations(self.nest.stage.result) <= ROLLED_OPERATIONS:
            return None
        return max((d for d in self.nest.spatial if d != self.lane), key=lambda d: (self.program.inner[d], d), default=None)

    def _finish_rolled(self, place: tuple[Position, ...], acc: Buffer, rows: int) -> list[Stmt]:
        """A copy of the accumulators in memory and a loop over it: their registers keep constant indices, the code is small."""
        held = buffer("held", int(acc.shape[0]), self.dtype, scope="local")
        spatial = tuple(not d.is_reduce for d in self.nest.dims)
        var, statements, body, at = variable("row"), [], [], 0
        for offsets, lanes in self._points():
            statements.append(store(held, load(acc, ramp(at, 1, lanes)), ramp(at, 1, lanes)))
            if offsets[rows] == 0:
                step = _replace((0,) * len(offsets), rows, 1)
                stride = copies.panel_offset(self.program, spatial, step)
                first = copies.panel_offset(self.program, spatial, offsets)
                point = Point(self.nest, place, self.lane, lanes).moved(offsets)
                point = replace(point, positions=_replace(point.positions, rows, plus(point.positions[rows], var)))
                body.append(self._store(point, self.nest.stage.result, load(held, ramp(var * stride + first, 1, lanes))))
            at += lanes
        return [*allocate([held]), *statements, loop(var, self.program.inner[rows], sequence(body))]

    def _across(self, acc: Buffer, at: int, count: int) -> Expr:
        """Partial results combined pairwise, so that the chain is short."""
        values = [load(acc, index(at + i)) for i in range(count)]
        reducer = self.nest.stage.reducer or "sum"
        while len(values) > 1:
            half = len(values) // 2
            folded = [combine(reducer, a, b) for a, b in zip(values[:half], values[half : 2 * half], strict=True)]
            values = folded + values[2 * half :]
        return values[0]

    def _store(self, point: Point, node: Scalar, accumulator: Expr | None) -> Stmt:
        output = self.nest.output
        target = self.buffers[output.tensor.name]
        value = self.reader.value(node, point, accumulator)
        where = address(self.nest, Window.whole(target, output.tensor), output.index, point)
        if self.options.store is not None and not isinstance(where, list) and is_vector(where) and int(where.stride) == 1:
            replaced = self.options.store(target, value, where.base, point.lanes)
            if replaced is not None:
                return replaced
        return _scatter(target, value, where)

    def _store_partial(self, point: Point, value: Expr) -> Stmt:
        output, tensor = self.nest.output, self.nest.stage.output
        assert self.partial is not None
        shift = times(self.part, tensor.elements)
        where = address(self.nest, Window(self.partial, tensor.strides, (0,) * len(tensor.shape)), output.index, point)
        if isinstance(where, list):
            return _scatter(self.partial, value, [w + shift for w in where])
        return _scatter(self.partial, value, where + spread(index(shift), point.lanes if is_vector(where) else 1))

    def _combine(self, partial: Buffer) -> Stmt:
        """Add up partial results and apply the epilogue, element by element."""
        extents = [(i, self.nest.dims[i].extent) for i in self.nest.spatial]
        names = {i: variable(f"c{i}") for i, _ in extents}
        place = tuple(names.get(i, 0) for i in range(len(self.nest.dims)))
        point = Point(self.nest, place)
        tensor = self.nest.stage.output
        where = address(self.nest, Window(partial, tensor.strides, (0,) * len(tensor.shape)), self.nest.output.index, point)
        parts = int(partial.shape[0]) // max(tensor.elements, 1)
        reducer = self.nest.stage.reducer or "sum"
        total = buffer("total", 1, self.dtype, scope="local")
        var = variable("p")
        add = store(total, combine(reducer, load(total, 0), load(partial, where + var * index(tensor.elements))), 0)
        body = sequence(
            [
                *allocate([total]),
                store(total, identity(reducer, self.dtype), 0),
                loop(var, parts, add),
                self._store(point, self.nest.stage.result, load(total, 0)),
            ]
        )
        for position, (dim, extent) in enumerate(reversed(extents)):
            outermost = position == len(extents) - 1
            body = loop(names[dim], extent, body, parallel=outermost and tensor.elements >= PARALLEL_COMBINE)
        return body


ROLLED_OPERATIONS = 3  # scalar operations of an epilogue above which repeating it for every vector costs too much code
PARALLEL_COMBINE = 1 << 16  # outputs from which combining partial results pays for another parallel loop


def _scatter(target: Buffer, value: Expr, where: Expr | list[Expr]) -> Stmt:
    """Store a vector, lane by lane where its addresses are not a constant step apart."""
    if not isinstance(where, list):
        return store(target, value, where)
    held = buffer("lanes", len(where), str(target.dtype), scope="local")
    spill = store(held, value, ramp(0, 1, len(where)))
    return sequence([*allocate([held]), spill, *(store(target, load(held, i), w) for i, w in enumerate(where))])


def _replace(values: tuple[Position, ...], at: int, value: Position) -> tuple[Position, ...]:
    return (*values[:at], value, *values[at + 1 :])


def output_of(program: RProgram) -> Tensor:
    """The tensor that the program computes."""
    return program.expr.output

