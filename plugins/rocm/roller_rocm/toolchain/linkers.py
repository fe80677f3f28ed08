"""The linker of code objects: of this machine, or from PyPI."""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from importlib import metadata, util

from roller.plugin import DeviceUnavailableError, program_identity
from roller_rocm.toolchain import install

LINKER = "ROLLER_ROCM_LINKER"
INSTALL = "pip install 'roller-compiler[rocm]' (in a copy of the repository: '.[rocm]')"


@cache
def _found() -> tuple[str, ...] | None:
    """Returns a linker of this machine, or the one in PyPI's `ziglang`."""
    for name in ("ld.lld", str(install.ROOT / "llvm" / "bin" / "ld.lld"), *(f"ld.lld-{version}" for version in range(30, 15, -1))):
        place = shutil.which(name)
        if place is not None:
            return (place,)
    return (sys.executable, "-m", "ziglang", "ld.lld") if util.find_spec("ziglang") is not None else None


def linker() -> tuple[str, ...]:
    """Returns the command of the linker; `DeviceUnavailableError` where there is none."""
    named = os.environ.get(LINKER)
    command = (named,) if named else _found()
    if command is None:
        raise DeviceUnavailableError(f"no linker for code objects: {INSTALL}, or name an ld.lld in {LINKER}")
    return command


def problems() -> tuple[str, ...]:
    """Returns what keeps this machine from compiling."""
    named = os.environ.get(LINKER)
    if named and shutil.which(named) is None:
        return (f"{LINKER} names {named!r}, which is no program",)
    try:
        linker()
    except DeviceUnavailableError as error:
        return (str(error),)
    return ()


def toolchain() -> dict[str, str]:
    """Returns what tells the linker in use from others."""
    try:
        command = linker()
    except DeviceUnavailableError:
        return {"linker": "none"}
    if command[1:]:
        return {"linker": f"ziglang {metadata.version('ziglang')}"}
    return {"linker": program_identity(command[0])}
