"""The CUDA driver: its names, and what only NVIDIA's GPUs have (compute capability, clusters, tensor maps).

It works in the primary context of a GPU, which torch uses too, so addresses and streams of the one are good for the other.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

from bench.gpu import driver
from bench.gpu.driver import HANDLE, NUMBER, DriverError, Start

LIBRARY = "libcuda.so.1"

# CUdevice_attribute
MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR = 16, 38, 75, 76
SHARED_OPTIN_BYTES = 97
CLOCKS_KHZ: Mapping[str, int] = {"clock_mhz": 13, "memory_clock_mhz": 36}
# CUfunction_attribute
MAX_DYNAMIC_SHARED_BYTES, PREFERRED_CARVEOUT, NON_PORTABLE_CLUSTER = 8, 9, 14
STATIC_SHARED_BYTES, PORTABLE_CLUSTER = 48 << 10, 8  # beyond these a kernel must ask
CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
MAP_TYPES: Mapping[str, int] = {
    "uint8": 0, "int8": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 11,
}  # fmt: skip
MAP_SWIZZLES: Mapping[int, int] = {0: 0, 32: 1, 64: 2, 128: 3}
MAP_PROMOTION_256 = 3
MAP_BYTES, MAP_ALIGNMENT = 128, 128  # later headers ask for so much


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
        ("attributes", POINTER(_ClusterAttribute)),
        ("count", c_uint),
    )


class Driver(driver.Driver):
    """The driver, in the primary context of one GPU. `DriverError` where there is no driver, or no GPU."""

    NAMES: ClassVar = {
        "begin": "cuInit", "version": "cuDriverGetVersion",
        "name": "cuDeviceGetName", "memory": "cuDeviceTotalMem_v2", "attribute": "cuDeviceGetAttribute",
        "load": "cuModuleLoadData", "unload": "cuModuleUnload", "function": "cuModuleGetFunction", "launch": "cuLaunchKernel",
        "event": "cuEventCreate", "record": "cuEventRecord", "elapsed": "cuEventElapsedTime",
        "fill": "cuMemsetD8Async", "read": "cuMemcpyDtoH_v2", "write": "cuMemcpyHtoD_v2", "synchronize": "cuStreamSynchronize",
        "query": "cuStreamQuery",
    }  # fmt: skip
    OWN: ClassVar = {
        "cuDeviceGet": (NUMBER, c_int),
        "cuDevicePrimaryCtxRetain": (HANDLE, c_int),
        "cuCtxSetCurrent": (c_void_p,),
        "cuFuncSetAttribute": (c_void_p, c_int, c_int),
        "cuLaunchKernelEx": (c_void_p, c_void_p, HANDLE, c_void_p),
        "cuTensorMapEncodeTiled": (
            c_void_p, c_int, c_uint32, c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint32), POINTER(c_uint32),
            c_int, c_int, c_int, c_int,
        ),
    }  # fmt: skip
    FATAL = frozenset(
        f"CUDA_ERROR_{name}"
        for name in (
            "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS",
            "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ASSERT", "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED",
            "UNKNOWN", "CONTAINED", "INVALID_CONTEXT", "NVLINK_UNCORRECTABLE",
        )
    )  # fmt: skip
    CACHE = L2_BYTES

    def __init__(self, path: str = LIBRARY, ordinal: int = 0) -> None:
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            text = f"{error}; this needs a machine with an NVIDIA GPU"
            raise DriverError("loading the driver", -1, "CUDA_ERROR_NO_DRIVER", text) from error
        super().__init__(library, ordinal)
        self.ask("begin", 0)
        device, context = c_int(), c_void_p()
        self.ask("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device = device.value
        self.ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.ask("cuCtxSetCurrent", context)

    def _said(self, code: int) -> tuple[str, str]:
        return self._text("cuGetErrorName", code) or f"code {code}", self._text("cuGetErrorString", code)

    def _text(self, call: str, code: int) -> str:
        found = c_char_p()
        function = getattr(self._library, call)
        function.argtypes, function.restype = (c_int, POINTER(c_char_p)), c_int
        function(code, ctypes.byref(found))
        return (found.value or b"").decode()

    def describe(self) -> dict[str, Any]:
        """The GPU as results name it."""
        version = self.version()
        found: dict[str, Any] = super().describe() | {
            "capability": [self.attribute(MAJOR), self.attribute(MINOR)],
            "units": self.attribute(MULTIPROCESSORS),
            "shared_bytes": self.attribute(SHARED_OPTIN_BYTES),
            "driver_cuda": f"{version // 1000}.{version % 1000 // 10}",
        }
        for key, number in CLOCKS_KHZ.items():
            with contextlib.suppress(DriverError):  # later drivers need not know them
                found[key] = self.attribute(number) // 1000
        return found

    # --- kernels ------------------------------------------------------------------------------------------------------

    def function(self, module: c_void_p, name: str, shared_bytes: int = 0, cluster: int = 1) -> c_void_p:
        """A kernel of a module, allowed the shared memory and the cluster that it will be launched with."""
        function = self.named(module, name)
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
            self.ask("launch", function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, parameters, None)
            return
        attribute = _ClusterAttribute(CLUSTER_DIMENSION, 0, cluster, 1, 1)
        config = _LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared_bytes, stream, ctypes.pointer(attribute), 1)
        self.ask("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None)

    def prepared(self, module: c_void_p, described: Mapping[str, Any]) -> Start:
        """How to start a kernel of a launch description."""
        blocks, threads = int(described["blocks"]), int(described["threads"])
        shared, cluster = int(described["shared_bytes"]), int(described.get("cluster", 1))
        function = self.function(module, described["name"], shared, cluster)
        if "carveout_percent" in described:
            self.ask("cuFuncSetAttribute", function, PREFERRED_CARVEOUT, int(described["carveout_percent"]))
        return lambda stream, parameters: self.launch(function, blocks, threads, shared, cluster, stream, parameters)

    def argument(self, described: Mapping[str, Any], name: str, addresses: Mapping[str, int]) -> Any:
        """An address, or where the description says so a tensor map of the array."""
        found = described.get("maps", {}).get(name)
        if found is None:
            return super().argument(described, name, addresses)
        return self.tensor_map(found, addresses[found["tensor"]])

    def tensor_map(self, described: Mapping[str, Any], address: int) -> Any:
        """A `CUtensorMap` of an array, aligned: reads outside give zeros, lines are promoted to 256 bytes of L2."""
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
