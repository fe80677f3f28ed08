"""Tiles and predicted times of products beside nvidia-matmul-heuristics: python -m bench.engine.heuristics. Nothing runs.

That package is no dependency of ours: pip install nvidia-matmul-heuristics, by hand, to compare. Both sides predict; neither is
measured. Its "GENERIC" kernels are asked for with the flag that ranks them by its own model of time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import roller
from bench.common import figures, machine, report
from bench.common.harness import RESULTS
from roller import ops
from roller.device.chip import resolve
from roller.errors import ConstructionError
from roller.ir.fusion import fuse
from roller.pipeline import MOST_REFUSED
from roller.program.rprogram import StageProgram
from roller.search.construct import construct

FOLDER = RESULTS / "cuda-heuristics"
CHIPS = {"a100": "A100_SXM_80GB", "h100": "H100_SXM"}
PRECISIONS = {"float16": "HSH", "float32": "SSS"}  # of the operands, of the sums, of the result
PACKAGE = "nvidia-matmul-heuristics"
RANDOM_SHAPES, SEED, TOP_K = 70, 0, 10
SQUARES = [(n, n, n) for n in (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 16384)]
MODELS = [  # transformers, ResNet-50's 1 x 1 convolutions, recommendation; rows x columns x depth
    *((rows, *sides) for rows in (1, 16, 128, 512, 4096) for sides in ((2304, 768), (3072, 768), (768, 3072), (4096, 4096))),
    *((rows, *sides) for rows in (8, 256, 2048) for sides in ((12288, 4096), (11008, 4096), (4096, 11008))),
    (12544, 64, 256), (12544, 256, 64), (3136, 512, 128), (784, 1024, 256), (196, 2048, 512), (128, 1000, 2048),
]  # fmt: skip
PAPER = [(128, 1000, 4032), (65536, 4096, 1024), (65536, 1024, 1024), (65536, 1024, 4096), (65536, 1024, 16384)]
SIZES = (0.0, 3e-5, 1e-4, math.inf)  # seconds
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A kernel that one side would take: the block's tile, copies of operands held, parts of the reduction, predicted seconds."""

    m: int
    n: int
    k: int
    stages: int
    split: int
    seconds: float
    warp: tuple[int, ...]
    about: str = ""

    @property
    def blocks_tile(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return self.m, self.n


def shapes() -> list[Shape]:
    """Common products, and random ones between 16 and 8192 in steps of 8, spread evenly over orders of magnitude."""
    chance = random.Random(SEED)

    def extent(low: int, high: int) -> int:
        return max(8, round(math.exp(chance.uniform(math.log(low), math.log(high))) / 8) * 8)

    drawn = [(extent(16, 8192), extent(16, 8192), extent(32, 8192)) for _ in range(RANDOM_SHAPES)]
    return list(dict.fromkeys([*SQUARES, *MODELS, *PAPER, *drawn]))


def ours(shape: Shape, dtype: str, chip: str) -> Chosen:
    """The best program that the device can run; nothing is built."""
    plugin, spec = resolve(f"cuda:{chip}")
    expr = fuse(ops.expression(product(shape, dtype)))
    rules, parameters = plugin.rules(spec, expr), plugin.cost_parameters(spec, expr)
    best, wanted = None, TOP_K
    while best is None and wanted <= TOP_K * MOST_REFUSED:
        found = construct(expr, spec, rules, parameters, wanted)
        best = next((c for c in found if plugin.refusal(spec, c.program) is None), None)
        wanted *= 2
    if best is None:
        raise ConstructionError(f"{chip} runs none of the {len(found)} best programs")
    (stage,) = best.program.stages
    m, n, k = (_extent(stage, name) for name in "mnk")
    depth = max((s.depth for s in stage.staged), default=1)
    warp = tuple(stage.inner) if stage.atom.kind == "matrix" else ()
    bound = best.estimate.bound_by
    return Chosen(m, n, k, depth, stage.dispatch.split, best.estimate.seconds, warp, f"{stage.describe()}; bound by {bound}")


def product(shape: Shape, dtype: str) -> ops.SymbolicTensor:
    """Row-major operands, sums in float32."""
    m, n, k = shape
    return ops.matmul(ops.tensor((m, k), dtype, "a"), ops.tensor((k, n), dtype, "b"))


def _extent(stage: StageProgram, name: str) -> int:
    """The block's extent of a dimension; 1 where the product has none (one row)."""
    names = [d.name for d in stage.nest.dims]
    return stage.unit_tile[names.index(name)] if name in names else 1


class Theirs:
    """The other side, for one chip."""

    def __init__(self, chip: str) -> None:
        import nvMatmulHeuristics as package  # noqa: PLC0415  (no dependency)

        self._package = package
        flags = package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
        gpu = package.NvMatmulHeuristicsNvidiaGpu[CHIPS[chip]]
        self._library = package.NvMatmulHeuristicsInterfaceEx(flags=flags, gpu=gpu)

    def best(self, shape: Shape, dtype: str) -> Chosen:
        """Its first choice."""
        row_major = self._package.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
        problem = self._library.makeNvMatmulHeuristicsProblem(*shape, row_major)
        found = self._library.get(problem, 1, precision=PRECISIONS[dtype])
        if not found:
            raise ConstructionError(f"{PACKAGE} has no kernel for {shape} in {dtype}")
        kernel = found[0]["kernel"]
        warp = (kernel.warp_tile_m, kernel.warp_tile_n, kernel.warp_tile_k)
        tile = kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k
        return Chosen(*tile, kernel.stages, kernel.split_k, float(found[0]["runtime"]), warp, str(kernel))


def waves(chosen: Chosen, shape: Shape, units: int) -> float:
    """Blocks for each unit."""
    return math.ceil(shape[0] / chosen.m) * math.ceil(shape[1] / chosen.n) * chosen.split / units


def why(mine: Chosen, other: Chosen, shape: Shape, units: int) -> list[str]:
    """In what two choices differ, in words that can be counted."""
    found = []
    if {mine.m, mine.n} == {other.m, other.n}:
        found.append("same tile" if mine.blocks_tile == other.blocks_tile else "same tile, turned")
    else:
        area = mine.m * mine.n / (other.m * other.n)
        found.append(
            "as large a tile of another form"
            if 2 / 3 <= area <= 1.5
            else "our tile is larger"
            if area > 1
            else "our tile is smaller"
        )
    if (mine.split > 1) != (other.split > 1):
        found.append("only we cut the reduction" if mine.split > 1 else "only they cut the reduction")
    if mine.k != other.k:
        found.append("our step is deeper" if mine.k > other.k else "their step is deeper")
    if mine.stages != other.stages:
        found.append("they hold more copies" if mine.stages < other.stages else "we hold more copies")
    full_ours, full_theirs = (w / math.ceil(w) for w in (waves(mine, shape, units), waves(other, shape, units)))
    if abs(full_ours - full_theirs) > 0.15:
        found.append("our last wave is fuller" if full_ours > full_theirs else "their last wave is fuller")
    return found


def row(shape: Shape, dtype: str, chip: str, units: int, other: Theirs) -> dict[str, Any]:
    """One product on one chip."""
    found: dict[str, Any] = {"m": shape[0], "n": shape[1], "k": shape[2], "dtype": dtype, "chip": chip}
    try:
        mine, their = ours(shape, dtype, chip), other.best(shape, dtype)
    except roller.RollerError as error:
        return found | {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    sides = {
        name: {"tile": [c.m, c.n, c.k], "stages": c.stages, "split": c.split, "predicted_s": c.seconds, "warp": list(c.warp)}
        | {"waves": waves(c, shape, units), "about": c.about}
        for name, c in (("ours", mine), ("theirs", their))
    }
    return found | {"status": "ok", **sides, "ratio": mine.seconds / their.seconds, "why": why(mine, their, shape, units)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each chip and type: how often tiles agree, how alike the times are, what the differences are."""
    found = {}
    for chip in CHIPS:
        for dtype in PRECISIONS:
            mine = [r for r in rows if r["status"] == "ok" and (r["chip"], r["dtype"]) == (chip, dtype)]
            if mine:
                found[f"{chip} {dtype}"] = _summary(mine)
    return found


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    times = [[r[side]["predicted_s"] for r in rows] for side in ("ours", "theirs")]
    rates = [[r["m"] * r["n"] * r["k"] / t for r, t in zip(rows, side, strict=True)] for side in times]
    ratios = sorted(r["ratio"] for r in rows)
    said = Counter(word for r in rows for word in r["why"])
    return {
        "products": len(rows),
        "same_tile": sum("same tile" in r["why"] or "same tile, turned" in r["why"] for r in rows) / len(rows),
        "area_within_2": sum(0.5 <= _area(r["ours"]) / _area(r["theirs"]) <= 2 for r in rows) / len(rows),
        "side_within_2": sum(_near(r) for r in rows) / len(rows),
        "rank_correlation_of_times": figures.spearman(*times),
        "rank_correlation_of_rates": figures.spearman(*rates),
        "our_time_over_theirs": {
            "geomean": statistics.geometric_mean(ratios),
            "tenth": ratios[len(ratios) // 10],
            "median": statistics.median(ratios),
            "nine_tenths": ratios[len(ratios) * 9 // 10],
        },
        "differences": dict(said.most_common()),
    }


def _area(side: dict[str, Any]) -> int:
    return int(side["tile"][0] * side["tile"][1])


def _near(found: dict[str, Any]) -> bool:
    """True if both sides of the tiles are within a factor of two of one another."""
    return all(0.5 <= a / b <= 2 for a, b in zip(found["ours"]["tile"][:2], found["theirs"]["tile"][:2], strict=True))


def page(body: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    lines = ["# Matrix products beside nvidia-matmul-heuristics", ""]
    lines += [
        f"`{body['command']}`, {body['date']}, {PACKAGE} {body['versions'][PACKAGE]}.",
        "Both sides *predict*: nothing here was measured.",
        "",
    ]
    lines += [
        "| chip, type | products | same tile | both sides within 2 | area within 2 | rank correlation of times | of rates "
        "| our time ÷ theirs: tenth, median, nine tenths |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, s in body["summary"].items():
        ratio = s["our_time_over_theirs"]
        shares = [f"{s[key]:.0%}" for key in ("same_tile", "side_within_2", "area_within_2")]
        alike = [f"{s[key]:.2f}" for key in ("rank_correlation_of_times", "rank_correlation_of_rates")]
        spread = ", ".join(f"{ratio[key]:.2f}" for key in ("tenth", "median", "nine_tenths"))
        lines.append(f"| {name} | {s['products']} | {' | '.join(shares)} | {' | '.join(alike)} | {spread} |")
    words = list(dict.fromkeys(w for s in body["summary"].values() for w in s["differences"]))
    lines += [
        "",
        "In what they differ (products of each kind):",
        "",
        f"| | {' | '.join(body['summary'])} |",
        "|---|" + "---|" * len(body["summary"]),
    ]
    lines += [f"| {w} | " + " | ".join(str(s["differences"].get(w, 0)) for s in body["summary"].values()) + " |" for w in words]
    lines += ["", *_by_size(body)]
    lines += [
        "",
        "The products whose predictions differ most:",
        "",
        "| chip, type | m × n × k | ours | theirs | our time ÷ theirs | |",
        "|---|---|---|---|---|---|",
    ]
    for name in body["summary"]:
        rows = [r for r in body["cases"] if r["status"] == "ok" and f"{r['chip']} {r['dtype']}" == name]
        ordered = sorted(rows, key=lambda r: r["ratio"])
        lines += [_line(name, r) for r in (*ordered[:4], *ordered[-4:])]
    return "\n".join([*lines, ""])


def _by_size(body: dict[str, Any]) -> list[str]:
    """Rows for short, middling and long products, by what the other side predicts."""
    lines = ["By the time that they predict (medians):", ""]
    lines += [
        "| chip, type | they predict | products | our time ÷ theirs | ours less theirs | our step | theirs | our copies | theirs |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for name in body["summary"]:
        for low, high in itertools.pairwise(SIZES):
            rows = [r for r in body["cases"] if r["status"] == "ok" and f"{r['chip']} {r['dtype']}" == name]
            rows = [r for r in rows if low <= r["theirs"]["predicted_s"] < high]
            if rows:
                more = statistics.median(r["ours"]["predicted_s"] - r["theirs"]["predicted_s"] for r in rows)
                steps = [statistics.median(r[side]["tile"][2] for r in rows) for side in ("ours", "theirs")]
                copies = [statistics.median(r[side]["stages"] for r in rows) for side in ("ours", "theirs")]
                until = f"from {report.duration(low)}" if math.isinf(high) else f"below {report.duration(high)}"
                numbers = " | ".join(f"{n:g}" for n in (*steps, *copies))
                ratio = statistics.median(r["ratio"] for r in rows)
                lines.append(f"| {name} | {until} | {len(rows)} | {ratio:.2f} | {more * 1e6:+.1f} µs | {numbers} |")
    return lines


def _line(name: str, found: dict[str, Any]) -> str:
    def side(s: dict[str, Any]) -> str:
        split = f", split {s['split']}" if s["split"] > 1 else ""
        tile = " × ".join(map(str, s["tile"]))
        return f"{tile}, {s['stages']} copies{split}, {s['waves']:.2f} waves, {report.duration(s['predicted_s'])}"

    shape = f"{found['m']} × {found['n']} × {found['k']}"
    return (
        f"| {name} | {shape} | {side(found['ours'])} | {side(found['theirs'])} | {found['ratio']:.2f} | {', '.join(found['why'])} |"
    )


def main() -> int:
    """Compare, write the JSON and the page; 1 if a product failed, 2 where the other side is not installed."""
    made = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--chips", default=",".join(CHIPS), help="separated by commas")
    made.add_argument("--limit", type=int, help="so many products at most")
    made.add_argument("--out", type=Path, default=FOLDER, help="the folder of products.json and README.md")
    options = made.parse_args()
    if util.find_spec("nvMatmulHeuristics") is None:
        print(f"not installed: pip install {PACKAGE} (for this comparison only; it needs no GPU)", file=sys.stderr)
        return 2
    rows = []
    for chip in options.chips.split(","):
        other, units = Theirs(chip), resolve(f"cuda:{chip}")[1].unit.count
        for number, shape in enumerate(shapes()[: options.limit], 1):
            rows += [row(shape, dtype, chip, units, other) for dtype in PRECISIONS]
            print(f"[{chip} {number}] {shape}: {[r.get('ratio') or r['reason'] for r in rows[-2:]]}", file=sys.stderr)
    body = report.provenance("heuristics") | {
        "versions": machine.versions() | {PACKAGE: metadata.version(PACKAGE)},
        "summary": summary(rows),
        "cases": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "products.json").write_text(figures.compact(body) + "\n", encoding="utf-8")
    (options.out / "README.md").write_text(page(body), encoding="utf-8")
    print(json.dumps(figures.rounded(body["summary"]), indent=1))
    return int(any(r["status"] != "ok" for r in rows))


if __name__ == "__main__":
    sys.exit(main())
