"""Whole products on a Bow: silicon with the vendor's library against the baseline planner and the constructed program.

python -m bench.ipu.gemm [--out gemm.json]

The silicon figures were digitised (about 2 % either way) from figure `dense_ipu_gpu` of PopSparse (arXiv 2303.16999); its clock is
not stated, 1.85 GHz is assumed, and so are partial results in float16 where operands are. No IPU and no Poplar SDK was used here:
ours are simulated cycles. The baseline's structure was settled after these points had been seen (`bench.ipu.planner` says what); no
constant was fitted to them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.common import report, targets
from bench.common.harness import RESULTS
from bench.ipu import sides
from bench.ipu.sides import Side
from roller import ops
from roller.ops import SymbolicTensor
from roller.plugin import find_spec
from roller.target.hardware import HardwareSpec

FILE = RESULTS / "ipu" / "gemm.json"
CHIP = "bow"
# Element type, rows and columns of the weights → batch → TFLOP/s.
SILICON: Mapping[tuple[str, int], Mapping[int, float]] = {
    ("float16", 1024): {4: 6.0, 16: 20.3, 64: 45.5, 256: 89.3, 1024: 120, 2048: 153, 4096: 180, 8192: 206, 16384: 223},
    ("float16", 4096): {4: 18.2, 16: 61.2, 64: 130, 256: 175, 2048: 223},
    ("float32", 1024): {4: 3.7, 16: 11.1, 64: 21.2, 256: 34.3, 1024: 43.6, 4096: 55.5, 8192: 57.0, 16384: 58.6},
    ("float32", 4096): {4: 7.1, 16: 22.3, 64: 41.4, 256: 52.6, 1024: 55.5, 4096: 58.6},
}


@dataclass(frozen=True)
class Point:
    """One product of a square of weights with a batch, what it reached on silicon, and both sides' simulated cycles."""

    dtype: str
    size: int
    batch: int
    silicon_tflops: float
    baseline: Side
    constructed: Side | None  # None where no program fits
    clock_ghz: float

    def tflops(self, side: Side) -> float:
        """A side's simulated rate."""
        return 2 * self.size**2 * self.batch * self.clock_ghz / side.cycles / 1e3

    @property
    def error(self) -> float:
        """How far the baseline's rate lies from silicon's, relative to that."""
        return self.tflops(self.baseline) / self.silicon_tflops - 1

    @property
    def saved(self) -> float | None:
        """The baseline's cycles over the constructed program's."""
        return self.baseline.cycles / self.constructed.cycles if self.constructed is not None else None

    def row(self) -> dict[str, Any]:
        """As plain data."""
        known = {"dtype": self.dtype, "size": self.size, "batch": self.batch, "silicon_tflops": self.silicon_tflops}
        sides = {"baseline": self._about(self.baseline), "constructed": self._about(self.constructed)}
        return {**known, **sides, "baseline_to_constructed": self.saved}

    def _about(self, side: Side | None) -> dict[str, Any] | None:
        if side is None:
            return None
        return {"tflops": self.tflops(side), "to_silicon": self.tflops(side) / self.silicon_tflops, **side.row()}


def product(dtype: str, size: int, batch: int) -> SymbolicTensor:
    """A batch of rows times a square of weights, added up in the operands' type."""
    rows, weights = ops.tensor((batch, size), dtype, "rows"), ops.tensor((size, size), dtype, "weights")
    return ops.matmul(rows, weights, acc_dtype=dtype)


def points(spec: HardwareSpec, say: Callable[[str], object] = lambda _: None) -> Iterator[Point]:
    """Every point, in the order of the tables."""
    for (dtype, size), row in SILICON.items():
        for batch, tflops in row.items():
            say(f"{dtype} {size} x {size}, batch {batch}")
            op = product(dtype, size, batch)
            ours = sides.tried(sides.constructed, op, spec)[0]
            yield Point(dtype, size, batch, tflops, sides.baseline(op, spec), ours, spec.clock_ghz)


def summary(found: Sequence[Point]) -> dict[str, Any]:
    """The baseline's median and largest error, by element type and of all."""
    made: dict[str, Any] = {}
    for name in (*dict.fromkeys(p.dtype for p in found), "all"):
        mine = [p for p in found if name in (p.dtype, "all")]
        worst = max(mine, key=lambda p: abs(p.error))
        made[name] = {
            "points": len(mine),
            "median_error": statistics.median(abs(p.error) for p in mine),
            "largest_error": abs(worst.error),
            "largest_at": f"{worst.dtype} {worst.size}, batch {worst.batch}",
            "median_to_silicon": statistics.median(p.error + 1 for p in mine),
            "constructed": sum(p.constructed is not None for p in mine),
            "least_baseline_to_constructed": min([p.saved for p in mine if p.saved is not None], default=None),
        }
    return made


def table(found: Sequence[Point]) -> Table:
    """A row a point."""
    made = Table(title="whole products on a Bow: TFLOP/s of silicon (digitised) and simulated")
    for heading in (
        "weights",
        "batch",
        "silicon",
        "baseline",
        "to silicon",
        "constructed",
        "to silicon",
        "cycles saved",
        "baseline's split",
    ):
        made.add_column(heading, justify="left" if heading in ("weights", "baseline's split") else "right")
    for p in found:
        rates = [f"{p.silicon_tflops:g}"]
        for side in (p.baseline, p.constructed):
            rate = p.tflops(side) if side is not None else None
            rates += [f"{rate:.1f}", f"{rate / p.silicon_tflops:.2f}"] if rate is not None else ["none", ""]
        saved = f"{p.saved:.2f}" if p.saved is not None else ""
        made.add_row(f"{p.dtype} {p.size}", str(p.batch), *rates, saved, p.baseline.programs[0])
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Print and write all points; 1 if the baseline lies further from silicon than it may."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--out", type=Path, default=FILE, help="the file of the report")
    options = made.parse_args(words)
    spec = find_spec("ipu_sim", CHIP)
    found = list(points(spec, lambda line: print(line, file=sys.stderr, flush=True)))
    sums = summary(found)
    console = report.screen()
    console.print(table(found))
    console.print(targets.of_sums("ipu_gemm", "all", sums["all"]))
    sides.write(options.out, "ipu_gemm", {"summary": sums, "points": [p.row() for p in found]})
    return int("missed" in targets.of_sums("ipu_gemm", "all", sums["all"]))


if __name__ == "__main__":
    sys.exit(main())
