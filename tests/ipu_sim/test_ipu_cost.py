"""Cycles of simulated IPUs: what the closed form says of a program is what the simulator counts, whoever chose the program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import roller
from ipu_programs import BOW, CHIPS, agrees, agrees_if_legal, chains, larger, programs, rings
from random_operators import operators, random_examples
from roller import ops
from roller.device.plugins import load_device
from roller.errors import ConstructionError, ExpressionError
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.search.construct import construct
from roller.search.tile_space import mappings

# --- programs that no engine would choose ----------------------------------------------------------------------------


def any_program(data: st.DataObject, source: st.SearchStrategy[ops.SymbolicTensor]) -> None:
    """One operator, one legal program: refused by a rule, or right in numbers and cycles."""
    try:
        expr = fuse(ops.expression(data.draw(source)))
    except ExpressionError:
        assume(False)
        return
    spec = CHIPS[data.draw(st.integers(0, len(CHIPS) - 1))]
    program = data.draw(programs(expr, spec))
    note(f"{program.describe()} on {spec.unit.count} tiles")
    agrees_if_legal(spec, program, data.draw(st.integers(0, 99)), data.draw(st.booleans()))


@pytest.mark.parametrize("part", [0, 1])
def test_any_program_costs_what_it_takes(part: int) -> None:
    random_examples(lambda data: any_program(data, operators()), part, 300)


@pytest.mark.parametrize("part", [0, 1])
def test_any_program_of_a_larger_operator_costs_what_it_takes(part: int) -> None:
    random_examples(lambda data: any_program(data, larger()), part, 200)


def test_any_program_of_several_stages_costs_what_it_takes() -> None:
    random_examples(lambda data: any_program(data, chains()), 0, 300)


def any_ring(data: st.DataObject) -> None:
    """One product whose tiles hand parts of operands on."""
    spec = CHIPS[data.draw(st.integers(0, len(CHIPS) - 1))]
    program = data.draw(rings(spec))
    note(f"{program.describe()} on {spec.unit.count} tiles")
    agrees_if_legal(spec, program, data.draw(st.integers(0, 99)), data.draw(st.booleans()))


def test_parts_handed_on_cost_what_they_take() -> None:
    random_examples(any_ring, 0, 400)


def test_what_an_empty_reduction_gives_is_set_once_however_many_steps_it_has() -> None:
    expr = fuse(ops.expression(ops.reduce_sum(ops.tensor((0, 12)) + ops.tensor((12,)), (0, 1))))
    nest = next(n for n in variants(expr.stages[0], expr.tensors, BOW.spread) if len(n.dims) == 2)
    atom, mapping = next(pair for pair in mappings(nest, BOW.atoms, BOW.spread) if pair[0].kind == "scalar")
    levels = tiled_levels(BOW)
    stage = StageProgram(nest, atom, mapping, levels, ((1, 4),) * len(levels), ((0, 1),) * len(levels))
    manifest = agrees_if_legal(BOW, RProgram(expr, (stage,)), 0, True)
    assert manifest is not None and sum(bool(step.compute) for step in manifest.steps) == 1


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_programs_cost_what_they_take(part: int) -> None:
    random_examples(lambda data: any_program(data, operators()), 100 + part, 1000)
    random_examples(lambda data: any_program(data, larger()), 200 + part, 1000)
    random_examples(any_ring, 300 + part, 1000)
    random_examples(lambda data: any_program(data, chains()), 400 + part, 1000)


# --- programs that the engine chooses --------------------------------------------------------------------------------


def depthwise() -> ops.SymbolicTensor:
    return ops.depthwise_conv2d(roller.tensor((4, 12, 15, 15)), roller.tensor((12, 1, 3, 3)), stride=2)


@pytest.mark.parametrize("build", [depthwise, lambda: ops.matmul(roller.tensor((96, 64)), roller.tensor((64, 80)))])
def test_ratings_that_stop_early_change_no_choice(build: Callable[[], ops.SymbolicTensor]) -> None:
    device, spec, expr = load_device("ipu_sim"), CHIPS[3], fuse(ops.expression(build()))
    rules, parameters = device.rules(spec, expr), device.cost_parameters(spec, expr)
    asked = []

    def to_the_end(program: StageProgram | RProgram, worth: float) -> Estimate | None:
        asked.append(worth)
        return device.estimate(spec, program)

    chosen = construct(expr, spec, rules, parameters, 10)
    assert construct(expr, spec, rules, replace(parameters, own_model=to_the_end), 10) == chosen
    assert any(map(math.isfinite, asked))


SMALL = frozenset({"exchange words", "vectors", "whole grains"})  # rules that ask how elements of less than a word lie
# … and that ask what the matrix unit and vectors take: other programs are there then, but for the rules above.
UNITS = frozenset({"bare factors", "matrix operands", "vector along the reduction"})


def chosen(data: st.DataObject) -> None:
    """Every candidate for an operator is right in numbers and cycles; where there is none, the error says why."""
    try:
        operator = data.draw(st.one_of(operators(), larger()))
        expr = ops.expression(operator)
    except ExpressionError:
        assume(False)
        return
    try:
        kernel = roller.compile(operator, device="ipu_sim", top_k=3)
    except ConstructionError as error:
        note(str(error))
        assert set(error.refusals) <= {"element type", *SMALL, *UNITS}
        types = {t.dtype for t in (*expr.inputs, expr.output)} | {s.body.dtype for s in fuse(expr).stages}
        assert types & {"float64", "bfloat16", "int64"} or (types & {"float16", "int8", "bool"} and set(error.refusals) & SMALL)
        return
    for candidate in kernel.candidates:
        note(candidate.program.describe())
        agrees(BOW, candidate.program, candidate.estimate, data.draw(st.integers(0, 99)), data.draw(st.booleans()))


@pytest.mark.parametrize("part", [0, 1])
def test_candidates_cost_what_they_take(part: int) -> None:
    random_examples(chosen, part, 20)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_candidates_cost_what_they_take(part: int) -> None:
    random_examples(chosen, 100 + part, 200)
