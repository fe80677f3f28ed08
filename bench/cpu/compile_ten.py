"""The ten best programs of an operator of each kind, for this CPU and four GPUs, built one by one and all at once.

python -m bench.cpu.compile_ten
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import roller
from bench.common import harness, report
from bench.common.survey_cases import CudaCase, cases
from bench.cpu.compile_time import TOP_K, spent
from roller import building
from roller.device.chip import resolve
from roller.device.plan import Plan
from roller_cuda.toolchain import compiling

DEVICES = ("cpu", "cuda:v100", "cuda:a100", "cuda:rtx4090", "cuda:h100")


def operator_row(case: CudaCase, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds on the wall for the best programs of one operator, built one by one and at once; nothing is known from before."""
    row: dict[str, Any] = {"case": f"{case.id} for {device}", "kind": case.kind, "status": "ok"}
    try:
        found = roller.compile(case.full(), device=device, top_k=TOP_K)
        plan, choices = Plan(*resolve(device)), found.candidates
        ways = {
            "one_by_one": lambda: [building.build(plan, c) for c in choices],
            "at_once": lambda: building.build_all(plan, choices),
        }
        for name, way in ways.items():
            rounds = [forgotten(way) for _ in range(options.rounds)]
            row[name] = {"wall_s": statistics.median(rounds), "wall_rounds_s": rounds}
    except roller.RollerError as error:
        return row | {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return row | {"programs": len(choices)}


def forgotten(way: Callable[[], object]) -> float:
    """Seconds on the wall, without binaries that are known from before."""
    compiling.compiled_by.cache_clear()
    return spent(way)[0]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst of each way, and of how many times less "at once" takes."""
    good = [r for r in rows if r["status"] == "ok"]
    found: dict[str, Any] = {"operators": len(rows), "built": len(good), "cores": building.cores()}
    for way in ("one_by_one", "at_once") if good else ():
        worst = max(good, key=lambda r: r[way]["wall_s"])
        times = {"median_s": statistics.median(r[way]["wall_s"] for r in good), "worst_s": worst[way]["wall_s"]}
        found[way.replace("_", " ")] = times | {"worst_case": worst["case"]}
    if good:
        found["less_time"] = {"median": statistics.median(r["one_by_one"]["wall_s"] / r["at_once"]["wall_s"] for r in good)}
    return found


def main() -> int:
    """Build them all; 1 if one does not build."""
    options = harness.start(__doc__ or "", lambda made: made.set_defaults(rounds=3))
    first = {case.kind: case for case in reversed(cases()) if any(part in case.id for part in options.cases.split(","))}
    pairs = [(case, device) for case in first.values() for device in DEVICES]
    rows = []
    for number, (case, device) in enumerate(pairs[: 2 if options.quick else None], 1):
        rows.append(operator_row(case, device, options))
        said = rows[-1].get("reason") or ", ".join(
            f"{w} {report.duration(rows[-1][w]['wall_s'])}" for w in ("one_by_one", "at_once")
        )
        print(f"[{number}/{len(pairs)}] {rows[-1]['case']}: {said}", file=sys.stderr)
    found = summary(rows)
    report.write("compile_ten", {"summary": found, "cases": rows}, options)
    report.screen().print(found)
    return int(any(row["status"] != "ok" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
