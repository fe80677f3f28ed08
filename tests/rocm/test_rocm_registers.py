"""What kernels take of an AMD GPU, predicted before LLVM says and read from the metadata of what it made."""

from __future__ import annotations

import itertools
import statistics

import pytest

import roller
from random_operators import network_operators
from roller import ops
from roller.cost.occupancy import resident_tiles
from roller.program.footprint import Geometry
from roller_rocm.codegen import limits
from roller_rocm.toolchain import occupancy

CHIPS = ("mi50", "mi210", "mi300x", "rx7900xtx")
WANTED = 0.35  # the median distance from the binary: LLVM takes as many as what was promised of waves leaves it


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
def test_registers_are_predicted(step: int) -> None:
    """Over 10 kernels (in the long run 60), of the two best programs of operators that nobody picked: chosen ones do not spill, and
    waves have the room that was promised.
    """
    apart, fewer = [], []
    for chip, op in itertools.islice(network_operators(CHIPS, 32), 0, None, step):
        for number, kernel in enumerate(roller.compile_top(op, device=f"rocm:{chip}", top_k=2)):
            found = kernel.artifact.resources
            for name in [k["name"] for k in kernel.artifact.launch["kernels"] if "stage" in k]:
                least = occupancy.registers_for(kernel.spec, occupancy.most_waves(kernel.spec))  # fewer make room for no more waves
                taken, told = (max(least, found[f"{name}.{what}"]) for what in ("vgprs", "predicted_registers"))
                apart.append(abs(told - taken) / taken)
                if found[f"{name}.resident_waves"] < found[f"{name}.predicted_waves"]:
                    fewer.append(f"{chip}: {kernel.program.describe()}")
                assert number or not found[f"{name}.spilled_bytes"], f"{chip}: {kernel.program.describe()}"
    assert len(apart) >= 60 // step
    assert statistics.median(apart) <= WANTED
    assert len(fewer) <= len(apart) // 20, fewer


def test_programs_are_offered_by_what_the_device_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers for operands and for what is carried ahead are the device's to know, not the core's."""
    op = ops.reduce_sum(ops.tensor((1 << 20, 256)), 1)
    kernel = roller.compile(op, device="rocm:mi300x")
    (stage,) = kernel.program.stages
    rooms = resident_tiles(stage, kernel.spec, Geometry(stage.nest)), limits.resident_tiles(kernel.spec, stage)
    assert [s.residents.predicted for s in kernel.explain().stages if s.residents] == [min(rooms)]
    assert min(rooms) > 1
    monkeypatch.setattr(limits, "resident_tiles", lambda *_: 1)
    alone = roller.compile(op, device="rocm:mi300x")
    assert [s.residents.predicted for s in alone.explain().stages if s.residents] == [1]
    assert alone.estimate.seconds >= kernel.estimate.seconds
