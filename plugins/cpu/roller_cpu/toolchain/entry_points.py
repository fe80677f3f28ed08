"""Entry points of a kernel as LLVM IR: functions of plain addresses, and a fast way in for NumPy arrays.

TVM's functions take descriptors of arrays (`DLTensor`) in its calling convention. These functions fill them on the stack:

- `roller_run(addresses)`: addresses of the inputs and the output; returns TVM's error code, 0 for none.
- `roller_prepack(addresses)`: addresses of the constants; fills the panels of constants.
- `roller_shortcut(self, arguments, count)`: a function of Python (`METH_FASTCALL`) of the tuple of inputs and the output. It
  returns True once it has computed, and False where the number of inputs differs, an array does not match the kernel's argument, or
  the kernel failed. Reading types, shapes, flags and addresses through Python takes longer than a small kernel runs, so this code
  reads the items of a tuple and the fields of `PyArrayObject`, which NumPy's ABI fixes. The kernel runs without the interpreter's
  lock.
- `roller_bind(table)`: called once, before all others, with a table of 64-bit words that exists as long as the code: the addresses
  of the functions in `OF_PYTHON`, the `id()` of `numpy.ndarray`, that of the data type of each input and the output, then the
  addresses of the arrays that the kernel takes between its inputs and its output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from roller.plugin import ELEMENT_BYTES

RUN, PREPACK, SHORTCUT, BIND = "roller_run", "roller_prepack", "roller_shortcut", "roller_bind"
OF_PYTHON = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyBool_FromLong")  # functions that the shortcut calls
ITEMS, COUNT = 24, 16  # byte offsets in PyTupleObject: the items, their number
# Byte offsets of the fields of PyArrayObject.
TYPE, DATA, RANK, SHAPE, DTYPE, FLAGS = 8, 16, 24, 32, 56, 64
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # NumPy's flags
_TYPE_CODES: Mapping[str, int] = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # DLPack's type codes
_CPU = 1  # DLPack's device
_TENSOR_BYTES = 48  # a DLTensor
_INTEGER, _POINTER = 1, 7  # TVM's type indices: a 64-bit integer, a pointer to a DLTensor
_TABLE = "roller_table"

Tensors = Sequence[Mapping[str, Any]]  # shape and dtype of each


def text(launch: Mapping[str, Any], entry: str, processor: str, *, for_tvm: bool = False) -> str:
    """Returns the IR to append to a kernel's. `for_tvm`: with functions that TVM finds by name, in its calling convention."""
    ends = [*launch["inputs"], launch["output"]]
    fixed = [*_direct(launch), *map(_flat_panel, launch.get("panels", ()))]
    first = len(OF_PYTHON) + 1 + len(ends)  # place of the first fixed address in the table
    inputs = [(t, f"addresses {n}") for n, t in enumerate(ends)]
    between = [(t, f"table {first + n}") for n, t in enumerate(fixed)]
    parts = [f"@{_TABLE} = internal global ptr null", _bind()]
    parts.append(_calls(RUN, entry, [*inputs[:-1], *between, inputs[-1]], processor))
    called = [BIND, RUN]
    if launch.get("panels", ()):
        panels = between[len(between) - len(launch.get("panels", ())) :]
        held = [(t, f"addresses {n}") for n, t in enumerate(launch.get("constants", ()))]
        parts.append(_calls(PREPACK, "prepack", [*held, *panels], processor))
        called.append(PREPACK)
    if has_shortcut(launch) and not for_tvm:
        parts.append(_shortcut(ends, processor))
    if for_tvm:
        parts += [_adapter(name, processor) for name in called]
    return "\n".join([*parts, ""])


