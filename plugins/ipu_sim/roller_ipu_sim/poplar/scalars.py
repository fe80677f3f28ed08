"""Scalar trees of a manifest as C++: one expression, with common subexpressions in statements before it.

Float arithmetic happens in the operands' type; elementary functions in `Exact`, rounded once. `float16` is Poplar's `half`. Poplar
has no `bfloat16`: it is stored as `unsigned short`, and a class of its own computes with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller.plugin import CodegenError
from roller_ipu_sim.manifest.models import Number, number, operands

__all__ = ["ELEMENT_TYPES", "FLOATS", "STORED_TYPES", "Printer", "combined", "constant", "converted", "helpers", "identity"]

Node = tuple[Any, ...]

FLOATS = frozenset({"float32", "float16", "bfloat16"})
COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
LOGICAL = {"and": "&&", "or": "||"}
ELEMENT_TYPES = {
    "float32": "float", "float16": "half", "bfloat16": "bfloat", "int32": "int", "int16": "short", "int8": "signed char",
    "uint8": "unsigned char", "bool": "bool",
}  # fmt: skip
STORED_TYPES = {**ELEMENT_TYPES, "bfloat16": "unsigned short"}
REDUCERS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}

_BFLOAT = """\
/// The upper half of a float's bits, narrowed to the nearest, to even of two.
struct bfloat {
  unsigned short bits;
  bfloat(double value) : bfloat(odd(value)) {}
  bfloat(float value) {
    unsigned word;
    std::memcpy(&word, &value, sizeof word);
    bits = value != value ? 0x7fc0 : (unsigned short)((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  bfloat(int value) : bfloat(double(value)) {}
  static bfloat stored(unsigned short bits) {
    bfloat made(0.0f);
    made.bits = bits;
    return made;
  }
  operator float() const {
    const unsigned word = unsigned(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }

private:
  /// Rounded to odd, so that a second rounding does no harm.
  static float odd(double value) {
    float near = float(value);
    if (double(near) == value || value != value || std::isinf(near))
      return near;
    unsigned word;
    std::memcpy(&word, &near, sizeof word);
    if (std::fabs(double(near)) > std::fabs(value))
      --word;
    word |= 1;
    std::memcpy(&near, &word, sizeof near);
    return near;
  }
};
"""
_CALCULATE = """\
/// What one operation on T is computed in before it is rounded or wrapped to T.
template <typename T> struct Calculated { using type = float; };
template <> struct Calculated<int> { using type = unsigned; };
template <> struct Calculated<short> { using type = int; };
template <> struct Calculated<signed char> { using type = int; };
template <> struct Calculated<unsigned char> { using type = int; };
template <> struct Calculated<bool> { using type = int; };
template <typename T> using Work = typename Calculated<T>::type;
template <typename T> constexpr bool whole() { return std::is_integral<T>::value; }
"""
_FUNCTIONS = {
    "exp": "std::exp(x)", "log": "std::log(x)", "sqrt": "std::sqrt(x)", "rsqrt": "1 / std::sqrt(x)", "tanh": "std::tanh(x)",
    "sigmoid": "1 / (1 + std::exp(-x))", "erf": "std::erf(x)", "sin": "std::sin(x)", "cos": "std::cos(x)",
}  # fmt: skip
_WHOLE = {"floor": "std::floor", "ceil": "std::ceil", "round": "std::nearbyint"}  # round: ties to even

_HELPERS = {
    "neg": "neg(T a) { return whole<T>() ? T(Work<T>(0) - Work<T>(a)) : T(-Work<T>(a)); }",
    "abs": "abs(T a) { return whole<T>() ? (a < T(0) ? T(Work<T>(0) - Work<T>(a)) : a) : T(std::fabs(float(a))); }",
    "add": "add(T a, T b) { return T(Work<T>(a) + Work<T>(b)); }",
    "sub": "sub(T a, T b) { return T(Work<T>(a) - Work<T>(b)); }",
    "mul": "mul(T a, T b) { return T(Work<T>(a) * Work<T>(b)); }",
    # Integer division truncates towards zero. Division by 0 gives 0, so that an unselected side may be evaluated.
    "div": """\
div(T a, T b) {
  if constexpr (whole<T>())
    return b == T(0) ? T(0) : T((long long)(a) / (long long)(b));
  else
    return T(Work<T>(a) / Work<T>(b));
}""",
    # NaN propagates; equal values give the first one.
    "max": "max(T a, T b) { return a >= b || a != a ? a : b; }",
    "min": "min(T a, T b) { return a <= b || a != a ? a : b; }",
    "pow": """\
pow(T a, T b) {
  if constexpr (whole<T>()) {
    T power = 1;
    for (T i = 0; i < b; ++i)
      power = T(Work<T>(power) * Work<T>(a));
    return power;
  } else {
    return T(std::pow(Exact(float(a)), Exact(float(b))));
  }
}""",
    **{op: f"{op}(T a) {{\n  const Exact x = float(a);\n  return T({text});\n}}" for op, text in _FUNCTIONS.items()},
    **{op: f"{op}(T a) {{ return whole<T>() ? a : T({function}(float(a))); }}" for op, function in _WHOLE.items()},
    # As functions, since compilers warn of comparisons with a known result.
    **{op: f"{op}(T a, T b) {{ return a {sign} b; }}" for op, sign in COMPARED.items()},
    # To integers towards zero; narrow ones keep the lowest bits. 0 where 64 bits do not hold the value.
    "cast": """\
cast(S a) {
  if constexpr (std::is_same<T, bool>::value)
    return a != S(0);
  else if constexpr (whole<T>() && !whole<S>())
    return std::fabs(float(a)) < 0x1p31f   ? T(int(float(a)))
           : std::fabs(float(a)) < 0x1p63f ? T((long long)(float(a)))
                                           : T(0);
  else if constexpr (!whole<T>() && !whole<S>())
    return T(float(a));
  else
    return T(a);
}""",
}


def _template(op: str) -> str:
    return f"template <typename T{', typename S' * (op == 'cast')}> inline {'bool' if op in COMPARED else 'T'} "


def helpers(used: Iterable[str]) -> str:
    """Returns the C++ functions of a program's operations, inside namespace `scalar`; "bfloat16" requests that class."""
    wanted = set(used)
    found = [_BFLOAT] if "bfloat16" in wanted else []
    named = [op for op in _HELPERS if op in wanted]
    if named:
        found += [_CALCULATE, "namespace scalar {"]
        found += [_template(op) + _HELPERS[op] for op in named]
        found.append("} // namespace scalar\n")
    return "\n".join(found)


def constant(value: Number | bool, dtype: str) -> str:
    """Returns a literal of an element type."""
    given, name = number(value), ELEMENT_TYPES[dtype]
    if dtype == "bool":
        return "true" if given else "false"
    if dtype not in FLOATS:
        held = int(np.asarray(int(given)).astype(np.int64).astype(dtype))
        return "(-2147483647 - 1)" if held == -(2**31) else str(held) if dtype == "int32" else f"static_cast<{name}>({held})"
    if math.isnan(given):
        text = "std::numeric_limits<float>::quiet_NaN()"
    elif math.isinf(given):
        text = f"{'-' if given < 0 else ''}std::numeric_limits<float>::infinity()"
    elif dtype == "float32":
        rounded = np.float32(given)
        return constant("-inf" if rounded < 0 else "inf", dtype) if np.isinf(rounded) else f"{rounded}f"
    else:
        text = repr(float(given))
    return text if dtype == "float32" else f"{name}({text})"


def identity(reducer: str, dtype: str) -> str:
    """Returns the start value of a fold."""
    if reducer in ("sum", "prod"):
        return constant(int(reducer == "prod"), dtype)
    lowest = reducer == "max"
    if dtype in FLOATS:
        return constant("-inf" if lowest else "inf", dtype)
    if dtype == "bool":
        return constant(not lowest, dtype)
    limits = np.iinfo(dtype)
    return constant(int(limits.min if lowest else limits.max), dtype)


def converted(text: str, dtype: str, to: str) -> tuple[str, set[str]]:
    """Returns a value as another element type, and the helpers that this requires."""
    if dtype == to:
        return text, set()
    return f"scalar::cast<{ELEMENT_TYPES[to]}>({text})", {"cast", dtype, to}


def combined(reducer: str, dtype: str, left: str, right: str) -> tuple[str, set[str]]:
    """Returns one step of a fold, and the helper that it requires. The result of a fold over booleans is a boolean."""
    return f"scalar::{REDUCERS[reducer]}<{ELEMENT_TYPES[dtype]}>({left}, {right})", {REDUCERS[reducer], dtype}


@dataclass
class Printer:
    """The printer of one vertex's trees. `load` gives the text and type of a load, `index` the value of an index node.

    `used` collects helpers, `statements` the common subexpressions; both are for the caller to read.
    """

    load: Callable[[int], tuple[str, str]]
    index: Callable[[Node], str]
    result: tuple[str, str] | None = None
    used: set[str] = field(default_factory=set)
    statements: list[str] = field(default_factory=list)
    prefix: str = "t"

    def value(self, tree: Node) -> tuple[str, str]:
        """Returns a tree's text and element type. Equal parts are computed once, in statements before."""
        known: dict[Node, tuple[str, str]] = {}
        for part, uses in self._uses(tree).items():
            text, dtype = self._node(part, known)
            if uses > 1 and operands(part):
                name = f"{self.prefix}{len(self.statements)}"
                self.statements.append(f"const {ELEMENT_TYPES[dtype]} {name} = {text};")
                text = name
            known[part] = (text, dtype)
        return known[tree]

    def _uses(self, tree: Node) -> dict[Node, int]:
        """Returns every different part, operands first, and how many different parts use it."""
        order: dict[Node, int] = {}

        def visit(part: Node) -> None:
            if part not in order:
                for operand in operands(part):
                    visit(operand)
                    order[operand] += 1
                order[part] = 0

        visit(tree)
        return order

    def _node(self, part: Node, known: Mapping[Node, tuple[str, str]]) -> tuple[str, str]:
        given = [known[operand] for operand in operands(part)]
        match part:
            case ("load", which):
                return self._noted(*self.load(which))
            case ("const", value, dtype):
                return self._noted(constant(value, dtype), dtype)
            case ("index", *_):
                return self.index(part), "int32"
            case ("result",):
                if self.result is None:
                    raise CodegenError("a map's tree uses a result, but nothing is reduced before it")
                return self.result
            case ("cast", dtype, _):
                text, helpers_used = converted(*given[0], dtype)
                self.used |= helpers_used
                return self._noted(text, dtype)
            case ("select", *_):
                (condition, _), (yes, dtype), (no, _) = given
                return f"({condition} ? {yes} : {no})", dtype
        return self._operation(part[0], given)

    def _operation(self, op: str, given: list[tuple[str, str]]) -> tuple[str, str]:
        texts, dtype = [text for text, _ in given], given[0][1]
        if op == "not":
            return f"!{texts[0]}", "bool"
        if op in LOGICAL:
            return f"({texts[0]} {LOGICAL[op]} {texts[1]})", "bool"
        self.used.add(op)
        return f"scalar::{op}<{ELEMENT_TYPES[dtype]}>({', '.join(texts)})", "bool" if op in COMPARED else dtype

    def _noted(self, text: str, dtype: str) -> tuple[str, str]:
        self.used.add(dtype)
        return text, dtype
