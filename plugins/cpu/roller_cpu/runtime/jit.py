"""Kernels as LLVM IR, compiled when they are loaded: for processors whose machine code roller does not link itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from roller_cpu.toolchain import compiling, entry_points, pins


class Compiled:
    """A kernel in memory, by TVM's LLVM."""

    def __init__(self, text: str, launch: Mapping[str, Any]) -> None:
        """Compiles IR with its entry points; `CodegenError` with LLVM's message where it does not parse."""
        pins.check()
        more = entry_points.text(launch, launch["entry"], compiling.processor(text) or "", for_tvm=True)
        self._module = compiling.load_module(text + more)

    def function(self, name: str) -> Callable[[int], int]:
        """Returns an exported function of one address."""
        found: Callable[..., int] = self._module[name]
        return lambda place: found(ctypes.c_void_p(place))

    def builtin(self, name: str) -> None:
        """Returns None: TVM hands out no addresses of functions."""
