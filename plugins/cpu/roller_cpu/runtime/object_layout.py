"""Whether this interpreter and this NumPy lay out tuples and arrays as a kernel's shortcut reads them."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np

from roller_cpu.toolchain import entry_points as at


@cache
def as_expected() -> bool:
    """Returns whether this interpreter and this NumPy use the expected layout of tuples and array objects."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    whole = np.zeros((4, 6), np.int16)
    fixed = np.zeros(3, np.float64)
    fixed.flags.writeable = False
    arrays = whole, whole[1:], whole[:, ::2], whole[0, 0:0], fixed, np.array(1.0)
    return _tuple_as_expected(arrays) and all(map(_array_as_expected, arrays))


def _tuple_as_expected(objects: tuple[Any, ...]) -> bool:
    where = id(objects)
    items = [ctypes.c_size_t.from_address(where + at.ITEMS + 8 * i).value for i in range(len(objects))]
    return ctypes.c_ssize_t.from_address(where + at.COUNT).value == len(objects) and items == [*map(id, objects)]


def _array_as_expected(array: Any) -> bool:
    where = id(array)
    words = {o: ctypes.c_size_t.from_address(where + o).value for o in (at.TYPE, at.DATA, at.DTYPE)}
    rank, flags = (ctypes.c_int.from_address(where + o).value for o in (at.RANK, at.FLAGS))
    if words != {at.TYPE: id(type(array)), at.DATA: array.ctypes.data, at.DTYPE: id(array.dtype)} or rank != array.ndim:
        return False
    shape = ctypes.c_size_t.from_address(where + at.SHAPE).value
    sizes = tuple(ctypes.c_ssize_t.from_address(shape + 8 * i).value for i in range(rank))
    wanted = array.flags
    told = bool(flags & at.CONTIGUOUS), bool(flags & at.ALIGNED), bool(flags & at.WRITEABLE)
    return sizes == array.shape and told == (wanted.c_contiguous, wanted.aligned, wanted.writeable)
