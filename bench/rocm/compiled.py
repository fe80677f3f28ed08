"""The paper's operators as kernels for AMD GPUs, without one. python -m bench.rocm.compiled

What they take (registers, spills, local memory, seconds to compile), whether they are right, and what they do to the banks.

Every operator is compiled for every chip, and compiled once more with small extents, where the emulator of the assembly runs it in
every order of events against the float64 reference and counts cycles of local memory in the hottest loop, with conflicts of banks
and without. Results are written after each operator: a run that was stopped goes on where it was. No AMD hardware is used.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

import roller
from bench.common import survey
from bench.common.harness import RESULTS
from bench.common.paper_ops import other_operators
from bench.common.survey import Survey
from bench.common.survey_cases import TENSOR_CORES, CudaCase, cases
from roller import ops, verify
from roller.ir.expr import TensorExpr
from roller.kernel import Kernel
from roller.runtime.arrays import aligned_empty
from roller_rocm.emulator.emulator import Emulator

MOST_LANES = 256
ABOUT = (
    "No AMD hardware was used: compiled without a GPU, made small and run on the emulator; predicted_s and what is predicted are so"
)


def paper_cases() -> list[CudaCase]:
    """The 119 operators."""
    others = {operator.id for operator in other_operators() if operator.figure == TENSOR_CORES}
    return [case for case in cases() if case.id not in others]


def compiled(case: CudaCase, chip: str, _: argparse.Namespace) -> dict[str, Any]:
    """What compiling at its own size gives; `compile_s` is all of it, from the call to the artifact."""
    begin = time.perf_counter()
    try:
        kernel = roller.compile(case.full(), device=f"rocm:{chip}")
    except roller.RollerError as error:
        return survey.failure(error)
    spent = time.perf_counter() - begin
    kernels = [about(kernel, launched) for launched in kernel.artifact.launch["kernels"]]
    return {
        "status": "spills" if any(k["spilled_bytes"] or k["stack_bytes"] for k in kernels) else "ok",
        "program": kernel.program.describe(),
        "predicted_s": kernel.estimate.seconds,
        "bound_by": kernel.estimate.bound_by,
        "compile_s": spent,
        "kernels": kernels,
    }


def about(kernel: Kernel, launched: Any) -> dict[str, Any]:
    """One kernel's resources, read off its metadata, beside what was predicted."""
    name, found = launched["name"], kernel.artifact.resources
    wanted = ("vgprs", "agprs", "sgprs", "spilled_bytes", "stack_bytes", "resident_waves", "predicted_registers", "predicted_waves")
    known = {key: found[f"{name}.{key}"] for key in wanted if f"{name}.{key}" in found}
    return {
        "name": name,
        "blocks": launched["blocks"],
        "threads": launched["threads"],
        "local_bytes": launched["shared_bytes"],
        **known,
    }


def checked(kernel: Kernel, expr: TensorExpr) -> dict[str, Any]:
    """On the emulator: right, or an error; the cycles of its hottest loops at the banks."""
    runner = Emulator(kernel.artifact)
    arrays = verify.random_inputs(expr, 1, False)
    out = aligned_empty(expr.output.shape, verify.numpy_dtype(expr.output.dtype))
    out.reshape(-1).view(np.uint8)[...] = 0xFF
    runner.run(tuple(np.ascontiguousarray(arrays[t.name]) for t in expr.inputs), out)
    verify.check(expr, arrays, out)
    return {
        "loops": {
            name: {
                "reads": [counts.loop.lds_reads.ideal, counts.loop.lds_reads.actual],
                "writes": [counts.loop.lds_writes.ideal, counts.loop.lds_writes.actual],
            }
            for name, counts in runner.counts().items()
        }
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all operators of one chip; errors of predicted registers are over kernels that compute a stage."""
    built = [r for r in rows if r["status"] != "failed"]
    kernels = [k for r in built for k in r["kernels"]]
    staged = [k for k in kernels if "predicted_registers" in k]
    loops = [loop for r in rows for loop in r["emulator"].get("loops", {}).values()]
    return survey.counted(rows) | {
        "workgroups_too_large": sum(k["threads"] > MOST_LANES for k in kernels),
        "median_compile_s": statistics.median(r["compile_s"] for r in built) if built else None,
        "hot_loops_that_read_local_memory": sum(bool(loop["reads"][0]) for loop in loops),
        "hot_loops_with_conflicts_of_reads": sum(loop["reads"][1] > loop["reads"][0] for loop in loops),
        "hot_loops_that_write_local_memory": sum(bool(loop["writes"][0]) for loop in loops),
        "hot_loops_with_conflicts_of_writes": sum(loop["writes"][1] > loop["writes"][0] for loop in loops),
        "median_registers_error": statistics.median(abs(k["predicted_registers"] / k["vgprs"] - 1) for k in staged)
        if staged
        else None,
        "fewer_waves_than_predicted": sum(k["resident_waves"] < k["predicted_waves"] for k in staged),
    }


def told(row: dict[str, Any]) -> str:
    """The program, and what it takes."""
    return f"{row['program']}, {max((k['vgprs'] for k in row['kernels']), default=0)} registers"


def prepared(chip: str) -> None:
    """The worker process is there, which the first operator would wait for."""
    roller.compile(ops.relu(ops.tensor((64,))), device=f"rocm:{chip}")


SURVEY = Survey(
    benchmark="rocm_compile",
    device="rocm",
    chips=("mi50", "mi210", "mi300x", "rx7900xtx"),
    folder=RESULTS / "rocm",
    prefix="compile-",
    title="the paper's operators as kernels for AMD GPUs, compiled and emulated without one",
    said=(__doc__ or "").splitlines()[0],
    cases=paper_cases,
    compiled=compiled,
    checked=checked,
    summary=summary,
    told=told,
    tools=lambda: {name: metadata.version(name) for name in ("apache-tvm", "ziglang")},
    prepared=prepared,
    head={"about": ABOUT},
)


if __name__ == "__main__":
    sys.exit(SURVEY.main(SURVEY.arguments().parse_args()))
