"""Calls of HIP's runtime through ctypes; a failure becomes a typed error with advice.

A process may hold only one copy of the runtime, as handles and addresses of one copy are invalid in another. A copy that is already
loaded, such as torch's, is used. A process forked from one that uses the runtime must not use it: every call there is refused
before it reaches the runtime. No AMD hardware was used to write this: prototypes and numbers are those of HIP's headers.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from roller.plugin import DeviceUnavailableError, ForkGuard, KernelError, LaunchError
from roller.plugin import StatusError as Refusal
from roller_rocm.toolchain import install

LIBRARY = "ROLLER_ROCM_LIBRARY"  # the path of the library
NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
OLDEST = 50_200_000  # in the format of `hipRuntimeGetVersion`: the oldest version whose headers this module was compared with
DEFAULT_STREAM = 0  # the default stream, which everything waits for
SUCCESS = "hipSuccess"
OUT_OF_MEMORY = "hipErrorOutOfMemory"
NOT_READY = "hipErrorNotReady"
_NO_GPU = (
    "the driver finds no GPU; see rocminfo, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and whether you may open /dev/kfd "
    "(groups render and video)"
)
_TOO_OLD = "ROCm cannot load this code object: update ROCm, or compile for the attached GPU (device='rocm')"
_BROKEN = "a kernel before failed, and what the GPU holds for this process is lost with it: start the process again"
_OF_CODE_OBJECTS = ("NoBinaryForGpu", "InvalidImage", "InvalidKernelFile", "InvalidSource", "SharedObjectInitFailed")
_OF_CONTEXTS = ("IllegalAddress", "LaunchFailure", "LaunchTimeOut", "Assert", "ContextIsDestroyed", "PriorLaunchFailure")
_ADVICE: Mapping[str, tuple[type[KernelError], str]] = {
    **{f"hipError{name}": (DeviceUnavailableError, _TOO_OLD) for name in _OF_CODE_OBJECTS},
    **{f"hipError{name}": (LaunchError, _BROKEN) for name in _OF_CONTEXTS},
    OUT_OF_MEMORY: (LaunchError, "the GPU's memory is full; free arrays (torch: torch.cuda.empty_cache()) or take smaller ones"),
    "hipErrorNoDevice": (DeviceUnavailableError, _NO_GPU),
    "hipErrorInvalidDevice": (DeviceUnavailableError, _NO_GPU),  # the status of hipInit where there is none
    "hipErrorNotInitialized": (DeviceUnavailableError, "the driver is not ready in this process"),
    "hipErrorInsufficientDriver": (DeviceUnavailableError, "the kernel module amdgpu is too old for this ROCm: update it"),
    "hipErrorECCNotCorrectable": (DeviceUnavailableError, "the GPU's memory has a fault; reset the GPU"),
}
_KINDS: Mapping[str, Any] = {"p": ctypes.c_void_p, "z": ctypes.c_size_t, "i": ctypes.c_int, "u": ctypes.c_uint}
_PROTOTYPES: Mapping[str, str] = {  # a letter for each argument: pointers and handles, sizes, signed and unsigned integers
    "hipInit": "u",
    "hipRuntimeGetVersion": "p",
    "hipGetLastError": "",
    "hipGetDeviceCount": "p",
    "hipGetDevice": "p",
    "hipSetDevice": "i",
    "hipDeviceGetAttribute": "pii",
    "hipDeviceGetName": "pii",
    "hipDeviceTotalMem": "pi",
    "hipDeviceSynchronize": "",
    "hipGetDeviceProperties": "pi",
    "hipGetDevicePropertiesR0600": "pi",
    "hipStreamCreateWithFlags": "pu",
    "hipStreamSynchronize": "p",
    "hipStreamWaitEvent": "ppu",
    "hipStreamIsCapturing": "pp",
    "hipEventCreateWithFlags": "pu",
    "hipEventRecord": "pp",
    "hipEventQuery": "p",
    "hipEventDestroy": "p",
    "hipMalloc": "pz",
    "hipFree": "p",
    "hipMemcpyHtoD": "ppz",
    "hipMemcpyHtoDAsync": "ppzp",
    "hipMemcpyDtoHAsync": "ppzp",
    "hipMemcpyDtoDAsync": "ppzp",
    "hipModuleLoadData": "pp",
    "hipModuleUnload": "p",
    "hipModuleGetFunction": "ppp",
    "hipFuncGetAttribute": "pip",
    "hipModuleLaunchKernel": "puuuuuuuppp",
}


FORKS = ForkGuard("ROCm")


class StatusError(Refusal):
    """The runtime's status of a failed call."""

    advice = _ADVICE
    otherwise = "HIP refused"
    full = OUT_OF_MEMORY


