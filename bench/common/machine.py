"""Where numbers come from: the processor, the memory, and the libraries with their builds and the kernels they chose."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from bench.common.harness import cpu_flags

PACKAGES = ("roller-compiler", "apache-tvm", "apache-tvm-ffi", "numpy", "scipy", "torch", "xgboost")
FEATURES = re.compile(r"^(sse4_2|avx|fma|f16c|bmi|amx|asimd|sve)")


def memory_bytes() -> int:
    """The machine's memory."""
    return int(psutil.virtual_memory().total)


def device() -> dict[str, Any]:
    """The processor: name, cores that this process may use, vector features; memory."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "features": sorted(f for f in cpu_flags() if FEATURES.match(f)),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def cpu_name() -> str:
    """The processor as Linux names it, with family and model: names alone may say little on virtual machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return platform.machine()
    found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    name = found.get("model name", platform.machine())
    return f"{name} (family {found['cpu family']}, model {found['model']})" if "cpu family" in found else name


def folder(described: Mapping[str, Any]) -> str:
    """The name under which results of a machine lie together: processor and cores."""
    return "-".join([*re.findall(r"[a-z0-9]+", described["cpu"].lower()), f"{described['cores']}c"])


def versions() -> dict[str, str]:
    """Packages, and how the libraries inside them were built; of those that this process has loaded."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    if "torch" in sys.modules:
        lines = [line.strip(" -") for line in sys.modules["torch"].__config__.show().splitlines()]
        found |= {"mkl": _line(lines, "Math Kernel"), "onednn": _line(lines, "MKL-DNN"), "torch_simd": _line(lines, "capability")}
    for name in ("numpy", "scipy"):
        with contextlib.suppress(KeyError, AttributeError, TypeError):
            blas = sys.modules[name].show_config(mode="dicts")["Build Dependencies"]["blas"]
            found[f"{name}_blas"] = blas["openblas configuration"]
    return found | openblas_cores()


def _line(lines: list[str], word: str) -> str:
    return next((line for line in lines if word in line), "")


def openblas_cores() -> dict[str, str]:
    """The processor type whose kernels each loaded OpenBLAS uses, by the library's file name."""
    found = {}
    for path in sorted(set(re.findall(r"\S*openblas\S*\.so\S*", Path("/proc/self/maps").read_text(encoding="utf-8")))):
        library = ctypes.CDLL(path)
        for symbol in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
            if hasattr(library, symbol):
                function = getattr(library, symbol)
                function.restype = ctypes.c_char_p
                found[f"openblas core ({Path(path).name.split('-')[0]})"] = function().decode()
                break
    return found
