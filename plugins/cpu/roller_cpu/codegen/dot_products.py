"""Dot-product instructions of x86: what an atom's name stands for, as LLVM's intrinsic and in plain LLVM IR.

    vpdpbusd    AVX512-VNNI, AVX-VNNI: int32 += sum of four products of a uint8 and an int8; signed operands are shifted by 128
    vdpbf16ps   AVX512-BF16: float32 += two products of bfloat16, subnormal numbers being zero

The kernel calls a function for each number of lanes, which widens narrow vectors to a whole instruction. The plain form has the
same meaning on any machine; it is what emulation runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvm import tirx

from roller.lowering.tir.builder import Expr, vector_type
from roller.plugin import ComputeAtom

UNSIGNED = -0x7F7F7F80  # 0x80808080 as a signed word: adds 128 to each of its four bytes


@dataclass(frozen=True, slots=True)
class Unit:
    """An instruction: its intrinsic for a vector of so many bits, the types of accumulator and operands, and its plain form."""

    intrinsic: str
    accumulator: str
    operand: str
    per_word: int
    plain: str  # of {n} lanes


_BYTES = """  %b0 = bitcast <{n} x i32> %a to <{m} x i8>
  %b1 = bitcast <{n} x i32> %b to <{m} x i8>
  %w0 = zext <{m} x i8> %b0 to <{m} x i32>
  %w1 = sext <{m} x i8> %b1 to <{m} x i32>
  %p = mul <{m} x i32> %w0, %w1
{parts}
  %s0 = add <{n} x i32> %q0, %q1
  %s1 = add <{n} x i32> %q2, %q3
  %s2 = add <{n} x i32> %s0, %s1
  %r = add <{n} x i32> %c, %s2
"""
_HALVES = """  %h0 = and <{n} x i32> %a, splat (i32 -65536)
  %h1 = and <{n} x i32> %b, splat (i32 -65536)
  %l0 = shl <{n} x i32> %a, splat (i32 16)
  %l1 = shl <{n} x i32> %b, splat (i32 16)
  %f0 = bitcast <{n} x i32> %h0 to <{n} x float>
  %f1 = bitcast <{n} x i32> %h1 to <{n} x float>
  %g0 = bitcast <{n} x i32> %l0 to <{n} x float>
  %g1 = bitcast <{n} x i32> %l1 to <{n} x float>
  %t = call <{n} x float> @llvm.fma.v{n}f32(<{n} x float> %f0, <{n} x float> %f1, <{n} x float> %c)
  %r = call <{n} x float> @llvm.fma.v{n}f32(<{n} x float> %g0, <{n} x float> %g1, <{n} x float> %t)
"""
UNITS: Mapping[str, Unit] = {
    "vpdpbusd": Unit("llvm.x86.avx512.vpdpbusd", "i32", "i32", 4, _BYTES),
    "vdpbf16ps": Unit("llvm.x86.avx512bf16.dpbf16ps", "float", "bfloat", 2, _HALVES),
}
OPAQUE = '"", "=v,0"'
_OPAQUE_CONSTANT = re.compile(r'(?:tail )?call (<\d+ x i32>) asm "", "=v,0"\(<\d+ x i32> (splat \(i32 -?\d+\))\)(?: #\d+)?')
WIDTHS = (128, 256, 512)


def unit_of(atom: ComputeAtom) -> Unit:
    """Returns the instruction of an atom: its name up to the width in bits, as in vpdpbusd_512."""
    return UNITS[atom.name.partition("_")[0]]


def types(name: str) -> tuple[str, str, str]:
    """Returns the LLVM types of accumulator and operands of an atom, and its intrinsic."""
    instruction, _, bits = name.partition("_")
    unit, lanes = UNITS[instruction], int(bits) // 32
    each = lanes * unit.per_word if unit.operand == "bfloat" else lanes
    return f"<{lanes} x {unit.accumulator}>", f"<{each} x {unit.operand}>", f"@{unit.intrinsic}.{bits}"


def dot(atom: ComputeAtom, lanes: int, accumulator: Expr, broadcast: Expr, vector: Expr) -> Expr:
    """Returns the accumulator plus the products of two vectors' words."""
    return tirx.call_pure_extern(vector_type(atom.acc_dtype, lanes), function(atom, lanes), accumulator, broadcast, vector)


def function(atom: ComputeAtom, lanes: int) -> str:
    """Returns the name of the function that adds the products of so many lanes."""
    return f"roller_{atom.name}_x{lanes}"


def definitions(atom: ComputeAtom) -> list[str]:
    """Returns the LLVM IR of an atom's functions, for each number of lanes that a vector of it may have."""
    unit, width = unit_of(atom), atom.extents["n"]
    assert isinstance(width, int)
    bits = [b for b in WIDTHS if b <= 32 * width]
    declared = [f"declare {_signature(unit, b // 32, f'@{unit.intrinsic}.{b}', unit.operand)}" for b in bits]
    return [*declared, *(line for lanes in range(1, width + 1) for line in _function(atom, unit, lanes, bits))]


