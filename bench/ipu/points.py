"""The IPU simulator's formulas against cycles that others measured or published. Nothing is timed, and no IPU is needed.

python -m bench.ipu.points [--out points.json]

These are checks of transcription: the formulas are published ones, and most of the points are those that their authors checked them
with. Rows that are checked must lie within 3 %; rows that are only shown say where the formulas are estimates of ours, or where a
figure is of something else. A cycle of ours is a simulated one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from bench.common import machine, report
from bench.common.harness import RESULTS
from roller.plugin import find_spec
from roller_ipu_sim.chip import cycles
from roller_ipu_sim.chip.cycles import AmpShape, MapShape
from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.chip.machine import machine as described

FILE = RESULTS / "ipu" / "points.json"
LIMIT = 0.03
CHIPS = ("gc2", "gc200", "bow", "c600")

TESSELLATE = "measured: graphcore-research/tessellate-ipu, notebook of the matrix unit's peak"
OSMARKS = "measured: osmarks/ipu-stack, design notes"
VENDOR = "datasheet: Graphcore documentation"
POPLIBS = "PopLibs' ConvPartial1x1 estimator"
PIPELINED = "282 + 6 ceil(n / 48) (11 + 2 (P - 1))"
HAND = "294 + ceil(K / step) ceil(N / 16) (4 M + 160), a hand-written kernel's; the simulator does not use it"
HAND_START, HAND_BLOCK = 294, 160  # osmarks/ipu-stack's fit of that kernel, not a part of the machine

ROWS = {16: 402, 32: 461, 64: 584, 128: 845, 256: 1352, 512: 2381, 1024: 4424, 2048: 8525}  # of A → cycles
REDUCTIONS = {(2624, 6): 7218, (1312, 6): 3816, (1280, 6): 3690, (2208, 4): 4974, (576, 15): 3090}  # outputs, partials → cycles
VERTICES = (  # rows, K, columns, element type → cycles; a step of K is 32 for fp8
    (244, 128, 64, "fp8", 18576), (82, 192, 160, "fp8", 29508), (122, 160, 128, "fp8", 26232),
    (146, 96, 48, "fp8", 7122), (81, 80, 80, "fp16", 12402), (57, 128, 80, "fp8", 8124),
)  # fmt: skip
STEP = {"fp8": 32, "fp16": 16}
PEAKS = {  # the vendor's TFLOP/s by chip and element type
    ("gc2", "float16"): 124.5, ("gc2", "float32"): 31.1, ("gc200", "float16"): 250.0, ("gc200", "float32"): 62.5,
    ("bow", "float16"): 350.0, ("bow", "float32"): 87.0, ("c600", "float16"): 280.0,
}  # fmt: skip
AGGREGATES = {"gc2": 7.78, "gc200": 7.8, "bow": 10.9, "c600": 8.8}  # TB/s, all tiles to all
NOMINAL = {"gc200": 47.5, "bow": 65.0}  # TB/s of all tiles' memories
GELU = ("mul", "mul", "mul", "add", "mul", "tanh", "add", "mul")  # the tanh form, one way to count it


class Point(NamedTuple):
    """One published figure and ours. `limit`: how far ours may lie from it; None: only shown."""

    check: str
    name: str
    chip: str
    published: float
    unit: str
    source: str
    formula: str
    ours: float
    limit: float | None = LIMIT

    @property
    def error(self) -> float:
        """How far ours lies from the published figure, relative to that."""
        return self.ours / self.published - 1

    @property
    def beyond(self) -> bool:
        """Whether a checked figure lies beyond its limit."""
        return self.limit is not None and abs(self.error) > self.limit


def chip(name: str) -> Machine:
    """The machine of a shipped spec."""
    return described(find_spec("ipu_sim", name))


def points() -> list[Point]:
    """All of them, in the order of the table."""
    return [*matrix(), *vertices(), *reductions(), *rates(), *shown()]


def product(rows: int, k: int, columns: int, interleaved: bool = False, zero: bool = True) -> AmpShape:
    """A float16 product on one tile."""
    return AmpShape("float16", "float16", 1, rows, k // 16, columns // 16, (), 1, zero, interleaved)


def matrix() -> Iterator[Point]:
    """The matrix unit's vertex."""
    for rows, measured in ROWS.items():
        ours = cycles.amp(chip("bow"), product(rows, 16, 16))
        yield Point("1 matrix vertex", f"{rows} x 16 x 16 fp16", "bow", measured, "cycles", TESSELLATE, POPLIBS, ours)
    for interleaved, loads in ((False, "64-bit loads of weights"), (True, "128-bit loads")):
        ours = cycles.amp(chip("c600"), product(365, 80, 16, interleaved))
        name = f"365 x 80 x 16 fp16, {loads}"
        yield Point("2 several blocks", name, "c600", 8488, "cycles", f"{OSMARKS}: a profile of PopRT", POPLIBS, ours)


