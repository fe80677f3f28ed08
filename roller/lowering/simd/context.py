"""The state shared by the modules that lower one stage: its program, its arrays, and the shape of its innermost tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from roller.ir.expr import Tensor
from roller.lowering.simd import panel_layout
from roller.lowering.simd.panel_layout import Panel
from roller.lowering.tir.builder import Buffer, Expr, Stmt, buffer
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position
from roller.program.rprogram import StageProgram
from roller.program.window_steps import padded_loops
from roller.target.hardware import ComputeAtom

StoreHook = Callable[[Buffer, Expr, Expr, int], Stmt | None]
StepHook = Callable[[int], Stmt | None]
DotHook = Callable[[ComputeAtom, int, Expr, Expr, Expr], Expr]
Slots = list[tuple[int, int]]  # first element and lanes of each accumulator vector


@dataclass(frozen=True)
class Prefetch:
    """How a device requests rows ahead that a tile reads a run at a time (`roller.program.row_runs`).

    `pays(tensor, operations, passes)`: whether it does so for an input. `operations`: the vector operations that a step makes for
    each of the input's lines that it reads; `passes`: how often it reads each of them. `request(place, bytes)` returns the
    statement that requests the line so many bytes after a place. `line_bytes`: of one request. `runs`: how many runs ahead.
    """

    pays: Callable[[Tensor, float, int], bool]
    request: Callable[[Expr, int], Stmt]
    line_bytes: int
    runs: int


@dataclass(frozen=True)
class TileRegisters:
    """Statements for the registers that matrix instructions have for themselves (`ComputeAtom.registers`), by their numbers.

    `configure(shapes)` starts a unit's tile: rows and bytes of a row of each register. `release()` ends it. `load` and `store` take
    a register, the place in memory of its first row, and the bytes from row to row. `multiply(atom, results, rows, columns)` adds
    the products of two registers to a third.
    """

    configure: Callable[[Sequence[tuple[int, int]]], Stmt]
    release: Callable[[], Stmt]
    zero: Callable[[int], Stmt]
    load: Callable[[int, Expr, int], Stmt]
    store: Callable[[int, Expr, int], Stmt]
    multiply: Callable[[ComputeAtom, int, int, int], Stmt]


@dataclass(frozen=True)
class Options:
    """Options of the caller: ready panels by (stage, factor), and replacements for whole-vector stores.

    `store(buffer, value, base, lanes)` returns the statement to use, or None for a plain store; `after_unit` ends a unit's tile.
    `before_step(vectors)` returns a statement for the start of each step of a reduction into this many accumulator vectors.
    `registers`: vector registers of a unit; 0: unknown. `dot(atom, lanes, accumulator, broadcast, vector)` returns the accumulator
    plus the products of the words of two vectors, of which each lane sums its own. `tile_registers`: the instructions of
    atoms with registers of their own.
    `prefetch`: which rows a tile requests ahead, and how.
    """

    panels: Mapping[tuple[str, int], Panel] = field(default_factory=dict)
    store: StoreHook | None = None
    after_unit: Callable[[], Stmt] | None = None
    before_step: StepHook | None = None
    registers: int = 0
    dot: DotHook | None = None
    tile_registers: TileRegisters | None = None
    prefetch: Prefetch | None = None


class Lowering:
    """One stage during lowering. Panels, boxes and the scratch tile are added when the statements that fill them are made."""

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
        self.tile_depth = program.tile_depth
        self.padded = padded_loops(program)  # reduce loops that leave out taps
        self.scratch_depth = next((i for i in range(self.units, self.tile_depth) if self.reduces(i)), None)
        self.scratch: Buffer | None = None
        self.rooms: list[Buffer] = []  # buffers filled in the current loops, to be allocated around them
        self.part: Position = 0
        self.partial = self._partial()

    def ready(self, factor: int) -> Panel | None:
        """Returns the panel of a factor that the caller has filled; None if there is none."""
        return self.options.panels.get((self.nest.stage.name, factor))

    def reduces(self, number: int) -> bool:
        """True if a loop runs over a reduce dimension."""
        return self.nest.dims[self.program.loops[number].dim].is_reduce

    def _partial(self) -> Buffer | None:
        """Returns the buffer for the partial results of a split-K reduction; None if the reduction is not split."""
        if self.reducer is None or not any(self.reduces(i) for i in range(self.units)):
            return None
        output = self.nest.stage.output
        return buffer(f"{output.name}_partial", self.parts * output.elements, self.dtype)

    @property
    def parts(self) -> int:
        """Number of parts of a split-K reduction."""
        return math.prod(self.program.loops[i].trips for i in range(self.units) if self.reduces(i))

    @property
    def spatial(self) -> tuple[bool, ...]:
        """For each dimension whether it is spatial."""
        return tuple(not d.is_reduce for d in self.nest.dims)

    def points(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yields the offsets of a tile's vectors of spatial points, with their lanes."""
        yield from panel_layout.tile_offsets(self.program, self.spatial)

    def chunks(self) -> list[tuple[int, int]]:
        """Returns offsets and lanes along a vectorised reduce dimension; one scalar step if none is vectorised."""
        if not self.lane_reduces:
            return [(0, 1)]
        assert self.lane is not None
        extent = self.program.inner[self.lane]
        return [(at, min(self.width, extent - at)) for at in range(0, extent, self.width)]

    @property
    def apart(self) -> int:
        """Number of partial results of one point that a vector along a reduce dimension keeps separate."""
        return sum(lanes for _, lanes in self.chunks())
