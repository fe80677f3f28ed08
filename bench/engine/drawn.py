"""The choice beside programs drawn from the space of a tree, all rated by this model: python -m bench.engine.drawn TREE

TREE is a folder with another version of roller (`git worktree add TREE COMMIT`), or this one. For each chip and operator: the best
of so many programs over the program that this tree chooses. Above 1 no drawn program is predicted to be faster. A program that
would be faster counts only if the device's code generator supports it. Nothing is built and nothing runs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.common import report
from bench.common.harness import RESULTS
from bench.engine.beside import lines, program_of, show, tree_options
from bench.engine.construction import cases
from roller.cost.model import Model, estimate
from roller.cost.occupancy import as_kept
from roller.cost.parameters import CostParameters
from roller.device.chip import resolve
from roller.errors import ConstructionError
from roller.ir.fusion import fuse
from roller.ops import expression
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram
from roller.search.construct import construct
from roller.target.hardware import HardwareSpec

CHIPS = "cpu:zen5,cuda:a100,rocm:mi300x,ipu_sim:bow"
EVERY, DRAWN, COUNT = 6, 0, 250
FILE = RESULTS / "construction" / "drawn.json"


class Rater:
    """Predicts programs of one operator; programs of equal nests share the sizes of their data tiles."""

    def __init__(self, spec: HardwareSpec, parameters: CostParameters) -> None:
        self.spec, self.parameters = spec, parameters
        self.models: dict[object, Model] = {}

    def seconds(self, program: RProgram, best: float) -> float:
        """Returns the predicted seconds of a program; infinite if it seems to be faster than `best` and has no kernel."""
        predicted = sum(self._model(stage).estimate(stage).seconds for stage in program.stages)
        if predicted >= best:
            return predicted
        room = self.parameters.resident_tiles
        if room is not None and not all(room(stage) for stage in program.stages):
            return float("inf")
        real = replace(program, stages=tuple(as_kept(stage, self.spec, self.parameters.copies) for stage in program.stages))
        return estimate(real, self.spec, self.parameters, self.parameters.room(real)).seconds

    def _model(self, stage: StageProgram) -> Model:
        key = stage.nest.stage.name, stage.nest.dims
        if key not in self.models:
            self.models[key] = Model(self.spec, self.parameters, Geometry(stage.nest))
        return self.models[key]


def rows(tree: Path, chip: str, every: int, drawn: int, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yields for each operator the predicted seconds of the choice and of the best program that was drawn."""
    known, (device, spec) = {case.name: case for case in cases(every, drawn)}, resolve(chip)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines(tree, "drawing.py", chip, every, drawn, count, seed):
        found[line["case"]].append(line)
    for name, mine in found.items():
        expr = fuse(expression(known[name].build()), spec.spread)
        parameters = device.cost_parameters(spec, expr)
        row: dict[str, Any] = {"chip": chip, "case": name, "kind": known[name].kind}
        try:
            chosen = construct(expr, spec, device.rules(spec, expr), parameters, 1)[0]
        except ConstructionError as error:
            yield {**row, "error": str(error)}
            continue
        row |= {"chosen_s": chosen.estimate.seconds, "chosen": chosen.program.describe()}
        programs = [program_of(line, expr, spec) for line in mine if "error" not in line]
        best, rater = float("inf"), Rater(spec, parameters)
        for program in programs:
            seconds = rater.seconds(program, min(best, chosen.estimate.seconds))
            if seconds < best:
                best, row["drawn"] = seconds, program.describe()
        if programs:
            yield {**row, "programs": len(programs), "drawn_s": best}
        else:
            yield {**row, "error": mine[0]["error"]}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns for one chip the ratios of the best drawn program to the choice."""
    good = [row for row in found if "error" not in row]
    ratios = [row["drawn_s"] / row["chosen_s"] for row in good]
    return {
        "operators": len(found),
        "errors": len(found) - len(good),
        "programs": sum(row["programs"] for row in good),
        "worst": min(ratios),
        "median": statistics.median(ratios),
        "below_0.97": sum(ratio < 0.97 for ratio in ratios),
    }


def _programs(row: dict[str, Any]) -> str:
    return f"{row['chosen']} | {row.get('drawn')}"


def main() -> None:
    """Prints one row for each chip, and the operators for which a drawn program comes closest to the choice, or beats it."""
    parser = tree_options(__doc__, CHIPS, EVERY, DRAWN, FILE)
    parser.add_argument("--count", type=int, default=COUNT, help="programs of each operator")
    parser.add_argument("--seed", type=int, default=0)
    asked, screen = parser.parse_args(), report.screen()
    every: list[dict[str, Any]] = []
    summaries: dict[str, dict[str, Any]] = {}
    for chip in asked.chips.split(","):
        mine = list(rows(asked.tree.resolve(), chip, asked.every, asked.drawn, asked.count, asked.seed))
        every += mine
        of_chip = summaries[chip] = summary(mine)
        table = Table("chip", "operators", "programs", "best drawn / choice: least", "median", "below 0.97")
        shown = [f"{of_chip['worst']:.3f}", f"{of_chip['median']:.2f}", str(of_chip["below_0.97"])]
        table.add_row(chip, str(of_chip["operators"]), str(of_chip["programs"]), *shown)
        screen.print(table)
        show(screen, mine, asked.worst, lambda row: row["drawn_s"] / row["chosen_s"], _programs, rising=True)
    if asked.json:
        report.store(asked.json, report.provenance("drawn") | {"summary": summaries, "cases": every})


if __name__ == "__main__":
    main()
