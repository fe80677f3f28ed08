"""fetch(): a kernel from memory, from disk, or built now. Every failure of the disk is a miss."""

from __future__ import annotations

import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from roller.cache import entry, settings
from roller.cache.entry import DamagedError, Kept
from roller.cache.folder import Folder, UntrustedError
from roller.cache.key import Key
from roller.errors import RollerError

_log = logging.getLogger("roller.cache")

IN_MEMORY = 256  # kernels; each is some hundred kilobytes
WAIT_SECONDS = 120.0  # for another process that builds the same kernel; then it is built twice

_memory: OrderedDict[str, Kept] = OrderedDict()
_guard = threading.Lock()
_warned: set[str] = set()


def fetch(key: Key, build: Callable[[], Kept]) -> Kept:
    """Returns the kernel of a key: kept before, or built now and kept."""
    mode, limit = settings.mode(), settings.most_bytes()
    if mode == "off":
        return build()
    with _guard:
        if key.digest in _memory:
            _memory.move_to_end(key.digest)
            return _memory[key.digest]
    found = _from_disk(key, build, mode == "rw", limit) if key.persistent else build()
    with _guard:
        _memory[key.digest] = found
        while len(_memory) > IN_MEMORY:
            _memory.popitem(last=False)
    return found


def forget() -> None:
    """Empties the cache in memory."""
    with _guard:
        _memory.clear()


def _from_disk(key: Key, build: Callable[[], Kept], write: bool, limit: int) -> Kept:
    folder = opened(write)
    if folder is None:
        return build()
    try:
        if (found := _read(folder, key, write)) is not None:
            return found
        if not write:
            return build()
        with _alone(folder, key):
            found = _read(folder, key, write)
            return _built(folder, key, build, limit) if found is None else found
    finally:
        folder.close()


def opened(create: bool) -> Folder | None:
    """Returns the folder; None, with one warning, if it cannot be trusted, and None if it cannot be opened."""
    path = settings.folder()
    try:
        return Folder(path, create)
    except UntrustedError as error:
        reason = str(error)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or str(error)
    if (said := f"the kernel cache {path} is not used: {reason}") not in _warned:
        _warned.add(said)
        warnings.warn(said, stacklevel=5)
    return None


def _read(folder: Folder, key: Key, touch: bool) -> Kept | None:
    """Returns a kept kernel; None if there is none. A damaged entry is removed."""
    try:
        raw = folder.read(key.digest, touch)
        if raw is None:
            return None
        try:
            return entry.read(raw, key.digest)
        except (DamagedError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            _log.warning("an entry of the kernel cache is damaged, and is built again: %s", error)
            if touch:
                folder.remove(key.digest)
    except OSError as error:
        _log.info("the kernel cache cannot be read: %s", error)
    return None


def _built(folder: Folder, key: Key, build: Callable[[], Kept], limit: int) -> Kept:
    made = build()
    try:
        folder.write(key.digest, entry.written(key, made))
        folder.trim(limit)
    except (OSError, RollerError) as error:
        _log.info("the kernel is not kept: %s", error)
    return made


@contextmanager
def _alone(folder: Folder, key: Key) -> Iterator[None]:
    """Waits while another process, or another thread, builds the same kernel; not longer than the deadline."""
    lock = FileLock(folder.lock_path(key.digest), timeout=WAIT_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError) as error:
        _log.info("the kernel is built without a lock: %s", error)
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            folder.unlock(key.digest)
        with suppress(OSError):
            lock.release()
