"""Kernels of a code object on one GPU, and the limits of their launches."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from roller.plugin import DeviceUnavailableError, check_limits
from roller_rocm.runtime import hip
from roller_rocm.runtime.gpu import LOCAL_BYTES, MAX_GRID, MAX_LANES, Gpu
from roller_rocm.runtime.hip import StatusError

LANES_END = 1 << 32  # exclusive limit of the lanes of a launch
_LANES_OF_KERNEL, _LOCAL_OF_KERNEL = 0, 1  # hipFunction_attribute


class Kernel:
    """One kernel, with the state that all its launches share."""

    def __init__(self, module: int, described: Mapping[str, Any], gpu: Gpu) -> None:
        self._name = str(described["name"])
        self._blocks, self._threads = int(described["blocks"]), int(described["threads"])
        self._function = hip.handle("hipModuleGetFunction", module, self._name.encode(), what=f"kernel {self._name!r}")
        _check_limits(described, self._function, gpu)
        self._names = list(described["arguments"])
        room = max(len(self._names), 1)
        self._slots = (ctypes.c_uint64 * room)()
        start = ctypes.addressof(self._slots)
        self._pointers = (ctypes.c_void_p * room)(*range(start, start + 8 * room, 8))

    def launch(self, places: Mapping[str, int], stream: int) -> None:
        """Enqueues the kernel; one thread at a time, as the addresses overwrite those of the last launch."""
        for index, name in enumerate(self._names):
            self._slots[index] = places[name]
        sizes = (self._blocks, 1, 1, self._threads, 1, 1, 0)  # local memory is declared in the kernel, none is added
        try:
            hip.tried("hipModuleLaunchKernel", self._function, *sizes, stream, self._pointers, None)
        except StatusError as error:
            raise error.told(f"kernel {self._name!r}") from error


def fits(arch: str, gpu: Gpu) -> None:
    """Raises `DeviceUnavailableError` where the GPU cannot run a code object for this architecture: it runs on no other."""
    if gpu.arch != arch:
        raise DeviceUnavailableError(
            f"the kernel was compiled for {arch}, {gpu} is {gpu.arch}; compile it for the attached chip (device='rocm')"
        )


def _check_limits(described: Mapping[str, Any], function: int, gpu: Gpu) -> None:
    """Raises `LaunchError` for a launch that this GPU cannot do."""
    blocks, threads = int(described["blocks"]), int(described["threads"])
    declared = max(int(described["shared_bytes"]), hip.number("hipFuncGetAttribute", _LOCAL_OF_KERNEL, function))
    compiled_for = hip.number("hipFuncGetAttribute", _LANES_OF_KERNEL, function)
    limits = (
        ("blocks", blocks, gpu.attribute(MAX_GRID)),
        ("threads a block", threads, min(gpu.attribute(MAX_LANES), compiled_for)),
        ("threads together", blocks * threads, LANES_END - 1),
        ("bytes of local memory a block", declared, gpu.attribute(LOCAL_BYTES)),
    )
    check_limits(described, gpu, limits)
