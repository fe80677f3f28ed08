"""What construction finds, and programs that no unit has room for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import roller
from roller import ops
from roller.cost.parameters import CostParameters
from roller.device.chip import resolve
from roller.errors import ConstructionError
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Tile, variants
from roller.ops import SymbolicTensor
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.search.construct import construct
from roller.search.tile_space import TileSpace, mappings, tile_spaces
from roller.target.catalog import spec_from_dict
from roller.target.hardware import HardwareSpec
from roller.testing import constructed, gemm, toy_atom, toy_level, toy_spec


def pointwise() -> SymbolicTensor:
    """A convolution with windows of one pixel, every other one."""
    return ops.conv2d(ops.tensor((128, 1024, 14, 14)), ops.tensor((2048, 1024, 1, 1)), 2)


def windows() -> SymbolicTensor:
    return ops.conv2d(ops.tensor((32, 128, 28, 28)), ops.tensor((128, 128, 3, 3)), 1, 1)


def product() -> SymbolicTensor:
    return ops.matmul(ops.tensor((1000, 768)), ops.tensor((768, 1500)))


def on(chip: str, op: SymbolicTensor) -> tuple[TensorExpr, HardwareSpec, list[TileSpace], CostParameters]:
    plugin, spec = resolve(chip)
    expr = fuse(ops.expression(op))
    parameters = plugin.cost_parameters(spec, expr)
    return expr, spec, tile_spaces(variants(expr.stages[0], expr.tensors), spec, plugin.rules(spec, expr), parameters), parameters


def test_a_tile_that_twins_crowded_out_is_found() -> None:
    """The best tiles of a pointwise convolution were no part of the search, for many tiles of one shape that were."""
    tiles = [{"n": 16, "f": 192, "h.w": 7, "c": 32}, {"n": 2, "f": 12, "h.w": 7, "c": 1}]
    expr, spec, _, parameters = on("rocm:rx7900xtx", pointwise())
    best = construct(expr, spec, resolve("rocm:rx7900xtx")[0].rules(spec, expr), parameters, 1)[0]
    given = roller.rate(pointwise(), device="rocm:rx7900xtx", tiles=tiles)
    assert best.estimate.seconds <= 1.05 * given.seconds


@pytest.mark.parametrize("chip", ["cuda:a100", "rocm:mi50", "rocm:rx7900xtx"])
def test_tiles_that_were_chosen_are_rated_as_they_were(chip: str) -> None:
    """Also where lanes share the reduction, and where a tile is as long as that, rounded up."""
    op = ops.reduce_sum(ops.tensor((97, 1013)), 1)
    expr, spec, _, parameters = on(chip, op)
    for found in construct(expr, spec, resolve(chip)[0].rules(spec, expr), parameters, 3):
        (stage,) = found.program.stages
        tiles = [{d.name: extent for d, extent in zip(stage.nest.dims, tile, strict=True)} for tile in stage.tiles]
        assert roller.rate(op, device=chip, tiles=tiles).seconds <= 1.001 * found.estimate.seconds


def test_a_square_matrix_atom_is_laid_one_way_only() -> None:
    expr = gemm(256, 128, 64)
    nest = variants(expr.stages[0], expr.tensors)[0]
    square, oblong = toy_atom("matrix", 64.0, m=4, n=4, k=2), toy_atom("matrix", 64.0, m=4, n=8, k=2)
    assert [m for _, m in mappings(nest, [square])] == [(("m", 0), ("n", 1), ("k", 2))]
    assert len(list(mappings(nest, [oblong]))) == 2


def test_lanes_hold_all_operands_where_the_spec_says_so() -> None:
    atom = toy_atom("scalar", 64.0)
    levels = [toy_level("pad", 1 << 16, 64, 2), toy_level("register", 1 << 10, 256, 2)]
    expr = gemm(256, 256, 64)
    nest = variants(expr.stages[0], expr.tensors)[0]

    def held(operands: str) -> int:
        spec = toy_spec(levels, (atom,), 0.1, lanes_max=256, lane_group=32, lane_operands=operands)
        return Fit(spec, nest, Geometry(nest)).inner_bytes((4, 8, 1), (), atom)

    assert held("streamed") == 4 * (4 * 8 + 4 + 1)
    assert held("whole") == 4 * (4 * 8 + 4 + 8)


def test_a_program_that_no_unit_has_room_for_is_not_found() -> None:
    """Not even where all that is better has no room: what is slower would not be rated beside it."""
    expr, spec, _, parameters = on("cuda:a100", product())
    rules = resolve("cuda:a100")[0].rules(spec, expr)
    best = construct(expr, spec, rules, parameters, 1)[0]
    (stage,) = best.program.stages

    def points(tile: Tile) -> int:
        return math.prod(tile)

    small = replace(parameters, resident_tiles=lambda program: int(points(program.inner) < points(stage.inner)))
    other = construct(expr, spec, rules, small, 1)[0]
    assert points(other.program.stages[0].inner) < points(stage.inner)
    assert best.estimate.seconds <= other.estimate.seconds < 2 * best.estimate.seconds
    with pytest.raises(ConstructionError) as caught:
        construct(expr, spec, rules, replace(parameters, resident_tiles=lambda _: 0), 1)
    assert caught.value.refusals["room"] > 0


def test_atoms_that_were_passed_over_are_tried_where_those_that_promise_more_have_no_room() -> None:
    """Rows of 49 pixels are no whole rows of a warp group's panels, and the products of single warps take half as long again."""
    op = ops.conv2d(ops.tensor((64, 512, 7, 7), "float16"), ops.tensor((2048, 512, 1, 1), "float16"))
    expr, spec, found, parameters = on("cuda:h100-pcie", op)
    assert {space.atom.name.split("_")[0] for space in found} >= {"wgmma", "mma"}
    rules = resolve("cuda:h100-pcie")[0].rules(spec, expr)
    best = construct(expr, spec, rules, parameters, 1)[0]
    assert best.program.stages[0].atom.name == "mma_m16n8k16_f16"


