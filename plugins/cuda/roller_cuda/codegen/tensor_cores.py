"""Tensor cores as matrix units: `mma.sync` with operands that a warp reads from shared memory.

The layouts are those of the PTX manual, sections "Matrix fragments for mma.m16n8k16", "… for mma.m16n8k8", "… for mma.m16n8k32" and
"… for mma.m8n8k4". From compute capability 8.0 on an operand consists of matrices of 8 rows of 16 bytes. `ldmatrix` reads up to
four of them at once; each lane gives the address of one row of one of them. It transposes 16-bit values only. Where rows lie across
the reduction, lanes read 32-bit values one by one. On 7.0 every lane reads its own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from roller.lowering.simt.machine import MatrixUnit, Operand
from roller.lowering.tir.builder import Buffer, Expr, Stmt, called, index, load, plus, pointer, store, times
from roller.plugin import ComputeAtom
from roller_cuda.codegen import hopper

SMALL = 8  # rows of a matrix that `ldmatrix` reads
ROW_BYTES = 16  # bytes of one of these rows
TRANSPOSED_BYTES = 2  # bytes of the values that it can transpose
QUARTER = 4  # rows, columns and depth that a lane of a quad pair handles


@dataclass(frozen=True)
class WarpMma:
    """One `mma.sync` of a warp: 16 x 8 results with a depth of 32 bytes."""

    function: str
    element_bytes: int = 2
    rounding: str | None = None  # the function that rounds loaded values, where panels hold a wider type than the operands'
    dtype: str = "uint32"
    results: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"m": (0, SMALL), "n": (0, 1)})
    registers: Mapping[str, int] = field(default_factory=lambda: {"m": 4, "n": 2})

    @property
    def matrices(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """The matrices of an operand in the order of registers: row (for the second operand column) and depth of each."""
        deep = ROW_BYTES // self.element_bytes
        return {"m": ((0, 0), (SMALL, 0), (0, deep), (SMALL, deep)), "n": ((0, 0), (0, deep))}

    def first(self, role: str, lane: Expr) -> Expr:
        """Returns the row or column of a lane's first result."""
        return tirx.floordiv(lane, index(4)) if role == "m" else tirx.floormod(lane, index(4)) * index(2)

    def fetch(self, role: str, lane: Expr, operand: Operand, held: Buffer) -> list[Stmt]:
        """Returns `ldmatrix` for four small matrices at a time, transposing where the panel's rows lie across the reduction."""
        if operand.depth_step != 1 and self.element_bytes > TRANSPOSED_BYTES:
            values = self._words(role, lane, operand)
            return [store(held, self._rounded(value), at) for at, value in enumerate(values)]
        read, count = self._matrices(role, lane, operand, held), self.registers[role] * len(operand.corners)
        return read if self.rounding is None else [*read, *(store(held, self._rounded(load(held, n)), n) for n in range(count))]

    def _rounded(self, value: Expr) -> Expr:
        """Returns the register's content for a value, or for the bits of one."""
        return tirx.call_extern(self.dtype, self.rounding, value) if self.rounding is not None else value

    def _words(self, role: str, lane: Expr, operand: Operand) -> list[Expr]:
        """Returns the value for each register, from as many rows of a panel as a small matrix is deep."""
        within = index(ROW_BYTES // self.element_bytes)
        side, depth = tirx.floordiv(lane, within), tirx.floormod(lane, within)
        mine = operand.base + plus(times(side, operand.side_step), times(depth, operand.depth_step))
        apart = [rows * operand.side_step + deep * operand.depth_step for rows, deep in self.matrices[role]]
        return [load(operand.panel, mine + index(corner + place)) for corner in operand.corners for place in apart]

    def _matrices(self, role: str, lane: Expr, operand: Operand, held: Buffer) -> list[Stmt]:
        turned = operand.depth_step != 1
        along = operand.side_step if turned else operand.depth_step
        assert along <= 1, "a panel's rows lie along a role of the atom"
        pitch = operand.depth_step if turned else operand.side_step
        apart = [side * operand.side_step + deep * operand.depth_step for side, deep in self.matrices[role]]
        starts = [corner + place for corner in operand.corners for place in apart]
        row = tirx.floormod(lane, index(SMALL)) * index(pitch)
        statements = []
        for at, group in _groups(starts):
            where = operand.base + row + _chosen(group, tirx.floordiv(lane, index(SMALL)))
            name = f"roller_ldmatrix_x{len(group)}{'_trans' if turned else ''}"
            statements.append(called(name, pointer(held, at, True), pointer(operand.panel, where)))
        return statements

    def multiply(self, results: Sequence[Expr], first: Expr, second: Expr, _: tuple[bool, bool]) -> Stmt:
        """One `mma.sync`."""
        return called(self.function, *results, first, second)


@dataclass(frozen=True)
class QuadPairs:
    """Four `mma.sync.m8n8k4` of a warp: each of its four quad pairs computes 8 x 8 results, together 16 x 16 with a depth of 16."""

    dtype: str = "uint32"
    results: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"m": (0, 2), "n": (0, 1, 4, 5)})
    registers: Mapping[str, int] = field(default_factory=lambda: {"m": 8, "n": 8})

    def first(self, role: str, lane: Expr) -> Expr:
        """Returns the row or column of a lane's first result."""
        if role == "m":
            return self._corner(role, lane) + tirx.floormod(lane, index(2)) + self._upper(lane)
        return self._corner(role, lane) + tirx.floormod(tirx.floordiv(lane, index(2)), index(2)) * index(2)

    def fetch(self, role: str, lane: Expr, operand: Operand, held: Buffer) -> list[Stmt]:
        """Returns the reads of a 16-value row in two pieces; with rows across the reduction 4 neighbours at each 4th depth."""
        within = tirx.floormod(lane, index(QUARTER))
        statements = []
        for number, corner in enumerate(operand.corners):
            start = plus(operand.base, corner)
            place = number * self.registers[role]
            if operand.depth_step == 1:
                row = self._corner(role, lane) + within + self._upper(lane)
                source = plus(start, times(row, operand.side_step))
                statements.append(called("roller_quads_rows", pointer(held, place, True), pointer(operand.panel, source)))
            else:
                side = times(self._corner(role, lane) + self._upper(lane), operand.side_step)
                source = plus(plus(start, side), times(within, operand.depth_step))
                name = f"roller_quads_across<{QUARTER * operand.depth_step}>"
                statements.append(called(name, pointer(held, place, True), pointer(operand.panel, source)))
        return statements

    def multiply(self, results: Sequence[Expr], first: Expr, second: Expr, turned: tuple[bool, bool]) -> Stmt:
        """Four `mma.sync`, one for each depth of 4."""
        kinds = f"{'col' if turned[0] else 'row'}_{'row' if turned[1] else 'col'}"
        return called(f"roller_mma_quads_{kinds}", *results, first, second)

    def _corner(self, role: str, lane: Expr) -> Expr:
        """Returns the first row or column of the 8 x 8 results of a lane's quad pair."""
        pair = tirx.floormod(tirx.floordiv(lane, index(QUARTER)), index(QUARTER))
        return (tirx.floordiv(pair, index(2)) if role == "m" else tirx.floormod(pair, index(2))) * index(SMALL)

    def _upper(self, lane: Expr) -> Expr:
        """Returns the number of rows (columns) before those of a quad pair's second quad; 0 in its first quad."""
        return tirx.floordiv(lane, index(16)) * index(QUARTER)


