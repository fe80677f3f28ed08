"""What the benchmarks share: options, cases, the check of every result, interleaved timing, and the ratios.

A benchmark gives cases; a case builds *sides*, which all compute the same thing: roller's, and one or more for each library. Every
side runs once on poisoned outputs and is compared with the first library before anything is timed. Then rounds: in each round
every side runs in turn, in an order that rotates. A case's ratio is the best library's time over ours, round by round, and of
that the median; "best" is the one with the least median. The clock is the process's CPU time for one thread (which other
programs do not disturb much), wall time for several.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Times = Mapping[str, Sequence[float]]

RESULTS = Path(__file__).parents[1] / "results"
ROUNDS, QUICK_ROUNDS, LEAST_ROUNDS = 11, 3, 3
SAMPLE_SECONDS, QUICK_SAMPLE_SECONDS = 0.05, 0.005  # one side in one round
PAUSE_SECONDS = 0.12  # after which the pools of OpenBLAS, OpenMP and TVM no longer spin
SETTLE_SECONDS = 0.03
LONG_SAMPLES = 4  # calls that take so many samples are long: they are not repeated, nor run before they are timed
QUIET_SHARE = 0.8  # of the processors' time idle
HOLDS_BACK = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # a caller may have set them: they can make a library slower
MEMORY_SHARE = 0.5
CHECK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Side:
    """One way to compute a case's result.

    `call` computes and gives the result; `read` makes it a NumPy array in the operator's layout; `outs` are poisoned before
    the check. `boundary`: it takes the operands as the caller has them and gives the result as the caller wants it, every
    conversion included; otherwise layouts were converted, or operands packed, beforehand.
    """

    name: str
    call: Callable[[], Any]
    read: Callable[[Any], Array] = np.asarray
    outs: tuple[Array, ...] = ()
    ours: bool = False
    boundary: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One line of a benchmark. `depth`: terms that are summed for one output, in `dtype`; `need`: bytes in use at once."""

    name: str
    family: str
    build: Callable[[argparse.Namespace], list[Side]]
    need: int = 0
    flops: float = 0.0
    moved: float = 0.0
    depth: int = 1
    dtype: str = "float32"


@dataclass
class Row:
    """What became of a case: "ok", "left out", "wrong" (a result disagrees; never timed) or "failed"."""

    case: str
    family: str
    status: str = "ok"
    reason: str = ""
    ratio: float | None = None
    ratio_free: float | None = None
    best: str = ""
    best_free: str = ""
    ours_s: float | None = None
    best_s: float | None = None
    flops: float = 0.0
    moved: float = 0.0
    quiet: float | None = None
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)


class Mismatch(Exception):
    """A side's result is not what the first library computed."""


# --- options ---------------------------------------------------------------------------------------------------------


def parser(doc: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=doc.strip().splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--threads", type=int, default=1, help="of every side")
    made.add_argument("--cases", default="", help="only cases whose name contains one of these, separated by commas")
    made.add_argument("--rounds", type=int, help=f"of every case ({ROUNDS}; with --quick {QUICK_ROUNDS})")
    made.add_argument("--quick", action="store_true", help="a smoke test: few short rounds, a few cases; its numbers mean little")
    made.add_argument("--limit", type=float, default=60.0, help="seconds of timing for a case; slow ones get fewer rounds")
    made.add_argument("--quiet", type=float, default=0.0, help="wait so many seconds at most for an idle machine before a turn")
    made.add_argument("--measure", action="store_true", help="let roller time its ten best programs and take the fastest")
    made.add_argument("--out", type=Path, help="the JSON file (bench/results/<machine>/<name>-<threads>t.json; with --quick none)")
    return made


def start(doc: str, extend: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """The parsed command line, in a process whose libraries were all loaded with the right number of threads.

    Libraries read their settings when they are loaded, so the process starts itself again where a setting is missing.
    """
    made = parser(doc)
    if extend is not None:
        extend(made)
    options = made.parse_args()
    wanted = environment(options.threads, cpu_flags())
    found = {name: value for name, value in os.environ.items() if name not in HOLDS_BACK or name in wanted} | wanted
    if found != dict(os.environ):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], found)
    return complete(options)


def complete(options: argparse.Namespace) -> argparse.Namespace:
    """Options with what --quick implies filled in."""
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.sample = QUICK_SAMPLE_SECONDS if options.quick else SAMPLE_SECONDS
    return options


