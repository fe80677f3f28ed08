"""The model against the paper's silicon: efficiencies on V100, K80, MI50. python -m bench.engine.paper_fidelity

No kernel runs. On the V100 the program rated is the original's own: the first tile that it emitted, whose time the paper gives. For
K80 and MI50 no tiles are known, so the program is our first choice, and the time is that of the original's. Efficiency is
the roofline's time (operations at peak, or operands and result once over memory, whichever takes longer) over the time
predicted or measured: times of unlike sizes would correlate however bad the model.

Beside it the time predicted for our own first choice over the fastest time published of any system: 1 where memory is the bound and
the model is right, as then no kernel is faster than another; of products and convolutions it says only what to expect.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table

import roller
from bench.common import figures, harness, report, targets
from bench.common.paper_ops import DATA, PaperOperator, other_operators, paper_operators
from roller import SymbolicTensor, ops, study
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.device.defaults import tile_multiples
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, Tile, variants
from roller.program.alignment import Rules
from roller.program.footprint import Geometry
from roller.program.rprogram import tiled_levels
from roller.search.construct import construct
from roller.target.hardware import HardwareSpec

V100 = "cuda:v100-pcie"
OTHERS = {"K80": "cuda:k80", "MI50": "rocm:mi50"}
LANES = {"MI50": 1024}  # of a block for the paper's compiler, where ours takes fewer
KINDS = {"M": "matmul", "C": "conv2d", "D": "depthwise", "E": "elementwise", "P": "pooling", "R": "reduce"}
WINDOWS = {"D": tuple("nchwrs"), "P": tuple("chwrs")}  # axes as the original wrote them, in our names


@dataclass(frozen=True)
class Original:
    """The original's tile of an operator: axes as it wrote them, block tile with the reduce step, thread tile."""

    id: str
    block: tuple[int, ...]
    thread: tuple[int, ...]


def originals() -> Iterator[Original]:
    """The first tile of each of the 119."""
    with (DATA / "roller_v100_top1.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            spatial, step, thread = (
                tuple(map(int, row[name].split())) for name in ("smem_tile_spatial", "smem_step_reduce", "reg_tile")
            )
            yield Original(row["id"], spatial + step, thread + (1,) * len(step))


def as_written(operator: PaperOperator) -> SymbolicTensor:
    """The operator in the axes of the original's expression: a convolution as a product of f × c·r·s and c·r·s × n·h·w,
    whose right side the original gathers while it copies into shared memory; pooling over planes."""
    op = operator.build()
    shapes = [t.shape for t in ops.expression(op).inputs]
    if operator.id[0] == "C":
        filters, *window = shapes[1]
        batch, _, high, wide = op.shape
        depth = math.prod(window)
        return ops.matmul(ops.tensor((filters, depth), name="w"), ops.tensor((depth, batch * high * wide), name="x"))
    return op


def chain_of(operator: PaperOperator, original: Original, nest: Nest) -> tuple[Tile, ...] | None:
    """The original's tiles over the dimensions of a nest of ours; None for another nest than the original's.

    Windows are matched by name (pooling's planes are our channels; axes of extent 1 have gone), the rest by position.
    """
    tiles = (original.block, original.thread)
    names = WINDOWS.get(operator.id[0])
    if names is None:
        return tiles if len(nest.dims) == len(original.block) else None
    known = [dict(zip(names, tile, strict=True)) for tile in tiles]
    return tuple(tuple(tile.get(d.name, 1) for d in nest.dims) for tile in known)


def predicted(operator: PaperOperator, original: Original, spec: HardwareSpec) -> float:
    """Seconds predicted for the original's tile, at the best order and staging; `LookupError` where no nest of ours has it."""
    expr = fuse(ops.expression(as_written(operator)))
    (stage,) = expr.stages
    for nest in variants(stage, expr.tensors):
        chain = chain_of(operator, original, nest)
        if chain is None:
            continue
        found = list(study._programs(nest, chain, spec, rules(spec, expr), CostParameters()))
        if found:
            model = Model(spec, CostParameters(), Geometry(nest))
            return min(model.estimate(program).seconds for program in found)
    raise LookupError(f"no loop nest of {operator.id} takes the tile {original.block} > {original.thread}")


def rules(spec: HardwareSpec, expr: TensorExpr) -> Rules:
    """What a device without opinions of its own would say."""
    multiples = {(level, dim): m for level in tiled_levels(spec) for dim, m in tile_multiples(spec, expr, level).items()}
    return Rules(spec.atoms, multiples)


def roofline(operator: PaperOperator, spec: HardwareSpec) -> float:
    """Seconds that the chip's peaks allow."""
    expr = ops.expression(operator.build())
    moved = 4.0 * (sum(t.elements for t in expr.inputs) + expr.output.elements)
    bandwidth = spec.levels[1].bandwidth_gbps or math.inf
    return max(operator.flops / (spec.peaks_gflops["float32"] * 1e9), moved / (bandwidth * 1e9))


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each operator and chip, with predicted and measured seconds and efficiencies."""
    spec = roller.load_spec(V100)
    tiles = {o.id: o for o in originals()}
    chosen = [o for o in paper_operators() if not options.quick or o.id[1:] in ("1", "2", "3")]
    for operator in chosen:
        yield row(operator, "V100", spec, lambda o=operator: predicted(o, tiles[o.id], spec))
    for device, chip in OTHERS.items():
        other = as_in_the_paper(device, roller.load_spec(chip))
        for operator in other_operators():
            if operator.device == device and operator.id in {o.id for o in chosen}:
                yield row(operator, device, other, lambda o=operator, s=other: ours(o, s))


def as_in_the_paper(device: str, spec: HardwareSpec) -> HardwareSpec:
    """The chip with as many lanes a block as the paper's compiler took."""
    lanes = LANES.get(device, spec.unit.lanes_max)
    return spec.model_copy(update={"unit": spec.unit.model_copy(update={"lanes_max": lanes})})


def ours(operator: PaperOperator, spec: HardwareSpec) -> float:
    """Seconds predicted for our own first choice."""
    expr = fuse(ops.expression(operator.build()))
    return construct(expr, spec, rules(spec, expr), CostParameters(), 1)[0].estimate.seconds


def row(operator: PaperOperator, device: str, spec: HardwareSpec, predict: Any) -> dict[str, Any]:
    """Prediction and measurement of one operator; "left out" where either is missing."""
    found: dict[str, Any] = {"case": operator.id, "device": device, "kind": KINDS[operator.id[0]], "status": "ok"}
    measured = operator.paper_ms.get("roller_top1")
    if measured is None:
        return found | {"status": "left out", "reason": "no time published"}
    try:
        seconds = predict()
    except (LookupError, roller.RollerError) as error:
        return found | {"status": "left out", "reason": str(error)}
    limit = roofline(operator, spec)
    # The original's first choice there is at times several times slower than its best of ten.
    if device in OTHERS and "roller_top10" in operator.paper_ms:
        found |= {"ten_efficiency": limit / (operator.paper_ms["roller_top10"] * 1e-3)}
    own = seconds if device in OTHERS else ours(operator, spec)
    return found | {
        "predicted_s": seconds,
        "measured_s": measured * 1e-3,
        "roofline_s": limit,
        "predicted_efficiency": limit / seconds,
        "measured_efficiency": limit / (measured * 1e-3),
        "ours_over_fastest": own / (min(operator.paper_ms.values()) * 1e-3),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """For every chip: correlations of efficiency for each kind, for products with convolutions, and for all."""
    result: dict[str, Any] = {}
    for device in dict.fromkeys(r["device"] for r in found):
        groups = {kind: {kind} for kind in KINDS.values()}
        groups |= {"matmul + conv2d": {"matmul", "conv2d"}, "all": set(KINDS.values())}
        result[device] = {}
        for name, kinds in groups.items():
            chosen = [r for r in found if r["device"] == device and r["kind"] in kinds and r["status"] == "ok"]
            pairs = [[r[key] for r in chosen] for key in ("predicted_efficiency", "measured_efficiency")]
            ten = [[r[key] for r in chosen if "ten_efficiency" in r] for key in ("predicted_efficiency", "ten_efficiency")]
            ratios = sorted(r["predicted_s"] / r["measured_s"] for r in chosen)
            result[device][name] = {
                "operators": len(chosen),
                "pearson": figures.finite(figures.pearson(*pairs)),
                "spearman": figures.finite(figures.spearman(*pairs)),
                "pearson_best_of_ten": figures.finite(figures.pearson(*ten)),
                "predicted_over_measured": ratios[len(ratios) // 2] if ratios else None,
                "ours_over_fastest": statistics.median(r["ours_over_fastest"] for r in chosen) if chosen else None,
            }
    return result


def table(found: dict[str, Any]) -> Table:
    """The summary for people."""
    made = Table(title=f"efficiency predicted and published (wanted: {targets.said('paper_fidelity')})")
    for heading in (
        "chip",
        "kind",
        "operators",
        "correlation",
        "rank correlation",
        "with its best of ten",
        "predicted ÷ measured time (median)",
        "ours, predicted ÷ fastest published",
    ):
        made.add_column(heading, justify="left" if heading in ("chip", "kind") else "right")
    for device, groups in found.items():
        for name, numbers in groups.items():
            said = ["" if v is None else f"{v:.2f}" for v in list(numbers.values())[1:]]
            made.add_row(device, name, str(numbers["operators"]), *said)
    return made


def main() -> int:
    """Predict every operator and correlate."""
    options = harness.start(__doc__ or "")
    found = list(rows(options))
    for entry in found:
        if entry["status"] != "ok":
            print(f"{entry['device']} {entry['case']} left out: {entry['reason']}", file=sys.stderr)
    report.write("paper_fidelity", {"summary": summary(found), "cases": found}, options)
    report.screen().print(table(summary(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
