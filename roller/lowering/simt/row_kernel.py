"""Row groups as one kernel (persistent reduction): a block holds whole rows, and each lane the values at its points.

The values that a lane loads, and the results of stages at its points, stay in its registers. If a stage reduces the columns, each
lane reduces its own points; then the lanes of a row combine their partial results, and each of them continues with the total.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tvm import tirx

from roller.ir.expr import Stage as Computed
from roller.lowering.simt.fragments import Fragment, array_source, fragment
from roller.lowering.simt.lane import Lane
from roller.lowering.simt.lane_reduction import combined_lanes
from roller.lowering.simt.stage_kernel import StageLowering, unrolled
from roller.lowering.simt.threads import Offsets
from roller.lowering.tir.builder import Buffer, Expr, Held, Stmt, allocate, every, load, register_buffer, sequence, store
from roller.lowering.tir.expressions import combine, identity
from roller.lowering.tir.tile_starts import State

# Independent accumulators of a lane for each of its rows: one addition waits for the one before. With four instead of one, softmax
# with a warp for each row of 4096 fp16 values took 76 us instead of 84 (H200).
CHAINS = 4


@dataclass
class RowLane(Lane):
    """A lane that holds its points of whole rows: `read`, by the number of the array, and `held`, by the stage that computed it."""

    read: dict[int, Fragment] = field(default_factory=dict)
    held: dict[str, tuple[Buffer, dict[Offsets, int]]] = field(default_factory=dict)

    @cached_property
    def points(self) -> list[Offsets]:
        """The lane's points."""
        return list(self.block.points(tuple(range(len(self.nest.dims)))))

    @cached_property
    def rows(self) -> list[Offsets]:
        """The lane's rows."""
        return list(self.block.points(self.nest.rows))

    def row_of(self, offsets: Offsets) -> Offsets:
        """Returns the row of a point."""
        return tuple(o if d in self.nest.rows else 0 for d, o in enumerate(offsets))

    def owned(self, offsets: Offsets) -> Expr | None:
        """Returns the test that a point counts for this lane; None if it always does."""
        return every(found for d in self.nest.columns if (found := self.block.owned(d, offsets[d])) is not None)

    def reads(self, state: State) -> list[Stmt]:
        """Loads the stages' operands into registers, except guarded ones; all loads are in flight at the same time."""
        statements: list[Stmt] = []
        for number, access in enumerate(self.nest.accesses[:-1]):
            if not access.guarded:
                source = array_source(self.block, self.reader, number, lambda o: self.place(state, o))
                self.read[number], found = fragment(source, self.points)
                statements += found
        return statements

    def value(self, stage: Computed, state: State, offsets: Offsets, held: Held, total: Expr | None = None) -> Expr:
        """Returns a stage's body at a point, or, with the total of its reduction, its result."""
        self.reader.vectors = {n: f.value(offsets) for n, f in self.read.items()}
        self.reader.computed = self._computed(offsets)
        node = stage.body if stage.reducer is not None and total is None else stage.result
        return self.reader.value(node, self.place(state, offsets), held, total)

    def _operands(self, state: State, role: str, points: Sequence[Offsets] | None = None) -> tuple[list[Stmt], dict[int, Fragment]]:
        """Returns the operands already loaded."""
        return [], self.read

    def _computed(self, offsets: Offsets) -> Mapping[str, Expr]:
        row = self.row_of(offsets)
        return {name: load(kept, at.get(offsets, at.get(row))) for name, (kept, at) in self.held.items()}


class RowStage(StageLowering):
    """Stages over the same rows (a row group) during lowering."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lane: RowLane = RowLane(self.block, self.reader, self.buffers[self.stage.output.name])

    def _inside(self, depth: int, state: State) -> Stmt:
        """Returns all stages one after another; the last one stores."""
        assert all(lp.over != "time" for lp in self.loops), "a block holds whole rows"
        return sequence(list(self._stages(state)))

    def _stages(self, state: State) -> Iterator[Stmt]:
        yield from self.lane.reads(state)
        for number, stage in enumerate(self.nest.before):
            yield from self._reduced(stage, number, state)
            yield from self._kept(stage, state)
        yield from self._reduced(self.stage, len(self.nest.before), state)
        if self.reducer is None:
            yield self.lane.elementwise(state)
        else:
            yield self.lane.results(state, 0)

    def _reduced(self, stage: Computed, number: int, state: State) -> Iterator[Stmt]:
        """Reduces a stage's columns to one total for each of the lane's rows, in every lane of the row."""
        if stage.reducer is None:
            return
        lane, dtype, first = self.lane, stage.body.dtype, identity(stage.reducer, stage.body.dtype)
        rows = {row: at for at, row in enumerate(lane.rows)}
        each = min(CHAINS, len(lane.points) // len(rows))
        acc = register_buffer(f"acc{number}", len(rows) * each, dtype)
        yield from allocate([acc])
        yield unrolled(f"z{number}", len(rows) * each, lambda at: store(acc, first, at))
        taken = dict.fromkeys(rows, 0)
        for offsets in lane.points:
            row = lane.row_of(offsets)
            held, at = Held.in_registers(self.block.functions), rows[row] + taken[row] % each * len(rows)
            taken[row] += 1
            value, owned = lane.value(stage, state, offsets, held), lane.owned(offsets)
            total = combine(stage.reducer, load(acc, at), value if owned is None else tirx.Select(owned, value, first), held)
            yield sequence([*held.statements, store(acc, total, at)])
        lane.acc = totals = register_buffer(f"total{number}", len(rows), dtype)
        yield from allocate([totals])
        for at in rows.values():
            yield from _totalled(stage.reducer, acc, range(at, each * len(rows), len(rows)), totals, at)
        lanes = math.prod(self.block.lanes[d] for d in self.nest.columns)
        if lanes > 1:
            yield combined_lanes(self.block, totals, lanes, stage.reducer, self.machine.settled)

    def _kept(self, stage: Computed, state: State) -> Iterator[Stmt]:
        """Keeps a stage's result in registers: at each of the lane's points, or for each of its rows."""
        lane, columns = self.lane, {axis.name for d in self.nest.columns for axis in self.nest.dims[d].members}
        wide = stage.reducer is None and any(axis.name in columns for axis in stage.axes)
        places = {point: at for at, point in enumerate(lane.points if wide else lane.rows)}
        kept = register_buffer(f"held_{stage.name}", len(places), stage.output.dtype)
        yield from allocate([kept])
        for point, at in places.items():
            held = Held.in_registers(self.block.functions)
            value = lane.value(stage, state, point, held, None if stage.reducer is None else load(lane.acc, at))
            yield sequence([*held.statements, store(kept, value, at)])
        lane.held[stage.name] = kept, places


def _totalled(reducer: str, acc: Buffer, places: Sequence[int], totals: Buffer, at: int) -> Iterator[Stmt]:
    """Combines the independent accumulators of a row."""
    yield store(totals, load(acc, places[0]), at)
    for place in places[1:]:
        yield store(totals, combine(reducer, load(totals, at), load(acc, place)), at)
