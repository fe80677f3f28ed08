"""Arithmetic of pairs and fours in CUDA C, element by element: whole numbers that wrap, products that are rounded."""

from __future__ import annotations

import ctypes
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulating import needs_cxx
from roller_cuda.codegen import generator
from roller_cuda.emulator import emulator

WRAPPED = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
CALLS = [
    (f"roller_wrapped_{op}_int32x{lanes}", f"int{lanes}", lanes, function) for op, function in WRAPPED.items() for lanes in (2, 4)
]
CALLS += [(f"roller_product_float32x{lanes}", f"float{lanes}", lanes, operator.mul) for lanes in (2, 4)]


def text(function: str, kind: str) -> str:
    """The functions as kernels get them, and one that calls this one for a pair of values."""
    parts = [(Path(generator.__file__).parent / name).read_text(encoding="utf-8") for name in ("integers.cuh", "products.cuh")]
    call = 'extern "C" __attribute__((visibility("default"))) '
    call += f"void apply(const {kind} *a, const {kind} *b, {kind} *out) {{ *out = {function}(*a, *b); }}"
    return "\n".join(['#include "emulator.h"', *parts, call, ""])


@needs_cxx
@pytest.mark.parametrize(("function", "kind", "lanes", "expected"), CALLS, ids=[name for name, *_ in CALLS])
def test_every_element_is_its_own(function: str, kind: str, lanes: int, expected: Any) -> None:
    """Of the greatest and the least numbers, too."""
    dtype = np.dtype(np.int32 if "int32" in function else np.float32)
    apply = emulator._library(text(function, kind), False).apply
    rng = np.random.default_rng(1)
    for _ in range(20):
        if dtype == np.int32:
            a, b = (rng.choice([-(2**31), 2**31 - 1, -1, 0, *rng.integers(-(2**31), 2**31, 4)], lanes).astype(dtype) for _ in "ab")
        else:
            a, b = (rng.normal(0, 1e3, lanes).astype(dtype) for _ in "ab")
        held = [np.empty(lanes + 4, dtype) for _ in "abc"]  # aligned to as much as a vector needs
        places = [array[(-array.ctypes.data // 4) % 4 :][:lanes] for array in held]
        places[0][:], places[1][:] = a, b
        apply(*(ctypes.c_void_p(place.ctypes.data) for place in places))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(places[2], expected(a, b))
