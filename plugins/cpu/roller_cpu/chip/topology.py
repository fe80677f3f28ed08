"""Machine topology from the operating system: cores that this process may use, caches, instruction sets, memory."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

HOST = "host-"  # first letters of the name of this machine's own spec


@dataclass(frozen=True, slots=True)
class Cache:
    """One level of data cache, from the viewpoint of one core.

    Bytes of an instance, line, number of our cores that share it, and its sets (0 where unknown).
    """

    level: int
    size_bytes: int
    line_bytes: int
    sharing: int
    sets: int = 0


@dataclass(frozen=True, slots=True)
class Topology:
    """The structure of the machine, without its speeds."""

    name: str
    cores: int
    features: tuple[str, ...]
    caches: tuple[Cache, ...]  # outermost first
    memory_bytes: int

    @property
    def virtual(self) -> bool:
        """True in a virtual machine that reports itself as one."""
        return "hypervisor" in self.features

    @property
    def vector_bytes(self) -> int:
        """Width of the vector registers."""
        if "avx512f" in self.features:
            return 64
        return 32 if "avx" in self.features else 16


@cache
def available_cores() -> int:
    """Physical cores that this process may run on, by affinity and by the container's quota."""
    return machine().cores


@cache
def machine(root: Path = Path("/")) -> Topology:
    """Returns the topology of the machine; `root` is the folder that holds `proc` and `sys`."""
    processors = affinity()
    info = _text(root / "proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", info, re.MULTILINE)
    name = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    system = root / "sys/devices/system/cpu"
    cores = _cores(system, processors)
    quota = _quota(root)
    usable = max(1, min(len(cores), quota or len(cores)))
    return Topology(
        name.group(1).strip() if name else platform.machine(),
        usable,
        tuple(sorted(flags.group(1).split())) if flags else (),
        _caches(system, [core[0] for core in cores]),
        _memory(root),
    )


def affinity() -> tuple[int, ...]:
    """The logical processors that this process may run on."""
    return tuple(sorted(psutil.Process().cpu_affinity() or range(psutil.cpu_count() or 1)))


def _cores(system: Path, processors: Iterable[int]) -> list[tuple[int, ...]]:
    """Returns our logical processors, grouped by physical core."""
    found: dict[str, list[int]] = {}
    for number in processors:
        siblings = _text(system / f"cpu{number}/topology/thread_siblings_list").strip()
        found.setdefault(siblings or str(number), []).append(number)
    return [tuple(numbers) for numbers in found.values()]


def _quota(root: Path) -> int | None:
    """Returns the container's limit in whole processors, rounded up; None without a limit."""
    limit, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    return -(-int(limit) // int(period)) if limit.isdecimal() and period.strip().isdecimal() and int(period) else None


def _caches(system: Path, cores: list[int]) -> tuple[Cache, ...]:
    """Returns the data caches of the first core; empty where the system reports none."""
    found = []
    for folder in sorted((system / f"cpu{cores[0]}/cache").glob("index*")):
        level, size = _text(folder / "level").strip(), _size(_text(folder / "size"))
        if level.isdecimal() and size and _text(folder / "type").strip() != "Instruction":
            shared = _ranges(_text(folder / "shared_cpu_list")) or {cores[0]}
            line, sets = (_text(folder / name).strip() for name in ("coherency_line_size", "number_of_sets"))
            sharing = max(1, sum(1 for core in cores if core in shared))
            found.append(Cache(int(level), size, _number(line, 64), sharing, _number(sets, 0)))
    return tuple(sorted(found, key=lambda c: -c.level))


def _memory(root: Path) -> int:
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 8 << 30


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    return int(found.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found.group(2)] if found else 0


def _number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and int(text) else default


def _ranges(text: str) -> set[int]:
    """The numbers of a list such as 0-3,8."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers.update(range(int(first), int(last if last.isdecimal() else first) + 1))
    return numbers


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
