"""A packaged program on the GPU: its binary loaded, its kernels started one after another with the addresses they were given."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from bench.gpu.driver import Driver, DriverError, Start
from bench.gpu.operators import BYTES

ALIGNMENT = 256  # of workspaces
WORKSPACE_BYTES = {**BYTES, "float64": 8, "uint8": 1, "int64": 8}


class Program:
    """The kernels of one program. `addresses` are those of inputs, output, workspaces and constants by name: what kernels take
    may hold them. `kept`: what must live as long as the program.
    """

    def __init__(
        self, driver: Driver, image: bytes, launch: Mapping[str, Any], addresses: Mapping[str, int], kept: Any = None
    ) -> None:
        self._driver, self._kept = driver, kept
        self._module = driver.load(image)
        try:
            self._kernels = [self._prepared(kernel, addresses) for kernel in launch["kernels"]]
        except (DriverError, KeyError):
            driver.unload(self._module)
            raise

    def _prepared(self, kernel: Mapping[str, Any], addresses: Mapping[str, int]) -> tuple[Start, Any, list[Any]]:
        """What a launch needs; the arguments are kept alive beside the pointers to them."""
        start = self._driver.prepared(self._module, kernel)
        values = [self._driver.argument(kernel, name, addresses) for name in kernel["arguments"]]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(v) for v in values))
        return start, pointers, values

    def start(self, stream: int) -> None:
        """Queue all kernels; nothing is waited for."""
        for start, pointers, _ in self._kernels:
            start(stream, pointers)

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
