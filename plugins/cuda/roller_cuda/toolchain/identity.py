"""What tells this machine's CUDA toolchain from others."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import metadata

from roller.plugin import program_identity
from roller_cuda.toolchain import compiling, disassembly

_PACKAGES = (
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-cccl-cu12",
    "cuda-bindings",
)  # NVRTC, headers


def toolchain() -> dict[str, str]:
    """Returns the compiler and the disassembler: the latter's findings decide which binaries have flaws."""
    named = os.environ.get(compiling.COMPILER)
    found = _found(named, os.environ.get("PATH", ""))
    return {"compiler": found[0] or program_identity(named or "nvcc"), "disassembler": program_identity(found[1])}


@lru_cache(8)
def _found(named: str | None, path: str) -> tuple[str, str | None]:
    """Returns NVRTC's packages, an empty text if a program compiles; and the disassembler."""
    packaged = not named and compiling.has_bindings()
    return "; ".join(map(_version, _PACKAGES)) if packaged else "", disassembly.tool()


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"no {package}"
