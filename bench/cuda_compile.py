"""The paper's operators as CUDA kernels, without a GPU. python -m bench.cuda_compile

What they take (registers, spills, shared memory, seconds to compile), what their machine code does, and whether they are right.

Every operator is compiled for every chip, and compiled once more with small extents, where an emulator runs it in every order of
events against the float64 reference. Results are written after each operator: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.table import Table

import roller
from bench import figures, machine, report
from bench.cuda_cases import CudaCase, cases
from bench.harness import RESULTS
from roller import building, ops, serial, trial
from roller.chip import resolve
from roller.compiled import Kernel
from roller.construct import construct
from roller.fusion import fuse
from roller.program import StageProgram
from roller_cuda import cubin, machine_code

CHIPS = ("v100", "a100", "rtx4090", "h100")
FOLDER = RESULTS / "cuda-compile"
TOP_K = 10  # compile()'s default
SLOW_S = 3.0  # what a compilation may take at most


def constructed_s(case: CudaCase, chip: str) -> float:
    """Seconds from the operator to ranked programs."""
    begin = time.perf_counter()
    plugin, spec = resolve(f"cuda:{chip}")
    expr = fuse(ops.expression(case.full()))
    construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), TOP_K)
    return time.perf_counter() - begin


def about_stage(stage: StageProgram) -> dict[str, Any]:
    """The tile of one stage, in the words of the program."""
    names = [d.name for d in stage.nest.dims]
    return {
        "program": stage.describe(),
        "atom": stage.atom.name,
        "block_tile": dict(zip(names, stage.unit_tile, strict=True)),
        "inner_tile": dict(zip(names, stage.inner, strict=True)),
        "depth": max((s.depth for s in stage.staged), default=1),
        "split": stage.split,
    }


def about_kernels(kernel: Kernel) -> list[dict[str, Any]]:
    """Every kernel's resources, read off the cubin, and what its hottest loop is made of."""
    data, found = kernel.artifact.data, []
    binary, code = cubin.kernels(data), machine_code.read(data)
    for launched in kernel.artifact.launch["kernels"]:
        name = launched["name"]
        hot = code[name].hot
        found.append(
            {
                "name": name,
                "blocks": launched["blocks"],
                "threads": launched["threads"],
                "shared_bytes": launched["shared_bytes"],
                "registers": binary[name].registers,
                "stack_bytes": binary[name].stack_bytes,
                "spilled_bytes": kernel.artifact.resources.get(f"{name}.spilled_bytes"),
                "instructions": len(code[name].whole.running),
                "local_accesses": code[name].whole.local_accesses,
                "hot": about_hot(hot),
            }
        )
    return found


def about_hot(hot: machine_code.Stretch) -> dict[str, Any]:
    """The hot loop in numbers; what is 0 is left out."""
    numbers = {
        "instructions": len(hot.running),
        "is_loop": int(hot.is_loop),
        "local_accesses": hot.local_accesses,
        "divisions": hot.divisions,
        "constant_divisions": hot.constant_divisions,
        "repeated_fragments": hot.repeated_fragments,
        "repeated_shared_reads": hot.repeated_shared_reads,
        "matrix_work": hot.matrix_work,
        "fragment_bytes": hot.fragment_bytes,
    }
    common = sorted(hot.bases.items(), key=lambda pair: (-pair[1], pair[0]))[:12]
    return {k: v for k, v in numbers.items() if v} | {"mix": dict(common), "products": dict(hot.matrix_products)}


def compiled(case: CudaCase, chip: str, options: argparse.Namespace) -> dict[str, Any]:
    """What compiling at its own size gives; `compile_s` is all of it, from the call to the artifact, the first time."""
    begin = time.perf_counter()
    try:
        kernel = roller.compile(case.full(), device=f"cuda:{chip}", top_k=TOP_K)
    except roller.RollerError as error:
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    spent = time.perf_counter() - begin
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        kernel.save(options.keep / f"{chip}-{case.id}.roller")
    kernels = about_kernels(kernel)
    passed = [c.note for c in kernel.candidates[1:] if c.note]  # programs that were predicted to be faster, and turned out worse
    return {
        "status": "spills" if any(k["spilled_bytes"] or k["local_accesses"] for k in kernels) else "ok",
        "predicted_s": kernel.estimate.seconds,
        "bound_by": kernel.estimate.bound_by,
        "compile_s": spent,
        "construct_s": constructed_s(case, chip),
        "passed_over": sum("spilled" in note for note in passed),
        "less_room": sum("at a time" in note for note in passed),
        "matrix": any(s.atom.kind == "matrix" for s in kernel.program.stages),
        "stages": [about_stage(s) for s in kernel.program.stages],
        "kernels": kernels,
        **({"ten_s": ten_s(kernel)} if options.ten else {}),
    }


def ten_s(kernel: Kernel) -> float:
    """Seconds to build all candidates on all cores at once; the chosen one's text is known already."""
    begin = time.perf_counter()
    building.build_all(building.Plan(*resolve(f"cuda:{kernel.spec.chip}")), kernel.candidates)
    return time.perf_counter() - begin


