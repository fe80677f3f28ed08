"""The interpreter against the engine: every point once, every byte counted, footprints as they are (property 1)."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

import interpreter
from roller import ops
from roller.cost.loops import NestWalk, run_in_order
from roller.cost.parameters import CostParameters
from roller.cost.traffic import level_traffic
from roller.ir.expr import TensorExpr
from roller.ir.nest import variants
from roller.program.capacity import Fit
from roller.program.footprint import Geometry, HeldTile
from roller.program.rprogram import StageProgram, Staging, lane_level, tiled_levels
from roller.target.hardware import HardwareSpec
from roller.testing import expression, expressions, gemm, programs, specs, toy_level, toy_spec, with_unit

TINY = (1, 2, 3, 4, 6, 8)
LINEAR = ("matmul", "transposed", "reduction", "elementwise", "transpose")
MILLION = 10**6


def pads(units: int = 1, **unit: object) -> HardwareSpec:
    """Three scratchpads inside one another, roomy, element-sized transactions, one copy at a time."""
    sizes = {"big": 1 << 20, "small": 1 << 18, "register": 1 << 16}
    return toy_spec([toy_level(name, size, 10, units) for name, size in sizes.items()], count=units, **unit)


def predicted(program: StageProgram, spec: HardwareSpec, index: int) -> float:
    return level_traffic(walk_of(program, spec), index).bytes


def walk_of(program: StageProgram, spec: HardwareSpec) -> NestWalk:
    return NestWalk(program, spec, Geometry(program.nest), CostParameters())


def cached(room: int) -> HardwareSpec:
    """A cache of one unit around its registers."""
    return toy_spec([toy_level("cache", room, 10, managed=False), toy_level("register", 4, 20)])


@st.composite
def tiny(draw: st.DrawFn, families: tuple[str, ...] | None = None, limit: int = 2048) -> TensorExpr:
    expr = draw(expressions(TINY, families) if families else expressions(TINY))
    assume(math.prod(expr.stages[0].extents.values()) <= limit)
    return expr


@given(st.data())
def test_every_accumulator_takes_every_reduce_point_exactly_once(data: st.DataObject) -> None:
    program = data.draw(programs(data.draw(tiny()), data.draw(specs()))).stages[0]
    nest = program.nest
    taken = Counter(interpreter.executed(program))
    assert set(taken.values()) <= {1}, "a point was taken in twice by one accumulator"
    reduced = set(itertools.product(*(range(nest.extents[i]) for i in nest.reduce)))
    by_accumulator: dict[object, set[tuple[int, ...]]] = {}
    for slot, spatial, reduce in taken:
        by_accumulator.setdefault((slot, spatial), set()).add(reduce)
    assert all(found == reduced for found in by_accumulator.values())
    assert {spatial for _, spatial in by_accumulator} == set(itertools.product(*(range(nest.extents[i]) for i in nest.spatial)))


@settings(max_examples=60)
@given(st.data(), st.sampled_from((1, 2)))
def test_one_unit_moves_into_a_scratchpad_what_the_engine_predicts(data: st.DataObject, index: int) -> None:
    spec = pads()
    program = data.draw(programs(data.draw(tiny(LINEAR)), spec, dividing=True)).stages[0]
    note(program.describe())
    assert predicted(program, spec, index) == pytest.approx(interpreter.scratchpad(program, index, 1).moved)


@settings(max_examples=60)
@given(st.data(), st.sampled_from((1, 2)))
def test_units_with_one_tile_each_load_their_own_copies(data: st.DataObject, index: int) -> None:
    spec = pads(MILLION)
    program = data.draw(programs(data.draw(tiny(LINEAR)), spec, dividing=True)).stages[0]
    note(program.describe())
    assert predicted(program, spec, index) == pytest.approx(interpreter.scratchpad(program, index, MILLION).moved)


@given(st.data())
def test_ragged_tiles_and_windows_are_never_predicted_to_move_less(data: st.DataObject) -> None:
    spec = pads()
    program = data.draw(programs(data.draw(tiny()), spec)).stages[0]
    note(program.describe())
    assert predicted(program, spec, 1) >= interpreter.scratchpad(program, 1, 1).moved * (1 - 1e-9)


@given(st.data(), st.sampled_from((1, 2, 4, 64)), expressions((1, 2, 4, 8), ("matmul", "reduction")))
def test_lanes_load_what_their_access_groups_touch(data: st.DataObject, together: int, expr: TensorExpr) -> None:
    """Every unit tile on a unit of its own; lanes that issue together form the block that loads least."""
    levels = [toy_level("pad", 1 << 20, 10, MILLION), toy_level("register", 1 << 16, 20, MILLION * 64, access_lanes=together)]
    spec = toy_spec(levels, lanes_max=64, count=MILLION)
    program = data.draw(programs(expr, spec, dividing=True)).stages[0]
    assume(program.lanes <= 64 and program.accumulator_visits == 1)
    note(program.describe())
    stored = program.nest.output.tensor.nbytes
    counted = min(interpreter.lane_loads(program, 2, group) for group in interpreter.lane_groups(program, together))
    assert predicted(program, spec, 2) - stored == pytest.approx(counted)


@given(st.data())
def test_the_footprint_of_a_scratchpad_tile_is_the_most_it_holds(data: st.DataObject) -> None:
    spec = pads()
    program = data.draw(programs(data.draw(tiny(("matmul", "transposed"))), spec, dividing=True)).stages[0]
    nest = program.nest
    assume(len(nest.extents) == 3)  # every operand is reused, so every one is held
    fit = Fit(spec, nest, Geometry(nest))
    footprint = fit.footprint(program.levels, 0, program.unit_tile, program.inner, program.atom)
    assert footprint == interpreter.scratchpad(program, 1, 1).peak


def live_bytes(program: StageProgram, spec: HardwareSpec) -> list[list[float]]:
    """For each array the bytes of its tile at each depth of the loops."""
    held = walk_of(program, spec).held
    return [[size.moved(4) if isinstance(size, HeldTile) else size or 0.0 for size in sizes] for sizes in held]


@settings(max_examples=60)
@given(st.data(), expressions((2, 4, 12, 16), ("matmul", "transposed")))
def test_a_cache_misses_exactly_what_the_engine_predicts(data: st.DataObject, expr: TensorExpr) -> None:
    """Where every prefix of the loops fits twice or not even half: least-recently-used data also makes room for what streams
    by, and between the two the engine's fading is a smoothing."""
    program = data.draw(programs(expr, cached(1 << 20), dividing=True)).stages[0]
    note(program.describe())
    live = [sum(sizes) for sizes in zip(*live_bytes(program, cached(1 << 20)), strict=True)]
    inside = [int(2 * f) for outer, f in itertools.pairwise(live) if outer >= 4 * f]
    room = data.draw(st.sampled_from(inside or [int(2 * live[0])]))
    counted = 4 * interpreter.cache_elements(program, room // 4)
    assert predicted(program, cached(room), 1) == pytest.approx(counted)


def test_a_panel_crosses_every_level_between_its_home_and_its_use() -> None:
    """Staging changes where a copy lies, not that the unit has to load it."""
    spec = toy_spec([toy_level("pad", 1 << 16, 10), toy_level("register", 1 << 12, 20)])
    expr = gemm(8, 8, 8)
    nest = variants(expr.stages[0], expr.tensors)[0]
    spatial_first = (0, 1, 2)
    atom, tiles = spec.atoms[0], ((4, 4, 8), (1, 1, 1))
    levels = tiled_levels(spec)
    assert levels == (1, 2)

    def moved(*staged: Staging) -> float:
        program = StageProgram(nest, atom, (), levels, tiles, (spatial_first,) * 2, staged, lane_level=lane_level(spec))
        return predicted(program, spec, 1)

    # Each of 2 x 2 tiles loads 4 x 8 of A (kept while n runs: 2 loads) and 8 x 4 of B (4 loads), and stores 4 x 4.
    assert moved() == 4 * (2 * 32 + 4 * 32 + 64)
    assert moved(Staging("panel", 0, 0), Staging("panel", 1, 0)) == moved()


def test_what_lanes_and_scratchpads_hold_takes_no_room_in_a_cache() -> None:
    """Steps of 2 along the reduction read a part of every line; the next steps find the rest, if only the tile's lines fit.

    Their panels lie in the scratchpad and the accumulators in registers: 16 lines of A and 2 x 2 of B, 64 bytes each, are all
    that half of the cache, one unit's share, holds.
    """
    cache = toy_level("cache", 4096, 10, managed=False, transaction_bytes=64, usable_fraction=1.0)
    levels = [cache, toy_level("pad", 2048, 20, 2), toy_level("register", 256, 40, 128)]
    spec = with_unit(toy_spec(levels, count=2), lanes_max=64)
    assert lane_level(spec) == 3 and tiled_levels(spec) == (2, 3)
    expr = gemm(64, 64, 256)
    nest = variants(expr.stages[0], expr.tensors)[0]
    tiles = ((16, 32, 2), (2, 4, 1))
    staged = (Staging("panel", 0, 2), Staging("panel", 1, 2))
    program = StageProgram(nest, spec.atoms[0], (), (2, 3), tiles, ((0, 1, 2),) * 2, staged, lane_level=3)
    # 4 x 2 tiles: the two units of a row of them read 16 whole rows of A together, and each 32 columns of B in whole lines; the
    # result is written once.
    assert predicted(program, spec, 1) == pytest.approx(4 * (4 * 16 * 256 + 8 * 32 * 256 + 64 * 64))


@pytest.mark.parametrize(
    ("rows", "order", "runs"),
    [
        (32, (0, 1), 1),  # row by row: the array from its first element to its last
        (32, (1, 0), 32 * 32),  # eight columns of every row, then the next eight: every piece is looked for
        (8, (1, 0), 8),  # as many rows as are followed together: each is one run
    ],
)
def test_runs_follow_the_order_of_the_walk(rows: int, order: tuple[int, int], runs: float) -> None:
    spec = toy_spec([toy_level("cache", 4096, 10, managed=False), toy_level("register", 1 << 12, 20)])
    expr = expression(ops.tensor((rows, 256), name="x") * ops.tensor((rows, 1), name="y"))
    nest = variants(expr.stages[0], expr.tensors)[0]
    x = next(n for n, a in enumerate(nest.accesses) if a.tensor.name == "x")
    program = StageProgram(nest, spec.atoms[0], (), tiled_levels(spec)[-1:], ((1, 8),), (order,))
    walk = walk_of(program, spec)
    stream = next(n for n, s in enumerate(walk.streams) if s.access == x)
    assert rows * 256 / run_in_order(walk, stream, None) == runs


def test_units_that_share_a_cache_fetch_once_and_units_of_their_own_each() -> None:
    """Four unit tiles along n: all read the whole of A, 8 x 8 elements."""

    def into(count: int, instances: int) -> float:
        cache = toy_level("cache", 1 << 16, 10, instances, managed=False)
        spec = with_unit(toy_spec([cache, toy_level("register", 1 << 12, 20, count)], count=count))
        expr = gemm(8, 8, 8)
        nest = variants(expr.stages[0], expr.tensors)[0]
        level = tiled_levels(spec)
        tiles = ((8, 2, 8), (1, 1, 1))[-len(level) :] if len(level) == 2 else ((8, 2, 8),)
        program = StageProgram(nest, spec.atoms[0], (), level, tiles, ((1, 0, 2),) * len(level))
        return predicted(program, spec, 1)

    a = b = c = 64 * 4
    assert into(4, 1) == a + b + c
    assert into(4, 4) == 4 * a + b + c
