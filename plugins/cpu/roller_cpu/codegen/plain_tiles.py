"""Tile instructions in plain LLVM IR, for machines that lack them: the tiles lie on the stack of the function that uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from roller_cpu.codegen.dot_products import HALVES, multiplied, parts, summed
from roller_cpu.codegen.tile_products import ROW_BYTES, ROWS, TILES

LANES = ROW_BYTES // 4
# Instruction → type of a sum, operands of a word, type of their products, and IR of {n} lanes that computes %r from the words
# %a and %b, and the sums %c.
_PRODUCTS: Mapping[str, tuple[str, int, str, str]] = {
    "tdpbf16ps": ("float", 2, "float", HALVES),
    "tdpfp16ps": ("float", 2, "float", multiplied("half", ("fpext", "fpext"), "float", "fmul") + summed(2, "float", "fadd")),
    "tdpbssd": ("i32", 4, "i32", multiplied("i8", ("sext", "sext")) + summed(4)),
}
_CALLED = re.compile(r"(?:tail )?call void @llvm\.x86\.(ldtilecfg|tilerelease|tilezero|tileloadd64|tilestored64|tdp\w+)\(")
_DECLARED = re.compile(r"^declare void @llvm\.x86\.(?:ldtile|tile|tdp).*\n", re.MULTILINE)
_FUNCTION = re.compile(r"^(define [^\n]*\{\n(?:[\w.\"-]+:[^\n]*\n)?)(.*?^\})", re.MULTILINE | re.DOTALL)
_STATE = f"[{ROW_BYTES + TILES * ROWS * ROW_BYTES} x i8]"  # the configuration as in memory, and the tiles
_FMA = f"declare <{LANES} x float> @llvm.fma.v{LANES}f32(<{LANES} x float>, <{LANES} x float>, <{LANES} x float>)"


def emulated(text: str) -> str:
    """Returns a module's IR with plain IR instead of its tile instructions."""
    used = sorted({found.group(1) for found in _CALLED.finditer(text)})
    if not used:
        return text
    text = _FUNCTION.sub(_on_stack, _DECLARED.sub("", text))
    more = [_FMA] if "tdpbf16ps" in used and f"@llvm.fma.v{LANES}f32(" not in text else []
    return "\n".join([text, *(line for name in used for line in _function(name)), *more, ""])


def _on_stack(function: re.Match[str]) -> str:
    start, body = function.groups()
    if not _CALLED.search(body):
        return function.group()
    body = _CALLED.sub(lambda found: f"call void @{_name(found.group(1))}(ptr %tiles, ", body).replace(
        "(ptr %tiles, )", "(ptr %tiles)"
    )
    return f"{start}  %tiles = alloca {_STATE}, align {ROW_BYTES}\n{body}"


def _name(instruction: str) -> str:
    return f"roller_plain_{instruction}"


def _function(instruction: str) -> Iterator[str]:
    """Yields the function of an instruction; its first argument is the state."""
    start = f"define internal void @{_name(instruction)}(ptr %state"
    if instruction == "tilerelease":
        yield f"{start}) {{\n  ret void\n}}"
    elif instruction == "ldtilecfg":
        yield f"{start}, ptr %shapes) {{\n  %v = load <{ROW_BYTES} x i8>, ptr %shapes, align 1"
        yield f"  store <{ROW_BYTES} x i8> %v, ptr %state, align 1\n  ret void\n}}"
    elif instruction == "tilezero":
        yield f"{start}, i8 %t) {{"
        yield from (*_tile("t"), f"  store [{ROWS * ROW_BYTES} x i8] zeroinitializer, ptr %at.t, align 1\n  ret void\n}}")
    elif instruction in ("tileloadd64", "tilestored64"):
        yield f"{start}, i8 %t, ptr %p, i64 %s) {{"
        source, target = ("%there", "%here") if instruction == "tileloadd64" else ("%here", "%there")
        yield from _loops([*_tile("t"), *_shape("t")], _MOVED.format(source=source, target=target))
    else:
        kind, per_word, products, plain = _PRODUCTS[instruction]
        body = plain.format(n=LANES, m=LANES * per_word, parts=parts(LANES, per_word, products))
        yield f"{start}, i8 %c.t, i8 %a.t, i8 %b.t) {{"
        setup = [*_tile("c.t"), *_tile("a.t"), *_tile("b.t"), *_shape("a.t")]
        yield from _loops(
            setup, _OPERANDS.format(n=LANES, kind=kind) + body + f"  store <{LANES} x {kind}> %r, ptr %row.c, align 1"
        )


