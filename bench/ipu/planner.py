"""A planner that follows PopLibs' rules, as the baseline of programs for the simulated IPUs: every split, rated by the same model.

The rules, and where they come from (graphcore/poplibs, MIT; facts, no code):

- **Products and convolutions** (poplin): tiles split batch, height and width, output channels and input channels; batch rows are
  streamed, output channels stay; the matrix unit's own grains. Operands lie elsewhere and are received whole, weights are loaded
  at the plain rate; kernel positions are not split. Rows that do not fit follow one another (the outermost loop, as often as is
  needed). PopLibs' planner also has transforms, among them a swap of the operands, which this one has not.
- **Windows** (poplin's grouped convolutions, popnn's pooling): every split of batch, channels, height and width; vectors lie along
  channels, as both group them; operands are received whole.
- **Sums over dimensions** (popops): results and reductions split over tiles in every way; what is added lies where it is added, as
  popops reduces first where its input lies.
- **Element by element** (popops): at least 128 bytes of results a tile, as poputil's mapTensorLinearly means to spread; popops
  computes where its operands lie, so what a tile has to itself is not exchanged. A linear spread need not be a box; with several
  dimensions every box is tried.

Structure chosen after the whole products of `bench.ipu.gemm`, digitised from silicon, had been seen: operands received whole (with
each tile's own part in place a closed form lay a little further off), no swap (PopLibs has it; the points are met better without),
float16 partial results (not stated for the figure), the pipelined reduction. No constant was fitted to them. No IPU and no Poplar
SDK was used; cycles are simulated ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from roller.device.chip import resolve
from roller.errors import ConstructionError
from roller.frozen import FrozenMap
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Access, Nest, Tile, variants
from roller.ir.scalar import loads
from roller.program.alignment import Multiple, even_extents
from roller.program.estimate import Estimate
from roller.program.rprogram import StageProgram
from roller.search.choices import program_of
from roller.search.tile_space import TileSpace, start, tile_spaces
from roller.target.hardware import HardwareSpec
from roller_ipu_sim.cost import model

LEAST_BYTES = 128  # of an array spread linearly, on a tile: poputil's mapTensorLinearly
MOST_SERIAL = 64  # rows that follow one another at most
TILE_LEVEL = 1


@dataclass(frozen=True)
class Planned:
    """The best program of a stage under the rules, its simulated cycles and their kinds, and how many splits there were."""

    program: StageProgram
    cycles: int
    terms: Mapping[str, int]
    splits: int

    def parts(self) -> dict[str, int]:
        """How many parts each dimension of the nest is cut into."""
        nest, tile = self.program.nest, self.program.unit_tile
        return {d.name: -(-d.extent // e) for d, e in zip(nest.dims, tile, strict=True)}


@dataclass(frozen=True)
class Family:
    """What the rules say of one stage with one atom: which extents unit tiles may have, and what the machine makes use of."""

    space: TileSpace
    kind: str  # "product", "window", "reduction", "elementwise"
    steps: Tile  # unit tiles are multiples of it, or whole dimensions

    @cached_property
    def in_place(self) -> bool:
        """True if operands lie where they are needed."""
        return self.kind in ("reduction", "elementwise")

    @property
    def most_turns(self) -> int:
        """How many parts of the outermost loop may follow one another on a tile."""
        return MOST_SERIAL if self.kind == "product" else 1

    @cached_property
    def reduced(self) -> int | None:
        """The reduction that tiles may split."""
        nest = self.space.nest
        if self.kind == "product":
            return dict(self.space.mapping)["k"]
        if self.kind == "reduction":
            return max(nest.reduce, key=lambda dim: nest.extents[dim])
        return None

    def tiles(self, most: int) -> Iterator[Tile]:
        """Every unit tile of equal parts: at most so many parts, but that those of the outermost loop may follow one another."""
        yield from self._tiles(len(self.space.nest.dims) - 1, (), most)

    def _tiles(self, dim: int, inner: Tile, left: int) -> Iterator[Tile]:
        if dim < 0:
            if self._allowed(inner):
                yield inner
            return
        for extent in self._extents(dim):
            trips = -(-self.space.nest.extents[dim] // extent)
            if trips <= left * (self.most_turns if dim == 0 else 1):
                yield from self._tiles(dim - 1, (extent, *inner), max(1, left // trips))

    def _extents(self, dim: int) -> list[int]:
        nest = self.space.nest
        if nest.dims[dim].is_reduce and dim != self.reduced:
            return [nest.extents[dim]]
        return even_extents(nest.extents[dim], self.steps[dim], Multiple())

    def _allowed(self, tile: Tile) -> bool:
        if self.kind != "elementwise":
            return True
        nest = self.space.nest
        whole, mine = (math.prod([extents[d] for d in nest.spatial]) for extents in (nest.extents, tile))
        return mine * nest.output.element_bytes >= min(LEAST_BYTES, whole * nest.output.element_bytes)

    def program(self, tile: Tile) -> StageProgram:
        """The program of a unit tile."""
        space, dim = self.space, self.reduced
        made = program_of(space, space.levels, (tile, self.inner))
        parts = 1 if dim is None else -(-space.nest.extents[dim] // tile[dim])
        return made.dispatched(split=parts)

    def least(self, tile: Tile) -> float:
        """Cycles that a tile takes at least: its blocks' rows, or its accesses; what it receives of whole operands, and of others'
        partial results, at the exchange's rate.
        """
        nest, options, atom = self.space.nest, self.space.spec.options, self.space.atom
        tile = tuple([min(e, t) for e, t in zip(nest.extents, tile, strict=True)])
        turns = -(-math.prod([-(-e // t) for e, t in zip(nest.extents, tile, strict=True)]) // self.space.spec.unit.count)
        if self.kind == "product":
            kept = [d for d, e in enumerate(tile) if not self._streamed(d)]
            blocks = math.prod([-(-tile[d] // self.inner[d]) for d in kept])
            rows = math.prod([e for d, e in enumerate(tile) if self._streamed(d)])
            computing = turns * blocks * ((atom.startup_cycles or 0) + (atom.row_cycles or 0) * rows)
        else:
            computing = turns * math.prod(tile) * self._accesses / math.prod(self.inner)
        brought = 0 if self.in_place else sum([_box_bytes(a, tile) for a in nest.inputs if _plain(a)])
        if self.reduced is not None and tile[self.reduced] < nest.extents[self.reduced]:
            brought += turns * math.prod([tile[d] for d in nest.spatial]) * nest.accumulator_bytes
        return float(computing + brought / options["exchange"]["in_bytes"])

    @cached_property
    def _accesses(self) -> int:
        """Arrays read at a point, at least a cycle each for a vector."""
        return max(1, len({load.tensor for load in loads(self.space.nest.stage.body)}))

    @cached_property
    def inner(self) -> Tile:
        """The atom's tile."""
        return start(self.space)

    def _streamed(self, dim: int) -> bool:
        """True for a dimension of rows: only what is streamed depends on it."""
        nest = self.space.nest
        return nest.factor_touches(0)[dim] and not nest.factor_touches(1)[dim]


