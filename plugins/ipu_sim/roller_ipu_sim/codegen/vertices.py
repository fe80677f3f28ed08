"""Vertices of the manifest: products on the matrix unit, elementwise work and reductions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from roller.plugin import Accumulator, Cast, Scalar
from roller_ipu_sim.codegen.scalar_trees import Trees, as_body, base, result_order
from roller_ipu_sim.manifest.models import Amp, AmpLoop, Fill, Map, Reduce, Ref, VertexGroup, View
from roller_ipu_sim.plan import split_in_tile, work
from roller_ipu_sim.plan.split_in_tile import Cut
from roller_ipu_sim.plan.stage_plan import Plan
from roller_ipu_sim.plan.tile_coordinates import TileSet, Trips, begun, box_number, ring_sets, tile_set
from roller_ipu_sim.plan.work import finishes, operands, whole_share


def computing(plan: Plan, trips: Trips) -> Iterator[tuple[str, list[VertexGroup]]]:
    """Yields the vertices of one step, with a name for each compute set.

    They are the same on all tiles, except for those at the end of a reduction that is split over tiles, and those at different
    parts of one.
    """
    serial = plan.grid.serial
    first = all(not t or lp.unit for t, lp in zip(trips, serial, strict=True))
    if plan.empty:  # other reductions may still have steps
        yield from [("compute", [_identity(plan, trips)])] if first else []
    elif plan.program.atom.kind == "matrix":
        step = trips[0] if trips else 0
        yield "compute", [VertexGroup(tiles=tiles, vertex=_amp(plan, at, step, first)) for tiles, at in _parts(plan, trips)]
    elif split_in_tile.applies(plan):
        yield from _cut_inside(plan, trips)
    else:
        classes = [(tiles, reduce) for tiles, reduce in _classes(plan, trips) if all(reduce.values()) or first]
        yield "compute", [_mapped(plan, trips, tiles, reduce, first) for tiles, reduce in classes]


def _cut_inside(plan: Plan, trips: Trips) -> Iterator[tuple[str, list[VertexGroup]]]:
    """Yields each tile's partial results, those of the left-over points, and their sums; unsplit tiles compute results directly."""
    steps: dict[str, list[VertexGroup]] = {"compute": [], "compute rest of": [], "add inside": []}
    chosen = split_in_tile.cuts(plan)
    for tiles, reduce in _classes(plan, trips):
        cut = chosen[tuple(reduce.values())]
        if cut is None:
            steps["compute"].append(_mapped(plan, trips, tiles, reduce, True))
            continue
        steps["compute"].append(_partial(plan, trips, tiles, reduce, cut, False))
        if cut.rest:
            steps["compute rest of"].append(_partial(plan, trips, tiles, reduce, cut, True))
        steps["add inside"].append(_added(plan, trips, tiles, cut))
    yield from [(name, groups) for name, groups in steps.items() if groups]


def _partial(plan: Plan, trips: Trips, tiles: TileSet, reduce: dict[int, int], cut: Cut, rest: bool) -> VertexGroup:
    """Returns the vertex of a tile's partial results, or of left-over points: vectors lie along them, or along the results."""
    stage, spatial, dim = plan.nest.stage, result_order(plan), plan.nest.reduce[cut.place]
    over = [d for d in plan.nest.reduce if d != dim]
    trees = Trees(plan, trips, [*spatial, dim, *over])
    results, steps = [plan.program.unit_tile[d] for d in spatial], split_in_tile.steps(plan, cut)
    count, beside = cut.rest if rest else cut.parts, split_in_tile.vector_along(plan)

    def loops(results: Sequence[int], part: int) -> tuple[int, ...]:
        return (*results, part) if beside else (part, *results)

    def view(load: View) -> View:
        along, (by, *others) = load.strides[: len(spatial)], load.strides[len(spatial) :]
        offset = load.offset + (cut.parts * cut.points * by if rest else 0)
        strides = (*loops(along, by), *others) if rest else (*loops(along, by), cut.parts * by, *others)
        return View(buffer=load.buffer, offset=offset, strides=strides)

    points = [*([] if rest else [cut.points]), *[reduce[d] for d in over]]
    vertex = Map(
        dtype=stage.body.dtype,
        loops=(*loops(results, count), *points),
        reduce=len(points),
        vector=plan.program.width,
        loads=tuple([view(load) for load in trees.views]),
        body=trees.tree(stage.body),
        reducer=stage.reducer,
        accumulate=rest,
        out=View(
            buffer=plan.buffer("inside"), offset=0, strides=loops([plan.output.step(d) * steps[0] for d in spatial], steps[1])
        ),
    )
    return VertexGroup(tiles=tiles, vertex=vertex)


def _added(plan: Plan, trips: Trips, tiles: TileSet, cut: Cut) -> VertexGroup:
    """Returns the vertex that adds up a tile's partial results."""
    stage, out, spatial = plan.nest.stage, plan.output, result_order(plan)
    trees = Trees(plan, trips, spatial)
    finished = trees.finished(stage.epilogue) if stage.epilogue is not None and plan.parts == 1 else None
    dense, steps = split_in_tile.task_of(plan).dense, split_in_tile.steps(plan, cut)
    results = (out.elements,) if dense else tuple([plan.program.unit_tile[d] for d in spatial])
    strides = (1,) if dense else tuple([out.step(d) for d in spatial])
    apart = plan.parts > 1
    vertex = Map(
        dtype=stage.body.dtype,
        loops=(*results, cut.parts),
        reduce=1,
        vector=cut.vector,
        loads=(View(buffer=plan.buffer("inside"), offset=0, strides=(*[s * steps[0] for s in strides], steps[1])),),
        body=("load", 0),
        reducer=stage.reducer,
        epilogue_loads=tuple(trees.late),
        epilogue=finished,
        out=View(
            buffer=plan.buffer("acc" if apart else "out"),
            offset=0 if apart else box_number(out, trips) * out.elements,
            strides=strides,
        ),
    )
    return VertexGroup(tiles=tiles, vertex=vertex, origins=trees.origins(tiles))


def _parts(plan: Plan, trips: Trips) -> Iterator[tuple[TileSet, Trips]]:
    """Yields sets of tiles with the state of their loops: one set, unless an array in place depends on that state."""
    placed = [a for a in plan.arrays if a.in_place and a.boxes > 1]
    if not plan.shifting or not placed:
        yield tile_set(plan.grid, {}), begun(plan, (0,) * len(plan.grid.loops), trips)
        return
    for part, tiles in ring_sets(plan).items():
        yield tiles, ((trips[0] + part) % plan.grid.serial[0].trips,)


IDENTITY = {"sum": 0, "prod": 1, "max": "-inf", "min": "inf"}  # for floats; integers use their min and max values


def _identity(plan: Plan, trips: Trips) -> VertexGroup:
    """Returns the fill with the result of an empty reduction."""
    finished = plan.parts > 1 or finishes(plan)
    offset = 0 if finished else box_number(plan.output, trips) * plan.output.elements
    value = IDENTITY[plan.nest.stage.reducer or "sum"]
    to = Ref(buffer=plan.buffer("acc" if finished else "out"), offset=offset)
    return VertexGroup(tiles=tile_set(plan.grid, {}), vertex=Fill(to=to, elements=plan.output.elements, value=value))


def _whole_blocks(plan: Plan, trips: Trips) -> dict[int, int]:
    """Returns the extents of a product's reductions in a step: the same on all tiles, as zeros pad the end of an array.

    Parts that rotate around a ring all have one size.
    """
    time = {lp.dim: t * lp.step for t, lp in zip(trips, plan.grid.serial, strict=True) if not lp.unit and not plan.shifting}
    tile = plan.program.unit_tile
    return {dim: min(tile[dim], whole_share(plan, dim) - time.get(dim, 0)) for dim in plan.nest.reduce}


def _classes(plan: Plan, trips: Trips) -> Iterator[tuple[TileSet, dict[int, int]]]:
    """Yields sets of tiles with the extents of their reductions in a step."""
    nest, grid, tile = plan.nest, plan.grid, plan.program.unit_tile
    ends = [axis for axis, lp in enumerate(grid.loops) if nest.dims[lp.dim].is_reduce]
    time = {lp.dim: t * lp.step for t, lp in zip(trips, grid.serial, strict=True) if not lp.unit}
    for at in itertools.product(*[(False, True) if grid.loops[a].parts > 1 else (False,) for a in ends]):
        reduce = {}
        for dim in nest.reduce:
            whole = whole_share(plan, dim)
            for axis, last in zip(ends, at, strict=True):
                if grid.loops[axis].dim == dim and last:
                    whole = nest.extents[dim] - (grid.loops[axis].parts - 1) * grid.loops[axis].step
            reduce[dim] = max(0, min(tile[dim], whole - time.get(dim, 0)))
        yield _but_last(plan, dict(zip(ends, at, strict=True))), reduce


