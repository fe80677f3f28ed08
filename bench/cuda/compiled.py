"""The paper's operators as CUDA kernels, without a GPU. python -m bench.cuda.compiled

What they take (registers, spills, shared memory, seconds to compile), what their machine code does, and whether they are right.

Every operator is compiled for every chip, and compiled once more with small extents, where an emulator runs it in every order of
events against the float64 reference. Results are written after each operator: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import roller
from bench.common import survey
from bench.common.harness import RESULTS
from bench.common.survey import Survey
from bench.common.survey_cases import CudaCase, cases
from roller import building, ops, trial
from roller.device.chip import resolve
from roller.device.plan import Plan
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.kernel import Kernel
from roller.layout.lanes import group_tile, reads, transactions
from roller.program.rprogram import StageProgram
from roller.search.construct import construct
from roller_cuda.toolchain import cubin, cycles, machine_code

TOP_K = 10  # compile()'s default
PRODUCTS = ("matmul", "conv2d")  # whose loops are to be multiply-adds


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
        "split": stage.dispatch.split,
    }


def about_kernels(kernel: Kernel) -> list[dict[str, Any]]:
    """Every kernel's resources, read off the cubin, what its hottest loop is made of, and how busy that keeps the multipliers."""
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
                "hot": about_hot(hot) | busy(kernel, launched, hot, data),
            }
        )
    return found


def busy(kernel: Kernel, launched: Mapping[str, Any], hot: machine_code.Stretch, data: bytes) -> dict[str, float]:
    """The simulated share of cycles in which a loop over steps starts float32 multiply-adds, with as many warps as there are.

    `data`: the cubin that the loop is of.
    """
    stage = next((s for s in kernel.program.stages if s.nest.stage.name == launched.get("stage")), None)
    if stage is None or not hot.is_loop or not stage.staged or stage.atom.kind == "matrix" or not hot.bases.get("FFMA"):
        return {}
    spec, name = kernel.spec, launched["name"]
    banks, unit, innermost = spec.levels[-2].banks, spec.unit, spec.levels[-1]
    assert banks is not None and spec.clock_ghz is not None and stage.atom.flops_per_cycle_per_unit is not None
    group = group_tile(stage, unit.lane_group)
    moved = sum(transactions(stage, s, group, banks) for s in stage.staged) / max(reads(stage), 1)
    blocks = min(kernel.artifact.resources[f"{name}.resident_blocks"], -(-launched["blocks"] // unit.count))
    partition = cycles.Partition(
        groups=max(1, round(blocks * -(-launched["threads"] // unit.lane_group) / spec.partitions)),
        arithmetic=round(2 * unit.lane_group * spec.partitions / stage.atom.flops_per_cycle_per_unit),
        access=spec.partitions * max(moved, 1.0),
        latency=innermost.latency_ns * spec.clock_ghz,
    )
    return {"busy": cycles.share(data, name, hot, partition)}


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
        return survey.failure(error)
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
    building.build_all(Plan(*resolve(f"cuda:{kernel.spec.chip}")), kernel.candidates)
    return time.perf_counter() - begin


def checked(kernel: Kernel, expr: TensorExpr) -> dict[str, Any]:
    """On the emulator: right, or an error."""
    trial.verify(kernel.artifact, expr, emulate=True)
    return {}


def _toolchain() -> dict[str, str]:
    names = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvdisasm")
    known = {d.metadata["Name"].lower() for d in metadata.distributions()}
    return {name: metadata.version(name) for name in names if name in known}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all operators of one chip."""
    built = [r for r in rows if r["status"] != "failed"]
    ten = [r["ten_s"] for r in built if "ten_s" in r]
    hot = [k["hot"] for r in built for k in r["kernels"]]
    shares = [k["hot"]["busy"] for r in built if r.get("kind") in PRODUCTS for k in r["kernels"] if "busy" in k["hot"]]
    return survey.counted(rows) | {
        "chosen_after_spills": sum(bool(r["passed_over"]) for r in built),
        "on_tensor_cores": sum(r["matrix"] for r in built),
        "hot_with_local_accesses": sum("local_accesses" in h for h in hot),
        "hot_with_divisions": sum("divisions" in h for h in hot),
        "hot_with_repeated_fragments": sum("repeated_fragments" in h for h in hot),
        **({"median_busy": statistics.median(shares), "least_busy": min(shares)} if shares else {}),
        **({"slowest_ten_s": max(ten)} if ten else {}),
    }


def told(row: dict[str, Any]) -> str:
    """The first stage's program, and what it takes."""
    return f"{row['stages'][0]['program']}, {max(k['registers'] for k in row['kernels'])} registers"


SURVEY = Survey(
    benchmark="cuda_compile",
    device="cuda",
    chips=("v100", "a100", "rtx4090", "h100"),
    folder=RESULTS / "cuda-compile",
    title="the paper's operators as CUDA kernels, compiled without a GPU",
    said=(__doc__ or "").splitlines()[0],
    cases=cases,
    compiled=compiled,
    checked=checked,
    summary=summary,
    told=told,
    tools=_toolchain,
)


def main() -> int:
    """Compile and check; 1 if an operator fails, spills, or is wrong."""
    made = SURVEY.arguments()
    made.add_argument("--ten", action="store_true", help="build all candidates too, on all cores at once")
    made.add_argument("--keep", type=Path, help="a folder for the artifacts")
    return SURVEY.main(made.parse_args())


if __name__ == "__main__":
    sys.exit(main())
