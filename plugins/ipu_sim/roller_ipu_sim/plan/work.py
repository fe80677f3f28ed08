"""Work of a tile in a step, for cycles and memory: shapes of vertices, pieces of partial results, buffers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from roller.plugin import ELEMENT_BYTES
from roller_ipu_sim.chip import cycles
from roller_ipu_sim.chip.cycles import AmpShape, MapShape
from roller_ipu_sim.plan import split_in_tile
from roller_ipu_sim.plan.bodies import FOLDS, loads_in, operations
from roller_ipu_sim.plan.heap import Memory, Wish
from roller_ipu_sim.plan.stage_plan import ArrayPlan, Plan
from roller_ipu_sim.plan.windows import Windows


@dataclass(frozen=True, slots=True)
class Adding:
    """The addition of partial results on the fullest tile.

    `cycles`; `vector`: vector elements of a reduction over them (0: the vertex that adds partial results up). `finishes`: the same
    vertex also finishes the results.
    """

    cycles: int
    vector: int
    finishes: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """How often a step over time happens, and the extents of the reductions in it; `first`: results start from zero."""

    times: int
    reduce: dict[int, int]
    first: bool


def whole_share(plan: Plan, dim: int) -> int:
    """Returns the positions of a reduction that one tile walks in all its steps: its share if tiles split it, else all of it."""
    shares = [lp.step for lp in plan.grid.loops if lp.dim == dim]
    return min([plan.nest.extents[dim], *shares])


def steps_of(plan: Plan) -> list[Steps]:
    """Returns the steps over time of one unit tile: those in the middle, and those at a reduction's end, which may be shorter."""
    nest, tile = plan.nest, plan.program.unit_tile
    trips = {lp.dim: lp.trips for lp in plan.grid.time}
    kinds = []
    for dim in nest.reduce:
        whole, count = whole_share(plan, dim), trips.get(dim, 1)
        full = min(tile[dim], whole)
        last = full if plan.shifting else whole - (count - 1) * tile[dim]
        kinds.append([(count, full)] if full == last else [(count - 1, full), (1, last)])
    found = []
    for number, chosen in enumerate(itertools.product(*kinds)):
        times = math.prod([n for n, _ in chosen])
        reduce = dict(zip(nest.reduce, [e for _, e in chosen], strict=True))
        if number == 0:
            found.append(Steps(1, reduce, True))
            times -= 1
        if times:
            found.append(Steps(times, reduce, False))
    return found


def several_steps(plan: Plan) -> bool:
    """Returns True if a unit tile's results are added up over several steps."""
    return math.prod([lp.trips for lp in plan.grid.time]) > 1


