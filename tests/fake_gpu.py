"""GPUs for tests: `fake_driver.cpp` in the place of the driver's library, kernels on the emulator, and arrays of invented libraries."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from roller.arrays import numpy_dtype
from roller.chip import load_spec
from roller.hardware import HardwareSpec
from roller.kernel import Artifact
from roller_cuda import driver, emulator, gpu
from roller_cuda.chip import described

_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_uint)


def _cuda_header() -> Path | None:
    try:
        files = metadata.files("nvidia-cuda-runtime-cu12") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.name == "cuda.h"), None)


def why_not() -> str:
    """Why there can be no fake driver here; empty where there can."""
    if shutil.which("g++") is None:
        return "the fake driver needs g++"
    if _cuda_header() is None:
        return "the fake driver needs cuda.h of nvidia-cuda-runtime-cu12"
    if Path("/proc/driver/nvidia/version").exists():
        return "this machine has a driver of its own"
    return ""


@cache
def _library() -> ctypes.CDLL:
    """The fake, loaded under the name by which cuda-bindings looks for the driver: whoever asks for that name now gets it."""
    header = _cuda_header()
    assert header is not None
    folder = Path(tempfile.mkdtemp(prefix="roller-fake-driver-"))
    try:
        target = folder / "libcuda.so.1"
        source = Path(__file__).with_name("fake_driver.cpp")
        call = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{header.parent}", "-Wl,-soname,libcuda.so.1", "-o", target, source]
        subprocess.run([*map(str, call)], check=True)
        library = ctypes.CDLL(str(target))
    finally:
        shutil.rmtree(folder)
    for name in ("fake_call", "fake_fault", "fake_map"):
        getattr(library, name).restype = ctypes.c_char_p
    for name in ("fake_call", "fake_fault", "fake_map", "fake_capacity", "fake_device_of"):
        getattr(library, name).argtypes = [ctypes.c_size_t]
    library.fake_live.restype = library.fake_pending.restype = ctypes.c_size_t
    return library


class Gpus:
    """Two GPUs like the chip of a spec. `streams`: handles made for tests, two a GPU."""

    def __init__(self, count: int = 2, chip: str = "cuda:a100") -> None:
        self._lib = _library()
        self._emulated: dict[str, ctypes.CDLL] = {}
        self._run = _RUN(self._start)
        self._lib.fake_reset(count, self._run)
        for number in range(count):
            self.become(number, load_spec(chip))
        gpu._made.cache_clear()
        driver._Process.ready = driver._Process.forked = False

    def become(self, number: int, spec: HardwareSpec, **changed: int) -> None:
        """A GPU has what a spec says; `changed`: attributes that differ from it."""
        like = described(spec)
        figures = like.figures
        bus = 5120
        found = {
            "COMPUTE_CAPABILITY_MAJOR": like.capability[0],
            "COMPUTE_CAPABILITY_MINOR": like.capability[1],
            "MULTIPROCESSOR_COUNT": int(figures["multiprocessors"]),
            "L2_CACHE_SIZE": int(figures["L2 bytes"]),
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": int(figures["shared memory bytes"]),
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": int(figures["shared memory bytes"]) - 1024,
            "GLOBAL_MEMORY_BUS_WIDTH": bus,
            "MEMORY_CLOCK_RATE": round(figures["GB/s"] * 1e9 / 2 / (bus / 8) / 1e3),
            "CLOCK_RATE": round(figures["GHz"] * 1e6),
            "MAX_GRID_DIM_X": 2**31 - 1,
            "MAX_THREADS_PER_BLOCK": 1024,
            "MEMORY_POOLS_SUPPORTED": 1,
            "CLUSTER_LAUNCH": int(like.capability[0] >= 9),
            **changed,
        }
        for name, value in found.items():
            which = int(driver.constant(f"CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{name}"))
            self._lib.fake_attribute(number, which, value)
        self._lib.fake_attribute(number, -1, round(figures["memory bytes"] * 0.99) >> 20)  # MiB, less what the system keeps

    def plan(self, artifact: Artifact, static_shared: int = 0) -> None:
        """The kernels of an artifact can be launched: they run on the emulator, from the text that the cubin was made of."""
        text = str(artifact.launch["text"])
        library = emulator.Emulator(artifact)._library
        for name, given in re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\((.*?)\)", text, re.DOTALL):
            self.plan_by_hand(name, "p" * len(given.split(",")), static_shared)
            self._emulated[name] = library

    def plan_by_hand(self, name: str, parameters: str, static_shared: int = 0) -> None:
        """A kernel that does nothing: "p" for a pointer, "m" for a tensor map."""
        self._lib.fake_plan(name.encode(), parameters.encode(), static_shared)

    def _start(self, name: bytes, arguments: Any, blocks: int, threads: int) -> int:
        library = self._emulated.get(name.decode())
        return 0 if library is None else int(getattr(library, f"emulate_{name.decode()}")(arguments, blocks, threads, 0, 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, f"fake_{name}")

    @property
    def calls(self) -> list[str]:
        """What was asked of the driver, in order."""
        return self._listed(self._lib.fake_call)

    @property
    def faults(self) -> list[str]:
        """What the driver's documentation does not allow."""
        return self._listed(self._lib.fake_fault)

    def since(self, mark: int) -> list[str]:
        """Calls after the first so many, without those that only look."""
        return [call for call in self.calls[mark:] if not re.match(r"cu(Ctx(Get|Push|Pop)|DeviceGet|Pointer|Driver|Init|Event|GetProc)", call)]

    @staticmethod
    def _listed(get: Callable[[int], bytes | None]) -> list[str]:
        found, index = [], 0
        while (each := get(index)) is not None:
            found.append(each.decode())
            index += 1
        return found

    def new_stream(self, number: int = 0) -> int:
        """A stream of somebody else's on a GPU."""
        with gpu.gpu(number).current():
            return int(driver.call("cuStreamCreate", 0))

    def place(self, size: int, number: int = 0) -> int:
        """Memory of somebody else's on a GPU."""
        with gpu.gpu(number).current():
            return int(driver.call("cuMemAlloc", max(size, 1)))


