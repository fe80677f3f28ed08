"""The paper's operators as kernels for AMD GPUs, without one. python -m bench.rocm_compile

What they take (registers, spills, local memory, seconds to compile), whether they are right, and what they do to the banks.

Every operator is compiled for every chip, and compiled once more with small extents, where the emulator of the assembly runs it in
every order of events against the float64 reference and counts cycles of local memory in the hottest loop, with conflicts of banks
and without. Results are written after each operator: a run that was stopped goes on where it was. No AMD hardware is used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import roller
from bench import figures, machine, report
from bench.cuda_cases import TENSOR_CORES, CudaCase, cases
from bench.harness import RESULTS
from bench.paper_ops import other_operators
from roller import ops, serial, verify
from roller.arrays import aligned_empty
from roller.compiled import Kernel
from roller_rocm.emulator import Emulator

CHIPS = ("mi50", "mi210", "mi300x", "rx7900xtx")
FOLDER = RESULTS / "rocm"
SLOW_S = 3.0  # what a compilation may take at most
MOST_LANES = 256
ABOUT = (
    "No AMD hardware was used: compiled without a GPU, made small and run on the emulator; predicted_s and what is predicted are so"
)


def paper_cases() -> list[CudaCase]:
    """The 119 operators."""
    others = {operator.id for operator in other_operators() if operator.figure == TENSOR_CORES}
    return [case for case in cases() if case.id not in others]


def compiled(case: CudaCase, chip: str) -> dict[str, Any]:
    """What compiling at its own size gives; `compile_s` is all of it, from the call to the artifact."""
    begin = time.perf_counter()
    try:
        kernel = roller.compile(case.full(), device=f"rocm:{chip}")
    except roller.RollerError as error:
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
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


def emulated(case: CudaCase, chip: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether the operator made small is right on the emulator, and the cycles of its hottest loops at the banks."""
    op = case.small()
    expr = ops.expression(op)
    key = hashlib.sha256(json.dumps(serial.expr_to_json(expr), sort_keys=True).encode()).hexdigest()[:12]
    if key in known:
        return known[key]
    found: dict[str, Any] = {"small": key}
    begin = time.perf_counter()
    try:
        kernel = roller.compile(op, device=f"rocm:{chip}")
        found["program"] = kernel.program.describe()
        runner = Emulator(kernel.artifact)
        arrays = verify.random_inputs(expr, 1, False)
        out = aligned_empty(expr.output.shape, verify.numpy_dtype(expr.output.dtype))
        out.reshape(-1).view(np.uint8)[...] = 0xFF
        runner.run(tuple(np.ascontiguousarray(arrays[t.name]) for t in expr.inputs), out)
        verify.check(expr, arrays, out)
        found["status"] = "right"
        found["loops"] = {
            name: {
                "reads": [counts.loop.lds_reads.ideal, counts.loop.lds_reads.actual],
                "writes": [counts.loop.lds_writes.ideal, counts.loop.lds_writes.actual],
            }
            for name, counts in runner.counts().items()
        }
    except roller.RollerError as error:
        found |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return found | {"seconds": time.perf_counter() - begin}


def run(chip: str, options: argparse.Namespace) -> dict[str, Any]:
    """All operators on one chip, those that the file has already left out, or done again."""
    path = options.out / f"compile-{chip}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"cases": []}
    wanted = [c for c in paper_cases() if not options.only or any(part in c.id for part in options.only.split(","))]
    anew = {case.id for case in wanted} if options.again else set()
    rows: dict[str, dict[str, Any]] = {row["case"]: row for row in found["cases"] if row["case"] not in anew}
    known = {row["emulator"]["small"]: row["emulator"] for row in rows.values()}
    roller.compile(ops.relu(ops.tensor((64,))), device=f"rocm:{chip}")  # the worker process is there
    for number, case in enumerate(wanted, 1):
        if case.id in rows:
            continue
        row: dict[str, Any] = {"case": case.id, "kind": case.kind, **compiled(case, chip)}
        row["emulator"] = emulated(case, chip, known)
        known[row["emulator"]["small"]] = row["emulator"]
        rows[case.id] = row
        write(path, chip, rows)
        said = row.get("reason") or f"{row['program']}, {max((k['vgprs'] for k in row['kernels']), default=0)} registers"
        print(f"[{chip} {number}/{len(wanted)}] {case.id}: {row['status']}, {row['emulator']['status']}; {said}", file=sys.stderr)
    return write(path, chip, rows)


