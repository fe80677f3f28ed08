"""Arrays in the memory of fake GPUs, of libraries that are invented or stand in for torch and CuPy."""

from __future__ import annotations

import copy
import ctypes
import sys
import types
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from roller.runtime.arrays import numpy_dtype


class _DLTensor(ctypes.Structure):
    _fields_ = (
        *(("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32)),
        *(("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule = _NEW(("PyCapsule_New", ctypes.pythonapi))
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CODES = {"float16": 2, "float32": 2, "float64": 2, "bfloat16": 4, "int8": 0, "int32": 0, "bool": 6}


class Array:
    """An array on a GPU of a library that is unknown but for DLPack."""

    def __init__(self, gpus: Any, values: Any, number: int = 0, shift: int = 0, strides: Sequence[int] | None = None) -> None:
        host = np.ascontiguousarray(values)
        self.gpus, self.shape, self.dtype, self.number = gpus, host.shape, host.dtype, number
        self.address = gpus.place(host.nbytes + shift, number) + shift
        ctypes.memmove(self.address, host.ctypes.data, host.nbytes)
        self.strides = strides
        self.streams: list[Any] = []
        self.lent = 0

    def values(self) -> np.ndarray[Any, Any]:
        """What lies there now."""
        return np.frombuffer(ctypes.string_at(self.address, int(np.prod(self.shape)) * self.dtype.itemsize), self.dtype).reshape(
            self.shape
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.gpus.dlpack_device, self.number

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        self.streams.append(stream)
        rank = len(self.shape)
        shape = (ctypes.c_int64 * max(rank, 1))(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * rank)(*self.strides)
        code = _CODES[self.dtype.name]
        tensor = _DLTensor(
            self.address, self.gpus.dlpack_device, self.number, rank, code, 8 * self.dtype.itemsize, 1, shape, strides, 0
        )
        held: list[Any] = []

        def release(_: int) -> None:
            self.lent -= 1
            held.clear()

        deleter = _DELETER(release)
        managed = _Managed(tensor, None, ctypes.cast(deleter, ctypes.c_void_p))
        held += [managed, shape, strides, deleter]
        _alive.append(held)
        self.lent += 1
        return _capsule(ctypes.addressof(managed), b"dltensor", None)


_alive: list[Any] = []  # a deleter must not be freed while it runs


class Namespaced(Array):
    """As `Array`, of a library that takes results by DLPack, on a stream of its own, as JAX does."""

    stream = 0

    def __array_namespace__(self) -> Any:
        return types.SimpleNamespace(from_dlpack=lambda given: tvm_ffi.from_dlpack(given.__dlpack__(stream=self.stream)))


class Interfaced:
    """An array with the CUDA array interface alone."""

    def __init__(self, inner: Array, stream: int | None = None, readonly: bool = False) -> None:
        self.inner = inner
        self.__cuda_array_interface__ = {
            "shape": inner.shape,
            "typestr": inner.dtype.str,
            "data": (inner.address, readonly),
            "strides": None,
            "stream": stream,
            "version": 3,
        }


class Tensor(Array):
    """As torch's."""

    requires_grad = False

    def detach(self) -> Any:
        """The same memory, without a record of what is done to it."""
        other = copy.copy(self)
        other.requires_grad = False
        return other

    def __init__(self, *given: Any, contiguous: bool = True, **named: Any) -> None:
        super().__init__(*given, **named)
        self._numpy_dtype, self._contiguous = self.dtype, contiguous
        self.device = types.SimpleNamespace(index=self.number)
        self.is_cuda, self.is_cpu = True, False

    def __getattribute__(self, name: str) -> Any:
        if name == "dtype" and "_numpy_dtype" in self.__dict__:
            return f"torch.{self._numpy_dtype.name}"
        return super().__getattribute__(name)

    def values(self) -> np.ndarray[Any, Any]:
        size = int(np.prod(self.shape)) * self._numpy_dtype.itemsize
        return np.frombuffer(ctypes.string_at(self.address, size), self._numpy_dtype).reshape(self.shape)

    def data_ptr(self) -> int:
        return self.address

    def is_contiguous(self) -> bool:
        return self._contiguous

    def is_neg(self) -> bool:
        return False


class CupyArray(Array):
    """As CuPy's."""

    def __array_namespace__(self) -> Any:
        return sys.modules["cupy"]


Tensor.__module__, CupyArray.__module__ = "torch", "cupy"


def fake_torch(monkeypatch: pytest.MonkeyPatch, gpus: Any) -> Any:
    """torch as far as kernels know it. `current`: the handle of its current stream; `made_for`: the stream of each new tensor."""
    torch = types.ModuleType("torch")
    torch.current, torch.made_for = 0, []  # type: ignore[attr-defined]
    torch.is_grad_enabled = lambda: True  # type: ignore[attr-defined]

    @contextmanager
    def using(stream: Any) -> Any:
        before, torch.current = torch.current, stream.cuda_stream  # type: ignore[attr-defined]
        yield
        torch.current = before  # type: ignore[attr-defined]

    def empty(shape: Any, dtype: str, device: Any) -> Tensor:
        torch.made_for.append(torch.current)  # type: ignore[attr-defined]
        return Tensor(gpus, np.full(shape, -1, numpy_dtype(dtype.removeprefix("torch."))), device.index)

    def handle(number: int, device: Any = None) -> Any:
        return types.SimpleNamespace(cuda_stream=number)

    torch.cuda = types.SimpleNamespace(stream=using, ExternalStream=handle)  # type: ignore[attr-defined]
    torch.cuda.current_stream = lambda _: handle(torch.current)  # type: ignore[attr-defined]
    torch.cuda.default_stream = lambda _: handle(0)  # type: ignore[attr-defined]
    torch.device = lambda kind, index: types.SimpleNamespace(index=index)  # type: ignore[attr-defined]
    torch.empty, torch.Tensor = empty, Tensor  # type: ignore[attr-defined]
    for name in _CODES:
        setattr(torch, name, f"torch.{name}")
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy as far as kernels know it. `current`: the handle of its current stream."""
    cupy = types.ModuleType("cupy")
    cupy.current = 0  # type: ignore[attr-defined]

    @contextmanager
    def device(_: int) -> Any:
        yield

    cupy.cuda = types.SimpleNamespace(Device=device, get_current_stream=lambda: types.SimpleNamespace(ptr=cupy.current))  # type: ignore[attr-defined]
    cupy.from_dlpack = lambda given: tvm_ffi.from_dlpack(given.__dlpack__(stream=cupy.current or 1))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy
