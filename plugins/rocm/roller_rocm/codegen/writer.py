"""LLVM IR functions written as Python expressions: each operation adds a line and returns the value that the line names."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

TAGS: Mapping[str, str] = {"double": "f64", "float": "f32", "i64": "i64", "i32": "i32"}
Number = float | int


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a function: an LLVM type, and its name in the text. Numbers beside one are of its type."""

    writer: Writer
    kind: str
    text: str

    def __add__(self, other: Value | Number) -> Value:
        return self._with("fadd" if self.kind in ("double", "float") else "add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self._with("fsub" if self.kind in ("double", "float") else "sub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self._with("fmul" if self.kind in ("double", "float") else "mul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self._with("fdiv", other)

    def __and__(self, other: Value | Number) -> Value:
        return self._with("and", other)

    def __or__(self, other: Value | Number) -> Value:
        return self._with("or", other)

    def __xor__(self, other: Value | Number) -> Value:
        return self._with("xor", other)

    def __lshift__(self, other: Value | Number) -> Value:
        return self._with("shl", other)

    def __rshift__(self, other: Value | Number) -> Value:
        return self._with("lshr", other)

    def __neg__(self) -> Value:
        return self.writer.line(self.kind, f"fneg {self.kind} {self.text}")

    def __lt__(self, other: Value | Number) -> Value:
        return self.compared("olt", other)

    def __gt__(self, other: Value | Number) -> Value:
        return self.compared("ogt", other)

    def __ge__(self, other: Value | Number) -> Value:
        return self.compared("oge", other)

    def compared(self, how: str, other: Value | Number) -> Value:
        """Returns a boolean: floats compare by LLVM's ordered or unordered predicates, integers by its signed ones."""
        word = "fcmp" if self.kind in ("double", "float") else "icmp"
        return self.writer.line("i1", f"{word} {how} {self.kind} {self.text}, {self._like(other)}")

    def _with(self, operation: str, other: Value | Number) -> Value:
        return self.writer.line(self.kind, f"{operation} {self.kind} {self.text}, {self._like(other)}")

    def _like(self, other: Value | Number) -> str:
        return other.text if isinstance(other, Value) else spelled(self.kind, other)


def spelled(kind: str, number: Number) -> str:
    """Returns a constant in LLVM's syntax: for floats the bits of the equal double, so that none are lost."""
    if kind not in ("double", "float"):
        return str(int(number))
    if kind == "float":
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


@dataclass
class Writer:
    """The lines of a function's body, and the intrinsics that it calls."""

    lines: list[str] = field(default_factory=list)
    declared: dict[str, None] = field(default_factory=dict)
    block: str = "entry"

    def only(self, condition: Value, compute: Callable[[], Value], otherwise: Value) -> Value:
        """Returns a value computed behind a branch, where a condition holds.

        Code that occurs many times in a kernel needs branches: within one block LLVM mixes all copies, and takes registers and time
        for all of them at once.
        """
        before, number = self.block, len(self.lines)
        self.lines += [f"  br i1 {condition.text}, label %where{number}, label %after{number}", f"where{number}:"]
        self.block = f"where{number}"
        value = compute()
        self.lines += [f"  br label %after{number}", f"after{number}:"]
        last, self.block = self.block, f"after{number}"
        return self.line(value.kind, f"phi {value.kind} [ {otherwise.text}, %{before} ], [ {value.text}, %{last} ]")

    def line(self, kind: str, text: str) -> Value:
        """Adds a line and returns its value."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return Value(self, kind, name)

    def call(self, name: str, kind: str, *arguments: Value) -> Value:
        """Returns the result of an intrinsic, named without `llvm.`."""
        self.declared[f"declare {kind} @llvm.{name}({', '.join(a.kind for a in arguments)})"] = None
        return self.line(kind, f"call {kind} @llvm.{name}({', '.join(f'{a.kind} {a.text}' for a in arguments)})")

    def constant(self, kind: str, number: Number) -> Value:
        """Returns a constant as a value."""
        return Value(self, kind, spelled(kind, number))

    def cast(self, operation: str, value: Value, kind: str) -> Value:
        """Returns a conversion: `bitcast`, `trunc`, `fpext` and similar."""
        return self.line(kind, f"{operation} {value.kind} {value.text} to {kind}")

    def select(self, condition: Value, yes: Value | Number, no: Value | Number) -> Value:
        """Returns one of two values, at least one of which is a `Value`."""
        kind = yes.kind if isinstance(yes, Value) else no.kind if isinstance(no, Value) else "double"
        sides = [side.text if isinstance(side, Value) else spelled(kind, side) for side in (yes, no)]
        return self.line(kind, f"select i1 {condition.text}, {kind} {sides[0]}, {kind} {sides[1]}")

    def fma(self, a: Value, b: Value | Number, c: Value | Number) -> Value:
        """Returns a·b + c, rounded once."""
        sides = [side if isinstance(side, Value) else self.constant(a.kind, side) for side in (b, c)]
        return self.call(f"fma.{TAGS[a.kind]}", a.kind, a, *sides)

    def rint(self, x: Value) -> Value:
        """Returns the nearest integer, ties to even."""
        return self.call(f"rint.{TAGS[x.kind]}", x.kind, x)

    def abs(self, x: Value) -> Value:
        """Returns the value without its sign."""
        return self.call(f"fabs.{TAGS[x.kind]}", x.kind, x)

    def signed(self, x: Value, sign: Value) -> Value:
        """Returns a value with the sign of another one."""
        return self.call(f"copysign.{TAGS[x.kind]}", x.kind, x, sign)

    def whole(self, x: Value) -> Value:
        """Returns a float truncated to i32; unspecified beyond its range and for a NaN."""
        return self.cast("fptosi", x, "i32")

    def scaled(self, x: Value, power: Value) -> Value:
        """Returns x·2^power, `power` of i32; rounded once where the result is subnormal."""
        return self.call(f"ldexp.{TAGS[x.kind]}.i32", x.kind, x, power)

    def apart(self, x: Value) -> tuple[Value, Value]:
        """Returns a fraction from 0.5 up to 1 and its power of two, of subnormals too; unspecified for non-finite values."""
        both = self.call(f"frexp.{TAGS[x.kind]}.i32", f"{{ {x.kind}, i32 }}", x)
        return self.line(x.kind, f"extractvalue {both.kind} {both.text}, 0"), self.line(
            "i32", f"extractvalue {both.kind} {both.text}, 1"
        )

    def kept(self, x: Value) -> Value:
        """Returns the rounded value behind a fence, so that the compiler does not fuse its multiplication with an addition."""
        return self.call(f"arithmetic.fence.{TAGS[x.kind]}", x.kind, x)

    def horner(self, terms: Sequence[float], x: Value) -> Value:
        """Returns a polynomial, from its highest term to its constant one."""
        result = self.constant(x.kind, terms[0])
        for term in terms[1:]:
            result = self.fma(result, x, term)
        return result


def function(name: str, kinds: Sequence[str], body: Callable[..., Value]) -> tuple[str, dict[str, None]]:
    """Returns the text of a pure, always inlined function, and the declarations that it needs."""
    writer = Writer()
    arguments = [Value(writer, kind, f"%x{n}") for n, kind in enumerate(kinds)]
    result = body(writer, *arguments)
    taken = ", ".join(f"{a.kind} {a.text}" for a in arguments)
    head = f"define linkonce_odr hidden {result.kind} @{name}({taken}) alwaysinline nounwind willreturn memory(none) {{"
    return "\n".join([head, "entry:", *writer.lines, f"  ret {result.kind} {result.text}", "}\n"]), writer.declared


def module(functions: Mapping[str, tuple[Sequence[str], Callable[..., Value]]]) -> str:
    """Returns the text of some functions by name, each with the types of its arguments and its body."""
    written = [function(name, kinds, body) for name, (kinds, body) in functions.items()]
    declared = dict.fromkeys(line for _, needed in written for line in needed)
    return "\n".join([*(text for text, _ in written), *declared, ""])
