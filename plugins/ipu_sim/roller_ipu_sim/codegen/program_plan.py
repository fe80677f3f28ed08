"""A whole program over tiles: the plans of its stages, the moves between them, and the addresses of all buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roller.plugin import HardwareSpec, RProgram
from roller_ipu_sim.chip.machine import Machine, machine
from roller_ipu_sim.codegen.stage_transfers import Move
from roller_ipu_sim.plan import limits, work
from roller_ipu_sim.plan.heap import Memory, placed
from roller_ipu_sim.plan.stage_plan import MOST_STEPS, ArrayPlan, Plan, plan_of

Refusal = tuple[str, str]


@dataclass(frozen=True)
class Whole:
    """Plans by stage; for each stage the moves before it; addresses."""

    plans: tuple[Plan, ...]
    moves: tuple[tuple[Move, ...], ...]
    memory: Memory
    machine: Machine


def whole_of(spec: HardwareSpec, program: RProgram) -> Whole | Refusal:
    """Returns the program over tiles, or the rule that it breaks and why."""
    chip = machine(spec)
    plans: list[Plan] = []
    moves: list[tuple[Move, ...]] = []
    for number, stage in enumerate(program.stages):
        plan = plan_of(stage, chip, f"s{number}." if len(program.stages) > 1 else "")
        refused = limits.UNREADABLE if plan is None else limits.refusal(plan, spec)
        if plan is None or refused is not None:
            return refused or limits.UNREADABLE
        if plan.countless:
            return "steps", f"{plan.grid.steps} steps, in which exchanges differ; at most {MOST_STEPS} are told apart"
        made = {p.output.access.tensor.name: p for p in plans}
        plan, mine = _connected(plan, made)
        uneven = next((m for m in mine if m.misaligned), None)
        if uneven is not None:
            return "exchange words", f"parts of {uneven.array.access.tensor.name!r} would not begin at words on both sides"
        plans.append(plan)
        moves.append(mine)
    memory = placed([work.wishes(plan) for plan in plans], chip)
    if memory.excess:
        return limits.full(memory)
    return Whole(tuple(plans), tuple(moves), memory, chip)


def _connected(plan: Plan, made: dict[str, Plan]) -> tuple[Plan, tuple[Move, ...]]:
    """Returns the plan with in-place arrays where an earlier stage leaves them as required, and moves for the others."""
    moves = []
    matrix = plan.program.atom.kind == "matrix"  # its operands require memory elements of their own

    def connected(array: ArrayPlan) -> ArrayPlan:
        maker = made.get(array.access.tensor.name)
        if maker is None or not array.access.tensor.elements:
            return array
        move = Move(maker, plan, array)
        if move.stays and not matrix:
            return replace(array, alias=maker.buffer("out"))
        if array.kept and not array.plain:  # a stage's result moves into dense parts, not into larger boxes
            array = replace(array, placing=False)
            move = Move(maker, plan, array)
        moves.append(move)
        return array

    inputs, extra = tuple([connected(a) for a in plan.inputs]), tuple([connected(a) for a in plan.extra])
    return replace(plan, inputs=inputs, extra=extra), tuple(moves)
