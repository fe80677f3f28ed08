"""How much better a search by the same model does than construction: python -m bench.engine.construction. Nothing runs.

For each operator and chip: the first constructed program that the device can run, and the best that seeded descents find with the
same model (`bench.engine.descent`). Regret is the one's predicted time over the other's, less 1. The programs that construction
asked the model about are counted; its seconds are those of this process.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rich.table import Table

import roller
from bench.common import figures, machine, report
from bench.common.harness import RESULTS
from bench.common.paper_ops import paper_operators
from bench.engine.descent import search_best
from roller import SymbolicTensor, ops
from roller.cost.model import Model
from roller.device.chip import resolve
from roller.errors import ConstructionError
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.rprogram import RProgram, StageProgram
from roller.search.construct import construct_stage
from roller.search.tile_space import tile_spaces

CHIPS = "cuda:v100,cuda:a100,cuda:rtx4090,cuda:h100,rocm:mi50,rocm:mi300x,rocm:rx7900xtx,cpu:zen4,cpu:skylake-avx512"
EVERY, DRAWN, SEED, TOP_K, BUDGET, WORST = 8, 24, 0, 10, 1500, 10
PRIMES = (61, 127, 257, 509, 1021, 2039, 4093)
FILE = RESULTS / "construction" / "regret.json"


@dataclass(frozen=True)
class Case:
    """One operator: its name, its kind, and how to build it."""

    name: str
    kind: str
    build: Callable[[], SymbolicTensor]


def cases(every: int, count: int) -> list[Case]:
    """One of so many of the paper's operators, and so many drawn ones: six kinds in turn."""
    chance = random.Random(SEED)
    paper = [Case(o.id, o.kind, o.build) for o in paper_operators()[::every]]
    kinds = (_product, _thin, _primes, _convolution, _sum, _halves)
    return [*paper, *(kinds[number % len(kinds)](chance) for number in range(count))]


def _extent(chance: random.Random, low: int, high: int) -> int:
    """A number between two, spread evenly over orders of magnitude."""
    return max(1, round(math.exp(chance.uniform(math.log(low), math.log(high)))))


def _matmul(kind: str, m: int, n: int, k: int, dtype: str = "float32") -> Case:
    return Case(f"{kind} {m}x{n}x{k}", kind, lambda: ops.matmul(ops.tensor((m, k), dtype), ops.tensor((k, n), dtype)))


def _product(chance: random.Random) -> Case:
    m, n, k = (8 * _extent(chance, 8, 512) for _ in range(3))
    return _matmul("product", m, n, k)


def _halves(chance: random.Random) -> Case:
    m, n, k = (8 * _extent(chance, 8, 512) for _ in range(3))
    return _matmul("halves", m, n, k, "float16")


def _thin(chance: random.Random) -> Case:
    extents = [_extent(chance, 1, 16), _extent(chance, 256, 8192), _extent(chance, 256, 8192)]
    chance.shuffle(extents)
    m, n, k = extents
    return _matmul("thin", m, n, k)


def _primes(chance: random.Random) -> Case:
    m, n, k = (chance.choice(PRIMES) for _ in range(3))
    return _matmul("primes", m, n, k)


