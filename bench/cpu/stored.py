"""Does today's model rank stored programs as the CPUs did that ran them? python -m bench.cpu.stored [--tree TREE]

`bench.cpu.fidelity` keeps every program that it measured, with its expression, its times and the chip's spec. A changed model
rates them again, on any machine: rank correlation, and the time of the program it would pick over the fastest one's. With
--tree, another version of roller rates the same programs beside. `tests/bench/test_bench_stored.py` holds the model to what
--keep has written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.common import figures, report
from bench.common.harness import RESULTS
from bench.engine.beside import HERE, lines
from roller.target.catalog import dump_spec
from roller.target.hardware import HardwareSpec

PATTERN = "*/programs-*t.json.gz"
KEPT = RESULTS / "construction" / "stored.json"  # what the model reached before, which a test holds it to
TEN = 10

Seconds = dict[str, list[float]]


def files() -> list[Path]:
    """The stored programs of every CPU family and number of threads."""
    return sorted(RESULTS.glob(PATTERN))


def read(path: Path) -> dict[str, Any]:
    """What `write` has stored."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def write(path: Path, head: dict[str, Any], spec: HardwareSpec, cases: Sequence[dict[str, Any]]) -> None:
    """Keep cases: each with its name, its expression and its programs, each of these with its name and its measured seconds."""
    body = {"spec": tomllib.loads(dump_spec(spec)), "cases": list(cases)}
    text = json.dumps(figures.rounded(head | body), separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))  # the same input gives the same bytes


def name_of(path: Path) -> str:
    """The CPU family and the number of threads."""
    return f"{path.parent.name} {path.name.removeprefix('programs-').removesuffix('.json.gz')}"


def predicted(path: Path, tree: Path) -> Seconds:
    """Predicted seconds of each case's programs, by the model of a tree."""
    return {line["case"]: line["seconds"] for line in lines(tree, "rating.py", str(path))}


def ranked(stored: dict[str, Any], seconds: Seconds) -> list[dict[str, Any]]:
    """A row a case: rank correlation, and how much slower than the fastest the first choice and the best of ten are."""
    rows = []
    for case in stored["cases"]:
        measured, foreseen = [entry["median_s"] for entry in case["programs"]], seconds[case["case"]]
        order = sorted(range(len(measured)), key=foreseen.__getitem__)
        least = min(measured)
        rows.append(
            {
                "case": case["case"],
                "spearman": figures.spearman(foreseen, measured),
                "top1_regret": measured[order[0]] / least - 1,
                "top10_regret": min(measured[i] for i in order[:TEN]) / least - 1,
            }
        )
    return rows


def summary(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Mean, median and worst over the cases; a case whose times do not vary has no rank."""
    rows = list(rows)
    ranks = [row["spearman"] for row in rows if figures.finite(row["spearman"]) is not None]
    first, ten = ([row[key] for row in rows] for key in ("top1_regret", "top10_regret"))
    return {
        "mean_spearman": statistics.mean(ranks),
        "median_spearman": statistics.median(ranks),
        "median_top1_regret": statistics.median(first),
        "mean_top1_regret": statistics.mean(first),
        "worst_top1_regret": max(first),
        "worst_top10_regret": max(ten),
    }


def table(found: dict[str, dict[str, float]]) -> Table:
    """A row a file and a tree."""
    made = Table(title="stored programs, rated again")
    for heading in ("programs of", "Spearman, mean", "median", "top-1 regret, median", "mean", "worst", "top-10 regret, worst"):
        made.add_column(heading, justify="left" if heading == "programs of" else "right")
    for name, values in found.items():
        numbers = list(values.values())
        made.add_row(name, *(f"{value:.3f}" for value in numbers[:2]), *(f"{value:.1%}" for value in numbers[2:]))
    return made


def main() -> None:
    """Rate every stored program by this tree, and by another one where it is named."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tree", type=Path, help="another version of roller, which rates the same programs")
    made.add_argument("--cases", action="store_true", help="a line for each case, too")
    made.add_argument("--keep", action="store_true", help="write what this tree reaches")
    options = made.parse_args()
    found, screen = {}, report.screen()
    for path in files():
        stored, name = read(path), name_of(path)
        for tree in [HERE, *([options.tree] if options.tree else [])]:
            rows = ranked(stored, predicted(path, tree))
            found[name if tree == HERE else f"{name}, {tree.name}"] = summary(rows)
            for row in rows if options.cases else ():
                screen.print(f"{row['case']:40} {row['spearman']:6.2f} {row['top1_regret']:7.1%} {row['top10_regret']:7.1%}")
    screen.print(table(found))
    if options.keep:
        mine = {name: values for name, values in found.items() if name in {name_of(path) for path in files()}}
        report.store(KEPT, report.provenance("stored") | {"summary": figures.rounded(mine)})


if __name__ == "__main__":
    main()
