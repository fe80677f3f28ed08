"""Tensor cores as matrix units: `mma.sync` with operands that `ldmatrix` reads from shared memory.

The layouts are those of the PTX manual (section "Matrix fragments for mma.m16n8k16"): lane l holds results in rows l / 4 and
l / 4 + 8, columns 2 (l mod 4) and the next one. An operand is made of 8 x 8 matrices, of which `ldmatrix` reads up to four at once;
each lane gives the address of one row of one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from roller.plugin import ComputeAtom
from roller.schedule.machine import Operand
from roller.schedule.tir import Buffer, Expr, Stmt, called, index, pointer
from roller_cuda import hopper

SMALL = 8  # rows of a matrix that `ldmatrix` reads, and elements of 16 bits in each
# Of an operand, in the order of registers: row (for the second operand column) and depth of each.
MATRICES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "m": ((0, 0), (SMALL, 0), (0, SMALL), (SMALL, SMALL)),
    "n": ((0, 0), (0, SMALL)),
}


@dataclass(frozen=True)
class WarpMma:
    """One `mma.sync` of a warp: 16 x 8 results of a depth of 16."""

    function: str
    dtype: str = "uint32"
    results: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"m": (0, SMALL), "n": (0, 1)})
    registers: Mapping[str, int] = field(default_factory=lambda: {role: len(found) for role, found in MATRICES.items()})

    def first(self, role: str, lane: Expr) -> Expr:
        """The row or column of a lane's first result."""
        return tirx.floordiv(lane, index(4)) if role == "m" else tirx.floormod(lane, index(4)) * index(2)

    def fetch(self, role: str, lane: Expr, operand: Operand, held: Buffer) -> list[Stmt]:
        """`ldmatrix` for four small matrices at a time; transposing where the panel's rows lie across the reduction."""
        turned = operand.depth_step != 1
        along = operand.side_step if turned else operand.depth_step
        assert along <= 1, "a panel's rows lie along a role of the atom"
        pitch = operand.depth_step if turned else operand.side_step
        apart = [side * operand.side_step + deep * operand.depth_step for side, deep in MATRICES[role]]
        starts = [corner + place for corner in operand.corners for place in apart]
        row = tirx.floormod(lane, index(SMALL)) * index(pitch)
        statements = []
        for at, group in _groups(starts):
            where = operand.base + row + _chosen(group, tirx.floordiv(lane, index(SMALL)))
            name = f"roller_ldmatrix_x{len(group)}{'_trans' if turned else ''}"
            statements.append(called(name, pointer(held, at, True), pointer(operand.panel, where)))
        return statements

    def multiply(self, results: Sequence[Expr], first: Expr, second: Expr) -> Stmt:
        """One `mma.sync`."""
        return called(self.function, *results, first, second)


UNITS: Mapping[str, WarpMma] = {
    "mma_m16n8k16_f16": WarpMma("roller_mma_m16n8k16_f16"),
    "mma_m16n8k16_bf16": WarpMma("roller_mma_m16n8k16_bf16"),
}


def supported(atom: ComputeAtom) -> bool:
    """True for atoms that kernels are printed for: those of the CUDA cores, and the tensor cores' listed above."""
    return atom.kind != "matrix" or atom.name in UNITS or hopper.unit_of(atom) is not None


def _groups(starts: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Matrices that are read together, with the number of the first: the largest powers of two whose places are sums of steps."""
    at = 0
    while at < len(starts):
        count = 4
        while count > len(starts) - at or (count == 4 and not _regular(starts[at : at + 4])):
            count //= 2
        yield at, starts[at : at + count]
        at += count


def _regular(places: list[int]) -> bool:
    return places[3] - places[2] == places[1] - places[0]


def _chosen(places: list[int], number: Expr) -> Expr:
    """The place of the matrix with this number; numbers beyond the last wrap around."""
    found: Any = index(places[0])
    if len(places) > 1:
        found = found + tirx.floormod(number, index(2)) * index(places[1] - places[0])
    if len(places) > 2:
        found = found + tirx.floormod(tirx.floordiv(number, index(2)), index(2)) * index(places[2] - places[0])
    return found
