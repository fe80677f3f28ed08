"""Every family of operators, element type and shape on a device's emulator: the reports, and running what they lack."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.common import machine, report
from bench.emulated.cases import EmulatedCase, cases
from bench.emulated.emulating import Row, contained

SAVED_EVERY = 40  # cases
STATUSES = ("right", "refused", "skipped", "wrong", "failed")


@dataclass(frozen=True)
class Programme:
    """What one device's command runs: its name, the chips, where reports go, the packages that they name, the emulator's orders of
    events, and what the command says of itself.
    """

    benchmark: str
    device: str
    chips: tuple[str, ...]
    folder: Path
    tools: tuple[str, ...]
    orders: tuple[Any, ...]
    said: str

    def write(self, path: Path, chip: str, rows: dict[str, Row]) -> dict[str, Any]:
        """The report of one chip, whole or not at all; cases that are no longer declared leave it."""
        kept = [rows[case.id] for case in cases() if case.id in rows]
        body = report.provenance(self.benchmark) | {
            "chip": chip,
            "device": machine.device(),
            "versions": machine.versions() | {name: metadata.version(name) for name in self.tools},
            "orders": [order._asdict() for order in self.orders],
            "summary": summary(kept),
            "cases": kept,
        }
        report.store(path, body)
        return body

    def run(self, options: argparse.Namespace) -> list[dict[str, Any]]:
        """All cases on all chips, those that the reports have already left out; chip after chip for each case."""
        chips = options.chips.split(",")
        rows = {chip: {} if options.again else read(options.out / f"{chip}.json") for chip in chips}
        some = wanted(options)
        random.Random(0).shuffle(some)  # a run that is stopped has seen something of every family
        todo = [(case, chip) for case in some for chip in chips if case.id not in rows[chip]][: options.limit]
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            waiting = {pool.submit(contained, case, chip, self.device): chip for case, chip in todo}
            try:
                for number, done in enumerate(as_completed(waiting), 1):
                    chip, row = waiting[done], done.result()
                    rows[chip][row[0]] = row
                    print(f"[{number}/{len(todo)}] {chip}: {row[0]}: {row[1]} {row[3] or row[2]}", file=sys.stderr, flush=True)
                    if number % SAVED_EVERY == 0:
                        self.save(options.out, rows)
            finally:
                pool.shutdown(cancel_futures=True)
                bodies = self.save(options.out, rows)
        return bodies

    def save(self, folder: Path, rows: dict[str, dict[str, Row]]) -> list[dict[str, Any]]:
        """The reports of all chips."""
        return [self.write(folder / f"{chip}.json", chip, found) for chip, found in rows.items()]

    def main(self, words: Sequence[str] | None = None) -> int:
        """Run what is declared; 1 if something is wrong, fails, is refused or is skipped."""
        made = argparse.ArgumentParser(description=self.said, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        made.add_argument("--chips", default=",".join(self.chips), help="separated by commas")
        made.add_argument("--families", default="", help="those whose name contains one of these, separated by commas")
        made.add_argument("--limit", type=int, help="so many more at most, drawn over all families")
        made.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
        made.add_argument("--again", action="store_true", help="leave out nothing that the reports have already")
        made.add_argument("--out", type=Path, default=self.folder, help="the folder of the reports")
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as Ctrl-C: save, and end the processes
        bodies = self.run(made.parse_args(words))
        report.screen().print(table(bodies, f"operators on the emulator of the device {self.device}"))
        return int(any(row[1] != "right" for body in bodies for row in body["cases"]))


def read(path: Path) -> dict[str, Row]:
    """The rows of a report, by case; none where there is no report."""
    if not path.is_file():
        return {}
    return {row[0]: tuple(row) for row in json.loads(path.read_text(encoding="utf-8"))["cases"]}


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


def table(bodies: Sequence[dict[str, Any]], title: str) -> Table:
    """The summaries side by side."""
    made = Table(title=title)
    for heading in ("", *(body["chip"] for body in bodies)):
        made.add_column(heading, justify="right" if heading else "left")
    for name in ("declared", "run", *STATUSES, "programs"):
        made.add_row(name, *(str(body["summary"].get(name, 0)) for body in bodies))
    return made


def wanted(options: argparse.Namespace) -> list[EmulatedCase]:
    """The cases that the command line asks for."""
    return [c for c in cases() if any(part in c.family for part in options.families.split(","))]
