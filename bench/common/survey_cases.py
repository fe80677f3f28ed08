"""What CUDA kernels are judged by without a GPU: the paper's 119 operators and its Figure 15's products, whole and made small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.common.paper_ops import PaperOperator, Row, as_it_is, other_operators, paper_operators
from roller import ops
from roller.ops import SymbolicTensor

TENSOR_CORES = "Fig15"
# Extents beyond the first number become as long as the second and the remainder by it: what divided them still does.
SMALL = {
    **dict.fromkeys(("M", "N", "K"), (64, 32)),
    "batch": (2, 2),
    "in_channels": (40, 16),
    "out_channels": (40, 16),
    "height": (20, 8),
    "width": (20, 8),
}
SMALL_PLAIN = {"batch": (2, 2), "in_channels": (64, 32), "height": (64, 32), "width": (64, 32)}  # of what only moves or adds up
PLAIN = ("elementwise_relu", "reduce_sum")


@dataclass(frozen=True, slots=True)
class CudaCase:
    """One operator: its id, its kind, how to build it, and how to build the same thing small enough for an emulator."""

    id: str
    kind: str
    full: Callable[[], SymbolicTensor]
    small: Callable[[], SymbolicTensor]


def cases() -> list[CudaCase]:
    """All of them, in the paper's order."""
    pairs = [*zip(paper_operators(), paper_operators(small), strict=True), *zip(_matrix(as_it_is), _matrix(small), strict=True)]
    return [CudaCase(full.id, full.kind, _wide(full), _wide(made)) for full, made in pairs]


def small(row: Row) -> Row:
    """The row with small extents, and all else as it was."""
    limits = SMALL_PLAIN if row["kind"] in PLAIN else SMALL
    return {name: _shrunk(value, *limits[name]) if name in limits and value else value for name, value in row.items()}


def _shrunk(value: str, most: int, step: int) -> str:
    extent = int(value)
    rest = extent % step
    return value if extent <= most else str(step + rest if rest else max(step, most // step * step))


def _matrix(change: Callable[[Row], Row]) -> list[PaperOperator]:
    return [operator for operator in other_operators(change) if operator.figure == TENSOR_CORES]


def _wide(operator: PaperOperator) -> Callable[[], SymbolicTensor]:
    """The operator; products of halves add up in float32, where the paper's added up in half precision."""
    if operator.figure != TENSOR_CORES:
        return operator.build

    def build() -> SymbolicTensor:
        first, second = ops.expression(operator.build()).inputs
        return ops.matmul(ops.tensor(first.shape, first.dtype, "a"), ops.tensor(second.shape, second.dtype, "b"))

    return build