def cached(name: str, capacity: int, bandwidth: float | None, **more: object) -> dict[str, object]:
    plain = {"instances": 1, "transaction_bytes": 4, "copy_issue": "hardware", "managed": True}
    return {**plain, "name": name, "capacity_bytes": capacity, "bandwidth_gbps": bandwidth, **more}


def of_float32(name: str, kind: str, gflops: float, **roles: int) -> dict[str, object]:
    return {"name": name, "kind": kind, "roles": roles, "in_dtype": "float32", "acc_dtype": "float32", "gflops": gflops}


def test_a_mapping_that_needs_copies_does_not_crowd_out_one_that_reads_in_place() -> None:
    """Tiles of both reuse the same, and this part of the prediction does not charge the copies."""
    unit = {"name": "core", "count": 1, "lanes_max": 64, "launch_overhead_us": 0.0, "lane_operands": "streamed", "chains": 4}
    levels = [
        cached("DRAM", 1 << 40, None),
        cached("cache", 1 << 30, 1.0, managed=False, latency_ns=20.0, usable_fraction=0.5),
        cached("local", 1 << 26, 2.0, depth_max=2, step_overhead_ns=50.0),
        cached("lane", 1 << 22, 4.0, depth_max=2, latency_ns=20.0),
    ]
    atoms = [
        of_float32("scalar", "scalar", 2.0),
        of_float32("vector", "vector", 16.0, n=8),
        of_float32("matrix", "matrix", 128.0, m=2, n=4, k=8),
    ]
    named = {"schema_version": 1, "device": "toy", "chip": "cached", "title": "lanes around a cache", "clock_ghz": 1.0}
    spec = spec_from_dict({**named, "overlap_loss": 1.0, "levels": levels, "unit": unit, "atoms": atoms})
    expr = ops.expression(ops.matmul(ops.tensor((64, 8)), ops.tensor((8, 8))))
    best = constructed(expr, spec)[0]
    assert best.program.stages[0].atom.name == "matrix" and not best.program.stages[0].staged
