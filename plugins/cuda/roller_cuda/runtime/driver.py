"""Calls of the CUDA driver through `cuda.bindings`; a failure becomes a typed error with advice.

A process forked from one that uses the driver must not use it: every call there is refused before it reaches the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from roller.plugin import DeviceUnavailableError, ForkGuard, KernelError, LaunchError
from roller.plugin import StatusError as Refusal
from roller_cuda.toolchain import compiling

OLDEST = 12000  # in the format of `cuDriverGetVersion`: libraries without a context, clusters and tensor maps came with 12.0
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
LEGACY_STREAM = 1  # the legacy stream, which everything waits for; 0 names it too, unless the process asks for one per thread
_TOO_OLD = "the driver cannot run this cubin: update the driver, or compile for the attached GPU (device='cuda')"
_BROKEN = "a kernel before failed, and the GPU's context is lost with it: start the process again"
_OF_CUBINS = (
    "UNSUPPORTED_PTX_VERSION",
    "NO_BINARY_FOR_GPU",
    "INVALID_IMAGE",
    "INVALID_PTX",
    "INVALID_SOURCE",
    "JIT_COMPILER_NOT_FOUND",
)
_OF_CONTEXTS = (
    "ILLEGAL_ADDRESS",
    "MISALIGNED_ADDRESS",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "ILLEGAL_INSTRUCTION",
    "INVALID_PC",
    "INVALID_ADDRESS_SPACE",
    "HARDWARE_STACK_ERROR",
    "ASSERT",
)


_ADVICE: Mapping[str, tuple[type[KernelError], str]] = {
    **{f"CUDA_ERROR_{name}": (DeviceUnavailableError, _TOO_OLD) for name in _OF_CUBINS},
    **{f"CUDA_ERROR_{name}": (LaunchError, _BROKEN) for name in _OF_CONTEXTS},
    OUT_OF_MEMORY: (LaunchError, "the GPU's memory is full; free arrays (torch: torch.cuda.empty_cache()) or take smaller ones"),
    "CUDA_ERROR_NO_DEVICE": (DeviceUnavailableError, "the driver finds no GPU; see CUDA_VISIBLE_DEVICES and nvidia-smi"),
    "CUDA_ERROR_NOT_INITIALIZED": (DeviceUnavailableError, "the driver is not ready in this process"),
    "CUDA_ERROR_SYSTEM_NOT_READY": (DeviceUnavailableError, "the GPUs are not ready; is the fabric manager running?"),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (DeviceUnavailableError, "kernel module and driver library differ; restart the machine"),
    "CUDA_ERROR_ECC_UNCORRECTABLE": (DeviceUnavailableError, "the GPU's memory has a fault; reset the GPU"),
    "CUDA_ERROR_DEVICES_UNAVAILABLE": (DeviceUnavailableError, "the GPU is busy or reserved for another process"),
}
FORKS = ForkGuard("CUDA")


class StatusError(Refusal):
    """The driver's status of a failed call."""

    advice = _ADVICE
    otherwise = "the CUDA driver refused"
    full = OUT_OF_MEMORY


def tried(function: str, *arguments: Any) -> Any:
    """Calls a driver function; returns its results beside the status: none, a value, or a tuple. `StatusError` where it fails."""
    FORKS.check()
    bindings = _bindings()
    try:
        status, *found = getattr(bindings, function)(*arguments)
    except (RuntimeError, AttributeError) as error:
        if "not found" not in str(error) and not isinstance(error, AttributeError):
            raise
        raise DeviceUnavailableError(f"the CUDA driver has no {function}: update it ({error})") from error
    if int(status):
        raise StatusError(function, str(status.name))
    return found[0] if len(found) == 1 else tuple(found) or None


def call(function: str, *arguments: Any, what: str = "") -> Any:
    """Calls as `tried` does, with errors that name `what` was to be done.

    A failure is a `LaunchError`, or a `DeviceUnavailableError` where another call would not help.
    """
    try:
        return tried(function, *arguments)
    except StatusError as error:
        raise error.told(what) from error


def constant(name: str) -> Any:
    """Returns a value of one of the driver's enumerations: "CUdevice_attribute.CU_..."."""
    kind, _, value = name.partition(".")
    return getattr(getattr(_bindings(), kind), value)


def made(kind: str, *arguments: Any) -> Any:
    """Returns one of the driver's structures."""
    return getattr(_bindings(), kind)(*arguments)


def start() -> int:
    """Returns the number of GPUs, at least one; `DeviceUnavailableError` without cuda-bindings, a driver, or a GPU."""
    try:
        tried("cuInit", 0)
        FORKS.used = True
        version, count = int(tried("cuDriverGetVersion")), int(tried("cuDeviceGetCount"))
    except StatusError as error:
        raise DeviceUnavailableError(str(error.told("no NVIDIA driver, or none that works"))) from error
    except (RuntimeError, OSError, ImportError) as error:
        if isinstance(error, KernelError):
            raise
        raise DeviceUnavailableError(f"no NVIDIA driver, or none that works: {' '.join(str(error).split())}") from error
    if version < OLDEST:
        told = f"{version // 1000}.{version % 1000 // 10}"
        raise DeviceUnavailableError(f"the NVIDIA driver is for CUDA {told}; kernels need 12.0 or newer: update it")
    if not count:
        raise DeviceUnavailableError("the NVIDIA driver finds no GPU; see CUDA_VISIBLE_DEVICES and nvidia-smi")
    return count


@cache
def _bindings() -> Any:
    try:
        from cuda.bindings import driver  # noqa: PLC0415  (an extra: the CPU device needs none of it)
    except ImportError as error:
        raise DeviceUnavailableError(f"running on a GPU needs cuda-bindings: {compiling.INSTALL} ({error})") from error
    return driver
