"""Calls of kernels with parallel loops: the number of threads, and what a fork does to TVM's thread pool."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from roller_cpu.chip.topology import available_cores
from roller_cpu.runtime import pool

T = TypeVar("T")
_local = threading.local()


def call(count: int, function: Callable[..., T], *arguments: Any) -> T:
    """Calls the function with parallel loops of at most `count` threads and returns its result.

    TVM's pool belongs to the calling thread. A forked child has that thread but not the pool's others, and would wait for them. The
    child therefore calls the function in a thread of its own.
    """
    if getattr(_local, "count", None) != count:
        if getattr(_local, "count", None) == _LOST:
            return _substitute().submit(lambda: call(count, function, *arguments)).result()
        _configure(count)
    return function(*arguments)


def _configure(count: int) -> None:
    """Sets the number of threads for parallel loops of the calling thread.

    The pool takes its size from the environment when it starts; later it only shrinks and grows within that size. By default it
    uses half of the processors and pins its workers. Both are wrong beside other work.
    """
    if not hasattr(_local, "count"):
        os.environ["TVM_NUM_THREADS"] = str(max(count, available_cores()))
        os.environ.setdefault("TVM_BIND_THREADS", "0")
    pool.configure(count)
    _local.count = count


# --- after a fork --------------------------------------------------------------------------------------------------------

_LOST = -1  # marks a pool whose threads a forked child does not have
_TASKS = Path("/proc/self/task")


@lru_cache(1)
def _substitute() -> ThreadPoolExecutor:
    """Returns a thread with its own pool, in place of the thread that lost its pool."""
    return ThreadPoolExecutor(1, thread_name_prefix="roller")


def _counted() -> None:
    """Records before a fork how many threads the child will lack, including those that stand-ins already replace."""
    _local.lost = sum(1 for _ in _TASKS.iterdir()) - 1 + getattr(_local, "standing_in", 0) if _TASKS.is_dir() else 0


def _forked() -> None:
    """Marks the pool of the child's thread as lost."""
    _substitute.cache_clear()  # its thread does not exist in the child either
    if hasattr(_local, "count"):
        _local.count = _LOST
        _stand_in(_local.lost)


def _stand_in(count: int) -> None:
    """Starts threads that end at once, in place of those that a forked child lacks.

    When a process exits, the pool of its first thread waits for the pool's others, and ends the process where there are none. glibc
    places new threads where the missing ones were, so that the pool finds these threads there instead.
    """
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    for _ in range(count):
        libc.pthread_create(ctypes.byref(thread), None, libc.free, None)
    _local.standing_in = count


os.register_at_fork(before=_counted, after_in_child=_forked)
