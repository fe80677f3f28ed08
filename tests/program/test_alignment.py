"""The alignment rules, with numbers worked out by hand."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.alignment import (
    Multiple,
    aligned_extents,
    atom_tile,
    even_extents,
    lane_rule,
    next_aligned,
    transaction_step,
)
from roller.search.construct import construct
from roller.testing import gemm, toy_atom, toy_level, toy_spec

PRODUCT = gemm(8, 16, 32)
NEST = variants(PRODUCT.stages[0], PRODUCT.tensors)[0]


def test_an_atom_covers_the_dimensions_where_its_roles_lie() -> None:
    assert atom_tile(NEST, toy_atom("scalar", 1), ()) == (1, 1, 1)
    assert atom_tile(NEST, toy_atom("vector", 1, n=4), (("n", 1),)) == (1, 4, 1)
    assert atom_tile(NEST, toy_atom("matrix", 1, m=2, n=4, k=8), (("m", 0), ("n", 1), ("k", 2))) == (2, 4, 8)
    assert atom_tile(NEST, toy_atom("matrix", 1, m="stream", n=4, k=8), (("m", 0), ("n", 1), ("k", 2))) == (1, 4, 8)


def test_a_transaction_is_filled_along_contiguous_dimensions() -> None:
    level = toy_level("pad", 1 << 20, 1, transaction_bytes=64)
    assert [transaction_step(NEST, level, dim) for dim in range(3)] == [1, 16, 16]
    assert transaction_step(NEST, toy_level("pad", 1 << 20, 1, transaction_bytes=2), 1) == 1


def test_aligned_extents_step_singly_and_then_double() -> None:
    assert list(aligned_extents(6, 1, Multiple())) == [1, 2, 3, 4, 5, 6]
    assert list(aligned_extents(20, 4, Multiple())) == [4, 8, 12, 16, 20]
    assert list(aligned_extents(18, 4, Multiple(6))) == [12, 24]
    assert list(aligned_extents(100, 8, Multiple(1, 40))) == [8, 16, 24, 32, 40]
    assert list(aligned_extents(3, 4, Multiple())) == [4]


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 16))
def test_aligned_extents_rise_in_multiples_to_the_whole(extent: int, inner: int, step: int) -> None:
    base = math.lcm(inner, step)
    found = list(aligned_extents(extent, inner, Multiple(step)))
    assert found == sorted(set(found))
    assert all(e % base == 0 for e in found)
    assert found[0] == base and found[-1] == -(-extent // base) * base
    assert len(found) <= 8 + 8 * math.ceil(math.log2(extent + 1) + 1)


@given(st.integers(1, 5000), st.integers(1, 8), st.integers(1, 5000))
def test_the_next_aligned_extent_is_the_next_in_the_list(extent: int, inner: int, current: int) -> None:
    found = next_aligned(extent, inner, current, Multiple())
    larger = [e for e in aligned_extents(extent, inner, Multiple()) if e > current]
    assert found == (larger[0] if larger else None)


def test_lanes_come_in_whole_groups_unless_idle_ones_are_lost_anyway() -> None:
    def spec(fixed: bool):  # type: ignore[no-untyped-def]
        levels = [toy_level("pad", 1 << 16, 1), toy_level("register", 1 << 10, 1, 8)]
        return toy_spec(levels, lanes_max=64, lane_group=8, lanes_fixed=fixed, count=2)

    assert lane_rule(spec(False), 64, 640) is None
    assert lane_rule(spec(False), 16, 16) is None
    assert lane_rule(spec(False), 65, 650) == "lanes per unit"
    assert lane_rule(spec(False), 12, 24) == "lane group multiple"
    assert lane_rule(spec(False), 4, 4) is None  # the problem has no more
    assert lane_rule(spec(False), 5, 4) is None  # … but for the last tile's end
    assert lane_rule(spec(False), 4, 5) == "lane group multiple"
    assert lane_rule(spec(True), 12, 24) is None
    assert lane_rule(spec(True), 65, 650) == "lanes per unit"


def test_a_warp_is_not_left_half_empty_because_memory_is_the_bound() -> None:
    """A pooling of millions of results: idle lanes would cost nothing that memory does not hide."""
    plugin, chip = resolve("cuda:rtx4090")
    expr = fuse(ops.expression(ops.avg_pool2d(ops.tensor((128, 42, 165, 165)), 3, 2, "SAME")))
    found = construct(expr, chip, plugin.rules(chip, expr), plugin.cost_parameters(chip, expr), 10)
    assert all(candidate.program.stages[0].lanes % 32 == 0 for candidate in found)


def test_even_extents_cut_into_equal_parts() -> None:
    assert even_extents(12, 1, Multiple()) == [1, 2, 3, 4, 6, 12]
    assert even_extents(10, 1, Multiple()) == [1, 2, 3, 4, 5, 10]
    assert even_extents(30, 1, Multiple(4)) == [4, 8, 12, 16, 32]  # 8 grains of 4: in 8, 4, 3, 2 parts and whole
    assert even_extents(30, 1, Multiple(4, limit=15)) == [4, 8, 12]
    assert even_extents(1472, 1, Multiple())[-3:] == [491, 736, 1472]


@given(st.integers(1, 3000), st.integers(1, 9), st.integers(1, 9))
def test_every_number_of_parts_has_its_least_extent(extent: int, inner: int, step: int) -> None:
    base = math.lcm(inner, step)
    found = even_extents(extent, inner, Multiple(step))
    whole = -(-extent // base)
    assert found == sorted({-(-whole // parts) * base for parts in range(1, whole + 1)})
