"""RPrograms: tiles for each memory level, the loops between them, and the staged operands.

A `StageProgram` holds one tile per *tiled* level (`tiled_levels`: the levels that a unit owns, outermost first) and for each an
order of the loops that walk it inside the next outer tile. Everything else is derived. A loop over a spatial dimension runs over
units (cores, SMs, CUs) at the first tiled level, and over lanes (threads) at a level that has several instances in a unit. All
other loops run over time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from roller.ir.expr import ELEMENT_BYTES, TensorExpr
from roller.ir.nest import Nest, Tile
from roller.ir.scalar import Cast, Scalar
from roller.program.dispatch import Dispatch, Loop, Over
from roller.target.hardware import ComputeAtom, HardwareSpec

EXACT_IN: Mapping[str, tuple[str, ...]] = {"int16": ("int8", "uint8")}  # narrower integers, all of whose values a type has
LEAST_BLOCK = 4  # contiguous results from which on transposing them pays


@dataclass(frozen=True, slots=True)
class Staging:
    """A copy of an operand, kept at a level; level 0 means the whole operand, copied once before the nest runs.

    A *panel* (packed panel; shared-memory buffer) holds the values of one factor of the body (`operand` is its number) in the order
    in which the nest consumes them. A *box* (padded copy with halo) holds the data tile of one array (`operand` is its position in
    `nest.accesses`) with its fill values. It lies along the vector (`box_order`), and the nest needs no guard. `row_padding` and
    `run_padding`: elements added to each row of a panel and to each run of its innermost dimension (`roller.layout.banks`).
    `constant` operands are copied when the kernel is built, not when it runs. `shifts`: units that share a copy each begin with
    another part of the reduction. They pass their part on to the neighbour after every step, so that none ever holds more than one
    part (T10's compute-shift). `windowed`: a panel holds each value under sliding windows once, not once for each of their taps
    (`roller.ir.sliding_windows`).
    """

    kind: Literal["panel", "box"]
    operand: int
    level: int
    depth: int = 1
    row_padding: int = 0
    run_padding: int = 0
    constant: bool = False
    shifts: bool = False
    windowed: bool = False


@dataclass(frozen=True)
class StageProgram:
    """The program of one stage: nest, atom, mapping of its roles, a tile per tiled level, loop orders, copies, dispatch to units.

    `levels[i]` is the spec level of `tiles[i]`; the last tile is the innermost one. `orders[i]` lists every dimension, outer loops
    first. `lane_level`: the level whose tiles run concurrently on the lanes of a unit; with `cooperate`, lanes share reductions.
    """

    nest: Nest
    atom: ComputeAtom
    mapping: tuple[tuple[str, int], ...]
    levels: tuple[int, ...]
    tiles: tuple[Tile, ...]
    orders: tuple[tuple[int, ...], ...]
    staged: tuple[Staging, ...] = ()
    dispatch: Dispatch = field(default_factory=Dispatch)
    lane_level: int | None = None
    cooperate: bool = False

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The values that distinguish programs for one nest."""
        return self.atom.name, self.mapping, self.tiles, self.orders, self.staged, self.dispatch, self.cooperate

    def dispatched(self, **changes: Any) -> StageProgram:
        """Returns the program with changed fields of its `Dispatch`."""
        return replace(self, dispatch=replace(self.dispatch, **changes))

    @property
    def inner(self) -> Tile:
        """The innermost tile."""
        return self.tiles[-1]

    @property
    def unit_tile(self) -> Tile:
        """The tile that one unit works on at a time."""
        return self.tiles[0]

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops outside the innermost tile, outermost first."""
        nest, dispatch = self.nest, self.dispatch
        outer, found = nest.extents, dispatch.shares(nest, self.levels[0])
        for share in found:
            outer = (*outer[: share.dim], self.step(share), *outer[share.dim + 1 :])
        for position, (level, tile, order) in enumerate(zip(self.levels, self.tiles, self.orders, strict=True)):
            trips = [(dim, -(-outer[dim] // tile[dim]) if tile[dim] else 0) for dim in order]
            walked = [Loop(dim, count, self._over(dim, position, level), level) for dim, count in trips if count != 1]
            found += walked if position else dispatch.in_bands(nest, tile, walked)
            outer = tile
        return tuple(found)

    def _over(self, dim: int, position: int, level: int) -> Over:
        is_reduce = self.nest.dims[dim].is_reduce
        if level == self.lane_level and (self.cooperate or not is_reduce):
            return "lanes"
        return "time" if position else self.dispatch.over(is_reduce)

    def step(self, loop: Loop) -> int:
        """Returns the positions that one trip of a loop covers."""
        return loop.step if loop.step is not None else self.tiles[self.levels.index(loop.level)][loop.dim]

    @cached_property
    def unit_tiles(self) -> int:
        """The number of tiles dispatched to units."""
        return math.prod(lp.trips for lp in self.loops if lp.over == "units")

    @cached_property
    def repeated(self) -> int:
        """The number of unit tiles that repeat others: those of the last band beyond the end."""
        return self.unit_tiles - self.unbanded.unit_tiles if self.dispatch.band is not None else 0

    def brought_once(self, touches: tuple[bool, ...]) -> bool:
        """True if the units of a cluster all need the same tile of an array, as it does not depend on the cluster's dimension."""
        return self.beside is not None and not touches[self.beside]

    @cached_property
    def beside(self) -> int | None:
        """The dimension along which the unit tiles of a cluster lie; None without one."""
        return next((lp.dim for lp in reversed(self.loops) if lp.over == "units"), None) if self.dispatch.cluster > 1 else None

    @property
    def parted(self) -> bool:
        """True if the unit tiles of some cluster do not all lie along `beside`: after its end, the next tile is elsewhere."""
        last = next((lp.trips for lp in reversed(self.loops) if lp.over == "units"), 1)
        return last % self.dispatch.cluster != 0

    @cached_property
    def in_bands(self) -> bool:
        """True if the band changes the loops."""
        return self.dispatch.band is not None and self.loops != self.unbanded.loops

    @property
    def unbanded(self) -> StageProgram:
        """The program without its band."""
        return replace(self, dispatch=self.dispatch.unbanded)

    @property
    def way(self) -> tuple[object, ...]:
        """The tile space of a program: nest, atom, mapping, whether lanes share reductions, and whether panels are windowed."""
        return self.nest.dims, self.atom, self.mapping, self.cooperate, self.windowed

    @cached_property
    def windowed(self) -> bool:
        """True if some panel is windowed: it holds each value under sliding windows once."""
        return any(s.windowed for s in self.staged)

    @property
    def dealt(self) -> bool:
        """True if unit tiles go one by one to the next free unit, so that units work on neighbouring tiles.

        That holds for units with lanes. Others take a consecutive run of tiles each.
        """
        return self.lane_level is not None

    @cached_property
    def lanes(self) -> int:
        """The number of sub-tiles of a unit tile that run concurrently."""
        return math.prod(lp.trips for lp in self.loops if lp.over == "lanes")

    @cached_property
    def executed(self) -> Tile:
        """The tile whose whole multiples are executed: concurrent lanes all run, sequential ones stop."""
        return self.unit_tile if self.lane_level is not None else self.inner

    @cached_property
    def covered(self) -> Tile:
        """The extents executed: whole multiples of the `executed` tile, and to the end of the last band."""
        steps = list(self.executed)
        if self.repeated and self.dispatch.band is not None:
            dim, count = self.dispatch.band
            steps[dim] *= count
        return tuple([-(-extent // step) * step if step else 0 for extent, step in zip(self.nest.extents, steps, strict=True)])

    def level_tile(self, level: int) -> Tile:
        """Returns the tile resident at a spec level: that of the innermost tiled level at or outside it, else the problem."""
        tile = self.nest.extents
        for tiled, extents in zip(self.levels, self.tiles, strict=True):
            if tiled <= level:
                tile = extents
        return tile

    @property
    def lane(self) -> int | None:
        """The dimension along which a vector atom lies, None without one."""
        return dict(self.mapping).get("n") if self.atom.simd else None

    @cached_property
    def width(self) -> int:
        """Elements of the vector atom, 1 without one."""
        return self.atom.width if self.lane is not None else 1

    @cached_property
    def across(self) -> int | None:
        """The dimension along which a reducing tile's results are contiguous, where they are not along its vector; else None.

        Along it, blocks of results are worth transposing, or partial results worth folding together.
        """
        return next((d for d in self.sides if self.inner[d] >= LEAST_BLOCK), None)

    @cached_property
    def sides(self) -> tuple[int, ...]:
        """The dimensions that `across` may be, for tiles that are long enough there."""
        lane, output = self.lane, self.nest.output
        if lane is None or self.nest.stage.reducer is None or self.width & (self.width - 1) or output.strides[lane] == 1:
            return ()
        return tuple([d for d in self.nest.spatial if output.strides[d] == 1])

    @cached_property
    def tile_depth(self) -> int:
        """The number of loops around the innermost tile and its reduction: up to the last spatial loop, unit loop, and copy."""
        dims = self.nest.dims
        outside = [n + 1 for n, lp in enumerate(self.loops) if not dims[lp.dim].is_reduce or lp.over == "units"]
        return max([*outside, *(copy_depth(self, staging) for staging in self.staged)], default=0)

    @cached_property
    def accumulator_visits(self) -> int:
        """The number of times that an innermost tile's accumulators are loaded and stored.

        It is 1, unless reduce loops lie outside spatial ones that run one after another.
        """
        loops, dims = self.loops, self.nest.dims
        last = max((i for i, lp in enumerate(loops) if not dims[lp.dim].is_reduce and lp.over != "lanes"), default=-1)
        return math.prod([lp.trips for lp in loops[: max(last, 0)] if dims[lp.dim].is_reduce and lp.over == "time"])

    def role(self, name: str) -> int | None:
        """Returns the dimension on which a role of the atom lies."""
        return next((d for r, d in self.mapping if r == name), None)

    def describe(self) -> str:
        """One line: atom, tiles from the unit inwards, split, staging."""
        names = [d.name for d in self.nest.dims]
        tiles = " > ".join("x".join(str(e) for e in t) for t in self.tiles)
        kinds = [f"{'shifted ' * s.shifts}{'windowed ' * s.windowed}{s.kind}" for s in self.staged]
        tail = "".join(f" {k}({','.join(staged_tensors(self.nest, s))}@{s.level})" for k, s in zip(kinds, self.staged, strict=True))
        dispatch, band = self.dispatch, self.dispatch.band if self.in_bands else None
        split = f" split {dispatch.split}" if dispatch.split > 1 else ""
        split += f" cluster {dispatch.cluster}" if dispatch.cluster > 1 else ""
        split += f" bands of {band[1]} {names[band[0]]}" if band else ""
        split += "" if dispatch.parallel else " on one unit"
        turned = [d for _, d in self.mapping] != sorted(d for _, d in self.mapping)
        # A vector along which results are contiguous is the usual one, and is left out.
        turned |= len(self.mapping) == 1 and self.nest.output.strides[self.mapping[0][1]] != 1
        lies = f" ({','.join(f'{role} on {names[d]}' for role, d in self.mapping)})" if turned else ""
        return f"{','.join(names)}: {tiles} {self.atom.name}{lies}{split}{tail}"


@dataclass(frozen=True)
class RProgram:
    """A program for a whole expression: one `StageProgram` for each of its stages, run one after another."""

    expr: TensorExpr
    stages: tuple[StageProgram, ...]

    def describe(self) -> str:
        """One line for each stage."""
        return "; ".join(s.describe() for s in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """The program as plain data: names, extents, tiles, loops, staging (for reports and JSON output)."""
        return {"stages": [_stage_dict(s) for s in self.stages]}


def _stage_dict(program: StageProgram) -> dict[str, Any]:
    names, dispatch, band = [d.name for d in program.nest.dims], program.dispatch, program.dispatch.band
    return {
        "stage": program.nest.stage.name,
        "dims": [{"name": d.name, "extent": d.extent, "kind": "reduce" if d.is_reduce else "spatial"} for d in program.nest.dims],
        "atom": program.atom.name,
        "mapping": {role: names[dim] for role, dim in program.mapping},
        "levels": list(program.levels),
        "tiles": [dict(zip(names, t, strict=True)) for t in program.tiles],
        "loops": [{"dim": names[lp.dim], "trips": lp.trips, "over": lp.over, "level": lp.level} for lp in program.loops],
        "staged": [
            {
                "kind": s.kind,
                "tensors": list(staged_tensors(program.nest, s)),
                "level": s.level,
                "depth": s.depth,
                "row_padding": s.row_padding,
                **({"run_padding": s.run_padding} if s.run_padding else {}),
                "constant": s.constant,
                **({"shifts": True} if s.shifts else {}),
                **({"windowed": True} if s.windowed else {}),
            }
            for s in program.staged
        ],
        "split": dispatch.split,
        "cluster": dispatch.cluster,
        "band": {names[band[0]]: band[1]} if program.in_bands and band else None,
        "share": None if dispatch.share is None else {names[dispatch.share[0]]: dispatch.share[1]},
    }


def staged_tensors(nest: Nest, staging: Staging) -> tuple[str, ...]:
    """Returns the names of the tensors that a staging copies from."""
    if staging.kind == "box":
        return (nest.accesses[staging.operand].tensor.name,)
    return tuple(a.tensor.name for a in nest.inputs if a.factor == staging.operand)


def staged_touches(nest: Nest, staging: Staging) -> tuple[bool, ...]:
    """Returns for every dimension whether the staged copy depends on it."""
    return nest.accesses[staging.operand].touches if staging.kind == "box" else nest.factor_touches(staging.operand)


def panel_element_bytes(nest: Nest, atom: ComputeAtom) -> int:
    """Returns the bytes of one value of a panel: of the operands of an atom that sums products, else of what the nest computes."""
    return ELEMENT_BYTES[atom.stored_dtype] if atom.sums else nest.accumulator_bytes


def operand_value(nest: Nest, operand: int, atom: ComputeAtom) -> Scalar | None:
    """Returns a factor in the type that an atom takes that sums products: itself, or the value that it widens.

    Returns None where the atom would round it and the stage (its math mode) does not permit that.
    """
    if atom.in_dtype not in (atom.stored_dtype, nest.stage.factor_dtype):
        return None
    factor = nest.factors[operand]
    narrow = factor.value if isinstance(factor, Cast) else factor
    if atom.depth > 1 and narrow.dtype in EXACT_IN.get(atom.stored_dtype, ()):
        return Cast(narrow, atom.stored_dtype)
    return next((value for value in (factor, narrow) if value.dtype in (atom.stored_dtype, atom.n_dtype)), None)


def copy_depth(program: StageProgram, staging: Staging) -> int:
    """Returns the number of loops outside the copy: up to the last loop of its level or further out that it depends on.

    It is never between loops over units, as each unit makes its own copy.
    """
    if staging.level == 0:
        return 0
    touches, loops = staged_touches(program.nest, staging), program.loops
    for number in range(len(loops), 0, -1):
        lp = loops[number - 1]
        if lp.over == "units" or (lp.level <= staging.level and touches[lp.dim]):
            return number
    return 0


def tiled_levels(spec: HardwareSpec) -> tuple[int, ...]:
    """Returns the indices of the levels that get a tile of their own: those that no unit shares with another, level 0 apart.

    A cache inside another private cache streams: the order of the loops decides its reuse, not a tile. Where units have one level
    only, the atom itself is the tile inside it, under the index `len(spec.levels)`.
    """
    private = [i for i, level in enumerate(spec.levels) if i and not spec.shared(level)]
    caches = [i for i in private if not spec.levels[i].managed]
    tiled = [i for i in private if len(caches) <= 1 or i != caches[-1]]
    return tuple(tiled) if len(tiled) > 1 else (*tiled, len(spec.levels))


def lane_level(spec: HardwareSpec) -> int | None:
    """Returns the level whose tiles run concurrently on the lanes of a unit; None where a unit runs them one after another."""
    innermost = tiled_levels(spec)[-1]
    return innermost if spec.unit.lanes_max > 1 and innermost < len(spec.levels) else None
