"""The 119 operators of ROLLER's evaluation at their own sizes, against torch and NumPy. python -m bench.cpu.paper119"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterator
from functools import partial

from bench.common import harness, peers, report
from bench.common.harness import Case, Side
from bench.common.paper_ops import DATA, PaperOperator, paper_operators
from roller import ops
from roller.ir.expr import TensorExpr

KINDS = {"M": "matmul", "C": "conv2d", "D": "depthwise", "E": "elementwise", "P": "pooling", "R": "reduce"}


def rows() -> list[dict[str, str]]:
    """The table that the operators are built from, for what torch needs to know."""
    with (DATA / "ops119.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def pads(row: dict[str, str]) -> list[int]:
    """Top, bottom, left, right of TensorFlow's padding: with "SAME" the odd element lies at the end."""
    if row["padding"] != "SAME":
        return [0] * 4
    found, stride = [], int(row["stride"])
    for size, kernel in (("height", "kernel_h"), ("width", "kernel_w")):
        total = max((-(-int(row[size]) // stride) - 1) * stride + int(row[kernel]) - int(row[size]), 0)
        found += [total // 2, total - total // 2]
    return found


def build(options: argparse.Namespace, operator: PaperOperator, row: dict[str, str]) -> list[Side]:
    """All sides of one operator."""
    op = operator.build()
    shapes = {t.name: t.shape for t in ops.expression(op).inputs}
    given = peers.arrays(**shapes)
    first, *rest = given.values()
    match operator.id[0]:
        case "M":
            theirs = [side for side in peers.matmul(first, rest[0]) if side.boundary]
        case "C":
            theirs = peers.conv2d(first, rest[0], int(row["stride"]), pads(row))
        case "D":
            theirs = peers.conv2d(first, rest[0], int(row["stride"]), pads(row), first.shape[1])
        case "P":
            theirs = peers.average_pool(first, int(row["kernel_h"]), int(row["stride"]), pads(row))
        case "E":
            theirs = peers.relu(first)
        case _:
            theirs = peers.reduce_sum(first, [int(axis) for axis in row["reduce_axes"].split()])
    return [peers.ours(op, given, options), *theirs]


def need(expr: TensorExpr) -> int:
    """Bytes in use at once: operands, and what torch converts them to; our result, the libraries', and two conversions of it."""
    inputs, output = sum(t.elements for t in expr.inputs), expr.output.elements
    return 4 * (2 * inputs + 4 * output)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Every operator of the kinds wanted, by the paper's ids."""
    for operator, row in zip(paper_operators(), rows(), strict=True):
        if options.only and operator.id[0] not in options.only.split(","):
            continue
        expr = ops.expression(operator.build())
        moved = 4 * (sum(t.elements for t in expr.inputs) + expr.output.elements)
        depth = max(math.prod(a.extent for a in s.axes if a.is_reduce) for s in expr.stages)
        flops = float(operator.flops) if operator.id[0] in "MCD" else 0.0
        name = f"{operator.id} " + " ".join("x".join(map(str, t.shape)) for t in expr.inputs)
        family = KINDS[operator.id[0]]
        yield Case(name, family, partial(build, operator=operator, row=row), need(expr), flops, moved, depth)


def only(made: argparse.ArgumentParser) -> None:
    """The option --only, and less time for each of so many operators."""
    made.add_argument("--only", default="", help="kinds by their letters, such as M,C")
    made.set_defaults(limit=20.0)


if __name__ == "__main__":
    arguments = harness.start(__doc__, only)
    sys.exit(report.run("paper119", cases(arguments), arguments))
