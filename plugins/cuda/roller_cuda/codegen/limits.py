"""Limits of a chip: programs that it cannot run, and the occupancy of the others."""

from __future__ import annotations

from roller.lowering import grid
from roller.lowering.simt import matrix_atoms
from roller.lowering.simt.stage_kernel import copies_of
from roller.plugin import HardwareSpec, RProgram, StageProgram
from roller_cuda.codegen.machine import machine
from roller_cuda.cost import register_prediction
from roller_cuda.toolchain import occupancy


def refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Returns why the chip cannot run a program: `roller.lowering.grid` refuses it, or a block lacks shared memory or registers."""
    broken = grid.refusal(program, machine(spec))
    if broken is not None:
        return broken
    for stage in program.stages:
        wanted = grid.shared_bytes(stage, machine(spec))
        room = spec.levels[stage.levels[0]].usable_bytes
        if wanted > room:
            return "shared memory", f"{stage.nest.stage.name!r} takes {wanted} bytes of a block's shared memory, there are {room}"
        broken = _spills(spec, stage)
        if broken is not None:
            return broken
    return None


def resident_tiles(spec: HardwareSpec, stage: StageProgram) -> int:
    """Returns the blocks per multiprocessor, by predicted registers and shared memory.

    0 where a thread's registers are not enough, and where there is no such kernel.
    """
    known = machine(spec)
    if grid.refusal_of(stage, known) is not None or _spills(spec, stage) is not None:
        return 0
    threads = grid.threads(stage, known)
    registers = register_prediction.predicted_registers(spec, stage, known, threads)
    return occupancy.resident_blocks(spec, threads, registers, grid.shared_bytes(stage, known))


def copies(spec: HardwareSpec, stage: StageProgram) -> int:
    """Returns the copies (buffers) that a kernel keeps of a panel that it fills from step to step."""
    return copies_of(stage, machine(spec))


def _spills(spec: HardwareSpec, stage: StageProgram) -> tuple[str, str] | None:
    """Returns why a thread's registers are not enough: values that are predicted not to fit spill in every step."""
    chosen = machine(spec)
    if chosen.in_place(stage.atom):
        return None  # `grid.refusal` covers this
    wanted = register_prediction.wanted_registers(spec, stage, chosen) + register_prediction.row_registers(stage)
    threads = matrix_atoms.block_of(stage, chosen).threads
    most = occupancy.limit(spec, threads)
    if wanted < most:  # with all registers in use, a few bytes spill more often than not
        return None
    name = stage.nest.stage.name
    return "registers", f"a thread of {name!r} takes about {wanted} registers, one of {threads} in a block may have {most}"
