"""Elementary functions for AMD GPUs: their LLVM IR on the host's processor against NumPy, and kernels for all architectures."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm_ffi

import roller
from roller import ops
from roller.plugin import address, aligned_empty
from roller_cpu.toolchain import compiling
from roller_rocm.codegen import float32_functions, float64_functions, writer
from roller_rocm.emulator.emulator import Emulator, Order

Array = npt.NDArray[Any]
Long = np.longdouble
COUNT = 1 << 16
FUNCTIONS = {**float64_functions.FUNCTIONS, **float32_functions.FUNCTIONS}
HALF_TURN = np.pi / 2

# Arguments come as TVM's 16-byte variants with the value in the second half: results, two operands, how many.
DRIVER = """
define dllexport i32 @__tvm_ffi_over_{name}(ptr %self, ptr %args, i32 %many, ptr %result) #0 {{
entry:
  %place0 = getelementptr i8, ptr %args, i64 8
  %out = load ptr, ptr %place0
  %place1 = getelementptr i8, ptr %args, i64 24
  %left = load ptr, ptr %place1
  %place2 = getelementptr i8, ptr %args, i64 40
  %right = load ptr, ptr %place2
  %place3 = getelementptr i8, ptr %args, i64 56
  %count = load i64, ptr %place3
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at0 = getelementptr {kind}, ptr %left, i64 %i
  %at1 = getelementptr {kind}, ptr %right, i64 %i
  %at2 = getelementptr {kind}, ptr %out, i64 %i
  %x0 = load {kind}, ptr %at0
  %x1 = load {kind}, ptr %at1
  %found = call {kind} @{name}({taken})
  store {kind} %found, ptr %at2
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""


@cache
def host() -> Any:
    """All functions, compiled for the host with a loop around each."""
    triple, processor = str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetProcessTriple")()), "x86-64-v3"
    described = f"{{\\22kind\\22:\\22llvm\\22,\\22mtriple\\22:\\22{triple}\\22,\\22mcpu\\22:\\22{processor}\\22}}"
    parts = [f'target datalayout = "{compiling.data_layout(triple)}"', f'target triple = "{triple}"', writer.module(FUNCTIONS)]
    for name, (kinds, _) in FUNCTIONS.items():
        taken = ", ".join(f"{kind} %x{n}" for n, kind in enumerate(kinds))
        parts.append(DRIVER.format(name=name, kind=kinds[0], taken=taken))
    parts += [f'attributes #0 = {{ nounwind "target-cpu"="{processor}" }}', "!llvm.module.flags = !{!0}"]
    parts.append(f'!0 = !{{i32 4, !"tvm_target", !"{described}"}}\n')
    return compiling.load_module("\n".join(parts))


def called(op: str, *operands: Array) -> Array:
    """A function over arrays, its results poisoned first."""
    given = [np.ascontiguousarray(operand) for operand in operands]
    out = np.full_like(given[0], 777)
    name = op if op in FUNCTIONS else f"roller_{op}_{given[0].dtype}"
    pointers = [ctypes.c_void_p(address(array)) for array in (out, given[0], given[-1])]
    host()[f"over_{name}"](*pointers, out.size)
    return out


