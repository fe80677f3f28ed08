"""Random trees of elementwise operators over special values, and what `docs/numerics.md` lets a kernel give for them.

The reference is NumPy in the type in which each operation computes. Where the contract leaves a choice (a product that goes into a
sum may keep its low bits; of -0.0 and 0.0 max and min may give either) a value has several alternatives, and a kernel's result is
right where it is one of them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from roller.ir.expr import FLOATS, Axis, Stage, Tensor, TensorExpr
from roller.ir.scalar import Affine, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary, walk
from roller.runtime.arrays import narrowed

Array = npt.NDArray[Any]
Alternatives = list[Array]
MOST = 16  # alternatives of one value

TINY, HUGE = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)
SPECIAL: dict[str, tuple[float, ...]] = {
    "float32": (
        *(
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.3,
            -0.7,
            math.inf,
            -math.inf,
            math.nan,
            TINY,
            -TINY,
            HUGE,
            -HUGE,
            3.0,
            7.0,
            2.0**-126,
            12582912.0,
        ),
        *(2.0**24, 16777217.0, -2.5, 0.5, 1.0 + 2.0**-23, 1.0 - 2.0**-24, 1e-30, 1e30),
    ),
    "float64": (
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.3,
        math.inf,
        -math.inf,
        math.nan,
        5e-324,
        1.7e308,
        2.0**53,
        1.0 + 2.0**-52,
        -2.5,
        1e-200,
        3.0,
    ),
    "float16": (0.0, -0.0, 1.0, -1.0, 0.3, math.inf, -math.inf, math.nan, 65504.0, 2.0**-24, -2.5, 3.0, 2048.0, 0.999),
    "bfloat16": (0.0, -0.0, 1.0, -1.0, 0.3, math.inf, -math.inf, math.nan, 3.39e38, 1e-40, -2.5, 3.0, 256.0, 0.996),
}
LITERALS = (0.0, -0.0, 1.0, -1.0, 3.0, 7.0, 0.1, -2.5, 12582912.0, 2.0, 1e30)
WHOLE = ("int32", "int64", "int16", "int8", "uint8")
EXACT = ("neg", "abs", "floor", "ceil", "round", "sqrt")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


def specials(dtype: str) -> Array:
    """Every value that is special in a type."""
    if dtype in FLOATS:
        return narrowed(np.array(SPECIAL[dtype]), dtype)
    info = np.iinfo(dtype)
    some = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 5, 7, 100, *((-1, -2, -7) if info.min else ())}
    some |= {info.max // 2 + 1, info.max // 3, info.min // 2}
    return np.array(sorted(some), dtype)


# --- trees -----------------------------------------------------------------------------------------------------------------


class Grower:
    """Trees of a type over some loads; `chance` decides."""

    def __init__(self, chance: random.Random, dtype: str, loads: list[Scalar]) -> None:
        self.chance, self.dtype, self.loads = chance, dtype, loads
        self.working = "float32" if dtype in ("float16", "bfloat16") else dtype
        self.made: list[Scalar] = []  # taken again now and then: x - x, (x + y) - y, x == x

    def tree(self, depth: int) -> Scalar:
        """A value of the type."""
        found = self._tree(depth)
        if not isinstance(found, Const):
            self.made.append(found)
        return found

    def _tree(self, depth: int) -> Scalar:
        draw = self.chance.random()
        if depth == 0 or draw < 0.1:
            return self._leaf()
        if self.made and draw < 0.22:
            return self.chance.choice(self.made)
        if draw < 0.75:
            kinds = ("add", "sub", "mul", "max", "min", "add", "sub", "mul", *(("div",) if self.working in FLOATS else ()))
            op = self.chance.choice(kinds)
            left = self.tree(depth - 1)
            right = left if self.chance.random() < 0.08 else self.tree(depth - 1)
            return Binary(op, left, right)
        if draw < 0.87:
            return Select(self.truth(depth - 1), self.tree(depth - 1), self.tree(depth - 1))
        return Unary(self.chance.choice(EXACT if self.working in FLOATS else EXACT[:2]), self.tree(depth - 1))

    def truth(self, depth: int) -> Scalar:
        """A comparison, or several of them."""
        if depth > 0 and self.chance.random() < 0.25:
            return Binary(self.chance.choice(("and", "or")), self.truth(depth - 1), self.truth(depth - 1))
        if depth > 0 and self.chance.random() < 0.15:
            return Unary("not", self.truth(depth - 1))
        left = self.tree(max(depth, 0))
        right = left if self.chance.random() < 0.1 else self.tree(max(depth, 0))
        return Binary(self.chance.choice(COMPARED), left, right)

    def _leaf(self) -> Scalar:
        if self.chance.random() < 0.3:
            if self.working in FLOATS:
                return Const(self.chance.choice(LITERALS), self.working)
            return Const(int(self.chance.choice(specials(self.working))), self.working)
        return self.chance.choice(self.loads)


def expression(seed: int, dtype: str, count: int, elements: int, depth: int = 4) -> TensorExpr:
    """`count` trees, each a stage of its own over inputs x, y, z (elements,), and a stage that lays their results beside one
    another as (count, elements).
    """
    chance = random.Random(seed)
    at = (Affine.axis("i"),)
    inputs = tuple(Tensor(name, (elements,), dtype) for name in "xyz")
    working = "float32" if dtype in ("float16", "bfloat16") else dtype
    loads: list[Scalar] = [Load(t.name, at, dtype) for t in inputs]
    loads = [load if working == dtype else Cast(load, working) for load in loads]
    stages = []
    for number in range(count):
        body = Grower(chance, dtype, loads).tree(depth)
        while not any(isinstance(node, Load) for node in walk(body)):
            body = Grower(chance, dtype, loads).tree(depth)
        value = body if working == dtype else Cast(body, dtype)
        stages.append(Stage((Axis("i", elements),), value, Tensor(f"t{number}", (elements,), dtype), at))
    if count == 1:
        return TensorExpr(inputs, tuple(stages))
    chosen: Scalar = Load(f"t{count - 1}", at, dtype)
    for number in reversed(range(count - 1)):
        chosen = Select(Binary("eq", Coordinate(Affine.axis("k")), Const(number, "int32")), Load(f"t{number}", at, dtype), chosen)
    axes = (Axis("k", count), Axis("i", elements))
    output = Tensor("all", (count, elements), dtype)
    return TensorExpr(inputs, (*stages, Stage(axes, chosen, output, (Affine.axis("k"), Affine.axis("i")))))


def arrays(expr: TensorExpr, seed: int) -> dict[str, Array]:
    """Special values, all of them where there is room, in other orders for each input."""
    drawn = np.random.default_rng(seed)
    return {t.name: drawn.permutation(np.resize(drawn.permutation(specials(t.dtype)), t.shape)) for t in expr.inputs}


# --- what is right -----------------------------------------------------------------------------------------------------------


def right(stage: Stage, given: dict[str, Array]) -> Alternatives:
    """What the stage may give."""
    memo: dict[Scalar, Alternatives] = {}

    def value(node: Scalar) -> Alternatives:
        if node not in memo:
            memo[node] = _unique(_alternatives(node, value, given))[:MOST]
        return memo[node]

    with np.errstate(all="ignore"):
        return value(stage.body)


def wrong(got: Array, alternatives: Alternatives) -> Array:
    """True where a result is none of the alternatives; a NaN is one, whatever its bits."""
    fits = np.zeros(got.shape, np.bool_)
    for one in alternatives:
        fits |= _same(got, np.broadcast_to(one, got.shape))
    return ~fits


def _same(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iub":
        return np.asarray(a == b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.asarray((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b))))


def _unique(found: Alternatives) -> Alternatives:
    kept: Alternatives = []
    for one in found:
        if not any(one.shape == other.shape and _same(one, other).all() for other in kept):
            kept.append(one)
    return kept


def _alternatives(node: Scalar, value: Callable[[Scalar], Alternatives], given: dict[str, Array]) -> Alternatives:
    match node:
        case Load():
            return [given[node.tensor]]
        case Const():
            return [narrowed(np.asarray(node.value), node.dtype) if node.dtype in FLOATS else np.asarray(node.value, node.dtype)]
        case Cast():
            return [narrowed(v, node.dtype) for v in value(node.value)]
        case Unary():
            return [_unary(node.op, v) for v in value(node.value)]
        case Select():
            combos = itertools.product(value(node.condition), value(node.yes), value(node.no))
            return [np.where(c, y, n).astype(y.dtype) for c, y, n in combos]
        case Binary():
            return _binary(node, value)
    raise AssertionError(node)


def _unary(op: str, v: Array) -> Array:
    function = {
        "neg": np.negative,
        "abs": np.abs,
        "floor": np.floor,
        "ceil": np.ceil,
        "round": np.rint,
        "sqrt": np.sqrt,
        "not": np.logical_not,
    }
    return np.asarray(function[op](v))


def _binary(node: Binary, value: Callable[[Scalar], Alternatives]) -> Alternatives:
    pairs = list(itertools.product(value(node.left), value(node.right)))
    functions: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "and": np.logical_and, "or": np.logical_or,
        "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    }  # fmt: skip
    if node.op in ("max", "min"):
        choose = np.maximum if node.op == "max" else np.minimum
        found = []
        for a, b in pairs:
            best = choose(a, b)
            found += [np.asarray(np.where(a == b, side, best).astype(best.dtype)) for side in (a, b)]
        return found
    if node.op in ("add", "sub") and node.dtype in ("float32", "float64"):
        return _sums(node.op == "sub", node.left, node.right, value)
    return [np.asarray(functions[node.op](a, b)) for a, b in pairs]


def _sums(minus: bool, left: Scalar, right: Scalar, value: Callable[[Scalar], Alternatives]) -> Alternatives:
    """A sum or difference; with products that keep all of their bits, as they stand or as the chosen side of a `where`."""
    found: Alternatives = [a - b if minus else a + b for a, b in itertools.product(value(left), value(right))]
    for chosen, first in ((left, True), (right, False)):
        if isinstance(chosen, Select):
            sides = [_sums(minus, *((s, right) if first else (left, s)), value) for s in (chosen.yes, chosen.no)]
            found += [np.where(c, y, n) for c, y, n in itertools.product(value(chosen.condition), *sides)]
    for term, other, first in ((left, right, True), (right, left, False)):
        negations, product = _unsigned(term)  # which go into the multiply-add as a sign
        flipped = (negations + (minus and not first)) % 2
        if isinstance(product, Binary) and product.op == "mul":
            for a, b, c in itertools.product(value(product.left), value(product.right), value(other)):
                found.append(fused(-a if flipped else a, b, -c if minus and first else c))
    return _unique(found)[:MOST]


def _unsigned(node: Scalar) -> tuple[int, Scalar]:
    """How often a value is negated, and the value without that."""
    if isinstance(node, Unary) and node.op == "neg":
        count, value = _unsigned(node.value)
        return count + 1, value
    return 0, node


def fused(a: Array, b: Array, c: Array) -> Array:
    """a b + c rounded once. In float32 by long double where that holds the product, else element by element."""
    a, b, c = np.broadcast_arrays(a, b, c)
    found = np.empty(a.shape, a.dtype)
    for place in np.ndindex(a.shape):
        found[place] = _fused(a[place], b[place], c[place])
    return found


def _fused(a: Any, b: Any, c: Any) -> Any:
    kind = type(a)
    x, y, z = float(a), float(b), float(c)
    if not (math.isfinite(x) and math.isfinite(y)):
        return kind(np.float64(x) * np.float64(y) + np.float64(z))
    if not math.isfinite(z):
        return kind(z)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return kind(x * y + z) if z == 0 else kind(0.0)
    return _rounded(exact, kind)


def _rounded(exact: Fraction, kind: Any) -> Any:
    info = np.finfo(kind)
    return kind(nearest(exact, info.nmant + 1, info.minexp - info.nmant, info.maxexp))


def nearest(exact: Fraction, bits: int, least: int, most: int) -> float:
    """A number to the nearest of a format, to even of two: of so many significant bits, multiples of 2^least, below 2^most."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < _power(exponent)
    unit = max(exponent - bits + 1, least)
    whole = round(size / _power(unit))  # a fraction's half goes to the even one
    beyond = whole * _power(unit) >= _power(most)
    return math.copysign(math.inf if beyond else math.ldexp(whole, unit), 1 if exact > 0 else -1)


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent
