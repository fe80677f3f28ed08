"""Scalar expressions: affine indices and the small closed tree that a stage computes at one point.

Nodes are frozen values with a `dtype`. There is no overloading and no simplification here: builders live in `roller.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

UNARY = frozenset(
    {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "sin", "cos", "not"}
    | {"rounded"}  # the value rounded to its type: a following operation gets no extra bits
)
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "max", "min", "pow"})
COMPARISON = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
LOGICAL = frozenset({"and", "or"})
DEPTH_MAX = 250  # depth of dependent operations: recursion must stay within the interpreter's limit


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer index `offset + sum(coefficient * axis)`; terms are in order of first use, without zeros."""

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0

    @staticmethod
    def of(*terms: tuple[str, int], offset: int = 0) -> Affine:
        """Returns the canonical form of a sum of terms: equal axes merged, zeros dropped."""
        merged: dict[str, int] = {}
        for name, coefficient in terms:
            merged[name] = merged.get(name, 0) + coefficient
        return Affine(tuple((n, c) for n, c in merged.items() if c), offset)

    @staticmethod
    def axis(name: str) -> Affine:
        """Returns the index of a single axis."""
        return Affine(((name, 1),))

    @property
    def alone(self) -> str | None:
        """The axis if the index is a single axis; None for any other index."""
        return self.terms[0][0] if len(self.terms) == 1 and self.terms[0][1] == 1 and not self.offset else None

    def coefficient(self, name: str) -> int:
        """Returns the factor of one axis, 0 if it does not occur."""
        return next((c for n, c in self.terms if n == name), 0)

    def plus(self, other: Affine | int) -> Affine:
        """Returns the sum with another index or a number."""
        if isinstance(other, int):
            return Affine(self.terms, self.offset + other)
        return Affine.of(*self.terms, *other.terms, offset=self.offset + other.offset)

    def times(self, factor: int) -> Affine:
        """Returns the product with a number."""
        return Affine.of(*((n, c * factor) for n, c in self.terms), offset=self.offset * factor)

    def substitute(self, mapping: Mapping[str, Affine]) -> Affine:
        """Returns the index with axes replaced by indices; axes that are not in the mapping stay."""
        result = Affine((), self.offset)
        for name, coefficient in self.terms:
            result = result.plus(mapping.get(name, Affine.axis(name)).times(coefficient))
        return result

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Returns the min and max value when every axis runs over `range(extents[axis])`."""
        low = high = self.offset
        for name, coefficient in self.terms:
            reach = coefficient * (extents[name] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A literal. Two literals are equal if every computation gives the same: -0.0 is not 0.0, and a NaN equals a NaN."""

    value: float | int
    dtype: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const):
            return NotImplemented
        return self.dtype == other.dtype and _bits(self.value) == _bits(other.value)

    def __hash__(self) -> int:
        return hash((_bits(self.value), self.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """An element of a tensor. With `fill`, an index outside the tensor reads that value instead (zero padding is `fill=0`)."""

    tensor: str
    index: tuple[Affine, ...]
    dtype: str
    fill: float | int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Load):
            return NotImplemented
        alike = self.tensor == other.tensor and self.dtype == other.dtype and self.index == other.index
        return alike and _bits(self.fill) == _bits(other.fill)

    def __hash__(self) -> int:
        return hash((self.tensor, self.index, _bits(self.fill)))

    @property
    def zero_outside(self) -> bool:
        """True if only +0 is read where the index leaves the tensor; -0.0 is another value."""
        return self.fill is None or identical(self.fill, 0)


def identical(a: float | int | None, b: float | int | None) -> bool:
    """Returns whether two numbers are identical: zeros with the same sign, or both a NaN."""
    return _bits(a) == _bits(b)


def _bits(value: float | int | None) -> float | int | str | None:
    """Returns a key that identifies a number: a word for -0.0, which compares equal to 0, and for NaN, equal to nothing."""
    if not isinstance(value, float):
        return value
    return "nan" if math.isnan(value) else "-0" if value == 0 and math.copysign(1, value) < 0 else value


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The value of an index itself, as an int32."""

    index: Affine
    dtype: str = "int32"


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The finished reduction of this stage; only in epilogues."""

    dtype: str


@dataclass(frozen=True, slots=True)
class Unary:
    """A function of one value; the result has the operand's type."""

    op: str
    value: Scalar

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return self.value.dtype


@dataclass(frozen=True, slots=True)
class Binary:
    """A function of two values of one type; comparisons and logic give bool."""

    op: str
    left: Scalar
    right: Scalar

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return self.left.dtype if self.op in ARITHMETIC else "bool"


@dataclass(frozen=True, slots=True)
class Select:
    """`yes` where the condition holds, else `no`; only the chosen side needs to be defined."""

    condition: Scalar
    yes: Scalar
    no: Scalar

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return self.yes.dtype


@dataclass(frozen=True, slots=True)
class Cast:
    """The value converted to another element type (to an integer: towards zero)."""

    value: Scalar
    dtype: str


Scalar = Const | Load | Coordinate | Accumulator | Unary | Binary | Select | Cast


def children(node: Scalar) -> tuple[Scalar, ...]:
    """Returns the operands of a node, in order."""
    match node:
        case Unary() | Cast():
            return (node.value,)
        case Binary():
            return (node.left, node.right)
        case Select():
            return (node.condition, node.yes, node.no)
        case _:
            return ()


def walk(node: Scalar) -> Iterator[Scalar]:
    """Yields every node of a tree, parents first."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(children(top)))


def rewrite(node: Scalar, change: Callable[[Scalar], Scalar | None]) -> Scalar:
    """Returns the tree with each node replaced for which `change` returns a value (operands of replaced nodes are not visited)."""
    changed = change(node)
    if changed is not None:
        return changed
    match node:
        case Unary():
            return Unary(node.op, rewrite(node.value, change))
        case Cast():
            return Cast(rewrite(node.value, change), node.dtype)
        case Binary():
            return Binary(node.op, rewrite(node.left, change), rewrite(node.right, change))
        case Select():
            return Select(rewrite(node.condition, change), rewrite(node.yes, change), rewrite(node.no, change))
        case _:
            return node


def reindex(node: Scalar, mapping: Mapping[str, Affine]) -> Scalar:
    """Returns the tree with every axis in every index replaced."""

    def change(leaf: Scalar) -> Scalar | None:
        match leaf:
            case Load():
                return replace(leaf, index=tuple(i.substitute(mapping) for i in leaf.index))
            case Coordinate():
                return replace(leaf, index=leaf.index.substitute(mapping))
            case _:
                return None

    return rewrite(node, change)


def rounded(node: Scalar) -> Scalar:
    """Returns the tree with its resulting product rounded, also under a negation or selection: a sum gets no extra bits of it."""
    match node:
        case Binary("mul"):
            return Unary("rounded", node)
        case Unary("neg", value):
            return Unary("neg", rounded(value))
        case Select(condition, yes, no):
            return Select(condition, rounded(yes), rounded(no))
        case _:
            return node


def loads(node: Scalar) -> tuple[Load, ...]:
    """Returns the distinct loads of a tree, in order of first use."""
    return tuple(dict.fromkeys(n for n in walk(node) if isinstance(n, Load)))


def operations(node: Scalar) -> int:
    """Returns the number of arithmetic nodes in a tree; casts, selects and comparisons are free."""
    return sum(1 for n in walk(node) if is_operation(n))


def is_operation(node: Scalar) -> bool:
    """Returns True for a node that computes: arithmetic or a function."""
    return (isinstance(node, Unary) and node.op != "rounded") or (isinstance(node, Binary) and node.op in ARITHMETIC)
