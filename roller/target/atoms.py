"""Compute atoms: the smallest computations of a chip, as a part of its description (`roller.target.hardware`)."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Literal, Self

from pydantic import Field, model_validator

from roller.target.quantities import STORED_AS, Count, DType, Frozen, Name, NonNegative, Positive, Roles, agree


class ComputeAtom(Frozen):
    """The smallest computation of the chip: one lane's scalar, a vector instruction, or a matrix instruction.

    `roles` has the extents of m, n, k ("stream": any extent, row by row); {} is a scalar. `gflops` is the whole chip's rate;
    `flops_per_cycle_per_unit` x units x clock must agree with it. `row_cycles` is the time of one streamed row, `startup_cycles` of
    loading one stationary block, `stream_step` the best number of rows per step. `clock_ghz` and `chains` override the chip's and
    the unit's.
    `operand_rows` is "k" if operands are read along the reduction only, and "k_stored" if copies cannot transpose them either: then
    arrays must lie along the reduction. From rows along the reduction, lanes read `operand_piece_bytes` at a time, of as many rows
    as occupy all banks once. In panels with rows across the reduction, `operand_interleave` neighbours along it lie side by side.
    A vector with a role k is a dot-product instruction: each of its n lanes adds k products of neighbours along a reduction. k
    operands fill one element of the accumulator, a word. `n_dtype`: the type of the operands along n where it is another one
    (unsigned beside signed ones).
    `registers`: a matrix instruction of one unit has this many registers of its own (AMX's tiles), each for the results of one atom
    or for one of its operands. Both operands are words, each of `operand_interleave` operands, as those of a dot product.
    `in_turn`: the lanes that feed the atom fill panels, fetch operands and multiply one after another (as measured), so these times
    add up. Otherwise the longest of them hides the others.
    """

    name: Name
    kind: Literal["scalar", "vector", "matrix"]
    roles: Roles = Field(default={}, validate_default=True)
    in_dtype: DType
    acc_dtype: DType
    lanes: Count = 1
    gflops: Positive
    flops_per_cycle_per_unit: Positive | None = None
    clock_ghz: Positive | None = None
    row_cycles: Positive | None = None
    startup_cycles: NonNegative = 0.0
    stream_step: Count | None = None
    chains: Count | None = None
    operand_level: Name | None = None
    operand_rows: Literal["any", "k", "k_stored"] = "any"
    operand_piece_bytes: Count = 16
    operand_interleave: Count = 1
    acc_level: Name | None = None
    registers: Count | None = None
    in_turn: bool = False
    n_dtype: DType | None = None

    @cached_property
    def extents(self) -> dict[str, int | Literal["stream"]]:
        """Role → extent."""
        return {str(role): extent for role, extent in self.roles.items()}

    @property
    def stored_dtype(self) -> str:
        """The element type in which operands are stored."""
        return STORED_AS.get(self.in_dtype, self.in_dtype)

    @property
    def sums(self) -> bool:
        """True if it sums products along a reduction: a matrix instruction or a dot product."""
        return "k" in map(str, self.roles)

    @property
    def depth(self) -> int:
        """The operands of one word, which fill one element of the accumulator; 1 for atoms that do not take words."""
        if self.registers is not None:
            return self.operand_interleave
        depth = self.extents.get("k", 1) if self.kind == "vector" else 1
        return depth if isinstance(depth, int) else 1

    @property
    def simd(self) -> bool:
        """True if its results lie side by side along n in registers of one unit, and not in those of a group of lanes."""
        return self.kind == "vector" or self.registers is not None

    @property
    def loads(self) -> bool:
        """True if the nest loads its operands to registers of a unit; matrix instructions need their own registers for that."""
        return self.kind != "matrix" or self.registers is not None

    @property
    def width(self) -> int:
        """The results that lie side by side in a register; 1 for a scalar."""
        extents = [e for r, e in self.extents.items() if isinstance(e, int) and (r == "n" or not self.simd)]
        return max(extents, default=1)

    @property
    def register_bytes(self) -> int:
        """The bytes of one of its own registers: all results of one atom."""
        outputs = math.prod(e for r, e in self.extents.items() if r != "k" and isinstance(e, int))
        return outputs * _bits(self.acc_dtype) // 8

    @property
    def rounds(self) -> bool:
        """True if operands are rounded between their storage and the atom."""
        return self.stored_dtype != self.in_dtype

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "scalar") != (not self.roles):
            raise ValueError("roles: a scalar has none, a vector or matrix has some")
        if self.kind == "vector" and list(map(str, self.roles)) not in (["n"], ["n", "k"]):
            raise ValueError("roles: a vector instruction computes n results side by side, each of k products: n, or n and k")
        if self.kind == "matrix" and "k" not in map(str, self.roles):
            raise ValueError("roles: a matrix instruction sums products: it needs the extent of k (and those of m and n)")
        if self.in_dtype.startswith("int") != self.acc_dtype.startswith("int"):
            raise ValueError(f"acc_dtype: products of {self.in_dtype} are not summed in {self.acc_dtype}")
        if "stream" in self.roles.values() and self.row_cycles is None:
            raise ValueError("row_cycles: missing, though a role streams")
        depth = {str(role): extent for role, extent in self.roles.items()}.get("k")  # not `extents`: copies would keep its cache
        whole = isinstance(depth, int) and depth * _bits(self.stored_dtype) == _bits(self.acc_dtype)
        if self.kind == "vector" and depth is not None and not whole:
            raise ValueError(f"roles: {depth} operands of {self.in_dtype} do not fill one {self.acc_dtype}")
        if self.registers is not None:
            self._check_registers()
        if self.n_dtype is not None and not (self.kind == "vector" and depth is not None and self.n_dtype == f"u{self.in_dtype}"):
            raise ValueError(f"n_dtype: only dot products take other operands along n, u{self.in_dtype} beside {self.in_dtype}")
        if self.operand_interleave > 1 and (not isinstance(depth, int) or depth % self.operand_interleave):
            raise ValueError(f"operand_interleave: {self.operand_interleave} does not divide the atom's extent of k, {depth}")
        if self.row_cycles is not None and "stream" in self.roles.values() and self.flops_per_cycle_per_unit:
            row = 2 * math.prod(extent for extent in self.roles.values() if isinstance(extent, int))
            agree("row_cycles", row / self.row_cycles, self.flops_per_cycle_per_unit, "flops per cycle per unit")
        return self

    def _check_registers(self) -> None:
        extents = [e for r, e in self.roles.items() if str(r) in "mnk" and isinstance(e, int)]
        if self.kind != "matrix" or self.lanes > 1 or len(extents) < 3:
            raise ValueError("registers: only a matrix instruction of one lane, with m, n and k, has registers of its own")
        if self.operand_interleave * _bits(self.stored_dtype) != _bits(self.acc_dtype):
            raise ValueError(f"operand_interleave: {self.operand_interleave} of {self.in_dtype} do not fill one {self.acc_dtype}")


def peak_key(atom: ComputeAtom) -> str:
    """Returns the key of `peaks_gflops` for an atom: "float32", or "float16_matrix" for a matrix atom."""
    return f"{atom.in_dtype}_matrix" if atom.kind == "matrix" else atom.in_dtype


def _bits(dtype: str) -> int:
    found = re.search(r"\d+", dtype)
    return int(found.group()) if found else 8
