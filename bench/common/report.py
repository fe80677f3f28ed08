"""What a benchmark says: progress on stderr, a table on stdout, and everything as JSON."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.common import machine
from bench.common.figures import compact, finite, geomean
from bench.common.harness import RESULTS, Case, Row, run_case, selected

SCHEMA = 1
WIDTH = 180  # of tables that go to a file


def run(name: str, cases: Iterable[Case], options: argparse.Namespace) -> int:
    """Run a benchmark's cases, print the table, write the results; 1 if a case was wrong or failed.

    The file is written once all cases have run: an interrupted run leaves the one before as it was.
    """
    rows: list[Row] = []
    chosen, memory, say = selected(cases, options), machine.memory_bytes(), Console(stderr=True)
    for number, case in enumerate(chosen, 1):
        say.print(f"[{number}/{len(chosen)}] {case.name} …", highlight=False, markup=False)
        rows.append(run_case(case, options, memory))
        if rows[-1].status in ("wrong", "failed"):
            say.print(f"  {rows[-1].status}: {rows[-1].reason}", highlight=False, markup=False)
    write(name, {"summary": summary(rows), "cases": [asdict(row) for row in rows]}, options)
    console = screen()
    console.print(table(name, rows, options))
    console.print(summary_table(rows))
    return int(any(row.status in ("wrong", "failed") for row in rows))


def screen() -> Console:
    """Standard output, wide where nobody's window limits it."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Geometric mean and worst ratio of every family, and of all where there are several."""
    families = list(dict.fromkeys(row.family for row in rows))
    found = {family: _summary([row for row in rows if row.family == family]) for family in families}
    return found | ({"all": _summary(rows)} if len(families) > 1 else {})


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    timed = [row for row in rows if row.ratio is not None]
    worst = min(timed, key=lambda row: row.ratio or math.inf, default=None)
    return {
        "cases": len(rows),
        "timed": len(timed),
        "geomean": finite(geomean(row.ratio for row in timed if row.ratio)),
        "geomean_free": finite(geomean(row.ratio_free for row in timed if row.ratio_free)),
        "worst": worst and worst.ratio,
        "worst_case": worst and worst.case,
    }


def table(name: str, rows: Sequence[Row], options: argparse.Namespace) -> Table:
    """A row a case."""
    quick = " (quick)" if options.quick else ""
    made = Table(title=f"{name}, {options.threads} thread(s): time of the best library ÷ ours{quick}")
    for heading in ("case", "family", "ours", "rate", "best library", "its time", "ratio", "not charged", "note"):
        made.add_column(heading, justify="left" if heading in ("case", "family", "best library", "note") else "right")
    for row in rows:
        note = "" if row.status == "ok" else f"{row.status}: {row.reason}"[:150]
        numbers = [duration(row.ours_s), rate(row), row.best, duration(row.best_s), _ratio(row.ratio), _ratio(row.ratio_free)]
        made.add_row(row.case, row.family, *numbers, note)
    return made


def summary_table(rows: Sequence[Row]) -> Table:
    """A row a family."""
    made = Table(title="summary")
    for heading in ("family", "cases", "timed", "geomean", "not charged", "worst", "of"):
        made.add_column(heading, justify="left" if heading in ("family", "of") else "right")
    for family, found in summary(rows).items():
        numbers = [_ratio(found[key]) for key in ("geomean", "geomean_free", "worst")]
        made.add_row(family, str(found["cases"]), str(found["timed"]), *numbers, found["worst_case"] or "")
    return made


def duration(seconds: float | None) -> str:
    """Seconds for people."""
    if seconds is None:
        return ""
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def rate(row: Row) -> str:
    """What we reach: operations where the case counts them, else bytes a second."""
    amount, unit = (row.flops, "GFLOP/s") if row.flops else (row.moved, "GB/s")
    return f"{amount / row.ours_s / 1e9:.1f} {unit}" if row.ours_s and amount else ""


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def write(name: str, body: dict[str, Any], options: argparse.Namespace) -> Path | None:
    """Write results with their provenance, whole or not at all; quick runs only where --out says so."""
    if options.out is None and options.quick:
        return None
    device = machine.device()
    path = options.out or RESULTS / machine.folder(device) / f"{name}-{options.threads}t.json"
    head = provenance(name, options.quick) | {
        "threads": options.threads,
        "clock": "process CPU time" if options.threads == 1 else "wall",
        "measure": options.measure,
        "device": device,
        "versions": machine.versions(),
    }
    store(path, head | body)
    return path


def store(path: Path, body: dict[str, Any]) -> None:
    """A file of results, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(compact(body) + "\n", encoding="utf-8")
    partial.replace(path)


def provenance(name: str, quick: bool = False) -> dict[str, Any]:
    """What every file of results says first: its form, the benchmark, when and how it ran."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"schema": SCHEMA, "benchmark": name, "date": now, "command": command(), "quick": quick}


def command() -> str:
    """The command line; of a path elsewhere only the name."""
    words = sys.orig_argv[1:]
    return " ".join(["python", *(Path(w).name if Path(w).is_absolute() else w for w in words)])
