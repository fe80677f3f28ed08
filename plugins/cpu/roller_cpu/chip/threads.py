"""Number of threads for kernels."""

from __future__ import annotations

import os

from roller.plugin import LaunchError
from roller_cpu.chip.topology import available_cores


def default_threads() -> int:
    """Returns `ROLLER_NUM_THREADS`, else one for each available core; `LaunchError` if the variable is not a positive number."""
    said = os.environ.get("ROLLER_NUM_THREADS")
    if said is None or not said.strip():
        return available_cores()
    if not said.strip().isdecimal() or int(said) < 1:
        raise LaunchError(f"ROLLER_NUM_THREADS={said!r} is not a positive number")
    return int(said)
