"""Stores past the caches, as functions in LLVM IR: TIR has no construct for them.

A cached store first reads the line. A vector that does not start at a multiple of its size (of a register's, if it takes two) is
stored through the caches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from roller.plugin import ELEMENT_BYTES

FENCE = "roller_store_fence"
REGISTER = 64  # bytes of the widest vector register
SIZES = (16, 32, 64, 128)  # bytes of the vectors that have such stores; the last one takes two registers
_TYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "float16": "half", "bfloat16": "float",  # TVM passes it before it is rounded
    "int8": "i8", "uint8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
}  # fmt: skip
_CONVERTED = ("float16", "bfloat16")
_OPAQUE = re.compile(r'(?:tail )?call (<\d+ x i32>) asm "", "=v,0"\(<\d+ x i32> (%[\w.]+)\)(?: #\d+)?')
# The nearest bfloat16, ties to even, as bits; a NaN stays one.
_ROUNDED = """%b = bitcast <{n} x float> %v to <{n} x i32>
  %s = lshr <{n} x i32> %b, splat (i32 16)
  %o = and <{n} x i32> %s, splat (i32 1)
  %t = add <{n} x i32> %b, splat (i32 32767)
  %u = add <{n} x i32> %t, %o
  %h = lshr <{n} x i32> %u, splat (i32 16)
  %c = fcmp uno <{n} x float> %v, zeroinitializer
  %e = select <{n} x i1> %c, <{n} x i32> splat (i32 32704), <{n} x i32> %h
  %n = trunc <{n} x i32> %e to <{n} x i16>"""


def function(dtype: str, lanes: int) -> str | None:
    """Returns the name of the function that stores a vector; None if there is none."""
    return f"roller_stream_{dtype}x{lanes}" if dtype in _TYPES and lanes * ELEMENT_BYTES[dtype] in _sizes(dtype) else None


def definitions(dtype: str) -> list[str]:
    """Returns the functions for vectors of a type, and the fence after them."""
    lines = ["!0 = !{i32 1}", "declare void @llvm.x86.sse.sfence()"]
    lines.append(f"define i32 @{FENCE}() alwaysinline nounwind {{\n  call void @llvm.x86.sse.sfence()\n  ret i32 0\n}}")
    return lines + [_store(dtype, size) for size in _sizes(dtype)]


def emulated(text: str) -> str:
    """Returns a module's IR without registers as wide as the chip's, which the processor that runs it may lack."""
    return _OPAQUE.sub(r"or \1 \2, zeroinitializer", text)


def _sizes(dtype: str) -> tuple[int, ...]:
    return tuple(size for size in SIZES if dtype not in _CONVERTED or size <= REGISTER)


def _store(dtype: str, size: int) -> str:
    lanes, aligned = size // ELEMENT_BYTES[dtype], min(size, REGISTER)
    given = stored = f"<{lanes} x {_TYPES[dtype]}>"
    name, steps = "%v", list[str]()
    if dtype == "bfloat16":
        steps.append(_ROUNDED.format(n=lanes))
        stored, name = f"<{lanes} x i16>", "%n"
    if dtype in _CONVERTED:  # in a register first: LLVM would convert and store in one instruction, through the caches
        words = f"<{size // 4} x i32>"
        steps += [f"%w = bitcast {stored} {name} to {words}", f'%r = call {words} asm "", "=v,0"({words} %w)']
        stored, name = words, "%r"
    steps += ["%place = ptrtoint ptr %p to i64", f"%low = and i64 %place, {aligned - 1}", "%aligned = icmp eq i64 %low, 0"]
    body = "\n  ".join([*steps, "br i1 %aligned, label %past, label %through"])
    return (
        f"define i32 @{function(dtype, lanes)}(ptr %p, {given} %v) alwaysinline nounwind {{\n  {body}\n"
        f"past:\n  store {stored} {name}, ptr %p, align {aligned}, !nontemporal !0\n  ret i32 0\n"
        f"through:\n  store {stored} {name}, ptr %p, align 1\n  ret i32 0\n}}"
    )
