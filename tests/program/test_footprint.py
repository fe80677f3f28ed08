"""Data tiles, whole transactions, contiguous runs, and crowding in banks, with numbers worked out by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import interpreter
from roller import ops
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, build, variants
from roller.program.footprint import DataTile, Geometry, data_tile, padded_points, padding_waste
from roller.target.hardware import Banks
from roller.testing import expression, expressions, gemm, relu


def first(expr: TensorExpr) -> Nest:
    return variants(expr.stages[0], expr.tensors)[0]


def convolution(side: int, window: int, stride: int, padding: int) -> TensorExpr:
    x, w = ops.tensor((1, 3, side, side), name="x"), ops.tensor((5, 3, window, window), name="w")
    return expression(ops.conv2d(x, w, stride=stride, padding=padding))


def test_a_product_reads_a_block_of_rows_and_a_block_of_columns() -> None:
    nest = first(gemm(8, 16, 32))
    a, b, c = nest.accesses
    tile = (4, 8, 16)
    assert data_tile(nest, a, tile) == DataTile((4, 16), 64, 16)
    assert data_tile(nest, b, tile) == DataTile((16, 8), 128, 8)
    assert data_tile(nest, c, tile) == DataTile((4, 8), 32, 8)


def test_full_rows_join_into_one_run() -> None:
    nest = first(gemm(8, 16, 32))
    a, b, _ = nest.accesses
    assert data_tile(nest, a, (4, 8, 32)).run == 4 * 32
    assert data_tile(nest, b, (4, 16, 8)).run == 8 * 16


@pytest.mark.parametrize(("stride", "halo"), [(1, 4 + 2), (2, 2 * 3 + 3)])
def test_a_window_reads_a_halo_around_its_tile(stride: int, halo: int) -> None:
    """box = 1 + stride (4 - 1) + (3 - 1)."""
    expr = convolution(21, 3, stride, 0)
    nest = build(expr.stages[0], expr.tensors, False, False)
    image = nest.accesses[0]
    tile = tuple({"h": 4, "w": 4, "c": 2, "r": 3, "s": 3}.get(d.name, 1) for d in nest.dims)
    assert data_tile(nest, image, tile).shape == (1, 2, halo, halo)
    assert data_tile(nest, image, tile).run == halo


def test_a_box_is_cut_to_the_array() -> None:
    """With padding 1 the window of the whole image reaches two positions further than there are."""
    expr = convolution(7, 3, 1, 1)
    nest = build(expr.stages[0], expr.tensors, False, False)
    assert data_tile(nest, nest.accesses[0], nest.extents).shape == (1, 3, 7, 7)


@given(st.data(), expressions((1, 2, 3, 4, 6)))
def test_a_box_holds_what_every_tile_touches(data: st.DataObject, expr: TensorExpr) -> None:
    """Tiles start at multiples of their extents; a ragged last one moves back to end with the problem."""
    for nest in variants(expr.stages[0], expr.tensors):
        tile = tuple(data.draw(st.integers(1, e)) for e in nest.extents)
        pairs = list(zip(nest.extents, tile, strict=True))
        starts = tuple(data.draw(st.sampled_from([*range(0, e - t + 1, t), e - t])) for e, t in pairs)
        box = tuple(range(s, s + t) for s, t in zip(starts, tile, strict=True))
        for access in nest.accesses:
            touched = interpreter.elements(nest, access, box)
            strides, shape = access.tensor.strides, access.tensor.shape
            places = [[flat // step % extent for flat in touched] for step, extent in zip(strides, shape, strict=True)]
            spans = [max(p) - min(p) + 1 if p else 0 for p in places]
            assert all(span <= reach for span, reach in zip(spans, data_tile(nest, access, tile).shape, strict=True))


@given(st.data(), expressions((1, 2, 3, 4, 6), ("matmul", "transposed", "elementwise", "transpose", "reduction")))
def test_a_run_is_contiguous_in_memory(data: st.DataObject, expr: TensorExpr) -> None:
    """The first tile touches no fewer neighbours in a row than the run says, wherever axes are not fused across it."""
    nest = build(expr.stages[0], expr.tensors, False, False)
    tile = tuple(data.draw(st.integers(1, e)) for e in nest.extents)
    for access in nest.accesses:
        touched = sorted(interpreter.elements(nest, access, tuple(range(t) for t in tile)))
        lengths = [len(list(group)) for _, group in itertools.groupby(enumerate(touched), lambda item: item[1] - item[0])]
        assert min(lengths) >= data_tile(nest, access, tile).run


def test_aligned_runs_move_their_bytes_and_others_parts_of_transactions() -> None:
    nest = first(gemm(64, 64, 64))
    geometry = Geometry(nest)
    # Rows of 64 x 4 B start at multiples of 64 B: 16 elements are one transaction each, 8 rows.
    assert geometry.held(0, (8, 1, 16)).moved(64) == 8 * 64
    # A run of 8 x 4 B at a random place touches (32 - 4) / 64 + 1 transactions on average.
    assert geometry.held(0, (8, 1, 8)).moved(64) == 8 * (28 / 64 + 1) * 64
    # One column: an element a row, one transaction each.
    assert geometry.held(0, (8, 1, 1)).moved(64) == 8 * 64
    assert geometry.held(0, (8, 1, 8)).moved(4) == geometry.held(0, (8, 1, 8)).nbytes == 8 * 8 * 4


def test_misaligned_rows_cost_one_transaction_more_almost_always() -> None:
    """Rows of 100 B: 25 elements; a whole row touches (100 - 4) / 64 + 1 transactions of 64 B."""
    geometry = Geometry(first(gemm(8, 8, 25)))
    assert geometry.held(0, (1, 1, 25)).moved(64) == pytest.approx((96 / 64 + 1) * 64)


@given(st.integers(1, 40), st.sampled_from((8, 16, 32)))
def test_transactions_are_the_average_over_all_places(run: int, transaction: int) -> None:
    """Brute force: a run of elements at every offset within a transaction."""
    per = transaction // 4
    count = [(offset + run - 1) // per - offset // per + 1 for offset in range(per)]
    geometry = Geometry(first(gemm(3, 3, 1000 * per + 1)))  # rows of a length that no transaction divides
    assert geometry.held(0, (1, 1, run)).moved(transaction) == pytest.approx(sum(count) / per * transaction)


def test_runs_are_counted() -> None:
    geometry = Geometry(first(gemm(64, 64, 64)))
    assert geometry.held(0, (8, 1, 16)).runs == 8
    assert geometry.held(0, (8, 1, 64)).runs == 1


def test_a_flat_operator_is_one_run_whatever_its_shape() -> None:
    nest = first(relu(4, 8, 16))
    assert nest.extents == (512,)
    assert Geometry(nest).held(0, (100,)).runs == 1


def test_a_part_of_a_fused_dimension_is_one_run_of_its_own_length() -> None:
    """Three quarters of an inner row may wrap around its end, but lie side by side; whole fused dimensions join the outer one."""
    x, scale = ops.tensor((4, 8, 32, 32), name="x"), ops.tensor((8, 1, 1), name="scale")
    nest = first(expression(x * scale))
    assert nest.extents == (4, 8, 1024)
    held = Geometry(nest).held
    assert (held(0, (2, 1, 24)).tile.run, held(0, (2, 1, 24)).tile.elements) == (24, 48)
    assert held(0, (1, 4, 1024)).tile.run == 4 * 1024
    assert held(0, (1, 2, 512)).tile.run == 512


def test_strided_columns_crowd_into_few_sets() -> None:
    """64 sets of 64 B; rows of 4096 B all start in set 0, which is full when the memory has room for 64 times as much. Rows of
    two lines lie in two sets; rows of 4160 B are spread.
    """
    banks = Banks(count=64, width_bytes=64)
    assert Geometry(first(gemm(64, 8, 1024))).held(0, (16, 1, 16)).crowding(banks) == 64
    assert Geometry(first(gemm(64, 8, 1024))).held(0, (16, 1, 32)).crowding(banks) == 32
    assert Geometry(first(gemm(64, 8, 1040))).held(0, (16, 1, 16)).crowding(banks) == 1
    assert Geometry(first(gemm(64, 8, 1024))).held(0, (1, 1, 1024)).crowding(banks) == 1


def test_panels_hold_a_value_for_every_point_their_factor_depends_on() -> None:
    geometry = Geometry(first(gemm(8, 16, 32)))
    assert geometry.panel_elements(0, (4, 8, 16)) == 4 * 16
    assert geometry.panel_elements(1, (4, 8, 16)) == 16 * 8


@given(st.data(), expressions((1, 2, 3, 4, 6)))
def test_filling_a_panel_reads_what_its_points_touch(data: st.DataObject, expr: TensorExpr) -> None:
    """All elements that a tile's points touch, and no more than its box."""
    for nest in variants(expr.stages[0], expr.tensors):
        geometry, tile = Geometry(nest), tuple(data.draw(st.integers(1, e)) for e in nest.extents)
        for number, access in enumerate(nest.accesses):
            touched = set(interpreter.elements(nest, access, tuple(range(t) for t in tile)))
            read = geometry.read(number, tile).tile
            assert len(touched) <= read.elements <= geometry.held(number, tile).tile.elements
            assert read.run <= read.elements


def test_a_panel_of_windows_in_steps_is_smaller_than_their_box() -> None:
    """Two rows of 8 places, in steps of two in both directions: their box is 3 high and 15 wide; 16 elements are read, and those
    between them in a row.
    """
    op = ops.conv2d(ops.tensor((2, 4, 16, 16), name="x"), ops.tensor((3, 4, 1, 1), name="w"), stride=2)
    expr = expression(op)
    nest = next(v for v in variants(expr.stages[0], expr.tensors) if "h.w" in [d.name for d in v.dims])
    tile = tuple(16 if d.name == "h.w" else 1 for d in nest.dims)
    held, read = (f(0, tile) for f in (Geometry(nest).held, Geometry(nest).read))
    assert held.tile.elements == 3 * 15
    assert read.tile.elements == 2 * 16


def test_padding_is_work_that_is_wasted() -> None:
    assert padded_points((10, 7), (4, 7)) == 12 * 7
    assert padding_waste((10, 7), (4, 7)) == pytest.approx(0.2)
    assert padding_waste((8, 8), (4, 2)) == 0
    assert padding_waste((0, 8), (1, 2)) == 0
