"""Instructions of a step of a CUDA kernel's loop, foreseen by the model and counted in the machine code."""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
from collections.abc import Iterator

import pytest

import roller
from emulating import expression, needs_compiler
from roller import ops
from roller.cost.issue import Issued
from roller.cost.occupancy import lanes_of
from roller.device.chip import resolve
from roller.layout.fill_order import share
from roller.program.rprogram import RProgram
from roller.search.construct import construct
from roller_cuda.codegen import generator, limits
from roller_cuda.toolchain import compiling, disassembly, machine_code

SHORT = 8  # points of a reduction in a step
pytestmark = [needs_compiler, pytest.mark.skipif(disassembly.tool() is None, reason=f"no disassembler: {disassembly.INSTALL}")]


def some_products(count: int) -> Iterator[ops.SymbolicTensor]:
    """Products and convolutions in float32 with extents that nobody picked."""
    chance = random.Random(count)
    for _ in range(count):
        m, n, k = (chance.randrange(48, 1500) for _ in range(3))
        yield ops.matmul(ops.tensor((m, k), name="a"), ops.tensor((k, n), name="b"))
        channels, more, size = chance.randrange(16, 200), chance.randrange(16, 200), chance.randrange(7, 60)
        window = chance.choice((1, 1, 3))
        x, w = ops.tensor((8, channels, size, size), name="x"), ops.tensor((more, channels, window, window), name="w")
        yield ops.conv2d(x, w, padding=window // 2)


def steps_of(program: RProgram) -> int:
    """Points of a reduction in a step."""
    stage = program.stages[0]
    return math.prod(stage.unit_tile[d] for d in stage.nest.reduce)


def accesses_of(program: RProgram) -> int:
    """Accesses with which a thread fills panels for one step."""
    stage = program.stages[0]
    return sum(share(stage, staging, 32, lanes_of(stage)).accesses for staging in stage.staged)


@pytest.mark.parametrize("chips", [("a100",), pytest.param(("a100", "h100"), marks=pytest.mark.long)], ids=str)
def test_instructions_of_a_step_are_foreseen(chips: tuple[str, ...]) -> None:
    """Multiply-adds, reads, filling and what goes with a step, against loops whose trips are whole steps: short ones, of the best
    programs that have them, and of those in which threads fill most.
    """
    found = []
    for chip, op in itertools.product(chips, some_products(5)):
        plugin, spec = resolve(f"cuda:{chip}")
        expr, parameters = expression(op), plugin.cost_parameters(spec, expression(op))
        made = [c.program for c in construct(expr, spec, plugin.rules(spec, expr), parameters, 60)]
        short = [p for p in made if steps_of(p) <= SHORT and limits.refusal(spec, p) is None]
        for program in dict.fromkeys([*short[:1], *sorted(short, key=accesses_of, reverse=True)[:2]]):
            kernel = compiling.build(spec, generator.generate(spec, program))
            hot = next(iter(machine_code.read(kernel.data).values())).hot
            if not hot.is_loop or not hot.bases.get("BAR") or not hot.bases.get("LDGSTS") or hot.bases.get("STG"):
                continue
            tile = math.prod(program.stages[0].inner)
            told = hot.bases["FFMA"] / tile * (tile + Issued(spec, parameters).beside(program.stages[0]))
            found.append(told / len(hot.running))
    assert len(found) >= 3 * len(chips)
    assert statistics.median(abs(1 - ratio) for ratio in found) <= 0.1, found


def test_loops_whose_trips_are_not_constant_stand_a_power_of_two_times() -> None:
    """NVIDIA's compilers leave out what remains of some that stand 3 or 5 times: operands behind the end were multiplied."""
    text = "  for (int unroll5_6 = 0; unroll5_6 < min(16, (30522 - (i3 * 16))); ++unroll5_6) {\n"
    constant = "  for (int unroll6_share = 0; unroll6_share < 12; ++unroll6_share) {\n"
    found = generator._REPEATED.sub(generator._unrolled, text + constant)
    assert found.splitlines() == ["  #pragma unroll 4", text.rstrip(), "  #pragma unroll 6", constant.rstrip()]
    ragged = ops.matmul(ops.tensor((130, 1003), name="a"), ops.tensor((1003, 96), name="b"))
    for candidate in roller.compile_top(ragged, device="cuda:h100", top_k=4):
        for count, trips in re.findall(r"#pragma unroll (\d+)\n *for \(int \w+ = 0; \w+ < (.*); \+\+", candidate.source):
            assert trips.isdigit() or int(count).bit_count() == 1
