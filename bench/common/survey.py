"""The paper's operators compiled for chips that are not here, and emulated made small: what reports of every such device share.

Every operator is compiled for every chip, and compiled once more with small extents for the device's emulator. Results are written
after each operator: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

import roller
from bench.common import machine, report
from bench.common.survey_cases import CudaCase
from roller import ops
from roller.ir import serialization
from roller.ir.expr import TensorExpr
from roller.kernel import Kernel

Row = dict[str, Any]
SLOW_S = 3.0  # what a compilation may take at most


@dataclass(frozen=True)
class Survey:
    """One device. `prefix`: of the names of files, before the chip's. `compiled`: the row of an operator at its own size, with its
    `status`. `checked`: what the emulator says of a kernel that is right; it raises where it is not. `told`: a row for people.
    `prepared`: what is done first for a chip. `head`: what every file says besides.
    """

    benchmark: str
    device: str
    chips: tuple[str, ...]
    folder: Path
    title: str
    said: str
    cases: Callable[[], Sequence[CudaCase]]
    compiled: Callable[[CudaCase, str, argparse.Namespace], Row]
    checked: Callable[[Kernel, TensorExpr], Row]
    summary: Callable[[Sequence[Row]], Row]
    told: Callable[[Row], str]
    tools: Callable[[], Mapping[str, str]]
    prefix: str = ""
    prepared: Callable[[str], None] = lambda chip: None
    head: Mapping[str, Any] = field(default_factory=dict)

    def emulated(self, case: CudaCase, chip: str, known: Mapping[str, Row]) -> Row:
        """Whether the operator made small is right on the emulator; the same small operator is run once."""
        op = case.small()
        expr = ops.expression(op)
        key = hashlib.sha256(json.dumps(serialization.expr_to_json(expr), sort_keys=True).encode()).hexdigest()[:12]
        if key in known:
            return known[key]
        found: Row = {"small": key, "inputs": ["x".join(map(str, t.shape)) for t in expr.inputs]}
        begin = time.perf_counter()
        try:
            kernel = roller.compile(op, device=f"{self.device}:{chip}")
            found["program"] = kernel.program.describe()
            found |= self.checked(kernel, expr) | {"status": "right"}
        except roller.RollerError as error:
            found |= failure(error)
        return found | {"seconds": time.perf_counter() - begin}

    def run(self, chip: str, options: argparse.Namespace) -> Row:
        """All operators on one chip, those that the file has already left out, or done again."""
        path = options.out / f"{self.prefix}{chip}.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"cases": []}
        parts = options.only.split(",")
        wanted = [c for c in self.cases() if any(part in c.id for part in parts)][: options.limit]
        anew = {case.id for case in wanted} if options.again else set()
        rows: dict[str, Row] = {row["case"]: row for row in found["cases"] if row["case"] not in anew}
        known = {row["emulator"]["small"]: row["emulator"] for row in rows.values() if "emulator" in row}
        self.prepared(chip)
        for number, case in enumerate(wanted, 1):
            if case.id in rows:
                continue
            row: Row = {"case": case.id, "kind": case.kind, **self.compiled(case, chip, options)}
            row["emulator"] = self.emulated(case, chip, known)
            known[row["emulator"]["small"]] = row["emulator"]
            rows[case.id] = row
            self.write(path, chip, rows)
            said = row.get("reason") or self.told(row)
            states = f"{row['status']}, {row['emulator']['status']}"
            print(f"[{chip} {number}/{len(wanted)}] {case.id}: {states}; {said}", file=sys.stderr)
        return self.write(path, chip, rows)

    def write(self, path: Path, chip: str, rows: Mapping[str, Row]) -> Row:
        """The file of one chip, whole or not at all; rows in the order of the operators."""
        order = {case.id: number for number, case in enumerate(self.cases())}
        body = report.provenance(self.benchmark) | {
            **self.head,
            "chip": chip,
            "device": machine.device(),
            "versions": machine.versions() | dict(self.tools()),
            "summary": self.summary(list(rows.values())),
            "cases": sorted(rows.values(), key=lambda row: order.get(row["case"], len(order))),
        }
        report.store(path, body)
        return body

    def table(self, bodies: Sequence[Row]) -> Table:
        """The summaries side by side."""
        made = Table(title=self.title)
        made.add_column("")
        for body in bodies:
            made.add_column(body["chip"], justify="right")
        for name in dict.fromkeys(name for body in bodies for name in body["summary"]):
            values = [body["summary"].get(name) for body in bodies]
            made.add_row(name.replace("_", " "), *(f"{v:.2f}" if isinstance(v, float) else str(v) for v in values))
        return made

    def arguments(self) -> argparse.ArgumentParser:
        """What all such programs are told."""
        made = argparse.ArgumentParser(description=self.said, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        made.add_argument("--chips", default=",".join(self.chips), help="separated by commas")
        made.add_argument("--only", default="", help="operators whose id contains one of these, separated by commas")
        made.add_argument("--limit", type=int, help="so many operators at most")
        made.add_argument("--again", action="store_true", help="leave out nothing that the files have already")
        made.add_argument("--out", type=Path, default=self.folder, help="the folder of the JSON files")
        return made

    def main(self, options: argparse.Namespace) -> int:
        """Compile and check; 1 if an operator fails, spills, or is wrong."""
        bodies = [self.run(chip, options) for chip in options.chips.split(",")]
        report.screen().print(self.table(bodies))
        bad = [row for body in bodies for row in body["cases"] if row["status"] != "ok" or row["emulator"]["status"] != "right"]
        return int(bool(bad))


def failure(error: roller.RollerError) -> Row:
    """The row of an operator that did not come to an end."""
    return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def counted(rows: Sequence[Row]) -> Row:
    """Of all operators of one chip: how many compiled, and how slowly."""
    built = [r for r in rows if r["status"] != "failed"]
    slow = max(built, key=lambda r: r["compile_s"], default=None)
    return {
        "operators": len(rows),
        "compiled": len(built),
        "with_spills": sum(r["status"] == "spills" for r in rows),
        "right_on_the_emulator": sum(r["emulator"]["status"] == "right" for r in rows),
        "slowest_compile_s": slow and slow["compile_s"],
        "slowest_case": slow and slow["case"],
        "slower_than_3_s": sum(r["compile_s"] > SLOW_S for r in built),
    }
