"""What tiles compute: products on the matrix unit, elementwise work and reductions, as vertices of the manifest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from roller.plugin import Accumulator, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary
from roller_ipu_sim import work
from roller_ipu_sim.manifest import Amp, AmpLoop, Fill, Map, Reduce, Ref, VertexGroup, View, tiles_in
from roller_ipu_sim.places import TileSet, Trips, begun, box_number, coordinates, number, position, ring_sets, tile_set
from roller_ipu_sim.plan import ArrayPlan, Plan
from roller_ipu_sim.work import finishes, loads_in, operands, pieces, whole_share

Tree = tuple[Any, ...]


def base(array: ArrayPlan, trips: Trips, step: int) -> int:
    """Where in its buffer a tile's box begins: `trips` as its loops stand, `step` of a reduction whose parts are handed on."""
    if array.shifts:
        return step % 2 * array.elements
    return box_number(array, trips) * array.elements if array.in_place else 0


def computing(plan: Plan, trips: Trips) -> Iterator[VertexGroup]:
    """The vertices of one step: the same on all tiles, but for those at the end of a reduction that tiles cut, and those that are
    at different parts of one.
    """
    if plan.empty:
        yield _identity(plan, trips)
        return
    serial = plan.grid.serial
    first = all(not t or lp.unit for t, lp in zip(trips, serial, strict=True))
    if plan.program.atom.kind == "matrix":
        for tiles, at in _parts(plan, trips):
            yield VertexGroup(tiles=tiles, vertex=_amp(plan, at, trips[0] if trips else 0, first))
        return
    for tiles, reduce in _classes(plan, trips):
        if all(reduce.values()) or first:
            yield _mapped(plan, trips, tiles, reduce, first)


def _parts(plan: Plan, trips: Trips) -> Iterator[tuple[TileSet, Trips]]:
    """Sets of tiles with how far their loops are: the same for all where no array that lies in place depends on it."""
    placed = [a for a in plan.arrays if a.in_place and a.boxes > 1]
    if not plan.shifting or not placed:
        yield tile_set(plan.grid, {}), begun(plan, (0,) * len(plan.grid.loops), trips)
        return
    for part, tiles in ring_sets(plan).items():
        yield tiles, ((trips[0] + part) % plan.grid.serial[0].trips,)


IDENTITY = {"sum": 0, "prod": 1, "max": "-inf", "min": "inf"}  # of floats; integers have their least and largest values


def _identity(plan: Plan, trips: Trips) -> VertexGroup:
    """What a reduction over nothing gives."""
    finished = plan.parts > 1 or finishes(plan)
    offset = 0 if finished else box_number(plan.output, trips) * plan.output.elements
    value = IDENTITY[plan.nest.stage.reducer or "sum"]
    to = Ref(buffer=plan.buffer("acc" if finished else "out"), offset=offset)
    return VertexGroup(tiles=tile_set(plan.grid, {}), vertex=Fill(to=to, elements=plan.output.elements, value=value))


def _whole_blocks(plan: Plan, trips: Trips) -> dict[int, int]:
    """The extents of a product's reductions in a step: the same on all tiles, as zeros are added where an array ends. Parts that
    are handed on are all of one size.
    """
    time = {lp.dim: t * lp.step for t, lp in zip(trips, plan.grid.serial, strict=True) if not lp.unit and not plan.shifting}
    tile = plan.program.unit_tile
    return {dim: min(tile[dim], whole_share(plan, dim) - time.get(dim, 0)) for dim in plan.nest.reduce}


def _classes(plan: Plan, trips: Trips) -> Iterator[tuple[TileSet, dict[int, int]]]:
    """Sets of tiles with the extents of their reductions in a step."""
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
    """The tiles that are the last ones along some axes, and not along others."""
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
    """The product of one step: groups, columns, kernel positions and blocks of the reduction around the rows."""
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


def _order(plan: Plan) -> list[int]:
    """Spatial dimensions as loops of a map: that along which results lie side by side comes last."""
    last = work.last_dim(plan)
    return [d for d in plan.nest.spatial if d != last] + [d for d in plan.nest.spatial if d == last]


