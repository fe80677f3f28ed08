"""What tells this machine's CUDA toolchain from others."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from roller.plugin import program_identity
from roller_cuda.toolchain import compiling, disassembly

_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl")  # NVRTC and headers, for one version of CUDA each
_SUFFIXES = ("", "-cu11", "-cu12", "-cu13")
_STAGES = ("ptxas", "../nvvm/bin/cicc")  # programs that nvcc calls, from its folder


def toolchain() -> dict[str, str]:
    """Returns the compiler, the variables that it reads, and the disassembler: its findings decide which binaries have flaws."""
    variables = {name: os.environ[name] for name in compiling.VARIABLES if name != "PATH" and name in os.environ}
    named, path = os.environ.get(compiling.COMPILER), os.environ.get("PATH", "")
    packages, tool = _found(named, path)
    return {"compiler": packages or _nvcc(named or "nvcc"), "disassembler": program_identity(tool), **variables}


@lru_cache(8)
def _found(named: str | None, path: str) -> tuple[str, str | None]:
    """Returns NVRTC's packages, an empty text if a program compiles; and the disassembler."""
    packaged = not named and compiling.has_bindings()
    names = [name + suffix for name in _PACKAGES for suffix in _SUFFIXES] + ["cuda-bindings", "cuda-pathfinder"]
    return "; ".join(filter(None, map(_version, names))) if packaged else "", disassembly.tool()


def _nvcc(command: str) -> str:
    """Returns the driver and the programs that it calls."""
    place = shutil.which(command)
    stages = [str(Path(os.path.realpath(place)).parent / stage) for stage in _STAGES] if place else []
    return "; ".join(program_identity(program) for program in (command, *stages))


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return ""
