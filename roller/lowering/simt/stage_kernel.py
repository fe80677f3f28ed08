"""One stage as kernels: loops over units, lanes and time, accumulators, panels, and the results.

Accumulators stay in registers; panels lie in the block's shared memory; lanes that share a reduction combine their partial results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tvm import tirx
from tvm.tirx import ForKind

from roller.cost.occupancy import step_loop
from roller.cost.parameters import PREFETCH_REGISTERS
from roller.cost.unrolling import steps_repeated, steps_together
from roller.ir.expr import ELEMENT_BYTES
from roller.lowering.simt import matrix_atoms
from roller.lowering.simt.cooperative_fill import Filling
from roller.lowering.simt.lane_reduction import combined_lanes, meeting_bytes
from roller.lowering.simt.machine import Machine, TensorMap
from roller.lowering.simt.pipeline import Pipeline
from roller.lowering.simt.shared_panels import SharedPanel, shared_panel
from roller.lowering.simt.threads import Block, in_shared
from roller.lowering.tir import tile_starts
from roller.lowering.tir.addresses import ArrayView, Point, address
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Held,
    Stmt,
    allocate,
    argument,
    barrier,
    index,
    load,
    loop,
    plus,
    register_buffer,
    sequence,
    store,
    times,
    variable,
    when,
)
from roller.lowering.tir.expressions import combine, identity
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, copy_depth
from roller.target.hardware import HardwareSpec

COMBINE_THREADS = 256  # of a block that reduces partial results, one output each


@dataclass(frozen=True)
class GridKernel:
    """One launch: its statements, with `blockIdx.x` and `threadIdx.x` bound, and its array arguments.
    `maps`: arguments that describe an array's layout (tensor maps). `cluster`: neighbouring blocks that are launched together.
    """

    name: str
    body: Stmt
    arguments: tuple[Buffer, ...]
    blocks: int
    threads: int
    shared_bytes: int = 0
    stage: int | None = None  # the number of the stage whose tiles it computes; None for kernels that reduce partial results
    maps: Mapping[str, TensorMap] = field(default_factory=dict)
    cluster: int = 1


@dataclass(frozen=True)
class Workspace:
    """An intermediate array between kernels."""

    name: str
    elements: int
    dtype: str


def workspace_of(program: StageProgram) -> Workspace | None:
    """Returns the array of partial results, if a reduction is split over units (split-K)."""
    output, body, parts = program.nest.stage.output, program.nest.stage.body, program.dispatch.split
    reduces = program.nest.stage.reducer is not None
    return Workspace(f"{output.name}_partial", parts * output.elements, body.dtype) if reduces and parts > 1 else None


def staged_bytes(program: StageProgram, machine: Machine) -> int:
    """Returns the bytes of a block's shared memory: panels, and space for reductions across lanes."""
    block = matrix_atoms.block_of(program, machine)
    panels = [p.buffer for p in panels_of(block, machine)]
    size = sum(in_shared(int(p.shape[0]) * ELEMENT_BYTES[str(p.dtype)]) for p in panels)
    accumulated = math.prod([program.inner[d] for d in program.nest.rows])
    several = any(lp.over == "time" for lp in program.loops)  # spatial loops inside those of a reduction need more accumulators
    return size + meeting_bytes(block, None if several else accumulated)


def panels_of(block: Block, machine: Machine) -> list[SharedPanel]:
    """Returns the panels of a block; those of the innermost filling loop are multi-buffered with the program's number of copies.
    While one copy is used, others are filled asynchronously, or lanes prefetch the next one, if they have the registers.
    """
    program, number = block.program, step_loop(block.program)
    last = [s for s in program.staged if number is not None and copy_depth(program, s) == number + 1]
    reader = Reader(program.nest, {})
    fillings = [Filling(block, shared_panel(block, s, None), reader, machine) for s in last]
    carried = [f for f in fillings if f.copies is None]
    held = sum(f.registers for f in carried)
    ahead = all(s.depth > 1 for s in last) and (not carried or block.accumulators + held <= PREFETCH_REGISTERS)
    most = 2 if carried else max((s.depth for s in last), default=1)  # through registers, lanes prefetch one step ahead, not more
    return [
        shared_panel(block, replace(s, depth=min(s.depth, most)), number) if ahead and s in last else shared_panel(block, s, None)
        for s in program.staged
    ]


def copies_of(program: StageProgram, machine: Machine) -> int:
    """Returns the max number of copies (pipeline stages) among a kernel's panels."""
    if machine.in_place(program.atom):
        return max(s.depth for s in program.staged)
    return max([panel.copies for panel in panels_of(matrix_atoms.block_of(program, machine), machine)], default=1)


