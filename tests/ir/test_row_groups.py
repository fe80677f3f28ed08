"""Stages over the same rows as one kernel: which form groups, which programs there are, what they compute."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from bench.gpu.expressions import layer_norm, softmax
from random_operators import random_examples
from roller import ops, trial
from roller.building import Plan, build
from roller.cost.model import estimate
from roller.device.chip import resolve
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import over_rows
from roller.ir.row_groups import held_bytes, row_groups
from roller.lowering.simt.threads import Block
from roller.lowering.tir.builder import index
from roller.ops import SymbolicTensor, tensor
from roller.program.record import Choice, program_from_json, program_to_json
from roller.program.rprogram import RProgram, StageProgram
from roller.search.construct import construct, rated_ways
from roller.search.row_programs import rated_rows

CHIPS = ("cuda:h100", "rocm:mi210", "rocm:rx7900xtx")


def expression(op: SymbolicTensor) -> TensorExpr:
    return fuse(ops.expression(op))


def groups(op: SymbolicTensor) -> list[list[str]]:
    return [[stage.name for stage in group] for group in row_groups(expression(op))]


def log_sum_exp(x: SymbolicTensor) -> SymbolicTensor:
    most = ops.reduce_max(x, -1, keepdims=True)
    return ops.log(ops.reduce_sum(ops.exp(x - most), -1)) + ops.reduce_max(x, -1)


def programs(op: SymbolicTensor, chip: str) -> list[StageProgram]:
    """All programs for an operator that is one group."""
    expr = expression(op)
    plugin, spec = resolve(chip, None)
    (group,) = row_groups(expr)
    found = rated_rows(over_rows(group, expr.tensors), spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr))
    return [program for program, _ in found]


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "stages"),
    [
        (softmax(tensor((4, 5))), [4]),
        (softmax(tensor((2, 3, 5), "float16")), [4]),
        (layer_norm(tensor((4, 5))) * tensor((5,)) + tensor((5,)), [3]),
        (log_sum_exp(tensor((4, 5))), [3]),
        (softmax(tensor((1, 5))), [4]),
        (softmax(tensor((4, 1))), [1, 1]),  # a row of one element has no columns
        (ops.batch_matmul(softmax(ops.batch_matmul(tensor((2, 4, 5)), tensor((2, 5, 6)))), tensor((2, 6, 8))), [1, 4, 1]),
        (ops.batch_matmul(softmax(ops.batch_matmul(tensor((2, 5, 5)), tensor((2, 5, 5)))), tensor((2, 5, 8))), [1, 4, 1]),
        (ops.matmul(ops.matmul(tensor((4, 5)), tensor((5, 5))), tensor((5, 6))), [1, 1]),
        (softmax(softmax(tensor((4, 5)))), [8]),
        (ops.reduce_sum(tensor((4, 5)), 1), [1]),
    ],
)
def test_stages_over_the_same_rows_form_a_group(op: SymbolicTensor, stages: list[int]) -> None:
    assert [len(group) for group in groups(op)] == stages


def _shifted(x: SymbolicTensor) -> SymbolicTensor:
    """Reads what its row has one column further on."""
    e = ops.exp(x) * ops.reduce_sum(x, -1, keepdims=True)
    return ops.pad(e, ((0, 0), (0, 1))) + ops.pad(e, ((0, 0), (1, 0)))


@pytest.mark.parametrize(
    "op",
    [
        _shifted(tensor((6, 8))),
        ops.reduce_sum(ops.exp(tensor((6, 8)) - ops.reduce_max(tensor((6, 8)), 1, keepdims=True)), 0),
    ],
)
def test_what_is_read_elsewhere_than_it_was_computed_is_not_held(op: SymbolicTensor) -> None:
    found = row_groups(expression(op))
    for group in found:
        inside = {stage.name for stage in group[:-1]}
        held = [load for stage in group for load in stage.reads if load.tensor in inside]
        assert all(tuple(i.terms for i in load.index) == tuple(i.terms for i in held[0].index)[: len(load.index)] for load in held)
    assert len(found) > 1


def test_the_axes_of_a_group_are_those_of_its_last_stage() -> None:
    (group,) = row_groups(expression(softmax(tensor((4, 3, 5)))))
    names = [axis.name for axis in group[-1].axes]
    assert all(axis.name in names for stage in group for axis in stage.axes)
    nest = over_rows(group, expression(softmax(tensor((4, 3, 5)))).tensors)
    assert [nest.dims[d].extent for d in nest.rows] == [12] and [nest.dims[d].extent for d in nest.columns] == [5]
    assert [access.tensor.shape for access in nest.accesses] == [(4, 3, 5), (4, 3, 5)], "read once, written once"


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["cuda:h100", "cuda:a100", "rocm:mi300x"])
@pytest.mark.parametrize("op", [softmax(tensor((8192, 4096))), layer_norm(tensor((8192, 768), "float16"))])
def test_rows_that_fit_registers_are_read_once(chip: str, op: SymbolicTensor) -> None:
    expr, (plugin, spec) = expression(op), resolve(chip, None)
    best = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 1)[0]
    assert len(best.program.stages) == 1
    (program,) = best.program.stages
    assert all(program.unit_tile[d] >= program.nest.extents[d] for d in program.nest.columns)
    assert all(lp.over != "time" for lp in program.loops)


def test_rows_that_fit_nowhere_are_computed_stage_by_stage() -> None:
    expr, (plugin, spec) = expression(softmax(tensor((4, 1 << 22)))), resolve("cuda:h100", None)
    ways = rated_ways(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr))
    assert [len(way) for way in ways] == [4]


def test_devices_that_do_not_say_so_compute_stages_alone() -> None:
    expr, (plugin, h100) = expression(softmax(tensor((64, 96)))), resolve("cuda:h100", None)
    parameters = plugin.cost_parameters(h100, expr)
    assert len(rated_ways(expr, h100, plugin.rules(h100, expr), parameters)) == 2
    assert len(rated_ways(expr, h100, plugin.rules(h100, expr), replace(parameters, row_groups=False))) == 1


def test_held_values_are_counted_while_they_are_used() -> None:
    """Softmax holds a row's elements or what became of them, never both; its maximum and its sum are one value a row."""
    expr = expression(softmax(tensor((64, 96))))
    nest = over_rows(row_groups(expr)[0], expr.tensors)
    assert held_bytes(nest, (1, 8)) == 4 * 8 + 4
    assert held_bytes(nest, (2, 8)) == 2 * held_bytes(nest, (1, 8))
    norm = expression(layer_norm(tensor((64, 96), "float16")) * tensor((96,), "float16"))
    nest = over_rows(row_groups(norm)[0], norm.tensors)
    assert held_bytes(nest, (1, 8)) >= 4 * 8, "narrow values take a register each"