def units_off(got: Array, exact: Array) -> tuple[float, float]:
    """The greatest error in units of the last place, of normal results and of others; infinities and NaNs must be the same."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(got.dtype)
    kind = np.finfo(got.dtype)
    assert np.array_equal(np.isnan(got), np.isnan(nearest))
    finite = np.isfinite(nearest) & np.isfinite(got)
    edge = np.isinf(got) != np.isinf(nearest)
    assert (np.abs(np.where(np.isinf(got), nearest, got))[edge] > 0.999 * kind.max).all()
    normal = finite & (np.abs(exact) >= kind.tiny)
    away = np.abs(got.astype(Long) - exact)
    off = away[normal] / np.spacing(np.abs(nearest[normal]))
    return float(off.max(initial=0)), float((away[finite & ~normal] / kind.smallest_subnormal).max(initial=0))


def drawn(low: float, high: float, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, COUNT)


def any_bits(dtype: str, seed: int = 1) -> Array:
    width = np.dtype(dtype).itemsize * 8
    return np.random.default_rng(seed).integers(0, 2**width, COUNT, dtype=f"uint{width}").view(dtype)


def near_quarters(most: float) -> Array:
    """Numbers next to multiples of pi / 2: what is left of them is small."""
    return np.rint(drawn(-most, most)) * HALF_TURN


_erf = np.vectorize(math.erf, otypes=[np.float64])
REFERENCES: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "pow": np.power, "sqrt": np.sqrt,
    "erf": lambda x: _erf(x.astype(np.float64)).astype(Long), "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil, "round": np.rint,
}  # fmt: skip
SPREAD = np.exp(drawn(-700, 700))
AROUND_ONE = 1 + drawn(-1e-3, 1e-3)
TURNS = (
    drawn(-1, 1),
    drawn(-100, 100),
    drawn(-(2.0**30), 2.0**30),
    near_quarters(1e3),
    near_quarters(2.0**29),
    drawn(-1e-300, 1e-300),
)
WIDE = tuple(drawn(-top, top).astype("float32") for top in (1.0, 1e4, 2.0**40))
# Claims of the modules' docstrings; math.erf is itself off by as much.
CLAIMED: dict[str, tuple[float, tuple[Array, ...]]] = {
    "exp": (1, (drawn(-750, 715), drawn(-1, 1), drawn(-1e-3, 1e-3), any_bits("float64"))),
    "log": (1, (SPREAD, drawn(0.5, 2), AROUND_ONE, drawn(0, 1e-307), any_bits("float64"))),
    "tanh": (1, (drawn(-25, 25), drawn(-1, 1), drawn(-1e-3, 1e-3), any_bits("float64"))),
    "erf": (1 + 1, (drawn(-7, 7), drawn(0.9, 1.1), drawn(-1e-3, 1e-3), any_bits("float64"))),
    "sin": (1, TURNS),
    "cos": (1, TURNS),
}


@pytest.mark.parametrize("op", CLAIMED)
def test_error_in_units_of_the_last_place(op: str) -> None:
    claimed, samples = CLAIMED[op]
    for x in samples:
        with np.errstate(all="ignore"):
            normal, small = units_off(called(op, x), REFERENCES[op](x.astype(Long)))
        assert normal <= claimed and small <= claimed + 1


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (SPREAD, drawn(-750, 720, 2) / np.log(SPREAD)),
        (AROUND_ONE, drawn(-740, 709, 2) / np.log(AROUND_ONE)),
        (drawn(0.6, 1.5), drawn(690, 709, 2) / np.log(drawn(0.6, 1.5))),
        (drawn(-100, 100), np.rint(drawn(-150, 150, 2))),
        (drawn(-10, 10), drawn(-3, 3, 2)),
        (any_bits("float64"), any_bits("float64", 2)),
    ],
    ids=["spread", "around one", "near overflow", "whole exponents", "small", "any bits"],
)
def test_powers(x: Array, y: Array) -> None:
    with np.errstate(all="ignore"):
        normal, small = units_off(called("pow", x, y), np.power(x.astype(Long), y.astype(Long)))
    assert normal <= 1.25 and small <= 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_powers_of_special_values_are_those_of_c(dtype: str) -> None:
    tiny, most = float(np.finfo(dtype).smallest_subnormal), float(np.finfo(dtype).max)
    large = 2.0 ** np.finfo(dtype).nmant
    ends = [0.0, tiny, 0.5, 1.0, 1.5, 2.0, 3.0, large - 1, large + 1, 2 * large - 1, 2 * large + 2, most, math.inf]
    values = np.array([*ends, *(-e for e in ends), math.nan, 1 + 1 / large, 1 - 0.5 / large], dtype)
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        got, expected = called("pow", x, y), np.power(x, y)
        near = np.abs(got - expected) <= 2 * np.spacing(np.abs(expected))
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    known = ~np.isnan(got)
    assert np.array_equal(np.signbit(got[known]), np.signbit(expected[known]))
    assert ((got == expected) | near)[known].all()


def test_special_values() -> None:
    inf, nan, tiny = math.inf, math.nan, 5e-324
    expected: dict[str, list[tuple[float, float]]] = {
        "exp": [(0.0, 1), (-0.0, 1), (inf, inf), (-inf, 0), (tiny, 1), (710.0, inf), (-746.0, 0), (1e308, inf), (-1e308, 0)],
        "log": [(0.0, -inf), (-0.0, -inf), (inf, inf), (-inf, nan), (-tiny, nan), (1.0, 0), (-1.0, nan)],
        "tanh": [(0.0, 0), (-0.0, -0.0), (inf, 1), (-inf, -1), (tiny, tiny), (-tiny, -tiny), (23.0, 1), (-1e308, -1)],
        "erf": [(0.0, 0), (-0.0, -0.0), (inf, 1), (-inf, -1), (tiny, tiny), (-tiny, -tiny), (6.0, 1), (-1e308, -1)],
        "sin": [(0.0, 0), (-0.0, -0.0), (inf, nan), (-inf, nan), (tiny, tiny), (-tiny, -tiny)],
        "cos": [(0.0, 1), (-0.0, 1), (inf, nan), (-inf, nan), (tiny, 1)],
    }
    for op, values in expected.items():
        assert np.isnan(called(op, np.array([nan, -nan]))).all(), op
        for x, value in values:
            got = called(op, np.array([x]))[0]
            assert np.array_equal(got, value, equal_nan=True) and (math.isnan(value) or np.signbit(got) == np.signbit(value)), (
                op,
                x,
            )


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_circular_functions_of_large_arguments(op: str) -> None:
    """Right in absolute terms as far as the docstring says, and never out of their range."""
    far = np.concatenate([drawn(-(2.0**49), 2.0**49), near_quarters(2.0**49)])
    with np.errstate(all="ignore"):
        assert np.abs(called(op, far).astype(Long) - REFERENCES[op](far.astype(Long))).max() < 2.0**-52
    for x in (drawn(-(2.0**52), 2.0**52), any_bits("float64"), any_bits("float32")):
        got = called(op, x)
        assert np.array_equal(np.isnan(got), ~np.isfinite(x))
        assert np.abs(got[np.isfinite(x)]).max() <= 1


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_circular_functions_of_float32(op: str) -> None:
    for x in (*WIDE, near_quarters(2.0**20).astype("float32")):
        normal, small = units_off(called(op, x), REFERENCES[op](x.astype(Long)))
        assert normal <= 1.6 and small <= 1.6
    assert np.signbit(called("sin", np.array([-0.0], "float32")))[0]


def test_powers_of_float32() -> None:
    spread = np.exp(drawn(-87, 88)).astype("float32")
    for x, y in (
        (spread, (drawn(-104, 90, 2) / np.log(spread)).astype("float32")),
        (drawn(-50, 50).astype("float32"), np.rint(drawn(-20, 20, 2)).astype("float32")),
        (any_bits("float32"), any_bits("float32", 2)),
    ):
        with np.errstate(all="ignore"):
            normal, small = units_off(called("pow", x, y), np.power(x.astype(Long), y.astype(Long)))
        assert normal <= 0.51 and small <= 0.51


# --- kernels ----------------------------------------------------------------------------------------------------------

CHIPS = ("mi50", "mi100", "mi210", "mi300x", "rx7900xtx")  # one of each architecture
SINGLE = ("log", "sin", "cos", "pow", "sqrt", "rsqrt")
POSITIVE = frozenset({"log", "pow", "sqrt", "rsqrt"})
SIZE = 4096


def compiled(op: str, dtype: str, chip: str, size: int = SIZE) -> roller.Kernel:
    operands = [roller.tensor((size,), dtype, name) for name in ("x", "y")]
    return roller.compile(getattr(ops, op)(*operands[: 2 if op == "pow" else 1]), f"rocm:{chip}")


def check_kernel(op: str, dtype: str, chip: str) -> None:
    """It links, keeps its values in registers, and gives on the emulator what it should."""
    kernel = compiled(op, dtype, chip)
    assert not any(count for name, count in kernel.artifact.resources.items() if "spilled" in name or "stack" in name)
    x, y = np.resize(drawn(-30, 30), SIZE).astype(dtype), np.resize(drawn(-20, 20, 2), SIZE).astype(dtype)
    x = np.abs(x) if op in POSITIVE else x
    given, out = (x, y)[: 2 if op == "pow" else 1], aligned_empty((SIZE,), np.dtype(dtype))
    out[...] = 777
    Emulator(kernel.artifact, [Order(False, True)]).run(given, out)
    normal, small = units_off(out, REFERENCES[op](*(operand.astype(Long) for operand in given)))
    assert normal <= 2.5 and small <= 2


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf", "sin", "cos", "pow"])
def test_kernels_of_float64(op: str, chip: str) -> None:
    check_kernel(op, "float64", chip)


@pytest.mark.parametrize("chip", ["mi50", "rx7900xtx"])
@pytest.mark.parametrize("op", ["sin", "cos", "pow"])
def test_kernels_of_float32(op: str, chip: str) -> None:
    check_kernel(op, "float32", chip)


@pytest.mark.long
@pytest.mark.parametrize("chip", CHIPS)
def test_other_kernels(chip: str) -> None:
    for op in ("sqrt", "rsqrt", "sigmoid", "floor", "ceil", "round"):
        check_kernel(op, "float64", chip)
    for op in SINGLE:
        check_kernel(op, "float32", chip)


@pytest.mark.parametrize(
    ("op", "dtype"), [("pow", "float64"), ("sin", "float64"), ("gelu", "float64"), ("pow", "float16"), ("sin", "bfloat16")]
)
def test_large_kernels_do_not_spill(op: str, dtype: str) -> None:
    """Lanes that have many results each, vectors of them included."""
    for chip in ("mi210", "rx7900xtx"):
        resources = compiled(op, dtype, chip, 1 << 20).artifact.resources
        assert not any(count for name, count in resources.items() if "spilled" in name or "stack" in name)


def test_kernels_hold_only_what_they_call() -> None:
    text = compiled("floor", "float64", "mi210").source
    assert "fma" not in text and "roller_exp" not in text and "@erf" not in text
