"""Matrix units of CDNA (MFMA, waves of 64) and of RDNA 3 (WMMA, waves of 32).

The layouts are those of AMD's instruction set manuals. Each lane holds one row of the first operand (one column of the second one),
and some neighbours along the reduction. With MFMA the lanes beyond the first 16 (or 32) hold values further along the reduction;
with WMMA they hold the same values again. Results lie in a lane's column, in runs of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from roller.lowering.simt.machine import MatrixUnit, Operand
from roller.lowering.tir.builder import Buffer, Expr, Stmt, called, index, plus, pointer, times
from roller.plugin import ComputeAtom

WORD_BYTES = 4


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction by LLVM's names.

    `operand`, `scalar`: LLVM's types of an operand and of one result; `results`: the number of a lane's results; `pattern`: the
    call, of operands %a and %b and results %c; `declared`: the types of its arguments.
    """

    intrinsic: str
    operand: str
    scalar: str
    results: int
    pattern: str = "{operand} %a, {operand} %b, {result} %c, i32 0, i32 0, i32 0"
    declared: str = "{operand}, {operand}, {result}, i32 immarg, i32 immarg, i32 immarg"

    @property
    def result(self) -> str:
        """LLVM's type of all results of a lane."""
        return f"<{self.results} x {self.scalar}>"

    def filled(self, pattern: str) -> str:
        """Returns a pattern with this instruction's types."""
        return pattern.format(operand=self.operand, result=self.result)


SIGNED = "i1 true, {operand} %a, i1 true, {operand} %b, {result} %c, i1 false"  # both operands are signed; no saturation
SIGNED_TYPES = "i1 immarg, {operand}, i1 immarg, {operand}, {result}, i1 immarg"


