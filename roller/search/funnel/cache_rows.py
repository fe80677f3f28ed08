"""How whole arrays of tile chains walk the rows of their arrays: runs in order, and rows in turn (`roller.cost.loops`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from roller.cost.loops import Stream, nearest_cache, reads_in_place, room_for_rows, stores_runs
from roller.cost.model import Model
from roller.ir.elementwise import Value
from roller.program.footprint import Boxes
from roller.program.halo import box_order, turned
from roller.program.rprogram import StageProgram
from roller.target.hardware import MemoryLevel


@dataclass(frozen=True)
class Step:
    """A loop: its dimension, its trips, the level whose tiles it walks, and whether its trips run on several units."""

    dim: int
    trips: Value
    position: int
    over_units: bool


@dataclass
class CacheRows:
    """The rows of the arrays of chains of tiles, whose `loops` make `trips`, [loop, chain].

    `boxes` returns the parts of an array that are touched inside the first 0, 1, 2 … loops.
    """

    model: Model
    base: StageProgram
    loops: Sequence[Step]
    trips: Value
    boxes: Callable[[int], Boxes]
    _together: dict[tuple[int, int, str | None], Value] = field(default_factory=dict)
    _runs: dict[tuple[Stream, bool, str | None], Value] = field(default_factory=dict)

    def run(self, part: Stream, boxed: bool, level: MemoryLevel) -> Value:
        """Returns the elements of a stream that come into a level one after another (`roller.cost.loops.NestWalk.run`)."""
        near = room_for_rows(self.model.spec, level)
        key = part, boxed, None if near is None else near.name
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = self._run_in_order(part, boxed, near)
        return found

    def _run_in_order(self, part: Stream, boxed: bool, near: MemoryLevel | None) -> Value:
        """Returns the elements walked one after another before a jump (`roller.cost.loops.run_in_order`)."""
        assert part.access is not None
        access, boxes = self.base.nest.accesses[part.access], self.boxes(part.access)
        given = self.model.parameters
        together = self._side_by_side(part.access, given.write_streams if access.role == "output" else given.read_streams, near)
        depth = part.start if part.copy else part.stop
        run: Value = boxes.run[depth]
        rows: Value = boxes.runs[depth] if depth == len(self.loops) or access.role != "body" else 1.0
        walked: Value = True
        while depth > part.start:
            walked = walked & (rows <= together[depth])
            depth -= 1
            trips, outer = self.trips[depth], boxes.run[depth]
            more = outer <= run if part.touches[self.loops[depth].dim] else False
            longer = walked & np.logical_not(more) & (rows <= together[depth])
            rows = np.where(walked & more, rows * trips, rows)
            run = np.where(longer, np.maximum(run, np.minimum(outer, run * trips)), run)
        if boxed and not part.copy and turned(self.base, part.access):
            run = np.minimum(run, math.prod(access.tensor.shape[box_order(self.base, part.access)[-1] + 1 :]))
        return run

    def _side_by_side(self, number: int, followed: int, near: MemoryLevel | None) -> Value:
        """Returns the rows of an array's tile that are prefetched (or written) side by side, [depth, chain]."""
        key = number, followed, None if near is None else near.name
        found = self._together.get(key)
        if found is None:
            found = np.full((len(self.loops) + 1, self.trips.shape[1]), followed)
            if near is not None and near.banks is not None:
                found = np.minimum(found, self.boxes(number).side_by_side(near.banks, near.capacity_bytes))
            self._together[key] = found
        return found

    def read_ahead(self, part: Stream) -> Value:
        """Returns whether an out-of-order core requests the next rows early (`roller.cost.loops`)."""
        assert part.access is not None
        if part.copy or part.stop < len(self.loops) or self.base.nest.accesses[part.access].role != "body":
            return False
        followed, runs = self.model.parameters.read_streams, self.boxes(part.access).runs
        early = self._side_by_side(part.access, followed, nearest_cache(self.model.spec)) == followed
        more = runs > runs[-1]  # the innermost tile with more rows than the innermost one of all decides
        return np.where(more.any(axis=0), at_depths(early, len(runs) - 1 - more[::-1].argmax(axis=0)), early[-1])

    def share(self, part: Stream, level: MemoryLevel) -> Value:
        """Returns the share of a level's bandwidth for an input that a reduction reads in place (`roller.cost.traffic`)."""
        nest = self.base.nest
        if level.row_shares is None or nest.stage.reducer is None or not reads_in_place(nest, part, len(self.loops)):
            return 1.0
        assert part.access is not None
        boxes, width = self.boxes(part.access), nest.accesses[part.access].element_bytes
        run, rows, least = boxes.run[part.stop], boxes.runs[part.stop], np.ones(self.trips.shape[1])
        for depth in reversed(range(part.start, part.stop)):
            if part.touches[self.loops[depth].dim]:
                longer = boxes.run[depth] > run
                ended = longer & ((rows > 1) | stores_runs(nest, part.access, self.loops[depth].dim))
                least = np.minimum(least, np.where(ended, level.row_shares.share(rows, run * width), 1.0))
                rows = np.where(longer, boxes.runs[depth], rows * self.trips[depth])
                run = np.where(longer, boxes.run[depth], run)
        return np.minimum(least, np.where(rows > 1, level.row_shares.share(rows, run * width), 1.0))


def at_depths(values: Value, depths: Value) -> Value:
    """Returns for each chain the value at its depth."""
    return values[depths, np.arange(values.shape[1])]
