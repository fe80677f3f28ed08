"""Fast call path into a kernel: machine code that inspects NumPy arrays itself and calls the kernel with them.

Reading types, shapes, flags and addresses through Python takes longer than a small kernel runs. The code reads the items of a tuple
and the fields of `PyArrayObject`, which NumPy's ABI fixes. It accepts only plain arrays that match the kernel's arguments exactly.
All others take the regular path, which also reports errors.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from roller.plugin import ELEMENT_BYTES, numpy_dtype

NAME = "roller_shortcut"
TYPE_CODES: Mapping[str, int] = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # DLPack's type codes
CPU = 1  # DLPack's device
_TENSOR_BYTES = 48  # a DLTensor
_INTEGER, _POINTER = 1, 7  # TVM's type indices: a 64-bit integer, a pointer to a DLTensor
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400  # NumPy's flags

# Byte offsets of the fields of PyArrayObject, and of those of PyTupleObject.
_TYPE, _DATA, _RANK, _SHAPE, _DTYPE, _FLAGS = 8, 16, 24, 32, 56, 64
_COUNT, _ITEMS = 16, 24


@cache
def possible() -> bool:
    """Returns whether this interpreter and this NumPy use the expected layout of tuples and array objects."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    whole = np.zeros((4, 6), np.int16)
    fixed = np.zeros(3, np.float64)
    fixed.flags.writeable = False
    arrays = whole, whole[1:], whole[:, ::2], whole[0, 0:0], fixed, np.array(1.0)
    return _tuple_as_expected(arrays) and all(map(_as_expected, arrays))


def _tuple_as_expected(objects: tuple[Any, ...]) -> bool:
    where = id(objects)
    items = [ctypes.c_size_t.from_address(where + _ITEMS + 8 * i).value for i in range(len(objects))]
    return ctypes.c_ssize_t.from_address(where + _COUNT).value == len(objects) and items == [*map(id, objects)]


def _as_expected(array: Any) -> bool:
    where = id(array)
    words = {o: ctypes.c_size_t.from_address(where + o).value for o in (_TYPE, _DATA, _DTYPE)}
    rank, flags = (ctypes.c_int.from_address(where + o).value for o in (_RANK, _FLAGS))
    if words != {_TYPE: id(type(array)), _DATA: array.ctypes.data, _DTYPE: id(array.dtype)} or rank != array.ndim:
        return False
    shape = ctypes.c_size_t.from_address(where + _SHAPE).value
    sizes = tuple(ctypes.c_ssize_t.from_address(shape + 8 * i).value for i in range(rank))
    wanted = array.flags
    told = bool(flags & _CONTIGUOUS), bool(flags & _ALIGNED), bool(flags & _WRITEABLE)
    return sizes == array.shape and told == (wanted.c_contiguous, wanted.aligned, wanted.writeable)


def text(entry: str, processor: str, tensors: Sequence[Mapping[str, Any]], fixed: Sequence[int]) -> str | None:
    """Returns LLVM IR to append to a kernel's: a function of the `id()` of the tuple of inputs and of that of the output.

    The function returns 1, or 0 where the number of inputs differs or an array does not match the kernel's argument. `tensors`:
    name, shape and dtype of the inputs and the output; `fixed`: addresses of the descriptors that the kernel takes between them,
    which exist as long as the code. None where an array is empty, or this Python uses another layout.
    """
    if not possible() or any(0 in t["shape"] for t in tensors):
        return None
    count = len(tensors)
    signature = f"i32 @__tvm_ffi_{NAME}(ptr %self, ptr %args, i32 %count, ptr %result)"
    lines = [f'define dllexport {signature} nounwind "target-cpu"="{processor}" {{']
    lines += ["entry:", f"  %tensors = alloca [{count * _TENSOR_BYTES} x i8], align 16"]
    lines += [f"  %call = alloca [{16 * (count + len(fixed))} x i8], align 16", "  %given = alloca i64, i32 2, align 16"]
    lines += [f"  %sizes = alloca [{count} x i64], align 16", *_argument("inputs", 0), *_argument(f"object{count - 1}", 1)]
    lines += [f"  %given_at = getelementptr i8, ptr %inputs, i64 {_COUNT}", "  %given_count = load i64, ptr %given_at"]
    lines += [f"  %all = icmp eq i64 %given_count, {count - 1}", "  br i1 %all, label %check0, label %refused"]
    for number, tensor in enumerate(tensors):
        lines += _check(number, tensor, written=number == count - 1)
    lines += _apart(tensors)
    for number, tensor in enumerate(tensors):
        lines += _describe(number, tensor)
    described = [f"%tensor{n}" for n in range(count)]
    for place, descriptor in enumerate([*described[:-1], *(f"inttoptr (i64 {where} to ptr)" for where in fixed), described[-1]]):
        lines += _pass(place, descriptor)
    lines += [
        "  store i64 0, ptr %given",
        f"  %code = call i32 @__tvm_ffi_{entry}(ptr null, ptr %call, i32 {count + len(fixed)}, ptr %given)",
    ]
    lines += ["  %well = icmp eq i32 %code, 0", "  br i1 %well, label %done, label %failed", "failed:", "  ret i32 %code"]
    for label, said in (("done", 1), ("refused", 0)):
        lines += [f"{label}:", f"  store i64 {_INTEGER}, ptr %result", f"  %said{said} = getelementptr i8, ptr %result, i64 8"]
        lines += [f"  store i64 {said}, ptr %said{said}", "  ret i32 0"]
    return "\n".join([*lines, "}", ""])


