"""The loop nest that the engine tiles: a stage with neighbouring axes fused, and its array accesses.

Fusing axes makes irregular extents regular (49 pixels instead of 7 × 7) and reduces the number of loops. Two axes fuse if the
output is contiguous across them and every load touches both or neither. A load that is not linear in the fused dimension (a
convolution's window) can then only be read from a staged panel, or by decoding the index. `variants` returns both the nest with
such fusion and the one without; the cost model chooses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from roller.errors import ConstructionError
from roller.ir.expr import ELEMENT_BYTES, Axis, Stage, Tensor
from roller.ir.scalar import Affine, Binary, Cast, Load, Scalar, loads

Tile = tuple[int, ...]  # one extent per dimension of the nest
MOST_POSITIONS = (1 << 31) - (1 << 20)  # of a dimension: loops count in 32 bits, with room for a tile beyond its end


@dataclass(frozen=True)
class Dim:
    """One loop of the nest: an axis, or several fused ones (outermost first)."""

    members: tuple[Axis, ...]

    @cached_property
    def name(self) -> str:
        """The member names joined by dots."""
        return ".".join(a.name for a in self.members)

    @cached_property
    def extent(self) -> int:
        """Iterations of the fused loop."""
        return math.prod(a.extent for a in self.members)

    @cached_property
    def is_reduce(self) -> bool:
        """True if the reducer combines this dimension."""
        return self.members[0].is_reduce

    def member_extents(self, tile: int) -> tuple[int, ...]:
        """Returns, for each member, the max number of values that a run of `tile` consecutive fused iterations can touch."""
        if not self.extent:
            return tuple(min(tile, axis.extent) for axis in self.members)
        extents: list[int] = []
        aligned = True  # a run across rows of an inner axis may start anywhere along the outer ones
        for position, axis in enumerate(reversed(self.members)):
            last = position == len(self.members) - 1
            if tile <= axis.extent or last:
                straddles = not last and tile > 1 and (not aligned or axis.extent % tile != 0)
                extents.append(axis.extent if straddles else min(tile, axis.extent))
                aligned, tile = aligned and not straddles, 2 if straddles else 1
            else:
                extents.append(axis.extent)
                whole = aligned and tile % axis.extent == 0
                aligned, tile = whole, tile // axis.extent if whole else (tile - 2) // axis.extent + 2
        return tuple(reversed(extents))


@dataclass(frozen=True)
class Access:
    """One array access of the nest: a load of the body or the epilogue, or the output."""

    tensor: Tensor
    index: tuple[Affine, ...]
    role: Literal["body", "epilogue", "output"]
    factor: int  # the factor of the body that a load belongs to; -1 elsewhere
    guarded: bool  # reads a fill value outside the tensor
    touches: tuple[bool, ...]  # per dimension
    strides: tuple[int | None, ...]  # address step per dimension in elements; None if the address is not linear
    innermost: tuple[str, ...]  # the innermost axis of each dimension

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.tensor.dtype]

    @property
    def linear(self) -> bool:
        """True if the address is linear in every dimension and needs no guard."""
        return not self.guarded and None not in self.strides

    def alone(self, dim: int, extent: int) -> bool:
        """Returns True if a dimension, one axis of this extent, alone walks the array's innermost dimension from its start.

        Then its neighbours are neighbours in the array, and are inside or outside of it together.
        """
        last = self.index[-1]
        return (
            last.terms == ((self.innermost[dim], 1),)
            and not last.offset
            and extent <= self.tensor.shape[-1]
            and self.strides[dim] == 1
        )


@dataclass(frozen=True)
class Nest:
    """A stage, its dimensions (spatial first), and its arrays (body loads, epilogue loads, the output last).

    `before`: preceding stages of a row group over the same dimensions, whose results stay in registers (`roller.ir.row_groups`);
    their loads are among the body's.
    """

    stage: Stage
    dims: tuple[Dim, ...]
    accesses: tuple[Access, ...]
    before: tuple[Stage, ...] = ()

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages in order."""
        return (*self.before, self.stage)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Positions of the dimensions that some stage reduces."""
        reduced = {axis.name for stage in self.stages for axis in stage.reduced}
        return tuple(i for i, d in enumerate(self.dims) if d.members[0].name in reduced)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Positions of the other dimensions."""
        return tuple(i for i in range(len(self.dims)) if i not in self.columns)

    @cached_property
    def extents(self) -> Tile:
        """The whole problem as a tile."""
        return tuple(d.extent for d in self.dims)

    @cached_property
    def known(self) -> dict[Hashable, Any]:
        """Cache of derived values by query: construction repeats queries for many programs."""
        return {}

    @cached_property
    def output(self) -> Access:
        """The array that the stage writes."""
        return self.accesses[-1]

    @cached_property
    def inputs(self) -> tuple[Access, ...]:
        """The arrays that the body reads."""
        return tuple(a for a in self.accesses if a.role == "body")

    @cached_property
    def spatial(self) -> tuple[int, ...]:
        """Positions of the spatial dimensions."""
        return tuple(i for i, d in enumerate(self.dims) if not d.is_reduce)

    @cached_property
    def reduce(self) -> tuple[int, ...]:
        """Positions of the reduce dimensions."""
        return tuple(i for i, d in enumerate(self.dims) if d.is_reduce)

    @cached_property
    def factors(self) -> tuple[Scalar, ...]:
        """The multiplicands of the body; the body alone if it is not a product."""
        return factors_of(self.stage)

    @cached_property
    def accumulator_bytes(self) -> int:
        """Bytes of one accumulator element."""
        return ELEMENT_BYTES[self.stage.body.dtype]

    def position(self, name: str) -> int:
        """The position of the dimension with this name."""
        return next(i for i, d in enumerate(self.dims) if d.name == name)

    def factor_touches(self, factor: int) -> tuple[bool, ...]:
        """Returns, for each dimension, whether the value of a factor depends on it."""
        return self._factor_touches[factor]

    @cached_property
    def _factor_touches(self) -> tuple[tuple[bool, ...], ...]:
        positions = range(len(self.dims))
        per_factor = [[a for a in self.inputs if a.factor == f] for f in range(len(self.factors))]
        return tuple(tuple(any(a.touches[i] for a in mine) for i in positions) for mine in per_factor)

    def stageable(self, factor: int) -> bool:
        """Returns True if staging the factor's values pays at all: some spatial dimension reuses them."""
        touches = self.factor_touches(factor)
        return len(self.factors) > 1 and any(not touches[i] and self.extents[i] > 1 for i in self.spatial)


