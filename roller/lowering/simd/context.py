"""What the modules that lower one stage share: its program, its arrays, and the shape of its innermost tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from roller.lowering.simd import panel_layout
from roller.lowering.simd.panel_layout import Panel
from roller.lowering.tir.builder import Buffer, Expr, Stmt, buffer
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position
from roller.program.rprogram import StageProgram, copy_depth

StoreHook = Callable[[Buffer, Expr, Expr, int], Stmt | None]
StepHook = Callable[[int], Stmt | None]
Slots = list[tuple[int, int]]  # first element and lanes of each accumulator vector


@dataclass(frozen=True)
class Options:
    """What the caller decides: panels that are ready, by (stage, factor), and what replaces whole-vector stores.

    `store(buffer, value, base, lanes)` gives the statement to use, or None for a plain store; `after_unit` ends a unit's tile.
    `before_step(vectors)` gives a statement for the beginning of every step of a reduction into this many accumulator vectors.
    """

    panels: Mapping[tuple[str, int], Panel] = field(default_factory=dict)
    store: StoreHook | None = None
    after_unit: Callable[[], Stmt] | None = None
    before_step: StepHook | None = None


class Lowering:
    """One stage while it is lowered. Panels, boxes and the scratch tile appear as the statements that fill them are made."""

    def __init__(self, program: StageProgram, buffers: Mapping[str, Buffer], options: Options) -> None:
        self.program, self.nest, self.options, self.buffers = program, program.nest, options, buffers
        self.reader = Reader(program.nest, buffers)
        self.panels: dict[int, Panel] = {}
        self.lane, self.width = program.lane, program.width
        self.dtype = self.nest.stage.body.dtype
        self.reducer = self.nest.stage.reducer
        self.lane_reduces = self.lane is not None and self.nest.dims[self.lane].is_reduce
        loops = program.loops
        self.units = next((i for i, lp in enumerate(loops) if lp.over != "units"), len(loops))
        spatial = [i for i in range(len(loops)) if not self.reduces(i)]
        self.tile_depth = max(max(spatial, default=-1) + 1, self.units, *(copy_depth(program, s) for s in program.staged), 0)
        self.scratch_depth = next((i for i in range(self.units, self.tile_depth) if self.reduces(i)), None)
        self.scratch: Buffer | None = None
        self.rooms: list[Buffer] = []  # what is filled in the loops being lowered, to be allocated around them
        self.part: Position = 0
        self.partial = self._partial()

    def ready(self, factor: int) -> Panel | None:
        """The panel of a factor that the caller has filled."""
        return self.options.panels.get((self.nest.stage.name, factor))

    def reduces(self, number: int) -> bool:
        """True if a loop runs over a reduce dimension."""
        return self.nest.dims[self.program.loops[number].dim].is_reduce

    def _partial(self) -> Buffer | None:
        """Room for the results of every part of a reduction that is cut over units; None where it is not."""
        if self.reducer is None or not any(self.reduces(i) for i in range(self.units)):
            return None
        output = self.nest.stage.output
        return buffer(f"{output.name}_partial", self.parts * output.elements, self.dtype)

    @property
    def parts(self) -> int:
        """Into how many parts a reduction is cut over units."""
        return math.prod(self.program.loops[i].trips for i in range(self.units) if self.reduces(i))

    @property
    def spatial(self) -> tuple[bool, ...]:
        """For each dimension whether it is spatial."""
        return tuple(not d.is_reduce for d in self.nest.dims)

    def points(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Offsets of the vectors of spatial points of a tile, with their lanes."""
        yield from panel_layout.tile_offsets(self.program, self.spatial)

    def chunks(self) -> list[tuple[int, int]]:
        """Offsets and lanes along a reduce dimension that carries the vector; one scalar step without."""
        if not self.lane_reduces:
            return [(0, 1)]
        assert self.lane is not None
        extent = self.program.inner[self.lane]
        return [(at, min(self.width, extent - at)) for at in range(0, extent, self.width)]

    @property
    def apart(self) -> int:
        """Partial results of one point, which a vector along a reduce dimension keeps apart."""
        return sum(lanes for _, lanes in self.chunks())
