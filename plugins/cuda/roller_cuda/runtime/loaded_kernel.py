"""Kernels of a cubin on one GPU: limits checked, attributes set, tensor maps and clusters."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from roller.plugin import DeviceUnavailableError, LaunchError, check_limits
from roller_cuda.runtime import driver
from roller_cuda.runtime.driver import StatusError
from roller_cuda.runtime.gpu import Gpu
from roller_cuda.runtime.tensor_maps import TensorMap

STATIC_SHARED_BYTES = 48 << 10  # bytes of shared memory that a kernel gets without a request
PORTABLE_CLUSTER = 8  # max blocks of a cluster on every chip with clusters


class Kernel:
    """One kernel, with the state that all its launches share."""

    def __init__(self, library: Any, described: Mapping[str, Any], gpu: Gpu) -> None:
        self._name = str(described["name"])
        self._blocks, self._threads = int(described["blocks"]), int(described["threads"])
        self._shared, self._cluster = int(described["shared_bytes"]), int(described.get("cluster", 1))
        kernel = driver.call("cuLibraryGetKernel", library, self._name.encode())
        _check_limits(self._name, kernel, described, gpu)
        _prepare(kernel, described, gpu)
        self._function = driver.made("CUfunction", int(kernel))  # launches accept both types
        self._config = _cluster_config(self._blocks, self._threads, self._shared, self._cluster) if self._cluster > 1 else None
        names, maps = list(described["arguments"]), described.get("maps", {})
        self._maps = [TensorMap(name, maps[name]) for name in names if name in maps]
        self._plain = [name for name in names if name not in maps]
        self._slots = (ctypes.c_uint64 * max(len(self._plain), 1))()
        encoded, slot = iter(self._maps), iter(range(ctypes.addressof(self._slots), 1 << 63, 8))
        pointers = [next(encoded).place if name in maps else next(slot) for name in names]
        self._pointers = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        self._parameters = ctypes.addressof(self._pointers)

    def launch(self, places: Mapping[str, int], stream: int) -> None:
        """Enqueues the kernel; one thread at a time, as the addresses overwrite those of the last launch."""
        for index, name in enumerate(self._plain):
            self._slots[index] = places[name]
        for encoded in self._maps:
            encoded.point(places[encoded.tensor])
        try:
            if self._config is None:
                sizes = (self._blocks, 1, 1, self._threads, 1, 1, self._shared)
                driver.tried("cuLaunchKernel", self._function, *sizes, stream, self._parameters, 0)
            else:
                self._config.hStream = driver.made("CUstream", stream)
                driver.tried("cuLaunchKernelEx", self._config, self._function, self._parameters, 0)
        except StatusError as error:
            raise error.told(f"kernel {self._name!r}") from error


def fits(arch: str, gpu: Gpu) -> None:
    """Raises `DeviceUnavailableError` where the GPU cannot run a cubin of this architecture.

    A cubin runs on its compute capability and on later ones of the same major version. One with features of one chip alone
    ("sm_90a") runs only on that.
    """
    number = arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    major, minor = int(number[:-1]), int(number[-1])
    special = not arch[-1].isdigit()
    same = gpu.capability == (major, minor) if special else gpu.capability[0] == major and gpu.capability[1] >= minor
    if not same:
        here = f"sm_{gpu.capability[0]}{gpu.capability[1]}"
        raise DeviceUnavailableError(
            f"the kernel was compiled for {arch}, {gpu} is {here}; compile it for the attached chip (device='cuda')"
        )


def _check_limits(name: str, kernel: Any, described: Mapping[str, Any], gpu: Gpu) -> None:
    """Raises `LaunchError` for a launch that this GPU cannot do."""
    blocks, threads, cluster = int(described["blocks"]), int(described["threads"]), int(described.get("cluster", 1))
    static = driver.constant("CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES")
    most = driver.constant("CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK")
    # Binaries for compute capability 9.0 count the memory that the system reserves in a block as the kernel's own. The limit of a
    # block does not include it.
    reserved = gpu.attribute("RESERVED_SHARED_MEMORY_PER_BLOCK")
    own = max(0, int(driver.call("cuKernelGetAttribute", static, kernel, gpu.device)) - reserved)
    shared = int(described["shared_bytes"]) + own
    room = int(driver.call("cuKernelGetAttribute", most, kernel, gpu.device))
    limits = (
        ("blocks", blocks, gpu.attribute("MAX_GRID_DIM_X")),
        ("threads a block", threads, min(gpu.attribute("MAX_THREADS_PER_BLOCK"), room)),
        ("bytes of shared memory a block", shared, gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")),
    )
    check_limits(described, gpu, limits)
    if cluster < 1 or blocks % cluster:
        raise LaunchError(f"kernel {name!r}: {blocks} blocks of {threads} threads in clusters of {cluster} cannot be launched")
    if cluster > 1 and not gpu.attribute("CLUSTER_LAUNCH"):
        raise DeviceUnavailableError(
            f"kernel {name!r} is launched in clusters, which {gpu} has not; compile it for the attached chip"
        )


def _prepare(kernel: Any, described: Mapping[str, Any], gpu: Gpu) -> None:
    """Sets a kernel's attributes: limits that need a request, and preferences."""
    shared, cluster = int(described["shared_bytes"]), int(described.get("cluster", 1))
    wanted = []
    if shared > STATIC_SHARED_BYTES:
        wanted.append(("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared))
    if cluster > PORTABLE_CLUSTER:
        wanted.append(("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1))
    if "carveout_percent" in described:  # kernels saved earlier do not have it
        wanted.append(("PREFERRED_SHARED_MEMORY_CARVEOUT", int(described["carveout_percent"])))
    for name, value in wanted:
        which = driver.constant(f"CUfunction_attribute.CU_FUNC_ATTRIBUTE_{name}")
        driver.call("cuKernelSetAttribute", which, value, kernel, gpu.device)


def _cluster_config(blocks: int, threads: int, shared: int, cluster: int) -> Any:
    config, attribute = driver.made("CUlaunchConfig"), driver.made("CUlaunchAttribute")
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared
    attribute.id = driver.constant("CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
    config.attrs, config.numAttrs = [attribute], 1
    return config
