"""How long the simulator takes to run a product of 1024 x 1024 x 1024 halves on a whole Bow, and whether its numbers are right.

python -m bench.ipu.simulated [--repeats 5] [--out exec.json]

CPU seconds of one call of a compiled kernel (all tiles' memory moved and computed, cycles counted once before), with
accumulators in float16 and in float32, against the float64 reference within the tolerance of these types. This is the time of a
simulator; an IPU's is said in simulated cycles. No IPU was used.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import roller
from bench.common import report
from bench.common.harness import RESULTS
from bench.ipu import sides
from roller import ops, verify
from roller.ops import SymbolicTensor

FILE = RESULTS / "ipu" / "exec.json"
SIZE = 1024


def product(acc_dtype: str, size: int = SIZE) -> SymbolicTensor:
    """A square product of halves."""
    a, b = roller.tensor((size, size), "float16", "a"), roller.tensor((size, size), "float16", "b")
    return ops.matmul(a, b, out_dtype="float16", acc_dtype=acc_dtype)


def timed(op: SymbolicTensor, repeats: int) -> dict[str, Any]:
    """CPU seconds of calls of the kernel for an operator; `WrongResultError` where a number is wrong."""
    kernel, expr = roller.compile(op, device="ipu_sim:bow"), ops.expression(op)
    arrays = verify.random_inputs(expr, 1, False)
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        found = kernel(*arrays.values())
        seconds.append(time.process_time() - begin)
    verify.check(expr, arrays, found)
    stage = kernel.program.stages[0]
    return {"program": sides.about(stage), "cycles": kernel.estimate.cycles(), "call_s": seconds, "right": True}


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median and the longest call."""
    every = [seconds for case in cases for seconds in case["call_s"]]
    return {"call": {"median_s": statistics.median(every), "worst_s": max(every)}}


def main(words: Sequence[str] | None = None) -> int:
    """Time, print and write; an error where a number is wrong."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--repeats", type=int, default=5, help="calls of each kernel")
    made.add_argument("--out", type=Path, default=FILE, help="the file of the report")
    options = made.parse_args(words)
    cases = [{"case": f"accumulators in {acc}", **timed(product(acc), options.repeats)} for acc in ("float16", "float32")]
    body = {"summary": summary(cases), "cases": cases}
    sides.write(options.out, "ipu_exec", body)
    report.screen().print(body, markup=False, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
