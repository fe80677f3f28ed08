"""The short way into a kernel: taken by plain arrays, and by nothing else; what it refuses, the long way does."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import roller
from roller import ops
from roller.errors import LaunchError
from roller.runtime.arrays import aligned_empty
from roller_cpu.chip.topology import available_cores
from roller_cpu.runtime import object_layout
from roller_cpu.toolchain import entry_points

SEVERAL = min(2, available_cores())  # threads
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32")


def filled(shape: tuple[int, ...], dtype: Any, value: float) -> Any:
    array = np.empty(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array[...] = value
    return array


def kernel(shape: tuple[int, ...] = (5, 7), dtype: str = "float32", threads: int = 1) -> Any:
    return roller.compile(ops.tensor(shape, dtype, "a") + ops.tensor(shape, dtype, "b"), "cpu", threads=threads).load()


def taken(built: Any, *arrays: Any) -> bool:
    """Whether the short way computes with these inputs and this output."""
    inputs, out = arrays[:-1], arrays[-1]
    answer = built._shortcut(inputs, out)
    assert answer in (False, True)
    return bool(answer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (2, 3, 4, 5, 6)])
def test_plain_arrays_take_it(shape: tuple[int, ...], dtype: str) -> None:
    built = kernel(shape, dtype)
    out = filled(shape, dtype, 99)
    assert taken(built, filled(shape, dtype, 2), filled(shape, dtype, 3), out)
    assert np.all(out == 5)


def test_a_misaligned_element_boundary_is_plain_enough() -> None:
    built, out = kernel((16,)), filled((17,), "float32", 99)
    assert taken(built, filled((17,), "float32", 2)[1:], filled((16,), "float32", 3), out[1:])
    assert out[0] == 99 and np.all(out[1:] == 5)


@pytest.mark.parametrize("threads", sorted({1, SEVERAL}))
@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_arrays_is_left_to_the_long_way(threads: int, count: int) -> None:
    built, out = kernel(threads=threads), filled((5, 7), "float32", 99)
    given = [filled((5, 7), "float32", n) for n in range(count)]
    assert not taken(built, *given, out)
    with pytest.raises(LaunchError, match=r"no array for|arrays given, 2 expected"):
        built(*given, out=out)
    assert np.all(out == 99)


class Special(np.ndarray):
    """Looks like an array, and may mean something else."""


READ_ONLY = filled((5, 7), "float32", 0)
READ_ONLY.flags.writeable = False
ODD = {
    "a list": [[2.0] * 7] * 5,
    "a number": 2,
    "nothing": None,
    "a subclass": filled((5, 7), "float32", 2).view(Special),
    "another type": filled((5, 7), "float64", 2),
    "another byte order": filled((5, 7), ">f4", 2),
    "another shape": filled((7, 5), "float32", 2),
    "another rank": filled((35,), "float32", 2),
    "a column order": np.asfortranarray(filled((5, 7), "float32", 2)),
    "every other element": filled((5, 14), "float32", 2)[:, ::2],
    "no whole elements": np.zeros(5 * 7 * 4 + 1, np.uint8)[1:].view("float32").reshape(5, 7),
    "one element for all": np.broadcast_to(np.float32(2), (5, 7)),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
def test_anything_else_is_refused_and_nothing_written(value: Any, place: int) -> None:
    built = kernel()
    arrays = [filled((5, 7), "float32", n) for n in (2, 3, 99)]
    arrays[place] = value
    assert not taken(built, *arrays)
    assert place == 2 or np.all(arrays[2] == 99)


def test_what_may_not_be_written_is_refused() -> None:
    built = kernel()
    assert taken(built, READ_ONLY, READ_ONLY, filled((5, 7), "float32", 99))
    assert not taken(built, filled((5, 7), "float32", 2), filled((5, 7), "float32", 3), READ_ONLY)
    with pytest.raises(LaunchError, match="read-only"):
        built(READ_ONLY, READ_ONLY, out=READ_ONLY)


@pytest.mark.parametrize("step", [-34, -1, 0, 1, 34])
def test_an_output_that_overlaps_an_input_takes_the_long_way(step: int) -> None:
    built, room = kernel(), np.arange(200, dtype=np.float32)
    first, out = room[70 : 70 + 35].reshape(5, 7), room[70 + step : 70 + step + 35].reshape(5, 7)
    second = filled((5, 7), "float32", 3)
    wanted = first + second
    assert not taken(built, first, second, out) and not taken(built, second, first, out)
    built(first, second, out=out)
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("step", [-35, 35])
def test_neighbours_do_not_overlap(step: int) -> None:
    room = np.arange(200, dtype=np.float32)
    first, out = room[70 : 70 + 35].reshape(5, 7), room[70 + step : 70 + step + 35].reshape(5, 7)
    assert taken(kernel(), first, first, out) and np.array_equal(out, 2 * first)


def test_constants_and_panels_are_passed_between_inputs_and_output() -> None:
    a, w, bias = (np.random.default_rng(n).integers(-4, 5, s).astype("float32") for n, s in enumerate(((48, 64), (64, 80), (80,))))
    x, weight, b = ops.tensor(a.shape, name="x"), ops.tensor(w.shape, name="w"), ops.tensor(bias.shape, name="b")
    built = roller.compile(ops.matmul(x, weight) + b, "cpu", constants={"w": w, "b": bias}, threads=SEVERAL).load()
    out = filled((48, 80), "float32", np.nan)
    assert taken(built, a, out) and np.array_equal(out, a @ w + bias)


def test_every_thread_may_take_it() -> None:
    built, wrong = kernel((300, 700), threads=SEVERAL), []

    def call(value: int) -> None:
        out = filled((300, 700), "float32", np.nan)
        for _ in range(20):
            if not taken(built, filled((300, 700), "float32", value), filled((300, 700), "float32", 1), out):
                wrong.append(value)
        if not np.all(out == value + 1):
            wrong.append(value)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_empty_arrays_have_none() -> None:
    built = kernel((0, 3))
    assert built._shortcut is None
    assert built(filled((0, 3), "float32", 1), filled((0, 3), "float32", 1)).shape == (0, 3)


def test_arrays_that_lie_otherwise_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    object_layout.as_expected.cache_clear()
    monkeypatch.setattr(entry_points, "RANK", 28)
    try:
        built = kernel()
        assert built._shortcut is None
        assert np.all(built(filled((5, 7), "float32", 2), filled((5, 7), "float32", 3)) == 5)
    finally:
        object_layout.as_expected.cache_clear()


def test_calls_without_an_output_take_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    built = kernel()
    monkeypatch.setattr(built, "_call", lambda *_: pytest.fail("the long way"))
    result = built(filled((5, 7), "float32", 2), b=filled((5, 7), "float32", 3))
    assert np.all(result == 5) and aligned_empty((5, 7), result.dtype).shape == result.shape
