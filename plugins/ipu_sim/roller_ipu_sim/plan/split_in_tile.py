"""Split reductions inside a tile, for tiles with few results for their workers and vector lanes.

Each result is first computed as several contiguous partial results, which a second vertex adds up. The two run in sequence without
a sync. Partial result number j takes the points j, j + parts, j + 2 parts and so on of a reduction dimension. Left-over points go
to the first partial results, one more for each, by a vertex between the two. The program chooses the tile's storage order, so a
vector may lie along the reduction: its lanes are then partial results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from roller_ipu_sim.chip import cycles
from roller_ipu_sim.chip.cycles import MapShape
from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.plan.bodies import FOLDS, coordinates_in, loads_in, operations
from roller_ipu_sim.plan.stage_plan import Plan

MOST_SETS = 4  # max sets of results that workers hold in accumulators: more partial results do not use workers better


class Cut(NamedTuple):
    """The split of a tile's reduction."""

    place: int  # index of the dimension among the nest's reductions
    parts: int  # partial results for each result
    points: int  # points of the dimension for each of them
    rest: int  # points left over
    vector: int  # vector elements of the vertex that adds the partial results


class Task(NamedTuple):
    """The inputs of the choice of a split."""

    whole: MapShape  # the vertex without a split; the points of a class are left open
    vector: int  # elements of a vector of partial results
    rows: int  # rows of results, with `last` results each
    last: int
    dense: bool  # results are dense, and need no lookups
    along: int | None  # index of the reduction that a vector lies along


def applies(plan: Plan) -> bool:
    """True if a plan's reductions may be split inside a tile: by vectors or workers, in one step, without computed indices."""
    stage, grid = plan.nest.stage, plan.grid
    if not plan.chip.placing.inside or stage.reducer is None or plan.program.atom.kind == "matrix" or plan.empty:
        return False
    return all(lp.trips == 1 for lp in grid.time) and not coordinates_in(stage.body)


def vector_along(plan: Plan) -> bool:
    """Returns True if a program's vectors lie along a reduction."""
    lane = plan.program.lane
    return lane is not None and plan.nest.dims[lane].is_reduce


def kinds(plan: Plan) -> list[tuple[int, ...]]:
    """Returns the reductions' extents for each class of tiles, the fullest first: tiles at the end of a dimension may have less."""
    nest, tile = plan.nest, plan.program.unit_tile
    found = []
    for dim in nest.reduce:
        full, cut = min(tile[dim], nest.extents[dim]), [lp for lp in plan.grid.loops if lp.dim == dim]
        last = [nest.extents[dim] - (lp.parts - 1) * lp.step for lp in cut]
        found.append([full, *[min(full, extent) for extent in last if extent < full]])
    return list(itertools.product(*found))


def task_of(plan: Plan) -> Task:
    """Returns the inputs of the choice for a plan."""
    program, nest, stage = plan.program, plan.nest, plan.nest.stage
    assert stage.reducer is not None
    last = plan.output.dims[-1].terms[0][0] if plan.output.dims else None
    results = [program.unit_tile[d] for d in nest.spatial]
    along, inner = vector_along(plan), program.unit_tile[last] if last is not None else 1
    rows = math.prod(results) // inner
    vector = 1 if along else program.width
    finished = stage.epilogue if plan.parts == 1 else None
    late = loads_in(finished) if finished is not None else []
    whole = MapShape(
        dtype=stage.body.dtype,
        outputs=rows * _padded(inner, vector),
        points=1,
        vector=vector,
        loads=len(loads_in(stage.body)),
        ops=(*operations(stage.body, nest), FOLDS[stage.reducer]),
        epilogue_loads=len(late),
        epilogue_ops=operations(finished, nest) if finished is not None else (),
        reduces=True,
    )
    dense = math.prod(results) == plan.output.elements and not late and not (finished is not None and coordinates_in(finished))
    place = nest.reduce.index(program.lane) if along and program.lane is not None else None
    return Task(whole, program.width, rows, inner, dense, place)


