"""The paper's 119 operators as programs for a simulated Bow: CPU seconds to compile, simulated cycles, right or wrong when small.

python -m bench.ipu.ops119 [--only C1,M] [--out ops119.json]

Where an operator's arrays, or any program for it, do not fit the memory of the chip, its batch (of products: the rows) is halved
until one does, and the row says so. Every operator is compiled once more with small extents, which the simulator runs against the
float64 reference. Seconds are CPU time of this process, from the operator to the checked manifest. No IPU and no Poplar SDK was
used.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import roller
from bench.common import report, targets
from bench.common.harness import RESULTS
from bench.common.paper_ops import PaperOperator, Row, paper_operators
from bench.common.survey_cases import small
from bench.ipu import sides
from roller import ops, verify
from roller.ir.expr import ELEMENT_BYTES
from roller.kernel import Kernel
from roller.plugin import find_spec
from roller.target.hardware import HardwareSpec
from roller_ipu_sim.chip.machine import machine

FILE = RESULTS / "ipu" / "ops119.json"
CHIP = "bow"
CUT = ("batch", "M")  # what is halved: the first that a row has


@dataclass(frozen=True)
class Found:
    """What became of one operator: a row of the report, and the reason where it failed."""

    case: str
    kind: str
    row: dict[str, Any]

    @property
    def compiled(self) -> bool:
        """True if a program was found, be it of fewer images."""
        return "cycles" in self.row

    @property
    def right(self) -> bool:
        """True if the small operator's numbers are right."""
        return bool(self.row["small"] == "right")


def with_batch(number: int, batch: int) -> PaperOperator:
    """An operator with another batch."""

    def change(row: Row) -> Row:
        name = next(n for n in CUT if row[n])
        return {**row, name: str(batch)}

    return paper_operators(change)[number]


def batch_of(operator: PaperOperator) -> int:
    """The batch, or the rows of a product."""
    return ops.expression(operator.build()).inputs[0].shape[0]


def array_bytes(operator: PaperOperator) -> int:
    """Bytes of all inputs and of the result."""
    expr = ops.expression(operator.build())
    return sum(math.prod(t.shape) * ELEMENT_BYTES[t.dtype] for t in (*expr.inputs, expr.output))


def compiled(operator: PaperOperator) -> tuple[Kernel, float]:
    """The kernel, and the CPU seconds that it took; `RollerError` where there is none."""
    begin = time.process_time()
    kernel = roller.compile(operator.build(), device=f"ipu_sim:{CHIP}")
    return kernel, time.process_time() - begin


def at_size(number: int, operator: PaperOperator, spec: HardwareSpec) -> dict[str, Any]:
    """The operator with the largest of its batches, halved, that compiles."""
    batch, chip = batch_of(operator), machine(spec)
    room, needed = chip.tiles * chip.data_bytes, array_bytes(operator)
    row: dict[str, Any] = {"batch": batch, "array_bytes": needed, "room_bytes": room, "refused": {}}
    while batch:
        if (needed := array_bytes(with_batch(number, batch))) > room:
            row["refused"][str(batch)] = f"arrays of {needed} bytes, {needed - room} more than all tiles have for data"
        else:
            try:
                kernel, seconds = compiled(with_batch(number, batch))
            except (roller.RollerError, MemoryError) as error:  # the latter where the shell limits memory
                row["refused"][str(batch)] = f"{type(error).__name__}: {error}"
            else:
                programs = [sides.about(stage) for stage in kernel.program.stages]
                resources = {name: kernel.artifact.resources[name] for name in ("simulated_cycles", "tile_bytes", "supersteps")}
                return {**row, "batch_compiled": batch, "compile_s": seconds, "cycles": resources.pop("simulated_cycles"),
                        **resources, "programs": programs}  # fmt: skip
        batch //= 2
    return row


def when_small(operator: PaperOperator) -> dict[str, Any]:
    """Whether the small operator's program is right, on whole numbers and on others."""
    expr = ops.expression(operator.build())
    try:
        kernel, _ = compiled(operator)
        for integer in (True, False):
            arrays = verify.random_inputs(expr, 1, integer)
            verify.check(expr, arrays, kernel(*arrays.values()))
    except roller.RollerError as error:
        return {"small": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"small": "right", "small_program": kernel.program.describe()}


def summary(found: Sequence[Found]) -> dict[str, Any]:
    """Seconds, what was cut and what failed."""
    done = [f for f in found if f.compiled]
    seconds = [f.row["compile_s"] for f in done]
    return {
        "operators": len(found),
        "compiled": len(done),
        "whole": sum(f.row["batch_compiled"] == f.row["batch"] for f in done),
        "cut": {f.case: [f.row["batch"], f.row["batch_compiled"]] for f in done if f.row["batch_compiled"] != f.row["batch"]},
        "cut_though_arrays_fit": [f.case for f in found if any("arrays of" not in why for why in f.row["refused"].values())],
        "compile_s": {"median": statistics.median(seconds), "worst": max(seconds)} if seconds else {},
        "slow": [f.case for f in done if f.row["compile_s"] > targets.LIMITS["ipu_ops119"]["compile_s"]["worst"][1]],
        "not_compiled": {f.case: list(f.row["refused"].values())[-1:] for f in found if not f.compiled},
        "right": sum(f.right for f in found),
        "not_right": {"count": sum(not f.right for f in found), **{f.case: f.row["reason"] for f in found if not f.right}},
    }


def table(found: Sequence[Found]) -> Table:
    """A row an operator."""
    made = Table(title="the paper's operators on a simulated Bow")
    for heading in (
        "case",
        "kind",
        "batch",
        "compiled",
        "CPU seconds",
        "simulated cycles",
        "KiB a tile",
        "small",
        "program or reason",
    ):
        made.add_column(heading, justify="left" if heading in ("case", "kind", "small", "program or reason") else "right")
    for f in found:
        row = f.row
        if f.compiled:
            numbers = [str(row["batch_compiled"]), f"{row['compile_s']:.2f}", str(row["cycles"]), str(row["tile_bytes"] // 1024)]
        else:
            numbers = ["none", "", "", ""]
        said = row["programs"][0] if f.compiled else next(reversed(row["refused"].values()), "")
        made.add_row(f.case, f.kind, str(row["batch"]), *numbers, row["small"], said)
    return made


def write(path: Path, found: Sequence[Found]) -> None:
    """The file of what has been compiled so far."""
    body = {"summary": summary(found), "cases": [{"case": f.case, "kind": f.kind, **f.row} for f in found]}
    sides.write(path, "ipu_ops119", body)


def main(words: Sequence[str] | None = None) -> int:
    """Print and write all operators; 1 if one is wrong, is not compiled, or takes too long."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--only", default="", help="ids that begin with one of these, separated by commas")
    made.add_argument("--out", type=Path, default=FILE, help="the file of the report")
    options = made.parse_args(words)
    spec, wanted = find_spec("ipu_sim", CHIP), tuple(options.only.split(","))
    found = []
    for number, (full, reduced) in enumerate(zip(paper_operators(), paper_operators(small), strict=True)):
        if full.id.startswith(wanted):
            print(f"[{number + 1}] {full.id} {full.kind}", file=sys.stderr, flush=True)
            found.append(Found(full.id, full.kind, {**at_size(number, full, spec), **when_small(reduced)}))
            write(options.out, found)
    sums = summary(found)
    console = report.screen()
    console.print(table(found))
    console.print(sums, markup=False, highlight=False)
    return int(bool(sums["slow"] or sums["not_compiled"] or sums["not_right"]["count"]))


if __name__ == "__main__":
    sys.exit(main())
