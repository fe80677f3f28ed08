"""The operators that ROLLER's evaluation measures, built from our library.

`paper_operators()` gives the 119 of Figure 10 by their ids (M matmul, C convolution, D depthwise, E elementwise, P pooling,
R reduction), `other_operators()` those of the other figures and tables. `python bench/common/paper_ops.py [--other]` prints them.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from roller import ops
from roller.ops import SymbolicTensor

DATA = Path(__file__).parents[1] / "data"
Row = Mapping[str, str]

PAPER_COLUMNS = {
    "cudalib": "paper_tf_cudalib_ms",
    "tvm": "paper_tvm_ms",
    "ansor": "paper_ansor_ms",
    "roller_top1": "paper_roller_top1_ms",
    "roller_top10": "paper_roller_top10_ms",
}
OTHER_COLUMNS = {
    "lib": "lib_ms",
    "tvm": "tvm_ms",
    "ansor": "ansor_ms",
    "roller_top1": "roller_top1_ms",
    "roller_top10": "roller_top10_ms",
    "roller_variant": "roller_variant_ms",
}


@dataclass(frozen=True, slots=True)
class PaperOperator:
    """One measured operator: its id, what it is, where the paper shows it, its times there, and how to build it.

    `flops` counts the artifact's way: multiply-adds as two, without epilogue (bias, relu, the division of a mean); 0: not given.
    `paper_ms` maps a system to milliseconds on `device`; systems that failed or were not measured are absent.
    """

    id: str
    kind: str
    dtype: str
    figure: str
    device: str
    flops: int
    paper_ms: Mapping[str, float]
    build: Callable[[], SymbolicTensor]


def as_it_is(row: Row) -> Row:
    """The row itself."""
    return row


def paper_operators(change: Callable[[Row], Row] = as_it_is) -> list[PaperOperator]:
    """The 119 operators, in the paper's order, with times on a V100; `change`: what to build instead of each row."""
    return [_operator(change(row), PAPER_COLUMNS, "Fig10", "V100") for row in _rows("ops119.csv")]


def other_operators(change: Callable[[Row], Row] = as_it_is) -> list[PaperOperator]:
    """Operators of the other figures and tables: scaling, tensor cores, K80, MI50, the kernels of whole models."""
    return [_operator(change(row), OTHER_COLUMNS, row["figure"], row["device"]) for row in _rows("ops_other.csv")]


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _operator(row: Row, columns: Mapping[str, str], figure: str, device: str) -> PaperOperator:
    times = {system: float(row[column]) for system, column in columns.items() if row[column]}
    kind = row["kind"].partition("_expr")[0]
    builder = BUILDERS.get(kind) or partial(_script, kind=kind)
    dtype = row.get("dtype") or "float32"
    return PaperOperator(row["id"], kind, dtype, figure, device, int(row["flops"] or 0), times, partial(builder, row))


def _numbers(row: Row, *names: str) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in names if row[name])


def _matmul(row: Row) -> SymbolicTensor:
    m, n, k = _numbers(row, "M", "N", "K")
    dtype = row.get("dtype") or "float32"
    # The artifact's half-precision products accumulate in half precision too.
    acc_dtype = dtype if dtype == "float16" else None
    return ops.matmul(ops.tensor((m, k), dtype, "a"), ops.tensor((k, n), dtype, "b"), acc_dtype=acc_dtype)


def _images(row: Row) -> SymbolicTensor:
    return ops.tensor(_numbers(row, "batch", "in_channels", "height", "width"), name="x")


def _conv2d(row: Row) -> SymbolicTensor:
    w = ops.tensor(_numbers(row, "out_channels", "in_channels", "kernel_h", "kernel_w"), name="w")
    return ops.conv2d(_images(row), w, int(row["stride"]), row["padding"])


def _depthwise_conv2d(row: Row) -> SymbolicTensor:
    channels, high, wide = _numbers(row, "in_channels", "kernel_h", "kernel_w")
    w = ops.tensor((channels, 1, high, wide), name="w")
    return ops.depthwise_conv2d(_images(row), w, int(row["stride"]), row["padding"])


def _pool_avg(row: Row) -> SymbolicTensor:
    high, wide = _numbers(row, "kernel_h", "kernel_w")
    return ops.avg_pool2d(_images(row), (high, wide), int(row["stride"]), row["padding"])


def _relu(row: Row) -> SymbolicTensor:
    return ops.relu(_images(row))


def _reduce_sum(row: Row) -> SymbolicTensor:
    return ops.reduce_sum(_images(row), [int(axis) for axis in row["reduce_axes"].split()])


BUILDERS: Mapping[str, Callable[[Row], SymbolicTensor]] = {
    "matmul": _matmul,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise_conv2d,
    "pool_avg": _pool_avg,
    "elementwise_relu": _relu,
    "reduce_sum": _reduce_sum,
}


def _script(row: Row, kind: str) -> SymbolicTensor:
    """A kernel of a whole model, from the name and shape that the artifact's script gives: sizes are those of the output."""
    numbers = [int(n) for n in row["script"].split()]
    found = re.search(r"_S(\d)(?:D1)?P(\d)$", row["kind"])
    stride, padding = (int(g) for g in found.groups()) if found else (1, 0)

    def size(output: int, kernel: int) -> int:
        return (output - 1) * stride + kernel - 2 * padding

    if kind == "batch_matmul":
        b, m, n, k = numbers
        return ops.batch_matmul(ops.tensor((b, m, k), name="a"), ops.tensor((b, k, n), name="b"))
    if kind == "reduce":
        return ops.reduce_sum(ops.tensor(numbers, name="x"), (-2, -1))  # the scripts write one reduced axis as (extent, 1)
    if kind.endswith("pool2d"):
        planes, high, wide, r, s = numbers
        pool = ops.max_pool2d if kind == "maxpool2d" else ops.avg_pool2d
        return pool(ops.tensor((1, planes, size(high, r), size(wide, s)), name="x"), (r, s), stride, padding)
    if kind == "depthwiseconv":
        n, c, high, wide, r, s = numbers
        x = ops.tensor((n, c, size(high, r), size(wide, s)), name="x")
        return ops.depthwise_conv2d(x, ops.tensor((c, 1, r, s), name="w"), stride, padding)
    n, f, high, wide, c, r, s = numbers
    x = ops.tensor((n, c, size(high, r), size(wide, s)), name="x")
    value = ops.conv2d(x, ops.tensor((f, c, r, s), name="w"), stride, padding)
    if "bias" in kind:
        value = value + ops.tensor((f, 1, 1), name="bias")
    return ops.relu(value) if "relu" in kind else value


def _table(operators: list[PaperOperator], systems: list[str]) -> Table:
    table = Table(title=f"{len(operators)} operators of ROLLER's evaluation (times: the paper's, in ms)")
    for heading in ("id", "kind", "where", "inputs", "output", "GFLOP", *systems):
        table.add_column(heading, justify="right" if heading == "GFLOP" or heading in systems else "left")
    for operator in operators:
        expr = ops.expression(operator.build())
        inputs = " ".join("x".join(map(str, t.shape)) for t in expr.inputs)
        times = [f"{operator.paper_ms[s]:.3f}" if s in operator.paper_ms else "-" for s in systems]
        where = f"{operator.figure} {operator.device}"
        output = "x".join(map(str, expr.output.shape))
        table.add_row(operator.id, operator.kind, where, inputs, output, f"{operator.flops / 1e9:.3f}", *times)
    return table


def main() -> None:
    """Print the operators."""
    other = "--other" in sys.argv[1:]
    operators = other_operators() if other else paper_operators()
    Console().print(_table(operators, list(OTHER_COLUMNS if other else PAPER_COLUMNS)))


if __name__ == "__main__":
    main()
