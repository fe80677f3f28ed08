"""Programs: what their tiles say of loops, units, lanes, copies and accumulators."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.ir.nest import variants
from roller.program.dispatch import Dispatch, Loop
from roller.program.estimate import Estimate
from roller.program.rprogram import (
    RProgram,
    StageProgram,
    Staging,
    copy_depth,
    lane_level,
    staged_tensors,
    staged_touches,
    tiled_levels,
)
from roller.search.stages import diverse
from roller.target.hardware import HardwareSpec
from roller.testing import expressions, gemm, programs, relu, specs, toy_atom, toy_level, toy_spec, with_unit

PRODUCT = gemm(16, 24, 32)
NEST = variants(PRODUCT.stages[0], PRODUCT.tensors)[0]
M, N, K = 0, 1, 2


def program(**fields: object) -> StageProgram:
    """Units take 8 x 12 x 32; inside run 4 x 6 x 1, reductions innermost."""
    base = StageProgram(NEST, toy_atom("scalar", 1), (), (1, 2), ((8, 12, 32), (4, 6, 1)), ((M, N, K), (M, N, K)))
    return replace(base, **fields)


def test_loops_walk_each_tile_inside_the_next_outer_one() -> None:
    assert program().loops == (
        Loop(M, 2, "units", 1),
        Loop(N, 2, "units", 1),
        Loop(M, 2, "time", 2),
        Loop(N, 2, "time", 2),
        Loop(K, 32, "time", 2),
    )


def test_loops_of_one_trip_are_left_out_and_ragged_ones_count_the_last() -> None:
    ragged = program(tiles=((16, 10, 32), (16, 10, 32)))
    assert ragged.loops == (Loop(N, 3, "units", 1),)


def test_orders_say_which_loop_is_outside() -> None:
    turned = program(orders=((N, M, K), (K, N, M)))
    assert [(lp.dim, lp.level) for lp in turned.loops] == [(N, 1), (M, 1), (K, 2), (N, 2), (M, 2)]


def test_a_split_reduction_runs_over_units_and_otherwise_over_time() -> None:
    cut = program(tiles=((8, 12, 16), (4, 6, 1)))
    assert Loop(K, 2, "time", 1) in cut.loops
    assert cut.unit_tiles == 4
    assert Loop(K, 2, "units", 1) in cut.dispatched(split=2).loops
    assert cut.dispatched(split=2).unit_tiles == 8


def test_one_unit_alone_runs_everything_over_time() -> None:
    alone = program(dispatch=Dispatch(parallel=False))
    assert {lp.over for lp in alone.loops} == {"time"}
    assert alone.unit_tiles == 1


def test_spatial_loops_at_the_lane_level_run_over_lanes() -> None:
    wide = program(lane_level=2)
    assert [lp.over for lp in wide.loops] == ["units", "units", "lanes", "lanes", "time"]
    assert wide.lanes == 4
    assert wide.executed == wide.unit_tile
    assert program().lanes == 1
    assert program().executed == program().inner


def test_accumulators_are_visited_again_where_reductions_lie_outside() -> None:
    assert program().accumulator_visits == 1
    assert program(orders=((M, N, K), (K, M, N))).accumulator_visits == 32
    assert program(orders=((M, N, K), (M, K, N))).accumulator_visits == 32
    assert program(tiles=((8, 12, 16), (4, 6, 1))).accumulator_visits == 2


def test_a_level_holds_the_tile_of_the_level_around_it() -> None:
    deep = program(levels=(2, 4))
    assert deep.level_tile(1) == NEST.extents
    assert deep.level_tile(2) == deep.level_tile(3) == (8, 12, 32)
    assert deep.level_tile(4) == (4, 6, 1)


def test_a_copy_stands_inside_the_last_loop_that_it_depends_on() -> None:
    """Loops m n | m n k: A depends on m and k, B on n and k."""
    whole = program()
    assert copy_depth(whole, Staging("panel", 0, 0)) == 0
    assert copy_depth(whole, Staging("panel", 0, 1)) == 2  # after the units' m and n: each unit makes its own
    assert copy_depth(whole, Staging("panel", 1, 1)) == 2  # after the unit's n
    assert copy_depth(whole, Staging("panel", 0, 2)) == 5  # after k
    stepped = program(tiles=((8, 12, 16), (4, 6, 1)))
    assert copy_depth(stepped, Staging("panel", 0, 1)) == 3
    assert copy_depth(stepped, Staging("box", 2, 1)) == 2  # the output depends on no reduction


def test_a_staging_knows_what_it_copies() -> None:
    assert staged_tensors(NEST, Staging("panel", 1, 1)) == ("b",)
    assert staged_tensors(NEST, Staging("box", 0, 1)) == ("a",)
    assert staged_touches(NEST, Staging("panel", 0, 1)) == (True, False, True)
    assert staged_touches(NEST, Staging("box", 1, 1)) == (False, True, True)


def test_a_role_lies_on_a_dimension_or_nowhere() -> None:
    vector = program(atom=toy_atom("vector", 1, n=4), mapping=(("n", 1),))
    assert vector.role("n") == 1
    assert vector.role("m") is None


def test_programs_that_differ_have_different_keys() -> None:
    variations = [
        program(),
        program(dispatch=Dispatch(parallel=False)),
        program(orders=((N, M, K), (M, N, K))),
        program(tiles=((8, 12, 16), (4, 6, 1))),
        program(tiles=((8, 12, 16), (4, 6, 1)), dispatch=Dispatch(split=2)),
        program(staged=(Staging("panel", 0, 1),)),
        program(staged=(Staging("panel", 0, 1, depth=2),)),
    ]
    assert len({p.key for p in variations}) == len(variations)


def chip(*kinds: str, units: int = 4, **unit: object) -> HardwareSpec:
    """Levels by a word each: shared cache, own cache, pad, lane."""
    levels = []
    for number, kind in enumerate(kinds):
        instances = {"shared": 1, "cache": units, "pad": units, "lane": units * 8}[kind]
        size = 1 << (30 - 4 * number)
        levels.append(toy_level(f"{kind}{number}", size, 10, instances, kind not in ("shared", "cache")))
    return toy_spec(levels, count=units, **unit)


@pytest.mark.parametrize(
    ("kinds", "tiled"),
    [
        (("pad", "pad"), (1, 2)),
        (("shared", "pad", "pad"), (2, 3)),
        (("shared", "cache", "cache", "pad"), (2, 4)),  # the cache nearest to the registers streams
        (("cache", "pad"), (1, 2)),
        (("pad",), (1, 2)),  # the atom is the tile inside
        (("shared", "pad"), (2, 3)),
    ],
)
def test_levels_that_a_unit_owns_have_tiles(kinds: tuple[str, ...], tiled: tuple[int, ...]) -> None:
    assert tiled_levels(chip(*kinds)) == tiled


def test_lanes_work_at_the_innermost_level() -> None:
    grid = chip("shared", "pad", "lane", lanes_max=64)
    assert lane_level(grid) == 3
    assert lane_level(with_unit(grid, lanes_max=1)) is None


def test_a_program_is_plain_data() -> None:
    whole = RProgram(PRODUCT, (program(staged=(Staging("panel", 1, 1),)),))
    (stage,) = json.loads(json.dumps(whole.to_dict()))["stages"]
    assert stage["tiles"] == [{"m": 8, "n": 12, "k": 32}, {"m": 4, "n": 6, "k": 1}]
    assert stage["staged"][0]["tensors"] == ["b"]
    assert stage["loops"][0] == {"dim": "m", "trips": 2, "over": "units", "level": 1}
    assert whole.describe() == "m,n,k: 8x12x32 > 4x6x1 scalar panel(b@1)"


def test_programs_that_differ_are_described_differently() -> None:
    plain = program()
    assert "on one unit" in plain.dispatched(parallel=False).describe()
    lying, turned = (
        replace(plain, atom=toy_atom("matrix", 1, m=4, n=4, k=4), mapping=(("m", m), ("n", n), ("k", K)))
        for m, n in ((M, N), (N, M))
    )
    assert " on " not in lying.describe() and "matrix (m on n,n on m,k on k)" in turned.describe()


def test_what_is_many_times_slower_than_the_best_is_left_out_where_there_are_others() -> None:
    rated = [
        (program(tiles=((8, 12 * n, 32), (4, 6, 1))), Estimate(seconds, (), ()))
        for n, seconds in enumerate((1.0, 2.0, 3.0, 9.0, 11.0, 50.0), 1)
    ]
    assert [rating.seconds for _, rating in diverse(rated, 10)] == [1.0, 2.0, 3.0, 9.0]
    assert len(diverse([rated[0], *rated[-2:]], 10)) == 3, "a device may refuse some"


@given(st.data(), specs(), expressions(zero=False))
def test_the_trips_of_all_loops_cover_the_problem(data: st.DataObject, spec: HardwareSpec, expr) -> None:  # type: ignore[no-untyped-def]
    found = data.draw(programs(expr, spec)).stages[0]
    for dim, extent in enumerate(found.nest.extents):
        trips = math.prod(lp.trips for lp in found.loops if lp.dim == dim)
        assert trips * found.inner[dim] >= extent
    assert found.unit_tiles * found.lanes >= 1


def test_an_operator_without_reductions_has_no_accumulators_to_visit() -> None:
    expr = relu(64)
    flat = variants(expr.stages[0], expr.tensors)[0]
    assert StageProgram(flat, toy_atom("scalar", 1), (), (1, 2), ((16,), (4,)), ((0,), (0,))).accumulator_visits == 1
