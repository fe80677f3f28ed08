"""Probes of a GPU's speed as plain data: kernel launches, and the conversion of times to rates.

This file needs only the standard library, so that any program that can launch a cubin can measure with it. It provides the probes
for a chip (`table`, as JSON with `dataclasses.asdict`), and the value of a probe from its times. Every kernel
(`roller_cuda.chip.probe_kernels`) takes (data, ticks, count, rounds): a buffer, four 64-bit words that are zero before a probe's
first launch, an int64, an int32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

TICKS = 4  # 64-bit words that a kernel may leave: cycles, nanoseconds, and what keeps its work from being dropped
REPEATS = 8  # timings of a probe; the first one pays for what happens only once and does not count
RATE_SECONDS = 4e-3  # that a probe of arithmetic should take: long against a launch and the timer's steps
L2_BYTES = 4 << 30  # that the probe of the L2 cache reads
THREADS = 256
VECTOR, LINE, WORD = 16, 128, 4  # bytes
LOADS, SHARED_LOADS, BARRIERS, MULTIPLY_ADDS = 4, 8, 8, 64  # a thread and round
STRIDES = (1, 2, 4, 8, 16, 32, 64)  # words between neighbours' accesses to shared memory
CHAINS = 4  # products of a warp that do not wait for one another
TILE_ROW = 128  # bytes of a row of a tile in shared memory


@dataclass(frozen=True)
class Facts:
    """The driver's facts of a GPU; clocks in kHz, bus in bits. `memory_khz` is 0 where the driver does not report it."""

    name: str
    capability: tuple[int, int]
    sms: int
    clock_khz: int
    memory_khz: int
    bus_bits: int
    memory_bytes: int
    l2_bytes: int
    shared_sm_bytes: int
    shared_block_bytes: int
    shared_reserved_bytes: int
    registers_sm: int
    threads_sm: int
    threads_block: int
    blocks_sm: int
    warp: int

    @property
    def memory_gbps(self) -> float:
        """The peak bandwidth of the memory's clock and bus, at two transfers a cycle; 0 where the driver reports none."""
        return 2e-6 * self.memory_khz * self.bus_bits / 8

    @property
    def clock_ghz(self) -> float:
        """The highest clock."""
        return 1e-6 * self.clock_khz


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel on the bytes from `offset` of the buffer."""

    kernel: str
    blocks: int
    threads: int
    count: int
    rounds: int
    shared_bytes: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Probe:
    """A measurement; one timing covers `launches` consecutive launches of `launch`.

    Each launch moves or computes `amount` (bytes, flop, or steps). `prepare` runs once before the first timing, `flush` before
    every timing and outside it. `ahead` starts right before the timing, without a wait: launches are queued while it runs, so that
    none of them waits for the processor. `unit`: GB/s and GFLOP/s are amounts per nanosecond; ns and us are times of one step.
    `clocked`: `ticks` give the clock.
    """

    name: str
    unit: str
    launch: Launch
    amount: float
    data_bytes: int = 0
    launches: int = 1
    prepare: Launch | None = None
    flush: Launch | None = None
    ahead: Launch | None = None
    clocked: bool = False


@dataclass(frozen=True)
class Sample:
    """One timing: seconds from before the first launch to after the last, and the readings of the last kernel's own clocks."""

    seconds: float
    cycles: int = 0
    nanoseconds: int = 0


@dataclass(frozen=True)
class Instruction:
    """A matrix instruction: its PTX name, extents, registers of the operands and of the result, and bit patterns of the operands.

    `lanes` 128: operands lie in shared memory. `since`: the first compute capability with the instruction; for wgmma the only one.
    `scales`: text behind wgmma's operands: whether results count, factors of the operands, whether they are transposed.
    """

    ptx: str
    m: int
    n: int
    k: int
    registers: tuple[int, int, int]
    bits: tuple[int, int]  # of random bits those to keep, and those to set
    since: tuple[int, int]
    lanes: int = 32
    result: str = "f"  # constraint of the result: f float, r integer
    scales: str = "p, 1, 1, 0, 0"

    @property
    def flops(self) -> int:
        """Operations of one instruction."""
        return 2 * self.m * self.n * self.k

    @property
    def threads(self) -> int:
        """Threads of a block that runs it: one warpgroup, or several warps."""
        return self.lanes if self.lanes > 32 else THREADS

    @property
    def tile_bytes(self) -> int:
        """Shared memory of its operands."""
        return (self.m + self.n) * TILE_ROW if self.lanes > 32 else 0

    def there(self, capability: tuple[int, int]) -> bool:
        """Returns whether GPUs of a compute capability have it; warpgroup instructions exist on one architecture only."""
        return capability == self.since if self.lanes > 32 else capability >= self.since


