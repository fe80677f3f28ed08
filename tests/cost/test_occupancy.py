"""Residents, idle lanes and chains in flight: small cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from roller.cost.formulas import overlapped
from roller.cost.model import Model
from roller.cost.occupancy import copies_around, held_copies, idle_lanes, lane_groups, resident_tiles
from roller.cost.parameters import CostParameters
from roller.ir.nest import variants
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, Staging, copy_depth, lane_level, tiled_levels
from roller.target.hardware import HardwareSpec
from roller.testing import gemm, relu, toy_atom, toy_level, toy_spec

TILE, INNER = (32, 32, 16), (4, 8, 1)  # 8 x 4 = 32 lanes; 64 tiles of 256 x 256
PANELS = (Staging("panel", 0, 1), Staging("panel", 1, 1))  # 32 x 16 floats each: 4096 bytes


def chip(pad: int = 1 << 16, partitions: int = 1, overlap: float = 0.1, reserved: int = 0, **unit: Any) -> HardwareSpec:
    count = unit.get("count", 2)
    levels = [toy_level("pad", pad, 64, count, reserved_bytes=reserved), toy_level("register", 1 << 10, 256, count * partitions)]
    atoms = (toy_atom("scalar", 64.0), toy_atom("matrix", 512.0, m=4, n=8, k=1).model_copy(update={"lanes": 32}))
    return toy_spec(levels, atoms, overlap, **{"count": 2, "lanes_max": 256, "lane_group": 32, "resident_tiles_max": 32, **unit})


def program(spec: HardwareSpec, atom: str = "scalar", tile: tuple[int, int, int] = TILE) -> StageProgram:
    expr = gemm(256, 256, 256)
    nest = variants(expr.stages[0], expr.tensors)[0]
    chosen = next(a for a in spec.atoms if a.name == atom)
    mapping = (("m", 0), ("n", 1), ("k", 2)) if chosen.kind == "matrix" else ()
    order = ((0, 1, 2), (0, 1, 2))
    return StageProgram(nest, chosen, mapping, tiled_levels(spec), (tile, INNER), order, PANELS, lane_level=lane_level(spec))


def resident(spec: HardwareSpec, **changed: Any) -> int:
    made = replace(program(spec), **changed)
    return resident_tiles(made, spec, Geometry(made.nest))


@pytest.mark.parametrize(
    ("unit", "tiles"),
    [
        ({}, 16),  # 64 KiB hold 16 of 4 KiB
        ({"resident_tiles_max": 5}, 5),
        ({"resident_lanes_max": 256}, 8),
        ({"lane_storage_bytes": 1 << 14}, 4),  # 32 lanes of 32 accumulators: 4 KiB
        ({"pad": 1 << 13}, 2),
        ({"reserved": 1024}, 12),  # 5 KiB each
        ({"count": 16}, 4),  # 64 tiles are no more for each
        ({"pad": 1 << 11}, 1),  # a tile that does not fit is still one
    ],
)
def test_residents_are_as_many_as_everything_leaves_room_for(unit: dict[str, Any], tiles: int) -> None:
    assert resident(chip(**unit)) == tiles


def test_deeper_copies_take_more_room() -> None:
    assert resident(chip(), staged=deep(2)) == 8
    assert resident(chip(), staged=tuple(replace(panel, level=0) for panel in PANELS)) == 32


def deep(depth: int) -> tuple[Staging, ...]:
    return tuple(replace(panel, depth=depth) for panel in PANELS)


def test_a_tile_of_one_step_holds_one_copy() -> None:
    """Nothing is filled ahead there: it takes no more room, and is no faster, for copies that it might have."""
    spec, whole = chip(), (32, 32, 256)  # 64 KiB: one tile
    assert held_copies(replace(program(spec), staged=deep(2)), spec) == (2, 2)
    once = [replace(program(spec, tile=whole), staged=deep(depth)) for depth in (1, 2)]
    assert [held_copies(p, spec) for p in once] == [(1, 1), (1, 1)]
    assert resident(spec, tiles=(whole, INNER), staged=deep(2)) == 1
    model = Model(spec, CostParameters(), Geometry(once[0].nest))
    assert model.estimate(once[0]) == model.estimate(once[1])
    cut = replace(program(spec, tile=(32, 32, 128)), staged=deep(2)).dispatched(split=2)
    assert held_copies(cut, spec) == (1, 1)  # a unit has one part of a reduction


def test_what_others_fill_is_held_for_the_next_tile() -> None:
    streamed = chip().model_copy(update={"atoms": tuple(a.model_copy(update={"operand_level": "pad"}) for a in chip().atoms)})
    once = replace(program(streamed, "matrix", tile=(32, 32, 256)), staged=deep(2))
    assert streamed.in_place(once.atom) and held_copies(once, streamed) == (2, 2)
    alone = chip(lanes_max=1, lane_group=1)
    assert held_copies(replace(program(alone, tile=(32, 32, 256)), staged=deep(2)), alone) == (2, 2)  # it goes on by itself


def test_only_what_is_filled_in_the_innermost_loop_comes_ahead() -> None:
    spec, tile = chip(), (32, 32, 16)
    begun = replace(program(spec, tile=tile), orders=((0, 2, 1), (0, 1, 2)), staged=deep(2)).dispatched(parallel=False)
    assert [copy_depth(begun, s) for s in begun.staged] == [2, 3]
    assert held_copies(begun, spec) == (1, 2) and copies_around(begun, spec, 1) == 2 and copies_around(begun, spec, 2) == 0


def test_a_unit_without_lanes_has_one_tile() -> None:
    spec = chip(lanes_max=1, lane_group=1)
    assert resident(spec) == 1 and idle_lanes(program(spec), spec, 1) == 1.0


def test_lanes_that_fill_up_the_last_group_are_idle() -> None:
    spec = chip()
    assert lane_groups(program(spec), spec) == 1 and idle_lanes(program(spec), spec, 1) == 1.0
    narrow = program(spec, tile=(8, 32, 16))  # 8 lanes
    assert idle_lanes(narrow, spec, 1) == 4.0


def test_a_matrix_atom_takes_the_lanes_of_its_group() -> None:
    spec = chip()
    assert lane_groups(program(spec, "matrix"), spec) == 32 and idle_lanes(program(spec, "matrix"), spec, 1) == 1.0


def test_partitions_without_a_group_are_idle_unless_residents_fill_them() -> None:
    spec = chip(partitions=4)
    assert spec.partitions == 4
    assert [idle_lanes(program(spec), spec, tiles) for tiles in (1, 2, 4, 16)] == [4.0, 2.0, 1.0, 1.0]


def test_the_partition_with_the_most_groups_ends_last() -> None:
    """Five groups on four partitions take two turns, in which eight could have been at work."""
    spec = chip(partitions=4)
    assert [idle_lanes(program(spec), spec, tiles) for tiles in (3, 5, 6, 7, 8, 9)] == [4 / 3, 8 / 5, 8 / 6, 8 / 7, 1.0, 12 / 9]


def model(spec: HardwareSpec) -> Model:
    return Model(spec, CostParameters(), Geometry(program(spec).nest))


def test_residents_add_chains_in_flight() -> None:
    """32 lanes of 32 accumulators are 1024 of 8192 chains; eight residents are enough."""
    alone, few, many = (chip(chains=8192, resident_tiles_max=most) for most in (1, 4, 16))
    assert [model(spec).chain_efficiency(model(spec).walk(program(spec))) for spec in (alone, few, many)] == [0.125, 0.5, 1.0]


def test_one_copy_of_one_tile_takes_turns_with_its_use() -> None:
    alone, two = chip(resident_tiles_max=1), chip(resident_tiles_max=2)
    assert tuple(set(model(s).losses(model(s).walk(program(s)))) for s in (alone, two)) == ({1.0}, {0.1})


@pytest.mark.parametrize(("tiles", "steps"), [(1, 1), (2, 16), (4, 8)])
def test_tiles_that_share_a_unit_hide_what_the_others_begin_and_end_with(tiles: int, steps: int) -> None:
    """64 tiles of one step on two units: one at a time moves and computes in turn; of several only the first and last ones do."""
    spec = chip(resident_tiles_max=tiles)
    expr = relu(1 << 16)
    nest = variants(expr.stages[0], expr.tensors)[0]
    made = StageProgram(
        nest, spec.atoms[0], (), tiled_levels(spec), ((1 << 10,), (1 << 5,)), ((0,), (0,)), lane_level=lane_level(spec)
    )
    found = Model(spec, CostParameters(), Geometry(nest)).estimate(made)
    terms = dict(found.terms)
    work = [terms["compute"], terms["pad"], terms["register"]]
    assert all(work) and made.unit_tiles == 64
    assert found.seconds - terms["overhead"] == pytest.approx(overlapped(work, steps, [0.1] * 3))