def environment(threads: int, flags: frozenset[str]) -> dict[str, str]:
    """Settings for equal terms: as many threads for all, the best kernels of each library, and freed memory used again.

    OpenBLAS takes its AVX2 kernels on AMD processors that have AVX-512. A library that allocates its result would pay for
    fresh pages in every call if glibc gave large blocks back; ours are allocated once, so theirs stay in the heap.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "ROLLER_NUM_THREADS")
    wanted = dict.fromkeys(names, str(threads))
    wanted |= {"TVM_BIND_THREADS": "0", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    wanted |= {"THP_MEM_ALLOC_ENABLE": "1"}  # torch: huge pages, which NumPy's arrays have anyway
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        wanted["OPENBLAS_CORETYPE"] = "SkylakeX"
    return wanted


def cpu_flags() -> frozenset[str]:
    """The processor's features as Linux names them; empty where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split(":")[1].split()) for line in lines if line.startswith(("flags", "Features"))), frozenset())


def selected(cases: Iterable[Case], options: argparse.Namespace) -> list[Case]:
    """The cases that --cases admits; for --quick without it two of each family."""
    found = list(cases)
    if options.cases:
        return [c for c in found if any(part in c.name for part in options.cases.split(","))]
    if options.quick:
        kept: dict[str, list[Case]] = {}
        for case in sorted(found, key=lambda c: c.need):
            kept.setdefault(case.family, []).append(case)
        return [case for family in kept.values() for case in family[:2]]
    return found


# --- one case --------------------------------------------------------------------------------------------------------


def run_case(case: Case, options: argparse.Namespace, memory: int) -> Row:
    """Build, check and time one case; whatever goes wrong is in the row."""
    row = Row(case.name, case.family, flops=case.flops, moved=case.moved)
    if case.need > MEMORY_SHARE * memory:
        row.status, row.reason = "left out", f"needs {case.need / 2**30:.1f} GiB, the machine has {memory / 2**30:.1f}"
        return row
    try:
        sides = checked(case.build(options), tolerance(case.depth, case.dtype))
        fill(row, sides, *interleave(sides, options))
    except Mismatch as error:
        row.status, row.reason = "wrong", str(error)
    except Exception as error:  # one operator that fails must not cost the others' results
        row.status, row.reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    release()
    return row


def release() -> None:
    """Give freed memory back to the system: the heap is told to keep it while a case runs."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def tolerance(depth: int, dtype: str = "float32") -> float:
    """Largest difference allowed, relative to the largest result: rounding grows like the square root of the terms."""
    return float(ml_dtypes.finfo(dtype).eps) * (16 + 4 * math.sqrt(depth))


def checked(sides: Sequence[Side], allowed: float) -> list[Side]:
    """The sides, each run once and found to agree; libraries that refuse the operator are left out.

    `Mismatch` where results differ, whoever is wrong: then nothing can be said about speed.
    """
    want: Array | None = None
    kept = []
    for side in sorted(sides, key=lambda s: s.ours):  # libraries first
        for out in side.outs:
            out.reshape(-1).view(np.uint8)[...] = 0xFF  # NaN
        try:
            got = side.read(side.call())
        except (RuntimeError, NotImplementedError):
            if side.ours or want is None:
                raise
            continue
        if want is None:
            if side.ours:
                raise Mismatch("no library computes this operator, so there is nothing to compare with")
            want = np.array(got)
        else:
            off = disagreement(got, want)
            if not off <= allowed:
                raise Mismatch(f"{side.name} is off by {off:.1e} of the largest value ({allowed:.1e} allowed)")
        kept.append(side)
    return kept


def disagreement(got: Array, want: Array) -> float:
    """Largest difference over the largest wanted value; infinite for other shapes, NaN where there is one."""
    if got.shape != want.shape:
        return math.inf
    if want.size == 0:
        return 0.0
    rows = want.shape[0] if want.ndim else 1
    step = max(1, CHECK_ELEMENTS * rows // want.size)
    got, want = (got, want) if want.ndim else (got[None], want[None])
    worst = [float(np.max(np.abs(got[i : i + step] - want[i : i + step]))) for i in range(0, rows, step)]
    largest = max(float(np.max(np.abs(want[i : i + step]))) for i in range(0, rows, step))
    return float(np.max(worst)) / (largest or 1.0)


# --- timing ----------------------------------------------------------------------------------------------------------


def interleave(
    sides: Sequence[Side], options: argparse.Namespace, clock: Callable[[], float] | None = None
) -> tuple[dict[str, list[float]], dict[str, int], float | None]:
    """Seconds of every side in every round, calls per turn, and the share of turns that began on an idle machine."""
    clock = clock or (time.process_time if options.threads == 1 else time.perf_counter)
    calls: dict[str, int] = {}
    quick: dict[str, bool] = {}
    for side in sides:
        pause(options)
        taken = once(side.call, options, clock)
        calls[side.name], quick[side.name] = calls_for(taken, options), taken < LONG_SAMPLES * options.sample
    times: dict[str, list[float]] = {s.name: [] for s in sides}
    gates: list[bool] = []
    begin = time.perf_counter()
    for number in range(options.rounds):
        spent = time.perf_counter() - begin
        if number >= min(LEAST_ROUNDS, options.rounds) and spent * (number + 1) / number > options.limit:
            break
        for place in range(len(sides)):
            side = sides[(place + number) % len(sides)]
            if options.quiet > 0:
                gates.append(wait_quiet(options.quiet))
            pause(options)
            if quick[side.name]:
                settle(side.call, options)
            times[side.name].append(timed(side.call, calls[side.name], clock))
    return times, calls, statistics.mean(gates) if gates else None


def pause(options: argparse.Namespace) -> None:
    """Let the pools of other sides fall asleep."""
    if options.threads > 1:
        time.sleep(PAUSE_SECONDS)


def settle(call: Callable[[], Any], options: argparse.Namespace) -> None:
    """Call for a while, not timed: code and data are in the caches as in a loop, and the system has spread threads that woke on
    one core. Such a pair takes up to twenty times as long, whoever's it is.
    """
    end = time.perf_counter() + (SETTLE_SECONDS if options.threads > 1 else 0.0)
    call()
    while time.perf_counter() < end:
        call()


def timed(call: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Seconds a call, the mean of so many."""
    begin = clock()
    for _ in range(calls):
        call()
    return (clock() - begin) / calls