def names(launch: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the functions of these names that a kernel has."""
    return (BIND, RUN, *((PREPACK,) if launch.get("panels", ()) else ()), *((SHORTCUT,) if has_shortcut(launch) else ()))


def has_shortcut(launch: Mapping[str, Any]) -> bool:
    """Returns whether there is a fast way in: not for empty arrays, nor for a kernel that requires aligned ones."""
    ends = [*launch["inputs"], launch["output"]]
    return launch.get("alignment") == "element" and all(0 not in t["shape"] for t in ends)


def _direct(launch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the constants that the kernel reads unpacked."""
    named = {t["name"]: t for t in launch.get("constants", ())}
    return [named[name] for name in launch.get("direct_constants", ())]


def _flat_panel(panel: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"shape": [panel["elements"]], "dtype": panel["dtype"]}


def _bind() -> str:
    return f"define dllexport i32 @{BIND}(ptr %table) nounwind {{\n  store ptr %table, ptr @{_TABLE}\n  ret i32 0\n}}"


def _adapter(name: str, processor: str) -> str:
    """Returns a function of one address in TVM's calling convention: 16-byte variants with the value in the second half."""
    signature = f"i32 @__tvm_ffi_{name}(ptr %self, ptr %args, i32 %count, ptr %result)"
    lines = [f'define dllexport {signature} nounwind "target-cpu"="{processor}" {{']
    lines += [
        "  %at = getelementptr i8, ptr %args, i64 8",
        "  %value = load ptr, ptr %at",
        f"  %code = call i32 @{name}(ptr %value)",
    ]
    lines += ["  %wide = sext i32 %code to i64", f"  store i64 {_INTEGER}, ptr %result"]
    return "\n".join(
        [*lines, "  %place = getelementptr i8, ptr %result, i64 8", "  store i64 %wide, ptr %place", "  ret i32 0", "}"]
    )


# --- a call of TVM's function ---------------------------------------------------------------------------------------------


def _calls(name: str, entry: str, arguments: Sequence[tuple[Mapping[str, Any], str]], processor: str) -> str:
    """Returns a function that calls TVM's; each argument is a tensor and the place of its address: in which words, and where."""
    count = len(arguments)
    lines = [f'define dllexport i32 @{name}(ptr %addresses) nounwind "target-cpu"="{processor}" {{', "entry:"]
    lines += [f"  %tensors = alloca [{count * _TENSOR_BYTES} x i8], align 16", f"  %sizes = alloca [{count} x i64], align 16"]
    lines += [f"  %call = alloca [{16 * count} x i8], align 16", "  %given = alloca i64, i32 2, align 16"]
    lines.append(f"  %table = load ptr, ptr @{_TABLE}")
    for n, (tensor, place) in enumerate(arguments):
        lines += _described(n, tensor, *place.split())
    lines += ["  store i64 0, ptr %given", f"  %code = call i32 @__tvm_ffi_{entry}(ptr null, ptr %call, i32 {count}, ptr %given)"]
    return "\n".join([*lines, "  ret i32 %code", "}"])


def _described(number: int, tensor: Mapping[str, Any], words: str, place: str) -> list[str]:
    """Returns code that fills a DLTensor (data, device, rank 1, type, shape, no strides, no offset), and passes its address."""
    n, dtype, elements = number, tensor["dtype"], max(math.prod(tensor["shape"]), 1)
    code = _TYPE_CODES[dtype.rstrip("0123456789")] | 8 * ELEMENT_BYTES[dtype] << 8 | 1 << 16
    lines = [f"  %from{n} = getelementptr i64, ptr %{words}, i64 {place}", f"  %data{n} = load i64, ptr %from{n}"]
    lines += [f"  %size{n} = getelementptr i64, ptr %sizes, i64 {n}", f"  store i64 {elements}, ptr %size{n}"]
    lines += [f"  %tensor{n} = getelementptr i8, ptr %tensors, i64 {n * _TENSOR_BYTES}"]
    fields = (f"i64 %data{n}", f"i64 {_CPU}", f"i64 {1 | code << 32}", f"ptr %size{n}", "ptr null", "i64 0")
    for at, value in enumerate(fields):
        lines += [f"  %field{n}_{at} = getelementptr i8, ptr %tensor{n}, i64 {8 * at}", f"  store {value}, ptr %field{n}_{at}"]
    lines += [f"  %kind{n} = getelementptr i8, ptr %call, i64 {16 * n}", f"  store i64 {_POINTER}, ptr %kind{n}"]
    return [*lines, f"  %value{n} = getelementptr i8, ptr %call, i64 {16 * n + 8}", f"  store ptr %tensor{n}, ptr %value{n}"]


# --- the shortcut ---------------------------------------------------------------------------------------------------------


def _shortcut(tensors: Tensors, processor: str) -> str:
    count = len(tensors)
    signature = f"ptr @{SHORTCUT}(ptr %self, ptr %arguments, i64 %argument_count)"
    lines = [f'define dllexport {signature} nounwind "target-cpu"="{processor}" {{', "entry:"]
    lines += [f"  %addresses = alloca [{count} x i64], align 16", f"  %table = load ptr, ptr @{_TABLE}"]
    lines += [*_word("release", 0), *_word("acquire", 1), *_word("said", 2), *_word("plain", len(OF_PYTHON), "i64")]
    lines += ["  %inputs = load ptr, ptr %arguments", "  %output_at = getelementptr i8, ptr %arguments, i64 8"]
    lines += [f"  %object{count - 1} = load ptr, ptr %output_at"]
    lines += [f"  %given_at = getelementptr i8, ptr %inputs, i64 {COUNT}", "  %given_count = load i64, ptr %given_at"]
    lines += [f"  %all = icmp eq i64 %given_count, {count - 1}", "  br i1 %all, label %check0, label %refused"]
    for number, tensor in enumerate(tensors):
        lines += _check(number, tensor, written=number == count - 1)
    lines += _apart(tensors)
    for n in range(count):
        lines += [f"  %address{n} = getelementptr i64, ptr %addresses, i64 {n}", f"  store i64 %data{n}, ptr %address{n}"]
    lines += ["  %thread = call ptr %release()", f"  %code = call i32 @{RUN}(ptr %addresses)", "  call void %acquire(ptr %thread)"]
    lines += ["  %well = icmp eq i32 %code, 0", "  br i1 %well, label %done, label %refused"]
    for label, value in (("done", 1), ("refused", 0)):
        lines += [f"{label}:", f"  %answer{value} = call ptr %said(i64 {value})", f"  ret ptr %answer{value}"]
    return "\n".join([*lines, "}"])


def _word(name: str, place: int, kind: str = "ptr") -> list[str]:
    """Returns code that loads a word of the table."""
    return [f"  %{name}_at = getelementptr i64, ptr %table, i64 {place}", f"  %{name} = load {kind}, ptr %{name}_at"]


def _item(number: int) -> list[str]:
    """Returns code that loads one of the inputs."""
    at = f"  %item{number} = getelementptr i8, ptr %inputs, i64 {ITEMS + 8 * number}"
    return [at, f"  %object{number} = load ptr, ptr %item{number}"]


def _field(number: int, name: str, kind: str, offset: int) -> list[str]:
    return [
        f"  %{name}_at{number} = getelementptr i8, ptr %object{number}, i64 {offset}",
        f"  %{name}{number} = load {kind}, ptr %{name}_at{number}",
    ]


def _check(number: int, tensor: Mapping[str, Any], written: bool) -> list[str]:
    """Returns code that goes on to the next array if this one is plain, contiguous, aligned and of the kernel's type and shape."""
    n, shape = number, tuple(tensor["shape"])
    wanted = CONTIGUOUS | ALIGNED | (WRITEABLE if written else 0)
    lines = [f"check{n}:"] if written else [f"check{n}:", *_item(n)]
    lines += _field(n, "type", "i64", TYPE)
    lines += [f"  %array{n} = icmp eq i64 %type{n}, %plain", f"  br i1 %array{n}, label %fields{n}, label %refused"]
    lines += [f"fields{n}:", *_field(n, "data", "i64", DATA), *_field(n, "rank", "i32", RANK), *_field(n, "flags", "i32", FLAGS)]
    lines += [*_field(n, "dtype", "i64", DTYPE), *_field(n, "shape", "ptr", SHAPE)]
    lines += [
        f"  %known_at{n} = getelementptr i64, ptr %table, i64 {len(OF_PYTHON) + 1 + n}",
        f"  %known{n} = load i64, ptr %known_at{n}",
    ]
    lines.append(f"  %set{n} = and i32 %flags{n}, {wanted}")
    tests = [f"icmp eq i32 %rank{n}, {len(shape)}", f"icmp eq i64 %dtype{n}, %known{n}", f"icmp eq i32 %set{n}, {wanted}"]
    lines += [*_all(f"fit{n}_", tests, f"sizes{n}"), f"sizes{n}:"]
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


def _apart(tensors: Tensors) -> list[str]:
    """Returns code that goes on if the output shares no memory with an input."""
    out = len(tensors) - 1
    ends = [math.prod(t["shape"]) * ELEMENT_BYTES[t["dtype"]] for t in tensors]
    lines = ["apart:", *(f"  %end{n} = add i64 %data{n}, {size}" for n, size in enumerate(ends))]
    for n in range(out):
        lines += [f"  %before{n} = icmp ule i64 %end{n}, %data{out}", f"  %behind{n} = icmp ule i64 %end{out}, %data{n}"]
    return [*lines, *_all("free", [f"or i1 %before{n}, %behind{n}" for n in range(out)], "ready"), "ready:"]
