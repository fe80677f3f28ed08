"""Stores through caches and past them, and rows that crowd one of two caches."""

from __future__ import annotations

import pytest

from roller import ops
from roller.cost.traffic import level_traffic
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ops import expression
from roller.program.rprogram import StageProgram, tiled_levels
from roller.target.hardware import HardwareSpec
from roller.testing import toy_atom, toy_level, toy_spec
from small_caches import by_hand, cached, walk_of


def vectors(expr: TensorExpr, spec: HardwareSpec, *tiles: tuple[int, ...]) -> StageProgram:
    """A program of 16-element vectors along the last dimension, with these tiles."""
    nest, atom = variants(expr.stages[0], expr.tensors)[0], toy_atom("vector", 2.0, n=16)
    everywhere = tuple(range(len(nest.dims)))
    return StageProgram(nest, atom, (("n", len(nest.dims) - 1),), tiled_levels(spec), tiles, (everywhere,) * len(tiles))


@pytest.mark.parametrize(("columns", "lines"), [(64, True), (40, False)])
def test_a_store_fetches_its_line_unless_it_goes_past_the_caches(columns: int, lines: bool) -> None:
    """Vectors of a line each, through a cache of 1 KiB; rows of 40 elements begin amid lines, which only a cache completes."""
    spec, expr = cached(1024), expression(ops.transpose(ops.tensor((columns, 64)), (1, 0)))
    everything = {"write_allocate": True, "past_caches": frozenset({expr.output.name})}
    program = vectors(fuse(expr), spec, (64, columns), (2, 16))
    plain, fetched, past = (level_traffic(walk_of(program, spec, **k), 1) for k in ({}, {"write_allocate": True}, everything))
    if lines:
        assert fetched.bytes - plain.bytes == expr.output.nbytes and past.bytes == plain.bytes
        assert fetched.runs == plain.runs > past.runs == past.ahead  # only starts of what it reads
    else:
        assert past == fetched and fetched.bytes >= plain.bytes
    scalar = by_hand(fuse(expr), spec, (64, columns), (2, 16))
    assert level_traffic(walk_of(scalar, spec, **everything), 1) == level_traffic(walk_of(scalar, spec, write_allocate=True), 1)


def test_short_runs_past_the_caches_take_as_long_as_longer_ones() -> None:
    """Tiles of 32 rows of one line each, more rows than are collected; or of two lines."""
    spec, expr = cached(1024), expression(ops.transpose(ops.tensor((256, 64)), (1, 0)))
    known = {"past_caches": frozenset({expr.output.name})}
    for columns, times in ((16, 4), (32, 2), (64, 1), (128, 1)):
        program = vectors(fuse(expr), spec, (64, 256), (32, columns))
        plain, longer = (level_traffic(walk_of(program, spec, **known, past_run_bytes=b), 1).bytes for b in (0, 256))
        assert longer - plain == (times - 1) * expr.output.nbytes


def test_rows_need_room_in_the_cache_that_they_come_into() -> None:
    """32 rows, 4 KiB apart, side by side: one set of the inner cache, 16 sets of the outer one."""
    cache = {"managed": False, "latency_ns": 100.0, "transaction_bytes": 64}
    outer = toy_level("outer", 1 << 18, 16, **cache, banks={"count": 1024, "width_bytes": 64})
    inner = toy_level("inner", 1 << 15, 16, **cache, banks={"count": 64, "width_bytes": 64})
    spec = toy_spec([outer, inner, toy_level("register", 4096, 64)], [toy_atom("scalar", 2.0)])
    expr = expression(ops.transpose(ops.tensor((32, 1024)), (1, 0)))
    nest = variants(fuse(expr).stages[0], fuse(expr).tensors)[0]
    program = by_hand(fuse(expr), spec, *[(1024, 32)] * (len(tiled_levels(spec)) - 1), (4, 32))
    walk = walk_of(program, spec, read_streams=64)
    source = next(n for n, s in enumerate(walk.streams) if s.access == 0)
    assert nest.inputs[0].touches == (True, True)
    assert (walk.run(source, outer), walk.run(source, inner)) == (1024, 4)  # a row, and what a tile reads of it
