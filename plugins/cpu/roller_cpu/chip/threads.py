"""How many threads kernels use, and telling TVM's pool."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from roller.plugin import LaunchError
from roller_cpu.chip.topology import available_cores

T = TypeVar("T")
_local = threading.local()


def default_threads() -> int:
    """`ROLLER_NUM_THREADS`, else one for each available core; `LaunchError` where the variable is no positive number."""
    said = os.environ.get("ROLLER_NUM_THREADS")
    if said is None or not said.strip():
        return available_cores()
    if not said.strip().isdecimal() or int(said) < 1:
        raise LaunchError(f"ROLLER_NUM_THREADS={said!r} is not a positive number")
    return int(said)


def call(count: int, function: Callable[..., T], *arguments: Any) -> T:
    """What the function gives, whose parallel loops may use so many threads.

    TVM's pool belongs to the calling thread. A forked child has that thread but not the pool's others, which it would wait for:
    there the function is called in a thread of the child's own.
    """
    if getattr(_local, "count", None) != count:
        if getattr(_local, "count", None) == _LOST:
            return _substitute().submit(lambda: call(count, function, *arguments)).result()
        _configure(count)
    return function(*arguments)


def _configure(count: int) -> None:
    """Let parallel loops of the calling thread use this many threads.

    Its pool takes its size from the environment when it starts; later it only shrinks and grows within that. It halves the
    processors by default and pins its workers, both wrong beside other work.
    """
    if not hasattr(_local, "count"):
        os.environ["TVM_NUM_THREADS"] = str(max(count, available_cores()))
        os.environ.setdefault("TVM_BIND_THREADS", "0")
    import_module("tvm_ffi").get_global_func("runtime.config_threadpool")(1, count)
    _local.count = count


# --- after a fork --------------------------------------------------------------------------------------------------------

_LOST = -1  # threads of a pool that a forked child does not have
_TASKS = Path("/proc/self/task")


@lru_cache(1)
def _substitute() -> ThreadPoolExecutor:
    """A thread with a pool of its own, in place of the one that lost it."""
    return ThreadPoolExecutor(1, thread_name_prefix="roller")


def _counted() -> None:
    """Before a fork: how many threads the child will lack, besides those that already stand in for lost ones."""
    _local.lost = sum(1 for _ in _TASKS.iterdir()) - 1 + getattr(_local, "standing_in", 0) if _TASKS.is_dir() else 0


def _forked() -> None:
    """In the child: its thread is told that the pool is lost."""
    _substitute.cache_clear()  # its thread is not here either
    if hasattr(_local, "count"):
        _local.count = _LOST
        _stand_in(_local.lost)


def _stand_in(count: int) -> None:
    """When a process exits, the pool of its first thread waits for the pool's others, and ends the process where there are none.
    glibc gives new threads the places of those that a child lacks: as many that end at once are found there instead.
    """
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    for _ in range(count):
        libc.pthread_create(ctypes.byref(thread), None, libc.free, None)
    _local.standing_in = count


os.register_at_fork(before=_counted, after_in_child=_forked)
