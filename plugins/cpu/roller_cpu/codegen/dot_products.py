"""Dot-product instructions of x86: what an atom's name stands for, as LLVM's intrinsic and in plain LLVM IR.

    vpdpbusd    AVX512-VNNI, AVX-VNNI: int32 += sum of four products of a uint8, along n, and an int8
    vpdpwssd    the same sets: int32 += sum of two products of int16
    vpmaddwd    AVX2, AVX512-BW: sum of two products of int16, added by another instruction
    vdpbf16ps   AVX512-BF16: float32 += two products of bfloat16, subnormal numbers being zero

The kernel calls a function for each number of lanes, which widens narrow vectors to a whole instruction, whatever the further lanes
hold. The plain form has the same meaning on any machine; it is what emulation runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvm import tirx

from roller.lowering.tir.builder import Expr, vector_type
from roller.plugin import ComputeAtom

WIDTHS = (128, 256, 512)


@dataclass(frozen=True, slots=True)
class Unit:
    """An instruction: its intrinsic by the bits of a vector, the types of accumulator and operands, and its plain form.

    `operand`: the type of an operand vector's elements; i32 stands for whole words. `per_word`: the operands of a word. `plain`: IR
    of {n} lanes that computes %r from the words %a and %b, and from the accumulator %c if the instruction `adds` to it.
    """

    intrinsics: Mapping[int, str]
    accumulator: str
    operand: str
    per_word: int
    plain: str
    adds: bool = True

    def given(self, lanes: int, plain: bool = False) -> str:
        """Returns the LLVM type of an operand; `plain`: one that every processor can pass on."""
        kind = "i16" if plain and self.operand == "bfloat" else self.operand
        return f"<{lanes if kind == 'i32' else lanes * self.per_word} x {kind}>"

    def held(self, lanes: int) -> str:
        """Returns the LLVM type of an accumulator."""
        return f"<{lanes} x {self.accumulator}>"

    def signature(self, lanes: int, name: str, names: tuple[str, str, str] = ("", "", ""), plain: bool = False) -> str:
        """Returns result, name and arguments as in a declaration; with names as in a definition or a call."""
        held, given = self.held(lanes), self.given(lanes, plain)
        arguments = [f"{held}{names[0]}"] if self.adds else []
        return f"{held} {name}({', '.join([*arguments, f'{given}{names[1]}', f'{given}{names[2]}'])})"


def _named(start: str) -> Mapping[int, str]:
    return {bits: f"@{start}.{bits}" for bits in WIDTHS}


def multiplied(operand: str, widened: tuple[str, str], product: str = "i32", operation: str = "mul") -> str:
    """Returns the IR that takes apart the operands of the words %a and %b, and multiplies them; to be formatted as `Unit.plain`.

    `widened`: how each of the two becomes as wide as the product.
    """
    lines = [f"%b{n} = bitcast <{{n}} x i32> %{word} to <{{m}} x {operand}>" for n, word in enumerate("ab")]
    lines += [f"%w{n} = {how} <{{m}} x {operand}> %b{n} to <{{m}} x {product}>" for n, how in enumerate(widened)]
    lines.append(f"%p = {operation} <{{m}} x {product}> %w0, %w1")
    return "".join(f"  {line}\n" for line in lines) + "{parts}\n"


def summed(per_word: int, kind: str = "i32", operation: str = "add") -> str:
    """Returns the IR that adds the products of a word to %c, one after another."""
    names = ["%c", *(f"%s{n}" for n in range(per_word - 1)), "%r"]
    return "".join(f"  {names[n + 1]} = {operation} <{{n}} x {kind}> {names[n]}, %q{n}\n" for n in range(per_word))


HALVES = """  %h0 = and <{n} x i32> %a, splat (i32 -65536)
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
_PAIRS = multiplied("i16", ("sext", "sext"))
_MADD = {128: "@llvm.x86.sse2.pmadd.wd", 256: "@llvm.x86.avx2.pmadd.wd", 512: "@llvm.x86.avx512.pmaddw.d.512"}
UNITS: Mapping[str, Unit] = {
    "vpdpbusd": Unit(_named("llvm.x86.avx512.vpdpbusd"), "i32", "i32", 4, multiplied("i8", ("zext", "sext")) + summed(4)),
    "vpdpwssd": Unit(_named("llvm.x86.avx512.vpdpwssd"), "i32", "i32", 2, _PAIRS + summed(2)),
    "vpmaddwd": Unit(_MADD, "i32", "i16", 2, _PAIRS + "  %r = add <{n} x i32> %q0, %q1\n", adds=False),
    "vdpbf16ps": Unit(_named("llvm.x86.avx512bf16.dpbf16ps"), "float", "bfloat", 2, HALVES),
}


def unit_of(name: str) -> Unit:
    """Returns the instruction of an atom: its name up to the width in bits, as in vpdpbusd_512."""
    return UNITS[name.partition("_")[0]]


def dot(atom: ComputeAtom, lanes: int, accumulator: Expr, broadcast: Expr, vector: Expr) -> Expr:
    """Returns the accumulator plus the products of two vectors' words."""
    return tirx.call_pure_extern(vector_type(atom.acc_dtype, lanes), function(atom, lanes), accumulator, broadcast, vector)


