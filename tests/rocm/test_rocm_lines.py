"""Whole transactions: what aligned tiles load, as the emulator counts lines, beside what the rules and the model say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_cuda_pieces import Tiles, given_tiles

from roller import ops, verify
from roller.cost.model import Model
from roller.cost.traffic import level_traffic
from roller.device.chip import resolve
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram
from roller.runtime.arrays import aligned_empty
from roller.target.hardware import HardwareSpec
from roller.testing import expression
from roller_rocm.codegen import generator
from roller_rocm.emulator.counting import Lines
from roller_rocm.emulator.emulator import Emulator, Order
from roller_rocm.toolchain import compiling

CHIPS = ("mi50", "mi300x", "rx7900xtx")  # lines of 64 bytes, of 128, and of 128 with waves of 32


def product() -> ops.SymbolicTensor:
    return ops.matmul(ops.tensor((128, 64)), ops.tensor((64, 128)))


def turned() -> ops.SymbolicTensor:
    return ops.matmul(ops.tensor((128, 64)), ops.tensor((128, 64)), transpose_b=True)


def loaded(op: ops.SymbolicTensor, tiles: Tiles, chip: str) -> tuple[HardwareSpec, RProgram, Lines]:
    """What a kernel with these tiles loads from global memory; its result is right."""
    expr, (_, spec) = expression(op), resolve(f"rocm:{chip}")
    program = given_tiles(expr, tiles, f"rocm:{chip}")
    emulator = Emulator(compiling.build(spec, generator.generate(spec, program)), [Order(False, True)])
    arrays = verify.random_inputs(expr, seed=1, integer=True)
    out = aligned_empty(expr.output.shape, verify.numpy_dtype(expr.output.dtype))
    out.reshape(-1).view(np.uint8)[...] = 0xFF
    emulator.run(tuple(np.ascontiguousarray(arrays[t.name]) for t in expr.inputs), out)
    verify.check(expr, arrays, out)
    (counts,) = emulator.counts().values()
    parts = counts.loop.loads, counts.rest.loads
    return spec, program, Lines(*(sum(getattr(part, name) for part in parts) for name in ("bytes", "lines_64", "lines")))


# Tiles whose rows are whole lines wherever an array lies side by side.
ALIGNED: list[tuple[Callable[[], ops.SymbolicTensor], Tiles]] = [
    (product, ((64, 64, 32), (4, 4, 1))),
    (product, ((32, 128, 32), (2, 8, 1))),
    (turned, ((64, 32, 32), (4, 2, 1))),
]


@pytest.mark.parametrize("chip", ["mi50", "mi210", "mi300x"])  # a wave of 32 that fills across rows takes parts of lines in turn
@pytest.mark.parametrize("number", range(len(ALIGNED)))
def test_every_access_of_a_wave_is_of_whole_transactions(number: int, chip: str) -> None:
    make, tiles = ALIGNED[number]
    spec, program, found = loaded(make(), tiles, chip)
    assert spec.levels[program.stages[0].levels[0]].transaction_bytes == 64
    assert found.bytes == found.lines_64 * 64


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("number", range(len(ALIGNED)))
def test_aligned_tiles_load_what_the_model_says(number: int, chip: str) -> None:
    """Every panel once for each tile and step of its unit."""
    make, tiles = ALIGNED[number]
    spec, program, found = loaded(make(), tiles, chip)
    (stage,) = program.stages
    parameters = resolve(f"rocm:{chip}")[0].cost_parameters(spec, program.expr)
    walk = Model(spec, parameters, Geometry(stage.nest)).walk(stage)
    predicted = level_traffic(walk, stage.levels[0]).bytes
    (m, n, _), (tm, tn, _) = stage.nest.extents, tiles[0]
    assert found.bytes == (m // tm) * (n // tn) * (tm + tn) * 64 * 4
    stores = m * n * 4
    assert predicted in (found.bytes, found.bytes + stores)


@pytest.mark.parametrize("chip", CHIPS)
def test_rows_that_are_part_of_a_line_are_noticed(chip: str) -> None:
    _, _, found = loaded(turned(), ((64, 32, 8), (4, 2, 1)), chip)
    assert found.lines_64 * 64 > found.bytes
