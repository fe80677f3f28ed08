"""Microbenchmarks of the running machine: three small LLVM IR kernels measure the clock, multiply-adds and buffer reads."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from roller.plugin import RowShares, address
from roller_cpu.chip.probing import area, function_text, module_text
from roller_cpu.chip.row_probe import row_shares
from roller_cpu.codegen import dot_products
from roller_cpu.toolchain import compiling

# Trials of each measurement. The fastest counts, as disturbances only slow trials down. More run where the fastest few disagree.
TRIALS, TRIALS_MAX = 6, 30
FEW = 16  # one in this many trials, and at least two, must agree with the fastest
AGREE = 0.05
TRIAL_SECONDS = 0.01
# Trials of one core's clock and of its multiply-adds: so short that most lie within one time slice of the scheduler (milliseconds).
SHORT_TRIALS, SHORT_SECONDS = 64, 0.0005
MULTIPLY_CYCLES = {"x86_64": 3, "aarch64": 2}  # latency of a 64-bit multiplication, the same for many generations
ACCUMULATORS, LOADS = 12, 8
DOTS = {
    128: 12,
    256: 12,
    512: 24,
}  # accumulators of dot products by bits: their latency is longer, and wide ones have more registers

_LOOP = """
loop:
  %r = phi i64 [ 0, %entry ], [ %r1, %{last} ]
{body}
  %r1 = add i64 %r, 1
  %more = icmp slt i64 %r1, %rounds
  br i1 %more, label %loop, label %done
done:
{after}
  ret i32 0
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """The measured rates.

    `clock_ghz`: clock of one core. `alone_per_cycle`: float operations per cycle of one core while the others are idle. `gflops`:
    multiply-adds of all cores together. `read_gbps`: bytes read by all cores together, by buffer. `alone_gbps`: bytes read by one
    core while the others are idle. `spread`: relative difference of the fastest few repeats, the largest over multiply-adds on all
    cores and reads of each core's private caches. `dots`: how many dot products of each name start while a multiply-add starts.
    `rows`, `alone_rows`: what is left of a buffer's bandwidth where rows are read in turn, by all cores and by one. `launch_us`: by
    how much a parallel loop over all cores takes longer than its work; None where that was not measured.
    """

    clock_ghz: float
    alone_per_cycle: float
    gflops: float
    read_gbps: Mapping[str, float]
    alone_gbps: Mapping[str, float]
    spread: float
    dots: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, RowShares] = field(default_factory=dict)
    alone_rows: Mapping[str, RowShares] = field(default_factory=dict)
    launch_us: float | None = None


