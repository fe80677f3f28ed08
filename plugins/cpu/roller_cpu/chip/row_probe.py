"""Microbenchmark of memory that is read in rows: sums of rows, a run of each in turn, as kernels of reductions read them."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from roller.plugin import RowShares, address
from roller_cpu.chip.probing import area, function_text, module_text
from roller_cpu.codegen.prefetching import RUNS_AHEAD
from roller_cpu.toolchain import compiling

ROWS, RUNS = (1, 2, 4, 8, 16, 32), (64, 128, 256, 1024, 1792, 7168)
BATCH = 4  # rows that kernels unroll
LINE = 64  # bytes that one prefetch brings; all CPUs with such instructions have lines of this size or more
# Bytes of a row, at least. Where several are read in turn they are as long as those of common matrices, which all end at the same
# time. Sums of one row at a time are stored at each run, so they have to fit in the nearest cache.
LONG, SHORT = 14336, 9216
# More bytes from row to row: rows in turn lie in different sets of the caches and end their pages one after another; a single row
# begins soon after the last one's end, and not where loads and the stores of the last row share the low bits of their addresses.
APART, NEXT = 57 * LINE, 5 * LINE
WIDE, NARROW = 28, 8  # accumulators, of 32 registers of 64 bytes and of 16 narrower ones
SECTION = 8 << 20  # bytes of a trial, of all cores: so few that a trial lies within a time slice of the scheduler
PARTS = 3  # of the bytes, at least
PLACES, TRIALS = 3, 6  # allocations, of which the median counts: pages lie otherwise in each; and trials in each
STEP = 0.05  # shares are rounded: that much is noise

# Of data and results, batches of rows in turn, and blocks of these.
_ARGUMENTS = {"data": "ptr", "sums": "ptr", "batches": "i64", "blocks": "i64"}
_BODY = """
block:
  %b = phi i64 [ 0, %entry ], [ %b1, %blockend ]
  %height = mul i64 %batches, {batch}
  %top = mul i64 %b, %height
  br label %run
run:
  %x = phi i64 [ 0, %block ], [ %x1, %runend ]
  %at = add i64 %top, %x
  %start = getelementptr i8, ptr %data, i64 %at
  %kept = getelementptr i8, ptr %sums, i64 %x
{loads}
  br label %rows
rows:
  %i = phi i64 [ 0, %run ], [ %i1, %rowsend ]
  %left = phi ptr [ %start, %run ], [ %below, %rowsend ]
{rowsums}
  br label %part
part:
  %o = phi i64 [ 0, %rows ], [ %o1, %parted ]
{partsums}
  %here = getelementptr i8, ptr %left, i64 %o
{requests}
  br label %parted
parted:
{body}
  %o1 = add i64 %o, {part}
  %inrun = icmp slt i64 %o1, {run}
  br i1 %inrun, label %part, label %rowsend
rowsend:
  %below = getelementptr i8, ptr %left, i64 {batch}
  %i1 = add i64 %i, 1
  %inblock = icmp slt i64 %i1, %batches
  br i1 %inblock, label %rows, label %runend
runend:
{stores}
  %x1 = add i64 %x, {run}
  %inrow = icmp slt i64 %x1, {whole}
  br i1 %inrow, label %run, label %blockend
blockend:
  %b1 = add i64 %b, 1
  %more = icmp slt i64 %b1, %blocks
  br i1 %more, label %block, label %done
done:
  ret i32 0
