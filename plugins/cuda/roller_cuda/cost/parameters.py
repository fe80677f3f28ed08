"""Cost parameters of NVIDIA GPUs that are not part of the spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from roller.plugin import (
    PREFETCH_REGISTERS,
    CostParameters,
    Deferred,
    HardwareSpec,
    StageProgram,
    Unrolling,
)

UNROLLING = Unrolling(least=256, atoms=192)  # a step with few of them has no work that hides the latency of its operands
ROW_BYTES = 16  # rows must be a multiple of this: for TMA boxes, and for the widest copy of a lane
BEGIN = 200  # cycles from a barrier to the first product of a step: 18 step loops, simulated (`roller_cuda.toolchain.cycles`)
FILL, APART, GUARD, STEP = 6.0, 14.0, 14.0, 50.0  # instructions of an access that fills a panel, and of a step
# Instructions of functions, read from their machine code; divisions and square roots are correctly rounded.
SLOTS = {
    "exp": 7.0,
    "tanh": 14.0,
    "sigmoid": 9.0,
    "erf": 16.0,
    "rsqrt": 4.0,
    "log": 24.0,
    "div": 13.0,
    "sqrt": 11.0,
    "max": 3.0,
    "min": 3.0,
    "cast": 1.0,
}
SERIAL = 3.0  # cycles between two instructions of a single warp
DEPENDENT = 5.5  # the same in a warp that holds whole rows: softmax of 4096 columns with 12, 16 and 20 warps on an SM of an H200
ARITHMETIC = 2.0  # the same between independent multiply-adds
COPIES = frozenset({4, 8, 16})  # sizes of cp.async in bytes
ASYNCHRONOUS = 8  # first major compute capability with asynchronous copies (cp.async)
CARRIED = 4  # values that each lane of a block carries in registers at a time
SECTOR = 32  # granularity of memory writes in bytes
PARTLY = 4.0  # cost of a smaller store relative to its bytes: fitted to scattered stores that were timed on an H200
RUN = 24  # overhead of a contiguous run in memory, in bytes: products of one row by runs of 64 bytes (H200)
READING = 88  # bytes of a thread's reads in flight: median of 14 kernels' machine code


@dataclass
class Waits:
    """The memory latencies that producer warps wait for, one after another, to fill one copy of all panels."""

    spec: HardwareSpec

    @cached_property
    def counted(self) -> Any:
        """`roller.lowering.specialised.fill_waits.FillWaits`."""
        return import_module("roller.lowering.specialised.fill_waits").FillWaits(_machine(self.spec))

    def __call__(self, program: StageProgram) -> int:
        """Returns their number, at least 1."""
        return self.counted(program) if program.atom.kind == "matrix" else 1


@dataclass
class CrewSlots:
    """The instructions of a producer warp for its part of one copy of all panels."""

    waits: Waits

    def __call__(self, program: StageProgram) -> float:
        """Returns their number; 0 where boxes fill all panels."""
        crew = self.waits.counted.crew(program)
        return crew.accesses * FILL + crew.apart * APART + crew.guarded * GUARD  # type: ignore[no-any-return]


@dataclass
class Stores:
    """The store accesses of a block's results, which no multiplication overlaps."""

    spec: HardwareSpec

    @cached_property
    def _counted(self) -> Callable[[StageProgram], float]:
        return import_module("roller.lowering.specialised.store_cost").StoreAccesses(_machine(self.spec), SECTOR, PARTLY)  # type: ignore[no-any-return]

    def __call__(self, program: StageProgram) -> float:
        """Returns their number; 0 where no tensor core computed the results."""
        return self._counted(program) if program.atom.kind == "matrix" else 0.0


def _machine(spec: HardwareSpec) -> Any:
    """Returns the lowering's features of a chip; this loads TVM, which programs without matrix atoms do not need."""
    return import_module("roller_cuda.codegen.machine").machine(spec)


def _arithmetic_cycles(spec: HardwareSpec) -> float:
    """Returns the cycles between multiply-adds of a single warp.

    Where a partition has lanes for half a warp (V100, A100), each multiply-add takes as long as the wait for the next one anyway.
    Where it has lanes for a whole warp, half of its cycles are lost.
    """
    peak = next((atom.flops_per_cycle_per_unit or 0.0 for atom in spec.atoms if atom.name == "f32"), 0.0)
    lanes = peak / 2 / spec.partitions
    return max(1.0, ARITHMETIC * lanes / spec.unit.lane_group)


def cost_parameters(spec: HardwareSpec) -> CostParameters:
    """Returns the model's parameters beyond the spec.

    Slots: the instructions in the step loops of 36 kernels for two chips that are neither multiply-adds nor reads from a panel, by
    least squares.
    """
    waits = Waits(spec)
    return CostParameters(
        unrolling=UNROLLING,
        lanes_wait=True,
        begin_ns=BEGIN / spec.clock_ghz,
        operation_slots=SLOTS,
        fill_slots=FILL,
        place_slots=APART,
        guard_slots=GUARD,
        step_slots=STEP,
        serial_cycles=SERIAL,
        dependent_cycles=DEPENDENT,
        arithmetic_cycles=_arithmetic_cycles(spec),
        copy_sizes=COPIES if spec.options["compute_capability"][0] >= ASYNCHRONOUS else frozenset(),
        carried=CARRIED,
        prefetch_registers=PREFETCH_REGISTERS,
        resident_tiles=Deferred("roller_cuda.codegen.limits", "resident_tiles", spec),
        copies=Deferred("roller_cuda.codegen.limits", "copies", spec),
        fill_waits=waits,
        crew_slots=CrewSlots(waits),
        reading_bytes=READING,
        scattered_stores=PARTLY,
        row_bytes=ROW_BYTES,
        run_bytes=RUN,
        row_groups=True,
        store_accesses=Stores(spec),
    )
