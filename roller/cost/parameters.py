"""What a chip does a second, for the units that work; and the cost parameters that no spec holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.target.hardware import HardwareSpec, MemoryLevel

TRANSPOSE_SLOTS = 1.5  # issue slots an element for exchanging parts of two vectors: three shuffles for two results


@dataclass(frozen=True)
class Unrolling:
    """How often what a device prints repeats the body of a loop. `most`: multiply-adds of a lane that may stand one after another;
    `least`: so many do where steps are short, be it more of them than `MOST_UNROLLED`. `atoms`: matrix atoms of a group of lanes
    that may stand one after another; 0: the compiler decides.
    """

    most: int = 1024
    least: int = 0
    atoms: int = 0


OwnRating = Callable[[StageProgram | RProgram, float], Estimate | None]


@dataclass(frozen=True)
class CostParameters:
    """What the model needs beyond the spec; a device may supply its own.

    `tile_overhead_ns`: starting and finishing one accumulator tile; picking it up again later costs twice that.
    Visits of at most `short_visit` atom operations cost none of it: their ends are foreseen, and the next visit overlaps.
    `trip_overhead_ns`: one trip of the loops around the innermost tile. `unit_overhead_ns`: handing a tile to a unit.
    `scratch_overhead_ns`: taking and returning the room in which a unit tile's accumulators wait between visits.
    `misses_in_flight`: memory latencies that overlap in one unit (line-fill buffers).
    `read_streams`, `write_streams`: rows side by side that are fetched ahead, and that wait for the rest of their transactions.
    `warm`: the share of a problem that a cache with room for all of it holds from before: what made it, or the last call.
    `gather_slots`: issue slots to place one element that is not contiguous into a vector.
    `copy_slots`: issue slots of one load or store of a copy.
    `operation_slots`: issue slots of operations of which the device's own functions take other ones than `roller.cost.operations`
    says.
    `fill_slots`: issue slots of a lane for one access with which it fills a panel, where units have few (`issue_groups`);
    `place_slots`: what it takes more where its place does not follow from the one before, `guard_slots`: and where it may lie
    outside the array; `step_slots`: for each step besides. `serial_cycles`: from one instruction of a group of lanes to the next
    that depends on it, as those that fill panels do; `dependent_cycles`: the same of lanes that hold
    whole rows; `arithmetic_cycles`: from one
    multiply-add of a group to its next, in cycles in which its partition starts one. `copy_sizes`: bytes of accesses that run by
    themselves on their way into a panel; other values are carried by lanes, `carried` of them at a time, each of which waits for
    memory.
    `unrolling`: how often steps are repeated. `lanes_wait`: lanes wait for what they read of panels at the start of every body of
    repeated steps, as what prints or builds kernels does not read it before the last one ends; `begin_ns`: and for one another,
    and for instructions that depend on one another, until the first of them computes after panels were filled.
    `own_model`: rates programs of stages with all their tiles, and whole ones, instead of the core's model; what it gives no
    estimate for, the core rates. Its second argument: seconds from which on it need not be exact (`Model.seconds_below`).
    `resident_tiles`: tiles of a stage's program that a unit has room for at a time, as a device predicts it that knows more of what
    lanes hold than the core does; asked for the programs that are offered, not for every one that is ranked.
    `fill_waits`: latencies, one after another, that filling one copy of all panels of a stage's program takes, where some lanes of
    a unit do nothing else; asked for every program that is ranked. 1 where it is not given: all of it is under way at once.
    `reading_bytes`: of what a lane reads where nobody staged it, those that are on their way at a time; 0: all that it reads for
    the steps that stand one after another, and others' arithmetic hides the waiting.
    `scattered_stores`: how many times as long a line takes of which a group of lanes writes less than a transaction of the memory.
    `crew_slots`: issue slots, one after another, of a lane that does nothing but fill panels, for one copy of all of them; 0 where
    none carries anything.
    `row_bytes`: rows of arrays that start at multiples of so many bytes are copied whole by what copies into panels, others element
    by element; 0: it makes no difference.
    `store_accesses`: accesses of the innermost memory, each a transaction of it, that storing the results of one unit tile takes
    while nothing that the unit does hides it; asked for every program that is ranked. None where it is not given: others hide it.
    `run_bytes`: bytes that the outermost memory brings in the time that a run of neighbours takes beside its own bytes, as a unit
    with lanes asks for it.
    `row_groups`: what prints kernels prints one for several stages over the same rows (`roller.ir.row_groups`), too.
    """

    tile_overhead_ns: float = 0.0
    short_visit: int = 0
    trip_overhead_ns: float = 0.0
    unit_overhead_ns: float = 0.0
    scratch_overhead_ns: float = 0.0
    misses_in_flight: int = 10
    read_streams: int = 8
    write_streams: int = 4
    warm: float = 0.0
    gather_slots: float = 1.0
    copy_slots: float = 1.0
    operation_slots: Mapping[str, float] = field(default_factory=dict)
    fill_slots: float = 0.0
    place_slots: float = 0.0
    guard_slots: float = 0.0
    step_slots: float = 0.0
    serial_cycles: float = 1.0
    dependent_cycles: float = 1.0
    arithmetic_cycles: float = 1.0
    copy_sizes: frozenset[int] = frozenset()
    carried: int = 8
    unrolling: Unrolling = field(default_factory=Unrolling)
    lanes_wait: bool = False
    begin_ns: float = 0.0
    own_model: OwnRating | None = None
    resident_tiles: Callable[[StageProgram], int] | None = None
    fill_waits: Callable[[StageProgram], int] | None = None
    reading_bytes: int = 0
    scattered_stores: float = 1.0
    crew_slots: Callable[[StageProgram], float] | None = None
    row_bytes: int = 0
    store_accesses: Callable[[StageProgram], float] | None = None
    run_bytes: float = 0.0
    row_groups: bool = False

    def room(self, program: RProgram) -> list[int | None]:
        """For each stage what `resident_tiles` says of it; None where nothing is known."""
        return [None if self.resident_tiles is None else self.resident_tiles(stage) for stage in program.stages]


@dataclass(frozen=True)
class Deferred:
    """What a function of a device's module says of a stage's program on a chip: of one that whoever only looks at chips does
    without, such as a module that loads a compiler. It is imported when it is asked first; the same chip has the same answers.
    """

    module: str
    function: str
    spec: HardwareSpec

    def __call__(self, program: StageProgram) -> Any:
        """The answer."""
        return getattr(import_module(self.module), self.function)(self.spec, program)


@dataclass
class Rates:
    """Rates of one chip: bytes a second into its levels, element operations a second."""

    spec: HardwareSpec
    parameters: CostParameters
    _last: tuple[StageProgram, float] | None = None

    def busy(self, program: StageProgram) -> float:
        """The share of the units that works, as `unit_efficiency`; remembered for the program asked about last."""
        if self._last is None or self._last[0] is not program:
            self._last = program, unit_efficiency(program, self.spec)
        return self._last[1]

    def into(self, level: MemoryLevel, busy: float) -> float:
        """Bytes a second into a level when this share of the units works."""
        assert level.bandwidth_gbps is not None
        if not self.spec.shared(level):
            return level.bandwidth_gbps * 1e9 * busy
        drawn = level.unit_bandwidth_gbps * self.spec.unit.count * busy if level.unit_bandwidth_gbps else math.inf
        return min(level.bandwidth_gbps, drawn) * 1e9

    def from_outside(self, busy: float) -> float:
        """Bytes a second from the outermost level through to the outermost tiled one: the slowest on the way."""
        levels = self.spec.levels[1 : tiled_levels(self.spec)[0] + 1]
        return min(self.into(level, busy) for level in levels if level.bandwidth_gbps is not None)

    @cached_property
    def near_bytes(self) -> int:
        """The largest copy for the whole problem that does not travel to the outermost memory and back: what a cache inside
        the last one holds. The last cache gives up what is written, line by line, for what is fetched to be written over.
        """
        return max((level.usable_bytes for level in self.spec.levels[2:] if not level.managed), default=0)

    @cached_property
    def vector_slots(self) -> float:
        """Element operations a second of the widest vectors."""
        return max((a.gflops for a in self.spec.atoms if a.kind != "matrix"), default=math.inf) * 1e9 / 2

    @cached_property
    def function_slots(self) -> float:
        """Those in float32, in which operators compute halves, too."""
        found = [a.gflops for a in self.spec.atoms if a.kind != "matrix" and a.acc_dtype == "float32"]
        return max(found) * 1e9 / 2 if found else self.vector_slots


def unit_efficiency(program: StageProgram, spec: HardwareSpec) -> float:
    """Useful work over the work of all units if each had the largest share: idle units, uneven last rounds, cut-off tiles."""
    units, tiles = spec.unit.count, program.unit_tiles
    if not tiles:
        return 1.0
    share = -(-tiles // units)
    if program.lane_level is not None or units == 1 or tiles == 1:
        return tiles / (units * share)  # lanes run whole tiles, the last one too
    return _first(program, tiles) / (units * _first(program, share))


def _first(program: StageProgram, tiles: int) -> int:
    """Points of the units' dimensions in their first so many tiles. Cut-off tiles are the last of their loop, and units take
    consecutive ones, so that the first share is the largest.
    """
    over = [lp for lp in program.loops if lp.over == "units"]
    extents = [program.nest.extents[lp.dim] for lp in over]
    found, around, inside = 0, 1, program.unit_tiles
    for position, loop in enumerate(over):
        inside //= loop.trips
        whole, tiles = divmod(tiles, inside)
        done = min(whole * program.step(loop), extents[position])
        found += around * done * math.prod(extents[position + 1 :])
        around *= min(program.step(loop), extents[position] - done)
    return found
