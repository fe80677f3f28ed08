"""What the engine knows of units with lanes: shares of cut reductions, copies in flight, reserved storage, operands in place."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from roller import ops
from roller.cost.issue import Issued
from roller.cost.loops import NestWalk
from roller.cost.model import Model
from roller.cost.occupancy import resident_tiles
from roller.cost.parameters import CostParameters
from roller.cost.traffic import level_traffic
from roller.device.chip import load_spec
from roller.ir.nest import variants
from roller.layout.lanes import group_tile, lane_digits, lanes_along, reads
from roller.program.alignment import Rules
from roller.program.capacity import Fit
from roller.program.dispatch import Dispatch, Loop
from roller.program.footprint import Geometry
from roller.program.record import program_from_json, program_to_json
from roller.program.rprogram import StageProgram, Staging, copy_depth, lane_level, tiled_levels
from roller.search.choices import refined
from roller.search.tile_space import tile_spaces
from roller.study import expression_of
from roller.target.hardware import HardwareSpec
from roller.testing import gemm, toy_atom, toy_level, toy_spec

M, N, K = 0, 1, 2
TILE, INNER = (32, 32, 16), (4, 8, 1)  # 8 x 4 = 32 lanes
PANELS = (Staging("panel", 0, 1), Staging("panel", 1, 1))


def chip(latency: float = 0.0, depth: int = 4, pad: int = 1 << 16, **unit: Any) -> HardwareSpec:
    levels = [toy_level("pad", pad, 64, 2, latency_ns=latency, depth_max=depth), toy_level("register", 1 << 10, 256, 2)]
    plain, reading = toy_atom("scalar", 64.0), toy_atom("matrix", 512.0, m=4, n=8, k=1)
    atoms = (plain, reading.model_copy(update={"lanes": 32, "operand_level": "pad"}))
    return toy_spec(levels, atoms, 0.1, **{"count": 2, "lanes_max": 256, "lane_group": 32, "resident_tiles_max": 1, **unit})


def program(spec: HardwareSpec, k: int = 256, atom: int = 0, **changed: Any) -> StageProgram:
    expr = gemm(256, 256, k)
    nest = variants(expr.stages[0], expr.tensors)[0]
    mapping = (("m", M), ("n", N), ("k", K)) if atom else ()
    order = ((M, N, K), (M, N, K))
    made = StageProgram(
        nest, spec.atoms[atom], mapping, tiled_levels(spec), (TILE, INNER), order, PANELS, lane_level=lane_level(spec)
    )
    return replace(made, **changed)


# --- shares of cut reductions ----------------------------------------------------------------------------------------


def test_a_unit_walks_its_share_in_steps_of_its_tile() -> None:
    cut = program(chip(), dispatch=Dispatch(split=4, share=(K, 64)))
    assert cut.loops[0] == Loop(K, 4, "units", 1, 64)
    assert Loop(K, 4, "time", 1) in cut.loops
    assert cut.unit_tiles == 4 * program(chip()).unit_tiles
    assert [cut.step(lp) for lp in cut.loops if lp.dim == K and lp.level == 1] == [64, 16]
    assert copy_depth(cut, PANELS[0]) > cut.loops.index(Loop(K, 4, "time", 1))
    assert cut.dispatched(share=None).loops != cut.loops


def test_the_last_share_may_be_shorter() -> None:
    spec = chip()
    cut = program(spec, k=200, dispatch=Dispatch(split=4, share=(K, 64)))
    walk = NestWalk(cut, spec, Geometry(cut.nest), CostParameters())
    assert [tile[K] for tile in walk.tiles[:2]] == [200, 64]
    assert 3 * 64 < 200 < 4 * 64


def test_a_share_is_remembered() -> None:
    spec = load_spec("cuda:a100")
    op = ops.matmul(ops.tensor((128, 8192)), ops.tensor((8192, 128)))
    found = [
        c.program
        for c in roller.compile(op, device="cuda:a100", top_k=40).candidates
        if c.program.stages[0].dispatch.share is not None
    ]
    assert found, "no program cuts its reduction into shares that are longer than a tile"
    again = program_from_json(program_to_json(found[0]), found[0].expr)
    assert again == found[0]
    stage = found[0].stages[0]
    assert stage.dispatch.share is not None and stage.dispatch.share[1] % stage.unit_tile[stage.dispatch.share[0]] == 0
    panels = Fit(spec, stage.nest, Geometry(stage.nest))
    assert panels.room_left(stage.levels, 0, stage.unit_tile, stage.staged[0].depth, stage.atom) >= 0, "panels of a share fit"


# --- copies in flight ------------------------------------------------------------------------------------------------


def seconds(spec: HardwareSpec, depth: int, resident: int = 1, atom: int = 0, terms: bool = False) -> Any:
    deep = tuple(replace(s, depth=depth) for s in PANELS)
    unit = spec.model_copy(update={"unit": spec.unit.model_copy(update={"resident_tiles_max": resident})})
    made = program(unit, staged=deep, atom=atom)
    found = Model(unit, CostParameters(), Geometry(made.nest)).estimate(made)
    return dict(found.terms) if terms else found.seconds


def test_a_panel_takes_its_latency_for_each_copy_that_is_under_way() -> None:
    """Little's law: 64 tiles on 2 units, 16 steps each, 10 us for every step: two copies have one under way at a time."""
    slow = chip(latency=10_000.0)
    waits = 64 / 2 * 16 * 10e-6
    assert seconds(slow, 2) == pytest.approx(waits, rel=0.3)
    assert seconds(slow, 3) == pytest.approx(seconds(slow, 2) / 2, rel=0.3)
    assert seconds(slow, 2, resident=2) == pytest.approx(seconds(slow, 2) / 2, rel=0.3)


