"""Memory of AMD GPUs in the order of streams: used again where work comes later anyway, and never earlier; without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_arrays import Array, CupyArray, Namespaced, Tensor, fake_cupy
from fake_hip import AmdGpus, kernel, rocm_torch, why_not
from gpu_runtime import SMALL, values
from roller import verify
from roller.errors import LaunchError
from roller_rocm.runtime import gpu, hip, pool

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@given(size=st.integers(0, 1 << 40))
def test_blocks_come_in_few_sizes_that_waste_little(size: int) -> None:
    room = pool._rounded(size)
    assert room >= max(size, 1) and room % pool.SMALLEST == 0 and pool._rounded(room) == room
    assert room - size <= max(pool.SMALLEST, size / 8)


@given(power=st.integers(11, 40))
def test_there_are_eight_sizes_between_powers_of_two(power: int) -> None:
    between = {pool._rounded((1 << power) + step * (1 << power) // 64) for step in range(1, 65)}
    assert len(between) == 8


def mallocs(amd: AmdGpus) -> int:
    return amd.calls.count("hipMalloc")


def test_a_stream_uses_again_what_it_gave_back(amd: AmdGpus) -> None:
    """At once, as later work on it comes later; marks tell it from a stream of the past with the same handle."""
    there, stream = gpu.gpu(0), amd.new_stream()
    with there.current():
        first = there.allocate(1000, stream)
        there.free(first, stream)
        mark = len(amd.calls)
        assert there.allocate(1001, stream) == first and "hipStreamWaitEvent" in amd.calls[mark:]
        other = there.allocate(2000, stream)  # another size
        assert other != first and mallocs(amd) == 2
        for address in (first, other):
            there.free(address, stream)


def test_streams_that_last_need_no_marks(amd: AmdGpus) -> None:
    there = gpu.gpu(0)
    with there.current():
        for stream in (there.stream, hip.DEFAULT_STREAM):
            first = there.allocate(1000, stream)
            mark = len(amd.calls)
            there.free(first, stream)
            assert there.allocate(1000, stream) == first and amd.calls[mark:] == []
            there.free(first, stream)


def test_other_streams_use_it_once_the_work_is_done(amd: AmdGpus) -> None:
    there, one, other = gpu.gpu(0), amd.new_stream(), amd.new_stream()
    with there.current():
        first = there.allocate(1000, one)
        there.free(first, one)
        second = there.allocate(1000, other)
        assert second != first
        amd.settle()
        third = there.allocate(1000, other)
        assert third == first and mallocs(amd) == 2
        for address in (second, third):
            there.free(address, other)


def test_results_that_are_dropped_are_used_again(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stream of their library, while nothing of it has run yet."""
    cupy = fake_cupy(monkeypatch)
    run, a = kernel("small", amd).load(), CupyArray(amd, values(SMALL))
    cupy.current = amd.new_stream()
    for _ in range(5):
        result = run(a)
        del result
    assert mallocs(amd) == 1 and amd.pending() >= 5


def test_results_that_were_read_elsewhere_come_back_behind_their_readers(amd: AmdGpus) -> None:
    """A library with a stream of its own reads the result after it was dropped here."""
    run, a = kernel("small", amd).load(), Namespaced(amd, values(SMALL))
    Namespaced.stream = amd.new_stream()
    copy = np.empty(SMALL, np.float32)
    result = run(a)
    with gpu.gpu(0).current():
        gpu.gpu(0).fetch(copy.ctypes.data, result.data_ptr(), copy.nbytes, Namespaced.stream)
    del result
    again = run(Namespaced(amd, values(SMALL, 7)))
    amd.settle()
    verify.check(run.expr, {"a": a.values()}, copy)
    assert mallocs(amd) == 1
    del again


def test_memory_of_no_address_is_none(amd: AmdGpus) -> None:
    """Some versions say that all went well."""
    run, a = kernel("small", amd).load(), Array(amd, values(SMALL))
    amd.nothing()
    out: Any = run(a)
    amd.settle()
    assert out is not None and mallocs(amd) == 2


def test_graphs_take_no_memory_of_ours(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would use it again long after it was given back; a kernel that needs none can be captured."""
    torch = rocm_torch(monkeypatch, amd)
    torch.current = amd.new_stream()
    small, large = Tensor(amd, values(SMALL)), Tensor(amd, values((1 << 18,)))
    run = kernel("small", amd).load()
    amd.capture(torch.current)
    run(small)
    amd.settle()
    run = kernel("sum", amd).load()
    with pytest.raises(LaunchError, match="a graph that is captured cannot hold the kernel's memory"):
        run(large)
    amd.capture(0)
    run(large)
