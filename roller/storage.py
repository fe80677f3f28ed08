"""Files: atomic writes, and the folders of the user's own files."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from pathlib import Path

import platformdirs


def write_atomic(path: str | Path, data: bytes) -> None:
    """Writes a file so that readers see the old content or the new, never a part; OSError if that is impossible.

    The bytes go to a temporary file in the same folder, are flushed to disk, and take the name in one step. After any interruption,
    Ctrl-C included, the temporary file is removed. A link is kept: its target is written. An existing path that is no regular file
    (a device, a pipe, a socket) is refused.
    """
    target = Path(os.path.realpath(path))
    refuse_special(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    # os.open, not tempfile: the file must get the permissions of the user's umask, like any new file.
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
    """Raises OSError if the path exists and is no regular file: a regular file would replace it."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, no regular file", str(path))


def program_identity(command: str | None) -> str:
    """Returns what tells a program from its other versions: its path, bytes and time of change; "none" if there is none."""
    path = shutil.which(command) if command else None
    if path is None:
        return "none"
    about = Path(path).stat()
    return f"{os.path.realpath(path)}, {about.st_size} bytes, {about.st_mtime_ns}"


def config_dir() -> Path:
    """Returns the folder of the user's own files: `ROLLER_CONFIG_DIR`, else the platform's folder for configuration."""
    chosen = os.environ.get("ROLLER_CONFIG_DIR")
    return Path(os.path.expanduser(chosen)) if chosen else platformdirs.user_config_path("roller")  # noqa: PTH111  (that of Path raises for an unknown user)


def cache_dir() -> Path:
    """Returns the folder of files that can be made again: `ROLLER_CACHE_DIR`, else the platform's folder for caches."""
    chosen = os.environ.get("ROLLER_CACHE_DIR")
    return Path(os.path.expanduser(chosen)) if chosen else platformdirs.user_cache_path("roller")  # noqa: PTH111  (that of Path raises for an unknown user)


def spec_dir() -> Path:
    """Returns the folder of the user's own spec files, each `<device>/<chip>.toml`."""
    return config_dir() / "specs"
