"""Panels hold whole innermost tiles: what memory has room for, what copies write and what caches keep is one number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roller.cost.loops import NestWalk
from roller.cost.parameters import CostParameters
from roller.ir.nest import variants
from roller.program.footprint import Geometry, whole_tiles
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes
from roller.testing import gemm, toy_atom, toy_level, toy_spec

M, N, K = 0, 1, 2
LEVELS = toy_level("ram", 1 << 30, 10), toy_level("cache", 1 << 20, 100), toy_level("registers", 1 << 11, 1000, managed=True)
CHIP = toy_spec(LEVELS)


@given(st.integers(2, 1100), st.integers(1, 16), st.sampled_from((0, 1)))
def test_a_tile_beyond_the_problem_has_one_panel(extent: int, inner: int, level: int) -> None:
    """The unit's tile covers `extent` columns in whole innermost tiles, so that no loop over units is left."""
    expr = gemm(4, extent, 8)
    (nest,) = variants(expr.stages[0], expr.tensors)[:1]
    whole, order = -(-extent // inner) * inner, (M, N, K)
    staged = (Staging("panel", 1, level),)
    program = StageProgram(nest, toy_atom("scalar", 1), (), (1, 2), ((4, whole, 8), (4, inner, 8)), (order, order), staged)
    geometry = Geometry(nest)
    walk = NestWalk(program, CHIP, geometry, CostParameters())
    (panel,) = [held for stream, held in zip(walk.streams, walk.held, strict=True) if stream.access is None]
    room = geometry.panel_elements(1, program.unit_tile) * panel_element_bytes(nest, program.atom)
    assert panel[0] == room == whole * 8 * nest.accumulator_bytes


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=4))
def test_whole_tiles_cover_and_end_within_one_tile(pairs: list[tuple[int, int]]) -> None:
    extents, steps = zip(*pairs, strict=True)
    for extent, step, found in zip(extents, steps, whole_tiles(extents, steps), strict=True):
        assert not step or (found % step == 0 and extent <= found < extent + step)
