"""The versions of TVM that this plugin works with."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from roller.plugin import CodegenError

# Later versions of tvm-ffi crash the process in `tensorize` and `save_json`; TVM's names change with every release.
PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}


def installed(package: str) -> str | None:
    """Returns the installed version of a package; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def problems() -> tuple[str, ...]:
    """Returns one sentence for each package whose version is not the pinned one."""
    found = ((package, wanted, installed(package)) for package, wanted in PINNED.items())
    return tuple(
        f"{package} {there or 'is not installed, but'} {'is installed, but ' if there else ''}{wanted} is needed: "
        f"pip install {package}=={wanted}"
        for package, wanted, there in found
        if there != wanted
    )


def check() -> None:
    """Raises `CodegenError` if an installed version is not the pinned one."""
    if problems():
        raise CodegenError("; ".join(problems()))