def tried(function: str, *arguments: Any) -> None:
    """Calls a function of the runtime; `StatusError` where it fails, `DeviceUnavailableError` where there is no such function."""
    FORKS.check()
    status = _function(function)(*arguments)
    if status:
        _function("hipGetLastError")()  # clears the error, which later calls for the last error would return
        raise StatusError(function, _named(status))


def call(function: str, *arguments: Any, what: str = "") -> None:
    """Calls as `tried` does, with errors that name `what` was to be done.

    A failure is a `LaunchError`, or a `DeviceUnavailableError` where another call would not help.
    """
    try:
        tried(function, *arguments)
    except StatusError as error:
        raise error.told(what) from error


def number(function: str, *arguments: Any) -> int:
    """Returns the integer that a function writes to its first argument."""
    found = ctypes.c_int(0)
    call(function, ctypes.byref(found), *arguments)
    return found.value


def handle(function: str, *arguments: Any, what: str = "") -> int:
    """Returns the address or handle that a function writes to its first argument."""
    found = ctypes.c_void_p(0)
    call(function, ctypes.byref(found), *arguments, what=what)
    return found.value or 0


def has(function: str) -> bool:
    """True if the runtime has such a function."""
    return hasattr(_library(), function)


def start() -> int:
    """Returns the number of GPUs, at least one; `DeviceUnavailableError` without ROCm's runtime, a driver, or a GPU."""
    FORKS.check()
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    try:
        tried("hipRuntimeGetVersion", ctypes.byref(version))
        if version.value < OLDEST:
            told = f"{version.value // 10**7}.{version.value // 10**5 % 100}"
            raise DeviceUnavailableError(f"this is HIP {told}; kernels need 5.2 or newer: update ROCm")
        tried("hipInit", 0)
        tried("hipGetDeviceCount", ctypes.byref(count))
    except StatusError as error:
        raise DeviceUnavailableError(str(error.told("no AMD GPU, or no driver that works"))) from error
    if not count.value:
        raise DeviceUnavailableError(_NO_GPU)
    FORKS.used = True
    return count.value


# --- the library -----------------------------------------------------------------------------------------------------------


def mapped() -> tuple[str, ...]:
    """Returns the copies of the runtime in this process."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(sorted({os.path.realpath(found) for found in re.findall(r"(?m) (/.*/libamdhip64\.so[\w.]*)$", text)}))


@cache
def alone(_: str) -> None:
    """Raises `LaunchError` if a library of that name has loaded a copy of the runtime beside the one in use."""
    copies = mapped()
    if len(copies) > 1:
        raise LaunchError(
            f"this process holds several copies of HIP's runtime, which cannot share memory: {', '.join(copies)}; import the "
            f"library that brings its own before the first call of a kernel, or name its copy in {LIBRARY}"
        )


def _candidates() -> Iterator[str]:
    named = os.environ.get(LIBRARY)
    if named:
        yield named
        return
    yield from mapped()
    yield from NAMES
    root = os.environ.get("ROCM_PATH")
    for folder in ([Path(root)] if root else []) + [install.ROOT]:
        yield str(folder / "lib" / NAMES[-1])


@cache
def _library() -> ctypes.CDLL:
    said = []
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            said.append(" ".join(str(error).split()))
    raise DeviceUnavailableError(f"no ROCm runtime: install ROCm 5.2 or newer, or name its libamdhip64.so in {LIBRARY} ({said[0]})")


@cache
def _function(name: str) -> Any:
    try:
        found = getattr(_library(), name)
    except AttributeError as error:
        raise DeviceUnavailableError(f"ROCm's runtime has no {name}: update ROCm ({error})") from error
    found.argtypes, found.restype = [_KINDS[letter] for letter in _PROTOTYPES[name]], ctypes.c_int
    return found


def _named(status: int) -> str:
    """Returns the runtime's name of a status."""
    try:
        ask = _library().hipGetErrorName
    except AttributeError:
        return f"error {status}"
    ask.argtypes, ask.restype = [ctypes.c_int], ctypes.c_char_p
    return (ask(status) or f"error {status}".encode()).decode(errors="replace")