"""


def row_shares(cores: int, vector_bytes: int, processor: str, size: int) -> RowShares:
    """Measures the shares with `cores` cores busy, each in `size` bytes of its own: the memory, or the cache, that holds them.

    A trial reads a part of them, and the next one the next part, which no cache further in holds any more. `size` is at least twice
    `block_bytes`.
    """
    sums = {(rows, run): Sums(vector_bytes, min(rows, BATCH), run) for rows, run in itertools.product(ROWS, RUNS)}
    module = compiling.load_module(module_text([one.text() for one in dict.fromkeys(sums.values())], processor))
    with ThreadPoolExecutor(cores) as pool:
        places = [_relative(pool, module, cores, sums, size) for _ in range(PLACES)]
    medians = [statistics.median(rates) for rates in zip(*places, strict=True)]
    steps = [max(1, round(rate / max(medians) / STEP)) for rate in medians]
    lines = (steps[start : start + len(RUNS)] for start in range(0, len(steps), len(RUNS)))
    return RowShares(rows=ROWS, run_bytes=RUNS, shares=tuple(tuple(round(step * STEP, 2) for step in line) for line in lines))


def _relative(pool: ThreadPoolExecutor, module: Any, cores: int, sums: Mapping[tuple[int, int], Sums], size: int) -> list[float]:
    """Returns the rate of each sum over that of the fastest one, in memory that is allocated for them."""
    section = max(min(SECTION // cores, size // PARTS), block_bytes())
    areas, totals = ([area(bytes_) for _ in range(cores)] for bytes_ in (size, block_bytes()))
    starts = itertools.cycle(range(0, size - section + 1, section))
    best = dict.fromkeys(sums, float("inf"))
    # Trials are interleaved, as a disturbance may last for longer than one of them. The fastest of each counts.
    for _trial, (rows, run) in itertools.product(range(TRIALS), sums):
        one, start = sums[rows, run], next(starts)
        blocks = section // (rows * one.length)
        places = [(address(source) + start, address(total)) for source, total in zip(areas, totals, strict=True)]
        taken = _seconds(pool, module[one.name], places, rows // one.batch, blocks)
        best[rows, run] = min(best[rows, run], taken / (blocks * rows * one.whole))
    return [min(best.values()) / seconds for seconds in best.values()]


def block_bytes() -> int:
    """Returns the bytes that the largest number of rows in turn spans."""
    return max(rows * Sums(LINE, min(rows, BATCH), run).length for rows, run in itertools.product(ROWS, RUNS))


def _seconds(pool: ThreadPoolExecutor, function: Any, places: Sequence[Sequence[int]], batches: int, blocks: int) -> float:
    """Returns the seconds of a function that every core runs on its own data and results."""
    calls = [partial(function, *map(ctypes.c_void_p, pair), batches, blocks) for pair in places]
    begin = time.perf_counter()
    if len(calls) == 1:
        calls[0]()
    else:
        for future in [pool.submit(call) for call in calls]:
            future.result()
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Sums:
    """A function that sums rows in runs of so many bytes, a batch of rows at a time.

    It keeps as many accumulators as kernels with vectors of this width, and requests the rows of a batch before it reads them.
    """

    vector_bytes: int
    batch: int
    run: int

    @property
    def name(self) -> str:
        """The name of the function."""
        return f"sum{self.batch}x{self.run}"

    @property
    def whole(self) -> int:
        """The bytes of a row that are read."""
        return self.run * -(-(SHORT if self.batch == 1 else LONG) // self.run)

    @property
    def length(self) -> int:
        """The bytes from row to row."""
        return self.whole + (APART if self.batch > 1 else NEXT)

    @property
    def part(self) -> int:
        """The bytes of a run that are read at a time."""
        return min(self.run, self.vector_bytes * (WIDE if self.vector_bytes >= 64 else NARROW))

    def text(self) -> str:
        """Returns the function as LLVM IR."""
        lanes, at = f"<{self.vector_bytes // 4} x float>", range(0, self.part, self.vector_bytes)
        count = range(len(at))
        kept = [f"  %l{n} = getelementptr i8, ptr %kept, i64 {o}\n  %a{n} = load {lanes}, ptr %l{n}" for n, o in enumerate(at)]
        parts = {
            "loads": kept,
            "rowsums": [f"  %c{n} = phi {lanes} [ %a{n}, %run ], [ %e{n}, %rowsend ]" for n in count],
            "partsums": [f"  %d{n} = phi {lanes} [ %c{n}, %rows ], [ %e{n}, %parted ]" for n in count],
            "requests": list(self._requests()),
            "body": list(self._body(lanes, at)),
            "stores": [f"  store {lanes} %e{n}, ptr %l{n}" for n in count],
        }
        sizes = {"batch": self.batch * self.length, "part": self.part, "run": self.run, "whole": self.whole}
        body = _BODY.format(**{name: "\n".join(lines) for name, lines in parts.items()}, **sizes)
        return function_text(self.name, _ARGUMENTS, body)

    def _requests(self) -> Iterator[str]:
        """Yields prefetches of a later run of each row, if there are several."""
        for row, line in itertools.product(range(self.batch) if self.batch > 1 else (), range(0, self.part, LINE)):
            yield f"  %f{row}x{line} = getelementptr i8, ptr %here, i64 {row * self.length + RUNS_AHEAD * self.part + line}"
            yield f"  call void @llvm.prefetch.p0(ptr %f{row}x{line}, i32 0, i32 2, i32 1)"

    def _body(self, lanes: str, at: range) -> Iterator[str]:
        """Yields the sums of a part of each row of a batch."""
        for row, (n, offset) in itertools.product(range(self.batch), enumerate(at)):
            before, after = f"%s{row}x{n}" if row else f"%d{n}", f"%s{row + 1}x{n}" if row + 1 < self.batch else f"%e{n}"
            yield f"  %g{row}x{n} = getelementptr i8, ptr %here, i64 {row * self.length + offset}"
            yield f"  %v{row}x{n} = load {lanes}, ptr %g{row}x{n}"
            yield f"  {after} = fadd {lanes} {before}, %v{row}x{n}"
