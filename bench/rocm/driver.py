"""HIP's runtime: its names, where it is found, and launches as AMD's GPUs permit them.

A process may hold one copy of the runtime, or addresses of torch's copy mean nothing to it: torch is imported first, and the
copy that it brought is used. No AMD hardware was used to write this: prototypes and numbers are those of HIP's headers, 5.2 and
later.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from bench.gpu import driver
from bench.gpu.driver import NAME_BYTES, NUMBER, DriverError, Start

VARIABLE = "ROLLER_ROCM_LIBRARY"  # names the library, as for kernels that roller runs itself
NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
FOLDERS = (Path("/", "opt", "rocm", "lib"),)
MAPS = Path("/proc/self/maps")
OLDEST = 50_200_000  # as `hipRuntimeGetVersion` counts

# hipDeviceAttribute_t
CLOCK_KHZ, L2_BYTES, MAX_GRID, MAX_LANES, MEMORY_CLOCK_KHZ, MULTIPROCESSORS, LOCAL_BYTES = 5, 19, 29, 56, 60, 63, 74
COMPUTE_UNITS = 10015  # where a multiprocessor is two of them, MULTIPROCESSORS counts pairs
# hipFunction_attribute
LANES_OF_KERNEL, LOCAL_OF_KERNEL = 0, 1
LANES_END = 1 << 32  # of a launch; so many are too many
PROPERTIES_BYTES = 4096  # more than any version's structure
ARCH_AT: Mapping[str, int] = {"hipGetDevicePropertiesR0600": 1160, "hipGetDeviceProperties": 396}  # since HIP 6, and before


class Driver(driver.Driver):
    """The runtime, with one GPU current. `DriverError` where there is no runtime, or no GPU."""

    NAMES: ClassVar = {
        "begin": "hipInit", "version": "hipRuntimeGetVersion",
        "name": "hipDeviceGetName", "memory": "hipDeviceTotalMem", "attribute": "hipDeviceGetAttribute",
        "load": "hipModuleLoadData", "unload": "hipModuleUnload", "function": "hipModuleGetFunction",
        "launch": "hipModuleLaunchKernel", "event": "hipEventCreateWithFlags", "record": "hipEventRecord",
        "elapsed": "hipEventElapsedTime", "fill": "hipMemsetD8Async", "read": "hipMemcpyDtoH", "write": "hipMemcpyHtoD",
        "synchronize": "hipStreamSynchronize", "query": "hipStreamQuery",
    }  # fmt: skip
    OWN: ClassVar = {
        "hipSetDevice": (c_int,),
        "hipGetLastError": (),
        "hipFuncGetAttribute": (NUMBER, c_int, c_void_p),
        **dict.fromkeys(ARCH_AT, (c_char_p, c_int)),
    }
    FATAL = frozenset(
        f"hipError{name}"
        for name in (
            "IllegalAddress", "LaunchFailure", "LaunchTimeOut", "Assert", "ContextIsDestroyed", "PriorLaunchFailure",
            "ECCNotCorrectable", "Unknown",
        )
    )  # fmt: skip
    CACHE = L2_BYTES

    def __init__(self, path: str = "", ordinal: int = 0) -> None:
        super().__init__(opened(path), ordinal)
        self.ask("begin", 0)
        self.ask("hipSetDevice", ordinal)
        if self.version() < OLDEST:
            raise DriverError("hipRuntimeGetVersion", -1, "too old", "kernels need ROCm 5.2 or newer")

    def ask(self, what: str, *arguments: Any) -> None:
        """As for every driver. What failed is forgotten: torch would take the last error for its own."""
        try:
            super().ask(what, *arguments)
        except DriverError:
            if hasattr(self._library, "hipGetLastError"):
                self._found("hipGetLastError")()
            raise

    def _said(self, code: int) -> tuple[str, str]:
        return self._text("hipGetErrorName", code) or f"code {code}", self._text("hipGetErrorString", code)

    def _text(self, call: str, code: int) -> str:
        function = getattr(self._library, call, None)
        if function is None:
            return ""
        function.argtypes, function.restype = (c_int,), c_char_p
        return (function(code) or b"").decode(errors="replace")

    def describe(self) -> dict[str, Any]:
        """The GPU as results name it. `units`: what runs a workgroup; `local_bytes`: local memory of one."""
        version = self.version()
        return super().describe() | {
            "arch": self._arch(),
            "units": self.attribute(MULTIPROCESSORS),
            "compute_units": self.attribute(COMPUTE_UNITS),
            "local_bytes": self.attribute(LOCAL_BYTES),
            "clock_mhz": self.attribute(CLOCK_KHZ) // 1000,
            "memory_clock_mhz": self.attribute(MEMORY_CLOCK_KHZ) // 1000,
            "driver_hip": f"{version // 10**7}.{version // 10**5 % 100}",
        }

    def _arch(self) -> str:
        """The processor that code objects are for; what is said of its features is left out, as kernels are compiled for any."""
        told = ctypes.create_string_buffer(PROPERTIES_BYTES)
        call = next((name for name in ARCH_AT if hasattr(self._library, name)), "hipGetDeviceProperties")
        self.ask(call, told, self._device)
        name = told.raw[ARCH_AT[call] :][:NAME_BYTES].split(b"\0")[0]
        return name.decode(errors="replace").partition(":")[0]

    def prepared(self, module: c_void_p, described: Mapping[str, Any]) -> Start:
        """How to start a kernel of a launch description. Local memory is declared in the kernel, none is added."""
        function = self.named(module, described["name"])
        blocks, threads = int(described["blocks"]), int(described["threads"])
        self._check(described, function, blocks, threads)
        return lambda stream, parameters: self.ask("launch", function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, None)

    def _check(self, described: Mapping[str, Any], function: c_void_p, blocks: int, threads: int) -> None:
        """`DriverError` for a launch that this GPU cannot do: past some limits HIP says nothing and results are wrong."""
        local = max(int(described["shared_bytes"]), self._of_kernel(LOCAL_OF_KERNEL, function))
        lanes = min(self.attribute(MAX_LANES), self._of_kernel(LANES_OF_KERNEL, function))
        limits = (
            ("blocks", blocks, self.attribute(MAX_GRID)),
            ("threads a block", threads, lanes),
            ("threads together", blocks * threads, LANES_END - 1),
            ("bytes of local memory a block", local, self.attribute(LOCAL_BYTES)),
        )
        for what, wanted, most in limits:
            if wanted > most:
                raise DriverError(f"kernel {described['name']!r}", -1, "too large", f"it wants {wanted} {what}, of {most}")
        if blocks < 1 or threads < 1:
            raise DriverError(f"kernel {described['name']!r}", -1, "empty", f"{blocks} blocks of {threads} threads")

    def _of_kernel(self, number: int, function: c_void_p) -> int:
        value = c_int()
        self.ask("hipFuncGetAttribute", ctypes.byref(value), number, function)
        return value.value


def opened(path: str = "") -> ctypes.CDLL:
    """The runtime: that of a path, or the one that is named, loaded already, or installed; `DriverError` where there is none."""
    said = ""
    for name in candidates(path):
        try:
            found = ctypes.CDLL(name)
        except OSError as error:
            said = said or str(error)
            continue
        if len(loaded()) > 1:
            text = f"{', '.join(loaded())}; they cannot share memory: let {VARIABLE} name torch's copy"
            raise DriverError("loading the driver", -1, "several copies of HIP's runtime", text)
        return found
    text = f"{said}; this needs a machine with an AMD GPU and ROCm 5.2 or newer, or {VARIABLE} with the path of its libamdhip64.so"
    raise DriverError("loading the driver", -1, "no HIP runtime", text)


def candidates(path: str = "") -> tuple[str, ...]:
    """Paths and names under which the runtime may be found, the first that there is."""
    named = path or os.environ.get(VARIABLE, "")
    if named:
        return (named,)
    root = os.environ.get("ROCM_PATH")
    folders = (*((Path(root) / "lib",) if root else ()), *FOLDERS)
    return (*loaded(), *NAMES, *(str(folder / NAMES[-1]) for folder in folders))


def loaded() -> tuple[str, ...]:
    """Copies of the runtime that are in this process."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    places = {line.split(None, 5)[-1] for line in lines if "libamdhip64.so" in line}
    return tuple(sorted({os.path.realpath(place) for place in places}))