def tile_bytes(program: StageProgram, spec: HardwareSpec) -> int:
    """Returns the bytes of a lane's tile in its registers, as the engine counts them."""
    fit = Fit(spec, program.nest, Geometry(program.nest), windowed=program.windowed)
    return fit.inner_bytes(program.inner, program.mapping, program.atom)


def registers_ahead(program: StageProgram, machine: Machine) -> int:
    """Returns the registers of a lane for values prefetched from step to step."""
    carried = [f for f in _fillings(program, machine) if f.copies is None and f.panel.ahead is not None]
    return math.ceil(sum(f.registers for f in carried))


def reads_ahead(program: StageProgram, machine: Machine) -> bool:
    """Returns True if lanes may read panels ahead for further steps: no panel is filled between these."""
    return steps_together(program, machine.unrolling) > 1


def started_copies(program: StageProgram, machine: Machine) -> list[int]:
    """Returns, for each asynchronously filled panel, how many copies a lane starts to fill it once."""
    return [f.trips for f in _fillings(program, machine) if f.copies is not None]


def registers_at_once(program: StageProgram, machine: Machine) -> int:
    """Returns a lane's registers for fills between steps, all in flight at a time: values, or addresses of copies."""
    between = [f for f in _fillings(program, machine) if f.panel.ahead is None]
    return math.ceil(sum(f.trips / 2 if f.copies is not None else f.trips * f.words for f in between))


def _fillings(program: StageProgram, machine: Machine) -> list[Filling]:
    block, reader = matrix_atoms.block_of(program, machine), Reader(program.nest, {})
    return [Filling(block, panel, reader, machine) for panel in panels_of(block, machine)]


