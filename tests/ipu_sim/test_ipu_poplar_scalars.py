"""Scalar trees as C++ codelets: every operation and type against NumPy, rounded once to the type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import pytest

from ipu_poplar_cases import Array, Case, Formula, formulas, needs_compiler, same
from roller.ir.scalar import UNARY
from roller_ipu_sim.poplar.host_check import run_on_host

pytestmark = pytest.mark.usefixtures("headers_read_once")

BFLOAT = np.dtype(ml_dtypes.bfloat16)
FLOATS = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": BFLOAT}
WHOLE = ("int32", "int16", "int8", "uint8")
_erf = np.vectorize(math.erf, otypes=[np.float64])
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": _erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "sin": np.sin, "cos": np.cos,
}  # fmt: skip
COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, -2.5, 6e-8, -1e-6]


def check(case: Case, loose: bool = False) -> None:
    found = run_on_host(case.manifest, case.inputs)
    assert found.keys() == case.expected.keys()
    for name, expected in case.expected.items():
        same(found[name], expected, loose)


def numbers(rng: np.random.Generator, dtype: str, count: int = 41) -> Array:
    kind = FLOATS.get(dtype) or np.dtype(dtype)
    if dtype in FLOATS:
        return np.concatenate([SPECIAL, rng.normal(0, 3, count - len(SPECIAL))]).astype(kind)
    limits = np.iinfo(kind)
    return np.concatenate([[limits.min, limits.max, 0, 1], rng.integers(limits.min, limits.max, count - 4)]).astype(kind)


# --- scalar trees ------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_floats(dtype: str) -> None:
    assert set(FUNCTIONS) | {"not"} == UNARY - {"rounded"}  # a vertex rounds every value: manifests have no word for it
    rng = np.random.default_rng(1)
    x = numbers(rng, dtype)
    with np.errstate(all="ignore"):
        wide = {op: function(x.astype(np.float64)) for op, function in FUNCTIONS.items()}
        check(formulas([Formula([op, ["load", 0]], [x], value.astype(x.dtype)) for op, value in wide.items()]), loose=True)


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_of_floats(dtype: str) -> None:
    rng = np.random.default_rng(2)
    x, y = numbers(rng, dtype), rng.permutation(numbers(rng, dtype))
    operations = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum}
    wanted = []
    with np.errstate(all="ignore"):
        for op, function in operations.items():
            value = function(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
            wanted.append(Formula([op, ["load", 0], ["load", 1]], [x, y], value))
        power = np.power(np.abs(x).astype(np.float64), y.astype(np.float64)).astype(x.dtype)
        wanted.append(Formula(["pow", ["abs", ["load", 0]], ["load", 1]], [x, y], power))
        wanted += [Formula([op, ["load", 0], ["load", 1]], [x, y], function(x, y)) for op, function in COMPARE.items()]
    check(formulas(wanted), loose=True)


@needs_compiler
def test_whole_numbers_wrap_divide_towards_zero_and_compare() -> None:
    rng = np.random.default_rng(3)
    wanted = []
    for dtype in WHOLE:
        x, y = numbers(rng, dtype), rng.permutation(numbers(rng, dtype))
        wide, other = x.astype(np.int64), y.astype(np.int64)
        quotient = np.sign(wide) * np.sign(other) * (np.abs(wide) // np.maximum(np.abs(other), 1))
        values = {"add": wide + other, "sub": wide - other, "mul": wide * other, "div": quotient}
        values |= {"max": np.maximum(x, y), "min": np.minimum(x, y)}
        wanted += [Formula([op, ["load", 0], ["load", 1]], [x, y], value.astype(x.dtype)) for op, value in values.items()]
        wanted += [Formula([op, ["load", 0], ["load", 1]], [x, y], function(x, y)) for op, function in COMPARE.items()]
        small = ["sub", ["load", 0], ["mul", ["div", ["load", 0], ["const", 5, dtype]], ["const", 5, dtype]]]
        power = (np.fmod(x, 5).astype(np.int64) ** 3).astype(x.dtype)
        wanted.append(Formula(["pow", small, ["const", 3, dtype]], [x], power))
        wanted += [Formula([op, ["load", 0]], [x], FUNCTIONS[op](wide).astype(x.dtype)) for op in ("neg", "abs")]
        wanted += [Formula([op, ["load", 0]], [x], x) for op in ("floor", "ceil", "round")]
    check(formulas(wanted))


@needs_compiler
def test_casts_between_all_types() -> None:
    rng = np.random.default_rng(4)
    wanted = []
    for dtype in (*FLOATS, *WHOLE, "bool"):
        kind = FLOATS.get(dtype) or np.dtype(dtype)
        x = (
            rng.integers(0, 2, 41).astype(bool)
            if dtype == "bool"
            else rng.integers(0 if dtype == "uint8" else -99, 99, 41).astype(kind)
        )
        x = x if dtype not in FLOATS else (x + rng.normal(0, 0.4, 41)).astype(kind)
        for to in (*FLOATS, *WHOLE, "bool"):
            target = FLOATS.get(to) or np.dtype(to)
            truncated = x.astype(np.float64) if to in FLOATS or to == "bool" else np.trunc(x.astype(np.float64)).astype(np.int64)
            wanted.append(Formula(["cast", to, ["load", 0]], [x], truncated.astype(target)))
    check(formulas(wanted))


@needs_compiler
def test_floats_that_no_whole_number_holds() -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e19, 3e9, -3e9, 2147483648, -2147483648, 300.7, -300.7])
    held = np.where(np.abs(x.astype(np.float64)) < 2.0**63, np.trunc(x), 0).astype(np.int64)
    check(formulas([Formula(["cast", to, ["load", 0]], [x], held.astype(to)) for to in WHOLE]))


@needs_compiler
def test_every_float16_is_widened_and_every_middle_between_two_is_rounded_to_even() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(every[np.isfinite(every)].astype(np.float32))
    middle = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    beside = np.concatenate([np.nextafter(middle, np.float32(s * np.inf)) for s in (-1, 1)])
    x = np.concatenate([middle, beside, np.float32([65519.996, 65520, 1e9, -65520, 1e-30, -1e-45])])
    with np.errstate(all="ignore"):
        cases = [Formula(["cast", "float16", ["load", 0]], [x], x.astype(np.float16))]
        cases.append(Formula(["cast", "float32", ["load", 0]], [every], every.astype(np.float32)))
        brain = np.arange(1 << 16, dtype=np.uint16).view(BFLOAT)
        steps = np.concatenate([brain.astype(np.float32), (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)])
        cases.append(Formula(["cast", "bfloat16", ["load", 0]], [steps], steps.astype(BFLOAT)))
    check(formulas(cases))


@needs_compiler
def test_select_logic_index_constants_and_parts_that_occur_twice() -> None:
    rng = np.random.default_rng(5)
    x, flag, other = (
        rng.normal(0, 2, 50).astype(np.float32),
        rng.integers(0, 2, 50).astype(bool),
        rng.integers(0, 2, 50).astype(bool),
    )
    product_ = ["mul", ["load", 0], ["load", 0]]
    twice = ["add", product_, ["sub", ["exp", product_], product_]]
    square = (x * x).astype(np.float32)
    grown = np.exp(square.astype(np.float64)).astype(np.float32)
    limits = [("inf", np.inf), ("-inf", -np.inf), ("nan", np.nan), (1e-45, 1e-45), (0.1, 0.1), (1e30, 1e30)]
    wanted = [
        Formula(["select", ["gt", ["load", 0], ["const", 0.5, "float32"]], ["load", 0], ["const", "inf", "float32"]], [x],
                np.where(x > 0.5, x, np.float32(np.inf))),
        Formula(["and", ["load", 0], ["not", ["load", 1]]], [flag, other], flag & ~other),
        Formula(["or", ["load", 0], ["const", 0, "bool"]], [flag], flag),
        Formula(["index", 0, 3, "base"], [x], 3000 + 3 * np.arange(50, dtype=np.int32)),
        Formula(["index", 0, -2, None], [x], -2 * np.arange(50, dtype=np.int32)),
        Formula(["const", -(2**31), "int32"], [x], np.full(50, -(2**31), np.int32)),
        Formula(twice, [x], (square + (grown - square)).astype(np.float32)),
        *(Formula(["const", text, name], [x], np.full(50, value).astype(kind))
          for name, kind in FLOATS.items() for text, value in limits if name != "float16" or value != 1e30),
    ]  # fmt: skip
    check(formulas(wanted), loose=True)