def factors_of(stage: Stage) -> tuple[Scalar, ...]:
    """Returns the multiplicands of a sum's body (casts and products opened), or the body alone."""
    if stage.reducer != "sum":
        return (stage.body,)
    found = list(_multiplicands(stage.body, stage.body.dtype))
    return tuple(found) if all(loads(f) for f in found) else (stage.body,)


def _multiplicands(node: Scalar, dtype: str) -> Iterable[Scalar]:
    if isinstance(node, Binary) and node.op == "mul" and node.dtype == dtype:
        yield from _multiplicands(node.left, dtype)
        yield from _multiplicands(node.right, dtype)
    else:
        yield node if node.dtype == dtype else Cast(node, dtype)


def variants(stage: Stage, tensors: dict[str, Tensor], boxes: bool = False) -> tuple[Nest, ...]:
    """Returns the nests worth tiling: axes fused where all addresses stay linear, and fused further where staging can linearise.

    `boxes`: only the nest whose tiles are boxes of all arrays; fused axes then walk neighbouring dimensions from end to end.
    """
    if boxes:
        return (build(stage, tensors, False, False, boxes=True),)
    found: dict[tuple[Dim, ...], Nest] = {}
    for spatial, reduce in ((False, False), (True, False), (True, True)):
        nest = build(stage, tensors, spatial, reduce)
        found.setdefault(nest.dims, nest)
    return tuple(found.values())