@dataclass
class StageLowering:
    """One stage during lowering."""

    program: StageProgram
    buffers: dict[str, Buffer]
    number: int
    machine: Machine

    def __post_init__(self) -> None:
        self.nest, self.stage, self.loops = self.program.nest, self.program.nest.stage, self.program.loops
        self.reader, self.block = Reader(self.nest, self.buffers), matrix_atoms.block_of(self.program, self.machine)
        self.dtype, self.reducer = self.stage.body.dtype, self.stage.reducer
        serial = [n for n, lp in enumerate(self.loops) if lp.over == "time"]
        reducing = [n for n in serial if self.reduces(n)]
        # Accumulators live from here inwards; spatial loops further in have accumulators of their own.
        self.begin = min(reducing, default=len(self.loops)) if self.reducer is not None else len(self.loops)
        self.apart = [n for n in serial if n > self.begin and not self.reduces(n)]
        if self.apart:
            self.begin = min(self.begin, *self.apart)
        self.lane = matrix_atoms.lane_of(self.block, self.reader, self.buffers[self.stage.output.name])
        self.parts = math.prod(lp.trips for n, lp in enumerate(self.loops) if lp.over == "units" and self.reduces(n))

    def reduces(self, number: int) -> bool:
        """True if a loop runs over a reduce dimension."""
        return self.nest.dims[self.loops[number].dim].is_reduce

    def kernels(self) -> tuple[list[GridKernel], list[Workspace]]:
        """Returns the stage's kernel and, with split-K, the one that reduces the partial results."""
        output = self.stage.output
        name = f"stage{self.number}"
        if self.reducer is not None and not all(self.nest.extents[i] for i in self.nest.reduce):
            return [self._combine(f"{name}_empty", None, 0)], []
        space = workspace_of(self.program)
        spaces = [] if space is None else [space]
        if space is not None:
            self.lane.partial = argument(space.name, space.elements, space.dtype)
        block_var = variable("block")
        body = self._block(block_var)
        target = self.lane.partial if self.lane.partial is not None else self.buffers[output.name]
        reads = [a for a in self.nest.accesses[:-1] if self.lane.partial is None or a.role == "body"]
        taken = dict.fromkeys(self.buffers[a.tensor.name] for a in reads)
        blocks = math.prod(lp.trips for lp in self.loops if lp.over == "units")
        main = self._kernel(name, body, block_var, (*taken, target), blocks)
        if self.lane.partial is None:
            return [main], spaces
        return [main, self._combine(f"{name}_combine", self.lane.partial, self.parts)], spaces

    def _kernel(self, name: str, body: Stmt, block_var: Expr, arguments: tuple[Buffer, ...], blocks: int) -> GridKernel:
        threads = self.block.threads
        launched = launched_over(body, block_var, blocks, self.block.thread, threads)
        return GridKernel(name, launched, arguments, blocks, threads, staged_bytes(self.program, self.machine), self.number)

    # --- loops --------------------------------------------------------------------------------------------------------

    def _block(self, block_var: Expr) -> Stmt:
        """Derives loops over units from the block's number and lanes from the thread's, then nests the loops over time."""
        statements: list[Stmt] = list(self.block.bindings())
        units, state = self.units(block_var)
        self.lane.panels = {p.staging.operand: p for p in panels_of(self.block, self.machine)}
        statements += [*units, *allocate([p.buffer for p in self.lane.panels.values()])]
        return sequence([*statements, self._inside(0, state)])

    def units(self, tile: Position) -> tuple[list[Stmt], State]:
        """Returns the position of a unit tile by its number: the statements that compute it, and the state inside its loops."""
        state = tile_starts.start(self.program)
        statements: list[Stmt] = []
        rest: Position = tile
        self.lane.part = 0
        units = [n for n, lp in enumerate(self.loops) if lp.over == "units"]
        values: dict[int, Position] = {}
        for number in reversed(units):
            trips = self.loops[number].trips
            values[number] = rest if number == units[0] else tirx.floormod(rest, index(trips))
            rest = tirx.floordiv(rest, index(trips))
        for number in units:
            name = variable(f"u{number}")
            statements.append(tirx.Bind(name, index(values[number])))
            state = tile_starts.enter(self.program, state, number, name, self.loops[number].trips)
            if self.reduces(number):
                self.lane.part = plus(times(self.lane.part, self.loops[number].trips), name)
        return statements, state

    def _inside(self, depth: int, state: State) -> Stmt:
        """Returns the statements inside this many loops."""
        if depth == self.begin and self.reducer is not None:
            return self._accumulating(depth, state)
        return self._filled(depth, state)

    def _filled(self, depth: int, state: State) -> Stmt:
        """Returns the statements inside this many loops, behind the fills of the panels placed there."""
        filled = self._fills(depth, state)
        repeated = any(lp.over == "time" for lp in self.loops[:depth])  # TVM supports views inside loops only
        placed = self.lane.placed() if depth == self._deepest and repeated and self.machine.views else []
        return sequence([*filled, *placed, self._next(depth, state)])

    @property
    def _deepest(self) -> int:
        """Number of loops outside the last panel that is filled."""
        return max((copy_depth(self.program, s) for s in self.program.staged), default=-1)

    def _next(self, depth: int, state: State) -> Stmt:
        if depth == len(self.loops):
            return self.lane.elementwise(state) if self.reducer is None else self.lane.step(state, self._slot(state))
        if self.loops[depth].over != "time":
            return self._inside(depth + 1, state)  # bound at the start of the kernel
        if any(p.ahead == depth for p in self.lane.panels.values()):
            return self._pipeline(depth, state)
        return tile_starts.serial(self.program, state, depth, lambda s: self._inside(depth + 1, s), name=self._step_name(depth))

    def _step_name(self, number: int) -> str | None:
        """Returns the name of the innermost loop over a reduction, which encodes its unroll factor."""
        if self.machine.in_place(self.program.atom):
            return None  # asynchronous products, for which nothing is prefetched
        often = steps_repeated(self.program, number, self.machine.unrolling)
        return None if often is None else f"unroll{often}_{number}"

    def _fills(self, depth: int, state: State) -> list[Stmt]:
        """Fills the panels that are placed inside this many loops."""
        panels = self.lane.panels.values()
        due = [p for p in panels if p.ahead is None and copy_depth(self.program, p.staging) == depth]
        if not due:
            return []
        fillings, copies = [self._filling(p) for p in due], self.machine.copies
        started = [f.start(state, 0) for f in fillings if f.copies is not None]
        waiting = [copies.close(), copies.wait(0)] if copies is not None and started else []
        carried = [f.at_once(state, 0) for f in fillings if f.copies is None]
        return [*self._left(depth), *started, *carried, *waiting, barrier()]

    def _filling(self, panel: SharedPanel) -> Filling:
        return Filling(self.block, panel, self.reader, self.machine)

    def _left(self, depth: int) -> list[Stmt]:
        """Returns the barrier after all reads of the previous panels, if the position inside this many loops is reached again."""
        return [barrier()] if any(lp.over == "time" for lp in self.loops[:depth]) else []

    def _pipeline(self, number: int, state: State) -> Stmt:
        """Returns a software-pipelined loop, whose trips fill the panels of later ones."""
        fillings = [self._filling(p) for p in self.lane.panels.values() if p.ahead == number]
        entered = partial(tile_starts.enter, self.program, state, number, trips=tile_starts.trips_of(self.program, state, number))
        made = Pipeline(self.machine, self.lane, fillings, number, entered, lambda at: self._inside(number + 1, at))
        return made.loop(tile_starts.trips_of(self.program, state, number), self._left(number))

    # --- accumulators -------------------------------------------------------------------------------------------------

    def _accumulating(self, depth: int, state: State) -> Stmt:
        """Initialises accumulators, runs the loops around their steps, and stores the results."""
        points, slots = len(self.lane.spatial), math.prod(self.loops[n].trips for n in self.apart)
        self.lane.acc = register_buffer("acc", points * slots, self.dtype)
        first = identity(self.reducer or "sum", self.dtype)
        zero = unrolled("z", points * slots, lambda at: store(self.lane.acc, first, at))
        begun = [*allocate([self.lane.acc]), zero]
        return sequence([*begun, self._filled(depth, state), self._finish(state)])

    def _slot(self, state: State) -> Position:
        """Returns the first accumulator of the current point of the loops apart."""
        slot: Position = 0
        for number in self.apart:
            slot = plus(times(slot, self.loops[number].trips), state.variable(number))
        return times(slot, len(self.lane.spatial))

    def _finish(self, state: State) -> Stmt:
        """Reduces over lanes, applies the epilogue, stores."""

        def put(inner: State) -> Stmt:
            return self.lane.results(inner, self._slot(inner))

        lanes = math.prod(self.block.lanes[d] for d in self.nest.reduce)
        settled = self.machine.settled
        combined = [] if lanes == 1 else [combined_lanes(self.block, self.lane.acc, lanes, self.reducer or "sum", settled)]
        return sequence([*combined, tile_starts.nested(self.program, state, self.apart, put)])

    # --- split-K: a reduction split over units ------------------------------------------------------------------------

    def _combine(self, name: str, partial: Buffer | None, parts: int) -> GridKernel:
        """Reduces the partial results (none for an empty sum) and applies the epilogue, one output per thread."""
        nest, output, reader = self.nest, self.stage.output, Reader(self.nest, self.buffers)
        block_var, thread, item = variable("block"), variable("thread"), variable("item")
        rest: Position = item
        positions: list[Position] = [0] * len(nest.dims)
        for dim in reversed(nest.spatial):
            positions[dim] = rest if dim == nest.spatial[0] else tirx.floormod(rest, index(nest.extents[dim]))
            rest = tirx.floordiv(rest, index(nest.extents[dim]))
        point = Point(nest, tuple(positions))
        total, reducer = register_buffer("total", 1, self.dtype), self.reducer or "sum"
        where = address(nest, ArrayView.whole(partial if partial is not None else total, output), nest.output.index, point)
        statements: list[Stmt] = [*allocate([total]), store(total, identity(reducer, self.dtype), 0)]
        if partial is not None:
            var = variable("p")
            add = store(total, combine(reducer, load(total, 0), load(partial, where + var * index(output.elements))), 0)
            statements.append(loop(var, parts, add))
        held = Held.in_registers(self.block.functions)
        value = reader.value(self.stage.result, point, held, load(total, 0))
        target = self.buffers[output.name]
        place = address(nest, ArrayView.whole(target, output), nest.output.index, point)
        statements += [*held.statements, store(target, value, place)]
        blocks = -(-output.elements // COMBINE_THREADS)
        guarded = when(item < index(output.elements), sequence(statements))
        body = sequence([tirx.Bind(item, block_var * index(COMBINE_THREADS) + thread), guarded])
        reads = dict.fromkeys(self.buffers[a.tensor.name] for a in nest.accesses[:-1] if a.role == "epilogue")
        arguments = (*(() if partial is None else (partial,)), *reads, target)
        return GridKernel(name, launched_over(body, block_var, blocks, thread, COMBINE_THREADS), arguments, blocks, COMBINE_THREADS)


def launched_over(body: Stmt, block: Expr, blocks: int, thread: Expr, threads: int) -> Stmt:
    """Returns the body with its block's and its thread's number bound."""
    inner = _bound(thread, "threadIdx.x", threads, body)
    return _bound(block, "blockIdx.x", blocks, inner)


def _bound(var: Expr, tag: str, extent: int, body: Stmt) -> Stmt:
    number = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)
    return tirx.AttrStmt(number, "thread_extent", index(extent), body)


def unrolled(name: str, trips: int, body: object) -> Stmt:
    """Returns a short unrolled loop, so that register indices are constants."""
    var = variable(name)
    return tirx.For(var, index(0), index(trips), ForKind.UNROLLED, body(var))  # type: ignore[operator]