@dataclass(frozen=True)
class WaveUnit:
    """One instruction of a wave.

    `side`: rows and columns; `depth`: values along the reduction that a lane holds of an operand, each of `element_bytes`;
    `places`: rows of a lane's results; `stride`: distance to the rows of the next lanes with the same column; `apart`: number of
    lanes with different rows and depths, the others hold the same again; `bits`: addresses of bfloat16 have the type of 16-bit
    words.
    """

    instruction: Instruction
    side: int
    depth: int
    element_bytes: int
    places: tuple[int, ...]
    stride: int
    apart: int = 64
    dtype: str = "uint32"
    bits: bool = True

    @property
    def results(self) -> Mapping[str, tuple[int, ...]]:
        """For m and n the rows and columns of a lane's results, relative to its first one."""
        return {"m": self.places, "n": (0,)}

    @property
    def registers(self) -> Mapping[str, int]:
        """Words of a lane's part of an operand."""
        words = self.depth * self.element_bytes // WORD_BYTES
        return {"m": words, "n": words}

    def first(self, role: str, lane: Expr) -> Expr:
        """Returns the row or column of a lane's first result."""
        if role == "n":
            return tirx.floormod(lane, index(self.side))
        return tirx.floordiv(lane, index(self.side)) * index(self.stride)

    def fetch(self, role: str, lane: Expr, operand: Operand, held: Buffer) -> list[Stmt]:
        """Returns the reads of a lane's row at its depths, for each atom, in pieces that are contiguous in the panel."""
        side = tirx.floormod(lane, index(self.side))
        deep = tirx.floordiv(tirx.floormod(lane, index(self.apart)), index(self.side)) * index(self.depth)
        mine = operand.base + plus(times(side, operand.side_step), times(deep, operand.depth_step))
        along = operand.depth_step == 1 and operand.beside == 1
        statements = []
        for number, corner in enumerate(operand.corners):
            words, start = number * self.registers[role], plus(mine, corner)
            if not along and operand.beside == 1:
                target, source = pointer(held, words, True), _place(operand.panel, start, self.bits)
                name = f"roller_column_{self.depth}x{self.element_bytes}"
                statements.append(called(name, target, source, index(operand.depth_step)))
                continue
            piece = self.depth if along else operand.beside
            for deep in range(0, self.depth, piece):
                target = pointer(held, words + deep * self.element_bytes // WORD_BYTES, True)
                source = _place(operand.panel, plus(start, deep * operand.depth_step), self.bits)
                statements.append(called(f"roller_row_{piece * self.element_bytes}", target, source))
        return statements

    def multiply(self, results: Sequence[Expr], first: Expr, second: Expr, _: tuple[bool, bool]) -> Stmt:
        """One instruction."""
        return called(self.function, *results, first, second)

    @property
    def function(self) -> str:
        """The name of the function that kernels call."""
        return f"roller_{self.instruction.intrinsic.replace('.', '_')}"


def _place(panel: Buffer, at: Expr, bits: bool) -> Expr:
    """Returns the address of an element of a panel; TVM treats bfloat16 as float32 for LLVM where an address has that type."""
    if str(panel.dtype) != "bfloat16" or not bits:
        return pointer(panel, at)
    return tirx.op.tvm_access_ptr(tirx.op.type_annotation("uint16"), panel.data, index(at), index(1), 1)


def _mfma(kind: str, operand: str, depth: int, size: int, scalar: str = "float") -> tuple[WaveUnit, WaveUnit]:
    """Returns the instructions of 16 and of 32 rows with the same operands; `kind`: names of both, without the common part."""
    small, large = kind.split()
    name = "llvm.amdgcn.mfma." + ("i32." if scalar == "i32" else "f32.")
    runs = tuple(range(4))
    wide = tuple(8 * run + row for run in range(4) for row in runs)
    return (
        WaveUnit(Instruction(name + small, operand, scalar, 4), 16, depth, size, runs, 4),
        WaveUnit(Instruction(name + large, operand, scalar, 16), 32, depth, size, wide, 4),
    )


def _wmma(kind: str, operand: str, size: int, scalar: str = "float", *patterns: str) -> WaveUnit:
    instruction = Instruction(f"llvm.amdgcn.wmma.{kind}", operand, scalar, 8, *patterns)
    return WaveUnit(instruction, 16, 16, size, tuple(range(0, 16, 2)), 1, apart=16)


_HALVES, _BRAINS = _mfma("16x16x16f16 32x32x8f16", "<4 x half>", 4, 2), _mfma("16x16x16bf16.1k 32x32x8bf16.1k", "<4 x i16>", 4, 2)
_PAIRS, _SINGLES = _mfma("16x16x8bf16 32x32x4bf16", "<2 x i16>", 2, 2), _mfma("16x16x4f32 32x32x2f32", "float", 1, 4)
_BYTES, _LONGS = _mfma("16x16x16i8 32x32x8i8", "i32", 4, 1, "i32"), _mfma("16x16x32.i8 32x32x16.i8", "i64", 8, 1, "i32")
_NO_SIGNS = ("{operand} %a, {operand} %b, {result} %c", "{operand}, {operand}, {result}")
_DOUBLE = WaveUnit(Instruction("llvm.amdgcn.mfma.f64.16x16x4f64", "double", "double", 4), 16, 1, 8, (0, 4, 8, 12), 1)

UNITS: Mapping[str, MatrixUnit] = {
    "mfma_m16n16k16_f16": _HALVES[0],
    "mfma_m32n32k8_f16": _HALVES[1],
    "mfma_m16n16k16_bf16": _BRAINS[0],
    "mfma_m32n32k8_bf16": _BRAINS[1],
    "mfma_m16n16k8_bf16": _PAIRS[0],
    "mfma_m32n32k4_bf16": _PAIRS[1],
    "mfma_m16n16k4_f32": _SINGLES[0],
    "mfma_m32n32k2_f32": _SINGLES[1],
    "mfma_m16n16k4_f64": _DOUBLE,
    "mfma_m16n16k16_s8": _BYTES[0],
    "mfma_m32n32k8_s8": _BYTES[1],
    "mfma_m16n16k32_s8": _LONGS[0],
    "mfma_m32n32k16_s8": _LONGS[1],
    "wmma_m16n16k16_f16": _wmma("f32.16x16x16.f16.v8f32.v16f16", "<16 x half>", 2, "float", *_NO_SIGNS),
    "wmma_m16n16k16_bf16": _wmma("f32.16x16x16.bf16.v8f32.v16i16", "<16 x i16>", 2, "float", *_NO_SIGNS),
    "wmma_m16n16k16_s8": _wmma("i32.16x16x16.iu8.v8i32.v4i32", "<4 x i32>", 1, "i32", SIGNED, SIGNED_TYPES),
}


def supported(atom: ComputeAtom) -> bool:
    """True for atoms that the code generator supports."""
    return atom.kind != "matrix" or atom.name in UNITS


# --- the functions that kernels call, as LLVM IR ----------------------------------------------------------------------


def helpers(names: Sequence[str]) -> str:
    """Returns the functions of some atoms' units."""
    units: list[Any] = [UNITS[name] for name in dict.fromkeys(names)]
    texts = dict.fromkeys(text for unit in units for text in (*_rows(unit), _column(unit)))
    return "\n".join([*texts, *(_product(unit) for unit in units)])


def _rows(unit: WaveUnit) -> list[str]:
    """Returns reads of neighbours in a panel into registers: all of a lane's, or whole words of them."""
    size = unit.depth * unit.element_bytes
    return [_row(size >> n) for n in range(size.bit_length()) if size >> n >= WORD_BYTES]


def _row(size: int) -> str:
    align = min(size, 16)
    return f"""
define linkonce_odr hidden i32 @roller_row_{size}(ptr addrspace(5) %held, ptr addrspace(3) %panel) #0 {{
  %row = load <{size} x i8>, ptr addrspace(3) %panel, align {align}
  store <{size} x i8> %row, ptr addrspace(5) %held, align 4
  ret i32 0
}}"""


def _column(unit: WaveUnit) -> str:
    """Returns a read of a panel's values, a step apart, into registers."""
    size, count = unit.element_bytes, unit.depth
    kind = f"i{8 * size}"
    lines = [f"  %at0 = getelementptr {kind}, ptr addrspace(3) %panel, i32 0"]
    vector = f"<{count} x {kind}>"
    for n in range(count):
        if n:
            lines.append(f"  %at{n} = getelementptr {kind}, ptr addrspace(3) %at{n - 1}, i32 %step")
        before = "poison" if n == 0 else f"%held{n - 1}"
        lines.append(f"  %one{n} = load {kind}, ptr addrspace(3) %at{n}, align {size}")
        lines.append(f"  %held{n} = insertelement {vector} {before}, {kind} %one{n}, i32 {n}")
    body = "\n".join(lines)
    return f"""
define linkonce_odr hidden i32 @roller_column_{count}x{size}(ptr addrspace(5) %held, ptr addrspace(3) %panel, i32 %step) #0 {{
{body}
  store {vector} %held{count - 1}, ptr addrspace(5) %held, align 4
  ret i32 0
}}"""


def _product(unit: WaveUnit) -> str:
    """Returns the function of one instruction, on accumulators anywhere in a lane's registers."""
    told = unit.instruction
    places = "".join(f"ptr addrspace(5) %p{n}, " for n in range(told.results))
    lines = [
        f"  %a = load {told.operand}, ptr addrspace(5) %first, align 4",
        f"  %b = load {told.operand}, ptr addrspace(5) %second, align 4",
    ]
    for n in range(told.results):
        before = "poison" if n == 0 else f"%c{n - 1}"
        lines.append(f"  %v{n} = load {told.scalar}, ptr addrspace(5) %p{n}")
        lines.append(
            f"  %c{'' if n == told.results - 1 else n} = insertelement {told.result} {before}, {told.scalar} %v{n}, i32 {n}"
        )
    lines.append(f"  %d = call {told.result} @{told.intrinsic}({told.filled(told.pattern)})")
    for n in range(told.results):
        lines.append(f"  %r{n} = extractelement {told.result} %d, i32 {n}")
        lines.append(f"  store {told.scalar} %r{n}, ptr addrspace(5) %p{n}")
    body = "\n".join(lines)
    return f"""
define linkonce_odr hidden i32 @{unit.function}({places}ptr addrspace(5) %first, ptr addrspace(5) %second) #0 {{
{body}
  ret i32 0
}}
declare {told.result} @{told.intrinsic}({told.filled(told.declared)})"""
