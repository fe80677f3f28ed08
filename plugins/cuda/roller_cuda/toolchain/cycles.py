"""Simulation of a machine-code loop on one partition of a multiprocessor, in cycles, by the control fields of its instructions.

Every instruction (from compute capability 7.0 on) has three control fields: the cycles until its warp's next instruction, the
counters (of six) that it holds until it has read its operands or written its result, and the counters that must be free before it
starts (Jia, Maggioni, Staiger and Scarpazza, "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018). A
scheduler starts one instruction a cycle. It takes the warp of the last instruction if that one is ready, else the next ready warp.
It takes no warp that is two trips ahead of others, as blocks wait for all their warps. Arithmetic and shared memory take the next
instruction when they have finished the previous one.

Not modelled: code outside the loop, conflicts of register banks, instruction fetch, and contention in outer memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from roller_cuda.toolchain import cubin
from roller_cuda.toolchain.disassembly import BYTES, Instruction
from roller_cuda.toolchain.machine_code import ARITHMETIC, Stretch

COUNTERS, NO_COUNTER = 6, 7
FROM_SHARED = frozenset({"LDS", "LDSM", "STS", "ATOMS"})
FROM_OUTSIDE = frozenset({"LDG", "LD", "LDL", "ATOMG", "ATOM"})
OUTSIDE, OTHERS, TAKEN = 400.0, 20.0, 10.0  # cycles: outer memory, other instructions that hold a counter, reads of operands
QUEUE = 8.0  # cycles of queued accesses to shared memory that do not stall their warp
WARM, COUNTED = 2, 6  # warm-up trips, and after them the counted trips


@dataclass(frozen=True, slots=True)
class Control:
    """The control fields of an instruction.

    Cycles before the warp's next instruction, the counters that it holds until its result is written and its operands are read, and
    the counters that it waits for.
    """

    stall: int
    written: int
    read: int
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """One partition of a multiprocessor.

    `groups`: resident warps; `arithmetic`: cycles from one arithmetic instruction to the next; `access`: cycles that an access
    takes of the partition's share of shared memory; `latency`: cycles until the data read there can be used. `ValueError` without a
    warp.
    """

    groups: int
    arithmetic: int
    access: float
    latency: float

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise ValueError(f"a partition runs at least one warp, not {self.groups}")


def controls(data: bytes, kernel: str) -> tuple[Control, ...]:
    """Returns the control fields of a kernel's instructions, in order of address; `KeyError` where the cubin has no such kernel."""
    code = cubin.code_of(data, kernel)
    return tuple(_control(struct.unpack_from("<Q", code, at + BYTES // 2)[0] >> 41) for at in range(0, len(code), BYTES))


def share(data: bytes, kernel: str, loop: Stretch, partition: Partition) -> float:
    """Returns the share of a loop's cycles in which the partition starts arithmetic, at most 1.

    0 where all products of the loop are those of tensor cores, which are not simulated.
    """
    found = cycles(loop.instructions, controls(data, kernel), partition)
    work = sum(i.base in ARITHMETIC for i in loop.instructions)
    return partition.groups * work * partition.arithmetic / found


def cycles(loop: Sequence[Instruction], said: Sequence[Control], partition: Partition) -> float:
    """Returns the cycles of one trip of all warps. `said`: the control fields of every instruction of the kernel."""
    first = loop[0].at // BYTES
    run = _Run([i.base for i in loop], said[first : first + len(loop)], partition)
    begun = run.until(WARM)
    return (run.until(WARM + COUNTED) - begun) / COUNTED


def _control(word: int) -> Control:
    waits = tuple(n for n in range(COUNTERS) if word >> (11 + n) & 1)
    return Control(word & 0xF, word >> 5 & 7, word >> 8 & 7, waits)


@dataclass
class _Warp:
    at: int = 0
    trips: int = 0
    ready: float = 0.0
    free: list[float] = field(default_factory=lambda: [0.0] * COUNTERS)


@dataclass
class _Run:
    """The warps of a loop; time advances with every instruction that starts."""

    names: list[str]
    said: Sequence[Control]
    partition: Partition
    now: float = 0.0
    arithmetic: float = 0.0  # earliest start of the next one
    shared: float = 0.0
    last: int = 0

    def __post_init__(self) -> None:
        self.warps = [_Warp() for _ in range(self.partition.groups)]

    def until(self, trips: int) -> float:
        """Returns the time at which the last warp has made that many trips."""
        while min(warp.trips for warp in self.warps) < trips:
            starts = [max(self.now, self._start(warp)) for warp in self.warps]
            behind = min(warp.trips for warp in self.warps)
            order = [(start, self.warps[n].trips > behind + 1, (n - self.last) % len(starts)) for n, start in enumerate(starts)]
            number = order.index(min(order))
            self.now = starts[number]
            self._started(self.warps[number])
            self.last = number
            self.now += 1
        return self.now

    def _start(self, warp: _Warp) -> float:
        """Returns the earliest start of a warp's next instruction."""
        name, said = self.names[warp.at], self.said[warp.at]
        start = max([warp.ready, *(warp.free[n] for n in said.waits)])
        if name in ARITHMETIC:
            return max(start, self.arithmetic)
        return max(start, self.shared - QUEUE) if name in FROM_SHARED else start

    def _started(self, warp: _Warp) -> None:
        name, said = self.names[warp.at], self.said[warp.at]
        done = self.now + OTHERS
        if name in ARITHMETIC:
            self.arithmetic = self.now + self.partition.arithmetic
        elif name in FROM_SHARED:
            self.shared = max(self.shared, self.now) + self.partition.access
            done = self.shared + self.partition.latency
        elif name in FROM_OUTSIDE:
            done = self.now + OUTSIDE
        if said.written != NO_COUNTER:
            warp.free[said.written] = max(warp.free[said.written], done)
        if said.read != NO_COUNTER:
            warp.free[said.read] = max(warp.free[said.read], self.now + TAKEN)
        warp.ready = self.now + max(1, said.stall)
        warp.at += 1
        if warp.at == len(self.names):
            warp.at, warp.trips = 0, warp.trips + 1
