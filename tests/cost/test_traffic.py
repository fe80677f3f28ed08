"""Shares of units, runs that wait, warm caches and crowded sets: small cases worked out by hand, and slow counting."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from roller import ops
from roller.compiler import compile as compile_kernel
from roller.cost.loops import NestWalk
from roller.cost.occupancy import unit_efficiency
from roller.cost.packing import copy_seconds, panel_room
from roller.cost.parameters import CostParameters, Rates
from roller.cost.traffic import level_traffic
from roller.device.chip import load_spec
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ops import expression
from roller.program.rprogram import StageProgram, Staging, lane_level
from roller.target.hardware import HardwareSpec
from roller.testing import expressions, programs, specs, toy_atom, toy_level, toy_spec, with_level
from small_caches import by_hand, cached, predicted, walk_of

EXTENTS = (1, 2, 3, 7, 16, 33)


# --- caches that units share -----------------------------------------------------------------------------------------


def product(units: int, *, m: int, n: int) -> NestWalk:
    """Tiles of 8 x 4 in m by n of them, over so many units."""
    spec = cached(1 << 20, units=units)
    expr = expression(ops.matmul(ops.tensor((8 * m, 16), name="a"), ops.tensor((16, 4 * n), name="b")))
    return walk_of(by_hand(expr, spec, (8, 4, 16), (1, 1, 1)), spec)


@pytest.mark.parametrize(
    ("units", "m", "n", "copies"),
    [
        (128, 8, 16, [8, 16, 128]),  # one tile each: 8 parts of a, 16 of b
        (2, 8, 16, [2, 1, 2]),  # each has half of the rows, and both are at the same columns
        (16, 8, 16, [8, 2, 16]),
        (64, 2, 4, [2, 4, 8]),  # no more than there are
        (1, 8, 16, [1, 1, 1]),
    ],
)
def test_what_units_read_together_counts_once(units: int, m: int, n: int, copies: list[int]) -> None:
    walk = product(units, m=m, n=n)
    assert [s.access for s in walk.streams] == [0, 1, 2]
    assert [walk.copies(number, len(walk.loops), units) for number in range(3)] == copies
    assert [walk.copies(number, 0, units) for number in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(("units", "copies"), [(128, [8, 16, 128]), (2, [1, 2, 2]), (16, [1, 16, 16]), (40, [3, 16, 48])])
def test_units_that_tiles_are_dealt_to_work_on_neighbours(units: int, copies: list[int]) -> None:
    """Sixteen units with lanes are at the same eight rows, where sixteen cores with runs of tiles are at eight places each."""
    walk = product(units, m=8, n=16)
    walk = replace(walk, program=replace(walk.program, lane_level=walk.program.levels[-1]), _trips_apart={})
    assert walk.program.dealt
    assert [walk.copies(number, len(walk.loops), units) for number in range(3)] == copies


def lines_of(rows: int, width: int, columns: range) -> int:
    """The lines of 64 bytes in which these columns of an array of float32 lie."""
    starts = [row * width for row in range(rows)]
    return len({(start + column) * 4 // 64 for start in starts for column in columns})


def lines_of_units(rows: int, width: int, tile: int, units: int) -> int:
    """The lines of all units that each take a run of tiles of so many columns."""
    tiles = math.ceil(width / tile)
    mine = math.ceil(tiles / units) * tile
    return sum([lines_of(rows, width, range(unit * mine, min(width, (unit + 1) * mine))) for unit in range(units)])


@pytest.mark.parametrize(("units", "width"), [(1, 14), (20, 14), (10, 14), (4, 40), (2, 67)])
def test_each_private_cache_loads_the_lines_on_the_borders_of_its_columns(units: int, width: int) -> None:
    """Sums of 64 rows of 268 values, some columns on each of so many units: lines that two of them need come twice."""
    spec = cached(1 << 20, units=units)
    program = by_hand(expression(ops.reduce_sum(ops.tensor((64, 268), name="x"), (0,))), spec, (width, 64), (1, 1))
    walk = walk_of(program, spec)
    counted = lines_of_units(64, 268, width, units)
    read = level_traffic(walk, 1).bytes - 268 * 4
    assert read == pytest.approx(counted * 64, rel=0.08)
    if units == 20:
        assert read > 1.7 * 64 * 268 * 4


@pytest.mark.parametrize(
    ("rows", "width", "tile", "units"), [(64, 2064, 2048, 2), (64, 1040, 1024, 2), (64, 357, 17, 20), (64, 1000, 240, 8)]
)
def test_a_shorter_last_part_is_no_border(rows: int, width: int, tile: int, units: int) -> None:
    spec = cached(1 << 22, units=units)
    program = by_hand(expression(ops.reduce_sum(ops.tensor((rows, width), name="x"), (0,))), spec, (tile, rows), (1, 1))
    counted = lines_of_units(rows, width, tile, units)
    assert level_traffic(walk_of(program, spec), 1).bytes - width * 4 == pytest.approx(counted * 64, rel=0.08)


def test_borders_of_two_dimensions_count() -> None:
    """Products of 32 x 14 on twenty units, two of them beside one another in rows: each unit loads its own columns."""
    spec = cached(1 << 20, units=20)
    operands = ops.tensor((64, 64), name="a"), ops.tensor((64, 140), name="b")
    walk = walk_of(by_hand(expression(ops.matmul(*operands)), spec, (32, 14, 64), (1, 1, 1)), spec)
    columns, rows = lines_of_units(64, 140, 14, 10) * 64, 64 * 64 * 4
    assert level_traffic(walk, 1).bytes == pytest.approx(10 * rows + 2 * columns + columns, rel=0.05)  # a, b and the results


def on_gpu(cache_bytes: int, atom: str, *tiles: tuple[int, ...]) -> tuple[StageProgram, NestWalk]:
    """A product of 4096 in each direction on 108 units with lanes, whose cache has so much room."""
    spec = load_spec("cuda:a100")
    cache = spec.level("L2").model_copy(update={"capacity_bytes": cache_bytes})
    spec = spec.model_copy(update={"levels": tuple(cache if lv.name == "L2" else lv for lv in spec.levels)})
    dtype = "float16" if atom.startswith("mma") else "float32"
    expr = expression(ops.matmul(ops.tensor((4096, 4096), dtype, name="a"), ops.tensor((4096, 4096), dtype, name="b")))
    program = by_hand(expr, spec, *tiles)
    chosen = next(a for a in spec.atoms if a.name == atom)
    staged = (Staging("panel", 0, program.levels[0], 2), Staging("panel", 1, program.levels[0], 2))
    mapping = (("m", 0), ("n", 1), ("k", 2)) if chosen.kind == "matrix" else ()
    program = replace(program, atom=chosen, mapping=mapping, lane_level=lane_level(spec), staged=staged)
    return program, walk_of(program, spec)


def test_one_unit_brings_what_its_neighbours_want_at_the_same_time() -> None:
    """32 rows of 16 tiles of 128 x 256: 108 units work on 7 rows, so that b comes 5 times, and a and the result once."""
    program, walk = on_gpu(1 << 20, "f32", (128, 256, 16), (8, 8, 1))
    assert walk.apart(108)[:2] == (7, 16)
    assert level_traffic(walk, 1).bytes / (4 * 4096 * 4096) == pytest.approx(1 + 5 + 1)
    serial = replace(program, lane_level=None, staged=())
    assert level_traffic(replace(walk, program=serial, _trips_apart={}), 1).bytes > 20 * 4 * 4096 * 4096


def test_lanes_of_a_matrix_atom_fetch_their_sub_tile_and_no_more() -> None:
    """64 x 64 results of a warp need 128 values for each step of the reduction, 32 x 32 need 64 for a quarter of the results."""
    large, small = (
        level_traffic(on_gpu(1 << 25, "mma_m16n8k16_f16", (128, 256, 64), inner)[1], 3).bytes
        for inner in ((64, 64, 16), (32, 32, 16))
    )
    results = 4 * 4096 * 4096
    assert (small - results) / (large - results) == pytest.approx(2, rel=0.05)


def test_a_panel_of_its_own_is_one_for_each_unit() -> None:
    walk = product(4, m=8, n=16)
    panel = replace(walk.program, staged=(Staging("panel", 1, walk.program.levels[0]),))
    walk = replace(walk, program=panel, _runs={}, _needs={})
    number = next(n for n, s in enumerate(walk.streams) if s.access is None)
    assert walk.copies(number, len(walk.loops), 4) == 4


# --- shares of units -------------------------------------------------------------------------------------------------


@given(
    st.tuples(st.integers(2, 40), st.integers(2, 40)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.integers(1, 9),
    st.permutations((0, 1)),
)
def test_the_largest_share_of_consecutive_tiles_decides(
    extents: tuple[int, int], tile: tuple[int, int], units: int, order: list[int]
) -> None:
    spec = cached(1 << 20, units=units)
    expr = expression(ops.tensor(extents) + ops.tensor(extents[1:]))
    tile = (min(tile[0], extents[0]), min(tile[1], extents[1]))
    program = by_hand(expr, spec, tile, (1, 1), orders=(tuple(order), (0, 1)))
    trips = [range(0, extents[d], tile[d]) for d in order]
    work = []
    for starts in itertools.product(*trips):
        sizes = [min(tile[d], extents[d] - start) for d, start in zip(order, starts, strict=True)]
        work.append(sizes[0] * sizes[1])
    share = -(-len(work) // units)
    largest = max(sum(work[i : i + share]) for i in range(0, len(work), share))
    note(program.describe())
    assert unit_efficiency(program, spec) == pytest.approx(sum(work) / (units * largest))


def test_lanes_run_the_last_tile_whole() -> None:
    """20 elements in tiles of 12: one after another the second is shorter; lanes run both as if they were whole."""
    spec = cached(1 << 20, units=2)
    program = by_hand(expression(ops.relu(ops.tensor((20,)))), spec, (12,), (3,))
    assert unit_efficiency(program, spec) == pytest.approx(20 / 24)
    assert unit_efficiency(replace(program, lane_level=program.levels[-1]), spec) == 1


def test_rows_between_windows_are_not_loaded() -> None:
    """Windows of 1 x 1 in steps of two: of 63 rows of 63 elements, every other one is loaded, and with it all its lines."""
    spec = cached(1 << 12)
    program = by_hand(expression(ops.avg_pool2d(ops.tensor((1, 8, 63, 63)), 1, 2)), spec, (1, 8, 32), (1, 4, 32))
    read, written = 8 * 32 * 64 * 4, 8 * 32 * 32 * 4
    assert level_traffic(walk_of(program, spec), 1).bytes < 1.2 * (read + written)


# --- runs that wait --------------------------------------------------------------------------------------------------


@given(st.data(), specs(), expressions(EXTENTS))
def test_no_more_runs_wait_than_transactions_move(data: st.DataObject, spec: HardwareSpec, expr: TensorExpr) -> None:
    program = data.draw(programs(expr, spec)).stages[0]
    walk = walk_of(program, spec)
    for index, level in enumerate(spec.levels[1:], start=1):
        if not level.managed:
            found = level_traffic(walk, index)
            assert 0 <= found.runs <= found.bytes / level.transaction_bytes + 1e-6


def test_half_a_line_waits_once_where_the_line_stays() -> None:
    """Columns of 8 out of rows of 64: a line of 16 elements is brought once for both columns that it holds."""
    spec = cached(1 << 20)
    program = by_hand(expression(ops.transpose(ops.tensor((64, 64)))), spec, (64, 64), (8, 8))
    found = level_traffic(walk_of(program, spec, read_streams=0, write_streams=0), 1)
    assert found.runs == 2 * 64 * 64 / 16


# --- rows that are read ahead -----------------------------------------------------------------------------------------


def columns(spec: HardwareSpec, width: int) -> StageProgram:
    """Sums of columns, four at a time: runs of four elements, a whole row apart."""
    return by_hand(expression(ops.reduce_sum(ops.tensor((4096, width)), 0)), spec, (4, 4096), (4, 1))


@pytest.mark.parametrize("loss", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize(("sets", "width", "early"), [(None, 1024, True), (64, 1040, True), (64, 1024, False)])
def test_waiting_for_rows_that_come_early_overlaps_as_what_comes_from_outside(
    sets: int | None, width: int, early: bool, loss: float | None
) -> None:
    """Rows of 1024 floats start in one set of eight lines: nothing hides their waiting. A chip without a number of its own for
    the cache says 0.1.
    """
    slow = with_level(cached(1 << 15, sets).model_copy(update={"atoms": (toy_atom("scalar", 0.01),)}), 1, overlap_loss=loss)
    program = columns(slow, width)
    waiting, idle = (predicted(program, chip, read_streams=32) for chip in (slow, with_level(slow, 1, latency_ns=0.0)))
    latency = dict(waiting.terms)["latency"]
    assert 0 < latency < dict(waiting.terms)["compute"] / 2 and dict(idle.terms)["latency"] == 0
    share = (0.1 if loss is None else loss) if early else 1.0
    assert waiting.seconds - idle.seconds == pytest.approx(share * latency, rel=0.01, abs=1e-3 * latency)


def test_a_copy_waits_for_its_rows_in_full() -> None:
    """Nothing runs beside it: the waiting for a panel's source is not read ahead."""
    spec = cached(1 << 15)
    program = by_hand(expression(ops.matmul(ops.tensor((64, 128)), ops.tensor((128, 256)))), spec, (64, 16, 128), (2, 4, 1))
    packed = replace(program, staged=(Staging("panel", 1, 1),))
    (source,) = [n for n, s in enumerate(walk_of(packed, spec).streams) if s.access == 1]
    assert walk_of(program, spec).ahead[1] and not walk_of(packed, spec).ahead[source]


