"""Generator of manifests from programs: buffers with addresses, placements of tensors, and supersteps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from roller.plugin import BuildOptions, CodegenError, HardwareSpec, KernelSource, RProgram
from roller_ipu_sim.codegen import vertices
from roller_ipu_sim.codegen.placements import home, kept, results
from roller_ipu_sim.codegen.program_plan import Whole, whole_of
from roller_ipu_sim.codegen.sends import brought, dealt
from roller_ipu_sim.codegen.stage_transfers import Move
from roller_ipu_sim.manifest.models import Buffer, Fill, Manifest, Ref, Step, TensorHome, VertexGroup, collection_paused, to_json
from roller_ipu_sim.plan import work
from roller_ipu_sim.plan.heap import Memory
from roller_ipu_sim.plan.stage_plan import ArrayPlan, Plan
from roller_ipu_sim.plan.tile_coordinates import Trips, tile_set
from roller_ipu_sim.toolchain.compiling import LANGUAGE

LABEL = 100  # max characters of a step's name
AGAIN = "@"  # separator in the name of a tensor with several homes (several loads read it), before the number of a further home


def generate(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """Returns the manifest as JSON; `CodegenError` where tiles cannot run the program, or it does not fit."""
    manifest = manifest_of(spec, program, frozenset(options.constants))
    launch = {"inputs": [t.name for t in program.expr.inputs], "output": program.expr.output.name, "alignment": "element"}
    return KernelSource(to_json(manifest), LANGUAGE, "main", launch)


def refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Returns why tiles cannot run a program, or it does not fit; None if there is no reason."""
    found = whole_of(spec, program)
    return None if isinstance(found, Whole) else found


def manifest_of(spec: HardwareSpec, program: RProgram, constants: frozenset[str] = frozenset()) -> Manifest:
    """Returns the manifest of a program; `CodegenError` where tiles cannot run it, or it does not fit."""
    whole = whole_of(spec, program)
    if not isinstance(whole, Whole):
        raise CodegenError(
            f"{spec.device}:{spec.chip} cannot run this program: {whole[1]}; take smaller tiles, or cut the operator"
        )
    if not program.expr.output.elements:
        return Manifest(chip=spec.chip, tiles=whole.machine.tiles, buffers=(), tensors=(), steps=())
    with collection_paused():
        stages = [[*_moving(moves), *_steps(plan)] for plan, moves in zip(whole.plans, whole.moves, strict=True)]
        steps = [step for stage in stages for step in stage]
        ends = list(itertools.accumulate(len(stage) for stage in stages))
        lives = [(end - len(stage), max(end - 1, 0)) for end, stage in zip(ends, stages, strict=True)]
        buffers = [b for plan, live in zip(whole.plans, lives, strict=True) for b in _buffers(plan, whole.memory, live, len(steps))]
        tensors = tuple(_tensors(whole, constants))
        return Manifest(chip=spec.chip, tiles=whole.machine.tiles, buffers=tuple(buffers), tensors=tensors, steps=tuple(steps))


def _tensors(whole: Whole, constants: frozenset[str]) -> Iterator[TensorHome]:
    """Yields every input, once for each stage and position that reads it, and the result."""
    made = {plan.output.access.tensor.name for plan in whole.plans}
    seen: Counter[str] = Counter()
    for plan in whole.plans:
        for array in plan.arrays:
            name = array.access.tensor.name
            if name in made or plan.idle:
                continue
            found = home(array, "constant" if name in constants else "input", tuple(kept(plan, array)))
            yield found.model_copy(update={"name": f"{name}{AGAIN}{seen[name]}"}) if seen[name] else found
            seen[name] += 1
    last = whole.plans[-1]
    yield home(last.output, "output", tuple(results(last)))


def _moving(moves: tuple[Move, ...]) -> Iterator[Step]:
    """Yields the steps that move earlier stages' results to where this stage requires them."""
    for move in moves:
        if move.pads:
            array = move.array
            name = array.box_buffer if array.in_place or array.kept or array.shifts else array.home_buffer
            fill = Fill(to=Ref(buffer=name, offset=0), elements=work.cleared_elements(array), value=0)
            yield Step(name=_called(f"clear {name}"), compute=(VertexGroup(tiles=tile_set(array.grid, {}), vertex=fill),))
    if moves:
        names = ", ".join(m.array.access.tensor.name for m in moves)
        yield Step(name=_called(f"move {names}"), exchange=tuple([send for move in moves for send in move.sends()]))