def _convolution(chance: random.Random) -> Case:
    batch, channels, filters = chance.choice((1, 1, 8, 32)), _extent(chance, 3, 512), _extent(chance, 16, 512)
    side, window, stride = chance.choice((7, 14, 28, 56, 112)), chance.choice((1, 3, 5)), chance.choice((1, 1, 2))
    x, w = (batch, channels, side, side), (filters, channels, window, window)
    name = f"conv {batch}x{channels}x{side}x{side} -> {filters} k{window} s{stride}"
    return Case(name, "convolution", lambda: ops.conv2d(ops.tensor(x), ops.tensor(w), stride, window // 2))


def _sum(chance: random.Random) -> Case:
    shape, axis = (_extent(chance, 1, 8192), _extent(chance, 16, 8192)), chance.choice((0, 1))
    name = f"sum {shape[0]}x{shape[1]} over {axis}"
    return Case(name, "reduction", lambda: ops.reduce_sum(ops.tensor(shape), axis))


@contextmanager
def counted() -> Iterator[list[int]]:
    """One number: how many programs the model was asked about inside."""
    asked = [0]

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            asked[0] += 1
            return method(*arguments)

        return call

    with mock.patch.object(Model, "_predict", counting(Model._predict)):
        yield asked


def row(case: Case, chip: str, budget: int) -> dict[str, Any]:
    """One operator on one chip."""
    plugin, spec = resolve(chip)
    expr = fuse(ops.expression(case.build()))
    (stage,) = expr.stages
    rules, parameters, nests = plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), variants(stage, expr.tensors)

    def able(program: StageProgram) -> bool:
        return plugin.refusal(spec, RProgram(expr, (program,))) is None

    with counted() as asked:
        began = time.process_time()
        found = construct_stage(nests, spec, rules, parameters, TOP_K)
        spent = time.process_time() - began
    rated, good = asked[0], [item for item in found if able(item[0])]
    if not good:
        raise ConstructionError(f"{chip} runs none of the {len(found)} best programs of {case.name}")
    first, estimate = good[0]
    best, program, searched = search_best(tile_spaces(nests, spec, rules, parameters), [p for p, _ in good], able, budget)
    if program is None or estimate.seconds <= best:
        best, program = estimate.seconds, first
    return {
        "case": case.name, "kind": case.kind, "chip": chip, "status": "ok", "regret": estimate.seconds / best - 1,
        "constructed_s": estimate.seconds, "found_s": best, "constructed": said(first), "found": said(program),
        "refused": len(found) - len(good), "rated": rated, "construct_cpu_s": spent, "searched": searched,
    }  # fmt: skip


def said(program: StageProgram) -> str:
    """A program in one line, with what `describe` leaves out."""
    more = [f"orders {program.orders}", *(["lanes share reductions"] if program.cooperate else [])]
    more += [f"{program.staged[0].depth} copies"] if program.staged else []
    return f"{program.describe()}; {', '.join(more)}"


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For each chip, each kind on CPUs and on others, and all: geometric mean and worst regret, and what construction rated."""
    good = [r for r in rows if r["status"] == "ok"]
    groups = {chip: [r for r in good if r["chip"] == chip] for chip in dict.fromkeys(r["chip"] for r in good)}
    for device in dict.fromkeys(r["chip"].partition(":")[0] for r in good):
        for kind in dict.fromkeys(r["kind"] for r in good):
            mine = [r for r in good if r["kind"] == kind and r["chip"].startswith(f"{device}:")]
            groups |= {f"{device}, {kind}": mine} if mine else {}
    return {name: _summary(mine) for name, mine in (groups | ({"all": good} if good else {})).items()}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    worst = max(rows, key=lambda r: r["regret"])
    return {
        "operators": len(rows),
        "regret": figures.geomean(1 + r["regret"] for r in rows) - 1,
        "worst_regret": worst["regret"],
        "worst_case": f"{worst['case']} on {worst['chip']}",
        "rated": statistics.median(r["rated"] for r in rows),
        "most_rated": max(r["rated"] for r in rows),
        "refused": sum(r["refused"] for r in rows) / len(rows),
    }


def table(found: dict[str, Any]) -> Table:
    """The summary for people."""
    made = Table(title="predicted time of the constructed program over that of the best one found, less 1")
    for heading in ("of", "operators", "geomean", "worst", "worst of all", "programs rated: median", "most", f"refused of {TOP_K}"):
        made.add_column(heading, justify="left" if heading in ("of", "worst of all") else "right")
    for name, numbers in found.items():
        regrets = [f"{numbers[key]:.1%}" for key in ("regret", "worst_regret")]
        counts = [f"{numbers['rated']:.0f}", str(numbers["most_rated"]), f"{numbers['refused']:.1f}"]
        made.add_row(name, str(numbers["operators"]), *regrets, numbers["worst_case"], *counts)
    return made


def page(body: dict[str, Any]) -> str:
    """The results for people."""
    versions = body["versions"]
    lines = [
        "# Constructed programs beside a search by the same model\n",
        f"`{body['command']}`, {body['date']}; roller-compiler {versions['roller-compiler']}, Python {versions['python']}, "
        f"NumPy {versions['numpy']}.",
        "All times are *predicted*: nothing here was measured. [How](../../descent.py)\n",
        "| of | operators | mean | worst | | programs rated: median | most |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in body["summary"].items():
        regrets = f"{found['regret']:.1%} | {found['worst_regret']:.1%} | {found['worst_case']}"
        lines.append(f"| {name} | {found['operators']} | {regrets} | {found['rated']:.0f} | {found['most_rated']} |")
    lines += [
        "\n*Mean*: geometric, of the constructed program's predicted time over that of the best one found, less 1; the constructed "
        "program is the first\none that the device can run.\n",
    ]
    return "\n".join(lines)


def options() -> argparse.Namespace:
    """The command line."""
    made = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--chips", default=CHIPS, help="separated by commas")
    made.add_argument("--every", type=int, default=EVERY, help="one of so many of the paper's operators")
    made.add_argument("--drawn", type=int, default=DRAWN, help="drawn operators")
    made.add_argument("--cases", default="", help="only cases whose name contains one of these, separated by commas")
    made.add_argument("--budget", type=int, default=BUDGET, help="programs that one of the last descents may rate")
    made.add_argument("--out", type=Path, default=FILE, help="the JSON file; the page for people goes beside it")
    return made.parse_args()


def main() -> int:
    """Construct, search, compare; 1 if an operator has no program."""
    chosen = options()
    wanted = [c for c in cases(chosen.every, chosen.drawn) if any(part in c.name for part in chosen.cases.split(","))]
    rows: list[dict[str, Any]] = []
    for chip in chosen.chips.split(","):
        for case in wanted:
            try:
                rows.append(row(case, chip, chosen.budget))
            except roller.RollerError as error:
                reason = f"{type(error).__name__}: {error}"
                rows.append({"case": case.name, "kind": case.kind, "chip": chip, "status": "failed", "reason": reason})
            last = rows[-1]
            print(f"{chip} {case.name}: {last.get('reason') or format(last['regret'], '.1%')}", file=sys.stderr)
    found = summary(rows)
    body = report.provenance("construction") | {"versions": machine.versions(), "summary": found, "cases": rows}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(figures.compact(body) + "\n", encoding="utf-8")
    chosen.out.with_name("README.md").write_text(page(body), encoding="utf-8")
    screen = report.screen()
    screen.print(table(found))
    for r in sorted((r for r in rows if r["status"] == "ok"), key=lambda r: -r["regret"])[:WORST]:
        screen.print(f"{r['regret']:.1%} {r['case']} on {r['chip']}", highlight=False)
        for side in ("constructed", "found"):
            screen.print(f"  {side} {report.duration(r[side + '_s'])}: {r[side]}", highlight=False, markup=False)
    return int(any(r["status"] != "ok" for r in rows))


if __name__ == "__main__":
    sys.exit(main())