# --- results ---------------------------------------------------------------------------------------------------------


def test_results_that_crowd_a_cache_are_not_moved_in_every_step() -> None:
    """64 rows of results a page apart, in sets with room for few of them: they move once a tile, however long the reduction."""
    more = []
    for depth in (8, 64):
        op = ops.matmul(ops.tensor((64, depth)), ops.tensor((1024, depth)), transpose_b=True)
        moved = []
        for sets in (16, None):
            spec = cached(1 << 15, sets)
            program = by_hand(expression(op), spec, (64, 16, depth), (64, 1, 1))
            walk = walk_of(program, spec)
            (output,) = [stream for stream in walk.streams if program.nest.accesses[stream.access or 0].role == "output"]
            assert output.stop == 2 < len(walk.loops)
            moved.append(level_traffic(walk, 1).bytes)
        more.append(moved[0] - moved[1])
    assert 0 < more[0] == more[1]


# --- warm caches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("elements", "share"), [(1024, 0.0), (4096, 0.0), (6144, 0.5), (8192, 1.0), (1 << 20, 1.0)])
def test_what_fits_a_warm_cache_is_there_already(elements: int, share: float) -> None:
    """A cache of 32 KiB; the operator touches 8 bytes an element. It fades until twice the room is needed."""
    spec = cached(1 << 15)
    program = by_hand(expression(ops.relu(ops.tensor((elements,)))), spec, (elements,), (16,))
    cold, warm = (dict(predicted(program, spec, warm=w).terms) for w in (0.0, 1.0))
    assert cold["cache"] == pytest.approx(8 * elements / 16e9)
    assert warm["cache"] == pytest.approx(share * cold["cache"], abs=1e-12)
    assert warm["latency"] == pytest.approx(share * cold["latency"], abs=1e-12)


