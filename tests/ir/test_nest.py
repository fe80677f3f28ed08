"""Loop nests: which axes fuse, what fused dimensions touch, factors and strides."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.errors import ConstructionError
from roller.ir.expr import Axis, TensorExpr
from roller.ir.nest import Dim, Nest, build, factors_of, variants
from roller.ir.scalar import Load, loads
from roller.testing import expression, expressions, gemm, relu, row_sum


def nests(expr: TensorExpr) -> tuple[Nest, ...]:
    return variants(expr.stages[0], expr.tensors)


def names(nest: Nest) -> list[str]:
    return [d.name for d in nest.dims]


def convolution(padding: int = 0, window: int = 3) -> TensorExpr:
    x, w = ops.tensor((1, 4, 9, 9), name="x"), ops.tensor((6, 4, window, window), name="w")
    return expression(ops.conv2d(x, w, padding=padding))


def test_a_product_has_three_dimensions_and_two_factors() -> None:
    (nest,) = nests(gemm(4, 6, 5))
    assert names(nest) == ["m", "n", "k"]
    assert nest.extents == (4, 6, 5)
    assert (nest.spatial, nest.reduce) == ((0, 1), (2,))
    assert [a.strides for a in nest.accesses] == [(5, 0, 1), (0, 1, 6), (6, 1, 0)]
    assert nest.factor_touches(0) == (True, False, True)
    assert nest.factor_touches(1) == (False, True, True)
    assert nest.stageable(0) and nest.stageable(1)


def test_axes_of_one_iteration_are_dropped() -> None:
    (nest,) = nests(gemm(1, 6, 5))
    assert names(nest) == ["n", "k"]
    assert nests(gemm(1, 1, 1))[0].dims == ()


def test_an_elementwise_operator_is_one_flat_loop() -> None:
    (nest,) = nests(relu(3, 4, 5))
    assert nest.extents == (60,)
    assert [a.strides for a in nest.accesses] == [(1,), (1,)]


def test_dimensions_are_no_longer_than_loops_count() -> None:
    """16384 rows of 151936 values: 2.5e9, which 32 bits do not hold."""
    assert nests(expression(ops.relu(ops.tensor((16384, 151936)))))[0].extents == (16384, 151936)
    with pytest.raises(ConstructionError, match="'i0' of 'relu' has 4294967296 positions, at most 2146435072 can be walked"):
        nests(expression(ops.relu(ops.tensor((1 << 32,)))))


def test_broadcasting_keeps_axes_apart() -> None:
    expr = expression(ops.add(ops.tensor((3, 4), name="x"), ops.tensor((4,), name="y")))
    (nest,) = nests(expr)
    assert nest.extents == (3, 4)


def test_a_transpose_keeps_both_axes_in_the_order_of_the_output() -> None:
    (nest,) = nests(expression(ops.transpose(ops.tensor((3, 4), name="x"))))
    assert [a.strides for a in nest.accesses] == [(1, 4), (3, 1)]


def test_the_variants_of_a_convolution_fuse_pixels_and_then_the_window() -> None:
    plain, pixels, window = nests(convolution())
    assert names(plain) == ["f", "h", "w", "c", "r", "s"]
    assert names(pixels) == ["f", "h.w", "c", "r", "s"]
    assert names(window) == ["f", "h.w", "c.r.s"]
    assert window.extents == (6, 49, 36)
    image, weights, result = window.accesses
    assert image.strides == (0, None, None)
    assert weights.strides == (36, 0, 1)
    assert result.strides == (49, 1, 0)
    assert not image.linear and weights.linear


def test_a_pointwise_convolution_fuses_without_any_staging() -> None:
    plain = nests(convolution(window=1))[0]
    assert names(plain) == ["f", "h.w", "c"]
    assert all(a.linear for a in plain.accesses)


def test_zero_padding_is_a_guard() -> None:
    guarded = [a.guarded for a in nests(convolution(padding=1))[0].accesses]
    assert guarded == [True, False, False]
    assert not any(a.guarded for a in nests(convolution())[0].accesses)


def test_a_maximum_has_one_factor_and_a_sum_of_products_two() -> None:
    peak = expression(ops.reduce_max(ops.tensor((4, 5), name="x"), 1))
    assert len(factors_of(peak.stages[0])) == 1
    first, second = factors_of(gemm(2, 3, 4).stages[0])
    assert [load.tensor for load in (*loads(first), *loads(second))] == ["a", "b"]
    assert all(isinstance(f, Load) for f in (first, second))


def test_rows_of_a_sum_are_one_reduce_dimension() -> None:
    (nest,) = nests(row_sum(4, 5))
    assert (nest.spatial, nest.reduce) == ((0,), (1,))
    assert not nest.stageable(0)


def fused(*extents: int) -> Dim:
    return Dim(tuple(Axis(f"a{i}", e) for i, e in enumerate(extents)))


@pytest.mark.parametrize(
    ("extents", "tile", "members"),
    [
        ((7, 7), 7, (1, 7)),  # one row
        ((7, 7), 14, (2, 7)),  # two rows
        ((7, 7), 3, (2, 7)),  # may straddle a row's end
        ((7, 6), 3, (1, 3)),  # never does: 3 divides 6
        ((7, 7), 8, (2, 7)),
        ((7, 7), 9, (3, 7)),  # one of row 0, row 1, one of row 2
        ((7, 7), 49, (7, 7)),
        ((5,), 3, (3,)),
        ((2, 3, 4), 12, (1, 3, 4)),
        ((2, 3, 4), 24, (2, 3, 4)),
        ((7, 7), 1, (1, 1)),
        ((3, 3, 0), 1, (1, 1, 0)),  # nothing to touch
        ((0, 3), 1, (0, 1)),
        ((31, 4, 31), 24, (2, 4, 31)),  # two rows of the last axis may lie on both sides of a row of the middle one
    ],
)
def test_members_of_a_fused_tile_by_hand(extents: tuple[int, ...], tile: int, members: tuple[int, ...]) -> None:
    assert fused(*extents).member_extents(tile) == members


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_members_of_a_fused_tile_are_never_fewer_than_any_run_touches(extents: list[int], data: st.DataObject) -> None:
    """Runs start at multiples of the tile, as tiles do; a ragged last one moves back to end with the dimension."""
    dim = fused(*extents)
    tile = data.draw(st.integers(1, dim.extent))
    starts = [*range(0, dim.extent - tile + 1, tile), dim.extent - tile]
    worst = [0] * len(extents)
    for start in starts:
        positions = list(itertools.islice(itertools.product(*(range(e) for e in extents)), start, start + tile))
        for member in range(len(extents)):
            values = [p[member] for p in positions]
            worst[member] = max(worst[member], max(values) - min(values) + 1)
    assert all(stated >= needed for stated, needed in zip(dim.member_extents(tile), worst, strict=True))
    assert all(stated <= e for stated, e in zip(dim.member_extents(tile), extents, strict=True))


@given(expressions((1, 2, 3, 4, 6)))
def test_every_variant_covers_the_same_points_with_the_same_addresses(expr: TensorExpr) -> None:
    """A linear access moves by its stride from each point to the next."""
    stage = expr.stages[0]
    for nest in variants(stage, expr.tensors):
        members = [a.name for d in nest.dims for a in d.members]
        assert sorted(members) == sorted(a.name for a in stage.axes if a.extent != 1)
        for access in nest.accesses:
            for dim, stride in enumerate(access.strides):
                if stride is not None:
                    assert _addresses(nest, access.index, access.tensor.strides, dim) == [
                        i * stride for i in range(nest.extents[dim])
                    ]


def _addresses(nest: Nest, index: tuple, strides: tuple[int, ...], dim: int) -> list[int]:  # type: ignore[type-arg]
    """Addresses along one dimension, relative to its first point."""
    found = []
    for values in itertools.product(*(range(a.extent) for a in nest.dims[dim].members)):
        point = dict(zip((a.name for a in nest.dims[dim].members), values, strict=True))
        found.append(sum(sum(c * point.get(n, 0) for n, c in i.terms) * s for i, s in zip(index, strides, strict=True)))
    return [f - found[0] for f in found]


def test_a_guarded_fused_dimension_is_not_linear() -> None:
    """A pointwise convolution with padding reads a larger box: fused pixels are no neighbours in it."""
    expr = convolution(padding=1, window=1)
    for nest in nests(expr):
        image = nest.accesses[0]
        assert image.guarded
        assert all(s is None or len(d.members) == 1 or s == 0 for s, d in zip(image.strides, nest.dims, strict=True))
    assert names(build(expr.stages[0], expr.tensors, False, False)) == ["f", "h", "w", "c"]


# --- boxes -----------------------------------------------------------------------------------------------------------


def boxed(expr: TensorExpr) -> Nest:
    (nest,) = variants(expr.stages[-1], expr.tensors, boxes=True)
    return nest


def test_tiles_of_a_nest_of_boxes_are_boxes_of_every_array() -> None:
    assert names(boxed(relu(3, 4, 5))) == ["i0.i1.i2"]
    assert boxed(gemm(4, 6, 5)).extents == (4, 6, 5)
    assert all(len(dim.members) == 1 for dim in boxed(convolution()).dims), "windows overlap: rows and columns stay apart"
    assert names(boxed(expression(ops.einsum("abk,kn->abn", ops.tensor((3, 4, 5)), ops.tensor((5, 6)))))) == ["a.b", "n", "k"]
    assert names(boxed(expression(ops.einsum("abk,kn->ban", ops.tensor((3, 4, 5)), ops.tensor((5, 6)))))) == ["b", "a", "n", "k"]


def test_rows_that_a_broadcast_tells_apart_are_not_fused() -> None:
    row = expression(ops.tensor((3, 4), name="x") + ops.tensor((4,), name="b"))
    assert [len(dim.members) for dim in boxed(row).dims] == [1, 1]


@given(expressions())
def test_every_array_walks_a_fused_dimension_from_end_to_end_or_not_at_all(expr: TensorExpr) -> None:
    nest = boxed(expr)
    for dim in nest.dims:
        if len(dim.members) == 1:
            continue
        wanted = [axis.name for axis in dim.members]
        for access in nest.accesses:
            walked = [[name for name, _ in index.terms] for index in access.index]
            touching = [names for names in walked if set(names) & set(wanted)]
            assert touching in ([], [[name] for name in wanted])
