"""Every family of operators, element type and shape on the emulator of CUDA kernels, against NumPy. No GPU is needed.

python -m bench.cuda_emulated [--chips a100,h100] [--families matmul,conv] [--jobs 2]

Each operator of `bench.emulated_cases` is compiled for each chip, and its kernel run in every order of events the emulator has,
on small whole numbers (exact) and on floats (within the derived bound), into memory full of NaN with guards behind it. Where matrix
units suit the operator, so is the best program of each kind of them, and the best one without. Results are written as they come: a
run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import figures, machine, report
from bench.emulated_cases import EmulatedCase, cases
from bench.emulating import Row, contained
from bench.harness import RESULTS
from roller_cuda import emulator

CHIPS = ("v100", "a100", "rtx4090", "h100")
FOLDER = RESULTS / "cuda-emulated"
SAVED_EVERY = 40  # cases
STATUSES = ("right", "refused", "skipped", "wrong", "failed")
TOOLS = ("apache-tvm", "nvidia-cuda-nvrtc-cu12")


def read(path: Path) -> dict[str, Row]:
    """The rows of a report, by case; none where there is no report."""
    if not path.is_file():
        return {}
    return {row[0]: tuple(row) for row in json.loads(path.read_text(encoding="utf-8"))["cases"]}


def write(path: Path, chip: str, rows: dict[str, Row]) -> dict[str, Any]:
    """The report of one chip, whole or not at all; cases that are no longer declared leave it."""
    kept = [rows[case.id] for case in cases() if case.id in rows]
    body = report.provenance("cuda_emulated") | {
        "chip": chip,
        "device": machine.device(),
        "versions": machine.versions() | {name: metadata.version(name) for name in TOOLS},
        "orders": [order._asdict() for order in emulator.ORDERS],
        "summary": summary(kept),
        "cases": kept,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(figures.compact(body) + "\n", encoding="utf-8")
    partial.replace(path)
    return body


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of one chip: all cases that are declared, those that have run, and what became of them, in all and by family."""
    by_family: dict[str, Counter[str]] = {}
    for case, status, *_ in rows:
        by_family.setdefault(case.split(" / ")[0], Counter())[status] += 1
    refused = Counter(row[3].partition(":")[0] for row in rows if row[1] == "refused")
    return {
        "declared": len(cases()),
        "run": len(rows),
        **Counter(row[1] for row in rows),
        "programs": sum(len(row[2].split(", ")) for row in rows if row[2]),
        "refused_with": dict(refused),
        "families": {name: dict(found) for name, found in by_family.items()},
    }


def table(bodies: Sequence[dict[str, Any]]) -> Table:
    """The summaries side by side."""
    made = Table(title="operators on the emulator of CUDA kernels")
    for heading in ("", *(body["chip"] for body in bodies)):
        made.add_column(heading, justify="right" if heading else "left")
    for name in ("declared", "run", *STATUSES, "programs"):
        made.add_row(name, *(str(body["summary"].get(name, 0)) for body in bodies))
    return made


def wanted(options: argparse.Namespace) -> list[EmulatedCase]:
    """The cases that the command line asks for."""
    return [c for c in cases() if any(part in c.family for part in options.families.split(","))]


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases on all chips, those that the reports have already left out; chip after chip for each case."""
    chips = options.chips.split(",")
    rows = {chip: {} if options.again else read(options.out / f"{chip}.json") for chip in chips}
    some = wanted(options)
    random.Random(0).shuffle(some)  # a run that is stopped has seen something of every family
    todo = [(case, chip) for case in some for chip in chips if case.id not in rows[chip]]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(contained, case, chip): chip for case, chip in todo}
        try:
            for number, done in enumerate(as_completed(waiting), 1):
                chip, row = waiting[done], done.result()
                rows[chip][row[0]] = row
                print(f"[{number}/{len(todo)}] {chip}: {row[0]}: {row[1]} {row[3] or row[2]}", file=sys.stderr, flush=True)
                if number % SAVED_EVERY == 0:
                    save(options.out, rows)
        finally:
            pool.shutdown(cancel_futures=True)
            bodies = save(options.out, rows)
    return bodies


def save(folder: Path, rows: dict[str, dict[str, Row]]) -> list[dict[str, Any]]:
    """The reports of all chips."""
    return [write(folder / f"{chip}.json", chip, found) for chip, found in rows.items()]


def main(words: Sequence[str] | None = None) -> int:
    """Run what is declared; 1 if something is wrong, fails, is refused or is skipped."""
    made = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--chips", default=",".join(CHIPS), help="separated by commas")
    made.add_argument("--families", default="", help="those whose name contains one of these, separated by commas")
    made.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    made.add_argument("--again", action="store_true", help="leave out nothing that the reports have already")
    made.add_argument("--out", type=Path, default=FOLDER, help="the folder of the reports")
    bodies = run(made.parse_args(words))
    report.screen().print(table(bodies))
    return int(any(row[1] != "right" for body in bodies for row in body["cases"]))


if __name__ == "__main__":
    sys.exit(main())
