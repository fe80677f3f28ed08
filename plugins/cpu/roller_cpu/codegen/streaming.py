"""Stores past the caches, as functions in LLVM IR: TIR has no construct for them.

A cached store first reads the line. A vector that does not lie at a multiple of its size is stored through the caches.
"""

from __future__ import annotations

from collections.abc import Mapping

from roller.plugin import ELEMENT_BYTES

FENCE = "roller_store_fence"
REGISTER = 64  # bytes of the widest vector register
SIZES = (16, 32, 64, 128)  # bytes of vectors that are stored so; the last one as two registers
_TYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "float16": "half", "bfloat16": "float",  # TVM passes it in a float's upper half
    "int8": "i8", "uint8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
}  # fmt: skip
_CONVERTED = ("float16", "bfloat16")


def function(dtype: str, lanes: int) -> str | None:
    """Returns the name of the function that stores a vector; None if there is none."""
    return f"roller_stream_{dtype}x{lanes}" if lanes * ELEMENT_BYTES[dtype] in _sizes(dtype) else None


def definitions(dtype: str) -> list[str]:
    """Returns the functions for vectors of a type, and the fence after them."""
    lines = ["!0 = !{i32 1}", "declare void @llvm.x86.sse.sfence()"]
    lines.append(f"define i32 @{FENCE}() alwaysinline nounwind {{\n  call void @llvm.x86.sse.sfence()\n  ret i32 0\n}}")
    return lines + [_store(dtype, size) for size in _sizes(dtype)]


def _sizes(dtype: str) -> tuple[int, ...]:
    return tuple(size for size in SIZES if dtype not in _CONVERTED or size <= REGISTER)


def _store(dtype: str, size: int) -> str:
    lanes, aligned = size // ELEMENT_BYTES[dtype], min(size, REGISTER)
    given = stored = f"<{lanes} x {_TYPES[dtype]}>"
    name, steps = "%v", []
    if dtype == "bfloat16":
        wide, narrow, half = f"<{lanes} x i32>", f"<{lanes} x i16>", ", ".join(["i32 16"] * lanes)
        steps += [f"%b = bitcast {given} %v to {wide}", f"%h = lshr {wide} %b, <{half}>", f"%n = trunc {wide} %h to {narrow}"]
        stored, name = narrow, "%n"
    if dtype in _CONVERTED:  # in a register first: LLVM would convert and store in one instruction, through the caches
        words = f"<{size // 4} x i32>"
        steps += [f"%w = bitcast {stored} {name} to {words}", f'%r = call {words} asm "", "=v,0"({words} %w)']
        stored, name = words, "%r"
    body = [
        *steps,
        "%place = ptrtoint ptr %p to i64",
        f"%low = and i64 %place, {aligned - 1}",
        "%aligned = icmp eq i64 %low, 0",
        "br i1 %aligned, label %past, label %through",
    ]
    past, through = f"store {stored} {name}, ptr %p, align {aligned}, !nontemporal !0", f"store {stored} {name}, ptr %p, align 1"
    return (
        f"define i32 @{function(dtype, lanes)}(ptr %p, {given} %v) alwaysinline nounwind {{\n  "
        + "\n  ".join(body)
        + f"\npast:\n  {past}\n  ret i32 0\nthrough:\n  {through}\n  ret i32 0\n}}"
    )
