"""Enumerate, screen, rate, descend: the lattice is complete, the screen is the model, a descent ends where no step helps."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from roller import ops
from roller.cost.occupancy import held_copies
from roller.ir.elementwise import Value
from roller.ops import SymbolicTensor
from roller.program.estimate import Estimate
from roller.program.footprint import Boxes, BoxShape, Geometry
from roller.program.rprogram import StageProgram
from roller.program.superwords import as_compiled
from roller.search import enumeration
from roller.search.construct import construct_stage
from roller.search.funnel import lattice
from roller.search.funnel.cache_screen import CacheScreen
from roller.search.funnel.descent import descended
from roller.search.funnel.placed_screen import PlacedScreen
from roller.search.funnel.screens import in_caches, screen_of
from roller.search.funnel.short_list import LONG, SHORT, rate_short_list
from roller.search.funnel.steps import nearby
from roller.search.tile_space import TileSpace
from roller.target.hardware import HardwareSpec, RowShares
from roller.target.subset import limited
from stage_spaces import CHIPS, operators, spaces_of

LANES = ("cuda:a100", "cuda:h100", "rocm:mi300x", "rocm:rx7900xtx")


def constructed_best(found: list[TileSpace]) -> tuple[StageProgram, Estimate]:
    """The best program of a stage."""
    nests = tuple(dict.fromkeys(space.nest for space in found))
    return construct_stage(nests, found[0].spec, found[0].rules, found[0].model.parameters, 1)[0]


def drawn(space: TileSpace, seed: int) -> StageProgram:
    """A program of a tile space in the default order, of random aligned tiles, with random copies."""
    chance = random.Random(seed)
    screen, inner = CacheScreen(space), lattice.inner_tiles(space)
    chains = lattice.chains_around(space, inner[:, [chance.randrange(inner.shape[1])]])
    (chain,) = lattice.chains_of(chains, [chance.randrange(chains[0].shape[1])])
    program = replace(screen.base, tiles=chain, staged=chance.choice(screen.ways).staged)
    return program.dispatched(parallel=chance.random() < 0.8)


def compiled_otherwise(space: TileSpace, program: StageProgram) -> bool:
    """Whether the compiler makes vectors of a program's scalars."""
    return as_compiled(space.spec, program, space.model.parameters.superwords) is not program


def screened(space: TileSpace, program: StageProgram) -> float:
    """What the screen says of a program."""
    return float(CacheScreen(space).seconds_of([lattice.tiles_of([tile]) for tile in program.tiles], program)[0])