def _signature(unit: Unit, lanes: int, name: str, operand: str, names: tuple[str, str, str] = ("", "", "")) -> str:
    each = lanes * unit.per_word if operand == "bfloat" else lanes
    held, given = f"<{lanes} x {unit.accumulator}>", f"<{each} x {operand}>"
    return f"{held} {name}({held}{names[0]}, {given}{names[1]}, {given}{names[2]})"


def _function(atom: ComputeAtom, unit: Unit, lanes: int, bits: list[int]) -> Iterator[str]:
    wide = next(b for b in bits if b >= 32 * lanes) // 32
    scalar = lanes == 1
    held, word = (kind if scalar else f"<{lanes} x {kind}>" for kind in (unit.accumulator, "i32"))
    yield f"define linkonce_odr {held} @{function(atom, lanes)}({held} %c0, {word} %a0, {word} %b0) alwaysinline nounwind {{"
    for name, kind in (("c", unit.accumulator), ("a", "i32"), ("b", "i32")):
        if scalar:
            yield f"  %{name} = insertelement <{wide} x {kind}> zeroinitializer, {kind} %{name}0, i32 0"
        elif wide == lanes:
            yield f"  %{name} = bitcast <{lanes} x {kind}> %{name}0 to <{lanes} x {kind}>"
        else:
            given, places = f"<{lanes} x {kind}>", ", ".join(f"i32 {n if n < lanes else lanes}" for n in range(wide))
            yield f"  %{name} = shufflevector {given} %{name}0, {given} zeroinitializer, <{wide} x i32> <{places}>"
    operands = ("%a", "%b")
    if atom.compensated:
        # Behind an empty instruction the constant is a register: LLVM would move the operation in front of a broadcast otherwise,
        # and its code generator would then not end.
        yield f"  %k = call <{wide} x i32> asm {OPAQUE}(<{wide} x i32> splat (i32 {UNSIGNED})) nounwind memory(none)"
        yield f"  %u = xor <{wide} x i32> %a, %k"
        operands = ("%u", "%b")
    if unit.operand != "i32":
        many = f"<{wide * unit.per_word} x {unit.operand}>"
        yield f"  %a1 = bitcast <{wide} x i32> %a to {many}"
        yield f"  %b1 = bitcast <{wide} x i32> %b to {many}"
        operands = ("%a1", "%b1")
    call = _signature(unit, wide, f"@{unit.intrinsic}.{32 * wide}", unit.operand, (" %c", f" {operands[0]}", f" {operands[1]}"))
    yield f"  %r = call {call}"
    result = f"<{wide} x {unit.accumulator}>"
    if scalar:
        yield f"  %r0 = extractelement {result} %r, i32 0"
    else:
        kept = ", ".join(f"i32 {n}" for n in range(lanes))
        yield f"  %r0 = shufflevector {result} %r, {result} zeroinitializer, <{lanes} x i32> <{kept}>"
    yield f"  ret {held} %r0\n}}"


def emulated(text: str) -> str:
    """Returns a module's IR with its dot products in plain IR, which any machine can run."""
    text, lines = _OPAQUE_CONSTANT.sub(r"or \1 \2, zeroinitializer", text), list[str]()
    for unit in UNITS.values():
        for bits in WIDTHS:
            name = f"@{unit.intrinsic}.{bits}"
            if f"{name}(" not in text:
                continue
            text = "\n".join(line for line in text.split("\n") if not (line.startswith("declare") and f"{name}(" in line))
            plain = f"@roller_products_of_{unit.operand}_{bits}"
            text = text.replace(f"{name}(", f"{plain}(")
            lines += _plain(unit, bits // 32, plain)
            # Only dot products have vectors of this type: TVM computes with float32. Not every processor can pass them on.
            text = text.replace(" x bfloat>", " x i16>")
    return text + "\n" + "\n".join(lines) + "\n" if lines else text


def _plain(unit: Unit, lanes: int, name: str) -> Iterator[str]:
    names = (" %c", " %a", " %b") if unit.operand == "i32" else (" %c", " %a1", " %b1")
    signature = _signature(unit, lanes, name, unit.operand, names).replace(" x bfloat>", " x i16>")
    yield f"define internal {signature} alwaysinline nounwind {{"
    if unit.operand != "i32":
        many = f"<{lanes * unit.per_word} x i16>"
        yield f"  %a = bitcast {many} %a1 to <{lanes} x i32>"
        yield f"  %b = bitcast {many} %b1 to <{lanes} x i32>"
    count = lanes * unit.per_word
    parts = []
    for n in range(unit.per_word):
        places = ", ".join(f"i32 {n + unit.per_word * lane}" for lane in range(lanes))
        parts.append(f"  %q{n} = shufflevector <{count} x i32> %p, <{count} x i32> zeroinitializer, <{lanes} x i32> <{places}>")
    yield unit.plain.format(n=lanes, m=count, parts="\n".join(parts)) + f"  ret <{lanes} x {unit.accumulator}> %r\n}}"
    if "@llvm.fma" in unit.plain:
        yield f"declare <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float>, <{lanes} x float>, <{lanes} x float>)"
