"""Simulated cycles of the baseline planner, of the constructed program and of a naive mapping, on a Bow. Nothing is timed.

python -m bench.ipu.baseline [--cases square,conv] [--out baseline.json]

All sides are rated by the same closed form, which the simulator's count equals. The baseline (`bench.ipu.planner`) follows PopLibs'
rules and is what meets silicon in `bench.ipu.gemm`; only whole products were ever compared with silicon, so for every other family
the ratios say how two mappings compare in the model, and no more. No IPU and no Poplar SDK was used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rich.table import Table

from bench.common import figures, report, targets
from bench.common.harness import RESULTS
from bench.ipu import naive, sides
from bench.ipu.cases import Case, cases
from bench.ipu.sides import Side
from roller.ops import SymbolicTensor
from roller.plugin import find_spec
from roller.search.tile_space import TileSpace, tile_spaces
from roller.target.hardware import HardwareSpec

FILE = RESULTS / "ipu" / "baseline.json"
CHIP = "bow"
SILICON = ("gemm",)  # families with points from silicon
OTHERS = {"no_swap": ("no swap",), "no_shift": ("no shift",), "to_naive": ("constructed", "naive")}  # ratios beside the first


@dataclass(frozen=True)
class Row:
    """One operator: each side, and why a side is missing."""

    case: str
    family: str
    sides: Mapping[str, Side | None]
    reasons: Mapping[str, str]

    def ratio(self, name: str = "constructed", to: str = "baseline") -> float | None:
        """One side's cycles over another's: above 1 the latter, by default ours, takes fewer."""
        mine, theirs = self.sides.get(name), self.sides.get(to)
        return theirs.cycles / mine.cycles if mine is not None and theirs is not None else None

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "case": self.case,
            "family": self.family,
            "silicon_points": self.family in SILICON,
            "ratio": self.ratio(),
            **{f"ratio_{key}": self.ratio(*pair) for key, pair in OTHERS.items()},
            "sides": {name: side.row() for name, side in self.sides.items() if side is not None},
            "reasons": dict(self.reasons),
        }


def compared(case: Case, spec: HardwareSpec) -> Row:
    """All sides of one operator."""
    tried = {
        "baseline": sides.tried(sides.baseline, case.build(), spec),
        "constructed": sides.tried(sides.constructed, case.build(), spec),
        "no swap": sides.tried(without_swap, case.build(), spec),
        "no shift": sides.tried(without_shift, case.build(), spec),
        "naive": sides.tried(sides.of_planner, case.build(), spec, naive.planned),
    }
    return Row(case.name, case.family, {n: s for n, (s, _) in tried.items()}, {n: why for n, (_, why) in tried.items() if why})


def without_swap(op: SymbolicTensor, spec: HardwareSpec) -> Side:
    """roller's program if the matrix unit could only stream the first operand."""
    with first_streamed():
        return sides.constructed(op, spec)


def without_shift(op: SymbolicTensor, spec: HardwareSpec) -> Side:
    """roller's program if no unit handed its copies on (T10's compute-shift)."""
    with mock.patch("roller.search.choices._shifted", lambda *_: ()):
        return sides.constructed(op, spec)


@contextmanager
def first_streamed() -> Iterator[None]:
    """Construction without the searches in which the matrix unit's rows lie along the second operand."""

    def some(*given: Any, **more: Any) -> list[TileSpace]:
        return [s for s in tile_spaces(*given, **more) if not _swapped(s)]

    with mock.patch("roller.search.construct.tile_spaces", some):
        yield


def _swapped(space: TileSpace) -> bool:
    rows = dict(space.mapping).get("m")
    return space.atom.kind == "matrix" and rows is not None and not space.nest.factor_touches(0)[rows]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Of every family, and of all: mean and worst ratio of the baseline's cycles to ours; where we take more, or fail."""
    names = [*dict.fromkeys(row.family for row in rows), "all"]
    return {name: _summary([row for row in rows if name in (row.family, "all")], name) for name in names}


def _summary(rows: Sequence[Row], family: str) -> dict[str, Any]:
    rated = [(ratio, row.case) for row in rows if (ratio := row.ratio()) is not None]
    worst = min(rated, default=(None, ""))
    made: dict[str, Any] = {
        "cases": len(rows),
        "rated": len(rated),
        "geomean": figures.finite(figures.geomean(r for r, _ in rated)),
        "worst": worst[0],
        "worst_case": worst[1],
        "worse": [case for ratio, case in rated if ratio < 1],
        "not_constructed": [row.case for row in rows if row.sides["constructed"] is None],
        "shifting": sum("shifted" in line for row in rows if (mine := row.sides["constructed"]) for line in mine.programs),
        **{
            f"geomean_{key}": figures.finite(figures.geomean(r for row in rows if (r := row.ratio(*pair)) is not None))
            for key, pair in OTHERS.items()
        },
    }
    return made if family == "all" else made | {"silicon_points": family in SILICON}


def table(rows: Sequence[Row]) -> Table:
    """A row an operator."""
    made = Table(title="simulated cycles on a Bow; ratios: the other side's over ours")
    for heading in ("family", "case", "baseline", "constructed", "ratio", "no swap", "no shift", "to naive", "ours"):
        made.add_column(heading, justify="left" if heading in ("family", "case", "ours") else "right")
    for row in rows:
        cycles = [str(side.cycles) if (side := row.sides[n]) is not None else "none" for n in ("baseline", "constructed")]
        ratios = [row.ratio(), *[row.ratio(*pair) for pair in OTHERS.values()]]
        mine = row.sides["constructed"]
        said = mine.programs[0] if mine is not None else row.reasons["constructed"]
        made.add_row(row.family, row.case, *cycles, *[f"{r:.2f}" if r is not None else "" for r in ratios], said)
    return made


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Lines about every case where ours takes more than the baseline, or where there is none."""
    for row in sorted(rows, key=lambda row: row.ratio() or 0.0):
        ratio = row.ratio()
        if ratio is not None and ratio >= 1:
            continue
        yield f"{row.family} {row.case}: {f'{ratio:.3f}' if ratio is not None else 'no ratio'}"
        for name in ("baseline", "constructed"):
            side = row.sides[name]
            yield f"  {name}: {side.cycles} {side.programs} {side.terms}" if side is not None else f"  {name}: {row.reasons[name]}"


def main(words: Sequence[str] | None = None) -> int:
    """Print and write all cases; 1 if a target is missed."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--cases", default="", help="only names or families that contain one of these, separated by commas")
    made.add_argument("--out", type=Path, default=FILE, help="the file of the report")
    options = made.parse_args(words)
    spec, wanted = find_spec("ipu_sim", CHIP), options.cases.split(",")
    chosen = [case for case in cases() if any(word in f"{case.family} {case.name}" for word in wanted)]
    rows = []
    for number, case in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {case.family} {case.name}", file=sys.stderr, flush=True)
        rows.append(compared(case, spec))
    sums = summary(rows)
    console = report.screen()
    console.print(table(rows))
    console.print("\n".join(losses(rows)), markup=False, highlight=False)
    verdict = targets.of_sums("ipu_baseline", "all", sums["all"])
    console.print(f"geomean {sums['all']['geomean']}, worst {sums['all']['worst']}: {verdict}", markup=False)
    sides.write(options.out, "ipu_baseline", {"summary": sums, "cases": [row.plain() for row in rows]})
    return int("missed" in verdict or bool(sums["all"]["not_constructed"]))


if __name__ == "__main__":
    sys.exit(main())