def with_caches(spec: HardwareSpec, smaller: int) -> HardwareSpec:
    """The chip with caches of a part of their size, so that small results do not fit either."""
    outermost, *levels = spec.levels
    found = [lv if lv.managed else lv.model_copy(update={"capacity_bytes": lv.capacity_bytes // smaller}) for lv in levels]
    return spec.model_copy(update={"levels": (outermost, *found)})


def with_rows(spec: HardwareSpec) -> HardwareSpec:
    """The chip, where reading rows in turn is slow, the more so the more rows and the shorter the runs."""
    rows = RowShares(rows=(1, 4, 64), run_bytes=(16, 64, 1024), shares=((0.6, 0.9, 1.0), (0.4, 0.5, 0.8), (0.1, 0.2, 0.7)))
    found = [lv if lv.managed else lv.model_copy(update={"row_shares": rows}) for lv in spec.levels]
    return spec.model_copy(update={"levels": tuple(found)})


def with_steps(spec: HardwareSpec, cost_ns: float) -> HardwareSpec:
    """The chip, every step of whose levels costs this much."""
    return spec.model_copy(update={"levels": tuple(lv.model_copy(update={"step_overhead_ns": cost_ns}) for lv in spec.levels)})


@given(
    operators(), st.sampled_from(CHIPS), st.integers(0, 1 << 16), st.sampled_from((1, 2, None)), st.sampled_from((0.0, 50.0)),
    st.sampled_from((1, 4, 256)), st.booleans(),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_the_screen_is_the_model_where_nothing_is_copied(
    op: SymbolicTensor, chip: str, seed: int, threads: int | None, step_ns: float, smaller: int, in_rows: bool
) -> None:
    def changed(spec: HardwareSpec) -> HardwareSpec:
        found = with_caches(spec if threads is None else limited(spec, threads), smaller)
        return with_steps(with_rows(found) if in_rows else found, step_ns)

    found = spaces_of(chip, op, changed)
    space = found[seed % len(found)]
    program = replace(drawn(space, seed), staged=())
    said, model = screened(space, program), space.model.estimate(program).seconds
    assert said == pytest.approx(model, rel=0.05), program.describe()  # runs along loops that the model drops are all that differs


@pytest.mark.parametrize("chip", CHIPS)
def test_with_copies_the_screen_is_mostly_the_model(chip: str) -> None:
    """Copies take room in caches, which the screen does not know: of ten random programs, nine are within a twentieth."""
    products = [ops.matmul(ops.tensor((m, 100)), ops.tensor((100, n))) for m, n in ((64, 384), (31, 100), (384, 384))]
    others = [ops.conv2d(ops.tensor((2, 16, 14, 14)), ops.tensor((48, 16, 3, 3)), step, 1) for step in (1, 2)]
    ratios = []
    for op in (*products, *others, ops.max_pool2d(ops.tensor((2, 31, 28, 28)), 3, 2, 1)):
        found = spaces_of(chip, op)
        programs = [(space, drawn(space, seed)) for seed in range(8) for space in found]
        programs = [(space, one) for space, one in programs if not compiled_otherwise(space, one)]  # screens know scalars only
        ratios += [screened(space, program) / space.model.estimate(program).seconds for space, program in programs]
    assert sum(0.95 < ratio < 1.05 for ratio in ratios) > 0.85 * len(ratios)
    assert all(0.3 < ratio < 3 for ratio in ratios)


@given(operators(), st.sampled_from(CHIPS), st.integers(0, 1 << 16))
@settings(max_examples=60, deadline=None)
def test_a_lower_bound_is_one(op: SymbolicTensor, chip: str, seed: int) -> None:
    found = spaces_of(chip, op)
    space = found[seed % len(found)]
    program = replace(drawn(space, seed), staged=()).dispatched(parallel=True)
    bound = CacheScreen(space).least_seconds(lattice.tiles_of([program.inner]))[0]
    assert bound <= screened(space, program) * (1 + 1e-9)


@given(
    operators(),
    st.sampled_from(CHIPS),
    st.integers(0, 1 << 16),
    st.sampled_from((1, 2, None)),
    st.floats(0, 1),
    st.sampled_from((1, 8, 64)),
)
@settings(max_examples=60, deadline=None)
def test_chains_that_do_not_count_are_left_out_and_no_others(
    op: SymbolicTensor, chip: str, seed: int, threads: int | None, quantile: float, most: int
) -> None:
    """Of random chains: those below a limit, and among the best so many, have the same seconds as without these."""
    found = spaces_of(chip, op, lambda spec: spec if threads is None else limited(spec, threads))
    screen, inner = CacheScreen(found[seed % len(found)]), lattice.inner_tiles(found[seed % len(found)])
    chance = random.Random(seed)
    chains = screen.around([inner[:, sorted(chance.sample(range(inner.shape[1]), min(6, inner.shape[1])))]])
    exact = screen.seconds(chains, 0.0, math.inf, chains[0].shape[1])
    shortest = np.minimum.reduce(exact)
    worth = float(np.quantile(shortest[np.isfinite(shortest)], quantile))
    counts = min(worth, math.nextafter(np.sort(shortest)[min(most, len(shortest)) - 1], math.inf))
    for seconds, said in zip(exact, screen.seconds(chains, 0.0, worth, most), strict=True):
        assert np.array_equal(said[seconds < counts], seconds[seconds < counts])
        assert (said[seconds >= counts] >= counts).all()


def test_a_device_that_rates_otherwise_gets_as_many_programs_of_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """With caches and a model of its own, no way is cut short for what the screen says of another one."""
    asked, exact = list[tuple[int, int]](), CacheScreen.seconds

    def seconds(self: CacheScreen, chains: lattice.Chains, least: float, worth: float, most: int) -> list[Value]:
        asked.append((most, chains[0].shape[1]))
        return exact(self, chains, least, worth, most)

    monkeypatch.setattr(CacheScreen, "seconds", seconds)
    found = spaces_of("cpu:zen5", ops.matmul(ops.tensor((384, 384)), ops.tensor((384, 384))))
    for space in found:
        space.model.parameters = replace(space.model.parameters, own_model=lambda program, worth: None)
    rate_short_list([CacheScreen(space) for space in found], lambda space, program: space.model.estimate(program).seconds)
    most, count = asked[0]
    assert most >= count > LONG


@given(operators(), st.integers(0, 1 << 16))
@settings(max_examples=60, deadline=None)
def test_boxes_of_arrays_of_tiles_are_those_of_single_tiles(op: SymbolicTensor, seed: int) -> None:
    chance = random.Random(seed)
    nest = spaces_of("cpu:zen5", op)[-1].nest
    tiles = [tuple(chance.randint(1, e + 3) for e in nest.extents) for _ in range(8)]
    for access in nest.accesses:
        shape = BoxShape(nest, access)
        together = shape.of_each(tuple(lattice.tiles_of(tiles)))
        for number, tile in enumerate(tiles):
            one = shape(tile)
            assert of_one(together, number, len(tiles)) == (one.elements, max(one.run, 1))
    geometry = Geometry(nest)
    for place in range(len(nest.accesses)):
        parts = geometry.reads(place, tuple(lattice.tiles_of(tiles)))
        for number, tile in enumerate(tiles):
            read = geometry.read(place, tile).tile
            assert of_one(parts, number, len(tiles)) == (read.elements, max(read.run, 1))


def of_one(boxes: Boxes, number: int, count: int) -> tuple[int, ...]:
    """Elements of one of many boxes, and those in its runs."""
    return tuple(int(np.broadcast_to(values, count)[number]) for values in (boxes.elements, boxes.run))


def test_equal_chains_come_in_the_order_of_their_tiles_wherever_they_stand() -> None:
    tiles = [(4, 2), (1, 9), (4, 1), (2, 2)]
    seconds = np.array([1.0, 1.0, 1.0, 0.5])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        chains = [lattice.tiles_of([tiles[n] for n in order])]
        found = lattice.best_places(seconds[order], chains, 3, math.inf)
        assert [tiles[order[place]] for place in found] == [(2, 2), (1, 9), (4, 1)]
    assert lattice.best_places(seconds, [lattice.tiles_of(tiles)], 3, 1.0) == [3]


@given(operators(), st.sampled_from((*CHIPS, *LANES)))
@settings(max_examples=20, deadline=None)
def test_a_descent_from_the_choice_gains_next_to_nothing(op: SymbolicTensor, chip: str) -> None:
    found = spaces_of(chip, op)
    assume(all(0 not in space.nest.extents for space in found))
    program, rating = constructed_best(found)
    space = next(space for space in found if space.way == program.way)
    _, seconds = descended(screen_of(space), program, rating.seconds, lambda p, _: space.model.estimate(p).seconds)
    assert seconds >= 0.95 * rating.seconds  # it began in other loop orders, and without a device's own occupancy


@given(operators(), st.sampled_from((*CHIPS, *LANES, "ipu_sim:bow")), st.integers(0, 1 << 16))
@settings(max_examples=60, deadline=None)
def test_neighbours_are_aligned_and_differ(op: SymbolicTensor, chip: str, seed: int) -> None:
    """Tiles are multiples of those inside them, no longer than whole dimensions that alignment rounds up, and never the chain."""
    found = spaces_of(chip, op)
    space = found[seed % len(found)]
    screen, inner = screen_of(space), lattice.inner_tiles(space)
    chains = screen.around([inner[:, [seed % inner.shape[1]]]]) if inner.shape[1] else [inner, inner]
    assume(chains[0].shape[1])
    (chain,) = lattice.chains_of(chains, [seed % chains[0].shape[1]])
    near = nearby(space, [lattice.tiles_of([tile]) for tile in chain])
    for other in lattice.chains_of(near, range(near[0].shape[1])):
        assert other != chain
        for level, (outer, inside) in zip(space.levels, itertools.pairwise(other), strict=False):
            for dim, o, i, extent in zip(space.nest.dims, outer, inside, space.nest.extents, strict=True):
                step = math.lcm(i, space.rules.multiple(level, dim.name).step)
                assert not i or (o % i == 0 and i <= o < max(extent, 1) + max(8 * i, step))


@given(operators(), st.sampled_from(CHIPS))
@settings(max_examples=12, deadline=None)
def test_no_drawn_program_is_much_better_than_the_choice(op: SymbolicTensor, chip: str) -> None:
    found = spaces_of(chip, op)
    nests = tuple(dict.fromkeys(space.nest for space in found))
    rating = construct_stage(nests, found[0].spec, found[0].rules, found[0].model.parameters, 1)[0][1]
    models = {space.way: space.model for space in found}
    every, chance = enumeration.StageSpace(found), random.Random(0)
    drawn_programs = [every.draw(chance) for _ in range(250)]
    assert min(models[program.way].estimate(program).seconds for program in drawn_programs) >= 0.95 * rating.seconds


@pytest.mark.parametrize("chip", ["cpu:zen5", "cuda:h100", "rocm:mi300x"])
def test_the_short_list_is_short_and_its_best_comes_first(chip: str) -> None:
    rated: list[tuple[float, float]] = []
    screens = [screen_of(s) for s in spaces_of(chip, ops.matmul(ops.tensor((384, 100)), ops.tensor((100, 640))))]

    def rate(space: TileSpace, program: StageProgram) -> float:
        said = screen_of(space).seconds_of([lattice.tiles_of([tile]) for tile in program.tiles], program)
        rated.append((float(said[0]), space.model.estimate(program).seconds))
        return rated[-1][1]

    rate_short_list(screens, rate)
    assert SHORT <= len(rated) <= 2 * LONG
    assert rated[0][0] <= 1.001 * min(said for said, _ in rated)  # of a cut reduction there may be several programs


def test_what_the_screen_is_wrong_about_does_not_fill_the_short_list() -> None:
    """A device that takes three times as long for all tiles that promise most: others are rated, too."""
    screens = [screen_of(s) for s in spaces_of("cuda:h100", ops.matmul(ops.tensor((384, 100)), ops.tensor((100, 640))))]
    usual: list[StageProgram] = []
    others: list[StageProgram] = []

    def rate(space: TileSpace, program: StageProgram) -> float:
        usual.append(program)
        return space.model.estimate(program).seconds

    rate_short_list(screens, rate)
    promising = {program.inner for program in usual}

    def slower(space: TileSpace, program: StageProgram) -> float:
        others.append(program)
        return (3 if program.inner in promising else 1) * space.model.estimate(program).seconds

    rate_short_list(screens, slower)
    assert sum(program.inner not in promising for program in others) >= SHORT


def test_what_no_unit_has_room_for_is_refused_at_once() -> None:
    """No tile of a product of 2^17 fits: the rule counts tile spaces, not every chain that might have been listed."""
    op = ops.matmul(ops.tensor((1 << 17, 1 << 17)), ops.tensor((1 << 17, 1 << 17)))
    found = spaces_of("ipu_sim:bow", op)
    rule = found[0].fit.rule(found[0].levels, 0)
    screens = [PlacedScreen(space) for space in found]
    assert all(not screen.around([lattice.inner_tiles(screen.space)])[0].shape[1] for screen in screens)
    assert found[0].refusals[rule] == len(found)


def test_of_equal_parts_about_as_many_as_a_budget_allows_are_listed() -> None:
    """Of four long dimensions there are hundreds of millions of combinations; the whole dimensions are always among them."""
    op = ops.relu(ops.transpose(ops.tensor((5000, 700, 600, 900), "float16"), (3, 1, 0, 2)))
    space = spaces_of("ipu_sim:bow", op)[-1]
    chains = lattice.even_chains(space, lattice.inner_tiles(space), 1 << 40, lambda c: np.full(c[0].shape[1], True), False)
    assert 10_000 < chains[0].shape[1] <= 2 * (lattice.OUTER << lattice.FINER)
    assert any(all(t >= e for t, e in zip(tile, space.nest.extents, strict=True)) for tile in chains[0].T.tolist())


def test_a_device_that_needs_more_room_gets_smaller_tiles() -> None:
    """It refuses all that takes more than an eighth of what a unit has: tiles that need less are tried."""
    screens = [screen_of(s) for s in spaces_of("ipu_sim:bow", ops.matmul(ops.tensor((2048, 512)), ops.tensor((512, 1024))))]
    ran: list[StageProgram] = []

    def rate(space: TileSpace, program: StageProgram) -> float:
        level = space.spec.levels[space.levels[0]]
        if 8 * space.fit.footprint(space.levels, 0, program.unit_tile, program.inner, space.atom) > space.fit.usable_bytes(level):
            space.refusals[space.fit.rule(space.levels, 0)] += 1
            return math.inf
        ran.append(program)
        return 1e-6

    rate_short_list(screens, rate)
    assert ran


def placed_ratios(chip: str, op: SymbolicTensor, seed: int, count: int) -> list[tuple[float, float]]:
    """What the screen and the model say of random programs on lanes."""
    chance, found = random.Random(seed), []
    for space in spaces_of(chip, op):
        screen, inner = PlacedScreen(space), lattice.inner_tiles(space)
        chains = screen.around([inner[:, sorted(chance.sample(range(inner.shape[1]), min(8, inner.shape[1])))]])
        for way in range(len(screen.ways)):
            seconds = screen.seconds(chains, 0.0, math.inf, chains[0].shape[1])[way]
            places = np.flatnonzero(np.isfinite(seconds)).tolist()
            for place in chance.sample(places, min(count, len(places))):
                for program in screen.programs(*lattice.chains_of(chains, [place]), way):
                    found.append((float(seconds[place]), space.model.estimate(program).seconds))
    return found


@pytest.mark.parametrize("chip", LANES)
def test_on_lanes_the_screen_is_nearly_the_model(chip: str) -> None:
    """It leaves out padding against bank conflicts, and guesses how panels are filled."""
    operators = [
        ops.matmul(ops.tensor((384, 100)), ops.tensor((100, 640))),
        ops.conv2d(ops.tensor((8, 64, 28, 28)), ops.tensor((96, 64, 3, 3)), 1, 1),
        ops.depthwise_conv2d(ops.tensor((16, 32, 42, 42)), ops.tensor((32, 1, 5, 5)), 1, 2),
        ops.avg_pool2d(ops.tensor((8, 64, 28, 28)), 3, 2, 1),
        ops.reduce_sum(ops.tensor((1000, 700)), 0),
        ops.reduce_sum(ops.tensor((700, 1000)), 1),
    ]
    for number, op in enumerate(operators):
        pairs = placed_ratios(chip, op, number, 4)
        ratios = sorted(said / model for said, model in pairs)
        assert len(ratios) >= 8
        assert 0.75 < ratios[len(ratios) // 2] < 1.25
        assert spearmanr(*zip(*pairs, strict=True))[0] > 0.8


@given(
    *(st.sampled_from(extents) for extents in ((96, 320, 640, 768, 1021), (96, 512, 640), (64, 640, 1024))), st.sampled_from(LANES)
)
@settings(max_examples=12, deadline=None)
def test_kernels_keep_as_many_copies_as_their_programs_ask_for(m: int, n: int, k: int, chip: str) -> None:
    """Lanes that copy through registers prefetch only as much as they have registers for."""
    found = spaces_of(chip, ops.matmul(ops.tensor((m, k)), ops.tensor((k, n))))
    program, _ = constructed_best(found)
    kept = found[0].model.parameters.copies
    assert kept is not None
    assert max(held_copies(program, found[0].spec), default=1) <= kept(program)


def test_units_of_other_kinds_have_another_screen() -> None:
    op = ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64)))
    assert all(in_caches(space) for space in spaces_of("cpu:zen5", op))
    assert not any(in_caches(space) for chip in ("cuda:a100", "ipu_sim:bow") for space in spaces_of(chip, op))
