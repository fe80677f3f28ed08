"""Panels that no box fills: lanes copy them, with many accesses on their way at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest

from emulating import expression, needs_compiler, needs_cxx, text_of
from roller import ops
from roller.cost.model import Model, estimate
from roller.cost.occupancy import copies_around
from roller.cost.parameters import CostParameters
from roller.device.chip import resolve
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram
from roller.runtime.artifact import Artifact
from roller.search.construct import construct
from roller_cuda.codegen import generator, limits
from roller_cuda.cost import parameters
from roller_cuda.toolchain import compiling, disassembly
from warp_groups import GROUPS, ORDERS, SPEC, T, broken, noticed, of_groups, right

COPIED = "roller_copy_async_"
MANY = 12  # reads before the first store


def strided(channels: int = 64) -> ops.SymbolicTensor:
    """Windows in steps over several rows: no box is like its panel."""
    return ops.conv2d(T("x", 1, 24, 16, channels), T("w", 3, 3, channels, 72), padding=1, stride=2, layout="NHWC")


def first(op: ops.SymbolicTensor, wanted: Callable[[str], bool]) -> Artifact:
    """The first program drawn whose text is as wanted."""
    return next(a for p in of_groups(op, 2000) if wanted(str((a := text_of(SPEC, p)).launch["text"])))


def copying(text: str) -> bool:
    """True if lanes start copies that run by themselves."""
    return COPIED in text[text.rindex('extern "C"') :]


@needs_cxx
def test_values_that_stay_as_they_are_are_copied_without_registers() -> None:
    op = strided()
    artifact = first(op, copying)
    for order in ORDERS:
        right(op, artifact, *order)
    assert noticed(op, broken(artifact, "roller_copies_wait<0>()", "(void)0", 0)), "a panel is used before it is there"
    text = str(artifact.launch["text"])
    assert re.search(r"roller_copies_wait<0>\(\);\s*roller_stores_visible\(\);\s*roller_signal_arrive\(", text)


@needs_cxx
def test_values_that_are_computed_are_not_copied() -> None:
    x = ops.relu(T("x", 1, 24, 16, 64))
    op = ops.conv2d(x, T("w", 3, 3, 64, 72), padding=1, stride=2, layout="NHWC")
    artifact = text_of(SPEC, next(of_groups(op, 2000)))
    assert not copying(str(artifact.launch["text"]))
    right(op, artifact, *ORDERS[0])


@needs_compiler
def test_many_reads_are_on_their_way_at_a_time() -> None:
    """Rows that begin anywhere, whose values are read one by one: a lane that waited for each would leave the memory idle."""
    op = ops.matmul(T("a", 1001, 1001), T("b", 1001, 1001))
    plugin, _ = resolve("cuda:h100")
    expr = expression(op)  # as it is: no copies that lie better
    best = construct(expr, GROUPS, plugin.rules(GROUPS, expr), plugin.cost_parameters(GROUPS, expr), 40)
    program = next(c.program for c in best if limits.refusal(SPEC, c.program) is None)
    assert program.stages[0].atom.name.startswith("wgmma")
    built = compiling.build(SPEC, generator.generate(SPEC, program))
    words = re.findall(r"\b(LDG|STS)\b", disassembly.text(built.data))
    runs = [len(run) for run in re.findall("L+", "".join(word[0] for word in words))]
    assert max(runs) >= MANY
    assert built.resources["stage0_kernel.spilled_bytes"] == 0


WAITS: dict[str, tuple[Callable[[], ops.SymbolicTensor], bool]] = {
    "boxes": (lambda: ops.matmul(T("a", 1024, 1024), T("b", 1024, 1024)), False),
    "copies": (lambda: strided(128), False),
    "values one by one": (lambda: ops.matmul(T("a", 1001, 1001), T("b", 1001, 1001)), True),
    "computed": (lambda: ops.matmul(ops.relu(T("a", 1024, 1024)), T("b", 1024, 1024)), True),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_model_knows_what_is_waited_for(name: str) -> None:
    """What is under way all at once takes one latency, what lanes carry one for each round."""
    op, rounds = WAITS[name][0](), WAITS[name][1]
    waits = parameters.cost_parameters(SPEC).fill_waits
    assert waits is not None
    # Values that no copy brings are carried one by one, such as those beyond the 128 channels of a longer tile.
    whole = (p.stages[0] for p in of_groups(op, 4000) if rounds or p.stages[0].nest.extents[-1] % p.stages[0].unit_tile[-1] == 0)
    drawn = [stage for stage in islice(whole, 6) if rounds or "." not in stage.nest.dims[-1].name][:4]
    assert drawn
    for stage in drawn:
        geometry = Geometry(stage.nest)
        with_waits, without = (Model(SPEC, CostParameters(fill_waits=w), geometry) for w in (waits, None))
        assert (waits(stage) > 1) is rounds, stage.describe()
        assert with_waits.estimate(stage).seconds >= without.estimate(stage).seconds
        many = Model(SPEC, CostParameters(fill_waits=lambda _: 10**6), geometry).estimate(stage).seconds
        assert many > 10 * without.estimate(stage).seconds


def test_a_crew_that_fills_panels_is_waited_for() -> None:
    """Its instructions run one after another, a copy behind the other, whatever the others of the block do meanwhile."""
    op = ops.matmul(T("a", 512, 256), T("b", 256, 500))
    plugin, spec = resolve("cuda:h100")
    parameters = plugin.cost_parameters(spec, expression(op))
    seen = 0
    for program in of_groups(op, 60):
        (stage,) = program.stages
        fills = -(-256 // stage.unit_tile[2]) * max(1, stage.unit_tiles // spec.unit.count)

        def seconds(slots: float, of: RProgram = program) -> float:
            return estimate(of, spec, replace(parameters, crew_slots=lambda _: slots)).seconds

        for slots in (1e3, 1e5):
            assert seconds(slots) >= fills * slots * parameters.serial_cycles / (spec.clock_ghz * 1e9)
        without = estimate(program, spec, replace(parameters, crew_slots=None)).seconds
        assert seconds(0.0) == without <= seconds(1e3) < seconds(1e5)
        seen += 1
    assert seen >= 5


def test_all_but_one_of_the_copies_are_under_way() -> None:
    """A copy is given back when the next one is in use: with two of them one fill follows another."""
    op = ops.matmul(T("a", 512, 256), T("b", 256, 512))
    plugin, _ = resolve("cuda:h100")
    waiting = 100_000.0  # ns: beside it nothing else counts
    levels = tuple(v.model_copy(update={"latency_ns": waiting}) if v.name == "shared" else v for v in SPEC.levels)
    slow = SPEC.model_copy(update={"levels": levels})
    parameters = plugin.cost_parameters(SPEC, expression(op))
    seen = set()
    for program in of_groups(op, 60):
        (stage,) = program.stages
        depth = copies_around(stage, slow, 2)
        fills = -(-256 // stage.unit_tile[2]) * max(1, stage.unit_tiles // slow.unit.count)
        least = fills * waiting * 1e-9 / max(1, depth - 1)
        if fills > 1:
            assert estimate(program, slow, parameters, [1]).seconds >= 0.99 * least
            seen.add(depth)
    assert {2} < seen
