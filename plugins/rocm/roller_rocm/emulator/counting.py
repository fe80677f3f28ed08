"""Counts of an emulated kernel: instructions, cycles of local memory, lines of global memory, in its hottest loop and outside.

Local memory serves 128 bytes a cycle from 32 banks of 4 bytes. Lanes are served in groups: 32 for accesses of at most 4 bytes, 16
for 8, 8 for more; for wide reads the lanes that Composable Kernel names (0 to 3 with 20 to 23 and so on). None of this was checked
on hardware. An access takes as many cycles as the busiest bank has different words; the ideal is one for each group of lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roller_rocm.toolchain import mnemonics
from roller_rocm.toolchain.assembly import AsmKernel

COUNTERS = ("run", "lds_ideal", "lds_actual", "bytes", "lines_64", "lines")


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of local memory: without conflicts of banks, and with them."""

    ideal: int
    actual: int


@dataclass(frozen=True, slots=True)
class Lines:
    """Global memory traffic, added over the accesses of waves: bytes of the lanes, lines of 64 bytes, lines of the chip's size."""

    bytes: int
    lines_64: int
    lines: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The memory traffic of a part of a kernel."""

    lds_reads: Cycles
    lds_writes: Cycles
    loads: Lines
    stores: Lines


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a kernel's run: instructions of waves by class and by name; traffic in the hottest innermost loop, and outside.

    `loop_lines`: the loop's first and last line in the listing; None without a loop, whose traffic is then zero.
    """

    classes: Mapping[str, int]
    names: Mapping[str, int]
    loop: Traffic
    rest: Traffic
    loop_lines: tuple[int, int] | None


def counted(kernel: AsmKernel, counters: npt.NDArray[np.int64]) -> Counts:
    """Returns the counts from the counters of each instruction."""
    names: dict[str, int] = {}
    classes: dict[str, int] = {}
    for instruction, runs in zip(kernel.instructions, counters[:, 0].tolist(), strict=True):
        if runs:
            name = mnemonics.plain(instruction.name)
            names[name] = names.get(name, 0) + runs
            classes[class_of(instruction.name)] = classes.get(class_of(instruction.name), 0) + runs
    loop = hot_loop(kernel, counters[:, 0])
    inside = np.zeros(len(kernel.instructions), bool)
    if loop is not None:
        inside[loop[0] : loop[1] + 1] = True
    lines = None if loop is None else (kernel.instructions[loop[0]].line, kernel.instructions[loop[1]].line)
    return Counts(classes, names, _traffic(kernel, counters, inside), _traffic(kernel, counters, ~inside), lines)


def class_of(name: str) -> str:
    """Returns the class of an instruction."""
    means = mnemonics.meaning(name)
    writes = means.extra & mnemonics.WRITES
    if means.name == "scratch":
        return "scratch"
    if means.unit == mnemonics.GLOBAL:
        return "store" if writes else "load"
    if means.unit == mnemonics.LOCAL:
        return "exchange" if means.name != "local" else "lds write" if writes else "lds read"
    if means.unit == mnemonics.CONSTANT:
        return "scalar load"
    plain = mnemonics.plain(name)
    for start, found in (("s_waitcnt", "wait"), ("s_barrier", "barrier"), ("s_branch", "branch"), ("s_cbranch", "branch")):
        if plain.startswith(start):
            return found
    if means.shape[0]:
        return "matrix"
    return "vector" if plain.startswith("v_") else "scalar"


def hot_loop(kernel: AsmKernel, runs: npt.NDArray[np.int64]) -> tuple[int, int] | None:
    """Returns the first and the last instruction of the innermost loop that ran the most instructions."""
    loops = []
    for at, instruction in enumerate(kernel.instructions):
        target = kernel.labels.get(instruction.operands)
        if target is not None and target <= at and instruction.name.startswith(("s_branch", "s_cbranch")):
            loops.append((target, at))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    ran = [(int(runs[first : last + 1].sum()), first, last) for first, last in inner]
    most = max(ran, default=(0, 0, 0))
    return (most[1], most[2]) if most[0] else None


def _traffic(kernel: AsmKernel, counters: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]) -> Traffic:
    classes = np.array([class_of(instruction.name) for instruction in kernel.instructions])

    def total(wanted: str, counter: str) -> int:
        return int(counters[chosen & (classes == wanted), COUNTERS.index(counter)].sum())

    reads, writes = (Cycles(total(wanted, "lds_ideal"), total(wanted, "lds_actual")) for wanted in ("lds read", "lds write"))
    loads, stores = (Lines(*(total(wanted, c) for c in ("bytes", "lines_64", "lines"))) for wanted in ("load", "store"))
    return Traffic(reads, writes, loads, stores)
