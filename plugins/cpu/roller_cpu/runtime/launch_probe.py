"""The cost of a launch: work that all cores do in a parallel loop, against the same work of one core in a plain call."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

from roller_cpu.chip.probing import function_text, module_text
from roller_cpu.runtime import parallel, pool
from roller_cpu.toolchain import compiling

_LAUNCH = "TVMBackendParallelLaunch"  # TVM's function for a parallel loop; kernels call the same one
# Multiplications that depend on one another, in chains of four: a thread beside this one on the same core does not slow them down.
# A core does as many between launches. A launch soon after another one, or long after it, takes longer: the slowest counts.
STEPS = 16, 256, 4096  # they take 0.1 to 20 us
ROUNDS = 32  # launches of a trial, which lies within a time slice of the scheduler
TRIALS = 32  # of each kind, of which the median counts: programs meet a usual launch, not the fastest one

_WORK = """
define i64 @work(i64 %steps) #0 {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %x0 = phi i64 [ 3, %entry ], [ %x4, %loop ]
  %x1 = mul i64 %x0, %x0
  %x2 = mul i64 %x1, %x1
  %x3 = mul i64 %x2, %x2
  %x4 = mul i64 %x3, %x3
  %i1 = add i64 %i, 4
  %more = icmp slt i64 %i1, %steps
  br i1 %more, label %loop, label %done
done:
  ret i64 %x4
}

define i32 @task(i32 %number, ptr %group, ptr %steps) #0 {
  %count = load i64, ptr %steps
  %found = call i64 @work(i64 %count)
  %kept = alloca i64
  store volatile i64 %found, ptr %kept
  ret i32 0
}
"""

_ROUNDS = """
start:
  %given = alloca i64
  store i64 %steps, ptr %given
  %kept = alloca i64
  %alone = icmp eq ptr %launch, null
  br label %round
round:
  %r = phi i64 [ 0, %start ], [ %r1, %ended ]
  %between = call i64 @work(i64 %steps)
  store volatile i64 %between, ptr %kept
  br i1 %alone, label %called, label %launched
called:
  call i32 @task(i32 0, ptr null, ptr %given)
  br label %ended
launched:
  %parts = trunc i64 %tasks to i32
  call i32 %launch(ptr @task, ptr %given, i32 %parts)
  br label %ended
ended:
  %r1 = add i64 %r, 1
  %more = icmp slt i64 %r1, %rounds
  br i1 %more, label %round, label %done
done:
  ret i32 0
"""


def launch_us(cores: int, processor: str) -> float:
    """Measures the microseconds by which a parallel loop over `cores` cores takes longer than its work.

    `processor`: LLVM's name of this machine's. Programs launch such loops one soon after another; the first one after a pause takes
    longer, as sleeping threads have to wake up.
    """
    launch = ctypes.cast(getattr(pool.libraries()[1], _LAUNCH), ctypes.c_void_p)
    return parallel.call(cores, difference, loaded(processor), cores, (launch, ctypes.c_void_p(None))) * 1e6


def loaded(processor: str) -> Callable[..., Any]:
    """Returns a function of TVM's launch function or null, tasks, steps of a task, and rounds of work and a launch of it."""
    arguments = {"launch": "ptr", "tasks": "i64", "steps": "i64", "rounds": "i64"}
    text = module_text([_WORK, function_text("launches", arguments, _ROUNDS)], processor)
    found: Callable[..., Any] = compiling.load_module(text)["launches"]
    return found


def difference(function: Callable[..., Any], cores: int, kinds: tuple[ctypes.c_void_p, ctypes.c_void_p]) -> float:
    """Returns the seconds of a round of one kind, less those of the other one; none, where noise is all there is."""
    return max([0.0, *[_after(function, cores, kinds, steps) for steps in STEPS]])


def _after(function: Callable[..., Any], cores: int, kinds: tuple[ctypes.c_void_p, ctypes.c_void_p], steps: int) -> float:
    taken: tuple[list[float], list[float]] = [], []
    for _trial in range(TRIALS):
        for seconds, launch in zip(taken, kinds, strict=True):
            begin = time.perf_counter()
            function(launch, cores, steps, ROUNDS)
            seconds.append((time.perf_counter() - begin) / ROUNDS)
    launched, called = (statistics.median(seconds) for seconds in taken)
    return launched - called
