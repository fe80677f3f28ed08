"""The folder of the kernel cache: it is the user's own, and every file in it is reached from the opened folder."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SUFFIX, UNFINISHED, LOCK = ".kernel", ".tmp", ".lock"
STALE_SECONDS = 3600  # unfinished files and locks of processes that are gone
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in place of a file must not stop the process
KEPT_SHARE = 0.9  # of the limit is left by eviction, so that not every write evicts


class UntrustedError(OSError):
    """A folder that others may have written to."""


@dataclass(frozen=True, slots=True)
class File:
    """An entry's file: its key, bytes, and when it was last used."""

    digest: str
    size: int
    used: float


class Folder:
    """An opened folder. All methods raise OSError as the system does."""

    def __init__(self, path: Path, create: bool) -> None:
        """Opens the folder without following a link; `UntrustedError` unless it is the user's own, and closed to others."""
        self.path = path
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        if path.is_symlink():
            raise UntrustedError("it is a link")
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        about = os.fstat(self._handle)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            self.close()
            raise UntrustedError(f"others can open it: it must be yours alone (chmod 700 {path})")

    def close(self) -> None:
        """Closes the folder."""
        os.close(self._handle)

    def read(self, digest: str, touch: bool) -> bytes | None:
        """Returns the content of an entry's file, read once; None if there is none. `touch`: records that it was used."""
        try:
            handle = os.open(digest + SUFFIX, _READ, dir_fd=self._handle)
        except FileNotFoundError:
            return None
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                raise UntrustedError(f"{digest}{SUFFIX} is no file of yours")
            with os.fdopen(handle, "rb", closefd=False) as file:
                content = file.read()
            if touch:
                with suppress(OSError):
                    os.utime(handle)
        finally:
            os.close(handle)
        return content

    def write(self, digest: str, content: bytes) -> None:
        """Publishes an entry by one rename: others see all of it or nothing."""
        unfinished = f"{digest}.{os.getpid()}-{secrets.token_hex(4)}{UNFINISHED}"
        handle = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._handle
        )
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
            os.rename(unfinished, digest + SUFFIX, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        except BaseException:
            self._unlink(unfinished)
            raise

    def remove(self, digest: str) -> None:
        """Removes an entry; nothing if there is none."""
        self._unlink(digest + SUFFIX)

    def files(self) -> list[File]:
        """Returns the entries' files, the one that was used last first."""
        found = [File(n.removesuffix(SUFFIX), s.st_size, s.st_mtime) for n, s in self._all() if n.endswith(SUFFIX)]
        return sorted(found, key=lambda file: -file.used)

    def trim(self, most_bytes: int) -> int:
        """Removes what dead processes left, and the entries not used for longest if all are larger; returns how many."""
        now, files = time.time(), self.files()
        for name, about in list(self._all()):
            if name.endswith((UNFINISHED, LOCK)) and now - about.st_mtime > STALE_SECONDS:
                self._unlink(name)
        total, removed = sum(file.size for file in files), 0
        if total <= most_bytes:
            return 0
        while files and total > KEPT_SHARE * most_bytes:
            last = files.pop()
            self.remove(last.digest)
            total, removed = total - last.size, removed + 1
        return removed

    def lock_path(self, digest: str) -> Path:
        """Returns the path of the lock of a key, from the opened folder as all others."""
        return Path(f"/proc/self/fd/{self._handle}") / (digest + LOCK)

    def unlock(self, digest: str) -> None:
        """Removes the lock's file."""
        self._unlink(digest + LOCK)

    def _all(self) -> Iterator[tuple[str, os.stat_result]]:
        for name in os.listdir(self._handle):  # noqa: PTH208  (of the opened folder, not of its path)
            with suppress(FileNotFoundError):  # another process may remove it meanwhile
                about = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
                if stat.S_ISREG(about.st_mode):
                    yield name, about

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)