def vertices() -> Iterator[Point]:
    """Whole products on a tile by a hand-written kernel; rows and columns of a block are the machine's."""
    unit = chip("c600").amp_type("float16", "float16")
    for rows, k, columns, dtype, measured in VERTICES:
        blocks = -(-k // STEP[dtype]) * -(-columns // unit.columns)
        ours = HAND_START + blocks * (unit.row_cycles * rows + HAND_BLOCK)
        yield Point("3b hand-written vertex", f"{rows} x {k} x {columns} {dtype}", "c600", measured, "cycles", OSMARKS, HAND, ours)


def reductions() -> Iterator[Point]:
    """Partial results added."""
    for (outputs, partials), measured in REDUCTIONS.items():
        ours = cycles.reduced(chip("c600"), "float16", outputs, partials)
        name = f"{partials} partials of {outputs} fp16"
        yield Point("3 reduction", name, "c600", measured, "cycles", OSMARKS, PIPELINED, ours)


def rates() -> Iterator[Point]:
    """What whole chips do a second, out of the formulas: of long rows, of long transfers."""
    for (name, dtype), quoted in PEAKS.items():
        formula = "block's operations / cycles of further rows x tiles x clock"
        yield Point("9 peak", f"{dtype} products", name, quoted, "TFLOP/s", VENDOR, formula, peak(chip(name), dtype) / 1e3)
    for name, quoted in AGGREGATES.items():
        source = "calculated: 4 bytes a cycle x tiles x clock; Graphcore says about 8 for the GC200"
        yield Point("7 exchange", "all tiles to all", name, quoted, "TB/s", source, "bytes / cycles", aggregate(chip(name)) / 1e3)
    for name, quoted in NOMINAL.items():
        yield Point("memory", "two loads and a store", name, quoted, "TB/s", VENDOR, "24 bytes a cycle", memory(chip(name)) / 1e3)


def peak(of: Machine, dtype: str) -> float:
    """GFLOP/s of products: what six more rows for each worker take, on all tiles."""
    unit = of.amp_type(dtype, "float32")
    few, more = (AmpShape(dtype, "float32", 1, n * of.workers, 1, 1, (), 1, False, False) for n in (6, 12))
    operations = 2 * (more.run_rows - few.run_rows) * unit.grain * unit.columns
    return operations / (cycles.amp(of, more) - cycles.amp(of, few)) * of.tiles * of.clock_ghz


def aggregate(of: Machine) -> float:
    """GB/s of the exchange where every tile sends and receives: what more words take."""
    words = 4096
    taken = cycles.exchanged(of, 2 * words, 2 * words, 1) - cycles.exchanged(of, words, words, 1)
    return words * of.exchange.word_bytes / taken * of.tiles * of.clock_ghz


def memory(of: Machine) -> float:
    """GB/s of all tiles' memories, read and written."""
    return (of.memory.load_bytes + of.memory.store_bytes) * of.tiles * of.clock_ghz


def shown() -> Iterator[Point]:
    """Figures that nothing is held to: estimates of ours, and figures of something else."""
    c600, gc2, gc200 = chip("c600"), chip("gc2"), chip("gc200")
    for elements, measured in ((1152, 1368), (2152, 2124)):
        ours: float = cycles.mapped(c600, MapShape("float16", elements, 1, 4, 2, ("add",), 0, (), False))
        yield Point("elementwise", f"add {elements} fp16", "c600", measured, "cycles", OSMARKS, "PopLibs' BinaryOp1D", ours, None)
    ours = cycles.mapped(c600, MapShape("float16", 2208, 1, 4, 1, GELU, 0, (), False))
    formula = "accesses and operations; how theirs counts is not known"
    yield Point("elementwise", "GeLU 2208 fp16", "c600", 8718, "cycles", OSMARKS, formula, ours, None)
    ours = cycles.amp(c600, product(81, 80, 80, interleaved=True))
    yield Point("another's kernel", "81 x 80 x 80 fp16, hand-written", "c600", 12402, "cycles", OSMARKS, POPLIBS, ours, None)
    source = "published: T10's fitted shift between tiles, as Elk carries it"
    ours = aggregate(gc200) / gc200.tiles
    yield Point(
        "exchange", "a tile's rate", "gc200", 4.73, "GB/s", source, "4 bytes a cycle, without what starts a phase", ours, None
    )
    yield Point("memory", "two loads and a store", "gc2", 45.0, "TB/s", VENDOR, "24 bytes a cycle", memory(gc2) / 1e3, None)


def table(found: Sequence[Point]) -> Table:
    """A row a point."""
    made = Table(title="simulated cycles and rates against published ones (limit 3 % where checked)")
    for heading in ("check", "point", "chip", "published", "ours", "unit", "error", ""):
        made.add_column(heading, justify="right" if heading in ("published", "ours", "error") else "left")
    for p in found:
        verdict = "shown" if p.limit is None else "BEYOND" if p.beyond else "within"
        made.add_row(p.check, p.name, p.chip, f"{p.published:g}", f"{p.ours:.6g}", p.unit, f"{p.error:+.1%}", verdict)
    return made


def body(found: Sequence[Point]) -> dict[str, Any]:
    """The report: how it was made, counts and the worst, and every point with formula and source."""
    checked = [p for p in found if p.limit is not None]
    worst = max(checked, key=lambda p: abs(p.error))
    return report.provenance("ipu_points") | {
        "versions": machine.versions(),
        "about": "No IPU and no Poplar SDK was used: ours are simulated cycles, from the specs of ipu_sim.",
        "summary": {
            "points": len(found),
            "checked": len(checked),
            "beyond": sum(p.beyond for p in checked),
            "limit": LIMIT,
            "worst_error": worst.error,
            "worst_point": f"{worst.check}: {worst.name}",
        },
        "points": [{**p._asdict(), "error": p.error} for p in found],
    }


def main(words: Sequence[str] | None = None) -> int:
    """Print and write all points; 1 if one that is checked lies beyond its limit."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--out", type=Path, default=FILE, help="the file of the report")
    options = made.parse_args(words)
    found = points()
    report.screen().print(table(found))
    report.store(options.out, body(found))
    return int(any(p.beyond for p in found))


if __name__ == "__main__":
    sys.exit(main())
