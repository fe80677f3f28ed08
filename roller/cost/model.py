"""The micro-performance model: seconds for one program, with the terms it is made of.

    body    = sum over s steps of the per-step terms, overlapped: sum t + (s - 1) (sum L t + max (1 - L) t) for per-step t
    seconds = launch + copies into panels + body + combine + step overheads

Terms are compute and the time to move bytes into each level. L is the overlap number of a term (0: other terms hide it, 1: nothing
does). With one L for all terms, the second part is max t + L (sum t - max t). The start latency of short runs is added. Where an
out-of-order core requests the next rows early, that latency is a part of the term of its own level instead. Padding is
charged as work. The part of compute in which units wait for the unit with the largest share is reported separately, as the tail.
The numbers rank programs; they are predictions, not measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from roller.cost import formulas
from roller.cost.combining import accumulating, combine_seconds, fold_seconds
from roller.cost.issue import Issued
from roller.cost.loops import NestWalk
from roller.cost.multibuffering import waiting_seconds
from roller.cost.occupancy import idle_lanes
from roller.cost.operations import body_slots, epilogue_slots
from roller.cost.packing import copy_seconds
from roller.cost.parameters import CostParameters, Rates
from roller.cost.register_traffic import RegisterTraffic
from roller.cost.traffic import level_traffic
from roller.ir.elementwise import Extents, Value
from roller.ir.padded_windows import PaddedWindow, padded_windows
from roller.program.estimate import Estimate, combine_estimates
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram
from roller.program.superwords import as_compiled
from roller.program.window_steps import computed_taps, padded_loops
from roller.target.hardware import ComputeAtom, HardwareSpec


@dataclass(frozen=True, slots=True)
class _Moving:
    """Seconds of one level: moving bytes into it, and waiting for starts of short runs.

    `ahead`: the starts of prefetched runs, and what is lost from row to row.
    """

    seconds: float
    waiting: float
    ahead: float


@dataclass
class Model:
    """The model for one nest on one chip; it caches the sizes of data tiles across programs.

    `most_resident`: the occupancy limit, in tiles for each unit, where it is known better than from a program.
    """

    spec: HardwareSpec
    parameters: CostParameters
    geometry: Geometry
    most_resident: int | None = None
    rates: Rates = field(init=False)
    slots: float = field(init=False)
    epilogue_slots: float = field(init=False)
    registers: RegisterTraffic = field(init=False)
    _issued: Issued = field(init=False)
    _scalar_stores: CostParameters = field(init=False)  # no compiler stores its own vectors past the caches
    _known: dict[tuple[object, ...], Estimate] = field(default_factory=dict)
    _least: dict[tuple[object, ...], float] = field(default_factory=dict)  # lower bounds, in seconds

    def __post_init__(self) -> None:
        nest = self.geometry.nest
        self.rates = Rates(self.spec, self.parameters)
        own = self.parameters.operation_slots
        self.slots = sum([body_slots(stage, own) for stage in nest.stages])
        self.epilogue_slots = math.prod([nest.extents[i] for i in nest.spatial]) * epilogue_slots(nest.stage, own)
        self.registers = RegisterTraffic(nest, self.parameters.gather_slots, self.parameters.registers)
        self._issued = Issued(self.spec, self.parameters)
        self._scalar_stores = replace(self.parameters, past_caches=frozenset())

    def estimate(self, program: StageProgram) -> Estimate:
        """Predicts one stage."""
        found = self._known.get(program.key)
        if found is None:
            own = self.parameters.own_model
            found = self._known[program.key] = (own(program, math.inf) if own is not None else None) or self._predict(program)
        return found

    def seconds_below(self, program: StageProgram, worth: float) -> float:
        """Returns the predicted seconds of one stage if they are below `worth`, else any number from `worth` up.

        A device's own model may therefore stop early: it need not evaluate all of a program to reject it.
        """
        own, known = self.parameters.own_model, self._known.get(program.key)
        if own is None or known is not None:
            return self.estimate(program).seconds
        least = self._least.get(program.key, 0.0)
        if least >= worth:
            return least
        found = own(program, worth)
        if found is None:
            return self.estimate(program).seconds
        if found.seconds < worth:
            self._known[program.key] = found
        else:
            self._least[program.key] = found.seconds
        return found.seconds

    def _predict(self, program: StageProgram) -> Estimate:
        compiled = as_compiled(self.spec, program, self.parameters.superwords)
        walk = self.walk(compiled) if compiled is program else replace(self.walk(compiled), parameters=self._scalar_stores)
        program = compiled
        compute = self.compute_seconds(walk)
        levels = self._levels(walk, compute)
        body = self._body_seconds(walk, compute, levels)
        copies = sum(copy_seconds(self.rates, walk, s) for s in program.staged)
        overhead = self.launch_seconds(program) + self.overhead_seconds(walk)
        combine = combine_seconds(self.rates, program, walk.busy, walk.resident)
        tail = compute * (1.0 - walk.busy)
        moving = [(level.name, moved.seconds) for level, moved in zip(self.spec.levels[1:], levels, strict=True)]
        latency = sum(moved.waiting + moved.ahead for moved in levels)
        waits = (("tail", tail), ("latency", latency), ("copy", copies), ("combine", combine), ("overhead", overhead))
        shown = (("compute", compute - tail), *moving, *waits)
        used = (("units", walk.busy), ("chains", self.chain_efficiency(walk)))
        return Estimate(body + copies + combine + overhead, shown, used)

    def walk(self, program: StageProgram) -> NestWalk:
        """Returns the walk over the program's loops, from which traffic is computed."""
        return NestWalk(program, self.spec, self.geometry, self.parameters, self.most_resident, self._issued)

    def compute_seconds(self, walk: NestWalk) -> float:
        """Computes the seconds of padded work at the rate of the atom, its independent accumulators and the busy units."""
        program, resident, issued = walk.program, walk.resident, self._issued
        atom = program.atom
        points = float(executed_points(program, program.covered, program.executed))
        slots = self.point_slots(atom)
        rate = atom.gflops * 1e9 / 2 * self.chain_efficiency(walk) * walk.busy
        waiting = issued.waiting(program, resident)
        longer = self._start_up(program) * idle_lanes(program, self.spec, resident) * issued.crowding(program, self.slots)
        points *= self.computed_share(program)
        computed = points * slots * longer * (waiting if program.nest.before else 1.0) / rate
        alone = issued.alone_seconds(program, slots, resident)
        return max(computed, alone) + waiting * self.epilogue_slots / (self.rates.function_slots * walk.busy)

    @cached_property
    def padded(self) -> tuple[PaddedWindow, ...]:
        """The windows of which generated code may leave out taps."""
        return padded_windows(self.geometry.nest) if self.parameters.skips_padding else ()

    def skipped(self, program: StageProgram) -> Sequence[PaddedWindow]:
        """Returns the windows of which a program leaves out taps."""
        return tuple(padded_loops(program).values()) if self.padded else ()

    def computed_share(self, program: StageProgram) -> float:
        """Returns the share of a program's steps that are computed; its loops leave out the others."""
        return float(computed_taps(program, program.inner, self.parameters.registers, self.skipped(program)))

    def _start_up(self, program: StageProgram) -> float:
        """Returns the factor by which loading its stationary block lengthens a streamed atom; 1 for others."""
        atom = program.atom
        stream = next((d for r, d in program.mapping if atom.extents[r] == "stream"), None)
        if atom.row_cycles is None or stream is None:
            return 1.0
        # With the atom as innermost tile the stationary block stays while the tile around it streams through.
        around = program.tiles[-2] if len(program.tiles) > 1 else program.nest.extents
        rows = program.inner[stream] if program.levels[-1] < len(self.spec.levels) else around[stream]
        return float(formulas.start_up(atom, rows))

    def chain_efficiency(self, walk: NestWalk) -> float:
        """Returns a unit's live independent accumulators (chains) over those in flight at peak; 1 without a reduction."""
        program = walk.program
        if program.nest.stage.reducer is None or not program.nest.reduce:
            return 1.0
        chains = program.atom.chains or self.spec.unit.chains
        live: float = accumulating(program, program.inner)
        return min(1.0, live * max(self._workers(program), 1) * walk.resident / chains)

    def _workers(self, program: StageProgram) -> int:
        """Returns the sub-tiles that run at a time: those on lanes.

        Where atoms lie directly in the unit's tile, with no level between, these are as many as the unit has lanes. A unit without
        lanes interleaves its results, as many as it needs to avoid stalls.
        """
        if program.levels[-1] < len(self.spec.levels) or len(program.tiles) < 2:
            return program.lanes
        lanes = self.spec.unit.lanes_max
        shared = range(len(program.inner)) if lanes > 1 else program.nest.spatial
        parts = math.prod([-(-program.unit_tile[i] // program.inner[i]) for i in shared])
        return min(lanes, parts) if lanes > 1 else parts

    def _body_seconds(self, walk: NestWalk, compute: float, levels: Sequence[_Moving]) -> float:
        """Computes the seconds of compute and of transfers into all levels, overlapped, plus the waits that nothing hides.

        What is lost from row to row, and at the starts of prefetched rows, counts as traffic of its level. The result is at least
        the time of dispatching the tiles.
        """
        program = walk.program
        outside, *inside = [moved.seconds + moved.ahead for moved in levels]
        if program.atom.in_turn and program.lane_level is not None:
            compute, inside = compute + sum(inside), [0.0] * len(inside)
        body: float = formulas.overlapped((compute, outside, *inside), max(1, self.steps(walk)), self.losses(walk))
        handed_out = program.unit_tiles * self.spec.unit.dispatch_ns * 1e-9 if program.dealt else 0.0
        return max(handed_out, body + sum([moved.waiting for moved in levels]))

    def steps(self, walk: NestWalk) -> int:
        """Returns the steps of one unit's pipeline: the trips over time inside a unit tile.

        With unstaged reads, each lane's points along the reduction count as steps, too. Where a tile begins before the previous one
        ends, the steps of all tiles of a unit count: several tiles are resident, or producers prefetch from one tile to the next.
        """
        program, unit = walk.program, self.spec.unit
        steps = math.prod(lp.trips for lp in program.loops if lp.over == "time")
        if program.lane_level is None:
            return steps
        if not program.staged:
            steps *= math.prod([program.inner[i] for i in program.nest.reduce])
        several = walk.resident > 1 or self._runs_ahead(program)
        return steps * -(-program.unit_tiles // (unit.count * walk.resident)) if several else steps

    def _levels(self, walk: NestWalk, compute: float) -> list[_Moving]:
        """Returns the times of all levels but the outermost one."""
        levels = [self._level_seconds(walk, index, compute) for index in range(1, len(self.spec.levels))]
        for index in range(1, len(self.spec.levels)):
            inside = max([moved.seconds for moved in levels[index:]], default=0.0)
            waited = waiting_seconds(self.rates, walk, index, max(compute, inside), levels[index - 1].seconds)
            if waited:
                levels[index - 1] = replace(levels[index - 1], waiting=waited)
        return levels

    def _level_seconds(self, walk: NestWalk, index: int, compute: float) -> _Moving:
        program, level = walk.program, self.spec.levels[index]
        into = self.rates.into(level, walk.busy)
        if index == program.levels[-1] and program.lane_level is None and level.managed and program.atom.loads:
            return _Moving(self.registers.bytes(program, level.transaction_bytes, self.computed_share(program)) / into, 0.0, 0.0)
        traffic = level_traffic(walk, index)
        if level.managed or program.lane_level is not None:  # lanes hide one another's latency
            short = self._short_runs(walk) if index == 1 and not level.managed else 1.0
            return _Moving((traffic.bytes * short + self._filling_bytes(walk, index)) / into, 0.0, 0.0)
        start = level.latency_ns * 1e-9 / (self.spec.unit.count * walk.busy * self.parameters.misses_in_flight)
        moving = traffic.bytes / into
        lost = formulas.lost_seconds(moving, traffic.lost / into, compute)
        return _Moving(moving, (traffic.runs - traffic.ahead) * start, traffic.ahead * start + lost)

    def _short_runs(self, walk: NestWalk) -> float:
        """Returns the factor by which short contiguous runs, as a unit requests them, slow down the outermost memory."""
        inside = level_traffic(walk, walk.program.levels[0])
        return 1.0 + self.parameters.run_bytes * inside.runs / inside.bytes if inside.bytes else 1.0

    def _filling_bytes(self, walk: NestWalk, index: int) -> float:
        """Returns the bytes of panel fills that pass the same memory ports as the panel reads of lanes or atoms."""
        program, last = walk.program, len(self.spec.levels) - 1
        if index != last or program.lane_level != last or not program.staged or self.parameters.serial_cycles <= 1:
            return 0.0
        return level_traffic(walk, program.levels[0]).lines * self.spec.levels[last].transaction_bytes

    def losses(self, walk: NestWalk) -> Sequence[float]:
        """Returns the overlap numbers of compute and of the levels (`formulas.losses`).

        Operands that atoms read in place are a part of computing: copies then hide a late fill of all levels.
        """
        program, last = walk.program, len(self.spec.levels) - 1
        managed = {s.level for s in program.staged if s.level and self.spec.levels[s.level].managed}
        copies = min([walk.copies_around(level) for level in managed]) * walk.resident if managed else 2
        staged = last if self.spec.in_place(program.atom) else max((s.level for s in program.staged), default=0)
        return formulas.losses(self.spec, staged, copies)

    def _runs_ahead(self, program: StageProgram) -> bool:
        """True if producer lane groups fill the panels that atoms read in place (warp specialisation).

        The panels of a unit's next tile then arrive while it computes the previous one.
        """
        several = min([s.depth for s in program.staged], default=0) > 1
        return several and program.lane_level is not None and self.spec.in_place(program.atom)

    def point_slots(self, atom: ComputeAtom) -> float:
        """Returns the issue slots of one point: those of the stage's body, or one of an atom that sums products."""
        return 1.0 if atom.sums else self.slots

    def floor_seconds(self, program: StageProgram) -> float:
        """Returns the seconds of compute with all chains busy: no tile around this innermost one is faster."""
        points = float(executed_points(program, program.covered, program.executed))
        share = float(computed_taps(program, program.inner, self.parameters.registers, self.padded))
        return points * share * self.point_slots(program.atom) / (program.atom.gflops * 1e9 / 2)

    @cached_property
    def compulsory_seconds(self) -> float:
        """Seconds of the compulsory traffic: every array moves once, from a cold start, into the level where that takes longest."""
        whole = {a.tensor.name: a.tensor.nbytes for a in self.geometry.nest.accesses}
        return max([sum(whole.values()) / self.rates.into(level, 1.0) for level in self.spec.levels[1:]], default=0.0)

    def launch_seconds(self, program: StageProgram) -> float:
        """Returns the seconds of starting the units, if there is more than one unit tile (known once the outermost tile is).

        Units with lanes are started even for one tile, as the calling processor has no lanes.
        """
        unit, started = self.spec.unit, program.unit_tiles > 1 or program.lane_level is not None
        return (unit.launch_overhead_us + (program.dispatch.cluster > 1) * unit.cluster_overhead_us) * 1e-6 if started else 0.0

    def overhead_seconds(self, walk: NestWalk) -> float:
        """Computes the seconds of dispatching tiles, starting and finishing accumulators, and setting up every step."""
        program, working = walk.program, walk.working
        tiles = math.prod([-(-program.nest.extents[i] // program.inner[i]) for i in program.nest.spatial])
        operations = _visit_operations(program) if program.nest.stage.reducer is not None else None
        around = formulas.around_tiles(self.parameters, tiles, operations, program.accumulator_visits, program.unit_tiles, working)
        steps = sum(
            _trips_to(program, level) / working * lv.step_overhead_ns * 1e-9
            for level, lv in enumerate(self.spec.levels)
            if lv.step_overhead_ns and level in program.levels and (program.staged or program.lane_level is None)
        )
        return float(around) + steps + fold_seconds(self.rates, program, walk.busy) + self._store_seconds(walk)

    def _store_seconds(self, walk: NestWalk) -> float:
        """Returns the seconds of storing the results of unit tiles that no compute overlaps."""
        if self.parameters.store_accesses is None:
            return 0.0
        program, level = walk.program, self.spec.levels[-1]
        stored = program.unit_tiles * self.parameters.store_accesses(program) * level.transaction_bytes
        rate: float = self.rates.into(level, max(walk.busy, 1e-9))
        return stored / rate


def estimate(
    program: RProgram, spec: HardwareSpec, parameters: CostParameters, most_resident: Sequence[int | None] = ()
) -> Estimate:
    """Predicts a whole program: its stages run one after another, so their terms add up.

    `most_resident`: for each stage the occupancy limit, in tiles for each unit, where that is known.
    """
    own = parameters.own_model(program, math.inf) if parameters.own_model is not None and len(program.stages) > 1 else None
    if own is not None:
        return own
    most = most_resident or [None] * len(program.stages)
    parts = [Model(spec, parameters, Geometry(s.nest), n).estimate(s) for s, n in zip(program.stages, most, strict=True)]
    return combine_estimates(parts)


def executed_points(program: StageProgram, covered: Sequence[int], executed: Extents) -> Value:
    """Returns the points executed, in whole atoms: a vector wider than its dimension still takes a full slot.

    `covered`: the extents of all tiles together. `executed`: the tile whose whole multiples run, or an array of such tiles.
    """
    roles = program.atom.extents
    atom = [1] * len(covered)
    for role, dim in program.mapping:
        extent = roles[role]
        atom[dim] = extent if isinstance(extent, int) else 1
    points: Value = math.prod([e for role, e in roles.items() if isinstance(e, int) and program.role(role) is None])
    for extent, tile, step in zip(covered, executed, atom, strict=True):
        points = points * (-(-extent // tile) * (-(-tile // step) * step))
    return points


def _visit_operations(program: StageProgram) -> float:
    """Returns the atom operations of one visit to an innermost tile: its steps (reduce trips inside all spatial ones) × atoms."""
    loops, dims = program.loops, program.nest.dims
    last = max((i for i, lp in enumerate(loops) if not dims[lp.dim].is_reduce), default=-1)
    return float(math.prod([lp.trips for lp in loops[last + 1 :]]) * accumulating(program, program.inner))


def _trips_to(program: StageProgram, level: int) -> int:
    return math.prod(lp.trips for lp in program.loops if lp.level <= level and lp.over != "lanes")
