"""What tells this machine's CPU toolchain from others, beyond TVM."""

from __future__ import annotations

from functools import cache

from roller.plugin import HardwareSpec
from roller_cpu.chip.topology import HOST, machine
from roller_cpu.toolchain import pins


def toolchain(spec: HardwareSpec) -> dict[str, str]:
    """Returns the version of the reader of object files; for this machine's own spec also its instruction sets."""
    own = {"instruction sets": " ".join(machine().features)} if spec.chip.startswith(HOST) else {}
    return {"pyelftools": _reader(), **own}


@cache
def _reader() -> str:
    return pins.installed("pyelftools") or "none"
