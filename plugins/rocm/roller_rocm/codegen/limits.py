"""Limits of a chip: programs that it cannot run, and the occupancy of the others."""

from __future__ import annotations

from roller.lowering import grid
from roller.lowering.simt import matrix_atoms
from roller.lowering.simt.stage_kernel import copies_of
from roller.plugin import HardwareSpec, RProgram, StageProgram
from roller_rocm.codegen.machine import machine
from roller_rocm.cost import register_prediction
from roller_rocm.toolchain import occupancy

SPARE = 16  # registers that LLVM needs free, or it spills


def refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Returns why the chip cannot run a program; None if it can.

    `roller.lowering.grid` refuses it, or a workgroup lacks lanes, local memory or registers.
    """
    broken = grid.refusal(program, machine(spec))
    if broken is not None:
        return broken
    for stage in program.stages:
        name = stage.nest.stage.name
        threads, lanes = matrix_atoms.block_of(stage, machine(spec)).threads, most_lanes(spec)
        if threads > lanes:
            return "lanes", f"{name!r} takes {threads} lanes, a workgroup may have {lanes}"
        wanted, room = grid.shared_bytes(stage, machine(spec)), spec.levels[stage.levels[0]].usable_bytes
        if wanted > room:
            return "local memory", f"{name!r} takes {wanted} bytes of a workgroup's local memory, there are {room}"
        registers = register_prediction.wanted_registers(spec, stage, machine(spec))
        if _too_many(spec, registers):
            most = occupancy.most_registers(spec)
            said = f"a lane of {name!r} takes about {registers} registers, it may have {most}, of them {SPARE} to move values"
            return "registers", said
    return None


def resident_tiles(spec: HardwareSpec, program: StageProgram) -> int:
    """Returns the workgroups per compute unit, by predicted registers and local memory.

    0 where a lane needs more registers than there are, and where there is no such kernel.
    """
    known = machine(spec)
    if grid.refusal_of(program, known) is not None:
        return 0
    registers = register_prediction.wanted_registers(spec, program, known)
    if _too_many(spec, registers):
        return 0
    waves = occupancy.resident_waves(spec, registers)
    return occupancy.resident_blocks(spec, waves, grid.threads(program, known), grid.shared_bytes(program, known))


def copies(spec: HardwareSpec, program: StageProgram) -> int:
    """Returns the copies (buffers) that a kernel keeps of a panel that it fills from step to step."""
    return copies_of(program, machine(spec))


def most_lanes(spec: HardwareSpec) -> int:
    """Returns the max lanes of a workgroup, also by the toolchain's limit."""
    return min(spec.unit.lanes_max, int(spec.options.get("flat_workgroup_max", spec.unit.lanes_max)))


def _too_many(spec: HardwareSpec, registers: int) -> bool:
    return registers > occupancy.most_registers(spec) - SPARE