def _buffers(plan: Plan, memory: Memory, live: tuple[int, int], steps: int) -> Iterator[Buffer]:
    """Yields every buffer on all active tiles: some live for the whole program, others while their stage runs."""
    acc = plan.nest.stage.body.dtype
    types = {name: a.access.tensor.dtype for a in plan.arrays for name in (a.box_buffer, a.home_buffer)}
    types |= {plan.buffer(name): acc for name in ("acc", "parts", "sum", "inside")} | {
        plan.buffer("out"): plan.output.access.tensor.dtype
    }
    tiles = tile_set(plan.grid, {})
    for wish in work.wishes(plan):
        size = work.element_bytes(types[wish.name])
        yield Buffer(
            name=wish.name,
            dtype=types[wish.name],
            elements=max(1, wish.nbytes // size),
            address=memory.addresses[wish.name],
            tiles=tiles,
            live=(0, max(0, steps - 1)) if wish.lasting else live,
        )


def _steps(plan: Plan) -> Iterator[Step]:
    if plan.idle:
        return
    serial = plan.grid.serial
    arrays = [a for a in plan.arrays if not a.in_place]
    last = tuple([lp.trips - 1 for lp in serial if not lp.unit])
    before: Trips | None = None
    for trips in itertools.product(*[range(lp.trips) for lp in serial]):
        changed = 0 if before is None else next(n for n, (a, b) in enumerate(zip(before, trips, strict=True)) if a != b)
        moving = [a for a in arrays if (before is None and not a.shifts) or (before is not None and a.depth > changed)]
        yield from _bringing(plan, moving, trips)
        for name, groups in vertices.computing(plan, trips):
            yield Step(name=_called(f"{name} {plan.output.access.tensor.name}", plan, trips), compute=tuple(groups))
        if tuple([t for t, lp in zip(trips, serial, strict=True) if not lp.unit]) == last:
            yield from _completing(plan, trips)
        before = trips


def _bringing(plan: Plan, moving: list[ArrayPlan], trips: Trips) -> Iterator[Step]:
    tiles = tile_set(plan.grid, {})
    for array in moving:
        if array.leaves:
            fill = Fill(to=Ref(buffer=array.box_buffer, offset=0), elements=array.elements, value=array.stored.outside)
            name = _called(f"fill {array.access.tensor.name}", plan, trips)
            yield Step(name=name, compute=(VertexGroup(tiles=tiles, vertex=fill),))
    sends = tuple([send for array in moving for send in brought(plan, array, trips)])
    if moving:
        names = ", ".join(array.access.tensor.name for array in moving)
        yield Step(name=_called(f"bring {names}", plan, trips), exchange=sends)


def _called(what: str, plan: Plan | None = None, trips: Trips = ()) -> str:
    """Returns the name of a step; a stage with several serial steps adds the number of this one."""
    if plan is None or plan.grid.steps == 1:
        return what if len(what) <= LABEL else f"{what[: LABEL - 1]}…"
    number = 0
    for trip, lp in zip(trips, plan.grid.serial, strict=True):
        number = number * lp.trips + trip
    where = f" ({number + 1} of {plan.grid.steps})"
    return what + where if len(what + where) <= LABEL else f"{what[: LABEL - len(where) - 1]}…{where}"


def _completing(plan: Plan, trips: Trips) -> Iterator[Step]:
    """Yields the steps that add up partial results and finish results."""
    name = plan.output.access.tensor.name
    if plan.parts > 1:
        yield Step(name=_called(f"deal {name}", plan, trips), exchange=tuple(dealt(plan)))
        yield Step(name=_called(f"add {name}", plan, trips), compute=tuple(vertices.adding(plan, trips)))
    groups = tuple(vertices.finishing(plan, trips))
    if groups:
        yield Step(name=_called(f"finish {name}", plan, trips), compute=groups)
