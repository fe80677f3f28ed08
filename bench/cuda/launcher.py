"""A packaged program on the GPU: its binary loaded, its kernels started one after another with the addresses they were given."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from bench.cuda.driver import Driver, DriverError
from bench.cuda.operators import BYTES

ALIGNMENT = 256  # of workspaces
WORKSPACE_BYTES = {**BYTES, "float64": 8, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}


class Program:
    """The kernels of one program. `addresses` are those of inputs, output and workspaces by name: tensor maps hold them."""

    def __init__(self, driver: Driver, cubin: bytes, launch: Mapping[str, Any], addresses: Mapping[str, int]) -> None:
        self._driver = driver
        self._module = driver.load(cubin)
        try:
            self._kernels = [self._prepared(kernel, addresses) for kernel in launch["kernels"]]
        except (DriverError, KeyError):
            driver.unload(self._module)
            raise

    def _prepared(self, kernel: Mapping[str, Any], addresses: Mapping[str, int]) -> tuple[Any, ...]:
        """What a launch needs; the arguments are kept alive beside the pointers to them."""
        shared, cluster = int(kernel["shared_bytes"]), int(kernel.get("cluster", 1))
        function = self._driver.function(self._module, kernel["name"], shared, cluster)
        maps = kernel.get("maps", {})
        values: list[Any] = []
        for name in kernel["arguments"]:
            if name in maps:
                values.append(self._driver.tensor_map(maps[name], addresses[maps[name]["tensor"]]))
            else:
                values.append(ctypes.c_uint64(addresses[name]))
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(v) for v in values))
        return function, int(kernel["blocks"]), int(kernel["threads"]), shared, cluster, pointers, values

    def start(self, stream: int) -> None:
        """Queue all kernels; nothing is waited for."""
        for function, blocks, threads, shared, cluster, pointers, _ in self._kernels:
            self._driver.launch(function, blocks, threads, shared, cluster, stream, pointers)

    def close(self) -> None:
        """Forget the binary."""
        self._driver.unload(self._module)


def workspaces(launch: Mapping[str, Any], place: Callable[[int], int]) -> dict[str, int]:
    """Addresses of the arrays between kernels, each in memory that `place` gives for so many bytes."""
    found = {}
    for space in launch["workspaces"]:
        found[space["name"]] = place(rounded(space["elements"] * WORKSPACE_BYTES[space["dtype"]]))
    return found


def rounded(size: int) -> int:
    """Whole units of alignment, at least one."""
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT
