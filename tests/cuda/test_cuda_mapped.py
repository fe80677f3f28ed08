"""Kernels that take tensor maps, from compiling to the result: the fake driver encodes them, the emulator reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulating import needs_compiler, needs_cxx
from fake_arrays import Array, Namespaced
from fake_gpu import LEFT, RIGHT, Gpus, fresh, of_groups, rounding_groups, why_not
from gpu_runtime import values
from roller import verify
from roller.device.chip import load_spec
from roller.errors import LaunchError, WrongResultError

pytestmark = [needs_compiler, needs_cxx, pytest.mark.skipif(bool(why_not()), reason=why_not())]
OUT = (LEFT[0], RIGHT[1])


@pytest.fixture
def hoppers(gpus: Gpus) -> Gpus:
    """The GPUs, as H100s."""
    for number in range(2):
        gpus.become(number, load_spec("cuda:h100"))
    return gpus


def halves(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Whole numbers of at most 2: sums of so few products of them are exact in half precision."""
    return np.rint(2 * values(shape, seed)).astype(np.float16)


def right(result: Any, a: Any, b: Any) -> None:
    assert np.array_equal(np.asarray(result).reshape(OUT).astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))


def test_the_kernel_is_of_warp_groups_and_all_its_arrays_are_mapped() -> None:
    """Otherwise the tests below say nothing."""
    (described,) = of_groups().artifact.launch["kernels"]
    assert {found["tensor"] for found in described["maps"].values()} == {"a", "b", of_groups().artifact.launch["output"]}
    assert "wgmma" in of_groups().source and of_groups().artifact.launch["arch"] == "sm_90a"


def test_arrays_of_the_host_are_multiplied(hoppers: Gpus) -> None:
    run = fresh(of_groups(), hoppers).load()
    for seed in range(2):
        a, b = halves(LEFT, seed), halves(RIGHT, 10 + seed)
        right(run(a, b), a, b)
    a, b = (values(shape).astype(np.float16) for shape in (LEFT, RIGHT))
    verify.check(run.expr, {"a": a, "b": b}, np.asarray(run(a, b)))


def test_a_constant_is_mapped_too(hoppers: Gpus) -> None:
    run = fresh(of_groups(constant=True), hoppers).load()
    a = halves(LEFT)
    right(run(a), a, halves(RIGHT, 1))
    encoded = hoppers.calls.count("cuTensorMapEncodeTiled")
    other = Array(hoppers, halves(LEFT, 5))
    out = Array(hoppers, halves(OUT))
    run(other, out=out)
    hoppers.settle()
    right(out.values(), other.values(), halves(RIGHT, 1))
    assert hoppers.calls.count("cuTensorMapEncodeTiled") == encoded + 2  # that of the constant stays


def test_maps_follow_addresses_while_earlier_launches_wait(hoppers: Gpus) -> None:
    """Each launch has the maps of its own call, though all are enqueued before the first one runs."""
    run = fresh(of_groups(), hoppers).load()
    lefts = [Array(hoppers, halves(LEFT, seed)) for seed in range(2)]
    b, streams = Array(hoppers, halves(RIGHT, 7)), [hoppers.new_stream() for _ in range(2)]
    outs, encoded = [Array(hoppers, halves(OUT)) for _ in range(3)], []
    for a, out, stream in ((lefts[0], outs[0], 0), (lefts[0], outs[1], 0), (lefts[1], outs[2], 1)):
        run(a, b, out=out, stream=streams[stream])
        encoded.append(hoppers.calls.count("cuTensorMapEncodeTiled"))
    assert encoded == [3, 4, 6]  # both inputs and the output, a new output, a new left side and output
    hoppers.settle()
    for a, out in zip((lefts[0], lefts[0], lefts[1]), outs, strict=True):
        right(out.values(), a.values(), b.values())


def test_each_gpu_has_maps_of_its_own(hoppers: Gpus) -> None:
    run = fresh(of_groups(), hoppers).load()
    for number in range(2):
        a, b, out = (Array(hoppers, halves(s, n), number=number) for n, s in enumerate((LEFT, RIGHT, OUT)))
        run(a, b, out=out)
        hoppers.settle()
        right(out.values(), a.values(), b.values())


def test_boxes_round_where_the_map_says_so(hoppers: Gpus) -> None:
    """To the nearest, and to even: then no bit is left that products would cut off, and only the permission allows the result."""
    run = fresh(rounding_groups(), hoppers).load()
    (described,) = run.artifact.launch["kernels"]
    assert {(m["tensor"], m["dtype"]) for m in described["maps"].values()} == {
        ("a", "tfloat32"),
        ("b", "tfloat32"),
        (run.artifact.launch["output"], "float32"),
    }
    assert run.expr.stages[0].factor_dtype == "tfloat32"
    arrays = verify.random_inputs(run.expr, 3)
    result = np.asarray(run(arrays["a"], arrays["b"]))
    verify.check(run.expr, arrays, result)
    strict = replace(run.expr, stages=tuple(replace(s, factor_dtype=None) for s in run.expr.stages))
    verify.check(strict, {n: verify.to_significant(a, "tfloat32").astype(np.float32) for n, a in arrays.items()}, result)
    with pytest.raises(WrongResultError):
        verify.check(strict, arrays, result)


@pytest.mark.parametrize("shift", [2, 8])
def test_arrays_that_are_not_aligned_are_refused(hoppers: Gpus, shift: int) -> None:
    run = fresh(of_groups(), hoppers).load()
    a, b = Array(hoppers, halves(LEFT)), Array(hoppers, halves(RIGHT), shift=shift)
    with pytest.raises(LaunchError, match=r"b: the array starts at .*needs a multiple of 16 bytes; copy it first"):
        run(a, b)
    assert "cuLaunchKernel" not in hoppers.calls
    shifted = Namespaced(hoppers, halves(RIGHT), shift=16)
    Namespaced.stream = hoppers.new_stream()
    out = Array(hoppers, halves(OUT))
    run(a, shifted, out=out)
    hoppers.settle()
    right(out.values(), a.values(), shifted.values())