@given(st.data())
def test_every_point_of_a_row_is_some_lanes_own(data: st.DataObject) -> None:
    """Once, wherever lanes move to stay inside."""
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(2, 300)))
    op = layer_norm(tensor(shape, data.draw(st.sampled_from(("float32", "float16")))))
    program = data.draw(st.sampled_from(programs(op, "cuda:h100")))
    column = program.nest.columns[0]
    owned: list[int] = []
    for lane in range(Block(program, 32).lanes[column]):
        block = Block(program, 32)
        block.__dict__["names"] = {column: index(lane)}  # one lane alone
        for point in range(program.inner[column]):
            mine = block.owned(column, point)
            if mine is None or int(mine):  # numbers fold
                owned.append(int(block.offset(column, point)))
    assert sorted(owned) == list(range(program.nest.extents[column]))


# --- results ----------------------------------------------------------------------------------------------------------


class _Drawn:
    """A chain over rows: what is reduced of them goes back into them, again and again."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.inputs = draw, 0
        self.dtype = draw(st.sampled_from(("float32", "float16", "bfloat16", "int32")))
        rank = draw(st.integers(2, 3))
        self.shape = tuple(draw(st.sampled_from((1, 2, 3, 7, 17, 33, 65, 130))) for _ in range(rank))
        self.axes = draw(st.sampled_from([(rank - 1,), (0,), (rank - 2, rank - 1)] if rank == 3 else [(1,), (0,)]))

    def chain(self) -> SymbolicTensor:
        x = tensor(self.shape, self.dtype)
        for _ in range(self.draw(st.integers(1, 3))):
            x = self._into(x, self._reduced(self._mapped(x)))
        return self._reduced(x, keepdims=False) if self.draw(st.booleans()) else self._mapped(x)

    def _reduced(self, x: SymbolicTensor, keepdims: bool = True) -> SymbolicTensor:
        reducer = self.draw(st.sampled_from((ops.reduce_sum, ops.reduce_max, ops.reduce_min)))
        return reducer(x, self.axes, keepdims=keepdims)

    def _into(self, x: SymbolicTensor, row: SymbolicTensor) -> SymbolicTensor:
        if self.dtype == "int32":
            return self.draw(st.sampled_from((lambda a, b: a - b, ops.maximum, lambda a, b: a * b)))(x, row)
        bounded = ops.tanh(row)  # so that no chain runs away
        return self.draw(st.sampled_from((lambda a, b: a - b, ops.maximum, lambda a, b: a * b, lambda a, b: a / (b * b + 1.0))))(
            x, bounded
        )

    def _mapped(self, x: SymbolicTensor) -> SymbolicTensor:
        kind = self.draw(st.sampled_from(("same", "other", "row", "function")))
        if kind == "other":
            return x + tensor(self.shape, self.dtype)
        if kind == "row":
            return x * tensor((self.shape[-1],), self.dtype)
        if kind == "function" and self.dtype != "int32":
            return ops.sigmoid(x)
        return x


@st.composite
def chains(draw: st.DrawFn) -> SymbolicTensor:
    return _Drawn(draw).chain()


def right(op: SymbolicTensor, chip: str, rank: Any) -> None:
    """A program of those that compute groups together gives what the reference gives, on the emulator."""
    raw = ops.expression(op)
    plugin, spec = resolve(chip, None)
    expr = fuse(raw, spec.spread)
    parameters = plugin.cost_parameters(spec, expr)
    ways = rated_ways(expr, spec, plugin.rules(spec, expr), parameters)
    program = RProgram(expr, tuple(rank([program for program, _ in programs]) for programs in ways[-1]))
    if plugin.refusal(spec, program) is None:
        made = build(Plan(plugin, spec), Choice(program, estimate(program, spec, parameters)))
        trial.verify(made.artifact, raw, emulate=True)


def skipped(chip: str) -> None:
    plugin, spec = resolve(chip, None)
    problem = plugin.build_problem(spec)
    if problem is not None:
        pytest.skip(problem)


def drawn_chains(chip: str, part: int, count: int) -> None:
    def one(data: st.DataObject) -> None:
        right(data.draw(chains()), chip, lambda found: data.draw(st.sampled_from(found)))

    skipped(chip)
    random_examples(one, part, count)


@pytest.mark.parametrize("chip", CHIPS)
def test_chains_over_rows_are_right(chip: str) -> None:
    drawn_chains(chip, 0, 6)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("chip", CHIPS)
def test_many_chains_over_rows_are_right(chip: str, part: int) -> None:
    drawn_chains(chip, part + 1, 40)


@pytest.mark.parametrize(
    ("op", "chip"),
    [
        (softmax(tensor((7, 333), "float16")), "cuda:h100"),
        (layer_norm(tensor((3, 1021))) * tensor((1021,)) + tensor((1021,)), "cuda:a100"),
        (log_sum_exp(tensor((9, 129))), "rocm:mi210"),
        (softmax(tensor((300, 3))), "cuda:h100"),
        (softmax(tensor((1, 700))), "rocm:rx7900xtx"),
    ],
)
def test_the_best_program_of_a_group_is_right(op: SymbolicTensor, chip: str) -> None:
    skipped(chip)
    right(op, chip, lambda found: found[0])


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_a_saved_kernel_remembers_a_group(tmp_path: Path) -> None:
    skipped("cuda:h100")
    kernel = roller.compile(softmax(tensor((64, 96))), device="cuda:h100")
    assert len(kernel.program.stages) == 1 < len(kernel.expr.stages)
    kernel.save(tmp_path / "softmax.roller")
    again = roller.load(tmp_path / "softmax.roller")
    assert again.program == kernel.program
    data = json.loads(json.dumps(program_to_json(kernel.program)))
    data["stages"][0]["together"] = 3
    with pytest.raises(roller.KernelError, match="compile the operator again"):
        program_from_json(data, kernel.expr)


def test_a_kernel_of_a_group_says_what_it_computes() -> None:
    skipped("cuda:h100")
    kernel = roller.compile(softmax(tensor((64, 96))), device="cuda:h100")
    told = str(kernel.explain())
    assert "computes reduce_max, exp, reduce_sum and div in one kernel" in " ".join(told.split())
    assert math.isfinite(kernel.estimate.seconds)
