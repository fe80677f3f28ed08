"""Accuracy of the elementary functions that kernels compute with, against float64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import roller
from emulating import needs_compiler, needs_cxx
from roller import ops
from roller.device.plugins import load_device

Array = npt.NDArray[Any]
COUNT = 1 << 16
UNIT = 2.0**-24
TINY = 2.0**-126  # the smallest normal float32
NAN_BITS = (0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001)

REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}
# What the docstring of roller.lowering.tir.functions says, in units of 2^-24.
CLAIMED = {"exp": 1.5, "tanh": 5.0, "sigmoid": 2.5, "erf": 6.0}


@cache
def kernel(name: str, dtype: str = "float32", count: int = COUNT) -> roller.Kernel:
    return roller.compile(getattr(ops, name)(roller.tensor((count,), dtype, "x")), "cpu:x86-64-v3")


def arguments() -> dict[str, Array]:
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 2**32, COUNT, dtype=np.uint32)
    magnitudes = np.geomspace(TINY, 3e38, COUNT // 2)
    edges = [math.log(np.finfo(np.float32).max), math.log(TINY), 0.625, 4.0, 9.0, 16.6, 17.3, 88.0, 103.9, math.log(2) / 2]
    around = np.array([e * (1 + k * 2.0**-23) for e in edges for k in range(-64, 65)], dtype=np.float32)
    found = {
        "any bits": bits.view(np.float32),
        "-110..110": np.linspace(-110, 110, COUNT),
        "-7..7": np.linspace(-7, 7, COUNT),
        "around 0": np.concatenate([magnitudes, -magnitudes]),
        "subnormal": np.concatenate(
            [np.arange(COUNT // 2, dtype=np.uint32) * 63, np.arange(COUNT // 2, dtype=np.uint32) + 2**31]
        ).view(np.float32),
        "edges": np.resize(np.concatenate([around, -around]), COUNT),
    }
    return {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in found.items()}


@pytest.mark.parametrize("name", CLAIMED)
def test_relative_error(name: str) -> None:
    run = kernel(name)
    for where, x in arguments().items():
        got = run(x)
        with np.errstate(all="ignore"):
            expected = REFERENCES[name](x.astype(np.float64))
            nearest = expected.astype(np.float32)
        assert np.array_equal(np.isnan(got), np.isnan(nearest)), where
        assert np.array_equal(np.isinf(got), np.isinf(nearest)), where
        with np.errstate(all="ignore"):
            away = np.abs(got.astype(np.float64) - expected)
        normal = np.isfinite(got) & (np.abs(expected) >= TINY)
        assert (away[normal] / np.abs(expected[normal])).max(initial=0.0) <= CLAIMED[name] * UNIT, where
        assert away[np.isfinite(got) & ~normal].max(initial=0.0) <= TINY, where


def test_special_values() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf], dtype=np.float32)
    expected = {"exp": [1, 1, np.inf, 0], "tanh": [0, -0.0, 1, -1], "sigmoid": [0.5, 0.5, 1, 0], "erf": [0, -0.0, 1, -1]}
    for name, values in expected.items():
        got = kernel(name, count=4)(x)
        assert np.array_equal(got, np.array(values, np.float32)) and np.array_equal(np.signbit(got), np.signbit(values)), name


@pytest.mark.parametrize("name", [*CLAIMED, "relu", "neg", "abs", "gelu", "silu", "sqrt", "log", "floor"])
@pytest.mark.parametrize("count", [5, 64])
def test_nan_stays_nan(name: str, count: int) -> None:
    x = np.resize(np.array(NAN_BITS, dtype=np.uint32), count).view(np.float32)
    assert np.isnan(kernel(name, count=count)(x)).all()


def test_signs_of_zero_and_of_nothing_else() -> None:
    x = np.resize(np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf], dtype=np.float32), 48)
    for name, function in {"neg": np.negative, "abs": np.abs}.items():
        got = kernel(name, count=48)(x)
        assert np.array_equal(got.view(np.uint32), function(x).view(np.uint32))


@pytest.mark.parametrize("name", CLAIMED)
def test_bounded_functions_stay_in_their_range(name: str) -> None:
    low = {"tanh": -1, "erf": -1}.get(name, 0)
    run = kernel(name)
    for x in arguments().values():
        got = run(x)
        got = got[~np.isnan(got)]
        assert got.min() >= low and (name == "exp" or got.max() <= 1)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CLAIMED)
def test_other_types(name: str, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.linspace(-9, 9, 4096).astype(kind)
    got = kernel(name, dtype, 4096)(x).astype(np.float64)
    expected = REFERENCES[name](x.astype(np.float64))
    unit = {"float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert (
        np.abs(got - expected) <= (4 if dtype == "float64" else 1.1) * unit * np.abs(expected) + 2.0**-24 * (dtype == "float16")
    ).all()


def test_every_bfloat16_is_the_nearest() -> None:
    """Rounding to bfloat16, NaN and ties included, stored at once and in the middle of an expression."""
    generator = np.random.default_rng(2)
    bits = generator.integers(0, 2**32, COUNT, dtype=np.uint32)
    ties = (generator.integers(0, 2**16, COUNT, dtype=np.uint32) << 16) | 0x8000
    x = roller.tensor((COUNT,), name="x")
    stored = roller.compile(ops.cast(x, "bfloat16"), "cpu:x86-64-v3")
    between = roller.compile(ops.cast(ops.cast(x, "bfloat16"), "float32"), "cpu:x86-64-v3")
    for values in (bits.view(np.float32), ties.view(np.float32), np.resize(np.array(NAN_BITS, np.uint32), COUNT).view(np.float32)):
        with np.errstate(all="ignore"):
            expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
            got = stored(values).astype(np.float32)
        assert np.array_equal(got, expected, equal_nan=True)
        assert np.array_equal(between(values), expected, equal_nan=True)


def test_functions_are_vectors() -> None:
    """No call of a library function is left: one for each element would cost more than all the rest."""
    for name in CLAIMED:
        text = kernel(name).assembly
        assert "vfmadd" in text and not re.search(rf"\b{name}f?\b", text), name


# --- what docs/numerics.md says of every device ----------------------------------------------------------------------

DEVICES = {"CPU": "cpu:x86-64-v3", "ROCm": "rocm:mi210", "CUDA": "cuda:a100", "simulated IPU": "ipu_sim:gc200"}
WITHIN: dict[str, tuple[float, float]] = {  # between which float64's functions and float32's arguments say the same
    "exp": (-80, 80), "sigmoid": (-80, 80), "tanh": (-10, 10), "erf": (-4, 4), "rsqrt": (1e-30, 1e30), "log": (1e-30, 1e30),
    "sin": (-3, 3), "cos": (-1.5, 1.5), "pow": (0.1, 10),
}  # fmt: skip
EXACT = {**REFERENCES, "rsqrt": lambda x: 1 / np.sqrt(x), "log": np.log, "sin": np.sin, "cos": np.cos}


def promised() -> dict[tuple[str, str], float]:
    """For a device and a function the greatest error in units in the last place, of the table there."""
    text = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    head, _, *rows = [line.strip("| ").split(" | ") for line in text[text.index("| function |") :].split("\n\n")[0].splitlines()]
    return {
        (device, name): float(said.split(":")[0])
        for functions, *errors in rows
        for name in re.findall(r"`(\w+)`", functions)
        for column, said in zip(head[1:], errors, strict=True)
        for device in column.split(", ")
    }


@needs_compiler
@needs_cxx
@pytest.mark.parametrize(("device", "name"), promised())
def test_errors_are_no_greater_than_the_table_says(device: str, name: str) -> None:
    low, high = WITHIN[name]
    spaced = np.geomspace(low, high, 512) if low > 0 else np.linspace(low, high, 512)
    x = spaced.astype(np.float32)
    operand = roller.tensor(x.shape, name="x")
    operator = ops.pow(operand, 1.7) if name == "pow" else getattr(ops, name)(operand)
    artifact = roller.compile(operator, DEVICES[device], top_k=1).artifact
    run = load_device(artifact.device)  # the simulator of the IPU is its device
    out = np.full(x.shape, np.nan, dtype=np.float32)
    (run.emulate if run.emulates else run.load_kernel)(artifact).run((x,), out)
    exact = x.astype(np.float64)
    want = exact ** float(np.float32(1.7)) if name == "pow" else EXACT[name](exact)
    off = np.abs(out - want) / np.spacing(np.abs(want).astype(np.float32))
    assert off.max() <= promised()[device, name]