def cuts(plan: Plan) -> dict[tuple[int, ...], Cut | None]:
    """Returns the split of each class of tiles, by the extents of its reductions; None: it computes each result at once.

    Each class takes its fastest split, but the fullest class the fastest that is no faster than the others': the machine waits for
    it.
    """
    machine, every, task = plan.chip, kinds(plan), task_of(plan)
    key = task, tuple(every)
    found = machine.choices.get(key)
    if found is None:
        least = [min(_ways(machine, task, extents)) for extents in every[1:]]
        floor = max([taken for taken, *_ in least], default=0)
        first = min(way for way in _ways(machine, task, every[0]) if way[0] >= floor)
        found = machine.choices[key] = dict(zip(every, [way[-1] for way in (first, *least)], strict=True))
    return found


def fullest(plan: Plan) -> list[MapShape]:
    """Returns the vertices of the tiles with the most work, in sequence."""
    extents, cut = next(iter(cuts(plan).items()))
    return shapes(task_of(plan), extents, cut)


def partial_results(plan: Plan) -> int:
    """Returns the elements of the buffer for partial results; 0 where no tile has any."""
    return max([cut.parts for cut in cuts(plan).values() if cut is not None], default=0) * plan.output.elements


def steps(plan: Plan, cut: Cut) -> tuple[int, int]:
    """Returns the distances of neighbouring results, and of one result's neighbouring partial results, in their buffer."""
    return (cut.parts, 1) if vector_along(plan) else (1, plan.output.elements)


def shapes(task: Task, extents: tuple[int, ...], cut: Cut | None) -> list[MapShape]:
    """Returns the vertices of a class of tiles, in sequence."""
    if cut is None:
        return [task.whole._replace(points=math.prod(extents))]
    others = math.prod(extents) // extents[cut.place]
    made = task.whole._replace(vector=task.vector, epilogue_loads=0, epilogue_ops=())
    found = [made._replace(outputs=_results(task, cut.parts), points=cut.points * others)]
    if cut.rest:
        found.append(made._replace(outputs=_results(task, cut.rest), points=others))
    total = task.rows * task.last
    outputs = _padded(total, cut.vector) if task.dense else task.rows * _padded(task.last, cut.vector)
    adding = task.whole._replace(outputs=outputs, points=cut.parts, vector=cut.vector, loads=1, ops=task.whole.ops[-1:])
    return [*found, adding]


def _results(task: Task, parts: int) -> int:
    """Returns the number of partial results, rows in whole vectors."""
    if task.along is not None:
        return task.rows * task.last * _padded(parts, task.vector)
    return parts * task.rows * _padded(task.last, task.vector)


def _padded(count: int, size: int) -> int:
    return -(-count // size) * size


def _ways(machine: Machine, task: Task, extents: tuple[int, ...]) -> Iterator[tuple[int, int, Cut | None]]:
    """Yields the cycles of each candidate split, a number that breaks ties, and the split."""
    yield _taken(machine, task, extents, None), 0, None
    widths = {1} if task.along is not None else {1, machine.vector_type(task.whole.dtype).width}
    number = 0
    for place, extent in enumerate(extents):
        if task.along in (None, place):
            for parts in _counts(machine, task, extent):
                for vector in sorted(widths, reverse=True):
                    number += 1
                    cut = Cut(place, parts, extent // parts, extent % parts, vector)
                    yield _taken(machine, task, extents, cut), number, cut


def _taken(machine: Machine, task: Task, extents: tuple[int, ...], cut: Cut | None) -> int:
    return sum([cycles.mapped(machine, shape) for shape in shapes(task, extents, cut)])


def _counts(machine: Machine, task: Task, extent: int) -> list[int]:
    """Returns candidate numbers of partial results.

    They are as many as workers hold in accumulators, a divisor, or about as many as each of them has points.
    """
    unit, step = machine.vector_type(task.whole.dtype), task.vector if task.along is not None else 1
    kept = max(unit.accumulate, task.vector) if task.vector > 1 else 1
    results = task.rows * (task.last if task.along is not None else _padded(task.last, task.vector))
    sets = [machine.workers * kept * number // results for number in range(1, MOST_SETS + 1)]
    root = math.isqrt(extent)
    divisors = [n for n in range(step, max(sets) + 1, step) if extent % n == 0]
    found = {n // step * step for n in (*sets, root, root + step)} | set(divisors)
    return sorted(n for n in found if 1 < n <= extent)
