"""The rates of a chip for its busy units, and the cost parameters that no spec holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from importlib import import_module
from typing import Any

from roller.ir.elementwise import Value, least
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.target.hardware import HardwareSpec, MemoryLevel

TRANSPOSE_SLOTS = 1.5  # issue slots per element of one transpose step on two vectors: three shuffles for two results


@dataclass(frozen=True)
class Unrolling:
    """How far a device's generated code unrolls the body of a loop.

    `most`: multiply-adds of a lane in an unrolled body. `least`: the same where steps are short, even if that takes more than
    `MOST_UNROLLED` of them. `atoms`: matrix atoms of a lane group in an unrolled body; 0: the compiler decides.
    """

    most: int = 1024
    least: int = 0
    atoms: int = 0


PREFETCH_REGISTERS = 192  # of a lane, for accumulators and prefetched values; the others hold operands and addresses
PLACE_REGISTERS = 0.5  # of an array address that follows from another one, for compilers that find it

OwnRating = Callable[[StageProgram | RProgram, float], Estimate | None]


@dataclass(frozen=True)
class CostParameters:
    """The numbers that the model needs beyond the spec; a device may supply its own.

    `tile_overhead_ns`: starting and finishing one accumulator tile; resuming it later costs twice that.
    `short_visit`: atom operations in flight at a visit's end, which the next visit overlaps; 0: visits do not overlap.
    `trip_overhead_ns`: one trip of the loops around the innermost tile. `unit_overhead_ns`: handing a tile to a unit.
    `scratch_overhead_ns`: allocating and freeing the buffer of a unit tile's accumulators between visits.
    `misses_in_flight`: memory latencies that overlap in one unit (line-fill buffers).
    `read_streams`: rows side by side that are prefetched. `write_streams`: written rows that collect whole transactions.
    `superwords`: neighbours in an unrolled tile of scalars of which the compiler makes a vector (superword-level parallelism, SLP);
    0: it makes none.
    `write_allocate`: a store to a line that no cache holds fetches the line from memory first.
    `past_caches`: arrays whose whole lines the code generator stores past the caches, if vectors do: such stores do not wait.
    `past_run_bytes`: a shorter run of such stores takes as long as this many bytes.
    `prefetched`: the inputs whose rows a program's kernel requests ahead; for explanations.
    `warm`: the share of a problem that a cache with room for all of it holds beforehand, from its producer or from the last call.
    `registers`: vector registers in which generated code keeps a step with all taps of a window; 0: it takes one tap a step.
    `skips_padding`: generated code leaves out taps of windows outside the array, where these add nothing.
    `gather_slots`: issue slots of inserting one non-contiguous element into a vector.
    `copy_slots`: issue slots of one load or store of a copy.
    `operation_slots`: issue slots of operations where the device's own functions differ from `roller.cost.operations`.
    `fill_slots`: a lane's issue slots for one access that fills a panel, where units have a limited issue rate (`issue_groups`).
    `place_slots`: its additional slots where its address does not follow from the one before.
    `guard_slots`: its additional slots where it may lie outside the array. `step_slots`: additional slots for each step.
    `serial_cycles`: cycles from one instruction of a lane group to the next dependent one, as in panel fills.
    `dependent_cycles`: the same for lanes that hold whole rows.
    `arithmetic_cycles`: from one multiply-add of a lane group to its next, in cycles in which its partition issues one.
    `copy_sizes`: access sizes in bytes of asynchronous copies into a panel; lanes carry values of other sizes in registers.
    `carried`: values that a lane carries at a time; each such round waits for memory.
    `prefetch_registers`: registers of a lane for accumulators and for what it prefetches from step to step, where it copies panels
    through registers; a kernel that needs more fills them in turn with their use. 0: any number. `place_registers`: those of the
    address of one such access.
    `unrolling`: how far steps are unrolled.
    `lanes_wait`: lanes wait for their panel reads at the start of every unrolled body, as the code generator or the compiler does
    not move these reads ahead of the last body's end.
    `begin_ns`: the time after a panel fill until the first of these bodies computes: lanes wait for one another, and for dependent
    instructions.
    `own_model`: the device's own model, for programs of stages with all their tiles and for whole programs. Where it gives no
    estimate, the core's model does. Its second argument: the seconds from which on it need not be exact (`Model.seconds_below`).
    `resident_tiles`: the occupancy limit of a stage's program in tiles for each unit, from a device that models lane storage in
    more detail than the core. It is called for the programs that are offered, not for every ranked one.
    `copies`: the copies (buffers) that a stage's kernel keeps of a panel that it fills from step to step; fewer than the program's
    where lanes prefetch through registers and have too few. It is called as `resident_tiles` is.
    `fill_waits`: latencies, one after another, of filling one copy of all panels of a stage's program by producer lanes. It is
    called for every ranked program. Without it the number is 1: all fills are in flight at once.
    `reading_bytes`: bytes of a lane's unstaged reads that are in flight at a time; 0: all reads of an unrolled body, and other
    lanes' arithmetic hides the waiting.
    `scattered_stores`: the factor on a line's time if a lane group writes less of it than one transaction of the memory.
    `crew_slots`: issue slots, one after another, of a producer lane for one copy of all panels; 0 where no lane carries data.
    `row_bytes`: rows of arrays that start at multiples of this many bytes are copied whole into panels, others element by element;
    0: it makes no difference.
    `store_accesses`: accesses of the innermost memory, one transaction each, for storing the results of one unit tile, where no
    other work of the unit hides them. It is called for every ranked program. None: other work hides the stores.
    `run_bytes`: the overhead of a contiguous run, as a unit with lanes requests it, in bytes that the outermost memory could
    transfer in that time.
    `row_groups`: the code generator also supports one kernel for several stages over the same rows (`roller.ir.row_groups`).
    """

    tile_overhead_ns: float = 0.0
    short_visit: int = 0
    registers: int = 0
    skips_padding: bool = False
    trip_overhead_ns: float = 0.0
    unit_overhead_ns: float = 0.0
    scratch_overhead_ns: float = 0.0
    misses_in_flight: int = 10
    read_streams: int = 8
    write_streams: int = 4
    superwords: int = 0
    write_allocate: bool = False
    past_caches: frozenset[str] = frozenset()
    past_run_bytes: int = 0
    prefetched: Callable[[StageProgram], tuple[str, ...]] | None = None
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
    prefetch_registers: int = 0
    place_registers: float = PLACE_REGISTERS
    unrolling: Unrolling = field(default_factory=Unrolling)
    lanes_wait: bool = False
    begin_ns: float = 0.0
    own_model: OwnRating | None = None
    resident_tiles: Callable[[StageProgram], int] | None = None
    copies: Callable[[StageProgram], int] | None = None
    fill_waits: Callable[[StageProgram], int] | None = None
    reading_bytes: int = 0
    scattered_stores: float = 1.0
    crew_slots: Callable[[StageProgram], float] | None = None
    row_bytes: int = 0
    store_accesses: Callable[[StageProgram], float] | None = None
    run_bytes: float = 0.0
    row_groups: bool = False

    def room(self, program: RProgram) -> list[int | None]:
        """Returns `resident_tiles` of each stage, None where the device does not supply it."""
        return [self.room_of(stage) for stage in program.stages]

    def room_of(self, stage: StageProgram) -> int | None:
        """Returns `resident_tiles` of one stage, None where the device does not supply it."""
        return None if self.resident_tiles is None else self.resident_tiles(stage)


@dataclass(frozen=True)
class Deferred:
    """A function of a device's module for a stage's program on one chip, imported at the first call.

    Listing chips does not need such a module, which may load a compiler. Equal chips have equal results.
    """

    module: str
    function: str
    spec: HardwareSpec

    def __call__(self, program: StageProgram) -> Any:
        """Returns the function's result for this chip and program."""
        return getattr(import_module(self.module), self.function)(self.spec, program)