def _box_bytes(array: Access, tile: Tile) -> int:
    """Bytes of what a tile reads of an array that no window moves over."""
    return math.prod([e for d, e in enumerate(tile) if array.touches[d]]) * array.element_bytes


def poplibs(spec: HardwareSpec, in_place: bool) -> HardwareSpec:
    """The chip for programs that make no use of the interleaved region, and of parts in place only where told."""
    options = {**spec.options, "placing": {"in_place": in_place, "interleaved": False}}
    return spec.model_copy(update={"options": FrozenMap(options)})


def families(expr: TensorExpr, number: int, spec: HardwareSpec) -> list[Family]:
    """What the rules admit for a stage: the matrix unit, with batch rows streamed, where it is a product; else vectors, and single
    elements.
    """
    device, _ = resolve(f"{spec.device}:{spec.chip}")
    rules, stage = device.rules(spec, expr), expr.stages[number]
    found = tile_spaces(variants(stage, expr.tensors, spec.spread), spec, rules, device.cost_parameters(spec, expr))
    products = [s for s in found if _streams_rows(s)]
    chosen = products or [s for s in found if s.atom.kind != "matrix" and _lane_allowed(s)]
    made = []
    for space in chosen:
        inner = start(space)
        rows = dict(space.mapping).get("m") if products else None
        steps = [
            1 if dim == rows else math.lcm(inner[dim], rules.multiple(TILE_LEVEL, d.name).step)
            for dim, d in enumerate(space.nest.dims)
        ]
        made.append(Family(space, "product" if products else kind_of(space.nest), tuple(steps)))
    return made


def _streams_rows(space: TileSpace) -> bool:
    """True for the matrix unit with all its roles, rows along the first operand."""
    roles = dict(space.mapping)
    return space.atom.kind == "matrix" and len(roles) == 3 and space.nest.factor_touches(0)[roles["m"]]


def kind_of(nest: Nest) -> str:
    """What a stage is, if it is no product for the matrix unit."""
    if not nest.reduce:
        return "elementwise"
    return "reduction" if all(_plain(a) for a in nest.inputs) else "window"


def _plain(access: Access) -> bool:
    return not access.guarded and all(len(index.terms) <= 1 and not index.offset for index in access.index)


def _lane_allowed(space: TileSpace) -> bool:
    """Vectors of windows lie along channels: the last dimension that no window moves along."""
    if kind_of(space.nest) != "window" or not space.mapping:
        return True
    return space.mapping[0][1] == channels(space.nest)


def channels(nest: Nest) -> int | None:
    """The last dimension of the results that is by itself in every index where it occurs."""
    free = [d for d in nest.spatial if not any(_shared(a, nest, d) for a in nest.accesses)]
    return free[-1] if free else None


def _shared(access: Access, nest: Nest, dim: int) -> bool:
    names = {axis.name for axis in nest.dims[dim].members}
    return any(names & {n for n, _ in index.terms} and len(index.terms) > 1 for index in access.index)


def best(family: Family) -> Planned | None:
    """The best split of a family; None where none is possible. Splits are tried in the order of what they take at least."""
    spec = poplibs(family.space.spec, family.in_place)
    ranked = sorted((family.least(tile), tile) for tile in family.tiles(spec.unit.count))
    found: tuple[Estimate, StageProgram] | None = None
    hertz = spec.clock_ghz * 1e9
    for least, tile in ranked:
        if found is not None and least > found[0].seconds * hertz:
            break
        program = family.program(tile)
        rated = model.estimate(spec, program)
        if math.isfinite(rated.seconds) and (found is None or rated.seconds < found[0].seconds):
            found = rated, program
    if found is None:
        return None
    terms = {name: round(seconds * hertz) for name, seconds in found[0].terms if seconds}
    return Planned(found[1], round(found[0].seconds * hertz), terms, len(ranked))


def planned(expr: TensorExpr, spec: HardwareSpec) -> list[Planned]:
    """The best program of each stage of an expression; `ConstructionError` where one has none."""
    whole, made = fuse(expr), []
    for number, stage in enumerate(whole.stages):
        found = [p for family in families(whole, number, spec) if (p := best(family)) is not None]
        if not found:
            raise ConstructionError(f"no split of {stage.name!r} fits {spec.device}:{spec.chip}", {"splits": 0})
        made.append(min(found, key=lambda p: p.cycles))
    return made
