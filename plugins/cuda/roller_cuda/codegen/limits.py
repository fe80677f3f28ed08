"""Which programs a chip can run, and how many of their tiles at a time."""

from __future__ import annotations

from roller.lowering import grid
from roller.lowering.simt import matrix_atoms
from roller.plugin import HardwareSpec, RProgram, StageProgram
from roller_cuda.codegen.machine import machine
from roller_cuda.cost import register_prediction
from roller_cuda.toolchain import occupancy


def refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Why the chip cannot run a program: `roller.lowering.grid` has no words for it, or a block lacks the shared memory."""
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
    """Blocks on a multiprocessor at a time, by the registers and the shared memory that are predicted; 0 where a thread's registers
    are not enough, and where there is no such kernel.
    """
    known = machine(spec)
    if grid.refusal_of(stage, known) is not None or _spills(spec, stage) is not None:
        return 0
    threads = grid.threads(stage, known)
    registers = register_prediction.predicted_registers(spec, stage, known, threads)
    return occupancy.resident_blocks(spec, threads, registers, grid.shared_bytes(stage, known))


def _spills(spec: HardwareSpec, stage: StageProgram) -> tuple[str, str] | None:
    """Why a thread's registers are not enough: what is foreseen not to fit goes to memory in every step."""
    chosen = machine(spec)
    if chosen.in_place(stage.atom):
        return None  # as `grid.refusal` says
    wanted = register_prediction.wanted_registers(spec, stage, chosen)
    threads = matrix_atoms.block_of(stage, chosen).threads
    most = occupancy.limit(spec, threads)
    if wanted < most:  # with all of them in use a few bytes go to memory more often than not
        return None
    name = stage.nest.stage.name
    return "registers", f"a thread of {name!r} takes about {wanted} registers, one of {threads} in a block may have {most}"
