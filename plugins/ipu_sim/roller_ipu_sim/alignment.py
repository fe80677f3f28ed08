"""Which extents tiles may have: rows that tiles exchange are whole grains of 8 bytes, and any number of equal parts will do."""

from __future__ import annotations

from roller.plugin import ELEMENT_BYTES, HardwareSpec, Multiple, Stage, TensorExpr, nests
from roller_ipu_sim.plan import GRAIN_BYTES, in_words

TILE_LEVEL = 1  # a tile's own memory


def tile_multiples(spec: HardwareSpec, expr: TensorExpr, level: int) -> dict[str, Multiple]:
    """The rule for every dimension of the expression's nests at a level; a name that means several gets the least step."""
    if level != TILE_LEVEL:
        return {}
    steps: dict[str, int] = {}
    for stage in expr.stages:
        for name, step in _steps(spec, expr, stage).items():
            steps[name] = min(step, steps.get(name, step))
    return {name: Multiple(step, even=True) for name, step in steps.items()}


def _steps(spec: HardwareSpec, expr: TensorExpr, stage: Stage) -> dict[str, int]:
    """Elements of a grain along dimensions that come last in some array, 1 along others; whole arrays are padded to grains. In sums
    of products instructions say which dimension comes last, and atoms how many elements of it go together, unless all are scalar.
    """
    found = {}
    wide = any(atom.kind != "scalar" and atom.acc_dtype == stage.body.dtype for atom in spec.atoms)
    for nest in nests(stage, expr.tensors, spec.spread):
        product = wide and len(nest.factors) == 2 and bool(nest.reduce)
        for place, dim in enumerate(nest.dims):
            if product and not any(in_words(nest, a) == place for a in nest.accesses):
                found[dim.name] = 1
                continue
            last = [a for a in nest.accesses if a.strides[place] == 1 or in_words(nest, a) == place]
            sizes = [ELEMENT_BYTES[a.tensor.dtype] for a in last]
            step = max([GRAIN_BYTES // size for size in sizes], default=1)
            found[dim.name] = max(1, step)
    return found