@pytest.mark.parametrize(("resident", "copies"), [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3)])
def test_who_computes_and_starts_copies_waits_for_latency_and_transfer(resident: int, copies: int) -> None:
    """All but one of a tile's copies are under way: what neither using nor moving covers of their latency and transfer is waited
    for.
    """
    slow = chip(latency=5_000.0)
    found, transfer = seconds(slow, copies, resident, terms=True), 64 * 16 * (32 * 16 + 16 * 32) * 4 / 64e9
    latencies = 64 / 2 * 16 * 5e-6
    ring = (latencies + transfer) / (resident * (copies - 1))
    assert found["latency"] == pytest.approx(max(0.0, ring - max(found["compute"], found["pad"], found["register"])))
    assert found["latency"] > 0


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_a_copy_that_others_fill_goes_around_by_itself(copies: int) -> None:
    """Filled, used, given back when the next one is in use: so much of its way falls to each, or to each other one."""
    slow = chip(latency=2_000.0)
    found, transfer = seconds(slow, copies, atom=1, terms=True), 64 * 16 * (32 * 16 + 16 * 32) * 4 / 64e9
    using = max(found["compute"], found["register"])
    filling = 64 / 2 * 16 * 2e-6 + transfer
    ring = max((filling + using) / copies, filling / (copies - 1))
    assert found["latency"] == pytest.approx(max(0.0, ring - max(using, found["pad"])))
    assert found["latency"] > 0


def test_more_copies_lose_less_of_what_overlaps() -> None:
    """Two overlap as the spec says, of N the one in use has N - 1 to make up for a late one; what registers read is not theirs."""

    def lost(depth: int, resident: int = 1) -> tuple[float, ...]:
        spec = chip(resident_tiles_max=resident)
        made = program(spec, staged=tuple(replace(s, depth=depth) for s in PANELS))
        model = Model(spec, CostParameters(), Geometry(made.nest))
        return tuple(model.losses(model.walk(made)))

    assert lost(2) == (0.1, 0.1, 0.1)
    assert lost(3) == pytest.approx((0.05, 0.05, 0.1))
    assert lost(2, resident=2) == pytest.approx((0.1 / 3, 0.1 / 3, 0.1))
    assert lost(4, resident=2) == lost(4, resident=4) == pytest.approx((0.025, 0.025, 0.1)), "four to make up for it are enough"
    assert lost(1) == (1.0, 1.0, 1.0), "one copy of one tile: filling and using it take turns"


def test_what_atoms_read_in_place_is_a_part_of_computing() -> None:
    """It overlaps as well as computing does; where lanes read it, the copies are not theirs."""
    spec = chip()
    for operands, last in (("pad", 0.1 / 3), ("register", 0.1)):
        atoms = (spec.atoms[0], spec.atoms[1].model_copy(update={"operand_level": operands if operands == "pad" else None}))
        made = program(spec.model_copy(update={"atoms": atoms}), atom=1, staged=tuple(replace(s, depth=4) for s in PANELS))
        model = Model(spec, CostParameters(), Geometry(made.nest))
        assert model.losses(model.walk(replace(made, atom=atoms[1])))[2] == pytest.approx(last)


