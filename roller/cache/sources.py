"""Digests of installed packages: the content of their files, so that an edited source is another package."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from functools import cache
from pathlib import Path

import psutil

_log = logging.getLogger("roller.cache")

# When this process began; a forked one has the modules of its parent, and so the parent's time.
_BEGUN = min(psutil.Process().create_time(), time.time())
_LEFT_OUT = ("__pycache__",)


@cache
def digest(package: str) -> str | None:
    """Returns the digest of an imported top-level package or module; None where its files are not known.

    Also None where a file changed after this process began: the code that runs may be the one before. The time that counts is that
    of the inode, which copies and tools cannot set back.
    """
    files = _files(package)
    if not files:
        return None
    found = hashlib.sha256()
    for name, path in files:
        try:
            changed, content = path.stat().st_ctime, path.read_bytes()
        except OSError as error:
            _log.info("kernels are not kept on disk: %s: %s", path, error.strerror)
            return None
        if changed > _BEGUN:
            _log.info("kernels are not kept on disk: %s changed after this process began", path)
            return None
        found.update(f"{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def _files(package: str) -> list[tuple[str, Path]]:
    """Returns the files of a package and their names in it, sorted."""
    module = sys.modules.get(package)
    folders, file = list(getattr(module, "__path__", ())), getattr(module, "__file__", None)
    if not folders:
        return [(Path(file).name, Path(file))] if file and Path(file).is_file() else []
    found = []
    for folder in folders:
        for where, below, names in os.walk(folder):
            below[:] = [name for name in below if name not in _LEFT_OUT]
            found += [(os.path.relpath(Path(where, name), folder), Path(where, name)) for name in names]
    return sorted(found)
