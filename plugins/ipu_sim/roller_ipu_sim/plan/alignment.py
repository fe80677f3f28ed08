"""Alignment of tile extents: rows that tiles exchange are whole grains of 8 bytes, and any number of equal parts is allowed."""

from __future__ import annotations

from roller.plugin import ELEMENT_BYTES, Cast, HardwareSpec, Load, Multiple, Nest, Scalar, Stage, TensorExpr, nests
from roller_ipu_sim.plan.stored import GRAIN_BYTES, in_words

TILE_LEVEL = 1  # a tile's own memory


def tile_multiples(spec: HardwareSpec, expr: TensorExpr, level: int) -> dict[str, Multiple]:
    """Returns the rule for every dimension of the expression's nests at a level; an ambiguous name gets the smallest step."""
    if level != TILE_LEVEL:
        return {}
    steps: dict[str, int] = {}
    for stage in expr.stages:
        for name, step in _steps(spec, expr, stage).items():
            steps[name] = min(step, steps.get(name, step))
    return {name: Multiple(step, even=True) for name, step in steps.items()}


def _steps(spec: HardwareSpec, expr: TensorExpr, stage: Stage) -> dict[str, int]:
    """Returns the elements of a grain along dimensions that come last in some array, 1 along others.

    Whole arrays are padded to grains. In sums of products for the matrix unit, the unit determines which dimension comes last, and
    how many of its elements form a block.
    """
    found = {}
    for nest in nests(stage, expr.tensors, spec.spread):
        product = _multiplied(spec, nest)
        for place, dim in enumerate(nest.dims):
            if product and not any(in_words(nest, a) == place for a in nest.accesses):
                found[dim.name] = 1
                continue
            last = [a for a in nest.accesses if a.strides[place] == 1 or in_words(nest, a) == place]
            sizes = [ELEMENT_BYTES[a.tensor.dtype] for a in last]
            step = max([GRAIN_BYTES // size for size in sizes], default=1)
            found[dim.name] = max(1, step)
    return found


def _multiplied(spec: HardwareSpec, nest: Nest) -> bool:
    """True if the matrix unit can compute a nest: a sum of products of array elements in one of its types, rows by columns."""
    if len(nest.factors) != 2 or not all(map(_bare, nest.factors)):
        return False
    types = {a.tensor.dtype for a in nest.inputs}
    if not any(a.kind == "matrix" and {a.in_dtype} == types and a.acc_dtype == nest.stage.body.dtype for a in spec.atoms):
        return False
    first, second = nest.factor_touches(0), nest.factor_touches(1)
    alone = [_alone(nest, d) for d in range(len(nest.dims))]
    own = [d for d in nest.spatial if first[d] != second[d]]  # rows and columns: dimensions of one factor alone
    both = any(first[d] for d in own) and any(second[d] for d in own)
    return both and any(alone[d] for d in own) and any(alone[d] and first[d] and second[d] for d in nest.reduce)


def _alone(nest: Nest, dim: int) -> bool:
    """True if a dimension walks a single one of each array that depends on it, and nothing else does: no window, no groups."""
    axes = {axis.name for axis in nest.dims[dim].members}
    every = [index for access in nest.accesses for index in access.index]
    touching = [index for index in every if {name for name, _ in index.terms} & axes]
    return all(len(index.terms) == 1 and not index.offset for index in touching)


def _bare(factor: Scalar) -> bool:
    """Returns True if a factor is an element of an array, unchanged or widened."""
    return isinstance(factor.value if isinstance(factor, Cast) else factor, Load)