def once(call: Callable[[], Any], options: argparse.Namespace, clock: Callable[[], float]) -> float:
    """Seconds that a call takes: the fewest of three, but for calls that take long."""
    first = timed(call, 1, clock)
    if first >= LONG_SAMPLES * options.sample:
        return first
    settle(call, options)
    return min(first, timed(call, 1, clock), timed(call, 1, clock))


def calls_for(taken: float, options: argparse.Namespace) -> int:
    """Calls of so many seconds that take about as long as a sample."""
    return max(1, int(options.sample / max(taken, 1e-7)))


def wait_quiet(seconds: float, window: float = 0.06) -> bool:
    """Wait until the processors were idle for a moment, at most so long; False where they never were."""
    end = time.perf_counter() + seconds
    while True:
        idle, total = _processors()
        time.sleep(window)
        later_idle, later_total = _processors()
        if later_total == total or (later_idle - idle) / (later_total - total) >= QUIET_SHARE:
            return True
        if time.perf_counter() >= end:
            return False


def _processors() -> tuple[int, int]:
    """Ticks that all processors were idle, and all ticks, since the system started."""
    with Path("/proc/stat").open(encoding="utf-8") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


# --- ratios ----------------------------------------------------------------------------------------------------------


def fill(row: Row, sides: Sequence[Side], times: Times, calls: Mapping[str, int], quiet: float | None) -> None:
    """Put times and ratios into a row: with conversions charged, and with every side in the form that suits it best."""
    charged = [s for s in sides if s.boundary]
    row.best, ours, row.ratio = compare(charged, times)
    row.best_free, _, row.ratio_free = compare(sides, times)
    row.ours_s, row.best_s = statistics.median(times[ours]), statistics.median(times[row.best])
    row.quiet = quiet
    for side in sides:
        taken = list(times[side.name])
        row.sides[side.name] = {
            "median_s": statistics.median(taken),
            "rounds_s": taken,
            "calls": calls[side.name],
            "ours": side.ours,
            "boundary": side.boundary,
            **side.about,
        }


def compare(sides: Sequence[Side], times: Times) -> tuple[str, str, float]:
    """The best library, our best side, and the median over rounds of the one's time over the other's."""
    best, ours = (fastest([s.name for s in sides if s.ours is mine], times) for mine in (False, True))
    return best, ours, ratio(times[best], times[ours])


def fastest(names: Iterable[str], times: Times) -> str:
    """The name with the least median."""
    return min(names, key=lambda name: statistics.median(times[name]))


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median over rounds of their time over ours: above 1 we are faster."""
    return statistics.median(t / max(o, 1e-12) for t, o in zip(theirs, ours, strict=True))
