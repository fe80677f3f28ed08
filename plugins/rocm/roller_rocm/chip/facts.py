"""Facts of a GPU from driver queries."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from roller_rocm.runtime import hip
from roller_rocm.runtime.gpu import LOCAL_BYTES, Gpu

ATTRIBUTES: Mapping[str, int] = {  # `hipDeviceAttribute_t` by the field of `Facts`
    "units": 63,
    "compute_units": 10015,
    "clock_khz": 5,
    "local_bytes": LOCAL_BYTES,
}
_NAME_BYTES = 256


@dataclass(frozen=True)
class Facts:
    """The driver's facts of a GPU; 0 where it reports none.

    `arch`: the processor, without its features. `units`: processors that run a workgroup, on gfx10 and newer two compute units
    each. `local_bytes`: local memory of a workgroup.
    """

    name: str
    arch: str
    memory_bytes: int
    units: int
    compute_units: int
    clock_khz: int
    local_bytes: int


def facts_of(gpu: Gpu) -> Facts:
    """Returns a GPU's name, architecture, memory and sizes."""
    name, memory = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t(0)
    hip.call("hipDeviceGetName", name, _NAME_BYTES, gpu.ordinal)
    hip.call("hipDeviceTotalMem", ctypes.byref(memory), gpu.ordinal)
    asked = {field: gpu.attribute(attribute) for field, attribute in ATTRIBUTES.items()}
    told = name.value.decode(errors="replace").strip()
    return Facts(name=told or "AMD GPU", arch=gpu.arch, memory_bytes=memory.value, **asked)
