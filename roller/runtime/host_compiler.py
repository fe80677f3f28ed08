"""A C++ compiler of this machine, for emulators and checks that run generated source on the host."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import util

from roller.errors import DeviceUnavailableError


def host_compiler(purpose: str) -> list[str]:
    """Returns the command of a C++ compiler: `CXX`, else g++ or clang++ on PATH, else that of PyPI's `ziglang`.

    `DeviceUnavailableError` if there is none; `purpose` begins its text (for example "the emulator needs").
    """
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found is not None:
        return [found]
    if util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    raise DeviceUnavailableError(f"{purpose} a C++ compiler: g++ or clang++ on PATH, its path in CXX, or pip install ziglang")


__all__ = ["host_compiler"]