def amp_shape(plan: Plan, step: Steps, interleaved: bool) -> AmpShape:
    """Returns the product that a tile computes in a step."""
    program, nest, atom = plan.program, plan.nest, plan.program.atom
    m, n, k = (program.role(role) for role in "mnk")
    streamed, stationary = operands(plan)
    grain_n, grain_k = (int(atom.extents[role]) for role in "nk")
    tile = program.unit_tile
    runs = groups = 1
    blocks = -(-tile[n] // grain_n) if n is not None else 1
    for dim in nest.spatial:
        if dim in (m, n):
            continue
        a, w = streamed.touches(dim), stationary.touches(dim)
        runs *= tile[dim] if a and not w else 1
        blocks *= tile[dim] if w and not a else 1
        groups *= tile[dim] if a and w else 1
    taps = tuple([extent for dim, extent in step.reduce.items() if dim != k])
    return AmpShape(
        in_dtype=atom.in_dtype,
        acc_dtype=atom.acc_dtype,
        runs=runs,
        run_rows=tile[m] if m is not None else 1,
        k_blocks=-(-step.reduce[k] // grain_k) if k is not None else 1,
        n_blocks=blocks,
        taps=taps,
        groups=groups,
        zero=step.first,
        interleaved=interleaved,
    )


def operands(plan: Plan) -> tuple[ArrayPlan, ArrayPlan]:
    """Returns the streamed and the stationary array of a matrix atom: rows lie along the first one only."""
    m, n = plan.program.role("m"), plan.program.role("n")
    first, second = plan.inputs[:2]
    swapped = first.touches(n) if n is not None else second.touches(m) if m is not None else False
    return (second, first) if swapped else (first, second)


def last_dim(plan: Plan) -> int | None:
    """Returns the dimension along which results are contiguous; None for a single one."""
    return plan.output.dims[-1].terms[0][0] if plan.output.dims else None


def results_in_vectors(plan: Plan, vector: int) -> int:
    """Returns the results of a unit tile, rows in whole vectors."""
    last, tile = last_dim(plan), plan.program.unit_tile
    rows = math.prod([tile[d] for d in plan.nest.spatial if d != last])
    return rows * (-(-tile[last] // vector) * vector if last is not None else 1)


def map_shape(plan: Plan, step: Steps) -> MapShape:
    """Returns the elementwise work, or reduction, of a tile in a step."""
    program, stage = plan.program, plan.nest.stage
    whole = not finishes(plan) and stage.epilogue is not None
    return MapShape(
        dtype=stage.body.dtype,
        outputs=results_in_vectors(plan, program.width),
        points=math.prod(step.reduce.values()),
        vector=program.width,
        loads=len(loads_in(stage.body)),
        ops=operations(stage.body, plan.nest) + ((FOLDS[stage.reducer],) if stage.reducer is not None else ()),
        epilogue_loads=len(loads_in(stage.epilogue)) if whole and stage.epilogue is not None else 0,
        epilogue_ops=operations(stage.epilogue, plan.nest) if whole and stage.epilogue is not None else (),
        reduces=stage.reducer is not None,
    )


def vertices(plan: Plan, interleaved: bool) -> Iterator[tuple[int, AmpShape | MapShape]]:
    """Yields the vertices that compute one unit tile, with how often each runs; none for an empty reduction."""
    if plan.empty:
        return
    matrix = plan.program.atom.kind == "matrix"
    if split_in_tile.applies(plan):
        yield from [(1, shape) for shape in split_in_tile.fullest(plan)]
        return
    for step in steps_of(plan):
        yield step.times, amp_shape(plan, step, interleaved) if matrix else map_shape(plan, step)


def finishes(plan: Plan) -> bool:
    """Returns True if a separate vertex finishes results: after the addition of parts or steps, or after a matrix atom."""
    stage, output = plan.nest.stage, plan.output.access.tensor
    apart = plan.program.atom.kind == "matrix" or plan.parts > 1 or (several_steps(plan) and stage.reducer is not None)
    return apart and (stage.epilogue is not None or output.dtype != stage.body.dtype)


def finishing(plan: Plan) -> MapShape | None:
    """Returns the work of that vertex; None without one, or where the addition also finishes the results."""
    if not finishes(plan) or (plan.parts > 1 and adding(plan).finishes):
        return None
    return _finish(plan)


def _finish(plan: Plan) -> MapShape:
    stage = plan.nest.stage
    vector = widest(plan)
    elements = plan.pieces.in_vectors(vector) if plan.parts > 1 else results_in_vectors(plan, vector)
    return MapShape(stage.body.dtype, elements, 1, vector, 1 + finishing_loads(plan), finishing_operations(plan), 0, (), False)


def finishing_loads(plan: Plan) -> int:
    """Returns the arrays that finishing a result reads."""
    epilogue = plan.nest.stage.epilogue
    return len(loads_in(epilogue)) if epilogue is not None else 0


def finishing_operations(plan: Plan) -> tuple[str, ...]:
    """Returns the operations that finish a result: the epilogue, or the conversion to the output's type."""
    stage = plan.nest.stage
    return operations(stage.epilogue, plan.nest) if stage.epilogue is not None else ("cast",)


def widest(plan: Plan) -> int:
    """Returns the elements of the widest vector in a plan's arithmetic type."""
    return plan.chip.vector_type(plan.nest.stage.body.dtype).width


def adding(plan: Plan) -> Adding:
    """Returns how partial results are added.

    Sums have a vertex of their own; a reduction over the parts does the same, and can also finish results. Where programs may
    choose, it is the one that takes fewer cycles.
    """
    stage, dealt = plan.nest.stage, plan.pieces
    after = (finishing_operations(plan), finishing_loads(plan)) if finishes(plan) else None
    key = stage.body.dtype, stage.reducer, dealt.shape(dealt.most), plan.parts, after
    found = plan.chip.choices.get(key)
    if found is None:
        found = plan.chip.choices[key] = _least_adding(plan, dealt.most)
    return found


def _least_adding(plan: Plan, elements: int) -> Adding:
    reducer, chip, dtype = plan.nest.stage.reducer or "sum", plan.chip, plan.nest.stage.body.dtype
    choices = [Adding(cycles.reduced(chip, dtype, elements, plan.parts), 0, False)] if reducer == "sum" else []
    if chip.placing.cheapest or not choices:
        widths, ends = {widest(plan), 1} if chip.placing.cheapest else {widest(plan)}, chip.placing.cheapest and finishes(plan)
        choices += [_folding(plan, vector, ends) for vector in sorted(widths, reverse=True)]
    if len(choices) == 1 or not finishes(plan):
        return min(choices, key=lambda choice: choice.cycles)
    after = cycles.mapped(chip, _finish(plan))
    return min(choices, key=lambda choice: choice.cycles + (0 if choice.finishes else after))


def _folding(plan: Plan, vector: int, finished: bool) -> Adding:
    """Returns the addition of partial results as a reduction over them."""
    stage, dealt = plan.nest.stage, plan.pieces
    outputs = dealt.in_vectors(vector) if finished else -(-dealt.most // vector) * vector
    loads, epilogue = (finishing_loads(plan), finishing_operations(plan)) if finished else (0, ())
    ops = (FOLDS[stage.reducer or "sum"],)
    shape = MapShape(stage.body.dtype, outputs, plan.parts, vector, 1, ops, loads, epilogue, True)
    return Adding(cycles.mapped(plan.chip, shape), vector, finished)


def wishes(plan: Plan) -> list[Wish]:
    """Returns the buffers of a tile."""
    if plan.idle:
        return []
    matrix = plan.program.atom.kind == "matrix"
    stationary = operands(plan)[1].number if matrix else None
    found = []
    for array in plan.arrays:
        apart, inter = matrix and array in plan.inputs, array.number == stationary
        size = array.element_bytes
        if array.shifts:  # the part in use, and the arriving one (double buffering)
            found.append(Wish(array.box_buffer, 2 * array.elements * size, apart, inter, lasting=True))
            continue
        if array.alias is not None:
            continue
        if array.in_place:
            found.append(Wish(array.box_buffer, array.held * array.boxes * size, apart, inter, lasting=True))
            continue
        found.append(Wish(array.box_buffer, array.elements * size, apart, inter, lasting=array.kept))
        if not array.kept:
            found.append(Wish(array.home_buffer, kept_elements(array) * size, lasting=True))
    return found + _result_wishes(plan, matrix)


def kept_elements(array: ArrayPlan) -> int:
    """Returns the max elements of an array that a tile owns outside its boxes."""
    if array.plain:
        return array.share * array.boxes
    return Windows(array).most_kept


def cleared_elements(array: ArrayPlan) -> int:
    """Returns the elements of the buffer in which a tile holds its parts of an array."""
    if array.in_place or array.shifts:
        return array.held * (2 if array.shifts else array.boxes)
    return array.elements if array.kept else kept_elements(array)


def _result_wishes(plan: Plan, matrix: bool) -> list[Wish]:
    output, acc = plan.output, ELEMENT_BYTES[plan.nest.stage.body.dtype]
    elements, found = output.elements, []
    if plan.parts > 1 or finishes(plan):
        found = [Wish(plan.buffer("acc"), output.elements * acc, matrix)]
    if plan.parts > 1:
        dealt = plan.pieces
        elements = dealt.size
        found.append(Wish(plan.buffer("parts"), plan.parts * dealt.size * acc))
        if finishes(plan) and not adding(plan).finishes:
            found.append(Wish(plan.buffer("sum"), dealt.size * acc))
    if split_in_tile.applies(plan) and (partial := split_in_tile.partial_results(plan)):
        found.append(Wish(plan.buffer("inside"), partial * acc))
    return [*found, Wish(plan.buffer("out"), elements * output.boxes * output.element_bytes, matrix and not found, lasting=True)]


def interleaved(plan: Plan, memory: Memory, start: int) -> bool:
    """Returns True if the weights lie in the interleaved region, which begins at `start`."""
    if plan.program.atom.kind != "matrix" or plan.empty:
        return False
    return memory.addresses[operands(plan)[1].box_buffer] >= start


def element_bytes(dtype: str) -> int:
    """Returns the bytes of an element."""
    return ELEMENT_BYTES[dtype]