@pytest.mark.parametrize("saves", [0.0, 0.25, 1.0])
def test_a_cluster_saves_a_part_of_what_it_brings_once(saves: float) -> None:
    """Half of the operand that two units share need not come a second time; their own ports take the rest of its way."""

    def saved(saves: float) -> float:
        """As a share of what moves into the level."""
        spec = chip()
        pad = spec.levels[1].model_copy(update={"multicast_max": 2, "multicast_saves": saves})
        spec = spec.model_copy(update={"levels": (spec.levels[0], pad, *spec.levels[2:])})
        alone = program(spec, atom=1, tiles=(TILE, (8, 8, 1)))
        walks = [NestWalk(p, spec, Geometry(p.nest), CostParameters()) for p in (alone, alone.dispatched(cluster=2))]
        apart, together = (level_traffic(walk, 1).bytes for walk in walks)
        return 1 - together / apart

    assert saved(1.0) == pytest.approx(1 / 4, rel=0.1), "half of one of two operands, which are most of what moves"
    assert saved(saves) == pytest.approx(saves * saved(1.0))


def test_units_of_a_cluster_wait_for_one_another() -> None:
    spec = chip(cluster_overhead_us=2.0)
    alone, two = (
        Model(spec, CostParameters(), Geometry(p.nest)).launch_seconds(p)
        for p in (program(spec), program(spec, dispatch=Dispatch(cluster=2)))
    )
    assert two - alone == pytest.approx(2e-6)
    assert seconds(chip(), 3) < seconds(chip(), 2)


def test_copies_take_the_room_of_long_steps() -> None:
    """Where long steps leave room for two copies, shorter ones with more of them are tried too."""
    spec = chip(latency=10_000.0, pad=16_500 + 4096)
    expr = expression_of(ops.matmul(ops.tensor((256, 256)), ops.tensor((256, 256))))
    search = tile_spaces(variants(expr.stages[0], expr.tensors), spec, Rules(spec.atoms[:1], {}), CostParameters())[0]
    long = replace(program(spec), nest=search.nest, tiles=((32, 32, 32), INNER), staged=tuple(replace(s, depth=2) for s in PANELS))
    assert {(p.unit_tile[K], p.staged[0].depth) for p in refined(search, long)} >= {(16, 3), (16, 4), (8, 4)}


def test_more_copies_are_chosen_where_they_hide_a_wait() -> None:
    def chosen(spec: HardwareSpec) -> int:
        expr = expression_of(ops.matmul(ops.tensor((256, 256)), ops.tensor((256, 256))))
        rules = Rules(spec.atoms[:1], {})
        search = tile_spaces(variants(expr.stages[0], expr.tensors), spec, rules, CostParameters())[0]
        begun = replace(program(spec), nest=search.nest, staged=tuple(replace(s, depth=2) for s in PANELS))
        return min(refined(search, begun), key=lambda p: search.model.estimate(p).seconds).staged[0].depth

    assert chosen(chip(latency=10_000.0)) == 4
    assert chosen(chip(latency=10_000.0, depth=3)) == 3
    assert chosen(chip(latency=10_000.0, pad=17_000)) == 3, "as many as there is room for: 4 KiB each, and one of results"


# --- slots that reading takes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flops", "crowding"), [(256, 1 + 3 / 32), (128, 1.0), (None, 1.0)])
def test_reading_operands_takes_slots_from_arithmetic_at_its_peak(flops: int | None, crowding: float) -> None:
    """4 x 8 results a step: three accesses of 16 bytes beside 32 multiply-adds, hidden where these leave half of the slots."""
    atom = chip().atoms[0].model_copy(update={"flops_per_cycle_per_unit": flops})
    rows = replace(PANELS[0], row_padding=0), PANELS[1]
    spec = chip(issue_groups=4).model_copy(update={"atoms": (atom,)})
    made = program(spec, staged=rows)
    assert reads(made) == 3
    models = [Model(s, CostParameters(), Geometry(made.nest)) for s in (spec, chip())]
    told, silent = (model.compute_seconds(model.walk(made)) for model in models)
    assert told == pytest.approx(crowding * silent)


