"""Arrays lent and borrowed through DLPack, on the host, where NumPy can tell whether they are right."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.runtime import dlpack
from roller.runtime.dlpack import borrow, lend

HOST = (1, 0)
DTYPES = [*["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool"]]


class Lent:
    """An array that is given through our capsules."""

    def __init__(self, array: np.ndarray[Any, Any], **form: bool) -> None:
        self.array, self.form = array, form

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST

    def __dlpack__(self, **_: Any) -> Any:
        return lend(self.array.ctypes.data, self.array.shape, self.array.dtype.name, HOST, self, **self.form)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(shape=shapes, dtype=st.sampled_from(DTYPES), versioned=st.booleans())
def test_numpy_reads_what_is_lent(shape: tuple[int, ...], dtype: str, versioned: bool) -> None:
    array = (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape)
    read = np.from_dlpack(Lent(array, versioned=versioned))
    assert read.dtype == array.dtype and read.shape == shape and (read == array).all()
    assert array.size == 0 or read.strides == array.strides


@given(shape=shapes, dtype=st.sampled_from(DTYPES), turned=st.booleans())
def test_what_numpy_lends_is_read(shape: tuple[int, ...], dtype: str, turned: bool) -> None:
    whole = np.zeros(shape, dtype)
    array = whole.T if turned else whole
    found = borrow(array.__dlpack__())
    assert (found.shape, found.dtype, found.device) == (array.shape, dtype, HOST)
    assert found.contiguous == (array.flags.c_contiguous or array.size == 0)
    assert array.size == 0 or found.address == array.ctypes.data


def test_parts_of_arrays_lie_where_they_lie() -> None:
    whole = np.zeros((6, 8), np.float32)
    found = borrow(whole[2:4, ::2].__dlpack__())
    assert (found.address, found.strides, found.contiguous) == (whole.ctypes.data + 64, (8, 2), False)
    assert borrow(whole[2:4].__dlpack__()).contiguous


@pytest.mark.parametrize("versioned", [False, True])
def test_owners_live_as_long_as_somebody_reads(versioned: bool) -> None:
    lent = Lent(np.arange(3.0), versioned=versioned)
    alive = weakref.ref(lent)
    read = np.from_dlpack(lent)
    del lent
    gc.collect()
    assert alive() is not None and read.tolist() == [0, 1, 2]
    del read
    gc.collect()
    assert alive() is None and not dlpack._lent


@pytest.mark.parametrize("versioned", [False, True])
def test_capsules_that_nobody_reads_let_go(versioned: bool) -> None:
    lent = Lent(np.arange(3.0), versioned=versioned)
    alive, capsule = weakref.ref(lent), lent.__dlpack__()
    del lent
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None and not dlpack._lent


def test_what_is_borrowed_is_given_back() -> None:
    lent = Lent(np.arange(3.0))
    alive = weakref.ref(lent)
    found = borrow(lent.__dlpack__())
    del lent
    gc.collect()
    assert alive() is not None
    del found
    gc.collect()
    assert alive() is None


def test_who_may_write_is_told() -> None:
    array = np.arange(3.0)
    for read_only in (False, True):
        lent = Lent(array, versioned=True, read_only=read_only)
        assert borrow(lent.__dlpack__()).read_only == read_only
        assert np.from_dlpack(lent).flags.writeable != read_only


def test_a_capsule_is_read_once() -> None:
    capsule = np.arange(3.0).__dlpack__()
    found = borrow(capsule)
    with pytest.raises(BufferError, match="read before"):
        borrow(capsule)
    with pytest.raises(BufferError, match="no capsule"):
        borrow(object())
    assert found.shape == (3,)


def test_versions_to_come_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlpack, "VERSION", (2, 3))
    capsule = Lent(np.arange(3.0), versioned=True).__dlpack__()
    monkeypatch.undo()
    with pytest.raises(BufferError, match=r"DLPack 2\.3"):
        borrow(capsule)
    del capsule
    gc.collect()
    assert not dlpack._lent


def test_elements_without_a_name() -> None:
    found = borrow(np.zeros(3, np.complex64).__dlpack__())
    assert found.dtype == "unknown"


def test_arrays_may_start_behind_their_address() -> None:
    array = np.arange(6.0)
    capsule = lend(array.ctypes.data, (4,), "float64", HOST, array)
    ((made, *_),) = dlpack._lent.values()
    made.tensor.offset = 16
    assert borrow(capsule).address == array.ctypes.data + 16