def _mapped(plan: Plan, trips: Trips, tiles: TileSet, reduce: dict[int, int], first: bool) -> VertexGroup:
    nest, stage, tile = plan.nest, plan.nest.stage, plan.program.unit_tile
    spatial, over = _order(plan), list(nest.reduce)
    dims, extents = [*spatial, *over], [tile[d] for d in spatial] + [reduce[d] for d in over]
    trees = _Trees(plan, trips, dims)
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
        vector=plan.program.width,
        loads=tuple(trees.views),
        body=body,
        reducer=stage.reducer,
        accumulate=not first and stage.reducer is not None,
        epilogue_loads=tuple(trees.late),
        epilogue=finished,
        out=View(buffer=plan.buffer(buffer), offset=offset, strides=tuple([out.step(d) for d in spatial])),
    )
    return VertexGroup(tiles=tiles, vertex=vertex, origins=trees.origins(tiles))


class _Trees:
    """Scalar trees of a stage as trees of the manifest, with the views that they load from."""

    def __init__(self, plan: Plan, trips: Trips, dims: list[int]) -> None:
        self.plan, self.trips, self.dims = plan, trips, dims
        self.views: list[View] = []
        self.late: list[View] = []
        self._names: dict[Coordinate, str] = {}
        self._known: dict[Load, int] = {load: n for n, load in enumerate(loads_in(plan.nest.stage.body))}
        self.views = [self._view(load, self.dims) for load in self._known]

    def tree(self, node: Scalar) -> Tree:
        """The body of a stage."""
        match node:
            case Load():
                return ("load", self._known[node])
            case Accumulator():
                return ("result",)
            case Const(value, dtype):
                return ("const", value if isinstance(value, bool | int) or math.isfinite(value) else str(value), dtype)
            case Unary(op, value):
                return (op, self.tree(value))
            case Binary(op, left, right):
                return (op, self.tree(left), self.tree(right))
            case Select(condition, yes, no):
                return ("select", self.tree(condition), self.tree(yes), self.tree(no))
            case Cast(value, dtype):
                return ("cast", dtype, self.tree(value))
            case Coordinate():
                return self._index(node)
        raise AssertionError(node)

    def finished(self, node: Scalar) -> Tree:
        """The epilogue, whose loads are counted apart."""
        spatial = [d for d in self.dims if not self.plan.nest.dims[d].is_reduce]
        self._known = {load: n for n, load in enumerate(loads_in(node))}
        self.late = [self._view(load, spatial) for load in self._known]
        return self.tree(node)

    def _view(self, load: Load, dims: list[int]) -> View:
        array = self.array_of(load)
        return View(
            buffer=array.box_buffer,
            offset=base(array, self.trips, 0) + array.begin,
            strides=tuple([array.step(d) for d in dims]),
        )

    def array_of(self, load: Load) -> ArrayPlan:
        """The array that a load reads."""
        return next(a for a in self.plan.arrays if a.access.tensor.name == load.tensor and a.access.index == load.index)

    def _index(self, node: Coordinate) -> Tree:
        """A coordinate: where the tile stands, and a share of each loop."""
        name = self._names.setdefault(node, f"origin{len(self._names)}")
        walked = [(place, c) for place, d in enumerate(self.dims) for c in [_coefficient(self.plan, node, d)] if c]
        found: Tree = ("index", walked[0][0] if walked else 0, walked[0][1] if walked else 0, name)
        for place, c in walked[1:]:
            found = ("add", found, ("index", place, c, None))
        return found

    def origins(self, tiles: TileSet) -> dict[str, tuple[int, ...]]:
        """Where each tile of a set stands, for every coordinate that trees ask for."""
        grid, found = self.plan.grid, {}
        if not self._names:
            return {}
        where = {number(grid, coords): coords for coords in coordinates(grid)}
        for node, name in self._names.items():
            values = []
            for tile in tiles_in(tiles):
                at = [position(grid, d, where[tile], self.trips) * _coefficient(self.plan, node, d) for d in self.dims]
                values.append(node.index.offset + sum(at))
            found[name] = tuple(values)
        return found