def over_rows(group: Sequence[Stage], tensors: dict[str, Tensor]) -> Nest:
    """Returns the nest of stages over the same rows (`roller.ir.row_groups`): neighbouring rows fused, and neighbouring columns."""
    *before, stage = group
    _check_extents(stage)
    arrays = _arrays(stage, tensors, tuple(before))
    columns = {axis.name for each in group for axis in each.reduced}
    order = _order([a for a in stage.axes if a.extent != 1], arrays[:1] if stage.reducer else arrays[-1:])
    order.sort(key=lambda a: a.is_reduce)
    parts = [list(part) for _, part in itertools.groupby(order, key=lambda a: a.name in columns)]
    dims = tuple(Dim(tuple(g)) for part in parts for g in _fuse(part, arrays, [False] * len(arrays), False))
    return Nest(stage, dims, tuple(_access(a, dims) for a in arrays), tuple(before))


def build(stage: Stage, tensors: dict[str, Tensor], spatial_stageable: bool, reduce_stageable: bool, boxes: bool = False) -> Nest:
    """Returns the nest without axes of extent 1, with neighbours fused; the flags permit non-linear addresses of reused loads."""
    _check_extents(stage)
    arrays = _arrays(stage, tensors)
    spatial = _order([a for a in stage.spatial if a.extent != 1], arrays[-1:])
    by_size = sorted((a for a in arrays if a[2] == "body"), key=lambda a: -sum(1 for x in stage.reduced if _step(a, x.name)))
    reduced = _order([a for a in stage.reduced if a.extent != 1], _linear_first(by_size, stage))
    reused = [_reused(stage, a) for a in arrays]
    groups = _fuse(spatial, arrays, [spatial_stageable and r for r in reused], boxes)
    groups += _fuse(reduced, arrays, [reduce_stageable and r for r in reused], boxes)
    dims = tuple(Dim(tuple(g)) for g in groups)
    return Nest(stage, dims, tuple(_access(a, dims) for a in arrays))


_Array = tuple[Tensor, tuple[Affine, ...], Literal["body", "epilogue", "output"], int, bool]


def _check_extents(stage: Stage) -> None:
    for axis in stage.axes:
        if axis.extent > MOST_POSITIONS:
            raise ConstructionError(
                f"axis {axis.name!r} of {stage.name!r} has {axis.extent} positions, at most {MOST_POSITIONS} can be walked: "
                "give the tensors one more dimension"
            )


def _arrays(stage: Stage, tensors: dict[str, Tensor], before: tuple[Stage, ...] = ()) -> list[_Array]:
    """Returns the arrays that a stage and its preceding stages access, except the results of the latter."""
    found: list[_Array] = []
    for each in before:
        found += [(tensors[ld.tensor], ld.index, "body", 0, _needs_guard(ld, each, tensors)) for ld in each.reads]
    for number, factor in enumerate(factors_of(stage)):
        found += [(tensors[ld.tensor], ld.index, "body", number, _needs_guard(ld, stage, tensors)) for ld in loads(factor)]
    if stage.epilogue is not None:
        found += [(tensors[ld.tensor], ld.index, "epilogue", -1, _needs_guard(ld, stage, tensors)) for ld in loads(stage.epilogue)]
    if before:
        inside = {each.name for each in before}
        outside = [array for array in found if array[0].name not in inside]
        found = list({(array[0].name, array[1]): array for array in reversed(outside)}.values())[::-1]
    return [*dict.fromkeys(found), (stage.output, stage.store, "output", -1, False)]