# --- arrays ----------------------------------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = (
        *(("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32)),
        *(("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CODES = {"float16": 2, "float32": 2, "float64": 2, "bfloat16": 4, "int8": 0, "int32": 0, "bool": 6}


class Array:
    """An array on a GPU of a library that is unknown but for DLPack."""

    def __init__(self, gpus: Gpus, values: Any, number: int = 0, shift: int = 0, strides: Sequence[int] | None = None) -> None:
        host = np.ascontiguousarray(values)
        self.gpus, self.shape, self.dtype, self.number = gpus, host.shape, host.dtype, number
        self.address = gpus.place(host.nbytes + shift, number) + shift
        ctypes.memmove(self.address, host.ctypes.data, host.nbytes)
        self.strides = strides
        self.streams: list[Any] = []
        self.lent = 0

    def values(self) -> np.ndarray[Any, Any]:
        """What lies there now."""
        return np.frombuffer(ctypes.string_at(self.address, int(np.prod(self.shape)) * self.dtype.itemsize), self.dtype).reshape(self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        self.streams.append(stream)
        rank = len(self.shape)
        shape = (ctypes.c_int64 * max(rank, 1))(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * rank)(*self.strides)
        code = _CODES[self.dtype.name]
        tensor = _DLTensor(self.address, 2, self.number, rank, code, 8 * self.dtype.itemsize, 1, shape, strides, 0)
        held: list[Any] = []

        def release(_: int) -> None:
            self.lent -= 1
            held.clear()

        deleter = _DELETER(release)
        managed = _Managed(tensor, None, ctypes.cast(deleter, ctypes.c_void_p))
        held += [managed, shape, strides, deleter]
        _alive.append(held)
        self.lent += 1
        ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
        return ctypes.pythonapi.PyCapsule_New(ctypes.byref(managed), ctypes.c_char_p(b"dltensor"), None)


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


def fake_torch(monkeypatch: pytest.MonkeyPatch, gpus: Gpus) -> Any:
    """torch as far as kernels know it. `current`: the handle of its current stream; `made_for`: the stream of each new tensor."""
    torch = types.ModuleType("torch")
    torch.current, torch.made_for = 0, []  # type: ignore[attr-defined]

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

    torch.cuda = types.SimpleNamespace(current_stream=lambda n: handle(torch.current), stream=using, ExternalStream=handle)  # type: ignore[attr-defined]
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
