"""Tiles and predicted times of matrix products beside AMD's Origami, on MI210 and MI300X.

python -m bench.rocm.origami --peer PYTHON

Nothing runs and no AMD hardware was used: both sides predict. Origami is no dependency of ours; PYTHON is an interpreter of an
environment of its own that has it (README.md says how it builds without a GPU). Each side also rates the other's tile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import roller
from bench.common import machine, report
from bench.common.figures import compact, rounded
from bench.common.harness import RESULTS
from bench.rocm import origami_page
from roller import ops, pipeline, study
from roller.cost.occupancy import resident_tiles
from roller.device.chip import resolve
from roller.errors import ConstructionError
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.footprint import Geometry

FILE = RESULTS / "rocm" / "origami.json"
PEER = Path(__file__).with_name("origami_peer.py")
VARIABLE = "ROLLER_ORIGAMI_PYTHON"
PACKAGE = "rocm-origami"
CHIPS = ("mi210", "mi300x")
DTYPES = ("float16", "bfloat16", "float32")
RANDOM_SHAPES, SEED = 28, 0
SQUARES = [(1, n, n, n) for n in (256, 512, 1024, 2048, 3072, 4096, 8192)]
SKINNY = [
    *((1, rows, *sides) for rows in (1, 16, 128) for sides in ((2304, 768), (4096, 4096), (11008, 4096), (4096, 11008))),
    (1, 65536, 64, 256), (1, 128, 1000, 4032), (1, 65536, 1024, 1024), (1, 256, 256, 32768),
]  # fmt: skip
RAGGED = [(1, 1000, 1000, 1000), (1, 3025, 96, 363), (1, 197, 768, 768), (1, 1537, 4099, 2047), (1, 12544, 65, 147)]
BATCHED = [(12, 128, 128, 64), (12, 128, 64, 128), (96, 512, 512, 64), (96, 512, 64, 512), (8, 2048, 2048, 128), (64, 197, 197, 64)]
WAVES = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1))  # of a workgroup, along rows and columns, for the other's tile
Product = tuple[int, int, int, int]  # batch, rows, columns, depth


@dataclass(frozen=True, slots=True)
class Mine:
    """Our program: the workgroup's tile, parts of the reduction, tiles on a unit, predicted seconds, what bounds it."""

    tile: tuple[int, int, int]
    split: int
    residents: int
    seconds: float
    bound_by: str
    about: str


