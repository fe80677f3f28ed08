"""Compute-shift, rows in turn and even parts on the simulated IPU: what the engine proposes there, and that it computes right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import ops, verify
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ops import SymbolicTensor
from roller.program.alignment import even_extents
from roller.program.rprogram import RProgram, StageProgram
from roller.search.choices import in_turn, program_of, refined, split
from roller.search.construct import construct
from roller.search.tile_space import TileSpace, start, tile_spaces
from roller_ipu_sim.chip.machine import machine
from roller_ipu_sim.codegen.generator import manifest_of
from roller_ipu_sim.cost.model import estimate
from roller_ipu_sim.plan.heap import placed
from roller_ipu_sim.plan.stage_plan import plan_of
from roller_ipu_sim.plan.work import wishes
from roller_ipu_sim.simulator.execute import execute

PLUGIN, SPEC = resolve("ipu_sim")
CLOCK = SPEC.clock_ghz * 1e9


def T(*shape: int, dtype: str = "float32", name: str = "a") -> SymbolicTensor:
    return ops.tensor(shape, dtype, name)


def searched(op: SymbolicTensor) -> list[TileSpace]:
    """Every way to lay the matrix unit on an operator."""
    expr = fuse(ops.expression(op))
    rules, parameters = PLUGIN.rules(SPEC, expr), PLUGIN.cost_parameters(SPEC, expr)
    found = tile_spaces(variants(expr.stages[0], expr.tensors, SPEC.spread), SPEC, rules, parameters)
    return [s for s in found if s.atom.kind == "matrix" and s.nest.stage.body.dtype == s.atom.acc_dtype]


def shifted(space: TileSpace, tile: tuple[int, ...]) -> Iterator[StageProgram]:
    """The programs around a tile in which something is handed on."""
    base = program_of(space, space.levels, (tile, start(space)))
    for program in (base, *split(space, base)):
        yield from (p for p in refined(space, program) if any(s.shifts for s in p.staged))


def right(op: SymbolicTensor, program: StageProgram) -> None:
    """Numbers as the reference has them, cycles as predicted."""
    expr = fuse(ops.expression(op))
    predicted = estimate(SPEC, program)
    assert math.isfinite(predicted.seconds)
    arrays = verify.random_inputs(expr, 1, integer=True)
    manifest = manifest_of(SPEC, RProgram(expr, (program,)))
    inputs = {t.name: arrays[t.name].reshape(t.shape) for t in manifest.tensors if t.role == "input"}
    found = execute(manifest, SPEC, inputs)
    verify.check(expr, arrays, found.outputs[expr.output.name].reshape(expr.output.shape))
    assert found.profile.cycles == round(predicted.seconds * CLOCK)


@pytest.mark.parametrize(
    ("op", "tile"),
    [
        (ops.matmul(T(64, 96), T(96, 80, name="b")), (16, 16, 96)),
        (ops.matmul(T(60, 100, dtype="float16"), T(100, 64, dtype="float16", name="b")), (30, 16, 112)),
        (ops.batch_matmul(T(3, 30, 64), T(3, 64, 48, name="b")), (1, 12, 16, 64)),
        (ops.relu(ops.matmul(T(32, 128), T(128, 32, name="b"))), (8, 16, 128)),
    ],
)
def test_parts_that_are_handed_on_give_the_same_results(op: SymbolicTensor, tile: tuple[int, ...]) -> None:
    dtype = ops.expression(op).inputs[0].dtype
    (space, *_) = [s for s in searched(op) if s.nest.dims[dict(s.mapping)["n"]].name == "n" and s.atom.in_dtype == dtype]
    programs = [p for p in shifted(space, tile) if math.isfinite(estimate(SPEC, p).seconds)]
    assert programs, "nothing is handed on"
    for program in {p.key: p for p in programs}.values():
        right(op, program)


def test_both_operands_may_go_round() -> None:
    op = ops.batch_matmul(T(3, 30, 64), T(3, 64, 48, name="b"))
    found = [p for s in searched(op) for p in shifted(s, (1, 12, 16, 64)) if all(x.shifts for x in p.staged)]
    assert any(math.isfinite(estimate(SPEC, p).seconds) for p in found)


def test_what_is_handed_on_takes_two_parts_of_memory_and_nothing_else() -> None:
    op = ops.matmul(T(512, 4096), T(4096, 512, name="b"))
    (space, *_) = [s for s in searched(op) if s.nest.dims[dict(s.mapping)["n"]].name == "n"]
    base = program_of(space, space.levels, ((64, 64, 4096), start(space)))
    chip = machine(SPEC)
    for program in shifted(space, (64, 64, 4096)):
        plan, whole = plan_of(program, chip), plan_of(base, chip)
        assert plan is not None and whole is not None
        if program.dispatch.split == 1 and all(s.shifts for s in program.staged):
            assert placed([wishes(plan)], chip).needed < placed([wishes(whole)], chip).needed / 2
            break
    else:
        pytest.fail("no program hands on both operands")


def test_a_product_that_fills_the_chip_is_walked_in_turn() -> None:
    """64 MB of each array: tiles of all of K do not fit, nor do results and both operands of one step on all tiles at once."""
    expr = fuse(ops.expression(ops.matmul(T(4096, 4096), T(4096, 4096, name="b"))))
    (best,) = construct(expr, SPEC, PLUGIN.rules(SPEC, expr), PLUGIN.cost_parameters(SPEC, expr), 1)
    assert 2 * 4096**3 / best.estimate.seconds / 1e12 > 55  # of 87
    assert best.program.stages[0].dispatch.split > 1


def test_rows_in_turn_keep_the_other_operand() -> None:
    op = ops.matmul(T(4096, 1024), T(1024, 1024, name="b"))
    (space, *_) = [s for s in searched(op) if s.nest.dims[dict(s.mapping)["n"]].name == "n"]
    base = program_of(space, space.levels, ((16, 64, 1024), start(space)))
    for program in in_turn(space, base):
        plan = plan_of(program, machine(SPEC))
        assert plan is not None and plan.parts > 1
        assert plan.grid.steps > 1 and plan.grid.tiles <= SPEC.unit.count


@settings(max_examples=12, deadline=None)
@given(st.integers(8, 700), st.integers(8, 700), st.integers(8, 700))
def test_even_parts_come_near_the_best_there_is(m: int, n: int, k: int) -> None:
    op = ops.matmul(T(m, k), T(k, n, name="b"))
    expr = fuse(ops.expression(op))
    (best,) = construct(expr, SPEC, PLUGIN.rules(SPEC, expr), PLUGIN.cost_parameters(SPEC, expr), 1)
    least = min(estimate(SPEC, p).seconds for s in searched(op) for p in _thinned(s))
    assert best.estimate.seconds <= 1.05 * least


def _thinned(space: TileSpace) -> Iterator[StageProgram]:
    """A part of all even splits: every third extent of each spatial dimension, with the reduction cut as the engine does."""
    nest, inner = space.nest, start(space)
    rules = [space.rules.multiple(space.levels[0], d.name) for d in nest.dims]
    spatial = [even_extents(nest.extents[d], inner[d], rules[d])[::3] for d in nest.spatial]
    for extents in itertools.product(*spatial):
        tile = (*extents, -(-nest.extents[-1] // inner[-1]) * inner[-1])
        base = program_of(space, space.levels, (tile, inner))
        yield from (base, *split(space, base))