@pytest.mark.parametrize(
    ("columns", "copies", "apart"),
    [
        (32, 16 + 4, 0),  # 32 lanes: rows of 32 along m value by value, rows of 32 along n by four
        (24, 22 + 4, 22),  # 24 lanes: no whole number of rows along m
    ],
)
def test_filling_panels_takes_slots_too(columns: int, copies: int, apart: int) -> None:
    """Two panels of 16 reduce points, whose filling is spread over the 16 innermost tiles that a lane computes of them."""
    spec = chip(issue_groups=4)
    rows = replace(PANELS[0], row_padding=0), PANELS[1]
    made = program(spec, staged=rows, tiles=((32, columns, 16), INNER))
    given = {"fill_slots": 2.0, "place_slots": 3.0, "step_slots": 40.0}
    assert Issued(spec, CostParameters()).beside(made) == reads(made) == 3
    for some in ({}, {"fill_slots"}, {"fill_slots", "place_slots"}, {"step_slots"}, set(given)):
        slots = {name: given[name] if name in some else 0.0 for name in given}
        beside = copies * slots["fill_slots"] + apart * slots["place_slots"] + slots["step_slots"]
        assert Issued(spec, CostParameters(**slots)).beside(made) == pytest.approx(3 + beside / 16)
    atom = chip().atoms[0].model_copy(update={"flops_per_cycle_per_unit": 256})
    full = spec.model_copy(update={"atoms": (atom,)})
    made = replace(made, atom=atom)
    models = [Model(full, CostParameters(**slots), Geometry(made.nest)) for slots in (given, dict.fromkeys(given, 0.0))]
    told, silent = (model.compute_seconds(model.walk(made)) for model in models)
    assert told / silent == pytest.approx((32 + 3 + (copies * 2 + apart * 3 + 40) / 16) / (32 + 3))


# --- atoms that read panels as they lie ------------------------------------------------------------------------------


MULTIPLES = "panel rows in multiples of 32"


def test_rows_that_atoms_read_in_place_are_as_long_as_all_banks_are_wide() -> None:
    level = toy_level("pad", 1 << 16, 64, 2, depth_max=4, banks={"count": 32, "width_bytes": 4})
    spec = chip().model_copy(update={"levels": (chip().levels[0], level, *chip().levels[2:])})
    made = program(spec, atom=1)
    fit = Fit(spec, made.nest, Geometry(made.nest))
    legal = {k: fit.legal(made.levels, 0, (32, 32, k), (16, 16, 1), made.mapping, made.atom) for k in (16, 32, 64, 256)}
    assert legal == {16: MULTIPLES, 32: None, 64: None, 256: None}, "rows of 128 bytes"
    assert fit.legal(made.levels, 0, (32, 16, 32), (16, 16, 1), made.mapping, made.atom) == MULTIPLES, "of the other factor, too"
    assert fit.legal(made.levels, 0, (32, 32, 16), (8, 4, 1), (), spec.atoms[0]) is None, "others are read by lanes"
    short = program(spec, k=24, atom=1)
    whole = Fit(spec, short.nest, Geometry(short.nest))
    assert whole.legal(short.levels, 0, (32, 32, 24), (16, 16, 1), short.mapping, short.atom) is None, "the whole row of the array"


def test_atoms_that_read_panels_share_no_reduction() -> None:
    spec = chip(combine=("shuffle",))
    expr = expression_of(ops.matmul(ops.tensor((256, 256)), ops.tensor((256, 256))))
    found = tile_spaces(variants(expr.stages[0], expr.tensors), spec, Rules(spec.atoms, {}), CostParameters())
    assert {s.fit.cooperate for s in found if s.atom.kind == "scalar"} == {False, True}
    assert {s.fit.cooperate for s in found if s.atom.kind == "matrix"} == {False}


@pytest.mark.parametrize("shared", [1, 4, 16])
def test_lanes_that_share_a_reduction_exchange_all_results(shared: int) -> None:
    """After log2(lanes) exchanges each of them has all: every one passes on all that it has."""
    spec = chip(combine=("shuffle",))
    made = program(spec, cooperate=True, tiles=((32, 32, shared), INNER))
    assert made.lanes == 32 * shared
    terms = dict(Model(spec, CostParameters(), Geometry(made.nest)).estimate(made).terms)
    passed = 256 * 256 * shared * 4
    assert terms["combine"] == pytest.approx(math.log2(shared) * passed / (spec.levels[-1].bandwidth_gbps or 0) / 1e9)


# --- storage that no tile gets, launches -----------------------------------------------------------------------------


def test_reserved_storage_leaves_fewer_tiles_and_smaller_ones() -> None:
    whole, less = (chip(resident_tiles_max=32, lane_storage_bytes=1 << 14, lane_reserved_bytes=r) for r in (0, 128))
    made = program(whole)
    assert resident_tiles(made, whole, Geometry(made.nest)) == 4  # 32 lanes of 32 accumulators: 4 KiB
    assert resident_tiles(made, less, Geometry(made.nest)) == 2  # … and 128 bytes for each lane
    fits = [Fit(spec, made.nest, Geometry(made.nest)) for spec in (whole, less)]
    tile, inner = (32, 64, 16), (4, 8, 1)  # 64 lanes of 128 bytes and their operands: 10 KiB; and 8 KiB
    assert [fit.legal(made.levels, 0, tile, inner, (), whole.atoms[0]) for fit in fits] == [None, "lane storage"]


