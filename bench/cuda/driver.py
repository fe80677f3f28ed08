"""The CUDA driver through ctypes: just what loading, launching and timing kernels needs. Every return code is checked.

It works in the primary context of a GPU, which torch uses too, so addresses and streams of the one are good for the other.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

LIBRARY = "libcuda.so.1"
SUCCESS, NOT_LOADED, NO_SYMBOL = 0, "CUDA_ERROR_NO_DRIVER", "CUDA_ERROR_NO_SYMBOL"
# After these the context is lost: nothing else runs in this process.
FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE",
        "INVALID_PC", "HARDWARE_STACK_ERROR", "ASSERT", "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED", "UNKNOWN",
    )
)  # fmt: skip

# CUdevice_attribute
MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR = 16, 38, 75, 76
SHARED_OPTIN_BYTES = 97
CLOCKS_KHZ: Mapping[str, int] = {"clock_mhz": 13, "memory_clock_mhz": 36}
# CUfunction_attribute
MAX_DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTER = 8, 14
STATIC_SHARED_BYTES, PORTABLE_CLUSTER = 48 << 10, 8  # beyond these a kernel must ask
CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
MAP_TYPES: Mapping[str, int] = {
    "uint8": 0, "int8": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 11,
}  # fmt: skip
MAP_SWIZZLES: Mapping[int, int] = {0: 0, 32: 1, 64: 2, 128: 3}
MAP_PROMOTION_256 = 3
MAP_BYTES, MAP_ALIGNMENT = 128, 64

_P = POINTER
_HANDLE = _P(c_void_p)
SIGNATURES: Mapping[str, Sequence[Any]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_P(c_int),),
    "cuDeviceGetCount": (_P(c_int),),
    "cuDeviceGet": (_P(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (_P(c_size_t), c_int),
    "cuDeviceGetAttribute": (_P(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_HANDLE, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadData": (_HANDLE, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, _P(c_void_p), c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, _P(c_void_p), c_void_p),
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint32, c_void_p, _P(c_uint64), _P(c_uint64), _P(c_uint32), _P(c_uint32), c_int, c_int, c_int, c_int,
    ),
    "cuEventCreate": (_HANDLE, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (_P(c_float), c_void_p, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuStreamSynchronize": (c_void_p,),
}  # fmt: skip


class DriverError(RuntimeError):
    """A call that the driver refused, with the name of its code."""

    def __init__(self, call: str, code: int, name: str, text: str = "") -> None:
        super().__init__(f"{call}: {name} ({code})" + (f": {text}" if text else ""))
        self.call, self.code, self.name = call, code, name

    @property
    def fatal(self) -> bool:
        """Whether the process can do nothing more on the GPU."""
        return self.name in FATAL


class _ClusterAttribute(ctypes.Structure):
    """`CUlaunchAttribute` holding the extents of a cluster: the value is 64 bytes, of which they take the first twelve."""

    _fields_ = (("id", c_int), ("pad", c_int), ("x", c_uint), ("y", c_uint), ("z", c_uint), ("rest", c_ubyte * 52))


class _LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", _P(_ClusterAttribute)),
        ("count", c_uint),
    )


class Driver:
    """The driver, in the primary context of one GPU. `DriverError` where there is no driver, or no GPU."""

    def __init__(self, path: str = LIBRARY, ordinal: int = 0) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise DriverError("loading the driver", -1, NOT_LOADED, f"{error}; this needs a machine with an NVIDIA GPU") from error
        self._known: dict[str, Any] = {}
        self.ask("cuInit", 0)
        device, context = c_int(), c_void_p()
        self.ask("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device = device.value
        self.ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.ask("cuCtxSetCurrent", context)

    def ask(self, call: str, *arguments: Any) -> None:
        """One call; `DriverError` unless it succeeds, and where the driver is too old to know it."""
        function = self._known.get(call) or self._found(call)
        code = function(*arguments)
        if code != SUCCESS:
            raise DriverError(
                call, code, self._text("cuGetErrorName", code) or f"code {code}", self._text("cuGetErrorString", code)
            )

    def _found(self, call: str) -> Any:
        function = getattr(self._library, call, None)
        if function is None:
            raise DriverError(call, -1, NO_SYMBOL, "this driver is too old")
        function.argtypes, function.restype = SIGNATURES[call], c_int
        self._known[call] = function
        return function

    def _text(self, call: str, code: int) -> str:
        found = c_char_p()
        function = getattr(self._library, call)
        function.argtypes, function.restype = (c_int, _P(c_char_p)), c_int
        function(code, ctypes.byref(found))
        return (found.value or b"").decode()

    def close(self) -> None:
        """Give the context back."""
        self.ask("cuDevicePrimaryCtxRelease_v2", self._device)

    # --- the GPU ------------------------------------------------------------------------------------------------------

    def attribute(self, number: int) -> int:
        """A `CUdevice_attribute`."""
        value = c_int()
        self.ask("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def describe(self) -> dict[str, Any]:
        """The GPU as results name it."""
        name, memory, version = ctypes.create_string_buffer(256), c_size_t(), c_int()
        self.ask("cuDeviceGetName", name, len(name), self._device)
        self.ask("cuDeviceTotalMem_v2", ctypes.byref(memory), self._device)
        self.ask("cuDriverGetVersion", ctypes.byref(version))
        found: dict[str, Any] = {
            "gpu": name.value.decode(),
            "capability": [self.attribute(MAJOR), self.attribute(MINOR)],
            "units": self.attribute(MULTIPROCESSORS),
            "memory_bytes": memory.value,
            "memory_gib": round(memory.value / 2**30, 1),
            "l2_bytes": self.attribute(L2_BYTES),
            "shared_bytes": self.attribute(SHARED_OPTIN_BYTES),
            "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        }
        for key, number in CLOCKS_KHZ.items():
            with contextlib.suppress(DriverError):  # later drivers need not know them
                found[key] = self.attribute(number) // 1000
        return found

    # --- kernels ------------------------------------------------------------------------------------------------------

    def load(self, cubin: bytes) -> c_void_p:
        """A module of a binary."""
        module = c_void_p()
        self.ask("cuModuleLoadData", ctypes.byref(module), cubin)
        return module

    def unload(self, module: c_void_p) -> None:
        """Forget a module; its kernels are gone."""
        self.ask("cuModuleUnload", module)

    def function(self, module: c_void_p, name: str, shared_bytes: int = 0, cluster: int = 1) -> c_void_p:
        """A kernel of a module, allowed the shared memory and the cluster that it will be launched with."""
        function = c_void_p()
        self.ask("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes > STATIC_SHARED_BYTES:
            self.ask("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
        if cluster > PORTABLE_CLUSTER:
            self.ask("cuFuncSetAttribute", function, NON_PORTABLE_CLUSTER, 1)
        return function

    def launch(
        self, function: c_void_p, blocks: int, threads: int, shared_bytes: int, cluster: int, stream: int, parameters: Any
    ) -> None:
        """Start a kernel; `parameters` is an array of pointers to its arguments."""
        if cluster == 1:
            self.ask("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, parameters, None)
            return
        attribute = _ClusterAttribute(CLUSTER_DIMENSION, 0, cluster, 1, 1)
        config = _LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared_bytes, stream, ctypes.pointer(attribute), 1)
        self.ask("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None)

    def tensor_map(self, described: Mapping[str, Any], address: int) -> Any:
        """A `CUtensorMap` of an array, 64-byte aligned: reads outside give zeros, lines are promoted to 256 bytes of L2."""
        rank = len(described["extents"])
        room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        aligned = (c_ubyte * MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % MAP_ALIGNMENT)
        self.ask(
            "cuTensorMapEncodeTiled",
            ctypes.addressof(aligned),
            MAP_TYPES[described["dtype"]],
            rank,
            address,
            (c_uint64 * rank)(*described["extents"]),
            (c_uint64 * max(rank - 1, 1))(*described["strides_bytes"]),
            (c_uint32 * rank)(*described["box"]),
            (c_uint32 * rank)(*described["steps"]),
            0,  # no interleaving
            MAP_SWIZZLES[described["swizzle_bytes"]],
            MAP_PROMOTION_256,
            0,  # zeros outside
        )
        return aligned

    # --- memory and time ----------------------------------------------------------------------------------------------

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        """Set every byte of a range."""
        if size:
            self.ask("cuMemsetD8Async", address, byte, size, stream)

    def read(self, address: int, size: int) -> bytes:
        """What lies there, once all work before is done."""
        found = ctypes.create_string_buffer(size)
        self.ask("cuMemcpyDtoH_v2", found, address, size)
        return found.raw

    def synchronize(self, stream: int) -> None:
        """Wait for all work of a stream; what went wrong in it is raised here."""
        self.ask("cuStreamSynchronize", stream)

    def event(self) -> c_void_p:
        """An event that keeps the time."""
        made = c_void_p()
        self.ask("cuEventCreate", ctypes.byref(made), 0)
        return made

    def record(self, event: c_void_p, stream: int) -> None:
        """Let an event happen when all work before it is done."""
        self.ask("cuEventRecord", event, stream)

    def elapsed(self, first: c_void_p, second: c_void_p) -> float:
        """Seconds between two events that have happened."""
        milliseconds = c_float()
        self.ask("cuEventElapsedTime", ctypes.byref(milliseconds), first, second)
        return milliseconds.value * 1e-3
