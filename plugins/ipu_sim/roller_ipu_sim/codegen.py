"""From a stage's program to a manifest: buffers with addresses, where tensors live, and supersteps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from roller.plugin import BuildOptions, CodegenError, HardwareSpec, KernelSource, RProgram
from roller_ipu_sim import vertices, work
from roller_ipu_sim.heap import Memory, placed
from roller_ipu_sim.homes import Role, home, kept, results
from roller_ipu_sim.machine import machine
from roller_ipu_sim.manifest import Buffer, Fill, Manifest, Reduce, Ref, Step, VertexGroup, collection_paused, to_json
from roller_ipu_sim.places import Trips, box_number, tile_set
from roller_ipu_sim.plan import ArrayPlan, Plan, plan_of
from roller_ipu_sim.sends import brought, dealt
from roller_ipu_sim.toolchain import LANGUAGE


def generate(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """The manifest as JSON; `CodegenError` where tiles cannot run the program, or hold it."""
    manifest = manifest_of(spec, program, frozenset(options.constants))
    launch = {"inputs": [t.name for t in program.expr.inputs], "output": program.expr.output.name, "alignment": "element"}
    return KernelSource(to_json(manifest), LANGUAGE, "main", launch)


def refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Why tiles cannot run a program, or hold it; None where they can."""
    chip = machine(spec)
    for stage in program.stages:
        plan = plan_of(stage, chip)
        refused = ("indices", "an array's index is no sum of loops") if plan is None else work.refusal(plan, spec)
        if plan is None or refused is not None:
            return refused
        memory = placed(work.wishes(plan), chip)
        if memory.excess:
            return "tile memory", f"tile 0 would need {memory.needed} bytes, {memory.excess} more than it has"
    return None


def manifest_of(spec: HardwareSpec, program: RProgram, constants: frozenset[str] = frozenset()) -> Manifest:
    """The manifest of a program of one stage; `CodegenError` where tiles cannot run it."""
    chip = machine(spec)
    (stage,) = program.stages
    plan = plan_of(stage, chip)
    refused = ("indices", "an array's index is no sum of loops") if plan is None else work.refusal(plan, spec)
    if plan is None or refused is not None:
        raise CodegenError(f"{spec.device}:{spec.chip} cannot run this program: {refused[1] if refused else ''}")
    if not plan.output.elements or not plan.output.access.tensor.elements:
        return Manifest(chip=spec.chip, tiles=chip.tiles, buffers=(), tensors=(), steps=())
    memory = placed(work.wishes(plan), chip)
    if memory.excess:
        raise CodegenError(
            f"tile 0 needs {memory.needed} bytes, {memory.excess} more than the {memory.room} of {spec.device}:{spec.chip}; "
            "take smaller tiles, or cut the operator"
        )
    with collection_paused():
        steps = tuple(_steps(plan, spec))
        tensors = [home(a, _role(a, constants), tuple(kept(a))) for a in plan.arrays]
        out = home(plan.output, "output", tuple(results(plan)))
        buffers = tuple(_buffers(plan, memory, len(steps)))
        return Manifest(chip=spec.chip, tiles=chip.tiles, buffers=buffers, tensors=(*tensors, out), steps=steps)


def _role(array: ArrayPlan, constants: frozenset[str]) -> Role:
    return "constant" if array.access.tensor.name in constants else "input"


def _buffers(plan: Plan, memory: Memory, steps: int) -> Iterator[Buffer]:
    """Every buffer on all tiles that work, for the whole program."""
    acc = plan.nest.stage.body.dtype
    types = {f"{kind}{a.number}": a.access.tensor.dtype for a in plan.arrays for kind in ("in", "home")}
    types |= {"acc": acc, "parts": acc, "sum": acc, "out": plan.output.access.tensor.dtype}
    tiles = tile_set(plan.grid, {})
    for wish in work.wishes(plan):
        size = work.element_bytes(types[wish.name])
        yield Buffer(
            name=wish.name,
            dtype=types[wish.name],
            elements=max(1, wish.nbytes // size),
            address=memory.addresses[wish.name],
            tiles=tiles,
            live=(0, max(0, steps - 1)),
        )


def _steps(plan: Plan, spec: HardwareSpec) -> Iterator[Step]:
    serial = plan.grid.serial
    arrays = [a for a in plan.arrays if not a.in_place]
    last = tuple([lp.trips - 1 for lp in serial if not lp.unit])
    before: Trips | None = None
    for trips in itertools.product(*[range(lp.trips) for lp in serial]):
        changed = 0 if before is None else next(n for n, (a, b) in enumerate(zip(before, trips, strict=True)) if a != b)
        moving = [a for a in arrays if before is None or a.depth > changed]
        yield from _bringing(plan, moving, trips)
        groups = tuple(vertices.computing(plan, trips))
        yield Step(name=f"compute {trips}", compute=groups)
        if tuple([t for t, lp in zip(trips, serial, strict=True) if not lp.unit]) == last:
            yield from _completing(plan, spec, trips)
        before = trips


def _bringing(plan: Plan, moving: list[ArrayPlan], trips: Trips) -> Iterator[Step]:
    tiles = tile_set(plan.grid, {})
    for array in moving:
        if array.leaves:
            fill = Fill(to=Ref(buffer=f"in{array.number}", offset=0), elements=array.elements, value=_outside(plan, array))
            yield Step(name=f"fill {array.access.tensor.name} {trips}", compute=(VertexGroup(tiles=tiles, vertex=fill),))
    sends = tuple([send for array in moving for send in brought(array, trips) if send.to.tiles])
    if moving:
        yield Step(name=f"bring {trips}", exchange=sends)


def _outside(plan: Plan, array: ArrayPlan) -> float | int:
    """What a load reads outside of an array."""
    stage = plan.nest.stage
    loads = [*work.loads_in(stage.body), *(work.loads_in(stage.epilogue) if stage.epilogue is not None else [])]
    fills = [ld.fill for ld in loads if ld.tensor == array.access.tensor.name and ld.index == array.access.index]
    return next((f for f in fills if f is not None), 0)


def _completing(plan: Plan, spec: HardwareSpec, trips: Trips) -> Iterator[Step]:
    """Parts of results added up, and results finished."""
    if plan.parts > 1:
        yield Step(name=f"deal {trips}", exchange=tuple(dealt(plan)))
        size = work.pieces(plan).size
        at = 0 if work.finishes(plan) else box_number(plan.output, trips) * size
        yield Step(name=f"add {trips}", compute=tuple([_moved(g, at) for g in vertices.adding(plan)]))
    groups = tuple(vertices.finishing(plan, trips, work.widest(spec, plan.nest.stage.body.dtype)))
    if groups:
        yield Step(name=f"finish {trips}", compute=groups)


def _moved(group: VertexGroup, offset: int) -> VertexGroup:
    """The same vertex with its results further on."""
    assert isinstance(group.vertex, Reduce)
    out = Ref(buffer=group.vertex.out.buffer, offset=offset)
    return group.model_copy(update={"vertex": group.vertex.model_copy(update={"out": out})})
