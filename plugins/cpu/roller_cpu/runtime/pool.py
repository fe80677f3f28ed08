"""TVM's thread pool, which runs parallel loops, without TVM's Python packages: importing them takes seconds.

Only two libraries of TVM are loaded, a few megabytes. TVM, if it is imported later or before, uses the same ones.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from roller.plugin import DeviceUnavailableError, LaunchError

_LIBRARIES = (("tvm_ffi", "libtvm_ffi.so"), ("tvm", "libtvm_runtime.so"))  # package, file in its folder `lib`; in this order
_CONFIGURE = b"runtime.config_threadpool"
_INTEGER = 1  # TVM's type index of a 64-bit integer
_ALL_CORES = 1  # its affinity mode in which threads may run on any core


class _Value(ctypes.Structure):
    """A value in TVM's calling convention."""

    _fields_ = (("kind", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_int64))


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


@cache
def libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Returns TVM's libraries for functions and for the pool; `DeviceUnavailableError` if they are not installed."""
    first, second = (_loaded(package, file) for package, file in _LIBRARIES)
    return first, second


def _loaded(package: str, file: str) -> ctypes.CDLL:
    found = find_spec(package)
    folders = (found.submodule_search_locations or ()) if found else ()
    for folder in folders:
        if (path := Path(folder, "lib", file)).is_file():
            return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    raise DeviceUnavailableError(f"kernels with parallel loops need {file} of the package {package}: pip install apache-tvm")


def configure(count: int) -> None:
    """Lets parallel loops of the calling thread use `count` threads; starts the pool where there is none."""
    _function()(_ALL_CORES, count)


@cache
def _function() -> _Configure:
    return _Configure()


class _Configure:
    """TVM's function that configures the pool."""

    def __init__(self) -> None:
        self._ffi = libraries()[0]
        self._handle = ctypes.c_void_p()
        name = _Bytes(_CONFIGURE, len(_CONFIGURE))
        if self._ffi.TVMFFIFunctionGetGlobal(ctypes.byref(name), ctypes.byref(self._handle)) or not self._handle:
            raise LaunchError(f"TVM's runtime has no {_CONFIGURE.decode()}")

    def __call__(self, *values: int) -> None:
        given = (_Value * len(values))(*(_Value(_INTEGER, 0, value) for value in values))
        result = _Value()
        if self._ffi.TVMFFIFunctionCall(self._handle, given, ctypes.c_int32(len(values)), ctypes.byref(result)):
            raise LaunchError(f"TVM's thread pool does not take {values[-1]} threads")
