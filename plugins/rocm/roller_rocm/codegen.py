"""RProgram → LLVM IR: the nest as TIR, lowered by TVM's ROCm backend, with what TVM leaves out or gets wrong supplied from here.

TVM compiles in the worker process: on a processor or an intrinsic that LLVM does not know it ends the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller.plugin import CodegenError, HardwareSpec, KernelSource, RProgram, StageProgram
from roller.schedule import grid, matrix
from roller.schedule.machine import Machine, MatrixUnit
from roller.schedule.tir import IN_KERNEL
from roller_rocm import isolated, lowering, matrix_cores, occupancy, prediction, toolchain
from roller_rocm.chip import UNROLLING

SPARE = 16  # registers that LLVM needs free, or it stores some in memory
PLACE = 2  # registers of an address
SETTLED = ("float32", "int32", "float64", "int64")  # types with a function in `helpers.ll` that LLVM does not see through


def generate(spec: HardwareSpec, program: RProgram) -> KernelSource:
    """The program's kernels as one module; the launch description says in which order, with which arrays, how large."""
    broken = refusal(spec, program)
    if broken is not None:
        raise CodegenError(broken[1])
    toolchain.architecture(spec)
    text, kernels, spaces = isolated.run(lowering.lowered, spec, program)
    return KernelSource(text, "llvm-ir", kernels[0]["name"] if kernels else "nothing", launch(program, kernels, spaces))


def launch(program: RProgram, kernels: list[dict[str, Any]], spaces: list[dict[str, Any]]) -> dict[str, Any]:
    """How a program's kernels are launched: their descriptions in order, the arrays between them, the program's own arrays."""
    expr = program.expr
    return {
        "kernels": kernels,
        "workspaces": spaces,
        "inputs": [t.name for t in expr.inputs],
        "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in expr.inputs],
        "output": expr.output.name,
        "alignment": 16,
    }


def refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Why the chip cannot run a program: `roller.schedule.grid` has no words for it, or a workgroup lacks lanes or local memory."""
    broken = grid.refusal(program, machine(spec))
    if broken is not None:
        return broken
    for stage in program.stages:
        name = stage.nest.stage.name
        threads, lanes = matrix.block_of(stage, machine(spec)).threads, most_lanes(spec)
        if threads > lanes:
            return "lanes", f"{name!r} takes {threads} lanes, a workgroup may have {lanes}"
        wanted, room = grid.shared_bytes(stage, machine(spec)), spec.levels[stage.levels[0]].usable_bytes
        if wanted > room:
            return "local memory", f"{name!r} takes {wanted} bytes of a workgroup's local memory, there are {room}"
        registers = prediction.wanted_registers(spec, stage, machine(spec))
        if _too_many(spec, registers):
            most = occupancy.most_registers(spec)
            said = f"a lane of {name!r} takes about {registers} registers, it may have {most}, of them {SPARE} to move values"
            return "registers", said
    return None


def resident_tiles(spec: HardwareSpec, program: StageProgram) -> int:
    """Workgroups on a compute unit at a time, by the registers and the local memory that are predicted; 0 where one lane wants more
    registers than there are, and where there is no such kernel.
    """
    known = machine(spec)
    if grid.refusal_of(program, known) is not None:
        return 0
    registers = prediction.wanted_registers(spec, program, known)
    if _too_many(spec, registers):
        return 0
    waves = occupancy.resident_waves(spec, registers)
    return occupancy.resident_blocks(spec, waves, grid.threads(program, known), grid.shared_bytes(program, known))


def _too_many(spec: HardwareSpec, registers: int) -> bool:
    return registers > occupancy.most_registers(spec) - SPARE


def most_lanes(spec: HardwareSpec) -> int:
    """Lanes of a workgroup, what the toolchain was told of them too."""
    return min(spec.unit.lanes_max, int(spec.options.get("flat_workgroup_max", spec.unit.lanes_max)))


def machine(spec: HardwareSpec, units: Mapping[str, MatrixUnit] = matrix_cores.UNITS) -> Machine:
    """What kernels for the chip may use."""
    return Machine(
        group=spec.unit.lane_group,
        units=units,
        shared_scope=IN_KERNEL,
        views=False,
        unrolling=UNROLLING,
        place_registers=PLACE,
        apart_registers=0,
        guard_registers=0,
        most_beside=None,
        across=True,
        settled={dtype: f"roller_settled_{dtype}" for dtype in SETTLED},
    )
