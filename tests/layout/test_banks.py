"""Alignment rule 3: padding and conflicts with numbers worked out by hand, and what programs and their times make of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops, tensor
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.layout.banks import PanelRows, bank_conflicts, bank_padding, padding_bytes, panel_rows, staged_rows
from roller.program.alignment import Rules
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, Staging
from roller.search.choices import program_of
from roller.search.tile_space import TileSpace
from roller.target.catalog import find_spec
from roller.target.hardware import Banks, HardwareSpec
from roller.testing import constructed, expression, with_level

GPU = Banks(count=32, width_bytes=4)


def product(dtype: str = "float32", transpose_b: bool = False) -> TensorExpr:
    a, b = tensor((4096, 4096), dtype=dtype), tensor((4096, 4096), dtype=dtype)
    return fuse(expression(ops.matmul(a, b, transpose_b=transpose_b)))


def best(expr: TensorExpr, spec: HardwareSpec) -> StageProgram:
    return constructed(expr, spec)[0].program.stages[0]


def seconds(program: StageProgram, spec: HardwareSpec) -> float:
    return Model(spec, CostParameters(), Geometry(program.nest)).estimate(program).seconds


def test_the_papers_example_of_bank_padding() -> None:
    """Four banks of one element, rows of four read one element at a time: one element of padding, so that a column of four
    lies in four banks."""
    assert bank_padding(4, 1, Banks(count=4, width_bytes=4), 4) == 1


@pytest.mark.parametrize(
    ("row", "inner", "banks", "width", "size", "padding"),
    [
        (32, 1, 32, 4, 4, 1),  # a power of two: one bank further each row
        (32, 4, 32, 4, 4, 4),  # vectors of four: four banks further
        (33, 1, 32, 4, 4, 0),  # already one bank further
        (64, 8, 32, 4, 2, 8),  # two elements a bank: 8 elements are 4 banks
        (40, 4, 32, 4, 4, 28),  # 40 = 32 + 8, and 8 + 28 = 36 = 32 + 4
        (32, 1, 32, 8, 4, 34),  # two elements a bank of 64: 32 + 34 = 66, one bank further
    ],
)
def test_bank_padding_by_hand(row: int, inner: int, banks: int, width: int, size: int, padding: int) -> None:
    assert bank_padding(row, inner, Banks(count=banks, width_bytes=width), size) == padding


@given(st.integers(1, 300), st.integers(1, 16), st.sampled_from((4, 8, 32)))
def test_padded_rows_start_where_the_inner_row_before_ended(row: int, inner: int, banks: int) -> None:
    """Row r + 1 starts as many banks after row r as an inner row is wide: reads of a column of inner rows do not collide."""
    padding = bank_padding(row, inner, Banks(count=banks, width_bytes=4), 4)
    assert 0 <= padding < banks
    assert (row + padding) % banks == inner % banks


@pytest.mark.parametrize(
    ("pitch", "rows", "piece", "size", "conflicts"),
    [
        (32, 32, 1, 4, 32),  # a column of a square: all in one bank
        (33, 32, 1, 4, 1),  # the well-known remedy
        (40, 8, 4, 4, 2),  # starts 0, 8, 16, 24 and again: two rows in each
        (64, 8, 8, 2, 8),  # 64 halves are 32 words: eight rows of 16 bytes on the same four banks
        (72, 8, 8, 2, 1),  # padded by 8 halves: the rows of a matrix instruction go through all banks
        (16, 2, 1, 2, 1),  # two rows of halves, 8 words apart
        (5, 1, 3, 4, 1),  # one row alone
    ],
)
def test_conflicts_by_hand(pitch: int, rows: int, piece: int, size: int, conflicts: float) -> None:
    assert bank_conflicts(pitch, rows, piece, GPU, size) == conflicts


ROWS = st.builds(
    PanelRows,
    row=st.integers(1, 300),
    rows=st.just(64),
    together=st.integers(1, 32),
    piece=st.sampled_from((1, 2, 4, 8)),
    element_bytes=st.sampled_from((1, 2, 4, 8)),
    filling=st.booleans(),
    whole=st.sampled_from((1, 2, 4)),
)
BANKS = st.builds(Banks, count=st.sampled_from((4, 16, 32)), width_bytes=st.sampled_from((4, 8)))


@given(ROWS, BANKS, st.integers(0, 40))
def test_conflicts_count_the_words_of_the_busiest_bank(rows: PanelRows, banks: Banks, padding: int) -> None:
    """Against a memory that is walked byte by byte."""
    words: dict[int, set[int]] = defaultdict(set)
    for row in range(rows.together):
        for byte in range(rows.piece * rows.element_bytes):
            word = (row * (rows.row + padding) * rows.element_bytes + byte) // banks.width_bytes
            words[word % banks.count].add(word)
    apart = rows.row + padding >= rows.piece  # rows that overlap are no rows
    evenly = -(-sum(map(len, words.values())) // banks.count)
    if apart:
        assert rows.conflicts(padding, banks) == max(map(len, words.values())) / evenly


@given(ROWS, BANKS)
def test_padding_never_adds_conflicts_and_never_exceeds_the_papers(rows: PanelRows, banks: Banks) -> None:
    """But for what makes rows whole accesses of a lane."""
    padding = rows.padding(banks)
    papers = bank_padding(rows.row, rows.piece, banks, rows.element_bytes)
    papers += -(rows.row + papers) % rows.whole
    least = -rows.row % rows.whole
    assert least <= padding <= max(papers, least)
    assert (rows.row + padding) % rows.whole == 0
    assert rows.conflicts(padding, banks) <= rows.conflicts(least, banks)
    if rows.together > 1:
        assert rows.conflicts(padding, banks) <= rows.conflicts(papers, banks)


def test_less_padding_than_the_papers_where_it_does_as_well() -> None:
    """Rows of 40 words read four at a time: four more do, where the formula adds 28."""
    rows = PanelRows(row=40, rows=8, together=8, piece=4, element_bytes=4, filling=True, whole=4)
    assert (rows.padding(GPU), bank_padding(40, 4, GPU, 4)) == (4, 28)


def test_a_panel_filled_across_its_rows_is_padded_and_one_filled_along_them_is_not() -> None:
    """A is contiguous along the reduction, B along n: lanes that read A fill a column of its panel."""
    spec = find_spec("cuda", "v100-pcie")
    program = best(product(), spec)
    first, second = program.staged
    rows = staged_rows(program, spec, first)
    assert rows is not None
    assert (rows.row, rows.rows) == (program.unit_tile[0], program.unit_tile[2])
    assert rows.filling
    assert first.row_padding == 4  # a lane reads four neighbours of a row with one access
    assert second.row_padding == 0
    assert all(s.row_padding == 4 for s in best(product(transpose_b=True), spec).staged)


def test_rows_whose_parts_no_lane_reads_together_are_padded_by_a_bank() -> None:
    """Tiles of one row: each of 32 lanes fills a row of its own, which starts a bank further, a bank of 8 bytes on the K80."""
    for chip, padding in (("v100-pcie", 1), ("k80", 2)):
        spec, nest = find_spec("cuda", chip), best(product(), find_spec("cuda", chip)).nest
        atom = next(a for a in spec.atoms if a.name == "f32")
        level, order = spec.level_index("shared"), (0, 1, 2)
        program = StageProgram(nest, atom, (), (level, level + 1), ((128, 128, 32), (1, 1, 1)), (order, order))
        rows = panel_rows(program, spec, Staging("panel", 0, level))
        assert (rows.together, rows.piece) == (32, 1)
        banks = spec.level("shared").banks
        assert banks is not None
        assert rows.padding(banks) == padding


def test_rows_of_a_matrix_atoms_operands_are_padded_by_what_one_lane_reads() -> None:
    """16 x 16 halves over 32 lanes are 8 halves a lane, 16 bytes: the padding that such kernels are known for."""
    spec = find_spec("cuda", "v100-pcie")
    program = best(product("float16"), spec)
    assert program.atom.kind == "matrix"
    assert [s.row_padding for s in program.staged] == [8, 8]
    rows = staged_rows(program, spec, program.staged[0])
    assert rows is not None
    assert (rows.element_bytes, rows.filling) == (2, False)


@pytest.mark.parametrize(("dtype", "term"), [("float32", "register"), ("float16", "register")])
def test_conflicts_are_paid_for_where_rows_are_not_padded(dtype: str, term: str) -> None:
    """Filling is slower for panels that are filled across rows, reading for those of matrix atoms: both at the banks' rate."""
    spec = find_spec("cuda", "v100-pcie")
    program = best(product(dtype), spec)
    bare = replace(program, staged=tuple(replace(s, row_padding=0) for s in program.staged))
    model = Model(spec, CostParameters(), Geometry(program.nest))
    padded, unpadded = model.estimate(program), model.estimate(bare)
    assert unpadded.seconds > padded.seconds
    slower = {name for (name, before), (_, after) in zip(padded.terms, unpadded.terms, strict=True) if after > before * (1 + 1e-9)}
    assert term in slower
    assert "L2" not in slower
    assert "shared" not in slower


