"""Cost parameters of NVIDIA GPUs: what the model needs beyond the spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from roller.plugin import (
    CostParameters,
    Deferred,
    HardwareSpec,
    StageProgram,
    Unrolling,
)

UNROLLING = Unrolling(least=256, atoms=192)  # a step of few of them leaves nothing to do while its operands come
ROW_BYTES = 16  # that rows must be a multiple of: for boxes of the copy engine, and for the widest copy of a lane
BEGIN = 200  # cycles from a barrier to the first product of a step: 18 loops of steps, walked (`roller_cuda.toolchain.cycles`)
FILL, APART, GUARD, STEP = 6.0, 14.0, 14.0, 50.0  # instructions of an access with which a panel is filled, and of a step
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
SERIAL = 3.0  # cycles from one of them to the next of a warp that is alone
DEPENDENT = 5.5  # … that holds whole rows: softmax of 4096 columns with 12, 16 and 20 warps on an SM of an H200
ARITHMETIC = 2.0  # of its multiply-adds, which do not depend on one another
COPIES = frozenset({4, 8, 16})  # bytes that cp.async takes
ASYNCHRONOUS = 8  # compute capability from which on copies run by themselves
CARRIED = 4  # values that lanes of a block carry at a time
SECTOR = 32  # bytes in which memory is written
PARTLY = 4.0  # times as long as its bytes takes a store of less than that: fitted to scattered stores that were timed on an H200
RUN = 24  # bytes' time that a run of neighbours takes in memory beside its own: products of one row by runs of 64 bytes (H200)
READING = 88  # bytes that a thread has on their way from arrays: median of 14 kernels' machine code


@dataclass
class Waits:
    """How often warps that fill panels wait for memory, before one copy of all panels is there."""

    spec: HardwareSpec

    @cached_property
    def counted(self) -> Any:
        """`roller.lowering.specialised.fill_waits.FillWaits`."""
        return import_module("roller.lowering.specialised.fill_waits").FillWaits(_machine(self.spec))

    def __call__(self, program: StageProgram) -> int:
        """At least 1."""
        return self.counted(program) if program.atom.kind == "matrix" else 1


@dataclass
class CrewSlots:
    """Instructions with which a warp that does nothing else fills its part of one copy of all panels."""

    waits: Waits

    def __call__(self, program: StageProgram) -> float:
        """0 where boxes fill all of them."""
        crew = self.waits.counted.crew(program)
        return crew.accesses * FILL + crew.apart * APART + crew.guarded * GUARD  # type: ignore[no-any-return]


@dataclass
class Stores:
    """Accesses that storing the results of a block takes while nobody multiplies."""

    spec: HardwareSpec

    @cached_property
    def _counted(self) -> Callable[[StageProgram], float]:
        return import_module("roller.lowering.specialised.store_cost").StoreAccesses(_machine(self.spec), SECTOR, PARTLY)  # type: ignore[no-any-return]

    def __call__(self, program: StageProgram) -> float:
        """0 where no tensor core left the results."""
        return self._counted(program) if program.atom.kind == "matrix" else 0.0


def _machine(spec: HardwareSpec) -> Any:
    """What the lowering knows of a chip; it loads TVM, which whoever has no matrix atoms does without."""
    return import_module("roller_cuda.codegen.machine").machine(spec)


def _arithmetic_cycles(spec: HardwareSpec) -> float:
    """Multiply-adds of a warp alone: where a partition has lanes for half a warp (V100, A100), each takes as long as it is until
    the next one starts anyway; where it has lanes for a whole one, half of its cycles are lost.
    """
    peak = next((atom.flops_per_cycle_per_unit or 0.0 for atom in spec.atoms if atom.name == "f32"), 0.0)
    lanes = peak / 2 / spec.partitions
    return max(1.0, ARITHMETIC * lanes / spec.unit.lane_group)


def cost_parameters(spec: HardwareSpec) -> CostParameters:
    """What the model needs beyond the spec. Slots: of the instructions in loops over steps of 36 kernels for two chips, what is
    neither a multiply-add nor read from a panel, by least squares.
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
        resident_tiles=Deferred("roller_cuda.codegen.limits", "resident_tiles", spec),
        fill_waits=waits,
        crew_slots=CrewSlots(waits),
        reading_bytes=READING,
        scattered_stores=PARTLY,
        row_bytes=ROW_BYTES,
        run_bytes=RUN,
        row_groups=True,
        store_accesses=Stores(spec),
    )