# --- crowded sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "factor"), [(1024, 2.875), (1040, 1.0)])
def test_half_lines_in_one_set_are_brought_again_for_the_other_half(columns: int, factor: float) -> None:
    """32 KiB in 64 sets. Strips of 8 columns, 64 rows of 4096 bytes apart: all lie in one set of 8 lines.
    Half a line wherever it starts touches (32 - 4) / 64 + 1 lines on average.
    """
    op = expression(ops.tensor((64, columns)) + ops.tensor((64, 1)))
    plain, crowded = cached(1 << 15), cached(1 << 15, sets=64)
    moved = []
    for spec in (plain, crowded):
        program = by_hand(op, spec, (64, columns), (8, 8), orders=((0, 1), (1, 0)))
        moved.append(level_traffic(walk_of(program, spec), 1).bytes)
    assert moved[1] == pytest.approx(factor * moved[0], rel=0.02)


@pytest.mark.parametrize(("rows", "columns", "lines"), [(2, 1024, 1), (2, 1040, 1 / 16), (4, 1024, 1.1875 / 4), (4, 1040, 1 / 16)])
def test_vectors_gathered_from_one_set_fetch_a_line_for_every_element(rows: int, columns: int, lines: float) -> None:
    """32 KiB in 64 sets, 64 rows in one set of 8 lines (or not, at 1040 columns): a vector of 4 picks an element of every row, and
    for the next row their lines are gone. Blocks of 4 x 4 take four rows' elements at once, (16 - 4) / 64 + 1 lines each.
    """
    spec = cached(1 << 15, sets=64)
    program = by_hand(
        expression(ops.transpose(ops.tensor((64, columns)))), spec, (columns, 64), (rows, 64), orders=((1, 0), (0, 1))
    )
    program = replace(program, atom=toy_atom("vector", 8.0, n=4), mapping=(("n", 1),))
    elements = 64 * columns
    found = level_traffic(walk_of(program, spec), 1)
    read = (found.bytes - 4 * elements) / (64 * elements)  # transactions an element, without the result
    assert read == pytest.approx(lines)
    assert (found.runs >= elements) == (lines == 1)