def _needs_guard(load: Load, stage: Stage, tensors: dict[str, Tensor]) -> bool:
    """Returns True if the index can leave the tensor: into a fill value, or under a condition that discards the value."""
    if any(e == 0 for e in stage.extents.values()):
        return False
    bounds = (i.bounds(stage.extents) for i in load.index)
    return any(low < 0 or high >= extent for (low, high), extent in zip(bounds, tensors[load.tensor].shape, strict=True))


def _step(array: _Array, axis: str) -> int:
    """Returns the address step of one axis in elements."""
    return sum(i.coefficient(axis) * s for i, s in zip(array[1], array[0].strides, strict=True))


def _touches(array: _Array, axis: str) -> bool:
    return any(i.coefficient(axis) for i in array[1])


def _linear_first(arrays: list[_Array], stage: Stage) -> list[_Array]:
    """Returns the array whose layout orders the reduce axes: one that indexes each axis by itself (weights, not windows)."""
    plain = [a for a in arrays if all(len(i.terms) <= 1 for i in a[1]) and any(_touches(a, x.name) for x in stage.reduced)]
    return (plain or arrays)[:1]


def _order(axes: list[Axis], key: list[_Array]) -> list[Axis]:
    """Returns axes by falling address step in the key array, so that neighbours in memory are neighbours in the nest."""
    return sorted(axes, key=lambda a: -abs(_step(key[0], a.name))) if key else axes


def _reused(stage: Stage, array: _Array) -> bool:
    return array[2] == "body" and any(x.extent > 1 and not _touches(array, x.name) for x in stage.spatial)


def _fuse(axes: list[Axis], arrays: list[_Array], reusable: list[bool], boxes: bool) -> list[list[Axis]]:
    groups: list[list[Axis]] = []
    for axis in axes:
        last = groups[-1][-1] if groups else axis
        short = groups and math.prod(a.extent for a in groups[-1]) * axis.extent <= MOST_POSITIONS
        if short and _fusible(last, axis, arrays, reusable) and not (boxes and any(_apart(a, last, axis) for a in arrays)):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _fusible(outer: Axis, inner: Axis, arrays: list[_Array], reusable: list[bool]) -> bool:
    for array, may_stage in zip(arrays, reusable, strict=True):
        both = _touches(array, outer.name), _touches(array, inner.name)
        if both == (False, False):
            continue
        contiguous = _step(array, outer.name) == _step(array, inner.name) * inner.extent
        if both != (True, True) or not (may_stage or (contiguous and not array[4])):
            return False
    return True


def _apart(array: _Array, outer: Axis, inner: Axis) -> bool:
    """Returns True if an array depends on the axes, but they do not alone walk two neighbouring dimensions of it end to end."""
    if not _touches(array, outer.name) and not _touches(array, inner.name):
        return False
    walks = [place for place, index in enumerate(array[1]) if index == Affine.axis(outer.name)]
    beside = [place for place in walks if array[1][place + 1 : place + 2] == (Affine.axis(inner.name),)]
    shape = array[0].shape
    whole = [place for place in beside if shape[place : place + 2] == (outer.extent, inner.extent)]
    return len(whole) != 1


def _access(array: _Array, dims: tuple[Dim, ...]) -> Access:
    tensor, index, role, factor, guarded = array
    touches = tuple(any(_touches(array, a.name) for a in d.members) for d in dims)
    strides: list[int | None] = []
    for dim in dims:
        steps = [_step(array, a.name) for a in dim.members]
        pairs = zip(steps, steps[1:], dim.members[1:], strict=False)
        # A guarded array is read from a box of another shape, in which fused axes are not neighbours.
        linear = all(outer == inner * axis.extent for outer, inner, axis in pairs) and not (
            guarded and len(dim.members) > 1 and any(steps)
        )
        strides.append(steps[-1] if linear else None)
    return Access(tensor, index, role, factor, guarded, touches, tuple(strides), tuple(d.members[-1].name for d in dims))