def _but_last(plan: Plan, last: dict[int, bool]) -> TileSet:
    """Returns the tiles that are the last ones along some axes, and not along others."""
    grid = plan.grid
    if not last:
        return tile_set(grid, {})
    choices = [
        [(axis, c) for c in ([lp.parts - 1] if end else range(lp.parts - (lp.parts > 1)))]
        for axis, end in last.items()
        for lp in [grid.loops[axis]]
    ]
    found = [r for chosen in itertools.product(*choices) for r in tile_set(grid, dict(chosen))]
    return tuple(sorted(found))


def _amp(plan: Plan, trips: Trips, step: int, first: bool) -> Amp:
    """Returns the product of one step: groups, columns, kernel positions and blocks of the reduction around the rows."""
    program, nest, atom = plan.program, plan.nest, plan.program.atom
    m, n, k = (program.role(role) for role in "mnk")
    a, w = operands(plan)
    reduce = _whole_blocks(plan, trips)
    assert n is not None and k is not None
    columns, grain = int(atom.extents["n"]), int(atom.extents["k"])
    out, tile = plan.output, program.unit_tile

    def loop(role: str, dim: int, extent: int, by: int = 1) -> AmpLoop:
        spatial = not nest.dims[dim].is_reduce
        return AmpLoop(role=role, extent=extent, a=a.step(dim) * by, w=w.step(dim) * by, out=out.step(dim) * by if spatial else 0)

    shape = work.amp_shape(plan, work.Steps(1, reduce, first), False)
    rest = [d for d in nest.spatial if d not in (m, n)]
    kinds = {d: "g" if a.touches(d) and w.touches(d) else "n" if w.touches(d) else "m" for d in rest}
    loops = [loop("g", d, tile[d]) for d in rest if kinds[d] == "g"]
    loops += [loop("n", d, tile[d]) for d in rest if kinds[d] == "n"]
    loops += [loop("n", n, -(-tile[n] // columns), columns)]
    loops += [loop("k", d, reduce[d]) for d in nest.reduce if d != k]
    loops += [loop("k", k, -(-reduce[k] // grain), grain)]
    loops += [loop("m", d, tile[d]) for d in rest if kinds[d] == "m"]
    loops += [loop("m", m, tile[m])] if m is not None else [AmpLoop(role="m", extent=1, a=0, w=0, out=0)]
    loops += [loop("n", n, columns), loop("k", k, grain)]
    target = "acc" if plan.parts > 1 or finishes(plan) else "out"
    return Amp(
        in_dtype=atom.in_dtype,
        acc_dtype=atom.acc_dtype,
        zero=first,
        a=Ref(buffer=a.box_buffer, offset=base(a, trips, step) + a.begin),
        w=Ref(buffer=w.box_buffer, offset=base(w, trips, step) + w.begin),
        out=Ref(buffer=plan.buffer(target), offset=box_number(out, trips) * out.elements if target == "out" else 0),
        loops=tuple(loops),
        k_blocks=shape.k_blocks,
        taps=shape.taps,
        n_blocks=shape.n_blocks,
        groups=shape.groups,
    )


def _mapped(plan: Plan, trips: Trips, tiles: TileSet, reduce: dict[int, int], first: bool) -> VertexGroup:
    nest, stage, tile = plan.nest, plan.nest.stage, plan.program.unit_tile
    spatial, over = result_order(plan), list(nest.reduce)
    dims, extents = [*spatial, *over], [tile[d] for d in spatial] + [reduce[d] for d in over]
    trees = Trees(plan, trips, dims)
    body = trees.tree(stage.body)
    apart = plan.parts > 1 or finishes(plan) or (work.several_steps(plan) and stage.reducer is not None)
    finished = trees.finished(stage.epilogue) if stage.epilogue is not None and not apart else None
    buffer = "acc" if plan.parts > 1 or finishes(plan) else "out"
    out = plan.output
    offset = box_number(out, trips) * out.elements if buffer == "out" else 0
    vertex = Map(
        dtype=stage.body.dtype,
        loops=tuple(extents),
        reduce=len(over),
        vector=1 if split_in_tile.vector_along(plan) else plan.program.width,
        loads=tuple(trees.views),
        body=body,
        reducer=stage.reducer,
        accumulate=not first and stage.reducer is not None,
        epilogue_loads=tuple(trees.late),
        epilogue=finished,
        out=View(buffer=plan.buffer(buffer), offset=offset, strides=tuple([out.step(d) for d in spatial])),
    )
    return VertexGroup(tiles=tiles, vertex=vertex, origins=trees.origins(tiles))


def finishing(plan: Plan, trips: Trips) -> Iterator[VertexGroup]:
    """Yields the vertices that finish added results: the epilogue, or the conversion to the output's type."""
    if not finishes(plan) or (plan.parts > 1 and work.adding(plan).finishes):
        return
    stage, out, tile, spatial = plan.nest.stage, plan.output, plan.program.unit_tile, result_order(plan)
    if plan.parts == 1:
        results, at = tuple([tile[d] for d in spatial]), box_number(out, trips) * out.elements
        every = [(tile_set(plan.grid, {}), results, tuple([out.step(d) for d in spatial]), Trees(plan, trips, spatial))]
    else:
        at = box_number(out, trips) * plan.pieces.size
        every = [(tiles, shape, _dense(shape), trees) for tiles, shape, trees in holders(plan, trips)]
    for tiles, extents, steps, trees in every:
        body = as_body(trees.finished(_epilogue(plan)))
        source = plan.buffer("acc" if plan.parts == 1 else "sum")
        vertex = Map(
            dtype=stage.body.dtype,
            loops=extents,
            vector=work.widest(plan),
            loads=(View(buffer=source, offset=0, strides=steps), *trees.late),
            body=body,
            out=View(buffer=plan.buffer("out"), offset=at, strides=steps),
        )
        yield VertexGroup(tiles=tiles, vertex=vertex, origins=trees.origins(tiles))


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the distance in elements between neighbours along each loop, for a dense layout."""
    return tuple([math.prod(shape[place + 1 :]) for place in range(len(shape))])


def _epilogue(plan: Plan) -> Scalar:
    """Returns the tree that finishes a result."""
    stage = plan.nest.stage
    return stage.epilogue if stage.epilogue is not None else Cast(Accumulator(stage.body.dtype), plan.output.access.tensor.dtype)


def holders(plan: Plan, trips: Trips) -> Iterator[tuple[TileSet, tuple[int, ...], Trees]]:
    """Yields the tiles that add up each piece of results, the extents of loops over it, and trees in these loops."""
    dealt, grid = plan.pieces, plan.grid
    axes = [axis for axis, lp in enumerate(grid.loops) if plan.nest.dims[lp.dim].is_reduce]
    dims = [dim for dim, _ in dealt.axes]
    for piece in range(dealt.count):
        at, left = {}, piece
        for axis in reversed(axes):
            left, at[axis] = divmod(left, grid.loops[axis].parts)
        yield tile_set(grid, at), dealt.shape(dealt.of(piece)), Trees(plan, trips, dims, dealt.begin(piece))


def adding(plan: Plan, trips: Trips) -> Iterator[VertexGroup]:
    """Yields the vertices that add up partial results, one piece for each tile."""
    size, stage, chosen = plan.pieces.size, plan.nest.stage, work.adding(plan)
    apart = finishes(plan) and not chosen.finishes
    target, at = ("sum", 0) if apart else ("out", box_number(plan.output, trips) * size)
    for tiles, shape, trees in holders(plan, trips):
        outputs = math.prod(shape)
        if chosen.vector:
            loops = shape if chosen.finishes else (outputs,)
            folded = Map(
                dtype=stage.body.dtype,
                loops=(*loops, plan.parts),
                reduce=1,
                vector=chosen.vector,
                loads=(View(buffer=plan.buffer("parts"), offset=0, strides=(*_dense(loops), size)),),
                body=("load", 0),
                reducer=stage.reducer or "sum",
                epilogue=trees.finished(_epilogue(plan)) if chosen.finishes else None,
                epilogue_loads=tuple(trees.late),
                out=View(buffer=plan.buffer(target), offset=at, strides=_dense(loops)),
            )
            yield VertexGroup(tiles=tiles, vertex=folded, origins=trees.origins(tiles))
            continue
        vertex = Reduce(
            acc_dtype=stage.body.dtype,
            partials=plan.parts,
            outputs=outputs,
            parts=Ref(buffer=plan.buffer("parts"), offset=0),
            step=size,
            out=Ref(buffer=plan.buffer(target), offset=at),
        )
        yield VertexGroup(tiles=tiles, vertex=vertex)
