"""Lanes whose tiles are no whole number of the widest accesses: how they read, what the model says of it, and if it is right."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from emulating import emulated, expression, needs_compiler, needs_cxx, text_of
from given_programs import Tiles, given_tiles, nest_of
from roller import ops, verify
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.device.chip import load_spec
from roller.ir.expr import TensorExpr
from roller.layout.banks import panel_steps, pieces
from roller.layout.lanes import accesses, group_tile, transactions
from roller.lowering.simt.threads import Block
from roller.lowering.tir.builder import Expr
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram, Staging, lane_level, staged_touches, tiled_levels
from roller_cuda.codegen import generator
from roller_cuda.toolchain import compiling, disassembly, machine_code
from roller_cuda.toolchain.machine_code import Stretch

GROUP = 32

needs_disassembler = pytest.mark.skipif(disassembly.tool() is None, reason=f"no disassembler: {disassembly.INSTALL}")


def product(m: int, n: int, k: int, transposed: tuple[bool, bool] = (False, False)) -> TensorExpr:
    a, b = ops.tensor((k, m) if transposed[0] else (m, k), name="a"), ops.tensor((n, k) if transposed[1] else (k, n), name="b")
    return expression(ops.matmul(a, b, transpose_a=transposed[0], transpose_b=transposed[1]))


def pointwise(images: int, channels: int, side: int, filters: int) -> TensorExpr:
    """A convolution of 1 x 1, whose input panel has a run of pixels for each image."""
    x, w = ops.tensor((images, channels, side, side), name="x"), ops.tensor((filters, channels, 1, 1), name="w")
    return expression(ops.conv2d(x, w))


@cache
def hot(m: int, n: int, tiles: Tiles) -> Stretch:
    """The loop of a large product with these tiles."""
    program, spec = given_tiles(product(m, n, 4096), tiles), load_spec("cuda:a100")
    artifact = compiling.build(spec, generator.generate(spec, program))
    (code,) = machine_code.read(artifact.data).values()
    assert code.whole.local_accesses == 0
    return code.hot


# --- pieces and lanes ------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.sampled_from((1, 2, 4, 8, 16)))
def test_pieces_are_the_fewest_powers_of_two(extent: int, widest: int) -> None:
    found = pieces(extent, widest)
    assert sum(found) == extent
    assert list(found) == sorted(found, reverse=True)
    assert all(p & (p - 1) == 0 and p <= widest for p in found)
    assert len(found) == extent // widest + (extent % widest).bit_count()


TILES = [
    ((96, 80, 8), (3, 5, 1)),
    ((56, 56, 8), (7, 7, 1)),
    ((64, 160, 4), (2, 10, 1)),
    ((128, 128, 8), (8, 8, 1)),
    ((20, 48, 8), (5, 3, 1)),
    ((48, 14, 8), (6, 7, 1)),
]


OPERATIONS: dict[type, Callable[[int, int], int]] = {
    tirx.Add: operator.add,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
}


def evaluated(expr: Expr | int, known: dict[Expr, int]) -> int:
    if isinstance(expr, int | tirx.IntImm):
        return int(expr)
    if isinstance(expr, tirx.Var):
        return known[expr]
    return OPERATIONS[type(expr)](evaluated(expr.a, known), evaluated(expr.b, known))


@pytest.mark.parametrize("tiles", TILES)
def test_every_point_of_a_units_tile_is_one_lanes(tiles: Tiles) -> None:
    """Of the numbers that threads and points have as the text says, every place comes once."""
    program = given_tiles(product(960, 1120, 64), tiles).stages[0]
    block = Block(program, GROUP)
    places: Counter[tuple[int, int]] = Counter()
    for thread in range(block.threads):
        known = {block.thread: thread}
        known |= {b.var: evaluated(b.value, known) for b in block.bindings()}
        rows, columns = ([evaluated(block.offset(d, o), known) for o in range(tiles[1][d])] for d in (0, 1))
        places.update(itertools.product(rows, columns))
    assert places == Counter(itertools.product(range(tiles[0][0]), range(tiles[0][1])))


# --- what reading takes ----------------------------------------------------------------------------------------------


def words_of_the_busiest_bank(program: StageProgram, number: int) -> int:
    """A lane group's reads of one panel, lane by lane and word by word."""
    staging, nest = program.staged[number], program.nest
    steps, _ = panel_steps(nest, staging, program.unit_tile, nest.spatial, nest.reduce)
    run, each = accesses(program, staging)
    near, total = group_tile(program, GROUP), 0
    for width, piece in each:
        words: dict[int, set[int]] = defaultdict(set)
        for lane in itertools.product(*(range(near.get(d, 1)) for d in range(len(nest.dims)))):
            start = sum(at * (piece if d == run else 1) * steps[d] for d, at in enumerate(lane) if steps[d])
            for word in range(start, start + width):
                words[word % 32].add(word)
        total += max(map(len, words.values()))
    touches = staged_touches(nest, staging)
    return total * math.prod(e for d, e in enumerate(program.inner) if touches[d] and d != run)


IMAGES = [
    ((16, 64, 7, 8), (1, 8, 7, 1)),
    ((32, 32, 7, 8), (2, 4, 7, 1)),
    ((64, 16, 5, 8), (2, 2, 5, 1)),
    ((8, 96, 14, 8), (1, 6, 7, 1)),
]


