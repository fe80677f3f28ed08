"""This tree's choices for CPUs beside those of another one, measured: python -m bench.cpu.beside TREE --threads 2

TREE is a folder with another version of roller (`git worktree add TREE COMMIT`). Both trees construct on this machine; this tree
builds both programs and times them in turns, so that the choices are compared, not the code generators. Operators: those of
`bench.cpu.fidelity`, or with --paper every fourth one of the paper's; and random ones.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

import roller
from bench.common import figures, harness, report
from bench.cpu.fidelity import inputs_of, side_of
from bench.engine import chosen
from bench.engine.beside import CHOSEN, HERE, lines, program_of
from roller import ops
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.runtime.artifact import BuildOptions
from roller.target.subset import limited

DRAWN, PAPER, SLOWER = 20, 4, 1.05


def measured(case: Any, both: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Returns the median seconds of both choices; those that are the same program are not timed."""
    device, spec = resolve("cpu")
    spec, op, build = limited(spec, options.threads), case.build(), BuildOptions(threads=options.threads)
    expr = fuse(ops.expression(op), spec.spread)
    programs = [program_of(line, expr, spec) for line in both]
    row = {"case": case.name, "kind": case.kind, "programs": [program.describe() for program in programs]}
    if programs[0] == programs[1]:
        return row | {"status": "same"}
    if {tensor.dtype for tensor in (*expr.inputs, expr.output)} != {"float32"}:
        return row | {"status": "skipped", "reason": "its arrays are not float32"}
    inputs = inputs_of(op)
    runners = [device.load_kernel(device.build(spec, device.codegen(spec, program, build), build)) for program in programs]
    sides = [side_of(name, r, inputs, p) for name, r, p in zip(("old", "new"), runners, programs, strict=True)]
    depth = max([math.prod(a.extent for a in s.axes if a.is_reduce) for s in expr.stages])
    harness.checked(sides, harness.tolerance(depth))
    times, _, quiet = harness.interleave(sides, options)
    medians = {name: statistics.median(times[name]) for name in times}
    return row | {"status": "ok", "old_s": medians["old"], "new_s": medians["new"], "quiet": quiet}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns geometric means of the new choice's time over the old one's, and the operators that became slower."""
    ratios = {row["case"]: row["new_s"] / row["old_s"] for row in rows if row["status"] == "ok"}
    found: dict[str, Any] = {"operators": len(rows), "changed": len(ratios), "failed": sum(r["status"] == "failed" for r in rows)}
    if ratios:
        found["changed_geomean"] = figures.geomean(ratios.values())
        found["geomean"] = figures.geomean([*ratios.values(), *[1.0] * sum(r["status"] == "same" for r in rows)])
    return found | {"slower": {name: ratio for name, ratio in ratios.items() if ratio > SLOWER}}


def table(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> Table:
    """Returns a row for each operator whose program changed."""
    made = Table(title=f"{found['changed']} of {found['operators']} programs changed; time new / old {found.get('geomean', 1):.3f}")
    for heading in ("operator", "old", "new", "new / old"):
        made.add_column(heading, justify="left" if heading == "operator" else "right")
    for row in rows:
        if row["status"] == "ok":
            times = row["old_s"], row["new_s"]
            made.add_row(row["case"], *(report.duration(t) for t in times), f"{times[1] / times[0]:.2f}")
    return made


def main() -> int:
    """Construct in both trees, build, check, time; 1 if an operator failed."""

    def extend(made: argparse.ArgumentParser) -> None:
        made.add_argument("tree", type=Path)
        made.add_argument("--paper", action="store_true", help="every fourth one of the paper's operators")
        made.add_argument("--drawn", type=int, default=DRAWN, help="random operators")

    options = harness.start(__doc__ or "", extend)
    asked = PAPER if options.paper else 0, options.drawn, options.threads
    known = {case.name: case for case in chosen.operators(*asked[:2])}
    rows: list[dict[str, Any]] = []
    for old, new in zip(*(lines(tree, CHOSEN, "cpu", *asked) for tree in (options.tree.resolve(), HERE)), strict=True):
        try:
            rows.append(measured(known[new["case"]], (old, new), options))
        except (roller.RollerError, harness.Mismatch, KeyError) as error:
            rows.append({"case": new["case"], "status": "failed", "reason": f"{type(error).__name__}: {error}"})
        print(f"  {new['case']}: {rows[-1].get('reason', rows[-1]['status'])}", file=sys.stderr)
    found = summary(rows)
    screen = report.screen()
    screen.print(table(rows, found))
    screen.print(found, highlight=False)
    report.write("beside-paper" if options.paper else "beside", {"summary": found, "cases": rows}, options)
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
