"""The micro-performance model: seconds for one program, with the terms it is made of.

    body    = sum over s steps of the per-step terms, overlapped: sum t + (s - 1) (max t + L (sum t - max t)) for per-step t
    seconds = launch + copies into panels + body + combine + step overheads

Terms are compute and the time to move bytes into each level. L is the overlap number (0: perfect, 1: none). Padding is
charged as work. The numbers rank programs; they are predictions, not measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from roller.hardware import HardwareSpec, MemoryLevel
from roller.nest import Access
from roller.program import RProgram, StageProgram, Staging, copy_depth, tiled_levels
from roller.slots import body_slots, epilogue_slots
from roller.tile import Geometry
from roller.traffic import NestWalk, level_traffic

TRANSPOSE_SLOTS = 1.5  # issue slots an element for exchanging parts of two vectors: three shuffles for two results
DECODE_TRIPS = 2  # trips of a loop that dividing an index by a known extent takes as long as, remainder included
ROW_TRIPS = 6  # loops around one row of a box: the row itself, three spans of it, a vector and an element loop


@dataclass(frozen=True)
class CostParameters:
    """What the model needs beyond the spec; a device may supply its own.

    `tile_overhead_ns`: starting and finishing one accumulator tile; picking it up again later costs twice that.
    Visits of at most `short_visit` atom operations cost none of it: their ends are foreseen, and the next visit overlaps.
    `trip_overhead_ns`: one trip of the loops around the innermost tile. `unit_overhead_ns`: handing a tile to a unit.
    `misses_in_flight`: memory latencies that overlap in
    one unit (line-fill buffers).
    `gather_slots`: issue slots to place one element that is not contiguous into a vector.
    """

    tile_overhead_ns: float = 0.0
    short_visit: int = 0
    trip_overhead_ns: float = 0.0
    unit_overhead_ns: float = 0.0
    misses_in_flight: int = 10
    gather_slots: float = 1.0
    copy_slots: float = 1.0


@dataclass(frozen=True)
class Estimate:
    """A prediction: total seconds, the seconds of each term, and the term that bounds."""

    seconds: float
    terms: tuple[tuple[str, float], ...]
    utilisation: tuple[tuple[str, float], ...] = ()

    @cached_property
    def bound_by(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=lambda t: t[1])[0] if self.terms else "nothing"

    def to_dict(self) -> dict[str, object]:
        """Plain data for reports."""
        return {
            "seconds": self.seconds,
            "bound_by": self.bound_by,
            "terms": dict(self.terms),
            "utilisation": dict(self.utilisation),
        }


@dataclass
class Model:
    """The model for one nest on one chip: remembers the sizes of data tiles across programs."""

    spec: HardwareSpec
    parameters: CostParameters
    geometry: Geometry
    _slots: float = field(init=False)
    _known: dict[tuple[object, ...], Estimate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slots = body_slots(self.geometry.nest.stage)

    def estimate(self, program: StageProgram) -> Estimate:
        """Predict one stage."""
        found = self._known.get(program.key)
        if found is None:
            found = self._known[program.key] = self._predict(program)
        return found

    def _predict(self, program: StageProgram) -> Estimate:
        walk = NestWalk(program)
        terms: dict[str, float] = {"compute": self.compute_seconds(program)}
        latency = 0.0
        for index, level in enumerate(self.spec.levels[1:], start=1):
            terms[level.name], waiting = self._level_seconds(walk, index)
            latency += waiting
        steps = max(1, _steps(program))
        body = overlapped(tuple(terms.values()), steps, self.overlap_loss(program))
        copies = sum(self._copy_seconds(walk, s) for s in program.staged)
        overhead = self.overhead_seconds(program)
        combine = self._combine_seconds(program)
        shown = (*terms.items(), ("latency", latency), ("copy", copies), ("combine", combine), ("overhead", overhead))
        used = (("units", unit_efficiency(program, self.spec)), ("chains", self.chain_efficiency(program)))
        return Estimate(body + latency + copies + combine + overhead, shown, used)

    def compute_seconds(self, program: StageProgram) -> float:
        """Padded work over the rate of the atom, of its chains and of the units that work."""
        nest, atom = program.nest, program.atom
        points = _atom_points(program)
        slots = self._slots if atom.kind != "matrix" else 1.0
        rate = atom.gflops * 1e9 / 2 * self.chain_efficiency(program) * unit_efficiency(program, self.spec)
        epilogue = math.prod(nest.extents[i] for i in nest.spatial) * epilogue_slots(nest.stage)
        vector = max((a.gflops for a in self.spec.atoms if a.kind != "matrix"), default=atom.gflops) * 1e9 / 2
        rows = self._start_up(program)
        group = self.spec.unit.lane_group
        idle = -(-program.lanes // group) * group / program.lanes if program.lane_level is not None and program.lanes else 1.0
        return points * slots * rows * idle / rate + epilogue / (vector * unit_efficiency(program, self.spec))

    def _start_up(self, program: StageProgram) -> float:
        """How much longer a streamed atom takes for loading its stationary block: (rows x row cycles + start-up) / rows."""
        atom = program.atom
        stream = next((d for r, d in program.mapping if atom.extents[r] == "stream"), None)
        if atom.row_cycles is None or stream is None:
            return 1.0
        # With the atom as innermost tile the stationary block stays while the tile around it streams through.
        around = program.tiles[-2] if len(program.tiles) > 1 else program.nest.extents
        rows = program.inner[stream] if program.levels[-1] < len(self.spec.levels) else around[stream]
        work = max(rows, 1) * atom.row_cycles
        return (work + atom.startup_cycles) / work

    def chain_efficiency(self, program: StageProgram) -> float:
        """Live accumulating operations of a unit against those in flight at peak; 1 without a reduction."""
        if program.nest.stage.reducer is None or not program.nest.reduce:
            return 1.0
        chains = program.atom.chains or self.spec.unit.chains
        live = accumulators(program) / _atom_outputs(program)
        return min(1.0, live * max(self._workers(program), 1) / chains)

    def _workers(self, program: StageProgram) -> int:
        """Sub-tiles that run at a time: those on lanes, or where a unit has lanes but no level for them, as many as it has."""
        if program.levels[-1] < len(self.spec.levels) or len(program.tiles) < 2:
            return program.lanes
        parts = math.prod([-(-t // i) for t, i in zip(program.unit_tile, program.inner, strict=True)])
        return min(self.spec.unit.lanes_max, parts)

    def _level_seconds(self, walk: NestWalk, index: int) -> tuple[float, float]:
        """Seconds to move bytes into a level, and seconds of latency that starting short runs does not hide."""
        program, level = walk.program, self.spec.levels[index]
        assert level.bandwidth_gbps is not None
        if index == program.levels[-1] and program.lane_level is None and level.managed and program.atom.kind != "matrix":
            moved, latency = self._register_bytes(program, level.transaction_bytes), 0.0
        else:
            traffic = level_traffic(walk, self.spec, self.geometry, index)
            waiting = self.spec.unit.count * unit_efficiency(program, self.spec) * self.parameters.misses_in_flight
            # Copies into managed levels are issued ahead; what they wait for is the step overhead.
            exposed = 0.0 if level.managed else traffic.runs * self.spec.levels[index - 1].latency_ns * 1e-9
            moved, latency = traffic.bytes, exposed / waiting / max(1.0, program.lanes / level.access_lanes)
        return moved / self._rate(level, unit_efficiency(program, self.spec)), latency

    def _rate(self, level: MemoryLevel, busy: float) -> float:
        """Bytes a second into a level when this share of the units works."""
        assert level.bandwidth_gbps is not None
        if not self.spec.shared(level):
            return level.bandwidth_gbps * 1e9 * busy
        drawn = level.unit_bandwidth_gbps * self.spec.unit.count * busy if level.unit_bandwidth_gbps else math.inf
        return min(level.bandwidth_gbps, drawn) * 1e9

    def _outside_rate(self, index: int, busy: float) -> float:
        """Bytes a second from the outermost level through to this one: the slowest on the way."""
        inwards = max(index, tiled_levels(self.spec)[0])
        return min(self._rate(level, busy) for level in self.spec.levels[1 : inwards + 1] if level.bandwidth_gbps is not None)

    def _register_bytes(self, program: StageProgram, transaction: int) -> float:
        """Bytes loaded into and stored from registers by units without lanes: whole vectors where an array is contiguous
        along the atom, one transaction an element where it is broadcast or gathered.
        """
        nest = program.nest
        steps = math.prod([-(-e // t) for e, t in zip(nest.extents, program.inner, strict=True)])
        spatial_steps = math.prod([-(-nest.extents[i] // program.inner[i]) for i in nest.spatial])
        passes = 2 * program.accumulator_visits - 1
        panels = {s.operand for s in program.staged if s.kind == "panel"}
        boxes = {s.operand for s in program.staged if s.kind == "box"}
        width = max((e for e in program.atom.roles.values() if isinstance(e, int)), default=1)
        total = 0.0
        for number, access in enumerate(nest.accesses):
            panel = access.factor in panels and access.role == "body"
            loads = self._vector_loads(program, number, panel, access.guarded and number not in boxes)
            times = steps if access.role == "body" else spatial_steps * (passes if access.role == "output" else 1)
            vector = width * access.element_bytes if program.lane is not None and access.touches[program.lane] else 0
            total += loads * times * max(transaction, vector)
        return total

    def _vector_loads(self, program: StageProgram, number: int, panel: bool, guarded: bool) -> float:
        """Load (or store) slots of one array for one innermost tile."""
        nest = program.nest
        access = nest.accesses[number]
        touched = math.prod([t for t, x in zip(program.inner, access.touches, strict=True) if x])
        lane = program.lane
        if lane is None or not access.touches[lane]:
            # Points along a fused dimension that is decoded are no constant step apart: each needs an address, loaded too.
            apart = any(s is None and t > 1 for s, t in zip(access.strides, program.inner, strict=True))
            return touched * (2 if apart and not panel else 1)
        width = program.atom.extents[program.mapping[0][0]]
        assert isinstance(width, int)
        whole, rest = divmod(program.inner[lane], width)
        vectors = touched / program.inner[lane] * (whole + 2 * rest.bit_count())  # a part of a vector moves in pieces
        if panel or (access.strides[lane] == 1 and not guarded):
            return vectors
        return touched * (1 + self.parameters.gather_slots) + (touched if access.strides[lane] is None or guarded else 0)

    def _copy_seconds(self, walk: NestWalk, staging: Staging) -> float:
        """Filling a panel or box: the larger of issuing the elements and moving them, for every trip of the loops outside."""
        if staging.constant or (self.spec.levels[staging.level].managed and staging.level):
            return 0.0  # a managed level is filled by the copies that its own term counts
        program, nest = walk.program, walk.program.nest
        depth = copy_depth(program, staging)
        tile = walk.tiles[depth]
        times = math.prod([lp.trips for lp in walk.loops[:depth]])
        if staging.kind == "box":
            sources, width = [staging.operand], nest.accesses[staging.operand].element_bytes
            elements = self.geometry.held(staging.operand, tile).tile.elements * times
        else:
            sources, width = [n for n, a in enumerate(nest.inputs) if a.factor == staging.operand], nest.accumulator_bytes
            elements = self.geometry.panel_elements(staging.operand, tile) * times
        units = unit_efficiency(program, self.spec) if staging.level else 1.0
        rows = times * (self.geometry.held(staging.operand, tile).runs if staging.kind == "box" else 0.0)
        issue = elements * self._copy_slots(program, staging) / (self._vector_rate() * units)
        trips = rows * ROW_TRIPS if staging.kind == "box" else self._slot_trips(program, staging, elements)
        issue += trips * self.parameters.trip_overhead_ns * 1e-9 / (self.spec.unit.count * max(units, 1e-9))
        level = self.spec.levels[max(1, staging.level)]
        read = sum(self.geometry.held(n, tile).moved(level.transaction_bytes) for n in sources) * times
        written = elements * width
        fits = staging.level > 0 or written <= self._near_bytes
        # What a copy inside the nest reads from further out is part of the traffic of those levels.
        rate = self._rate(level, units) if staging.level else self._outside_rate(1, units)
        launch = self.spec.unit.launch_overhead_us * 1e-6 if staging.level == 0 else 0.0
        return max(issue, (read + (0 if fits else 2 * written)) / rate) + launch

    @cached_property
    def _near_bytes(self) -> int:
        """The largest copy for the whole problem that does not travel to the outermost memory and back: what a cache inside
        the last one holds. The last cache gives up what is written, line by line, for what is fetched to be written over.
        """
        return max((level.usable_bytes for level in self.spec.levels[2:] if not level.managed), default=0)

    def _slot_trips(self, program: StageProgram, staging: Staging, elements: float) -> float:
        """Trips of the loops that fill a panel: one a slot, and two more for each division that decodes a fused reduction."""
        nest = program.nest
        touches = nest.factor_touches(staging.operand)
        mine = [a for a in nest.inputs if a.factor == staging.operand]
        slot = math.prod([t for t, x in zip(program.inner, touches, strict=True) if x])
        decoded = [i for i in nest.reduce if touches[i] and any(a.strides[i] is None for a in mine)]
        divisions = sum(len(nest.dims[i].members) - 1 for i in decoded)
        return elements / max(slot, 1) * (1 + DECODE_TRIPS * divisions)

    def _vector_rate(self) -> float:
        """Element operations a second of the widest vectors."""
        return max(a.gflops for a in self.spec.atoms if a.kind != "matrix") * 1e9 / 2

    def _copy_slots(self, program: StageProgram, staging: Staging) -> float:
        """Issue slots to copy one element: a load and a store, of vectors where source and copy are contiguous alike."""
        lane = program.lane
        width = max((e for e in program.atom.roles.values() if isinstance(e, int)), default=1)
        scalar, vector = 2.0 * width * self.parameters.copy_slots, 2.0 * self.parameters.copy_slots
        if staging.kind == "box":
            return vector
        mine = [a for a in program.nest.inputs if a.factor == staging.operand]
        if lane is None or not program.nest.factor_touches(staging.operand)[lane]:
            return scalar
        steps = [_lane_step(a, lane) for a in mine if a.touches[lane]]
        if any(step != 1 for step in steps):
            return vector + TRANSPOSE_SLOTS * math.log2(width) if self._transposes(program, mine) else scalar
        return vector if all(a.strides[lane] == 1 for a in mine if a.touches[lane]) else 2 * vector

    def _transposes(self, program: StageProgram, sources: list[Access]) -> bool:
        """True if blocks of vectors along a reduction can be transposed: one plain array, contiguous there."""
        along = [i for i in program.nest.reduce if program.inner[i] == 1]
        plain = len(sources) == 1 and not sources[0].guarded and program.lane not in program.nest.reduce
        return plain and sources[0].strides[program.lane or 0] is not None and any(sources[0].strides[i] == 1 for i in along)

    def level_terms(self, program: StageProgram, outermost: int) -> tuple[list[float], float]:
        """Seconds of moving data into the levels from this position inward, and of latency."""
        walk = NestWalk(program)
        pairs = [self._level_seconds(walk, i) for i in range(max(outermost, 1), len(self.spec.levels))]
        return [moving for moving, _ in pairs], sum([waiting for _, waiting in pairs])

    def overlap_loss(self, program: StageProgram) -> float:
        """The overlap number: 1 where a managed level holds one copy only, so that filling and using it take turns."""
        alone = any(s.depth == 1 and s.level and self.spec.levels[s.level].managed for s in program.staged)
        return 1.0 if alone else self.spec.overlap_loss

    def floor_seconds(self, program: StageProgram) -> float:
        """Compute with all chains busy: no tile around this innermost one is faster."""
        return _atom_points(program) * (self._slots if program.atom.kind != "matrix" else 1.0) / (program.atom.gflops * 1e9 / 2)

    def overhead_seconds(self, program: StageProgram) -> float:
        """Launching, handing out tiles, starting and finishing accumulators, and the set-up of every step."""
        unit = self.spec.unit
        tiles = math.prod([-(-program.nest.extents[i] // program.inner[i]) for i in program.nest.spatial])
        busy = unit.count * max(unit_efficiency(program, self.spec), 1e-9)
        visits = program.accumulator_visits
        overhead = self.parameters.tile_overhead_ns if _visit_operations(program) > self.parameters.short_visit else 0.0
        finish = overhead * (2 * visits - 1) if program.nest.stage.reducer is not None else 0.0
        around = (
            tiles * (finish + self.parameters.trip_overhead_ns * visits) + program.unit_tiles * self.parameters.unit_overhead_ns
        )
        steps = sum(
            _trips_to(program, level) / busy * lv.step_overhead_ns * 1e-9
            for level, lv in enumerate(self.spec.levels)
            if lv.step_overhead_ns and level in program.levels
        )
        launch = unit.launch_overhead_us * 1e-6 if program.unit_tiles > 1 else 0.0
        return launch + around * 1e-9 / busy + steps + self._fold_seconds(program)

    def _fold_seconds(self, program: StageProgram) -> float:
        """Combining the partial results in a vector's lanes: an exchange and an operation for each halving, and a store."""
        lane = program.lane
        if lane is None or not program.nest.dims[lane].is_reduce or program.lane_level is not None:
            return 0.0
        width = _atom_outputs(program)
        outputs = math.prod([program.nest.extents[i] for i in program.nest.spatial])
        slots = outputs * width * (2 * math.log2(width) + 1)
        return slots / (self._vector_rate() * max(unit_efficiency(program, self.spec), 1e-9))

    def _combine_seconds(self, program: StageProgram) -> float:
        """Adding partial results: over units a write, a read and one more launch; over lanes a tree of exchanges a tile."""
        outputs = math.prod([program.nest.extents[i] for i in program.nest.spatial])
        seconds = 0.0
        if program.split > 1:
            seconds += 2 * program.split * outputs * program.nest.accumulator_bytes / self._outside_rate(1, 1.0)
            seconds += self.spec.unit.launch_overhead_us * 1e-6 + self.spec.unit.sync_ns * 1e-9
        shared = math.prod([lp.trips for lp in program.loops if lp.over == "lanes" and program.nest.dims[lp.dim].is_reduce])
        if shared > 1:
            rounds = -(-program.unit_tiles // self.spec.unit.count)
            seconds += rounds * math.log2(shared) * self.spec.levels[-1].latency_ns * 1e-9
        return seconds


def estimate(program: RProgram, spec: HardwareSpec, parameters: CostParameters) -> Estimate:
    """Predict a whole program: its stages run one after another, so their terms add up."""
    parts = [Model(spec, parameters, Geometry(s.nest)).estimate(s) for s in program.stages]
    return combine_estimates(parts)


def combine_estimates(parts: list[Estimate]) -> Estimate:
    """The estimate of stages that run one after another."""
    if len(parts) == 1:
        return parts[0]
    terms: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.terms:
            terms[name] = terms.get(name, 0.0) + seconds
    return Estimate(sum(p.seconds for p in parts), tuple(terms.items()))


def overlapped(terms: tuple[float, ...], steps: int, loss: float) -> float:
    """Time of `steps` equal steps whose terms (given as totals) overlap: the first and last step are not hidden."""
    total, longest = sum(terms), max(terms, default=0.0)
    return total / steps + (steps - 1) / steps * (longest + loss * (total - longest))


def accumulators(program: StageProgram) -> int:
    """Accumulator elements of one innermost tile: its outputs, times reduce points that a vector atom keeps apart."""
    spatial = math.prod([program.inner[i] for i in program.nest.spatial])
    apart = program.lane is not None and program.nest.dims[program.lane].is_reduce
    return spatial * (math.prod(program.inner[i] for i in program.nest.reduce) if apart else 1)


def unit_efficiency(program: StageProgram, spec: HardwareSpec) -> float:
    """Useful work over the work of all units if each had the largest share: idle units and uneven last rounds."""
    units, tiles = spec.unit.count, program.unit_tiles
    return tiles / (units * -(-tiles // units)) if tiles else 1.0


def _atom_outputs(program: StageProgram) -> int:
    """Outputs of one atom: an accumulating operation is one atom."""
    size = 1
    for role, extent in program.atom.roles.items():
        if role != "k" and isinstance(extent, int):
            size *= extent
    return size


def _atom_points(program: StageProgram) -> int:
    """Points executed, in whole atoms: a vector that is wider than its dimension still takes a full slot."""
    roles = program.atom.extents
    atom = [1] * len(program.inner)
    for role, dim in program.mapping:
        extent = roles[role]
        atom[dim] = extent if isinstance(extent, int) else 1
    points = 1
    for extent, tile, step in zip(program.nest.extents, program.executed, atom, strict=True):
        points *= -(-extent // tile) * (-(-tile // step) * step)
    unmapped = [extent for role, extent in roles.items() if isinstance(extent, int) and program.role(role) is None]
    return points * math.prod(unmapped)


def _lane_step(access: Access, dim: int) -> int:
    """Address step between neighbours along the innermost member of a dimension."""
    steps = access.tensor.strides
    return sum(i.coefficient(access.innermost[dim]) * s for i, s in zip(access.index, steps, strict=True))


def _steps(program: StageProgram) -> int:
    """Steps of one unit's pipeline: the trips that follow one another inside a unit tile."""
    return math.prod(lp.trips for lp in program.loops if lp.over == "time")


def _visit_operations(program: StageProgram) -> float:
    """Atom operations of one visit to an innermost tile: its steps (reduce trips inside all spatial ones) times its atoms."""
    loops, dims = program.loops, program.nest.dims
    last = max((i for i, lp in enumerate(loops) if not dims[lp.dim].is_reduce), default=-1)
    return math.prod([lp.trips for lp in loops[last + 1 :]]) * accumulators(program) / _atom_outputs(program)


def _trips_to(program: StageProgram, level: int) -> int:
    return math.prod(lp.trips for lp in program.loops if lp.level <= level and lp.over != "lanes")
