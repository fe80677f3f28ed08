"""What kernels take of an AMD GPU, predicted before LLVM says and read from the metadata of what it made."""

from __future__ import annotations

import statistics

from random_operators import network_operators

import roller
from roller import ops
from roller.chip import resolve
from roller.compiler import _choices
from roller.explain import explain
from roller.occupancy import resident_tiles
from roller.tile import Geometry
from roller_rocm import codegen

CHIPS = ("mi50", "mi210", "mi300x", "rx7900xtx")
WANTED = 0.35  # the median distance from the binary: LLVM takes as many as what was promised of waves leaves it


def test_registers_are_predicted() -> None:
    """Over 60 kernels, the chosen ones of operators that nobody picked: none spills, and waves have the room that was promised."""
    apart, fewer = [], []
    for chip, op in network_operators(CHIPS, 64):
        kernel = roller.compile(op, device=f"rocm:{chip}")
        found = kernel.artifact.resources
        for name in [k["name"] for k in kernel.artifact.launch["kernels"] if "stage" in k]:
            taken = found[f"{name}.vgprs"]
            apart.append(abs(found[f"{name}.predicted_registers"] - taken) / taken)
            if found[f"{name}.resident_waves"] < found[f"{name}.predicted_waves"]:
                fewer.append(f"{chip}: {kernel.program.describe()}")
            assert not found[f"{name}.spilled_bytes"], f"{chip}: {kernel.program.describe()}"
    assert len(apart) >= 60
    assert statistics.median(apart) <= WANTED
    assert len(fewer) <= len(apart) // 20, fewer


def test_programs_are_offered_by_what_the_device_has_room_for() -> None:
    """Registers for operands and for what is carried ahead are the device's to know: with them fewer tiles fit."""
    op = ops.conv2d(ops.tensor((128, 64, 56, 56)), ops.tensor((64, 64, 3, 3)), padding=1)
    plugin, spec = resolve("rocm:mi300x")
    expr = ops.expression(op)
    ranked = _choices(expr, plugin, spec, 4, frozenset())
    rooms = []
    for choice in ranked:
        (stage,) = choice.program.stages
        room = codegen.resident_tiles(spec, stage)
        rooms.append(room < resident_tiles(stage, spec, Geometry(stage.nest)))
    assert any(rooms), "a program for which the core leaves out what binds"
    parameters = plugin.cost_parameters(spec, expr)
    said = explain(ranked[0].program, spec, parameters, ranked, plugin.rules(spec, expr))
    (stage,) = ranked[0].program.stages
    assert said.stages[0].residents is not None
    assert said.stages[0].residents.predicted == min(
        resident_tiles(stage, spec, Geometry(stage.nest)), max(1, codegen.resident_tiles(spec, stage))
    )
    assert [c.estimate.seconds for c in ranked] == sorted(c.estimate.seconds for c in ranked)
