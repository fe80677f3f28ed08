"""Images in memory: copied, bound to addresses, and protected before anything runs. No page is ever writable and executable."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from roller.plugin import LaunchError
from roller_cpu.runtime import pool

_LIBRARIES = (None, "libm.so.6", "libgcc_s.so.1")  # the process itself, C's mathematics, helpers of C compilers
_OF_TVM = "TVM"  # first letters of functions of TVM's runtime
_PROTECTIONS = (mmap.PROT_READ | mmap.PROT_EXEC, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)  # code, constants, data
_FAILED = ctypes.c_void_p(-1).value


_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_FASTCALL = 0x80  # Python's METH_FASTCALL: a function of self, a vector of arguments and their number


class _Method(ctypes.Structure):
    """Python's `PyMethodDef`."""

    _fields_ = (("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


def of_python(name: str) -> int:
    """Returns the address of a function of Python's C interface."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


class MappedImage:
    """An image that is ready to run; its memory is freed with the last of its functions."""

    def __init__(self, content: bytes, layout: Mapping[str, Any]) -> None:
        """Maps an image as `roller_cpu.toolchain.linking` describes it; `LaunchError` if that is impossible."""
        if layout.get("sha256") != hashlib.sha256(content).hexdigest():
            raise LaunchError("the kernel's machine code is not what was built: it does not match its checksum; compile it again")
        _check(content, layout)
        segments, self._exports = layout["segments"], layout["exports"]
        self._methods: dict[str, _Method] = {}
        self._bytes = total = sum(segments)
        self._base = _mapped(total)
        self._memory = weakref.finalize(self, _libc().munmap, ctypes.c_void_p(self._base), ctypes.c_size_t(total))
        self._memory.atexit = False  # threads of a pool may still run
        ctypes.memmove(self._base, content, len(content))
        for where, target in layout["addresses"]:
            self._write(where, self._base + target)
        for name, slots in layout["imports"].items():
            for slot in slots:
                self._write(slot, _address(name))
        begin = self._base
        for size, protection in zip(segments, _PROTECTIONS, strict=True):
            if size and _libc().mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(size), protection):
                raise LaunchError(f"the system does not let machine code be mapped: {os.strerror(ctypes.get_errno())}")
            begin += size

    def function(self, name: str) -> Callable[[int], int]:
        """Returns an exported function of one address; it runs without the interpreter's lock."""
        found = _FUNCTION(self._base + self._exports[name])
        found.image = self  # type: ignore[attr-defined]  # the memory lives as long as the function
        return found

    def builtin(self, name: str) -> Callable[..., Any]:
        """Returns an exported function of Python's calling convention (`METH_FASTCALL`): calls take less than through ctypes."""
        method = self._methods[name] = _Method(name.encode(), self._base + self._exports[name], _FASTCALL, None)
        create = ctypes.pythonapi.PyCFunction_NewEx
        create.restype, create.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        found: Callable[..., Any] = create(ctypes.addressof(method), self, None)  # it holds this image, and so its own code
        return found

    def _write(self, where: int, word: int) -> None:
        ctypes.memmove(self._base + where, struct.pack("<Q", word), 8)


def _check(content: bytes, layout: Mapping[str, Any]) -> None:
    """Raises `LaunchError` for a layout that reaches beyond its own memory."""
    try:
        total = sum(layout["segments"])
        slots = [slot for slots in layout["imports"].values() for slot in slots]
        words = [*slots, *(where for where, _ in layout["addresses"])]
        places = [*layout["exports"].values(), *(target for _, target in layout["addresses"])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LaunchError(f"the kernel's machine code has no layout: {error}; compile it again") from error
    inside = all(0 <= word <= total - 8 for word in words) and all(0 <= place <= total for place in places)
    if len(content) > total or not inside:
        raise LaunchError("the layout of the kernel's machine code reaches beyond it; compile it again")


def _mapped(size: int) -> int:
    place = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if place == _FAILED:
        raise LaunchError(f"no memory for {size} bytes of machine code: {os.strerror(ctypes.get_errno())}")
    return int(place)


@cache
def _libc() -> ctypes.CDLL:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    return found


@cache
def _address(name: str) -> int:
    """Returns the address of an imported function; `LaunchError` if no library has it."""
    for library in [pool.libraries()[1]] if name.startswith(_OF_TVM) else _opened():
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise LaunchError(f"the kernel calls {name}, which no library of this machine has; compile it again, here")


def _opened() -> Sequence[ctypes.CDLL]:
    found = []
    for name in _LIBRARIES:
        try:
            found.append(ctypes.CDLL(name))
        except OSError:
            continue
    return found
