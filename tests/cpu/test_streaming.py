"""Stores past the caches: right at any place, for every type, and only where whole lines are stored."""

from __future__ import annotations

import numpy as np
import pytest

import launching
import roller
from by_hand import SPEC, given, t
from roller import ops, verify
from roller.target.catalog import find_spec
from roller.target.hardware import HardwareSpec
from roller.testing import with_levels
from roller_cpu.codegen import streaming
from roller_cpu.toolchain import compiling


def small(spec: HardwareSpec) -> HardwareSpec:
    """A chip whose caches hold 1 KiB each."""
    return with_levels(spec, [lv.model_copy(update={"capacity_bytes": min(lv.capacity_bytes, 1 << 10)}) for lv in spec.levels])


SMALL = small(SPEC)


@pytest.mark.parametrize("shift", [0, 1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 2053), (67, 64), (1025,)])
def test_streaming_stores_are_right_at_any_place(shape: tuple[int, ...], dtype: str, shift: int) -> None:
    op = t(*shape, dtype=dtype) + t(*shape[-1:], dtype=dtype)
    kernel = roller.compile(op, spec=SMALL)
    assert "nontemporal" in kernel.source
    expr = ops.expression(op)
    launching.check(expr, kernel.artifact, verify.random_inputs(expr, integer=True), shift=shift)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_streaming_stores_round_to_the_nearest_bfloat16(dtype: str) -> None:
    """Ties, the numbers beside them, subnormal numbers and overflow."""
    bits = np.arange(1 << 32, step=0x5555, dtype=np.uint64)
    patterns = np.concatenate(
        [bits, bits & 0xFFFF0000 | 0x8000, np.array([0x7F7FFFFF, 0x7F800001, 0xFFFFFFFF, 0x00008000], np.uint64)]
    )
    values = patterns.astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaN
        given = patterns.astype(np.uint32).view(np.int32) if dtype == "int32" else values.astype(dtype)
    op = ops.cast(t(given.size, dtype=dtype, name="x"), "bfloat16")
    kernel = roller.compile(op, spec=SMALL)
    assert "nontemporal" in kernel.source
    launching.check(ops.expression(op), kernel.artifact, {"x": given})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float16"])
def test_streaming_stores_of_narrow_types(dtype: str) -> None:
    """Eight bytes of a vector of 8-bit integers go through the caches, and nothing says otherwise."""
    op = ops.cast(t(67, 256, dtype="int32"), dtype)
    kernel = roller.compile(op, spec=SMALL)
    past = dtype not in ("int8", "uint8")
    assert ("movnt" in kernel.assembly) == past == ("past the caches" in str(kernel.explain()))
    expr = ops.expression(op)
    launching.check(expr, kernel.artifact, verify.random_inputs(expr, integer=True), shift=1)


def test_streaming_stores_after_a_reduction() -> None:
    op = ops.relu(ops.matmul(t(29, 31), t(31, 53)) + t(53))
    kernel = roller.compile(op, spec=SMALL)
    expr = ops.expression(op)
    launching.check(expr, kernel.artifact, verify.random_inputs(expr, integer=True), shift=1)


def test_parts_of_lines_are_not_streamed() -> None:
    """Rows side by side in pieces that are no whole lines, or that start within one, would travel piece by piece; one row at a
    time completes its lines.
    """
    for columns, inner, streamed in ((96, (4, 24), False), (96, (4, 32), True), (96, (1, 24), True), (100, (4, 32), False)):
        program = given(ops.relu(t(64, columns) + t(64, 1)), ((64, columns), inner), 1)
        assert ("nontemporal" in launching.artifact(SMALL, program).source) == streamed


def test_what_is_larger_than_the_last_cache_is_streamed() -> None:
    elements = max(level.capacity_bytes for level in SPEC.levels[1:]) // 4
    small, large = (roller.compile(ops.relu(t(n)), "cpu:x86-64-v3") for n in (elements, elements + 13))
    assert "nontemporal" not in small.source and "nontemporal" in large.source and "sfence" in large.source
    expr = ops.expression(ops.relu(t(elements + 13)))
    launching.check(expr, large.artifact, verify.random_inputs(expr), shift=3)


def test_emulated_stores_need_no_wide_registers() -> None:
    chip = small(find_spec("cpu", "sapphire-rapids"))
    source = roller.compile(ops.relu(t(64, 256, dtype="float16")), "cpu", spec=chip).artifact.source
    assert 'asm "", "=v,0"' in source
    plain = streaming.emulated(source)
    assert 'asm "", "=v,0"' not in plain and "movnt" in compiling.assembly(compiling.retargeted(plain, "x86-64-v3"))
