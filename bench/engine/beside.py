"""The choices of this tree beside those of another one, both rated by this tree's model: python -m bench.engine.beside TREE

TREE is a folder with another version of roller (`git worktree add TREE COMMIT`). For each chip and operator: the predicted time of
this tree's first program over that of the other one's, and the process time of constructing it. Both trees use their own specs;
the model and the chip that rate are this tree's. Nothing is built and nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.common import report
from bench.common.harness import RESULTS
from bench.engine.construction import Case, cases
from roller.cost.model import estimate
from roller.device.chip import resolve
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ops import expression
from roller.program.record import program_from_json
from roller.program.rprogram import RProgram
from roller.target.hardware import HardwareSpec

CHIPS = "cpu:zen5,cpu:skylake-avx512,cpu:x86-64-v3,cuda:a100,rocm:mi300x,ipu_sim:bow"
EVERY, DRAWN, WORST = 1, 100, 8
CHOSEN = "chosen.py"
HERE = Path(__file__).resolve().parents[2]
FILE = RESULTS / "construction" / "beside.json"

Said = Callable[[dict[str, Any]], str]
Ratio = Callable[[dict[str, Any]], float]


def lines(tree: Path, script: str, chip: str, *arguments: int) -> list[dict[str, Any]]:
    """Returns what a script of this folder prints in a tree, with these arguments."""
    if not (tree / "roller").is_dir() or not (tree / "plugins").is_dir():
        raise SystemExit(f"{tree} is no version of roller; make one with: git worktree add {tree} COMMIT")
    paths = [tree, *sorted((tree / "plugins").iterdir())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths), "ROLLER_CACHE": "off"}
    command = [sys.executable, str(Path(__file__).resolve().parent / script), chip, *(str(a) for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=tree)
    return [json.loads(line) for line in done.stdout.splitlines()]


def program_of(line: dict[str, Any], expr: TensorExpr, spec: HardwareSpec) -> RProgram:
    """Returns a program of either tree on this tree's atoms: the other tree may describe them in other words."""
    program = program_from_json(line["program"], expr)
    atoms = {atom.name: atom for atom in spec.atoms}
    return replace(program, stages=tuple(replace(s, atom=atoms.get(s.atom.name, s.atom)) for s in program.stages))


def rated(case: Case, line: dict[str, Any], chip: str) -> float:
    """Returns the seconds that this tree's model predicts for a program of either tree, on this tree's chip."""
    device, spec = resolve(chip)
    expr = fuse(expression(case.build()), spec.spread)
    return estimate(program_of(line, expr, spec), spec, device.cost_parameters(spec, expr)).seconds


def rows(tree: Path, chip: str, every: int, drawn: int) -> Iterator[dict[str, Any]]:
    """Yields for each operator the predicted seconds of both choices, and the process seconds of both constructions."""
    known = {case.name: case for case in cases(every, drawn)}
    for old, new in zip(*(lines(t, CHOSEN, chip, every, drawn) for t in (tree, HERE)), strict=True):
        assert old["case"] == new["case"], "the trees name different operators"
        row = {"chip": chip, "case": new["case"], "kind": new["kind"]}
        if "error" in old or "error" in new:
            yield {**row, "error": new.get("error", old.get("error"))}
            continue
        case = known[new["case"]]
        seconds = [rated(case, line, chip) for line in (old, new)]
        tiles = [[stage["tiles"] for stage in line["program"]["stages"]] for line in (old, new)]
        yield {**row, "old_s": seconds[0], "new_s": seconds[1], "old_cpu_s": old["seconds"], "new_cpu_s": new["seconds"]} | (
            {"old_tiles": tiles[0], "new_tiles": tiles[1]} if tiles[0] != tiles[1] else {}
        )


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns for one chip the ratios, new over old: predicted seconds by kind, and process seconds."""
    good = [row for row in found if "error" not in row]
    ratios = [row["new_s"] / row["old_s"] for row in good]
    kinds = sorted({row["kind"] for row in good})
    of_kind = {kind: [row["new_s"] / row["old_s"] for row in good if row["kind"] == kind] for kind in kinds}
    return {
        "operators": len(found),
        "errors": len(found) - len(good),
        "predicted": statistics.geometric_mean(ratios),
        "predicted_by_kind": {kind: statistics.geometric_mean(values) for kind, values in of_kind.items()},
        "over_1.02": sum(ratio > 1.02 for ratio in ratios),
        "worst": max(ratios),
        "old_cpu_s": statistics.median(row["old_cpu_s"] for row in good),
        "new_cpu_s": statistics.median(row["new_cpu_s"] for row in good),
        "most_cpu_s": max(row["new_cpu_s"] for row in good),
    }


def table(found: dict[str, dict[str, Any]]) -> Table:
    """Returns the table of the summaries."""
    names = ("chip", "operators", "predicted, new / old", "over 1.02", "worst", "old ms", "new ms", "new / old")
    made = Table(*names)
    for chip, s in found.items():
        times = s["old_cpu_s"], s["new_cpu_s"]
        shown = [str(s["operators"]), f"{s['predicted']:.3f}", str(s["over_1.02"]), f"{s['worst']:.3f}"]
        made.add_row(chip, *shown, *(f"{1e3 * t:.0f}" for t in times), f"{times[1] / times[0]:.2f}")
    return made


def tree_options(about: str | None, chips: str, every: int, drawn: int, file: Path) -> argparse.ArgumentParser:
    """Returns the options that the benches beside another tree share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--chips", default=chips)
    parser.add_argument("--every", type=int, default=every, help="one of so many of the paper's operators")
    parser.add_argument("--drawn", type=int, default=drawn, help="random operators")
    parser.add_argument("--worst", type=int, default=WORST, help="operators to print, those with the worst ratios")
    parser.add_argument("--json", type=Path, help=f"results file, such as {file.relative_to(HERE)}")
    return parser


def show(screen: Console, found: Sequence[dict[str, Any]], worst: int, ratio: Ratio, said: Said, rising: bool = False) -> None:
    """Prints the operators with the largest (`rising`: smallest) ratios, with what `said` says; then those that have none."""
    good = [row for row in found if "error" not in row]
    for row in sorted(good, key=ratio, reverse=not rising)[:worst]:
        screen.print(f"  {ratio(row):.3f}  {row['case']}: {said(row)}", highlight=False)
    for row in found:
        if "error" in row:
            screen.print(f"  {row['case']}: {row['error']}", highlight=False)


def _tiles(row: dict[str, Any]) -> str:
    return f"{row['old_tiles']} -> {row['new_tiles']}" if "old_tiles" in row else "the same tiles"


def main() -> None:
    """Prints the table, and for each chip the operators for which the new choice is worst."""
    asked, screen = tree_options(__doc__, CHIPS, EVERY, DRAWN, FILE).parse_args(), report.screen()
    every: list[dict[str, Any]] = []
    summaries: dict[str, dict[str, Any]] = {}
    for chip in asked.chips.split(","):
        mine = list(rows(asked.tree.resolve(), chip, asked.every, asked.drawn))
        every += mine
        summaries[chip] = summary(mine)
        screen.print(table({chip: summaries[chip]}))
        show(screen, mine, asked.worst, lambda row: row["new_s"] / row["old_s"], _tiles)
    if asked.json:
        report.store(asked.json, report.provenance("beside") | {"summary": summaries, "cases": every})


if __name__ == "__main__":
    main()