def test_storage_lies_in_partitions() -> None:
    """Of five groups one partition of four has two: all tiles of five to eight groups leave each lane as much."""
    spec = load_spec("cuda:h100")
    assert spec.partitions == 4
    assert [spec.stored_lanes(lanes) for lanes in (1, 32, 128, 129, 160, 256, 320)] == [128, 128, 128, 256, 256, 256, 384]
    whole = chip(lane_storage_bytes=1 << 14, lane_reserved_bytes=0)
    parts = whole.model_copy(update={"levels": (*whole.levels[:-1], whole.levels[-1].model_copy(update={"instances": 8}))})
    assert (whole.partitions, parts.partitions) == (1, 4)
    made = program(whole)
    tile, inner = (64, 32, 16), (4, 8, 1)  # two groups of lanes of 128 bytes and their operands: 10 KiB; 20 of four partitions
    fits = [Fit(spec, made.nest, Geometry(made.nest)) for spec in (whole, parts)]
    assert [fit.legal(made.levels, 0, tile, inner, (), whole.atoms[0]) for fit in fits] == [None, "lane storage"]


def test_a_chip_with_lanes_pays_for_its_launch_even_for_one_tile() -> None:
    spec = chip(launch_overhead_us=5.0)
    alone = program(spec, dispatch=Dispatch(parallel=False))
    assert alone.unit_tiles == 1
    assert Model(spec, CostParameters(), Geometry(alone.nest)).launch_seconds(alone) == pytest.approx(5e-6)


# --- atoms that read panels ------------------------------------------------------------------------------------------


def test_operands_read_in_place_take_no_storage_and_are_read_for_every_atom() -> None:
    spec = chip()
    atom, mapping = spec.atoms[1], (("m", M), ("n", N), ("k", K))
    fit = Fit(spec, program(spec).nest, Geometry(program(spec).nest))
    kept = atom.model_copy(update={"name": "kept", "operand_level": "register"})
    assert spec.in_place(atom) and not spec.in_place(kept)
    assert fit.inner_bytes((8, 16, 1), mapping, atom) == 8 * 16 * 4 // 32 < fit.inner_bytes((8, 16, 1), mapping, kept)

    def read(made: StageProgram) -> float:
        return level_traffic(NestWalk(made, spec, Geometry(made.nest), CostParameters()), 2).bytes

    once, both = (program(spec, atom=1, tiles=(TILE, inner)) for inner in ((4, 8, 1), (8, 16, 1)))
    # Tiles of 2 x 2 atoms read each operand twice, as four tiles of one atom do.
    assert read(both) == pytest.approx(read(once), rel=0.01)


def places(made: StageProgram, count: int) -> list[tuple[int, ...]]:
    """Where the first lanes of a unit are, by dimension, in groups of 32."""
    found = []
    for number in range(count):
        at, left = [0, 0, 0], number
        for dim, lanes, step in reversed(lane_digits(made, 32)):
            at[dim] += left % lanes * step
            left //= lanes
        found.append(tuple(at))
    return found


@pytest.mark.parametrize("inner", [(1, 1, 1), (2, 4, 1), (4, 8, 2), (16, 16, 2)])
def test_a_group_that_shares_reductions_is_counted_as_its_lanes_are_numbered(inner: tuple[int, int, int]) -> None:
    """Where they lie, number by number: lanes of one reduction are neighbours."""
    shared = program(chip(), tiles=((32, 32, 64), inner), cooperate=True)
    where = places(shared, 32)
    assert group_tile(shared, 32) == {dim: len({at[dim] for at in where}) for dim in group_tile(shared, 32)}


@given(st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 2, 3])), st.sampled_from([1, 2, 8]), st.booleans())
def test_every_lane_has_a_place_of_its_own(lanes: tuple[int, int, int], deep: int, cooperate: bool) -> None:
    """Whether they share a reduction, may but do not, or compute apart: all places of a unit's tile have one lane."""
    rows, columns, shared = lanes
    made = program(chip(), tiles=((2 * rows, 4 * columns, deep * shared), (2, 4, deep)), cooperate=cooperate)
    found = places(made, math.prod(lanes_along(made).values()))
    assert sorted(found) == sorted(itertools.product(*(range(lanes_along(made).get(d, 1)) for d in range(3))))
