"""Scalars of which a compiler makes vectors: along what, and that they are rated as vectors are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roller import ops
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.device.plugins import load_device
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, variants
from roller.ops import SymbolicTensor
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, Staging, tiled_levels
from roller.program.superwords import as_compiled, joined, joined_dims
from roller.search.funnel.lattice import inner_tiles
from roller.search.tile_space import tile_spaces
from roller.target.catalog import find_spec
from roller.target.subset import limited

ZEN5 = limited(find_spec("cpu", "zen5"), 1)
SCALAR = next(a for a in ZEN5.atoms if a.kind == "scalar" and a.in_dtype == "float32")
VECTOR = next(a for a in ZEN5.atoms if a.name == "f32x16")
PARAMETERS = CostParameters(superwords=4)


def nest_of(op: SymbolicTensor) -> Nest:
    expr = fuse(ops.expression(op))
    return variants(expr.stages[0], expr.tensors)[0]


def program_of(nest: Nest, inner: tuple[int, ...], staged: tuple[Staging, ...] = ()) -> StageProgram:
    levels, order = tiled_levels(ZEN5), tuple(range(len(inner)))
    tiles = (*[nest.extents] * (len(levels) - 1), inner)
    return StageProgram(nest, SCALAR, (), levels, tiles, (order,) * len(levels), staged)


PRODUCT = nest_of(ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64))))  # m, n, k
TURNED = nest_of(ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64)), transpose_b=True))
TRANSPOSED = nest_of(ops.transpose(ops.tensor((64, 64)), (1, 0)))


def test_vectors_need_contiguous_arrays_or_panels() -> None:
    assert joined_dims(PRODUCT) == [1] and joined_dims(TURNED) == [] and joined_dims(TRANSPOSED) == []
    assert joined_dims(TURNED, (Staging("panel", 1, 1),)) == [1]


@pytest.mark.parametrize(("columns", "width"), [(1, None), (3, None), (4, 4), (7, 4), (8, 8), (24, 16), (64, 16)])
def test_a_tile_has_the_widest_vectors_that_fit(columns: int, width: int | None) -> None:
    program = program_of(PRODUCT, (2, columns, 1))
    compiled = as_compiled(ZEN5, program, 4)
    assert (compiled is program) if width is None else (compiled.width, compiled.mapping) == (width, (("n", 1),))
    assert bool(joined(PRODUCT, program.inner, 4)) is (width is not None)
    assert compiled.atom.gflops == pytest.approx(VECTOR.gflops * (width or 1) / 16, rel=1.0 if width is None else 1e-9)


def test_the_model_rates_what_the_compiler_makes() -> None:
    scalar = program_of(PRODUCT, (4, 32, 1))
    vector = replace(scalar, atom=VECTOR, mapping=(("n", 1),))
    rated = [Model(ZEN5, p, Geometry(PRODUCT)).estimate(scalar).seconds for p in (PARAMETERS, CostParameters())]
    assert rated[0] == Model(ZEN5, PARAMETERS, Geometry(PRODUCT)).estimate(vector).seconds < rated[1]
    alone = program_of(TRANSPOSED, (8, 8))
    assert as_compiled(ZEN5, alone, 4) is alone and as_compiled(ZEN5, vector, 4) is vector


def test_a_chip_without_such_vectors_keeps_its_scalars() -> None:
    bare = ZEN5.model_copy(update={"atoms": (SCALAR,)})
    program = program_of(PRODUCT, (4, 32, 1))
    assert as_compiled(bare, program, 4) is program


def test_the_search_has_each_of_these_tiles_once() -> None:
    """With a vector atom there, scalar tiles are those of which the compiler makes no vectors; without one, all."""
    device, expr = load_device("cpu"), fuse(ops.expression(ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64)))))
    rules = device.rules(ZEN5, expr).of(expr.stages[0].name)
    for atoms in ((VECTOR, SCALAR), (SCALAR,)):
        spaces = tile_spaces((PRODUCT,), ZEN5, replace(rules, atoms=atoms), PARAMETERS)
        (space,) = [s for s in spaces if s.atom == SCALAR]
        inner = inner_tiles(space)
        assert inner.shape[1] > 1 and np.any(inner[1] >= 4) == (len(atoms) == 1)