def products() -> list[Product]:
    """Squares, thin, ragged and batched ones, and random ones between 16 and 8192, spread evenly over orders of magnitude."""
    chance = random.Random(SEED)

    def extent(low: int) -> int:
        found = round(math.exp(chance.uniform(math.log(low), math.log(8192))))
        return found if chance.random() < 0.25 else max(8, found // 8 * 8)

    drawn = [(1, extent(16), extent(16), extent(32)) for _ in range(RANDOM_SHAPES)]
    return list(dict.fromkeys([*SQUARES, *SKINNY, *RAGGED, *BATCHED, *drawn]))


def expression(product: Product, dtype: str) -> TensorExpr:
    """Row-major operands, sums in float32."""
    batch, m, n, k = product
    if batch > 1:
        return fuse(ops.expression(ops.batch_matmul(ops.tensor((batch, m, k), dtype, "a"), ops.tensor((batch, k, n), dtype, "b"))))
    return fuse(ops.expression(ops.matmul(ops.tensor((m, k), dtype, "a"), ops.tensor((k, n), dtype, "b"))))


def ours(product: Product, dtype: str, chip: str) -> Mine:
    """Our first choice of what the device can run, rated for the tiles that it has room for."""
    expr = expression(product, dtype)
    plugin, spec = resolve(f"rocm:{chip}")
    best = pipeline.choices_of(expr, plugin, spec, 1, frozenset())[0]
    (stage,) = best.program.stages
    names = [d.name for d in stage.nest.dims]
    m, n, k = (stage.unit_tile[names.index(name)] if name in names else 1 for name in "mnk")
    held, (room,) = resident_tiles(stage, spec, Geometry(stage.nest)), plugin.cost_parameters(spec, expr).room(best.program)
    residents = held if room is None else min(held, room)
    return Mine((m, n, k), stage.dispatch.split, residents, best.estimate.seconds, best.estimate.bound_by, stage.describe())


def of_tile(product: Product, dtype: str, chip: str, tile: Sequence[int]) -> float:
    """Our prediction for the other's tile, with the waves that suit it best; `ConstructionError` where our rules do not have it."""
    expr = expression(product, dtype)
    plugin, spec = resolve(f"rocm:{chip}")
    rules, parameters = plugin.rules(spec, expr), plugin.cost_parameters(spec, expr)
    (stage,) = expr.stages
    nests = variants(stage, expr.tensors)
    limits = dict(zip("mnk", product[1:], strict=True))
    wanted = {name: size for name, size in zip("mnk", tile, strict=True) if limits[name] > 1}
    depths = {a.extents["k"] for a in spec.atoms if a.kind == "matrix" and a.in_dtype == dtype}
    found: list[float] = []
    for (rows, columns), depth in ((w, d) for w in WAVES for d in depths):
        inner = {name: size // {"m": rows, "n": columns}.get(name, 1) for name, size in wanted.items()} | {"k": int(depth)}
        if all(wanted[name] % max(size, 1) == 0 for name, size in inner.items()):
            try:
                found.append(study._rated(nests, [wanted, inner], spec, rules, parameters).seconds)
            except roller.RollerError:
                continue
    if not found:
        raise ConstructionError(f"{chip} has no program with the tile {tuple(tile)}")
    return min(found)


def waves(product: Product, tile: Sequence[int], split: int, units: int) -> float:
    """Workgroups for each unit."""
    batch, m, n, _ = product
    return batch * math.ceil(m / tile[0]) * math.ceil(n / tile[1]) * split / units


def why(product: Product, mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """In what two choices differ, in words that can be counted."""
    (m, n, k), (their_m, their_n, their_k) = mine["tile"], other["tile"]
    area = m * n / (their_m * their_n)
    if {m, n} == {their_m, their_n}:
        found = ["same tile" if m == their_m else "same tile, turned"]
    elif 2 / 3 <= area <= 1.5:
        found = ["as large a tile of another form"]
    else:
        found = ["our tile is larger" if area > 1 else "our tile is smaller"]
    if any(extent & (extent - 1) and extent < whole for extent, whole in zip((m, n), product[1:3], strict=True)):
        found.append("our tile is no power of two, all of theirs are")
    if (mine["split"] > 1) != (other["split"] > 1):
        found.append("only we cut the reduction" if mine["split"] > 1 else "only they cut the reduction")
    if k != their_k:
        found.append("our step is deeper" if k > their_k else "their step is deeper")
    if mine["residents"] != other["residents"]:
        found.append("more of our tiles on a unit" if mine["residents"] > other["residents"] else "more of their tiles on a unit")
    fullness = [side["waves"] / math.ceil(side["waves"]) for side in (mine, other)]
    if abs(fullness[0] - fullness[1]) > 0.15:
        found.append("our last wave is fuller" if fullness[0] > fullness[1] else "their last wave is fuller")
    return found


def row(product: Product, dtype: str, chip: str, mine: Mine, answer: dict[str, Any]) -> dict[str, Any]:
    """One product on one chip, both sides' choices, and how each rates the other's."""
    spec = resolve(f"rocm:{chip}")[1]
    units, launch = spec.unit.count, spec.unit.launch_overhead_us * 1e-6
    left = {"tile": list(mine.tile), "split": mine.split, "residents": mine.residents, "predicted_s": mine.seconds}
    left |= {"waves": waves(product, mine.tile, mine.split, units), "bound_by": mine.bound_by, "about": mine.about}
    right = {name: answer[name] for name in ("tile", "split", "residents", "instruction")} | {"predicted_s": answer["seconds"]}
    right |= {"waves": waves(product, answer["tile"], answer["split"], units)}
    try:
        theirs_here: float | None = of_tile(product, dtype, chip, answer["tile"]) / mine.seconds
    except roller.RollerError:
        theirs_here = None
    there = answer.get("seconds_of_other")
    named = dict(zip(("batch", "m", "n", "k"), product, strict=True))
    return (
        named
        | {"dtype": dtype, "chip": chip, "status": "ok", "ours": left, "theirs": right}
        | {
            "ratio": mine.seconds / answer["seconds"],
            "ratio_without_launch": (mine.seconds - launch) / answer["seconds"],
            "our_tile_by_their_model": there / answer["seconds"] if there else None,
            "their_tile_by_our_model": theirs_here,
            "why": why(product, left, right),
        }
    )


def asked(chip: str, cases: Sequence[tuple[Product, str, Mine]]) -> dict[str, Any]:
    """What the other side is told of a chip, and asked about it."""
    spec = resolve(f"rocm:{chip}")[1]
    named = [dict(zip(("batch", "m", "n", "k"), p, strict=True)) | {"dtype": d, "tile": list(mine.tile)} for p, d, mine in cases]
    sizes = {"local_bytes": spec.level("shared").capacity_bytes, "cache_bytes": spec.level("L2").capacity_bytes}
    return {"arch": spec.options["arch"], "units": spec.unit.count, "clock_ghz": spec.clock_ghz, **sizes, "products": named}


def answers(peer: str, chips: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the other side says; `FileNotFoundError` with what to do where the interpreter has no Origami."""
    done = subprocess.run([peer, str(PEER)], input=json.dumps({"chips": chips}), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise FileNotFoundError(
            f"{peer} has no Origami ({last}): build {PACKAGE} into an environment of its own, as bench/README.md says"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(peer: str, chips: Sequence[str], limit: int | None) -> Iterator[dict[str, Any]]:
    """All products on all chips, in every type."""
    for chip in chips:
        cases = []
        for number, product in enumerate(products()[:limit], 1):
            cases += [(product, dtype, ours(product, dtype, chip)) for dtype in DTYPES]
            print(f"[{chip} {number}] {product}: {[c[2].tile for c in cases[-len(DTYPES) :]]}", file=sys.stderr, flush=True)
        said = answers(peer, [asked(chip, cases)])["chips"][0]
        yield from (row(*case[:2], chip, case[2], a) for case, a in zip(cases, said, strict=True))


def main(words: Sequence[str] | None = None) -> int:
    """Compare, write the JSON and the page beside it; 2 where the other side is not installed."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument(
        "--peer", default=os.environ.get(VARIABLE, sys.executable), help=f"an interpreter with {PACKAGE}, else {VARIABLE}"
    )
    made.add_argument("--chips", default=",".join(CHIPS), help="separated by commas")
    made.add_argument("--limit", type=int, help="so many products at most")
    made.add_argument("--out", type=Path, default=FILE, help="the file of the report; the page lies beside it, as .md")
    options = made.parse_args(words)
    try:
        version = answers(options.peer, [])["version"]
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    cases = list(rows(options.peer, options.chips.split(","), options.limit))
    body = report.provenance("rocm_origami") | {
        "versions": machine.versions() | {PACKAGE: version},
        "about": origami_page.ABOUT,
        "summary": origami_page.summary(cases),
        "cases": cases,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(compact(body) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(origami_page.page(body), encoding="utf-8")
    print(json.dumps(rounded(body["summary"]), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