def function(atom: ComputeAtom, lanes: int) -> str:
    """Returns the name of the function that adds the products of so many lanes."""
    return f"roller_{atom.name}_x{lanes}"


def definitions(atom: ComputeAtom) -> list[str]:
    """Returns the LLVM IR of an atom's functions, for each number of lanes that a vector of it may have."""
    unit, width = unit_of(atom.name), atom.extents["n"]
    assert isinstance(width, int)
    bits = [b for b in WIDTHS if b <= 32 * width]
    declared = [f"declare {unit.signature(b // 32, unit.intrinsics[b])}" for b in bits]
    return [*declared, *(line for lanes in range(1, width + 1) for line in _function(atom, unit, lanes, bits))]


def added(unit: Unit, lanes: int, accumulator: str, a: str, b: str, result: str) -> Iterator[str]:
    """Yields the IR that adds the products of words to an accumulator; all of them are names of values."""
    if unit.operand != "i32":
        for name in (a, b):
            yield f"  {result}.{name[1:]} = bitcast <{lanes} x i32> {name} to {unit.given(lanes)}"
        a, b = f"{result}.{a[1:]}", f"{result}.{b[1:]}"
    call = f"call {unit.signature(lanes, unit.intrinsics[32 * lanes], (f' {accumulator}', f' {a}', f' {b}'))}"
    if unit.adds:
        yield f"  {result} = {call}"
    else:
        yield f"  {result}.products = {call}"
        yield f"  {result} = add {unit.held(lanes)} {accumulator}, {result}.products"


def _function(atom: ComputeAtom, unit: Unit, lanes: int, bits: list[int]) -> Iterator[str]:
    wide = next(b for b in bits if b >= 32 * lanes) // 32
    scalar = lanes == 1
    held, word = (kind if scalar else f"<{lanes} x {kind}>" for kind in (unit.accumulator, "i32"))
    yield f"define linkonce_odr {held} @{function(atom, lanes)}({held} %c0, {word} %a0, {word} %b0) alwaysinline nounwind {{"
    for name, kind in (("c", unit.accumulator), ("a", "i32"), ("b", "i32")):
        if scalar:
            yield f"  %{name} = insertelement <{wide} x {kind}> poison, {kind} %{name}0, i32 0"
        elif wide == lanes:
            yield f"  %{name} = bitcast <{lanes} x {kind}> %{name}0 to <{lanes} x {kind}>"
        else:
            given, places = f"<{lanes} x {kind}>", ", ".join(f"i32 {n if n < lanes else 'poison'}" for n in range(wide))
            yield f"  %{name} = shufflevector {given} %{name}0, {given} poison, <{wide} x i32> <{places}>"
    yield from added(unit, wide, "%c", "%b", "%a", "%r")  # an instruction takes unsigned operands first: those along n
    result = unit.held(wide)
    if scalar:
        yield f"  %r0 = extractelement {result} %r, i32 0"
    else:
        kept = ", ".join(f"i32 {n}" for n in range(lanes))
        yield f"  %r0 = shufflevector {result} %r, {result} poison, <{lanes} x i32> <{kept}>"
    yield f"  ret {held} %r0\n}}"


# --- emulation --------------------------------------------------------------------------------------------------------


def emulated(text: str) -> str:
    """Returns a module's IR with its dot products in plain IR, which any machine can run."""
    lines: list[str] = []
    for number, unit in enumerate(UNITS.values()):
        for bits, name in unit.intrinsics.items():
            if f"{name}(" not in text:
                continue
            text = "\n".join(line for line in text.split("\n") if not (line.startswith("declare") and f"{name}(" in line))
            plain = f"@roller_products_{number}_of_{bits}"
            text = text.replace(f"{name}(", f"{plain}(")
            lines += _plain(unit, bits // 32, plain)
            # Only dot products have vectors of this type: TVM computes with float32. Not every processor can pass them on.
            text = text.replace(" x bfloat>", " x i16>")
    return text + "\n" + "\n".join(lines) + "\n" if lines else text


def _plain(unit: Unit, lanes: int, name: str) -> Iterator[str]:
    whole = unit.operand == "i32"
    yield f"define internal {unit.signature(lanes, name, (' %c', *((' %a', ' %b') if whole else (' %a1', ' %b1'))), True)} {{"
    for one in () if whole else ("a", "b"):
        yield f"  %{one} = bitcast {unit.given(lanes, True)} %{one}1 to <{lanes} x i32>"
    count = lanes * unit.per_word
    yield unit.plain.format(n=lanes, m=count, parts=parts(lanes, unit.per_word)) + f"  ret {unit.held(lanes)} %r\n}}"
    if "@llvm.fma" in unit.plain:
        yield f"declare <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float>, <{lanes} x float>, <{lanes} x float>)"


def parts(lanes: int, per_word: int, kind: str = "i32") -> str:
    """Returns the IR that takes the products %p of all operands apart: %q0 has the first one of each word, and so on."""
    count, found = lanes * per_word, []
    for n in range(per_word):
        places = ", ".join(f"i32 {n + per_word * lane}" for lane in range(lanes))
        found.append(
            f"  %q{n} = shufflevector <{count} x {kind}> %p, <{count} x {kind}> zeroinitializer, <{lanes} x i32> <{places}>"
        )
    return "\n".join(found)
