"""Loops of float32 products as CUDA kernels, walked cycle by cycle: a simulation. python -m bench.cuda.cycles

The share of cycles in which a partition of a multiprocessor starts multiply-adds, in the hot loop of the kernel as it is built, and
of the same text where it does not say how many blocks share a multiprocessor. Products are drawn at random, beside 4096 x 4096 x
4096.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from typing import Any

from rich.table import Table

import roller
from bench.common import machine, report
from bench.common.figures import geomean
from bench.common.harness import RESULTS
from bench.cuda.compiled import busy
from roller import ops
from roller.kernel import Kernel
from roller_cuda.toolchain import compiling, machine_code

CHIPS = ("v100", "a100", "rtx4090", "h100")
FOLDER = RESULTS / "cuda-cycles"


def shapes(count: int) -> list[tuple[int, int, int]]:
    """Rows, columns and depth: every second product in whole warps."""
    chance, found = random.Random(7), [(4096, 4096, 4096)]
    for number in range(count):
        drawn = [int(2 ** chance.uniform(5, 12.5)) for _ in range(3)]
        m, n, k = (-(-extent // 32) * 32 for extent in drawn) if number % 2 else drawn
        found.append((m, n, k))
    return found


def row(shape: tuple[int, int, int], chip: str) -> dict[str, Any]:
    """One product: its program, and the simulated shares."""
    m, n, k = shape
    kernel = roller.compile(ops.matmul(ops.tensor((m, k)), ops.tensor((k, n))), device=f"cuda:{chip}")
    return {
        "case": f"{m}x{n}x{k}",
        "program": kernel.program.describe(),
        "predicted_s": kernel.estimate.seconds,
        "registers": max(kernel.artifact.resources[f"{k['name']}.registers"] for k in kernel.artifact.launch["kernels"]),
        "busy": share(kernel, kernel.artifact.data),
        "busy_untold": share(kernel, untold(kernel)),
    }


def untold(kernel: Kernel) -> bytes:
    """The cubin of a kernel's text without what it says of blocks."""
    launch = kernel.artifact.launch
    return compiling.compiled(compiling.BLOCKS.sub(r"__launch_bounds__(\1)", str(launch["text"])), str(launch["arch"]))[0]


def share(kernel: Kernel, data: bytes) -> float | None:
    """Of the kernel with the most multiply-adds; None where its hot stretch is no loop over steps."""
    code = machine_code.read(data)
    launched = max(kernel.artifact.launch["kernels"], key=lambda k: code[k["name"]].hot.bases.get("FFMA", 0))
    return busy(kernel, launched, code[launched["name"]].hot, data).get("busy")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and how many times as fast the loops are as they are built."""
    both = [r for r in rows if r["busy"] and r["busy_untold"]]
    return {
        "products": len(rows),
        "loops": len(both),
        "median_busy": statistics.median(r["busy"] for r in both),
        "median_busy_untold": statistics.median(r["busy_untold"] for r in both),
        "busy_over_untold": geomean([r["busy"] / r["busy_untold"] for r in both]),
        "most": max(r["busy"] / r["busy_untold"] for r in both),
        "least": min(r["busy"] / r["busy_untold"] for r in both),
    }


def table(bodies: list[dict[str, Any]]) -> Table:
    """The summaries side by side."""
    made = Table(title="hot loops of float32 products, simulated")
    for name in ("", *(body["chip"] for body in bodies)):
        made.add_column(name)
    for name in bodies[0]["summary"]:
        made.add_row(name.replace("_", " "), *(f"{body['summary'][name]:.3g}" for body in bodies))
    return made


def main() -> int:
    """Compile, walk, write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--chips", default=",".join(CHIPS), help="separated by commas (default: %(default)s)")
    made.add_argument("--products", type=int, default=24, help="drawn at random (default: %(default)s)")
    made.add_argument("--out", type=type(FOLDER), default=FOLDER, help="the folder of the JSON files")
    options, bodies = made.parse_args(), []
    for chip in options.chips.split(","):
        rows = []
        for number, shape in enumerate(shapes(options.products)):
            rows.append(row(shape, chip))
            print(f"[{chip} {number}/{options.products}] {rows[-1]}", file=sys.stderr)
        about = {"chip": chip, "device": machine.device(), "versions": machine.versions(), "summary": summary(rows), "cases": rows}
        bodies.append(report.provenance("cuda_cycles") | about)
        report.store(options.out / f"{chip}.json", bodies[-1])
    report.screen().print(table(bodies))
    return 0


if __name__ == "__main__":
    sys.exit(main())
