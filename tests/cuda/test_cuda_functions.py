"""The GPU's own functions: within what they claim whichever way the hardware errs, special values, and what they take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import roller
from emulating import needs_compiler
from roller import ops
from roller.runtime.arrays import aligned_empty
from roller_cuda.cost.parameters import SLOTS
from roller_cuda.emulator.emulator import Emulator
from roller_cuda.toolchain import disassembly

Array = npt.NDArray[Any]
TINY = 2.0**-126
REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}
# Greatest errors in units of the last place of the result, with all that PTX and CUDA's guide allow the hardware (docs/cuda.md).
CLAIMED = {"exp": 5.0, "tanh": 5.0, "sigmoid": 6.0, "rsqrt": 5.0, "erf": 2.0}
POINTS = np.concatenate(
    [
        np.linspace(-12, 12, 20001),
        np.linspace(-120, 120, 2001),
        10.0 ** np.linspace(-37, 38, 2001),
        -(10.0 ** np.linspace(-37, 38, 501)),
    ]
).astype(np.float32)


@cache
def kernel(name: str, count: int, dtype: str = "float32") -> roller.Kernel:
    return roller.compile(getattr(ops, name)(ops.tensor((count,), dtype, name="x")), device="cuda:h100")


def computed(name: str, x: Array, error: int) -> Array:
    out = aligned_empty(x.shape, np.dtype(np.float32))
    out.view(np.uint8)[:] = 0xFF
    Emulator(kernel(name, x.size).artifact, error=error).run((np.ascontiguousarray(x),), out)
    return out


@needs_compiler
@pytest.mark.parametrize("error", [1, -1])
@pytest.mark.parametrize("name", REFERENCES)
def test_errors_in_units_of_the_last_place(name: str, error: int) -> None:
    with np.errstate(all="ignore"):
        want = REFERENCES[name](POINTS.astype(np.float64))
    got = computed(name, POINTS, error)
    counted = np.isfinite(want) & (np.abs(want) >= TINY) & (np.abs(want) < 3.4e38)
    off = np.abs(got[counted] - want[counted]) / np.spacing(np.abs(want[counted]).astype(np.float32))
    assert off.max() <= CLAIMED[name]
    assert np.isnan(got[np.isnan(want)]).all()


@needs_compiler
@pytest.mark.parametrize("name", REFERENCES)
def test_special_values(name: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 200.0, -200.0, 1e-40] * 4, np.float32)
    with np.errstate(all="ignore"):
        want = REFERENCES[name](x.astype(np.float64)).astype(np.float32)
    got = computed(name, x, 1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    numbers = np.isfinite(want)
    np.testing.assert_allclose(got[numbers], want[numbers], rtol=1e-6, atol=2 * TINY)
    np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(want[x == 0]))


@pytest.mark.parametrize(("name", "most"), [("gelu", 22.0), ("exp", SLOTS["exp"] + 1), ("erf", SLOTS["erf"] + 1)])
def test_instructions_of_an_element(name: str, most: float) -> None:
    """Beside those of relu, which reads and stores as they do. Nothing divides, and nothing is called."""
    if disassembly.tool() is None:
        pytest.skip("nvdisasm is not installed")
    found = {}
    for each in (name, "relu"):
        tried = roller.compile_top(getattr(ops, each)(ops.tensor((1 << 24,), name="x")), device="cuda:h100", top_k=10)
        made = max(tried, key=lambda k: math.prod(k.program.stages[0].inner))  # what a thread does once counts little
        text = made.assembly
        lines = [line for line in text.splitlines() if re.match(r"\s+/\*[0-9a-f]{4,}\*/", line) and "NOP" not in line]
        found[each] = len(lines) / math.prod(made.program.stages[0].inner)
        assert not re.search(r"\bCALL\b|FCHK", text)
    assert found[name] - found["relu"] + 1 <= most


@needs_compiler
def test_what_the_user_divides_is_rounded_correctly() -> None:
    """Only functions are approximate: a quotient and a square root are those of IEEE 754."""
    drawn = np.random.default_rng(3)
    x, y = (drawn.uniform(0.1, 100, 4096).astype(np.float32) for _ in "xy")
    op = ops.sqrt(ops.tensor(x.shape, name="x") / ops.tensor(y.shape, name="y"))
    made = roller.compile(op, device="cuda:h100")
    assert "roller_fn_" not in made.source and "roller_rcp" not in made.source
    out = aligned_empty(x.shape, np.dtype(np.float32))
    Emulator(made.artifact).run((x, y), out)
    np.testing.assert_array_equal(out, np.sqrt(x / y))


@pytest.mark.parametrize("chip", ["h100", "a100", "v100"])
def test_epilogues_of_products_take_them_whoever_computes(chip: str) -> None:
    """Warp groups, warps with tensor cores, and threads alone."""
    dtype = "float16" if chip != "v100" else "float32"
    a, b = (ops.tensor((1024, 1024), dtype, name=name) for name in "ab")
    text = roller.compile(ops.gelu(ops.matmul(a, b)), device=f"cuda:{chip}", top_k=1).source
    assert "roller_fn_erf(" in text.split('extern "C"', 1)[1]