def emulated(case: CudaCase, chip: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether the operator made small is right on the emulator; the same small operator is run once."""
    op = case.small()
    expr = ops.expression(op)
    key = hashlib.sha256(json.dumps(serial.expr_to_json(expr), sort_keys=True).encode()).hexdigest()[:12]
    if key in known:
        return known[key]
    found: dict[str, Any] = {"small": key, "inputs": ["x".join(map(str, t.shape)) for t in expr.inputs]}
    begin = time.perf_counter()
    try:
        kernel = roller.compile(op, device=f"cuda:{chip}")
        found["program"] = kernel.program.describe()
        trial.verify(kernel.artifact, expr, emulate=True)
        found["status"] = "right"
    except roller.RollerError as error:
        found |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return found | {"seconds": time.perf_counter() - begin}


def run(chip: str, options: argparse.Namespace) -> dict[str, Any]:
    """All operators on one chip, those that the file has already left out, or done again."""
    path = options.out / f"{chip}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"cases": []}
    wanted = [c for c in cases() if not options.only or any(part in c.id for part in options.only.split(","))][: options.limit]
    anew = {case.id for case in wanted} if options.again else set()
    rows: dict[str, dict[str, Any]] = {row["case"]: row for row in found["cases"] if row["case"] not in anew}
    known = {row["emulator"]["small"]: row["emulator"] for row in rows.values() if "emulator" in row}
    for number, case in enumerate(wanted, 1):
        if case.id in rows:
            continue
        row: dict[str, Any] = {"case": case.id, "kind": case.kind, **compiled(case, chip, options)}
        row["emulator"] = emulated(case, chip, known)
        known[row["emulator"]["small"]] = row["emulator"]
        rows[case.id] = row
        write(path, chip, rows)
        said = row.get("reason") or f"{row['stages'][0]['program']}, {max(k['registers'] for k in row['kernels'])} registers"
        print(f"[{chip} {number}/{len(wanted)}] {case.id}: {row['status']}, {row['emulator']['status']}; {said}", file=sys.stderr)
    return write(path, chip, rows)


def write(path: Path, chip: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The file of one chip, whole or not at all."""
    order = {case.id: number for number, case in enumerate(cases())}
    body = report.provenance("cuda_compile") | {
        "chip": chip,
        "device": machine.device(),
        "versions": machine.versions() | dict(_toolchain()),
        "summary": summary(list(rows.values())),
        "cases": sorted(rows.values(), key=lambda row: order.get(row["case"], len(order))),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(figures.compact(body) + "\n", encoding="utf-8")
    partial.replace(path)
    return body


def _toolchain() -> list[tuple[str, str]]:
    from importlib import metadata  # noqa: PLC0415

    names = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvdisasm")
    known = {d.metadata["Name"].lower() for d in metadata.distributions()}
    return [(name, metadata.version(name)) for name in names if name in known]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all operators of one chip."""
    built = [r for r in rows if r["status"] != "failed"]
    slow = max(built, key=lambda r: r["compile_s"], default=None)
    ten = [r["ten_s"] for r in built if "ten_s" in r]
    hot = [k["hot"] for r in built for k in r["kernels"]]
    return {
        "operators": len(rows),
        "compiled": len(built),
        "with_spills": sum(r["status"] == "spills" for r in rows),
        "chosen_after_spills": sum(bool(r["passed_over"]) for r in built),
        "right_on_the_emulator": sum(r["emulator"]["status"] == "right" for r in rows),
        "on_tensor_cores": sum(r["matrix"] for r in built),
        "hot_with_local_accesses": sum("local_accesses" in h for h in hot),
        "hot_with_divisions": sum("divisions" in h for h in hot),
        "hot_with_repeated_fragments": sum("repeated_fragments" in h for h in hot),
        "slowest_compile_s": slow and slow["compile_s"],
        "slowest_case": slow and slow["case"],
        "slower_than_3_s": sum(r["compile_s"] > SLOW_S for r in built),
        **({"slowest_ten_s": max(ten)} if ten else {}),
    }


def table(bodies: list[dict[str, Any]]) -> Table:
    """The summaries side by side."""
    made = Table(title="the paper's operators as CUDA kernels, compiled without a GPU")
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
    made.add_argument("--limit", type=int, help="so many operators at most")
    made.add_argument("--again", action="store_true", help="leave out nothing that the files have already")
    made.add_argument("--ten", action="store_true", help="build all candidates too, on all cores at once")
    made.add_argument("--keep", type=Path, help="a folder for the artifacts")
    made.add_argument("--out", type=Path, default=FOLDER, help="the folder of the JSON files")
    options = made.parse_args()
    bodies = [run(chip, options) for chip in options.chips.split(",")]
    report.screen().print(table(bodies))
    bad = [row for body in bodies for row in body["cases"] if row["status"] != "ok" or row["emulator"]["status"] != "right"]
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
