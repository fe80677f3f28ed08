"""How many threads kernels use, and telling TVM's pool."""

from __future__ import annotations

import os
import threading
from importlib import import_module

from roller.plugin import LaunchError
from roller_cpu.topology import available_cores

_local = threading.local()


def default_threads() -> int:
    """`ROLLER_NUM_THREADS`, else one for each available core; `LaunchError` where the variable is no positive number."""
    said = os.environ.get("ROLLER_NUM_THREADS")
    if said is None or not said.strip():
        return available_cores()
    if not said.strip().isdecimal() or int(said) < 1:
        raise LaunchError(f"ROLLER_NUM_THREADS={said!r} is not a positive number")
    return int(said)


def use_threads(count: int) -> None:
    """Let parallel loops of the calling thread use this many threads.

    TVM's pool belongs to the calling thread and takes its size from the environment when it starts; later it only shrinks and
    grows within that. It halves the processors by default and pins its workers, both wrong beside other work.
    """
    if getattr(_local, "count", None) == count:
        return
    if not hasattr(_local, "count"):
        os.environ["TVM_NUM_THREADS"] = str(max(count, available_cores()))
        os.environ.setdefault("TVM_BIND_THREADS", "0")
    import_module("tvm_ffi").get_global_func("runtime.config_threadpool")(1, count)
    _local.count = count