def _argument(name: str, number: int) -> list[str]:
    """Returns code that loads argument `number`, an address as an integer, as a pointer."""
    at = f"  %{name}_at = getelementptr i8, ptr %args, i64 {16 * number + 8}"
    return [at, f"  %{name}_word = load i64, ptr %{name}_at", f"  %{name} = inttoptr i64 %{name}_word to ptr"]


def _item(number: int) -> list[str]:
    """Returns code that loads one of the inputs."""
    at = f"  %item{number} = getelementptr i8, ptr %inputs, i64 {_ITEMS + 8 * number}"
    return [at, f"  %object{number} = load ptr, ptr %item{number}"]


def _field(number: int, name: str, kind: str, offset: int) -> list[str]:
    return [
        f"  %{name}_at{number} = getelementptr i8, ptr %object{number}, i64 {offset}",
        f"  %{name}{number} = load {kind}, ptr %{name}_at{number}",
    ]


def _check(number: int, tensor: Mapping[str, Any], written: bool) -> list[str]:
    """Returns code that goes on to the next array if this one is plain, contiguous, aligned and of the kernel's type and shape."""
    n, shape = number, tuple(tensor["shape"])
    wanted = _CONTIGUOUS | _ALIGNED | (_WRITEABLE if written else 0)
    lines = [f"check{n}:"] if written else [f"check{n}:", *_item(n)]
    lines += _field(n, "type", "i64", _TYPE)
    lines += [f"  %array{n} = icmp eq i64 %type{n}, {id(np.ndarray)}", f"  br i1 %array{n}, label %fields{n}, label %refused"]
    lines += [f"fields{n}:", *_field(n, "data", "i64", _DATA), *_field(n, "rank", "i32", _RANK), *_field(n, "flags", "i32", _FLAGS)]
    lines += [*_field(n, "dtype", "i64", _DTYPE), *_field(n, "shape", "ptr", _SHAPE)]
    tests = [f"icmp eq i32 %rank{n}, {len(shape)}", f"icmp eq i64 %dtype{n}, {id(numpy_dtype(tensor['dtype']))}"]
    lines += [f"  %set{n} = and i32 %flags{n}, {wanted}"]
    tests.append(f"icmp eq i32 %set{n}, {wanted}")
    lines += _all(f"fit{n}_", tests, f"sizes{n}")
    lines += [f"sizes{n}:"]
    tests = []
    for place, extent in enumerate(shape):
        lines += [f"  %extent_at{n}_{place} = getelementptr i8, ptr %shape{n}, i64 {8 * place}"]
        lines += [f"  %extent{n}_{place} = load i64, ptr %extent_at{n}_{place}"]
        tests.append(f"icmp eq i64 %extent{n}_{place}, {extent}")
    return lines + _all(f"size{n}_", tests, "apart" if written else f"check{n + 1}")


def _all(name: str, tests: Sequence[str], then: str) -> list[str]:
    """Returns code that goes on to `then` if every test holds."""
    if not tests:
        return [f"  br label %{then}"]
    lines = [f"  %{name}{i} = {test}" for i, test in enumerate(tests)]
    last = f"{name}0"
    for i in range(1, len(tests)):
        lines.append(f"  %{name}and{i} = and i1 %{last}, %{name}{i}")
        last = f"{name}and{i}"
    return [*lines, f"  br i1 %{last}, label %{then}, label %refused"]


def _apart(tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns code that goes on if the output shares no memory with an input."""
    out = len(tensors) - 1
    ends = [math.prod(t["shape"]) * ELEMENT_BYTES[t["dtype"]] for t in tensors]
    lines = ["apart:", *(f"  %end{n} = add i64 %data{n}, {size}" for n, size in enumerate(ends))]
    for n in range(out):
        lines += [f"  %before{n} = icmp ule i64 %end{n}, %data{out}", f"  %behind{n} = icmp ule i64 %end{out}, %data{n}"]
    return [*lines, *_all("free", [f"or i1 %before{n}, %behind{n}" for n in range(out)], "ready"), "ready:"]


def _describe(number: int, tensor: Mapping[str, Any]) -> list[str]:
    """Returns code that fills the DLTensor of an array: data, device, rank 1, type, shape, no strides, no offset."""
    n, dtype = number, tensor["dtype"]
    code = TYPE_CODES[dtype.rstrip("0123456789")] | 8 * ELEMENT_BYTES[dtype] << 8 | 1 << 16
    lines = [f"  %size{n} = getelementptr i64, ptr %sizes, i64 {n}", f"  store i64 {math.prod(tensor['shape'])}, ptr %size{n}"]
    lines += [f"  %tensor{n} = getelementptr i8, ptr %tensors, i64 {n * _TENSOR_BYTES}"]
    fields = (f"i64 %data{n}", f"i64 {CPU}", f"i64 {1 | code << 32}", f"ptr %size{n}", "ptr null", "i64 0")
    for place, value in enumerate(fields):
        lines += [
            f"  %field{n}_{place} = getelementptr i8, ptr %tensor{n}, i64 {8 * place}",
            f"  store {value}, ptr %field{n}_{place}",
        ]
    return lines


def _pass(place: int, descriptor: str) -> list[str]:
    """Returns code that sets one argument of the kernel: the address of a descriptor."""
    lines = [f"  %kind{place} = getelementptr i8, ptr %call, i64 {16 * place}", f"  store i64 {_POINTER}, ptr %kind{place}"]
    at = f"  %value{place} = getelementptr i8, ptr %call, i64 {16 * place + 8}"
    return [*lines, at, f"  store ptr {descriptor}, ptr %value{place}"]
