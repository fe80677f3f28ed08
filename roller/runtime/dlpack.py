"""Arrays lent and borrowed through DLPack, in any memory: capsules are read and made with the interpreter alone.

A capsule points at a structure whose layout is fixed by DLPack's ABI. It has two forms: the plain one, named "dltensor", and from
version 1.0 on a versioned one, which also records whether the array may be written. The consumer renames the capsule, and calls the
structure's deleter when it is done.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
_TAKEN = {PLAIN: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}  # must live as long as capsules point at them
VERSION = (1, 0)
_READ_ONLY = 1  # in the flags
_FLOAT, _BFLOAT, _BOOL = 2, 4, 6
_CODES = {0: "int", 1: "uint", _FLOAT: "float", _BFLOAT: "bfloat"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        *(("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("rank", ctypes.c_int32)),
        *(("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)),
    )


class _Plain(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        *(("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)),
        *(("flags", ctypes.c_uint64), ("tensor", _Tensor)),
    )


def _python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


# A capsule is passed by its address, because its destructor gets nothing else.
_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An array of another library, alive as long as `holder`.

    `strides`: in elements; None if the array is contiguous. `dtype`: NumPy's name of its element type, "unknown" if NumPy has none.
    `device`: DLPack's kind and number.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    read_only: bool
    device: tuple[int, int]
    holder: Any

    @property
    def contiguous(self) -> bool:
        """True if the elements are laid out as in a C-contiguous array."""
        dense, step = True, 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides or ()), strict=False):
            dense = dense and (extent == 1 or stride == step)
            step *= extent
        return dense or 0 in self.shape


class _Loan:
    """Calls the deleter of a structure from a capsule once there are no more references."""

    def __init__(self, pointer: int, deleter: int | None) -> None:
        self._pointer, self._deleter = pointer, deleter

    def __del__(self) -> None:
        if self._deleter and not sys.is_finalizing():
            _Deleter(self._deleter)(self._pointer)


def borrow(capsule: Any) -> Borrowed:
    """Takes the array of a capsule, which no one else can then read; `BufferError` if it is none, or of an unknown version."""
    name = next((name for name in _TAKEN if _is_valid(id(capsule), name)), None)
    if name is None:
        raise BufferError("no capsule of DLPack's, or one that was read before")
    pointer = _pointer(id(capsule), name)
    managed = (_Plain if name == PLAIN else _Versioned).from_address(pointer)
    if name == VERSIONED and managed.major != VERSION[0]:
        raise BufferError(f"DLPack {managed.major}.{managed.minor}, which is not known here")
    _rename(id(capsule), _TAKEN[name])
    loan, tensor = _Loan(pointer, managed.deleter), managed.tensor
    return Borrowed(
        (tensor.data or 0) + tensor.offset,
        tuple(tensor.shape[: tensor.rank]),
        tuple(tensor.strides[: tensor.rank]) if tensor.strides else None,
        _name(tensor.code, tensor.bits, tensor.lanes),
        name == VERSIONED and bool(managed.flags & _READ_ONLY),
        (tensor.device_type, tensor.device_id),
        loan,
    )


def lend(
    address: int,
    shape: Sequence[int],
    dtype: str,
    device: tuple[int, int],
    owner: Any,
    versioned: bool = False,
    read_only: bool = False,
) -> Any:
    """Returns a capsule of a contiguous array.

    `owner` lives until the consumer is done or the capsule is deleted. `versioned`: use the form that can express `read_only`.
    """
    rank = len(shape)
    room = ctypes.c_int64 * max(rank, 1)
    steps = [1, *itertools.accumulate(reversed(shape[1:]), lambda step, extent: step * max(extent, 1))] if rank else []
    extents, strides = room(*shape), room(*reversed(steps))
    tensor = _Tensor(address, *device, rank, *_code(dtype), 1, extents, strides, 0)
    deleter = ctypes.cast(_RELEASE, ctypes.c_void_p)
    made = _Versioned(*VERSION, None, deleter, _READ_ONLY * read_only, tensor) if versioned else _Plain(tensor, None, deleter)
    place = ctypes.addressof(made)
    _lent[place] = (made, extents, strides, owner)
    return _new(place, VERSIONED if versioned else PLAIN, ctypes.cast(_UNREAD, ctypes.c_void_p))


def _name(code: int, bits: int, lanes: int) -> str:
    if lanes == 1 and (code, bits) == (_BOOL, 8):
        return "bool"
    return f"{_CODES[code]}{bits}" if lanes == 1 and code in _CODES else "unknown"


def _code(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return _BOOL, 8
    kind = dtype.rstrip("0123456789")
    return next(code for code, name in _CODES.items() if name == kind), int(dtype[len(kind) :])


_lent: dict[int, Any] = {}  # owners of lent arrays, by the address of their structure


def _release(place: int) -> None:
    _lent.pop(place, None)


def _unread(capsule: int) -> None:
    """Runs when a capsule is deleted that has not been consumed; its name shows that."""
    for name in _TAKEN:
        if _is_valid(capsule, name):
            _release(_pointer(capsule, name))


_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_release)  # consumers may call it from any thread
_UNREAD = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_unread)
