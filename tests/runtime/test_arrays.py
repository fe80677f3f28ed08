import contextlib
import ctypes

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.errors import LaunchError
from roller.runtime.arrays import (
    ALIASING,
    ALIGNMENT,
    Wanted,
    address,
    admit,
    admit_output,
    aligned_empty,
    as_kind,
    is_ready,
    numpy_dtype,
    overlaps,
    ready,
    same_bits,
    view,
)

try:
    import torch
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed: pip install 'roller-compiler[torch]'")


F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def gradients():
    """Torch records gradients, whatever other tests of the process have switched off (benches do when they are imported)."""
    with contextlib.nullcontext() if torch is None else torch.enable_grad():
        yield


def misaligned(shape, offset, dtype=F32):
    raw = aligned_empty((int(np.prod(shape)) * dtype.itemsize + 64,), np.dtype(np.uint8))
    return np.ndarray(shape, dtype, raw, offset)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0, 2), (5, 6)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "bool"])
def test_new_memory_is_aligned_and_contiguous(shape, dtype):
    array = aligned_empty(shape, numpy_dtype(dtype))
    assert array.shape == shape and array.dtype == numpy_dtype(dtype)
    assert array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0


def test_large_arrays_made_in_a_row_do_not_start_at_one_place_of_a_page():
    starts = [address(aligned_empty((64, 64), F32)) % ALIASING for _ in range(12)]
    assert all(s % ALIGNMENT == 0 for s in starts)
    apart = [abs(a - b) for i, a in enumerate(starts) for b in starts[i + 1 : i + 6]]
    assert min(min(d, ALIASING - d) for d in apart) >= 5 * ALIGNMENT


def test_address_is_that_of_numpy_for_every_kind_of_array():
    base = np.arange(64, dtype=np.float32)
    frozen = base.copy()
    frozen.flags.writeable = False
    arrays = [base, base[3:], base[::-1], base[::2], base.reshape(8, 8).T, frozen, np.empty((0, 3)), np.array(1.0)]
    arrays += [aligned_empty((4,), numpy_dtype("bfloat16")), base.astype(">f4")]
    for array in arrays:
        assert address(array) == array.ctypes.data