# --- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "travels"), [(64, False), (128, True)])
def test_a_panel_that_no_cache_holds_beside_what_it_copies_travels_to_memory_and_back(columns: int, travels: bool) -> None:
    """A cache of 64 KiB: a panel of 128 x 64 floats takes half of it, and as much passes through; one of 128 x 128 does not fit."""
    spec = cached(1 << 16)
    program = by_hand(expression(ops.matmul(ops.tensor((64, 128)), ops.tensor((128, 256)))), spec, (64, columns, 128), (2, 4, 1))
    packed = replace(program, staged=(Staging("panel", 1, 1),))
    times = -(-256 // columns)
    moved = 128 * columns * 4 * times * (3 if travels else 1)
    rates = Rates(spec, CostParameters(copy_slots=0.0))
    assert panel_room(spec, 1) == 1 << 15
    seconds = copy_seconds(rates, walk_of(packed, spec, copy_slots=0.0), packed.staged[0])
    assert seconds == pytest.approx(moved / 16e9, rel=1e-6)


@pytest.mark.parametrize(("capacity", "brought"), [(1 << 16, 2), (1 << 12, 3)])
def test_a_box_that_the_cache_does_not_keep_is_brought_again(capacity: int, brought: int) -> None:
    """4096 floats copied in two halves: the array in, the result out, and where 8 KiB have no room the copies again."""
    spec = cached(capacity)
    program = by_hand(expression(ops.relu(ops.tensor((4096,)))), spec, (2048,), (8,))
    boxed = replace(program, staged=(Staging("box", 0, 1),))
    found = level_traffic(walk_of(boxed, spec), 1)
    assert found.bytes == brought * 4096 * 4


def test_a_box_outside_the_panel_that_reads_it_can_be_rated() -> None:
    """The panel depends on rows that the box does not: its loop, innermost, has the panel's copy inside and the box's outside."""
    x, y, w = ops.tensor((20, 3), name="x"), ops.tensor((6, 3), name="y"), ops.tensor((5, 3), name="w")
    expr = expression(ops.einsum("hr,fr,gr->fhg", x, y, w))
    spec = cached(1 << 12)
    program = by_hand(expr, spec, (2, 2, 2, 3), (1, 1, 1, 1), orders=((2, 1, 0, 3),) * 2)
    nest = program.nest
    (factor,) = {a.factor for a in nest.inputs if a.tensor.name == "y"}
    box = next(n for n, a in enumerate(nest.accesses) if a.tensor.name == "x")
    joined = replace(nest, accesses=tuple(replace(a, factor=factor) if a.tensor.name == "x" else a for a in nest.accesses))
    staged = (Staging("box", box, 1), Staging("panel", factor, 1))
    copied = replace(program, nest=joined, staged=staged).dispatched(parallel=False)
    starts = [stream.start for stream in walk_of(copied, spec).streams if stream.copy]
    assert len(set(starts)) == len(starts) > 1
    assert predicted(copied, spec).seconds > 0


def test_what_a_warm_cache_holds_is_not_shown_as_a_movement_of_no_bytes() -> None:
    small = compile_kernel(ops.relu(ops.matmul(ops.tensor((8, 8)), ops.tensor((8, 8)))), "cpu:zen3")
    told = str(small.explain())
    assert "all there" in told and " 0 B " not in told


# --- epilogues -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [4, 8, 16, 32])
@pytest.mark.parametrize("lanes", [False, True])
def test_what_an_epilogue_reads_moves_once_however_long_the_reduction(step: int, lanes: bool) -> None:
    """It waits for the sums: into registers a residual moves once, not with every step of the reduction before it."""
    levels = [toy_level("pad", 1 << 16, 64, 2), toy_level("register", 1 << 12, 256, 2)]
    spec = toy_spec(levels, (toy_atom("scalar", 64.0),), 0.1, count=2, lanes_max=64, lane_group=32, resident_tiles_max=8)
    a, b, r = (ops.tensor(shape, name=name) for shape, name in (((32, 32), "a"), ((32, 32), "b"), ((32, 32), "r")))
    moved = []
    for op in (ops.matmul(a, b), ops.matmul(a, b) + r):
        made = by_hand(fuse(expression(op)), spec, (16, 16, step), (2, 4, 2))
        moved.append(walk_of(replace(made, lane_level=lane_level(spec) if lanes else None), spec))
    plain, fused = (level_traffic(walk, 2) for walk in moved)
    assert fused.bytes - plain.bytes == 32 * 32 * 4
