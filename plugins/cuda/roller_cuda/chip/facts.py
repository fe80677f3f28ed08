"""Facts of a GPU from driver queries."""

from __future__ import annotations

from collections.abc import Mapping

from roller_cuda.chip.probes import Facts
from roller_cuda.runtime import driver
from roller_cuda.runtime.gpu import Gpu

ATTRIBUTES: Mapping[str, str] = {  # driver attributes by the field of `Facts`
    "sms": "MULTIPROCESSOR_COUNT",
    "clock_khz": "CLOCK_RATE",
    "memory_khz": "MEMORY_CLOCK_RATE",
    "bus_bits": "GLOBAL_MEMORY_BUS_WIDTH",
    "l2_bytes": "L2_CACHE_SIZE",
    "shared_sm_bytes": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_block_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_reserved_bytes": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "registers_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "threads_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "threads_block": "MAX_THREADS_PER_BLOCK",
    "blocks_sm": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "warp": "WARP_SIZE",
}
_NAME_BYTES = 256


def facts_of(gpu: Gpu) -> Facts:
    """Returns a GPU's name, compute capability, memory and sizes."""
    name = bytes(driver.call("cuDeviceGetName", _NAME_BYTES, gpu.device)).split(b"\0")[0].decode(errors="replace").strip()
    asked = {field: gpu.attribute(attribute) for field, attribute in ATTRIBUTES.items()}
    memory = int(driver.call("cuDeviceTotalMem", gpu.device))
    return Facts(name=name or "NVIDIA GPU", capability=gpu.capability, memory_bytes=memory, **asked)
