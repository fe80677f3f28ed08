"""The model against the paper's MI50: products and convolutions in the original's own tiles. python -m bench.rocm.paper

Nothing runs here, and no AMD hardware was used: the times are those that ROLLER's authors published. They did not publish the tiles
of the MI50; `bench.rocm.policy` derives them. Predicted is the derived tile, at the best order and staging of it; efficiency is the
roofline's time over the time (`bench.engine.paper_fidelity`). Beside the first of the original's ten candidates, the fastest of
the ten published is compared with the fastest of the ten predicted.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

import roller
from bench.common import figures, machine, report, targets
from bench.common.harness import RESULTS
from bench.common.paper_ops import DATA, PaperOperator, other_operators
from bench.engine import paper_fidelity
from bench.rocm.policy import MI50, Choice, candidates
from roller.target.hardware import HardwareSpec

FILE = RESULTS / "rocm" / "paper.json"
KINDS = {"M": "matmul", "C": "conv2d"}
GROUPS = {"matmul": "M", "conv2d": "C", "matmul + conv2d": "MC"}
ABOUT = "No AMD hardware was used: predictions against the times published by ROLLER's authors, for tiles derived from its policy."


def spec() -> HardwareSpec:
    """The MI50 as the paper's toolchain saw it."""
    return paper_fidelity.as_in_the_paper("MI50", roller.load_spec(paper_fidelity.OTHERS["MI50"]))


def sizes() -> dict[str, tuple[int, int, int]]:
    """Rows, columns and depth of every operator as the product that the original computes it as."""
    with (DATA / "ops_other.csv").open(newline="", encoding="utf-8") as file:
        chosen = [row for row in csv.DictReader(file) if row["device"] == "MI50" and row["id"][0] in KINDS]
    return {row["id"]: (int(row["M"]), int(row["N"]), int(row["K"])) for row in chosen}


def rows() -> Iterator[dict[str, Any]]:
    """One row for each product and convolution of the paper's table of the MI50."""
    chip, known = spec(), sizes()
    for operator in other_operators():
        if operator.device == "MI50" and operator.id in known:
            yield row(operator, chip, candidates(*known[operator.id], MI50))


def row(operator: PaperOperator, chip: HardwareSpec, tried: Sequence[Choice]) -> dict[str, Any]:
    """Prediction and measurement of one operator: of the first of the original's candidates, and of the fastest."""
    found = {"case": operator.id, "kind": KINDS[operator.id[0]], "block": list(tried[0].block), "lane": list(tried[0].lane)}
    try:
        seconds = [predicted(operator, choice, chip) for choice in tried]
    except LookupError as error:
        return found | {"status": "left out", "reason": str(error)}
    limit = paper_fidelity.roofline(operator, chip)
    measured, fastest = (operator.paper_ms[name] * 1e-3 for name in ("roller_top1", "roller_top10"))
    return found | {
        "status": "ok",
        "candidates": len(tried),
        "predicted_s": seconds[0],
        "measured_s": measured,
        "predicted_efficiency": limit / seconds[0],
        "measured_efficiency": limit / measured,
        "predicted_efficiency_of_ten": limit / min(seconds),
        "measured_efficiency_of_ten": limit / fastest,
    }


def predicted(operator: PaperOperator, choice: Choice, chip: HardwareSpec) -> float:
    """Seconds for one of the original's tiles; `LookupError` where no loop nest of ours has it."""
    return paper_fidelity.predicted(operator, paper_fidelity.Original(operator.id, choice.block, (*choice.lane, 1)), chip)


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Correlations of efficiency for products, for convolutions and for both; medians of predicted over measured time."""
    return {name: _summary([r for r in found if r["case"][0] in kinds and r["status"] == "ok"]) for name, kinds in GROUPS.items()}


def _summary(chosen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, ten = (
        [[r[f"{side}_efficiency{suffix}"] for r in chosen] for side in ("predicted", "measured")] for suffix in ("", "_of_ten")
    )
    return {
        "operators": len(chosen),
        "pearson": figures.finite(figures.pearson(*first)),
        "spearman": figures.finite(figures.spearman(*first)),
        "pearson_of_ten": figures.finite(figures.pearson(*ten)),
        "spearman_of_ten": figures.finite(figures.spearman(*ten)),
        "predicted_over_measured": statistics.median(r["predicted_s"] / r["measured_s"] for r in chosen) if chosen else None,
    }


def table(found: Sequence[dict[str, Any]]) -> Table:
    """A row an operator."""
    made = Table(title="efficiency on an MI50, predicted and published")
    for heading in ("case", "block", "lane", "predicted", "published", "of ten, predicted", "published"):
        made.add_column(heading, justify="left" if heading == "case" else "right")
    for r in found:
        tiles = ["x".join(map(str, r[name])) for name in ("block", "lane")]
        names = [f"{side}_efficiency{suffix}" for suffix in ("", "_of_ten") for side in ("predicted", "measured")]
        made.add_row(r["case"], *tiles, *[f"{r[name]:.2f}" if name in r else "" for name in names])
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Print and write all rows; 1 if the model follows the published efficiencies less than it should."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--out", type=Path, default=FILE, help="the file of the report")
    options = made.parse_args(words)
    found = list(rows())
    sums = summary(found)
    verdict = targets.of_sums("rocm_paper", "matmul + conv2d", sums["matmul + conv2d"])
    console = report.screen()
    console.print(table(found))
    console.print(sums, verdict)
    body = report.provenance("rocm_paper") | {"versions": machine.versions(), "about": ABOUT, "summary": sums, "cases": found}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(figures.compact(body) + "\n", encoding="utf-8")
    return int("missed" in verdict)


if __name__ == "__main__":
    sys.exit(main())
