"""Lowering for devices whose units run sub-tiles concurrently: a unit's tile becomes a thread block, a lane's tile is unrolled.

Each stage becomes one kernel; split-K adds one more that reduces the partial results.
"""

from __future__ import annotations

from collections.abc import Mapping

from roller.lowering.simt import matrix_atoms
from roller.lowering.simt.machine import Machine
from roller.lowering.simt.row_kernel import RowStage
from roller.lowering.simt.stage_kernel import GridKernel, StageLowering, Workspace, staged_bytes
from roller.lowering.specialised import producer_consumer, shared_memory
from roller.lowering.tir.builder import Buffer, argument
from roller.program.rprogram import RProgram, StageProgram


def refusal(program: RProgram, machine: Machine) -> tuple[str, str] | None:
    """Returns why a program has no such kernels; None if it has."""
    return next((broken for stage in program.stages if (broken := refusal_of(stage, machine)) is not None), None)


def refusal_of(stage: StageProgram, machine: Machine) -> tuple[str, str] | None:
    """Returns why a stage's program has no such kernel; None if it has."""
    if len(stage.tiles) != 2:
        return "levels", f"a block and a lane have a tile each, {stage.nest.stage.name!r} has {len(stage.tiles)}"
    if any(s.kind != "panel" or s.level != stage.levels[0] for s in stage.staged):
        return "staging", f"copies lie in the memory of a block, some of {stage.nest.stage.name!r} elsewhere"
    return matrix_atoms.refusal(stage, machine) or shared_memory.refusal(stage, machine)


def threads(program: StageProgram, machine: Machine) -> int:
    """Returns the lanes of a block: consumers, and producers if the kernel is warp-specialised."""
    filling = machine.producers.lanes if machine.in_place(program.atom) and machine.producers else 0
    return matrix_atoms.block_of(program, machine).threads + filling


def shared_bytes(program: StageProgram, machine: Machine) -> int:
    """Returns the max bytes of a block's shared memory."""
    return shared_memory.shared_bytes(program, machine) if machine.in_place(program.atom) else staged_bytes(program, machine)


def lower(program: RProgram, buffers: Mapping[str, Buffer], machine: Machine) -> tuple[list[GridKernel], list[Workspace]]:
    """Returns the kernels of a program in order, and the workspaces between them."""
    kernels: list[GridKernel] = []
    spaces: list[Workspace] = []
    known = dict(buffers)
    for number, stage in enumerate(program.stages):
        output = stage.nest.stage.output
        if output.name not in known:
            spaces.append(Workspace(output.name, output.elements, output.dtype))
            known[output.name] = argument(output.name, output.elements, output.dtype)
        if output.elements:
            found, partial = _kind(stage, machine)(stage, known, number, machine).kernels()
            kernels += found
            spaces += partial
    return kernels, spaces


def _kind(program: StageProgram, machine: Machine) -> type[StageLowering]:
    """Returns the class that lowers a stage's program."""
    if program.nest.before:
        return RowStage
    return producer_consumer.SpecialisedStage if machine.in_place(program.atom) else StageLowering
