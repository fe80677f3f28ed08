"""From a call to a kernel, over the 119 operators: construction, and the whole compilation. python -m bench.cpu.compile_time"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.table import Table

import roller
from bench.common import figures, harness, report, targets
from bench.common.paper_ops import PaperOperator, paper_operators
from roller import ops
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.search.construct import construct
from roller.target.subset import narrowed

TOP_K = 10  # compile()'s default
STAGES = ("construct", "kernel")


def constructed(operator: PaperOperator, options: argparse.Namespace) -> None:
    """The operator as an expression, fused; its programs, rated and ranked."""
    plugin, chip = resolve("cpu")
    chip = narrowed(chip, options.threads)
    expr = fuse(ops.expression(operator.build()))
    construct(expr, chip, plugin.rules(chip, expr), plugin.cost_parameters(chip, expr), TOP_K)


def compiled(operator: PaperOperator, options: argparse.Namespace) -> None:
    """All of it: the same, then TVM, LLVM and loading."""
    roller.compile(operator.build(), device="cpu", threads=options.threads, top_k=TOP_K).load()


def spent(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the wall and of the process's CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def operator_row(operator: PaperOperator, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of one operator; "failed" with the reason where it does not compile."""
    row: dict[str, Any] = {"case": operator.id, "kind": operator.kind, "flops": operator.flops, "status": "ok"}
    try:
        for stage, action in zip(STAGES, (constructed, compiled), strict=True):
            rounds = [spent(lambda run=action: run(operator, options)) for _ in range(options.rounds)]  # type: ignore[misc]
            row[stage] = {
                "wall_s": statistics.median(wall for wall, _ in rounds),
                "cpu_s": statistics.median(cpu for _, cpu in rounds),
                "wall_rounds_s": [wall for wall, _ in rounds],
            }
    except roller.RollerError as error:
        row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each stage and clock: median, worst and its operator, and whether size matters.

    `by_size`: rank correlation of time with the operator's work; `large_over_small`: median of the quarter with the most work
    over that of the quarter with the least. For both, time and work are those over the medians of the operator's kind.
    """
    good = [r for r in rows if r["status"] == "ok"]
    found: dict[str, Any] = {"operators": len(rows), "compiled": len(good)}
    for stage in STAGES if good else ():
        for clock in ("wall_s", "cpu_s"):
            times = [r[stage][clock] for r in good]
            sizes = relative(good, lambda r: r["flops"])
            scaled = relative(good, lambda r, s=stage, c=clock: r[s][c])  # type: ignore[misc]
            by_size = [time for _, time in sorted(zip(sizes, scaled, strict=True))]
            quarter = max(1, len(times) // 4)
            worst = max(good, key=lambda r: r[stage][clock])
            found[f"{stage} {clock.removesuffix('_s')}"] = {
                "median_s": statistics.median(times),
                "worst_s": worst[stage][clock],
                "worst_case": worst["case"],
                "by_size": figures.finite(figures.spearman(sizes, scaled)),
                "large_over_small": statistics.median(by_size[-quarter:]) / statistics.median(by_size[:quarter]),
            }
    return found


def relative(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> list[float]:
    """Each row's value over the median of its kind."""
    middle = {kind: statistics.median(value(r) for r in rows if r["kind"] == kind) for kind in {r["kind"] for r in rows}}
    return [value(r) / middle[r["kind"]] for r in rows]


def table(found: dict[str, Any]) -> Table:
    """The summary for people."""
    made = Table(title=f"from call to kernel: {found['compiled']} of {found['operators']} operators")
    for heading in ("stage, clock", "median", "worst", "of", "wanted", "rank correlation with work", "largest ÷ smallest quarter"):
        made.add_column(heading, justify="left" if heading in ("stage, clock", "of") else "right")
    for name, numbers in found.items():
        if isinstance(numbers, dict):
            limits = targets.LIMITS["compile_time"][f"{name.split()[0]} wall"]
            wanted = " / ".join(report.duration(limits[key][1]) for key in ("median_s", "worst_s"))
            size = "" if numbers["by_size"] is None else f"{numbers['by_size']:.2f}"
            times = [report.duration(numbers[key]) for key in ("median_s", "worst_s")]
            made.add_row(name, *times, numbers["worst_case"], wanted, size, f"{numbers['large_over_small']:.2f}")
    return made


def main() -> int:
    """Time every operator; 1 if one does not compile."""
    options = harness.start(__doc__ or "", lambda made: made.set_defaults(rounds=3))
    operators = [o for o in paper_operators() if any(part in o.id for part in options.cases.split(","))]
    if options.quick:
        operators = operators[:: 1 if options.cases else 20]
    compiled(operators[0], options)  # imports TVM, measures this CPU once, starts LLVM
    rows = []
    for number, operator in enumerate(operators, 1):
        rows.append(operator_row(operator, options))
        last = rows[-1]
        said = last.get("reason") or ", ".join(f"{s} {report.duration(last[s]['wall_s'])}" for s in STAGES)
        print(f"[{number}/{len(operators)}] {operator.id}: {said}", file=sys.stderr)
    report.write("compile_time", {"summary": summary(rows), "cases": rows}, options)
    report.screen().print(table(summary(rows)))
    return int(any(row["status"] != "ok" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
