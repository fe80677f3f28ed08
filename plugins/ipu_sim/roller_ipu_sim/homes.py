"""Where tensors live: which tile keeps which part of the stored array, from the beginning or at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from roller_ipu_sim.manifest import Placement, TensorHome
from roller_ipu_sim.places import begun, box_number, box_trips, coordinates, number, share_of, starts, touched
from roller_ipu_sim.plan import ArrayDim, ArrayPlan, Plan
from roller_ipu_sim.windows import Interval, Windows
from roller_ipu_sim.work import pieces

Role = Literal["input", "constant", "output"]


def home(array: ArrayPlan, role: Role, placements: tuple[Placement, ...]) -> TensorHome:
    """A tensor with its layout: dimensions in stored order, extents padded to what boxes cover."""
    layout = tuple([(d.source, d.divisor, None if _highest(array, d) else d.extent) for d in array.dims])
    return TensorHome(
        name=array.access.tensor.name,
        dtype=array.access.tensor.dtype,
        shape=array.merged,
        role=role,
        layout=layout,
        stored=stored(array),
        placements=placements,
    )


def _highest(array: ArrayPlan, dim: ArrayDim) -> bool:
    return all(d.divisor <= dim.divisor for d in array.dims if d.source == dim.source)


def stored(array: ArrayPlan) -> tuple[int, ...]:
    """Extents of the stored array."""
    found = []
    for dim, box in zip(array.dims, array.box, strict=True):
        whole = dim.plain(array.nest.extents) and (array.plain or dim is array.dims[-1])
        found.append(array.grid.last(dim.terms[0][0]) + box if whole else dim.extent)
    return tuple(found)


def kept(plan: Plan, array: ArrayPlan) -> Iterator[Placement]:
    """What tiles keep of an input from the beginning."""
    if not array.plain:
        yield from _window_parts(array)
        return
    if array.shifts:
        yield from _first_parts(plan, array)
        return
    grid = array.grid
    others = [axis for axis in range(len(grid.loops)) if axis not in touched(array)]
    for coords in coordinates(grid):
        share = share_of(grid, coords, others)
        first = share * array.share
        count = min(array.share, array.elements - first)
        if count <= 0:
            continue
        for trips in box_trips(array):
            box = box_number(array, trips)
            alone = array.in_place or array.kept
            at = box * array.elements + first if alone else box * array.share
            buffer = array.box_buffer if alone else array.home_buffer
            yield Placement(
                tile=number(grid, coords),
                buffer=buffer,
                offset=at,
                start=starts(array, coords, trips),
                shape=array.box,
                first=first,
                count=count,
            )


def _first_parts(plan: Plan, array: ArrayPlan) -> Iterator[Placement]:
    """Of an array whose parts are handed on, the part with which each tile begins."""
    for coords in coordinates(array.grid):
        start = starts(array, coords, begun(plan, coords, (0,)))
        yield Placement(tile=number(array.grid, coords), buffer=array.box_buffer, offset=0, start=start, shape=array.box)


def interval_table(windows: Windows) -> list[dict[tuple[int, int], Interval]]:
    """The intervals of each dimension by owner and share."""
    return [{(i.owner, i.share): i for i in windows.intervals(place)} for place in range(len(windows.array.dims))]


def _window_parts(array: ArrayPlan) -> Iterator[Placement]:
    windows, grid = Windows(array), array.grid
    table, others = interval_table(windows), [a for a in range(len(grid.loops)) if a not in windows.owners]
    for coords in coordinates(grid):
        share = share_of(grid, coords, others)
        mine = window_part(windows, table, coords, share)
        if mine is not None:
            low, shape = [i.low for i in mine], [i.high - i.low for i in mine]
            yield Placement(tile=number(grid, coords), buffer=array.home_buffer, offset=0, start=tuple(low), shape=tuple(shape))


def window_part(
    windows: Windows, table: list[dict[tuple[int, int], Interval]], coords: tuple[int, ...], share: int
) -> list[Interval] | None:
    """The intervals that a tile keeps, one of each dimension; None where it keeps nothing."""
    found = []
    for place, axis in enumerate(windows.owners):
        alone = place != windows.shared[0]
        interval = table[place].get((coords[axis] if axis is not None else 0, 0 if alone else share))
        if interval is None:
            return None
        found.append(interval)
    return found if windows.array.dims or not share else None


def results(plan: Plan) -> Iterator[Placement]:
    """Where results are at the end."""
    array, grid = plan.output, plan.grid
    parts = [axis for axis, lp in enumerate(grid.loops) if plan.nest.dims[lp.dim].is_reduce]
    dealt = pieces(plan) if plan.parts > 1 else None
    for coords in coordinates(grid):
        for trips in box_trips(array):
            box, first, count, size = box_number(array, trips), 0, array.elements, array.elements
            if dealt is not None:
                first, size = share_of(grid, coords, parts) * dealt.size, dealt.size
                count = min(dealt.size, dealt.elements - first)
            if count > 0:
                yield Placement(
                    tile=number(grid, coords),
                    buffer=plan.buffer("out"),
                    offset=box * size,
                    start=starts(array, coords, trips),
                    shape=array.box,
                    first=first,
                    count=count,
                )
