"""Warp-specialised blocks: producer lanes fill panels, consumer lanes start the matrix atoms that read them.

Panels lie in circular buffers (rings) of copies, the pipeline stages. Producers walk the same loops as consumers and run ahead by
up to the number of copies. Each copy has two barriers (mbarriers): full and empty. Blocks are persistent: they process one unit
tile after another, so the first panels of the next tile arrive while results of the last one are stored. In a cluster, each block
copies its share of the common panels to all blocks (multicast). A copy is then empty when all blocks have released it, and no block
exits before the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tvm import tirx

from roller.ir.expr import ELEMENT_BYTES
from roller.lowering.simt.cooperative_fill import Filling
from roller.lowering.simt.machine import Machine, PanelUnit, TensorMap
from roller.lowering.simt.stage_kernel import GridKernel, StageLowering, launched_over
from roller.lowering.simt.threads import Block
from roller.lowering.specialised.bulk_copies import Bulk, bulk_of
from roller.lowering.specialised.consumer import PanelLane
from roller.lowering.specialised.shared_memory import block_of, layout_of, registers_of
from roller.lowering.specialised.swizzle import SwizzledPanel
from roller.lowering.tir.builder import (
    Buffer,
    Expr,
    Stmt,
    allocate,
    barrier,
    index,
    load,
    loop,
    plus,
    pointer,
    register_buffer,
    sequence,
    store,
    times,
    variable,
    when,
)
from roller.lowering.tir.loads import Reader
from roller.lowering.tir.tile_starts import Position, State, serial
from roller.program.rprogram import copy_depth

SIGNAL_BYTES = 8
CARRIED_REGISTERS = 16  # registers of a producer lane for values in flight: it must not need more than consumer lanes
FULL, EMPTY = 0, 1  # of the pair of barriers that a copy has


@dataclass
class Ring:
    """A circular buffer: panels that are filled inside the same loops, with the same number of copies (pipeline stages).

    The barrier pairs of its copies start at `first`. Each role keeps the current copy and the parity of its round in registers of
    its own; consumers also keep the copy to release next. Before the first one they release `nothing`, the copy behind the last,
    whose barriers have no waiters: a branch around the release would prevent products of neighbouring steps from overlapping.
    """

    depth: int
    panels: list[SwizzledPanel]
    first: int
    slot: Buffer = field(default_factory=lambda: register_buffer("slot", 1, "int32"))
    phase: Buffer = field(default_factory=lambda: register_buffer("phase", 1, "int32"))
    last: Buffer = field(default_factory=lambda: register_buffer("last", 1, "int32"))

    @property
    def copies(self) -> int:
        """Copies of each panel."""
        return min(panel.copies for panel in self.panels)

    @property
    def nothing(self) -> int:
        """Returns the copy that consumers release before they have used one."""
        return self.copies

    @property
    def pairs(self) -> int:
        """Returns the pairs of barriers: one for each copy, and one for `nothing`."""
        return self.copies + 1

    def begin(self) -> list[Stmt]:
        """Returns the initialised registers of one role."""
        first = {self.slot: 0, self.phase: 0, self.last: self.nothing}
        return [*allocate(list(first)), *(store(register, index(value), 0) for register, value in first.items())]

    def advance(self) -> list[Stmt]:
        """Advances to the next copy."""
        turned = tirx.bitwise_xor(load(self.phase, 0), index(1))
        around = sequence([store(self.slot, index(0), 0), store(self.phase, turned, 0)])
        return [store(self.slot, load(self.slot, 0) + index(1), 0), when(tirx.EQ(load(self.slot, 0), index(self.copies)), around)]


class SpecialisedStage(StageLowering):
    """One warp-specialised stage during lowering: consumers, as in other stages except for the source of panels, and producers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        program, machine = self.program, self.machine
        assert machine.producers is not None
        self.producers, self.block = machine.producers, block_of(program, machine)
        self.unit, self.consumers = self.block.panel_unit, self.block.threads
        self.worker = PanelLane(self.block, self.reader, self.buffers[self.stage.output.name])
        self.lane = self.worker
        self.layout = layout_of(self.block, machine)
        panels, self.arena = self.layout.panels, self.layout.arena
        self.worker.store_buffer, self.worker.arena = self.layout.store_buffer, self.arena
        self.lane.panels = {p.staging.operand: p for p in panels}
        self.rings: dict[int, Ring] = {}
        for panel in panels:
            self.rings.setdefault(depth := copy_depth(program, panel.staging), Ring(depth, [], 0)).panels.append(panel)
        pairs = 0
        for ring in self.rings.values():
            ring.first = pairs
            pairs += ring.pairs
        self.deepest = max(self.rings)
        self.filling = {depth: Ring(depth, ring.panels, ring.first) for depth, ring in self.rings.items()}  # the producers' view
        self.bulks: dict[int, Bulk | None] = {p.staging.operand: bulk_of(self.block, p, self.reader) for p in panels}
        self.crew = self.block.thread - index(self.consumers), self.producers.lanes
        self.rank: Expr = index(0)  # the block's number in its cluster

    # --- the kernel ---------------------------------------------------------------------------------------------------

    def _kernel(self, name: str, body: Stmt, block_var: Expr, arguments: tuple[Buffer, ...], blocks: int) -> GridKernel:
        found, store_buffer = [bulk for bulk in self.bulks.values() if bulk is not None], self.layout.store_buffer
        maps: dict[str, TensorMap] = {bulk.argument.name: bulk.map for bulk in found}
        if store_buffer is not None:
            maps[store_buffer.argument.name] = store_buffer.map
        described = {described.tensor for described in maps.values()}
        carried = {self._tensor(p) for p in self.lane.panels if self.bulks[p] is None}
        stored = {"epilogue"} if store_buffer is not None else {"epilogue", "output"}
        needed = carried | {a.tensor.name for a in self.nest.accesses if a.role in stored}
        plain = tuple(a for a in arguments if a.name not in described or a.name in needed)
        threads = self.consumers + self.producers.lanes
        launched = launched_over(body, block_var, self.blocks, self.block.thread, threads)
        taken = [*plain, *(bulk.argument for bulk in found), *(() if store_buffer is None else (store_buffer.argument,))]
        size = self.layout.bytes
        return GridKernel(name, launched, tuple(taken), self.blocks, threads, size, self.number, maps, self.cluster)

    def _tensor(self, operand: int) -> str:
        return next(a.tensor.name for a in self.nest.inputs if a.factor == operand)

    @property
    def blocks(self) -> int:
        """Returns the number of blocks launched, in whole clusters: at most as many as can be resident on the chip."""
        threads = self.consumers + self.producers.lanes
        most = self.producers.blocks(threads, self._registers, self.layout.bytes)
        return min(self.program.unit_tiles, max(most // self.cluster, 1) * self.cluster)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.program.dispatch.cluster

    @property
    def _registers(self) -> int:
        """Returns the approximate registers of a consumer lane."""
        return registers_of(self.program, block_of(self.program, self.machine))

    def _block(self, block_var: Expr) -> Stmt:
        """Initialises the barriers, then branches to each lane's role."""
        self.rank = tirx.floormod(block_var, index(self.cluster))
        made = [self._made(ring, n) for ring in self.rings.values() for n in range(ring.pairs)]
        set_up = when(tirx.EQ(self.block.thread, index(0)), sequence([*made, self.producers.ready()]))
        groups = self.consumers // self.program.atom.lanes
        store_buffer = self.layout.store_buffer
        before, after = ([], []) if store_buffer is None else (store_buffer.begin(), store_buffer.end())
        work = [*self.block.bindings(), *before, *_begun(self.rings), self._tiles(block_var, True), *after]
        consume = sequence([*self.producers.divide(groups, False, self._registers), *work])
        filling = self._alone([*_begun(self.filling), self._tiles(block_var, False)])
        produce = sequence([*self.producers.divide(groups, True, self._registers), filling])
        roles = when(self.block.thread < index(self.consumers), consume, produce)
        together, last = (barrier(), []) if self.cluster == 1 else (self.producers.join(), [self.producers.join()])
        return sequence([*allocate([self.arena]), set_up, together, roles, *last])

    def _alone(self, statements: list[Stmt]) -> Stmt:
        """Runs one producer lane only, if boxes fill all panels."""
        return self._by_one(statements) if self._boxes_alone else sequence(statements)

    @property
    def _boxes_alone(self) -> bool:
        return all(bulk is not None for bulk in self.bulks.values())

    def _tiles(self, block_var: Expr, consuming: bool) -> Stmt:
        """Walks the unit tiles of a block, one after another (persistent blocks)."""
        tiles, turn = self.program.unit_tiles, variable("turn")
        names, state = self.units(plus(block_var, times(turn, self.blocks)) if tiles > self.blocks else block_var)
        inside = sequence([*names, self._inside(0, state) if consuming else self._produced(0, state)])
        if tiles <= self.blocks:
            return inside
        return loop(turn, tirx.floordiv(index(tiles - 1) - block_var, index(self.blocks)) + index(1), inside)

    def units(self, tile: Position) -> tuple[list[Stmt], State]:
        """Returns the position of a unit tile.

        With split-K, the last unit runs over zeros to the end of its share, in the time that the others take: in a loop that might
        have no trips, products of neighbouring steps would not overlap.
        """
        statements, state = super().units(tile)
        return statements, replace(state, whole=frozenset(d for d in self.nest.reduce if self._zeros_beyond(d)))

    # --- barriers -----------------------------------------------------------------------------------------------------

    def _signal(self, pair: Position, which: int) -> Expr:
        """Returns the address of a barrier: pairs lie behind the panels."""
        each = SIGNAL_BYTES // ELEMENT_BYTES[self.program.atom.stored_dtype]
        return pointer(self.arena, plus(plus(times(pair, 2 * each), which * each), self.layout.signals), True)

    def _at(self, ring: Ring, slot: Expr, which: int) -> Expr:
        return self._signal(plus(slot, ring.first), which)

    def _made(self, ring: Ring, number: int) -> Stmt:
        """Initialises a pair of barriers with their arrival counts."""
        empty = 0 if number == ring.nothing else self._emptiness(ring)
        return self.producers.signals(self._signal(ring.first + number, FULL), self._fullness(ring), empty)

    def _fullness(self, ring: Ring) -> int:
        """Returns the arrivals that fill a copy: one lane if boxes fill all panels, else all producers."""
        return 1 if all(self.bulks[p.staging.operand] is not None for p in ring.panels) else self.producers.lanes

    def _emptiness(self, ring: Ring) -> int:
        """Returns the arrivals that empty a copy: each lane group (warp) that reads it, in every block that fills it."""
        return self.consumers // self.machine.group * (self.cluster if self._spread(ring) else 1)

    def _spread(self, ring: Ring) -> bool:
        """Returns True if a ring's copies are filled by all blocks of a cluster."""
        return any(bulk is not None and bulk.cluster > 1 for bulk in (self.bulks[p.staging.operand] for p in ring.panels))

    def _given(self, ring: Ring, slot: Expr) -> Stmt:
        """Releases a copy: one lane of each lane group arrives, or in a cluster one lane for each block that fills it."""
        member, signal = tirx.floormod(self.block.thread, index(self.machine.group)), self._at(ring, slot, EMPTY)
        if self._spread(ring):
            return when(member < index(self.cluster), self.producers.arrive_at(signal, member))
        return when(tirx.EQ(member, index(0)), self.producers.arrive(signal))

    # --- producers ----------------------------------------------------------------------------------------------------

    def _produced(self, depth: int, state: State) -> Stmt:
        """Returns the producers' statements inside this many loops."""
        ring = self.filling.get(depth)
        filled = self._fill(ring, state) if ring is not None else []
        if depth == self.deepest:
            return sequence(filled)
        if self.loops[depth].over != "time":
            return sequence([*filled, self._produced(depth + 1, state)])
        return sequence([*filled, serial(self.program, state, depth, lambda s: self._produced(depth + 1, s))])

    def _fill(self, ring: Ring, state: State) -> list[Stmt]:
        """Fills one copy of a ring's panels, once it is empty."""
        slot, producers = load(ring.slot, 0), self.producers
        full = self._at(ring, slot, FULL)
        bulks = [b for p in ring.panels if (b := self.bulks[p.staging.operand]) is not None]
        fillings = [
            filling_of(self.block, self.unit, p, self.reader, self.machine)
            for p in ring.panels
            if self.bulks[p.staging.operand] is None
        ]
        statements = [producers.wait(self._at(ring, slot, EMPTY), tirx.bitwise_xor(load(ring.phase, 0), index(1)))]
        if bulks:
            started = [producers.expect(full, sum(b.bytes for b in bulks), arrive=not fillings)]
            started += [b.start(self.block, state, slot, full, producers, self.rank) for b in bulks]
            statements += [self._by_one(started)] if fillings else started
        if fillings:
            statements += [*self._by_lanes(fillings, state, slot), producers.visible(), producers.arrive(full)]
        one = not fillings and not self._boxes_alone  # True beside a ring that all producers fill
        return [*([self._by_one(statements)] if one else statements), *ring.advance()]

    def _by_lanes(self, fillings: list[Filling], state: State, slot: Expr) -> list[Stmt]:
        """Fills panels by lanes; all values have arrived behind these statements."""
        alone, copies = [f for f in fillings if f.copies is not None], self.machine.copies
        started = [f.start(state, slot) for f in alone]
        carried = [f.at_once(state, slot, CARRIED_REGISTERS) for f in fillings if f.copies is None]
        if not alone or copies is None:
            return carried
        return [*started, copies.close(), *carried, copies.wait(0)]

    def _by_one(self, statements: list[Stmt]) -> Stmt:
        return when(tirx.EQ(self.crew[0], index(0)), sequence(statements))

    # --- consumers ----------------------------------------------------------------------------------------------------

    def _filled(self, depth: int, state: State) -> Stmt:
        """Returns the statements inside this many loops, between the wait for a ring's next copy and its release."""
        ring = self.rings.get(depth)
        if ring is None:
            return self._computed(depth, state)
        slot = load(ring.slot, 0)
        for panel in ring.panels:
            self.worker.slots[panel.staging.operand] = slot
        full = self.producers.wait(self._at(ring, slot, FULL), load(ring.phase, 0))
        inside = self._computed(depth, state)
        if not self._lags(ring):
            wait = [] if depth < self.begin else [self.unit.wait(0)]
            return sequence([full, inside, *wait, self._given(ring, slot), *ring.advance()])
        given = [self.unit.wait(1), self._given(ring, load(ring.last, 0)), store(ring.last, slot, 0)]
        return sequence([full, inside, *given, *ring.advance()])

    def _lags(self, ring: Ring) -> bool:
        """Returns True if a copy is released one step later, while the products of the next one are computed."""
        return ring.depth == self.deepest >= self.begin and ring.copies > 1

    def _computed(self, depth: int, state: State) -> Stmt:
        """Returns the statements inside this many loops; the atoms that start there form one group."""
        if depth != max(self.deepest, self.begin):
            return self._next(depth, state)
        return sequence([self._settled(), self.unit.begin(), self._next(depth, self._whole(state)), self.unit.close()])

    def _whole(self, state: State) -> State:
        """Returns the state of a step whose atoms also cover positions beyond a reduction's end, where all panels hold zeros.

        With a number of atoms known only at run time, atoms of neighbouring steps would not overlap.
        """
        nest, tile = self.nest, self.program.unit_tile
        padded = [d for d in nest.reduce if not isinstance(state.limits[d], int) and self._zeros_beyond(d)]
        return replace(state, limits=tuple(tile[d] if d in padded else left for d, left in enumerate(state.limits)))

    def _zeros_beyond(self, dim: int) -> bool:
        """Returns True if tiles extend only beyond the problem, where all panels hold zeros, not into the share of another unit."""
        outside = [n for n, lp in enumerate(self.loops) if lp.dim == dim and lp.level < self.program.levels[1]]
        shared = all(self.program.step(self.loops[n]) % self.program.unit_tile[dim] == 0 for n in outside)
        ends = all(bulk.ends(dim, self.nest.extents[dim]) for bulk in self.bulks.values() if bulk is not None)
        return shared and ends and all(panel.steps[dim] for ring in self.rings.values() for panel in ring.panels)

    def _settled(self) -> Stmt:
        acc = self.lane.acc
        assert acc is not None
        return self.unit.settled(pointer(acc, 0, True), int(acc.shape[0]))

    def _finish(self, state: State) -> Stmt:
        """Waits for all atoms, releases all copies, then stores the results."""
        done = [self.unit.wait(0)]
        for ring in self.rings.values():
            if self._lags(ring):
                done += [self._given(ring, load(ring.last, 0)), store(ring.last, index(ring.nothing), 0)]
        return sequence([*done, self._settled(), super()._finish(state)])


def _begun(rings: Mapping[int, Ring]) -> list[Stmt]:
    return [statement for ring in rings.values() for statement in ring.begin()]


def filling_of(block: Block, unit: PanelUnit, panel: SwizzledPanel, reader: Reader, machine: Machine) -> Filling:
    """Returns how producers fill a panel without boxes: by asynchronous copies (cp.async) if values stay as they are."""
    assert machine.producers is not None
    crew = block.thread - index(block.threads), machine.producers.lanes
    return Filling(block, panel, reader, replace(machine, copies=None) if unit.rounds else machine, crew, unit.taken)
