"""Files: written whole or not at all, and where the user's own are kept."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

import platformdirs


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part; OSError where that is impossible.

    The bytes go to a temporary file in the same folder, reach the disk, and take the name in one step. Whatever interrupts
    that, Ctrl-C included, removes the temporary file. A link stays one: what it leads to is written. What is there and is no
    regular file (a device, a pipe, a socket) is refused.
    """
    target = Path(os.path.realpath(path))
    refuse_special(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    # os.open, not tempfile: the file must get the permissions that the user's umask gives to any new file.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def refuse_special(path: str | Path) -> None:
    """OSError where a file that is to be written exists and is no regular file: it would be replaced by one."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, no regular file", str(path))


def config_dir() -> Path:
    """Where the user's own files are kept: `ROLLER_CONFIG_DIR`, else the platform's place for configuration."""
    chosen = os.environ.get("ROLLER_CONFIG_DIR")
    return Path(chosen).expanduser() if chosen else platformdirs.user_config_path("roller")


def cache_dir() -> Path:
    """Where files are kept that can be made again: `ROLLER_CACHE_DIR`, else the platform's place for caches."""
    chosen = os.environ.get("ROLLER_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("roller")


def spec_dir() -> Path:
    """Where the user's own spec files are kept, each `<device>/<chip>.toml`."""
    return config_dir() / "specs"
