"""Kernels with aligned tiles and the banks of local memory, as the emulator of AMD assembly counts them: nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from given_programs import Tiles, given_tiles
from roller import ops, verify
from roller.device.chip import load_spec
from roller.runtime.arrays import aligned_empty
from roller.testing import expression
from roller_rocm.codegen import generator
from roller_rocm.emulator.counting import Traffic
from roller_rocm.emulator.emulator import Emulator, Order
from roller_rocm.toolchain import compiling

CHIPS = ("mi210", "rx7900xtx")  # waves of 64 and of 32


def product() -> ops.SymbolicTensor:
    return ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64)))


def turned() -> ops.SymbolicTensor:
    return ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64)), transpose_b=True)


def pointwise() -> ops.SymbolicTensor:
    return ops.conv2d(ops.tensor((2, 32, 8, 8)), ops.tensor((16, 32, 1, 1)))


def windows() -> ops.SymbolicTensor:
    return ops.conv2d(ops.tensor((2, 8, 8, 8)), ops.tensor((8, 8, 3, 3)), padding=1)


def depthwise() -> ops.SymbolicTensor:
    return ops.depthwise_conv2d(ops.tensor((2, 8, 8, 8)), ops.tensor((8, 1, 3, 3)), padding=1)


def pool() -> ops.SymbolicTensor:
    return ops.max_pool2d(ops.tensor((2, 16, 16, 16)), 3, 2, 1)


# A unit's tile and a lane's: powers of two along everything that lanes are spread over, windows as they are.
CASES: list[tuple[Callable[[], ops.SymbolicTensor], Tiles]] = [
    (product, ((32, 32, 16), (2, 4, 1))),  # one panel is filled along its rows, one across
    (turned, ((32, 32, 16), (2, 4, 1))),
    (turned, ((8, 16, 32), (1, 2, 4))),  # lanes share the reduction
    (turned, ((1, 16, 64), (1, 2, 4))),  # … and a panel's rows are single values
    (pointwise, ((2, 8, 16, 16), (1, 2, 2, 1))),
    (windows, ((2, 8, 32, 36), (1, 2, 4, 1))),
    (windows, ((2, 8, 2, 4, 8, 3, 3), (1, 1, 1, 1, 1, 1, 1))),
    (depthwise, ((2, 4, 2, 8, 3, 3), (1, 1, 1, 1, 1, 1))),
    (depthwise, ((1, 8, 4, 4, 3, 3), (1, 1, 1, 2, 1, 1))),
    (pool, ((1, 16, 1, 4, 3, 3), (1, 1, 1, 1, 1, 1))),
    (pool, ((2, 8, 2, 8, 3, 3), (1, 1, 1, 1, 1, 1))),
]


@cache
def traffic(number: int, chip: str) -> tuple[Traffic, Traffic]:
    """What a kernel with these tiles moves in its hottest loop, and outside; its result is right."""
    make, tiles = CASES[number]
    expr, spec = expression(make()), load_spec(f"rocm:{chip}")
    artifact = compiling.build(spec, generator.generate(spec, given_tiles(expr, tiles, f"rocm:{chip}")))
    emulator = Emulator(artifact, [Order(False, True)])
    arrays = verify.random_inputs(expr, seed=number, integer=True)
    out = aligned_empty(expr.output.shape, verify.numpy_dtype(expr.output.dtype))
    out.reshape(-1).view(np.uint8)[...] = 0xFF
    emulator.run(tuple(np.ascontiguousarray(arrays[t.name]) for t in expr.inputs), out)
    verify.check(expr, arrays, out)
    (counts,) = emulator.counts().values()
    return counts.loop, counts.rest


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_aligned_tiles_have_no_conflicts(number: int, chip: str) -> None:
    parts = traffic(number, chip)
    assert sum(part.lds_writes.ideal for part in parts) and sum(part.lds_reads.ideal for part in parts)
    for part in parts:
        assert part.lds_reads.actual == part.lds_reads.ideal, f"reads of {CASES[number]}"
        assert part.lds_writes.actual == part.lds_writes.ideal, f"writes of {CASES[number]}"