_HALF, _BFLOAT, _BYTES = (0x83FF83FF, 0x30003000), (0x807F807F, 0x3E003E00), (0xFFFFFFFF, 0)
_TF32 = (0x807FE000, 0x3E000000)
_MMA, _WGMMA = "mma.sync.aligned.m16n8", "wgmma.mma_async.sync.aligned.m64n"
INSTRUCTIONS: Mapping[str, Instruction] = {  # by the name of the atom
    "wmma_m16n16k16": Instruction(
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", 16, 16, 16, (8, 8, 8), _HALF, (7, 0)
    ),
    "mma_m16n8k16_f16": Instruction(f"{_MMA}k16.row.col.f32.f16.f16.f32", 16, 8, 16, (4, 2, 4), _HALF, (8, 0)),
    "mma_m16n8k16_bf16": Instruction(f"{_MMA}k16.row.col.f32.bf16.bf16.f32", 16, 8, 16, (4, 2, 4), _BFLOAT, (8, 0)),
    "mma_m16n8k8_tf32": Instruction(f"{_MMA}k8.row.col.f32.tf32.tf32.f32", 16, 8, 8, (4, 2, 4), _TF32, (8, 0)),
    "mma_m16n8k32_s8": Instruction(f"{_MMA}k32.row.col.s32.s8.s8.s32", 16, 8, 32, (4, 2, 4), _BYTES, (8, 0), result="r"),
    **{
        f"wgmma_m64n{n}k16_{short}": Instruction(
            f"{_WGMMA}{n}k16.f32.{short}.{short}", 64, n, 16, (0, 0, n // 2), bits, (9, 0), 128
        )
        for n in (16, 32, 64, 128, 256)
        for short, bits in (("f16", _HALF), ("bf16", _BFLOAT))
    },
    **{
        f"wgmma_m64n{n}k8_tf32": Instruction(
            f"{_WGMMA}{n}k8.f32.tf32.tf32", 64, n, 8, (0, 0, n // 2), _TF32, (9, 0), 128, scales="p, 1, 1"
        )
        for n in (64, 128, 256)
    },
    "wgmma_m64n128k32_s8": Instruction(f"{_WGMMA}128k32.s32.s8.s8", 64, 128, 32, (0, 0, 64), _BYTES, (9, 0), 128, "r", "p"),
}  # fmt: skip


# --- what to launch ---------------------------------------------------------------------------------------------------


def table(facts: Facts, expected: Mapping[str, float]) -> tuple[Probe, ...]:
    """Returns the probes for a chip, in the order to run them.

    `expected`: GFLOP/s by the name of an atom; it sets the length of the computation. Names are `dram_read`, `dram_copy`,
    `l2_read`, `shared_read` (GB/s); `dram_latency`, `l2_latency`, `shared_latency`, `barrier` (ns); `launch` (us); `stride_1` and
    so on (ns for a warp's access); `rate_` and the atom's name (GFLOP/s).
    """
    rates = [_rate(facts, name, gflops) for name, gflops in expected.items() if _known(facts, name)]
    warm = [Probe("warm_up", "us", rates[0].launch, 1, launches=20)] if rates else []  # clocks rise with load
    return (*warm, *rates, *_memory(facts), *_shared(facts), *_costs(rates))


def buffer_bytes(probes: Sequence[Probe]) -> int:
    """Returns the size of a buffer for all probes."""
    return max((probe.data_bytes for probe in probes), default=0)


def _known(facts: Facts, name: str) -> bool:
    return name in SCALARS or (name in INSTRUCTIONS and INSTRUCTIONS[name].there(facts.capability))


SCALARS = {"f32": 2, "f64": 2, "i32": 2, "f16x2": 4}  # flop of one instruction of one thread


def _rate(facts: Facts, name: str, gflops: float) -> Probe:
    one = INSTRUCTIONS.get(name)
    if one is None:
        blocks, threads, shared = 4, THREADS, 0
        flops = float(SCALARS[name] * MULTIPLY_ADDS * threads)
    else:
        threads = one.threads
        blocks = 2
        shared = one.tile_bytes
        flops = float(one.flops * CHAINS * threads // one.lanes)
    blocks *= facts.sms
    rounds = max(1, round(RATE_SECONDS * 1e9 * gflops / (flops * blocks)))
    launch = Launch(f"rate_{name}", blocks, threads, 1 << 20, rounds, shared)
    return Probe(f"rate_{name}", "GFLOP/s", launch, flops * blocks * rounds, clocked=True)


def _power(value: int) -> int:
    """Returns the smallest power of two that is not below the value."""
    return 1 << max(0, (value - 1).bit_length())


def _memory(facts: Facts) -> list[Probe]:
    """Returns the memory probes. A flush fills the L2 cache with other data before a timing that must miss it."""
    blocks = facts.sms * max(1, facts.threads_sm // THREADS)
    near = _power(facts.l2_bytes // 4 + 1) // 2  # the L2 cache holds it, in each of its halves where it has two
    far = max(_power(8 * facts.l2_bytes), 256 << 20)
    whole = max(far, _power(facts.memory_bytes // 16 + 1) // 2)
    flush = _reading(blocks, _power(2 * facts.l2_bytes), whole)
    room = whole + flush.count * VECTOR
    read, cached = _reading(blocks, whole), _reading(blocks, near, total=L2_BYTES)
    half = whole // 2 // VECTOR
    copy = Launch("probe_copy", blocks, THREADS, half, half // (LOADS * blocks * THREADS))
    moved = float(LOADS * VECTOR * blocks * THREADS)
    return [
        Probe("dram_read", "GB/s", read, moved * read.rounds, room, flush=flush),
        Probe("dram_copy", "GB/s", copy, 2 * moved * copy.rounds, room, flush=flush),
        Probe("l2_read", "GB/s", cached, moved * cached.rounds, near),
        _chase("dram_latency", facts, far, room, flush),
        _chase("l2_latency", facts, near, near, None),
    ]


def _reading(blocks: int, size: int, offset: int = 0, total: int = 0) -> Launch:
    """Returns a launch that reads `size` bytes, a power of two, once or up to `total`, in whole rounds of all threads."""
    rounds = max(1, max(size, total) // (LOADS * VECTOR * blocks * THREADS))
    return Launch("probe_read", blocks, THREADS, size // VECTOR, rounds, offset=offset)


def _chase(name: str, facts: Facts, size: int, room: int, flush: Launch | None) -> Probe:
    steps = min(1 << 14, size // LINE)
    chain = Launch("probe_chain", facts.sms, THREADS, size // LINE, 1)
    return Probe(name, "ns", Launch("probe_chase", 1, 1, size // LINE, steps), steps, room, prepare=chain, flush=flush)


def _shared(facts: Facts) -> list[Probe]:
    threads = min(1024, facts.threads_block)
    vectors = threads + (SHARED_LOADS - 1) * 128
    rounds, few, words = 4096, 4096, 1024
    moved = float(rounds * facts.sms * threads * SHARED_LOADS * VECTOR)
    read = Launch("probe_shared_read", facts.sms, threads, vectors, rounds, vectors * VECTOR)
    chase = Launch("probe_shared_chase", 1, 1, words, 1 << 16, words * WORD)
    accesses = few * SHARED_LOADS * THREADS // facts.warp
    strides = [
        Probe(f"stride_{s}", "ns", Launch("probe_shared_stride", 1, THREADS, s, few, 1024 * VECTOR), accesses) for s in STRIDES
    ]
    return [
        Probe("shared_read", "GB/s", read, moved),
        Probe("shared_latency", "ns", chase, chase.rounds),
        *strides,
    ]


def _costs(rates: Sequence[Probe]) -> list[Probe]:
    rounds, ahead = 1 << 13, rates[0].launch if rates else None
    return [
        Probe("barrier", "ns", Launch("probe_barrier", 1, THREADS, 1, rounds), rounds * BARRIERS),
        Probe("launch", "us", Launch("probe_empty", 1, 32, 1, 1), 1, launches=200, ahead=ahead),
    ]


# --- how times become values ------------------------------------------------------------------------------------------


def settled(values: Sequence[float]) -> float:
    """Returns the median of all but the first; `ValueError` where too few are left or one is not a positive number."""
    counted = values[1:]
    if len(counted) < 3:
        raise ValueError(f"{len(values)} timings: at least 4 are needed; the first does not count")
    if not all(math.isfinite(value) and value > 0 for value in counted):
        raise ValueError("a timing is not a positive number")
    return median(counted)


def value_of(probe: Probe, samples: Sequence[Sample]) -> float:
    """Returns the probe's value in its unit, computed from its timings."""
    seconds = settled([sample.seconds for sample in samples]) / probe.launches
    if probe.unit in {"GB/s", "GFLOP/s"}:
        return 1e-9 * probe.amount / seconds
    return {"ns": 1e9, "us": 1e6}[probe.unit] * seconds / probe.amount


def clock_of(samples: Sequence[Sample]) -> float:
    """Returns the clock in GHz at which a clocked probe ran."""
    return settled([sample.cycles / sample.nanoseconds if sample.nanoseconds else math.nan for sample in samples])


def banks_of(strides: Mapping[int, float]) -> int | None:
    """Returns the number of banks of one word: the stride from which on all lanes of a warp hit one bank, and time stops growing.

    `strides`: the time of an access by words between neighbours. None where no stride shows it.
    """
    known = sorted(strides)
    slow = [strides[far] > 1.4 * strides[near] for near, far in pairwise(known)]
    if True not in slow or slow[-1]:
        return None
    last = len(slow) - 1 - slow[::-1].index(True)
    return known[last + 1]
