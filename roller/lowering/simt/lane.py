"""The work of one lane: it accumulates the body at its points, step after step, and stores the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tvm import tirx

from roller.ir.nest import Nest
from roller.ir.scalar import loads
from roller.lowering.simt.fragments import Fragment, Views, array_accesses, array_source, fragment, neighbours, panel_source, runs
from roller.lowering.simt.shared_panels import SharedPanel
from roller.lowering.simt.threads import Block, Offsets
from roller.lowering.tir.addresses import ArrayView, Point, address
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Held,
    Stmt,
    allocate,
    every,
    index,
    load,
    plus,
    ramp,
    register_buffer,
    sequence,
    store,
    times,
    view,
    when,
)
from roller.lowering.tir.expressions import combine, product
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.rprogram import StageProgram


@dataclass
class Lane:
    """A lane (thread) of a block, with its accumulators in `acc`.

    With split-K, `partial` receives the results of its `part` instead of `target`.
    """

    block: Block
    reader: Reader
    target: Buffer
    panels: dict[int, SharedPanel] = field(default_factory=dict)
    acc: Buffer | None = None
    partial: Buffer | None = None
    part: Position = 0
    copy: Position = 0  # the copy of the panels that is read
    views: dict[int, Views] = field(default_factory=dict)  # views of panels, starting at the lane's first points

    @property
    def program(self) -> StageProgram:
        """The program whose tile the lane computes a share of."""
        return self.block.program

    @property
    def nest(self) -> Nest:
        """The stage's nest."""
        return self.block.program.nest

    @cached_property
    def spatial(self) -> list[Offsets]:
        """The lane's points, without their reductions."""
        return list(self.block.points(self.nest.spatial))

    @cached_property
    def numbers(self) -> dict[Offsets, int]:
        """The number of each of these points, and of its accumulator."""
        return {point: number for number, point in enumerate(self.spatial)}

    def place(self, state: State, offsets: Offsets) -> Point:
        """Returns the point of a lane at some offsets in its tile."""
        block = self.block
        bases = [block.base(state, d) for d in range(len(offsets))]
        return Point(self.nest, tuple(plus(b, block.offset(d, o)) for d, (b, o) in enumerate(zip(bases, offsets, strict=True))))

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self, state: State, slot: Position) -> Stmt:
        """Accumulates the body at every point of the lane's tile, one group of neighbours along the reductions at a time."""
        statements = []
        for group, valid in self._groups(state):
            taken = self._taken(state, group, slot)
            statements.append(taken if valid is None else when(valid, taken))
        return sequence(statements)

    def _groups(self, state: State) -> list[tuple[list[Offsets], Expr | None]]:
        """Returns the offsets along the reductions that are loaded together, with the guard that they lie inside."""
        ragged = [d for d in self.nest.reduce if not self._covered(state, d)]
        offsets = list(self.block.points(self.nest.reduce))
        if not ragged:
            return [(offsets, None)]
        wide, starts = self._wide_reduction(ragged)
        groups: dict[Offsets, list[Offsets]] = {}
        for offset in offsets:
            first = tuple(starts[o] if d == wide else o for d, o in enumerate(offset))
            groups.setdefault(first, []).append(offset)
        found = []
        for first, members in groups.items():
            valid = every(index(self.block.offset(d, first[d])) < index(state.limits[d]) for d in ragged)
            found.append((members, valid))
        return found

    def _covered(self, state: State, dim: int) -> bool:
        """Returns True if the lane's tile never extends beyond the remaining positions of a reduction."""
        left = state.limits[dim]
        whole = self.program.inner[dim] * self.block.lanes[dim]
        return whole == 1 or (isinstance(left, int) and left >= whole)

    def _wide_reduction(self, ragged: list[int]) -> tuple[int, dict[int, int]]:
        """Returns the reduction along which arrays are loaded with the widest accesses, and each point's first point of its access.

        The reduction is -1 if no access may be wide, because the reduction could end inside it.
        """
        reads = [array_accesses(self.block, n) for n, a in enumerate(self.nest.accesses) if a.role == "body"]
        found = [(max(each.values(), default=1), d, each) for d, each in reads if d in self.nest.reduce]
        width, wide, each = max(found, key=lambda read: read[0], default=(1, -1, {}))
        if width == 1 or (wide in ragged and self.nest.extents[wide] % width):
            return -1, {}
        return wide, {first + n: first for first, count in each.items() for n in range(count)}

    def _taken(self, state: State, group: list[Offsets], slot: Position) -> Stmt:
        """Accumulates one group: its operands are loaded to registers, then every point is computed."""
        points = [tuple(a + b for a, b in zip(s, r, strict=True)) for r in group for s in self.spatial]
        statements, panels, arrays = [], {}, {}
        reduced = {d: self._reduced(state, d) for d in self.nest.reduce}
        for operand, panel in self.panels.items():
            source = panel_source(self.block, panel, reduced, self._copy_of(panel), self.views.get(operand))
            panels[operand], reads = fragment(source, points)
            statements += reads
        for number, access in enumerate(self.nest.accesses):
            if access.role == "body" and access.factor not in self.panels and not access.guarded:
                source = array_source(self.block, self.reader, number, lambda o: self.place(state, o))
                arrays[number], reads = fragment(source, points)
                statements += reads
        for reduce in group:
            for at, spatial in enumerate(self.spatial):
                offsets = tuple(a + b for a, b in zip(spatial, reduce, strict=True))
                held = Held.in_registers(self.block.functions)
                value = self._body(state, offsets, panels, arrays, held)
                where = plus(slot, at)
                total = combine(self.nest.stage.reducer or "sum", load(self.acc, where), value, held)
                statements += [*held.statements, store(self.acc, total, where)]
        return sequence(statements)

    def _copy_of(self, panel: SharedPanel) -> Position:
        return 0 if panel.ahead is None else self.copy

    def placed(self) -> list[Stmt]:
        """Returns views of the panels, defined once all panels are filled: inner loops address them by constant offsets."""
        statements = []
        points = list(self.block.points(tuple(range(len(self.nest.dims)))))
        for operand, panel in self.panels.items():
            kinds = dict.fromkeys(panel.widths(self.block, point) for point in points) if panel.regular(self.block) else ()
            for number, widths in enumerate(kinds):
                start = panel.near(self.block, self._copy_of(panel), widths)
                found, said = view(f"near{operand}_{number}", start, panel.buffer)
                self.views.setdefault(operand, {})[widths] = found
                statements += said
        return statements

    def _reduced(self, state: State, dim: int) -> Position:
        """Returns the position of the lane's loops over time along a reduction, from the start of the unit's tile."""
        total: Position = 0
        for number, lp in enumerate(self.program.loops):
            if lp.dim == dim and lp.over == "time" and lp.level == self.program.levels[1]:
                total = plus(total, times(state.variable(number), self.program.inner[dim]))
        return total

    def _body(self, state: State, offsets: Offsets, panels: dict[int, Fragment], arrays: dict[int, Fragment], held: Held) -> Expr:
        self.reader.vectors = {number: found.value(offsets) for number, found in arrays.items()}
        point = self.place(state, offsets)
        if not panels:
            value = self.reader.value(self.nest.stage.body, point, held)
        else:
            value = None
            for number, factor in enumerate(self.nest.factors):
                here = panels[number].value(offsets) if number in panels else self.reader.value(factor, point, held)
                value = here if value is None else product(value, here)
        self.reader.vectors = {}
        return value

    # --- results ------------------------------------------------------------------------------------------------------

    def elementwise(self, state: State) -> Stmt:
        """Loads, computes and stores every point of the lane's tile."""
        reads, arrays = self._operands(state, "body")
        return sequence([*reads, *self._results(state, arrays, None)])

    def results(self, state: State, slot: Position) -> Stmt:
        """Stores the results of the lane's accumulators; of several lanes that share them, only the first one stores."""
        reads, arrays = ([], {}) if self.partial is not None else self._operands(state, "epilogue")
        body = sequence([*reads, *self._results(state, arrays, slot)])
        first = every(tirx.EQ(self.block.names[d], index(0)) for d in self.nest.reduce if d in self.block.names)
        return body if first is None else when(first, body)

    def _operands(self, state: State, role: str, points: Sequence[Offsets] | None = None) -> tuple[list[Stmt], dict[int, Fragment]]:
        """Loads operands from arrays that are read in place: for all points of the lane, or for some."""
        statements: list[Stmt] = []
        arrays: dict[int, Fragment] = {}
        inside = {stage.name for stage in self.nest.before}
        wanted = {self.reader.number(n) for n in loads(self.nest.stage.result) if n.tensor not in inside}
        for number, access in enumerate(self.nest.accesses):
            if number in wanted and access.role == role and not access.guarded:
                source = array_source(self.block, self.reader, number, lambda o: self.place(state, o))
                arrays[number], reads = fragment(source, list(self.spatial if points is None else points))
                statements += reads
        return statements, arrays

    def _results(self, state: State, arrays: dict[int, Fragment], slot: Position | None) -> list[Stmt]:
        """Returns the value of every point, stored with accesses as wide as the output allows."""
        output = self.nest.output
        window, shift = ArrayView.whole(self.target, output.tensor), index(0)
        if self.partial is not None:
            window, shift = ArrayView.whole(self.partial, output.tensor), index(times(self.part, output.tensor.elements))
        along, each = array_accesses(self.block, len(self.nest.accesses) - 1) if self.partial is None else (0, {})
        values = register_buffer("result", len(self.spatial), str(window.buffer.dtype))
        statements: list[Stmt] = allocate([values])
        start = 0
        for first, width in runs(self.spatial, along, each):
            points = list(neighbours(first, along, width))
            statements += self._valued(state, arrays, slot, points, values, start)
            where = address(self.nest, window, output.index, self.place(state, first)) + shift
            put = store(window.buffer, load(values, ramp(start, 1, width)), ramp(where, 1, width))
            statements.append(self._kept(put, first))
            start += width
        return statements

    def _valued(
        self,
        state: State,
        arrays: dict[int, Fragment],
        slot: Position | None,
        points: Sequence[Offsets],
        values: Buffer,
        first: int,
    ) -> list[Stmt]:
        """Computes the results of some points into registers from the `first` one on; with split-K, the partial results."""
        statements: list[Stmt] = []
        for at, offsets in enumerate(points, first):
            value = None if slot is None else load(self.acc, plus(slot, self.numbers[offsets]))
            if self.partial is None:
                held = Held.in_registers(self.block.functions)
                self.reader.vectors = {n: f.value(offsets) for n, f in arrays.items()}
                self.reader.computed = self._computed(offsets)
                value = self.reader.value(self.nest.stage.result, self.place(state, offsets), held, value)
                self.reader.vectors = {}
                statements += held.statements
            statements.append(store(values, value, at))
        return statements

    def _computed(self, _: Offsets) -> Mapping[str, Expr]:
        """Returns the results of preceding stages at a point, by the name of the tensor."""
        return {}

    def _kept(self, put: Stmt, _: Offsets) -> Stmt:
        """Returns the store of a point's result, unguarded: points are shifted inwards."""
        return put