def write(path: Path, chip: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The file of one chip, whole or not at all."""
    order = {case.id: number for number, case in enumerate(paper_cases())}
    body = report.provenance("rocm_compile") | {
        "about": ABOUT,
        "chip": chip,
        "device": machine.device(),
        "versions": machine.versions() | {name: metadata.version(name) for name in ("apache-tvm", "ziglang")},
        "summary": summary(list(rows.values())),
        "cases": sorted(rows.values(), key=lambda row: order.get(row["case"], len(order))),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(figures.compact(body) + "\n", encoding="utf-8")
    partial.replace(path)
    return body


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all operators of one chip; errors of predicted registers are over kernels that compute a stage."""
    built = [r for r in rows if r["status"] != "failed"]
    kernels = [k for r in built for k in r["kernels"]]
    staged = [k for k in kernels if "predicted_registers" in k]
    slow = max(built, key=lambda r: r["compile_s"], default=None)
    loops = [loop for r in rows for loop in r["emulator"].get("loops", {}).values() if loop["reads"][0]]
    return {
        "operators": len(rows),
        "compiled": len(built),
        "with_spills": sum(r["status"] == "spills" for r in rows),
        "right_on_the_emulator": sum(r["emulator"]["status"] == "right" for r in rows),
        "workgroups_too_large": sum(k["threads"] > MOST_LANES for k in kernels),
        "median_compile_s": statistics.median(r["compile_s"] for r in built) if built else None,
        "slowest_compile_s": slow and slow["compile_s"],
        "slowest_case": slow and slow["case"],
        "slower_than_3_s": sum(r["compile_s"] > SLOW_S for r in built),
        "hot_loops_that_read_local_memory": len(loops),
        "of_them_with_conflicts": sum(loop["reads"][1] > loop["reads"][0] for loop in loops),
        "median_registers_error": statistics.median(abs(k["predicted_registers"] / k["vgprs"] - 1) for k in staged)
        if staged
        else None,
        "fewer_waves_than_predicted": sum(k["resident_waves"] < k["predicted_waves"] for k in staged),
    }


def table(bodies: list[dict[str, Any]]) -> Table:
    """The summaries side by side."""
    made = Table(title="the paper's operators as kernels for AMD GPUs, compiled and emulated without one")
    made.add_column("")
    for body in bodies:
        made.add_column(body["chip"], justify="right")
    for name in dict.fromkeys(name for body in bodies for name in body["summary"]):
        values = [body["summary"].get(name) for body in bodies]
        made.add_row(name.replace("_", " "), *(f"{v:.2f}" if isinstance(v, float) else str(v) for v in values))
    return made


def main() -> int:
    """Compile and check; 1 if an operator fails, spills, or is wrong."""
    made = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--chips", default=",".join(CHIPS), help="separated by commas")
    made.add_argument("--only", default="", help="operators whose id contains one of these, separated by commas")
    made.add_argument("--again", action="store_true", help="leave out nothing that the files have already")
    made.add_argument("--out", type=Path, default=FOLDER, help="the folder of the JSON files")
    options = made.parse_args()
    bodies = [run(chip, options) for chip in options.chips.split(",")]
    report.screen().print(table(bodies))
    bad = [row for body in bodies for row in body["cases"] if row["status"] != "ok" or row["emulator"]["status"] != "right"]
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