def _coefficient(plan: Plan, node: Coordinate, dim: int) -> int:
    return node.index.coefficient(plan.nest.dims[dim].members[-1].name)


def finishing(plan: Plan, trips: Trips, vector: int) -> Iterator[VertexGroup]:
    """Results from what has been added up: the epilogue, or the type of the output."""
    if not finishes(plan):
        return
    stage, out, tile = plan.nest.stage, plan.output, plan.program.unit_tile
    epilogue = stage.epilogue if stage.epilogue is not None else Cast(Accumulator(stage.body.dtype), out.access.tensor.dtype)
    whole, spatial = tile_set(plan.grid, {}), _order(plan)
    rows = [(whole, tuple([tile[d] for d in spatial]))] if plan.parts == 1 else [(t, (n,)) for t, n in holders(plan)]
    dims, source = (spatial, "acc") if plan.parts == 1 else ([], "sum")
    steps = tuple([out.step(d) for d in spatial]) if plan.parts == 1 else (1,)
    at = box_number(out, trips) * (out.elements if plan.parts == 1 else pieces(plan).size)
    for tiles, extents in rows:
        trees = _Trees(plan, trips, dims)
        body = _shifted(trees.finished(epilogue))
        vertex = Map(
            dtype=stage.body.dtype,
            loops=extents,
            vector=vector,
            loads=(View(buffer=plan.buffer(source), offset=0, strides=steps), *trees.late),
            body=body,
            out=View(buffer=plan.buffer("out"), offset=at, strides=steps),
        )
        yield VertexGroup(tiles=tiles, vertex=vertex, origins=trees.origins(tiles))


def _shifted(tree: Tree) -> Tree:
    """A tree of an epilogue as a body: the result is the first load."""
    match tree:
        case ("result",):
            return ("load", 0)
        case ("load", int(which)):
            return ("load", which + 1)
        case ("const" | "index", *_):
            return tree
    return tuple([_shifted(part) if isinstance(part, tuple) else part for part in tree])


def holders(plan: Plan) -> Iterator[tuple[TileSet, int]]:
    """The tiles that add up each piece of results, and its elements."""
    dealt, grid = pieces(plan), plan.grid
    axes = [axis for axis, lp in enumerate(grid.loops) if plan.nest.dims[lp.dim].is_reduce]
    for piece in range(dealt.count):
        at, left = {}, piece
        for axis in reversed(axes):
            left, at[axis] = divmod(left, grid.loops[axis].parts)
        yield tile_set(grid, at), min(dealt.size, dealt.elements - piece * dealt.size)


def adding(plan: Plan, trips: Trips, vector: int) -> Iterator[VertexGroup]:
    """Parts of results put together, by each tile its piece."""
    size, stage = pieces(plan).size, plan.nest.stage
    target, at = ("sum", 0) if finishes(plan) else ("out", box_number(plan.output, trips) * size)
    for tiles, outputs in holders(plan):
        if stage.reducer not in (None, "sum"):
            folded = Map(
                dtype=stage.body.dtype,
                loops=(outputs, plan.parts),
                reduce=1,
                vector=vector,
                loads=(View(buffer=plan.buffer("parts"), offset=0, strides=(1, size)),),
                body=("load", 0),
                reducer=stage.reducer,
                out=View(buffer=plan.buffer(target), offset=at, strides=(1,)),
            )
            yield VertexGroup(tiles=tiles, vertex=folded)
            continue
        vertex = Reduce(
            acc_dtype=plan.nest.stage.body.dtype,
            partials=plan.parts,
            outputs=outputs,
            parts=Ref(buffer=plan.buffer("parts"), offset=0),
            step=size,
            out=Ref(buffer=plan.buffer(target), offset=at),
        )
        yield VertexGroup(tiles=tiles, vertex=vertex)
