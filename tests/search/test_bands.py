"""Bands: unit tiles of one dimension that follow one another, so that what units work on at a time is near a square."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from emulating import emulated, expression, needs_cxx, text_of
from roller import ops, verify
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.device.chip import load_spec, resolve
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.dispatch import Loop
from roller.program.footprint import Geometry
from roller.program.record import program_from_json, program_to_json
from roller.program.rprogram import StageProgram, Staging, lane_level, tiled_levels
from roller.search.choices import bands_of
from roller.search.construct import construct
from roller.search.tile_space import tile_spaces
from roller.target.hardware import HardwareSpec
from roller.testing import gemm
from roller_cuda.codegen import limits

M, N, K = 0, 1, 2
A100 = load_spec("cuda:a100")
PANELS = (Staging("panel", 0, 2, 2), Staging("panel", 1, 2, 2))


def program(rows: int, columns: int, spec: HardwareSpec = A100, k: int = 4096) -> StageProgram:
    """So many tiles of 128 x 64."""
    nest = variants((expr := gemm(128 * rows, 64 * columns, k)).stages[0], expr.tensors)[0]
    atom, order = next(a for a in spec.atoms if a.name == "f32"), ((M, N, K),) * 2
    tiles = ((128, 64, 32), (8, 8, 1))
    return StageProgram(nest, atom, (), tiled_levels(spec), tiles, order, PANELS, lane_level=lane_level(spec))


def walked(made: StageProgram) -> list[tuple[int, ...]]:
    """The unit tiles in the order in which they are dealt, each by its place along each dimension."""
    units = [lp for lp in made.loops if lp.over == "units"]
    found = []
    for trips in itertools.product(*(range(lp.trips) for lp in units)):
        place = [0] * len(made.nest.dims)
        for lp, trip in zip(units, trips, strict=True):
            place[lp.dim] += trip * made.step(lp) // made.unit_tile[lp.dim]
        found.append(tuple(place))
    return found


@given(st.integers(1, 24), st.integers(1, 24), st.sampled_from((M, N)), st.integers(1, 24))
def test_every_tile_is_dealt_once_whatever_the_band(rows: int, columns: int, dim: int, count: int) -> None:
    """But those of the last band beyond the end, each of which is another one worked on again."""
    plain = program(rows, columns)
    made = plain.dispatched(band=(dim, count))
    counts = dim == M and 1 < count < rows and columns > 1
    beyond = -rows % count if counts else 0
    places = walked(made)
    assert sorted(p for p in places if p[M] < rows) == walked(plain)
    assert {p[M] for p in places if p[M] >= rows} == set(range(rows, rows + beyond))
    assert made.unit_tiles == rows * columns + made.repeated and made.repeated == beyond * columns
    assert made.covered == (128 * (rows + beyond), 64 * columns, 4096)
    assert made.in_bands == counts, "a band along the innermost dimension, or of all its tiles, changes nothing"
    assert ("bands of" in made.describe()) == counts


def test_a_band_is_walked_before_the_next_tile_of_what_lies_inside_it() -> None:
    made = program(4, 3).dispatched(band=(M, 2))
    assert [lp for lp in made.loops if lp.over == "units"] == [
        Loop(M, 2, "units", 2, 256),
        Loop(N, 3, "units", 2),
        Loop(M, 2, "units", 2),
    ]
    assert walked(made)[:6] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0)]


def moved(made: StageProgram) -> float:
    """Predicted seconds of what comes into the L2 cache."""
    return dict(Model(A100, CostParameters(), Geometry(made.nest)).estimate(made).terms)["L2"]


def test_units_that_work_on_a_square_load_less() -> None:
    """108 multiprocessors in rows of 256 tiles: one row of one factor, and all of the other one."""
    plain = program(128, 256)
    squares = min(moved(plain.dispatched(band=(M, count))) for count in (2, 4, 8, 16))
    assert squares < 0.4 * moved(plain)
    rated = dict(Model(A100, CostParameters(), Geometry(plain.nest)).estimate(plain).terms)
    with_band = plain.dispatched(band=(M, 8))
    inside = dict(Model(A100, CostParameters(), Geometry(plain.nest)).estimate(with_band).terms)
    assert inside["shared"] == rated["shared"] and inside["compute"] == rated["compute"]


def banded(rows: int, columns: int, **other: object) -> list[StageProgram]:
    """A program of so many tiles in bands."""
    expr = gemm(128 * rows, 64 * columns, 4096)
    (search, *_) = tile_spaces(
        variants(expr.stages[0], expr.tensors), A100, resolve("cuda:a100")[0].rules(A100, expr), CostParameters()
    )
    plain = replace(program(rows, columns), nest=search.nest, **other)  # type: ignore[arg-type]
    return list(bands_of(search, plain))


def test_bands_are_as_wide_as_makes_what_units_load_least() -> None:
    """n tiles of a x b in bands of c: c a + n / c b; of the numbers that divide the tiles the nearest one."""
    (found,) = banded(128, 256)
    together = 108 * 3  # blocks of 128 threads with 36 KiB of panels, as many as registers leave room for
    assert found.dispatch.band is not None and found.dispatch.band[0] == M
    assert abs(math.log2(found.dispatch.band[1] / math.sqrt(together * 64 / 128))) <= 0.5
    assert not banded(128, 256, staged=()), "where nothing is used again there is nothing to load less of"


def test_a_band_goes_beyond_the_end_where_none_near_to_what_is_wanted_divides_the_tiles() -> None:
    """61 is prime: of 7 to 25 tiles 9 and 21 leave the fewest over, 2 of 63, and 9 is nearer to 13. 86 have 43, too far."""
    found = banded(61, 256)
    assert [made.dispatch.band for made in found] == [(M, 9)] and found[0].repeated == 2 * 256
    found = banded(86, 256)
    assert [made.dispatch.band for made in found] == [(M, 43), (M, 11)] and [made.repeated for made in found] == [0, 2 * 256]


def test_tiles_beyond_the_end_take_time() -> None:
    plain = program(61, 256)
    model = Model(A100, CostParameters(), Geometry(plain.nest))
    whole, beyond = (dict(model.estimate(p).terms)["compute"] for p in (plain, plain.dispatched(band=(M, 32))))
    assert beyond / whole == pytest.approx(64 / 61, rel=0.01)


@pytest.mark.parametrize("chip", ["cuda:v100", "cuda:a100", "cuda:h100", "rocm:mi300x"])
def test_large_products_are_dealt_in_bands(chip: str) -> None:
    plugin, spec = resolve(chip)
    expr = fuse(ops.expression(ops.matmul(ops.tensor((16384, 16384), "float16"), ops.tensor((16384, 16384), "float16"))))
    (best,) = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 1)
    assert best.program.stages[0].in_bands
    again = program_from_json(program_to_json(best.program), best.program.expr)
    assert again == best.program and again.describe() == best.program.describe()
    assert best.program.to_dict()["stages"][0]["band"]


@pytest.mark.one_in(2)
@needs_cxx
@pytest.mark.parametrize(
    ("m", "n", "k", "beyond"), [(100, 90, 60, False), (96, 64, 33, False), (100, 90, 60, True), (96, 64, 33, True)]
)
def test_programs_in_bands_are_right(m: int, n: int, k: int, beyond: bool) -> None:
    op = ops.matmul(ops.tensor((m, k), name="a"), ops.tensor((k, n), name="b"))
    expr, found = expression(op), 0
    for drawn in itertools.islice(roller.enumerate_programs(op, "cuda", spec=A100).drawn(3), 800):
        stage = drawn.stages[0]
        wanted = stage.in_bands and stage.unit_tiles <= 40 and bool(stage.repeated) == beyond
        if wanted and limits.refusal(A100, drawn) is None:
            arrays = verify.random_inputs(expr, found)
            verify.check(expr, arrays, emulated(expr, text_of(A100, drawn), arrays, bool(found % 2), True))
            found += 1
        if found == 3:
            return
    raise AssertionError("no program in bands was drawn")


def test_explain_says_how_tiles_are_dealt() -> None:
    kernel = roller.compile(ops.matmul(ops.tensor((16384, 8192)), ops.tensor((8192, 16384))), "cuda:a100")
    assert kernel.program.stages[0].in_bands
    assert "in bands of" in str(kernel.explain())