# Row %i and word %j of a tile, in its register and in memory.
_MOVED = f"""  %row = mul i64 %i, {ROW_BYTES}
  %word = mul i64 %j, 4
  %inside = add i64 %row, %word
  %here = getelementptr i8, ptr %at.t, i64 %inside
  %further = mul i64 %i, %s
  %outside = add i64 %further, %word
  %there = getelementptr i8, ptr %p, i64 %outside
  %v = load i32, ptr {{source}}, align 1
  store i32 %v, ptr {{target}}, align 1"""
# Word %j of row %i for all lanes, row %j of the other operand, and row %i of the sums.
_OPERANDS = f"""  %row = mul i64 %i, {ROW_BYTES}
  %word = mul i64 %j, 4
  %inside = add i64 %row, %word
  %one = getelementptr i8, ptr %at.a.t, i64 %inside
  %a0 = load i32, ptr %one, align 1
  %a1 = insertelement <{{n}} x i32> poison, i32 %a0, i32 0
  %a = shufflevector <{{n}} x i32> %a1, <{{n}} x i32> poison, <{{n}} x i32> zeroinitializer
  %other = mul i64 %j, {ROW_BYTES}
  %row.b = getelementptr i8, ptr %at.b.t, i64 %other
  %b = load <{{n}} x i32>, ptr %row.b, align 1
  %row.c = getelementptr i8, ptr %at.c.t, i64 %row
  %c = load <{{n}} x {{kind}}>, ptr %row.c, align 1
"""


def _tile(number: str) -> list[str]:
    """Returns the IR that finds a tile from its number."""
    return [
        f"  %n.{number} = zext i8 %{number} to i64",
        f"  %size.{number} = mul i64 %n.{number}, {ROWS * ROW_BYTES}",
        f"  %from.{number} = add i64 %size.{number}, {ROW_BYTES}",
        f"  %at.{number} = getelementptr i8, ptr %state, i64 %from.{number}",
    ]


def _shape(number: str) -> list[str]:
    """Returns the IR that reads a tile's rows and the words of a row from the configuration."""
    return [
        f"  %rows.0 = add i64 %n.{number}, 48",
        "  %rows.1 = getelementptr i8, ptr %state, i64 %rows.0",
        "  %rows.2 = load i8, ptr %rows.1, align 1",
        "  %rows = zext i8 %rows.2 to i64",
        f"  %words.0 = mul i64 %n.{number}, 2",
        "  %words.1 = add i64 %words.0, 16",
        "  %words.2 = getelementptr i8, ptr %state, i64 %words.1",
        "  %words.3 = load i16, ptr %words.2, align 1",
        "  %words.4 = lshr i16 %words.3, 2",
        "  %words = zext i16 %words.4 to i64",
    ]


def _loops(setup: Sequence[str], body: str) -> Iterator[str]:
    """Yields the rest of a function: a body for each row %i and word %j."""
    yield "start:"
    yield from setup
    yield "  br label %rows.next\nrows.next:\n  %i = phi i64 [ 0, %start ], [ %i1, %row.end ]"
    yield "  %more = icmp ult i64 %i, %rows\n  br i1 %more, label %words.next, label %end"
    yield "words.next:\n  %j = phi i64 [ 0, %rows.next ], [ %j1, %body ]"
    yield "  %further.words = icmp ult i64 %j, %words\n  br i1 %further.words, label %body, label %row.end\nbody:"
    yield body
    yield "  %j1 = add i64 %j, 1\n  br label %words.next\nrow.end:\n  %i1 = add i64 %i, 1\n  br label %rows.next"
    yield "end:\n  ret void\n}"