UNITS: Mapping[str, MatrixUnit] = {
    "mma_m16n8k16_f16": WarpMma("roller_mma_m16n8k16_f16"),
    "mma_m16n8k16_bf16": WarpMma("roller_mma_m16n8k16_bf16"),
    "mma_m16n8k8_tf32": WarpMma("roller_mma_m16n8k8_tf32", element_bytes=4, rounding="roller_tf32"),
    "mma_m16n8k32_s8": WarpMma("roller_mma_m16n8k32_s8", element_bytes=1),
    "wmma_m16n16k16": QuadPairs(),
}


def supported(atom: ComputeAtom) -> bool:
    """True for atoms that the code generator supports: those of the CUDA cores, and the tensor cores' listed above."""
    return atom.kind != "matrix" or atom.name in UNITS or hopper.unit_of(atom) is not None


def _groups(starts: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yields matrices for one read, with the number of the first: the largest powers of two whose addresses are sums of steps."""
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
    """Returns the address of the matrix with this number; numbers beyond the last wrap around."""
    found: Any = index(places[0])
    if len(places) > 1:
        found = found + tirx.floormod(number, index(2)) * index(places[1] - places[0])
    if len(places) > 2:
        found = found + tirx.floormod(tirx.floordiv(number, index(2)), index(2)) * index(places[2] - places[0])
    return found