def test_panels_are_padded_only_where_there_is_room() -> None:
    """A scratchpad that the panels of the chosen tile fill to the last byte leaves none."""
    spec = find_spec("cuda", "v100-pcie")
    program = best(product(), spec)
    level = program.levels[0]
    fit = Fit(spec, program.nest, Geometry(program.nest))
    used = fit.footprint(program.levels, 0, program.unit_tile, program.inner, program.atom)
    depth = program.staged[0].depth
    spare = sum(s.depth * padding_bytes(program, spec, s) for s in program.staged)
    assert 0 < spare <= fit.room_left(program.levels, 0, program.unit_tile, depth, program.atom)
    memory = spec.levels[level]
    exact = memory.capacity_bytes - fit.room_left(program.levels, 0, program.unit_tile, depth, program.atom)
    assert used <= exact
    for chip, padding in ((spec, 4), (with_level(spec, level, capacity_bytes=exact, tile_max_bytes=None), 0)):
        tight = Fit(chip, program.nest, Geometry(program.nest))
        model = Model(chip, CostParameters(), tight.geometry)
        space = TileSpace(model, tight, Rules(chip.atoms, {}), program.nest, program.atom, program.mapping)
        again = program_of(space, program.levels, program.tiles)
        assert again.staged[0].depth == depth
        assert again.staged[0].row_padding == padding


def test_a_scratchpad_without_banks_pads_nothing() -> None:
    spec = find_spec("cuda", "v100-pcie")
    level = spec.level_index("shared")
    program = best(product(), with_level(spec, level, banks=None))
    assert [s.row_padding for s in program.staged] == [0, 0]
    assert seconds(program, spec) > seconds(program, with_level(spec, level, banks=None))
