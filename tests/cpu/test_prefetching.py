"""Prefetches: which inputs get them, how many for each step, how far ahead, and that results stay right."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import launching
import roller
from by_hand import t, vector
from roller import ops, verify
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.rprogram import RProgram, StageProgram, Staging, tiled_levels
from roller.runtime.artifact import BuildOptions
from roller.target.catalog import find_spec
from roller.target.hardware import HardwareSpec
from roller.testing import with_level
from roller_cpu.codegen import generator
from roller_cpu.codegen.prefetching import RUNS_AHEAD

M, N, K = 0, 1, 2
LINE = 64
SPEC = find_spec("cpu", "x86-64-v3")
FAR = with_level(SPEC, 1, capacity_bytes=1, latency_ns=1000.0)  # no input stays near a core
Tiles = tuple[tuple[int, ...], tuple[int, ...]]


def program(op: ops.SymbolicTensor, tiles: Tiles, lane: int = N, order: tuple[int, ...] = (M, N, K), **more: Any) -> RProgram:
    expr = fuse(ops.expression(op))
    nest = variants(expr.stages[0], expr.tensors)[0]
    stage = StageProgram(nest, vector(8), (("n", lane),), tiled_levels(SPEC), tiles, (order, order), **more)
    return RProgram(expr, (stage,))


def requests(spec: HardwareSpec, made: RProgram) -> list[int]:
    """Bytes of each request after the element that a step begins with, in the kernel's text."""
    text = generator.generate(spec, made, BuildOptions()).text
    ends = re.findall(r"call void @llvm.prefetch.p0\(ptr (%[\w.]+)", text)
    return [int(re.findall(rf"{re.escape(end)} = getelementptr i8, ptr [^,]+, i64 (\d+)", text)[0]) for end in ends]


def product(m: int, n: int, k: int, transpose: bool = False) -> ops.SymbolicTensor:
    return ops.matmul(t(m, k, name="a"), t(n, k, name="b") if transpose else t(k, n, name="b"), transpose_b=transpose)


def test_each_line_of_a_row_is_requested_once_a_step() -> None:
    """Columns of 32 floats are two lines of each row of b; rows of a are read one after another."""
    found = requests(FAR, program(product(8, 96, 24), ((8, 96, 8), (8, 32, 1))))
    assert found == requests(FAR, program(product(16, 96, 24), ((16, 96, 8), (8, 32, 1)), order=(N, M, K)))  # two passes
    assert found == [RUNS_AHEAD * 32 * 4 + line for line in range(0, 32 * 4, LINE)]


def test_explanations_say_what_is_requested_and_what_goes_past_the_caches() -> None:
    """Rows of b, a part at a time; results of 16 MB that an L3 of 1 MB does not hold."""
    spec = with_level(FAR, 1, capacity_bytes=1 << 20)
    texts = []
    for op in (product(8, 1536, 768), ops.relu(t(2048, 2048))):
        kernel = roller.compile(op, "cpu", spec=spec, threads=1)
        texts.append(" ".join(str(kernel.explain()).split()))
        assert ("llvm.prefetch" in kernel.artifact.source) is ("requested ahead (software prefetch): b" in texts[-1])
        assert ("nontemporal" in kernel.artifact.source) is ("stored past the caches" in texts[-1])
    assert "requested ahead" in texts[0] and "stored past the caches" in texts[1]


@pytest.mark.parametrize(
    ("op", "tiles", "more"),
    [
        (product(8, 32, 24), ((8, 32, 8), (8, 32, 1)), {}),  # rows end with the tile
        (product(8, 96, 24, transpose=True), ((8, 96, 8), (8, 32, 1)), {}),  # b lies along the reduction
        (product(8, 96, 24), ((8, 96, 8), (8, 32, 1)), {"staged": (Staging("panel", 1, 1),)}),  # read from a panel
        (product(800, 96, 24), ((800, 96, 24), (8, 32, 1)), {"order": (N, M, K)}),  # 1,600 operations a line
        (product(8, 96, 24), ((8, 96, 24), (8, 32, 1)), {"order": (M, K, N)}),  # columns innermost: rows are read as they lie
    ],
    ids=["whole rows", "turned", "panel", "many passes", "in order"],
)
def test_what_needs_none_gets_none(op: ops.SymbolicTensor, tiles: Tiles, more: dict[str, Any]) -> None:
    assert not requests(FAR, program(op, tiles, **more))


@pytest.mark.parametrize("op", [product(1, 96, 24), ops.reduce_max(t(24, 96), (0,))], ids=["product", "maximum"])
def test_one_operation_a_line_is_enough(op: ops.SymbolicTensor) -> None:
    found = requests(FAR, program(op, ((96, 8), (32, 1)), lane=0, order=(0, 1)))  # LLVM unrolls so short a step
    assert found[:2] == [RUNS_AHEAD * 32 * 4 + line for line in range(0, 32 * 4, LINE)]


@pytest.mark.parametrize(("latency", "share", "expected"), [(100.0, 0.9, True), (100.0, 1.1, False), (10.0, 0.9, False)])
def test_inputs_near_the_core_get_none(latency: float, share: float, expected: bool) -> None:
    """`share`: the usable part of a cache over the bytes of b."""
    spec = SPEC
    for index in range(1, len(SPEC.levels) - 1):
        spec = with_level(spec, index, latency_ns=0.0)
    room = math.ceil(96 * 24 * 4 * share / spec.levels[1].usable_fraction)
    spec = with_level(spec, 1, capacity_bytes=room, latency_ns=latency)
    assert bool(requests(spec, program(product(8, 96, 24), ((8, 96, 8), (8, 32, 1))))) is expected


@settings(max_examples=15, deadline=None)
@given(st.integers(4, 20), st.integers(9, 150), st.integers(2, 40), st.sampled_from((8, 16, 40)), st.integers(1, 12))
def test_ragged_products_are_right(m: int, n: int, k: int, columns: int, rows: int) -> None:
    """Requests reach beyond rows and beyond the array."""
    op = product(m, n, k)
    columns = min(columns, n // 8 * 8)
    made = program(op, ((-(-m // 4) * 4, -(-n // columns) * columns, rows), (4, columns, 1)))
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr, 0, integer=True)
    launching.check(expr, launching.artifact(FAR, made), arrays)
