"""Programs for row groups (stages over the same rows): a unit takes whole rows, in every distribution over lanes that fits.

There is little to choose: a unit's tile is as long as a row. The choices left are how many rows it has, how many lanes share a row,
and how many rows a lane holds parts of. These few programs are all rated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from roller.cost.model import Model
from roller.cost.occupancy import reserved_bytes
from roller.cost.parameters import CostParameters
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, Tile, over_rows
from roller.ir.row_groups import held_bytes, row_groups
from roller.layout.banks import WIDEST_ACCESS
from roller.program.alignment import Rules, atoms_for, lane_rule
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, lane_level, tiled_levels
from roller.search.stages import Rated
from roller.target.hardware import ComputeAtom, HardwareSpec

POINTS = (1, 2, 4)  # neighbours of a row that a lane takes together, beside the widest access; more take more time
Dealt = tuple[int, int]  # along a dimension: points of a lane, and lanes


def rated_groups(
    expr: TensorExpr, alone: list[list[Rated]], spec: HardwareSpec, rules: Rules, parameters: CostParameters
) -> list[list[Rated]] | None:
    """Returns the programs for an expression's stages, those of a row group as one; None without device support, or if none fits.

    `alone`: the programs for each stage. Row groups need lanes that can combine their values.
    """
    if not parameters.row_groups or lane_level(spec) is None or "shuffle" not in spec.unit.combine:
        return None
    together: list[list[Rated]] = []
    number = 0
    for group in row_groups(expr):
        found = rated_rows(over_rows(group, expr.tensors), spec, rules, parameters) if len(group) > 1 else []
        together += [found] if found else alone[number : number + len(group)]
        number += len(group)
    return together if len(together) < len(alone) else None


def rated_rows(nest: Nest, spec: HardwareSpec, rules: Rules, parameters: CostParameters) -> list[Rated]:
    """Returns all programs for a row group's nest, best first; none where no unit has room for a row."""
    atom = _atom(nest, rules)
    if atom is None or len(tiled_levels(spec)) != 2:
        return []
    geometry, found = Geometry(nest), []
    for inner, lanes in _dealt(nest, spec):
        program = _program(nest, spec, atom, inner, lanes)
        if not _fits(program, spec):
            continue
        room = parameters.room_of(program)
        if room != 0:
            rating = Model(spec, parameters, geometry, room).estimate(program)
            found.append((program, rating))
    return sorted(found, key=lambda rated: (rated[1].seconds, rated[0].tiles))


def _atom(nest: Nest, rules: Rules) -> ComputeAtom | None:
    """Returns the slowest scalar atom that computes the stages, or some scalar atom where these have only vector atoms."""
    scalars = [atom for atom in rules.atoms if atom.kind == "scalar"]
    able = [[atom for atom in atoms_for(stage.body.dtype, rules.atoms) if atom.kind == "scalar"] for stage in nest.stages]
    each = [max(atoms, key=lambda atom: atom.gflops) for atoms in able if atoms]
    return min(each or scalars, key=lambda atom: atom.gflops, default=None)


def _dealt(nest: Nest, spec: HardwareSpec) -> Iterator[tuple[Tile, Tile]]:
    """Yields the points of a lane and the lanes, along every dimension.

    Along columns these cover all points, with powers of two of lanes. Along rows both are powers of two.
    """
    most = spec.unit.lanes_max
    choices = [_columns(nest, d, most) if d in nest.columns else _rows(nest, d, most) for d in range(len(nest.dims))]
    for chosen in itertools.product(*choices):
        lanes = math.prod(n for _, n in chosen)
        whole = math.prod(-(-nest.extents[d] // points) for d, (points, _) in enumerate(chosen))
        if lane_rule(spec, lanes, whole) is None:
            yield tuple(points for points, _ in chosen), tuple(n for _, n in chosen)


def _columns(nest: Nest, dim: int, most: int) -> list[Dealt]:
    """Returns for powers of two of lanes the fewest points of each, in whole accesses; also with only the lanes that have any."""
    extent, wide = nest.extents[dim], _access(nest, dim)
    found: dict[int, set[int]] = {}
    lanes = 1
    while lanes <= most:
        each = math.ceil(extent / lanes)
        points = min(math.ceil(each / wide) * wide, extent)
        found.setdefault(points, {lanes, math.ceil(extent / points)})
        lanes *= 2
    return [(points, n) for points, counts in found.items() for n in sorted(counts)]


def _rows(nest: Nest, dim: int, most: int) -> list[Dealt]:
    extent, wide = nest.extents[dim], _access(nest, dim)
    points = [n for n in (*POINTS, wide) if n <= extent]
    lanes = [1 << n for n in range(most.bit_length()) if 1 << n <= extent]
    return [(p, n) for p, n in itertools.product(dict.fromkeys(points), lanes) if p * n < 2 * extent]


def _access(nest: Nest, dim: int) -> int:
    """Returns the elements of the widest access along a dimension that is contiguous in some array."""
    sizes = [a.element_bytes for a in nest.accesses if a.strides[dim] == 1]
    return max(1, WIDEST_ACCESS // min(sizes)) if sizes else 1


def _program(nest: Nest, spec: HardwareSpec, atom: ComputeAtom, inner: Tile, lanes: Tile) -> StageProgram:
    unit = tuple(points * n for points, n in zip(inner, lanes, strict=True))
    order = (*nest.rows, *nest.columns)
    return StageProgram(
        nest, atom, (), tiled_levels(spec), (unit, inner), (order, order), lane_level=lane_level(spec), cooperate=bool(nest.reduce)
    )


def _fits(program: StageProgram, spec: HardwareSpec) -> bool:
    """True if lanes have registers for the values that they hold."""
    unit = spec.unit
    held = held_bytes(program.nest, program.inner) + reserved_bytes(program, spec)
    each, all_lanes = unit.lane_storage_max_bytes, unit.lane_storage_bytes
    return (each is None or held <= each) and (not all_lanes or spec.stored_lanes(program.lanes) * held <= all_lanes)