def measure(
    cores: int,
    vector_bytes: int,
    processor: str,
    buffers: Mapping[str, int],
    *,
    own: Collection[str] = (),
    fused: bool = True,
    dots: Collection[str] = (),
    in_rows: Collection[str] = (),
) -> Rates:
    """Measures the rates with `cores` cores busy; `buffers` names the bytes that each core reads repeatedly.

    `own`: buffers in caches that no other core shares, so that repeats agree. `fused`: the processor has fused multiply-adds.
    `dots`: the names of dot-product atoms that it has. `in_rows`: buffers that are read in rows, too.
    """
    module = compiling.load_module(_text(vector_bytes, processor, fused, dots))
    clock, fma, read = (module[name] for name in ("clock", "fma", "read"))
    areas = [area(max(buffers.values(), default=0)) for _ in range(cores)]
    whole = {name: size // (vector_bytes * LOADS) * vector_bytes * LOADS for name, size in buffers.items()}
    work = 2.0 * (vector_bytes // 4) * ACCUMULATORS
    with ThreadPoolExecutor(cores) as pool:
        cycle, one = (_Loop(pool, function, areas[:1], 64, SHORT_SECONDS) for function in (clock, fma))
        summed = {name: _Loop(pool, module[name], areas[:1], 64, SHORT_SECONDS) for name in _measurable(dots)}
        every = _Loop(pool, fma, areas, 64)
        together = {name: _Loop(pool, read, areas, size) for name, size in whole.items()}
        alone = {name: _Loop(pool, read, areas[:1], size) for name, size in whole.items()}
        alike = [every, *(together[name] for name in own)]
        _interleaved((*together.values(), *alone.values()), every, alike)
        for _ in range(SHORT_TRIALS):
            for loop in (cycle, one, *summed.values()):
                loop.trial()
    in_turn = partial(row_shares, vector_bytes=vector_bytes, processor=processor)
    ghz = 8 * MULTIPLY_CYCLES.get(platform.machine(), 3) * 1e-9 / cycle.seconds
    return Rates(
        clock_ghz=ghz,
        alone_per_cycle=work * 1e-9 / one.seconds / ghz,
        gflops=work * cores * 1e-9 / every.seconds,
        read_gbps={name: whole[name] * cores * 1e-9 / loop.seconds for name, loop in together.items()},
        alone_gbps={name: whole[name] * 1e-9 / loop.seconds for name, loop in alone.items()},
        spread=max(loop.spread for loop in alike),
        dots={name: one.seconds / ACCUMULATORS * DOTS[_bits(name)] / loop.seconds for name, loop in summed.items()},
        rows={name: in_turn(cores, size=buffers[name]) for name in in_rows},
        alone_rows={name: in_turn(1, size=buffers[name]) for name in in_rows},
    )


def _interleaved(loops: Sequence[_Loop], every: _Loop, alike: Sequence[_Loop]) -> None:
    """Runs the trials of all loops in turn, until those that should agree do.

    A disturbance may last for longer than a few trials in a row. Multiply-adds run between any two other trials: all cores must do
    them at once, and most predictions depend on them.
    """
    for done in range(TRIALS_MAX):
        if done >= TRIALS and all(loop.spread <= AGREE for loop in alike):
            break
        for loop in loops:
            loop.trial()
            every.trial()


class _Loop:
    """A function on several cores at once, with enough rounds that a trial is long enough to be timed."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        function: Callable[..., Any],
        areas: list[Any],
        size: int,
        seconds: float = TRIAL_SECONDS,
    ) -> None:
        self._pool, self._function, self._size = pool, function, size
        self._pointers = [ctypes.c_void_p(address(area)) for area in areas]
        self._rounds = 1
        # The faster of two runs: a thread that starts late must not look like slow work.
        while (taken := min(self._run(), self._run())) < seconds:
            self._rounds = max(self._rounds * 2, int(self._rounds * seconds / max(taken, 1e-6)))
        self._trials = [taken]

    def trial(self) -> None:
        """Runs one more trial."""
        self._trials.append(self._run())

    @property
    def seconds(self) -> float:
        """Seconds of one round in the fastest trial."""
        return min(self._trials) / self._rounds

    @property
    def spread(self) -> float:
        """Relative difference between the slowest of the fastest few trials and the fastest."""
        return sorted(self._trials)[max(1, len(self._trials) // FEW)] / min(self._trials) - 1

    def _run(self) -> float:
        begin = time.perf_counter()
        if len(self._pointers) == 1:
            self._function(self._pointers[0], self._size, self._rounds)
        else:
            for future in [self._pool.submit(self._function, pointer, self._size, self._rounds) for pointer in self._pointers]:
                future.result()
        return time.perf_counter() - begin


def _text(vector_bytes: int, processor: str, fused: bool, dots: Collection[str]) -> str:
    vector = f"<{vector_bytes // 4} x float>"
    suffix = f"v{vector_bytes // 4}f32"
    parts = [
        f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})",
        _clock(),
        _fma(vector, suffix, fused),
        _read(vector, vector_bytes),
        *(_dot(name) for name in _measurable(dots)),
    ]
    return module_text(parts, processor)


def _looped(name: str, last: str, body: str, after: str) -> str:
    """Returns a function that runs a body so many rounds on a buffer of so many bytes. `last`: the block in which a round ends."""
    arguments = {"data": "ptr", "bytes": "i64", "rounds": "i64"}
    return function_text(name, arguments, _LOOP.format(last=last, body=body, after=after))


def _clock() -> str:
    """Returns a chain of eight dependent multiplications."""
    lines = ["  %x0 = phi i64 [ 3, %entry ], [ %x8, %loop ]"]
    lines += [f"  %x{i + 1} = mul i64 %x{i}, %x{i}" for i in range(8)]
    return _looped("clock", last="loop", body="\n".join(lines), after="  store volatile i64 %x8, ptr %data")


def _fma(vector: str, suffix: str, fused: bool) -> str:
    """Returns multiply-adds in registers, with enough independent accumulators to fill every pipe."""
    splat = f"{vector} splat (float 0.5)"
    heads = [f"  %a{i} = phi {vector} [ splat (float 1.0), %entry ], [ %b{i}, %loop ]" for i in range(ACCUMULATORS)]
    half = "splat (float 0.5)"
    one = "  %b{i} = call {vector} @llvm.fma.{suffix}({vector} %a{i}, {splat}, {splat})"
    two = "  %m{i} = fmul {vector} %a{i}, {half}\n  %b{i} = fadd {vector} %m{i}, {half}"
    step = one if fused else two
    steps = [step.format(i=i, vector=vector, suffix=suffix, splat=splat, half=half) for i in range(ACCUMULATORS)]
    ends = [f"  store volatile {vector} %b{i}, ptr %data, align 64" for i in range(ACCUMULATORS)]
    return _looped("fma", last="loop", body="\n".join(heads + steps), after="\n".join(ends))


def _measurable(dots: Collection[str]) -> list[str]:
    """Returns the dot products that are one instruction; of two, LLVM would move one out of a loop."""
    return [name for name in dots if dot_products.unit_of(name).adds]


def _bits(name: str) -> int:
    """Returns the bits of a dot product's vectors, from its name."""
    return int(name.rpartition("_")[2])


def _dot(name: str) -> str:
    """Returns dot products in registers."""
    bits, unit = _bits(name), dot_products.unit_of(name)
    held, words, lanes = unit.held(bits // 32), f"<{bits // 32} x i32>", bits // 32
    heads = [f"  %a{i} = phi {held} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in range(DOTS[bits])]
    steps = [f"  %x = load {words}, ptr %data, align 64", f"  %y = load {words}, ptr %data, align 64"]
    steps += [line for i in range(DOTS[bits]) for line in dot_products.added(unit, lanes, f"%a{i}", "%x", "%y", f"%b{i}")]
    ends = [f"  store volatile {held} %b{i}, ptr %data, align {bits // 8}" for i in range(DOTS[bits])]
    declared = f"declare {unit.signature(lanes, unit.intrinsics[bits])}\n"
    return declared + _looped(name, last="loop", body="\n".join(heads + steps), after="\n".join(ends))


def _read(vector: str, vector_bytes: int) -> str:
    """Returns loads of a whole buffer in several parallel streams: prefetchers stop at page ends, where a single stream stalls."""
    lines = [
        f"  %share = udiv i64 %bytes, {LOADS}",
        "  br label %inner",
        "inner:",
        "  %i = phi i64 [ 0, %loop ], [ %next, %inner ]",
    ]
    for n in range(LOADS):
        lines.append(f"  %s{n} = mul i64 %share, {n}")
        lines.append(f"  %o{n} = add i64 %i, %s{n}")
        lines.append(f"  %q{n} = getelementptr i8, ptr %data, i64 %o{n}")
        lines.append(f"  %v{n} = load volatile {vector}, ptr %q{n}, align {vector_bytes}")
    lines += [f"  %next = add i64 %i, {vector_bytes}", "  %inside = icmp slt i64 %next, %share"]
    lines += ["  br i1 %inside, label %inner, label %round", "round:"]
    return _looped("read", last="round", body="\n".join(lines), after="")