@given(st.integers(0, 5), st.integers(1, 5), st.integers(0, 63), st.integers(-3, 3).filter(bool), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ready_keeps_values_of_any_layout(rows, columns, offset, step, transpose):
    whole = misaligned((rows, columns * 3), offset)
    whole[...] = np.arange(whole.size).reshape(whole.shape)
    array = whole[:, ::step]
    array = array.T if transpose else array
    good = ready(array)
    assert is_ready(good) and np.array_equal(good, array)
    assert (good is array) == is_ready(array)


def test_read_only_input_in_good_memory_is_not_copied():
    array = aligned_empty((8,), F32)
    array.flags.writeable = False
    assert ready(array) is array


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int32", "bool"])
def test_torch_round_trip_shares_memory(dtype):
    tensor = torch.ones(3, 4).to(getattr(torch, dtype))
    array, kind = view(tensor, "x")
    assert kind == "torch" and array.dtype == numpy_dtype(dtype) and address(array) == tensor.data_ptr()
    back = as_kind(array, kind)
    assert back.dtype == tensor.dtype and back.data_ptr() == tensor.data_ptr() and torch.equal(back, tensor)


@needs_torch
def test_torch_views_keep_their_strides():
    tensor = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T
    array, _ = view(tensor, "x")
    assert array.shape == (4, 3) and np.array_equal(array.astype(np.float32), tensor.float().numpy())


class Foreign:
    """An array of a library that only speaks DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


def test_dlpack_is_read_without_copy():
    array = np.arange(4.0)
    seen, kind = view(Foreign(array), "x")
    assert kind == "numpy" and np.shares_memory(seen, array)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "NoneType given"),
        (3.5, "float given"),
        ([1.0, 2.0], "list given"),
        ("text", "str given"),
        (Foreign(np.ones(3), (2, 0)), "lies on DLPack device"),
        (np.ma.masked_array([1.0], [True]), "MaskedArray given"),
        *(
            []
            if torch is None
            else [
                (torch.ones(3, requires_grad=True), "requires a gradient"),
                (torch.ones(3, device="meta"), "lies on meta"),
                (torch.ones(3).to_sparse(), "cannot be read"),
            ]
        ),
    ],
)
def test_what_is_no_host_array_is_refused_by_name(value, said):
    with pytest.raises(LaunchError, match=said) as caught:
        view(value, "weight")
    assert str(caught.value).startswith("weight: ")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones((2, 3)), "element type float64 given, float32 expected"),
        (np.ones((2, 3), ">f4"), "element type >f4 given"),
        (np.ones((3, 2), F32), r"shape \(3, 2\) given, \(2, 3\) expected"),
        (np.ones((2, 3, 1), F32), "shape"),
    ],
)
def test_wrong_shape_or_type_is_never_converted(array, said):
    with pytest.raises(LaunchError, match=said):
        admit(array, Wanted("x", (2, 3), F32))


def test_outputs_must_be_writable_elements_of_their_own():
    wanted = Wanted("out", (2, 3), F32)
    frozen = np.ones((2, 3), F32)
    frozen.flags.writeable = False
    shared = np.lib.stride_tricks.as_strided(np.ones(3, F32), (2, 3), (0, 4))
    for array, said in ((frozen, "read-only"), (shared, "share one place")):
        with pytest.raises(LaunchError, match=said):
            admit_output(array, wanted)


def test_overlap_is_seen_and_neighbours_are_not():
    whole = aligned_empty((64,), F32)
    assert overlaps(whole[:32], [whole[16:48]]) and not overlaps(whole[:32], [whole[32:]])


def test_bfloat16_is_that_of_ml_dtypes():
    assert numpy_dtype("bfloat16") == np.dtype(ml_dtypes.bfloat16)
    assert ctypes.sizeof(ctypes.c_uint16) == numpy_dtype("bfloat16").itemsize


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "bool"])
def test_arrays_are_the_same_to_the_bit_but_for_nan(dtype: str) -> None:
    held = numpy_dtype(dtype)
    one = np.array([0, 1, 1, 0], dtype=held).reshape(2, 2)
    other = one.copy()
    assert same_bits(one, other)
    other[0, 1] = 0
    assert not same_bits(one, other)
    if dtype in ("int8", "bool"):
        return
    other = one.copy()
    one[1, 1], other[1, 1] = np.nan, -np.array(np.nan, held)
    assert same_bits(one, other) and one.tobytes() != other.tobytes()
    other[1, 1] = 0
    assert not same_bits(one, other)
    zero, negative = np.zeros(1, held), -np.zeros(1, held)
    assert not same_bits(zero, negative)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int64", "bool"])
def test_python_numbers_become_an_array_of_the_wanted_type(dtype):
    wanted = Wanted("x", (2, 2), numpy_dtype(dtype))
    array, kind = admit([[0, 1], (1, 0)], wanted)
    assert array.dtype == wanted.dtype and kind == "numpy" and array.astype("f4").tolist() == [[0, 1], [1, 0]]
    assert admit(1, Wanted("x", (), numpy_dtype(dtype)))[0].astype("f4") == 1


@pytest.mark.parametrize(
    ("value", "dtype", "said"),
    [
        ([300, 0], "int8", "make no array of int8"),
        ([-1, 0], "uint8", "make no array of uint8"),
        ([0.5, 0.0], "int32", "floats given, int32 expected"),
        ([[1.0], [2.0, 3.0]], "float32", "make no array of float32"),
        (["1", "2"], "float32", "no real numbers given, float32 expected"),
        ([1j, 0], "float32", "no real numbers given, float32 expected"),
        ([], "int32", r"shape \(0,\) given, \(2,\) expected"),
        ([1.0, 2.0, 3.0], "float32", r"shape \(3,\) given, \(2,\) expected"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_name(value, dtype, said):
    with pytest.raises(LaunchError, match=f"x: .*{said}"):
        admit(value, Wanted("x", (2,), numpy_dtype(dtype)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1e6])
def test_special_floats_keep_their_value_and_those_beyond_the_range_are_infinite(value):
    array, _ = admit([value], Wanted("x", (1,), np.dtype("f2")))
    assert same_bits(array, np.array([float("inf") if value == 1e6 else value], "f2"))


def test_python_numbers_are_no_output():
    with pytest.raises(LaunchError, match="out: a list given"):
        admit_output([0.0, 0.0], Wanted("out", (2,), np.dtype("f4")))


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_parameters_are_taken_where_no_gradient_is_recorded():
    parameter = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(LaunchError, match=r"x: .*under torch\.no_grad"):
        view(parameter, "x")
    with torch.no_grad():
        array, kind = view(parameter, "x")
    assert kind == "torch" and array.ctypes.data == parameter.data_ptr()