@pytest.mark.parametrize("tiles", IMAGES)
def test_runs_are_padded_for_wide_reads_without_conflicts(tiles: Tiles) -> None:
    """Pixels of an image are read in pieces of 4, 2 and 1, those of several images from different banks."""
    program = given_tiles(pointwise(128, 64, 7, 512), tiles).stages[0]
    run, each = accesses(program, program.staged[0])
    assert run == 2
    assert [width for width, _ in each] == list(pieces(tiles[1][2], 4))
    assert (tiles[0][2] + program.staged[0].run_padding) % 4 == 0
    group = group_tile(program, GROUP)
    found = transactions(program, program.staged[0], group, program_banks())
    assert found == words_of_the_busiest_bank(program, 0)
    distinct = math.prod(group.get(d, 1) for d in (0, 2))
    assert found == tiles[1][0] * sum(-(-distinct * width // 32) for width, _ in each), "lanes wait for one another"


def program_banks() -> object:
    return load_spec("cuda:a100").level("shared").banks


def test_the_model_counts_reads_not_bytes() -> None:
    """63 results from 7 + 9 values take six reads, 64 from 8 + 8 four: bytes alone would rate them alike."""
    spec = load_spec("cuda:a100")

    def register_seconds(tiles: Tiles) -> float:
        program = given_tiles(product(8064, 8064, 512), tiles).stages[0]
        estimate = Model(spec, CostParameters(), Geometry(program.nest)).estimate(program)
        return dict(estimate.terms)["register"]

    wide, odd = register_seconds(((128, 128, 16), (8, 8, 1))), register_seconds(((112, 144, 16), (7, 9, 1)))
    assert odd > 1.3 * wide
    assert register_seconds(((128, 128, 16), (1, 8, 1))) > 3 * wide


# --- the machine code ------------------------------------------------------------------------------------------------


@needs_compiler
@needs_disassembler
@pytest.mark.parametrize("tiles", [((80, 112, 16), (5, 7, 1)), ((112, 144, 16), (7, 9, 1)), ((96, 112, 16), (6, 7, 1))])
def test_tiles_of_odd_extents_are_read_with_wide_accesses(tiles: Tiles) -> None:
    """As many reads for each step as their pieces are; value by value a tile of 5 x 7 would take twelve."""
    loop = hot(80 * 7 * 9, 112 * 5 * 9, tiles)
    (_, inner) = tiles
    reads = sum(len(pieces(e, 4)) for e in inner[:2])
    steps = loop.bases["FFMA"] / math.prod(inner[:2])
    assert steps >= 1 and loop.bases["LDS"] == reads * steps
    assert loop.share("FFMA") >= 0.8
    assert loop.divisions == loop.constant_divisions == 0


# --- right -----------------------------------------------------------------------------------------------------------

ORDERS = list(itertools.product((False, True), (False, True)))
SMALL: list[tuple[TensorExpr, Tiles]] = [
    (product(33, 41, 19), ((20, 28, 4), (5, 7, 1))),
    (product(30, 37, 10, (True, False)), ((12, 36, 4), (3, 9, 1))),
    (product(29, 31, 13, (False, True)), ((28, 24, 4), (7, 6, 1))),
    (pointwise(6, 9, 7, 20), ((4, 16, 7, 4), (1, 4, 7, 1))),
    (pointwise(5, 9, 5, 12), ((4, 12, 5, 4), (2, 3, 5, 1))),
    (product(3, 40, 9), ((6, 28, 4), (3, 7, 1))),
]


@pytest.mark.one_in(4)
@needs_cxx
@pytest.mark.parametrize(("backwards", "eager"), ORDERS)
@pytest.mark.parametrize("number", range(len(SMALL)))
@pytest.mark.parametrize("chip", ["v100", "a100"])
def test_odd_tiles_are_right(number: int, backwards: bool, eager: bool, chip: str) -> None:
    expr, tiles = SMALL[number]
    spec, program = load_spec(f"cuda:{chip}"), given_tiles(expr, tiles, f"cuda:{chip}")
    arrays = verify.random_inputs(expr, seed=number, integer=True)
    verify.check(expr, arrays, emulated(expr, text_of(spec, program), arrays, backwards, eager))


@needs_cxx
@pytest.mark.parametrize("padding", [0, 2])
def test_pieces_of_three_are_stored_where_accesses_are_aligned(padding: int) -> None:
    """A window passes over three results as they are, not over two and one: the next lane's begin at no multiple of two."""
    x, w = ops.tensor((2, 4, 28 - 2 * padding, 28 - 2 * padding), name="x"), ops.tensor((4, 1, 5, 5), name="w")
    expr, spec = expression(ops.depthwise_conv2d(x, w, padding=padding)), load_spec("cuda:a100")
    nest = nest_of(expr, 6)
    atom, order = next(a for a in spec.atoms if a.name == "f32"), tuple(range(6))
    (panel,) = (number for number, access in enumerate(nest.accesses) if access.tensor.name == "x")
    tiles, staged = ((2, 4, 12, 24, 5, 5), (2, 2, 1, 3, 1, 5)), (Staging("panel", panel, 2, 1, windowed=True),)
    stage = StageProgram(nest, atom, (), tiled_levels(spec), tiles, (order, order), staged, lane_level=lane_level(spec))
    assert Block(stage, GROUP).pieces[3] == (3,)
    arrays = verify.random_inputs(expr, seed=padding, integer=True)
    verify.check(expr, arrays, emulated(expr, text_of(spec, RProgram(expr, (stage,))), arrays))