@dataclass
class Rates:
    """Rates of one chip: bytes a second into its levels, element operations a second."""

    spec: HardwareSpec
    parameters: CostParameters

    def into(self, level: MemoryLevel, busy: Value) -> Value:
        """Returns the bytes a second into a level when this share of the units is busy."""
        assert level.bandwidth_gbps is not None
        if not self.spec.shared(level):
            return level.bandwidth_gbps * 1e9 * busy
        drawn = level.unit_bandwidth_gbps * self.spec.unit.count * busy if level.unit_bandwidth_gbps else math.inf
        return least(level.bandwidth_gbps, drawn) * 1e9

    def from_outside(self, busy: Value) -> Value:
        """Returns the bytes a second from the outermost level to the outermost tiled one: those of the slowest level between."""
        levels = self.spec.levels[1 : tiled_levels(self.spec)[0] + 1]
        return reduce(least, [self.into(level, busy) for level in levels if level.bandwidth_gbps is not None])

    @cached_property
    def near_bytes(self) -> int:
        """The bytes of the largest whole-problem copy that stays out of the outermost memory.

        A cache inside the last one has to hold it. The last cache evicts written lines one by one for the lines that are fetched to
        be overwritten (write-allocate).
        """
        return max((level.usable_bytes for level in self.spec.levels[2:] if not level.managed), default=0)

    @cached_property
    def vector_slots(self) -> float:
        """Element operations a second of the widest vectors."""
        return max((a.gflops for a in self.spec.atoms if not a.sums), default=math.inf) * 1e9 / 2

    @cached_property
    def function_slots(self) -> float:
        """Element operations a second in float32, in which operators compute fp16, too."""
        found = [a.gflops for a in self.spec.atoms if not a.sums and a.acc_dtype == "float32"]
        return max(found) * 1e9 / 2 if found else self.vector_slots
