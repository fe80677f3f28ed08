"""Elementary functions as polynomials in TIR, so that they vectorise (library calls do not).

Max relative errors in float32, in units of 2^-24 (`tests/lowering/test_functions.py` measures them against float64): exp 1.5,
sigmoid 2.5, tanh 5, erf 6. Results below 2^-126 may be 0. NaN stays NaN; the sign of zero is kept. float64 uses intrinsics and the
C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx

from roller.ir.expr import FLOATS
from roller.lowering.tir import arithmetic
from roller.lowering.tir.builder import Expr, Held, index, number, spread, vector_type

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 split so that n * LN2_HIGH is exact for |n| < 2^9
EXP_LOW, EXP_HIGH = -87.33654, 88.72283  # below: less than the smallest normal float32; above: infinite
# Minimax polynomial of (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2 (Cephes expf).
EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# Rational minimax approximation of tanh(x) / x in x^2 on |x| <= 8, where tanh is 1 in float32 (Eigen's, as in XLA).
TANH_ONE = 7.99881172180175781
TANH_ABOVE = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
# Rational minimax approximation of erf(x) / x in x^2 on |x| <= 4, where erf is 1 in float32 (Eigen's, as in XLA).
ERF_ONE = 4.0
ERF_ABOVE = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
ERF_BELOW = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)


def call(op: str, x: Expr, dtype: str, lanes: int, held: Held) -> Expr:
    """Returns a unary operation on a scalar or vector of the given element type; 16-bit floats go through float32."""
    if dtype in ("float16", "bfloat16"):
        wide = call(op, x.astype(vector_type("float32", lanes)), "float32", lanes, held)
        return cast(wide, "float32", dtype, lanes, held, stored=False)
    if dtype == "float32" and op in held.functions:
        return _each(lambda value: tirx.call_pure_extern(dtype, held.functions[op], value), x, lanes)
    if dtype == "float32" and op in _FAST:
        return _FAST[op](x, lanes, held)
    if op in _LIBRARY:
        return _each(lambda value: tirx.call_pure_extern(dtype, op, value), x, lanes)
    match op:
        case "rounded":
            return x
        case "neg":
            return arithmetic.negative(x) if dtype in FLOATS else arithmetic.opposite(x)
        case "abs" if dtype not in FLOATS:
            return arithmetic.magnitude(x)
        case "not":
            return opposite(x, lanes)
        case "rsqrt":
            return _c(1, dtype, lanes) / tirx.sqrt(x)
        case "sigmoid":
            return _c(1, dtype, lanes) / (_c(1, dtype, lanes) + tirx.exp(_c(0, dtype, lanes) - x))
        case "round":
            return tirx.nearbyint(x)
        case _:
            return getattr(tirx, op)(x)


def opposite(x: Expr, lanes: int) -> Expr:
    """Returns the negation of a boolean. TVM rewrites "not a < b" to "b <= a", which is wrong for a NaN."""
    return tirx.bitwise_xor(x, spread(tirx.const(True, "bool"), lanes))


def _each(function: Callable[[Expr], Expr], x: Expr, lanes: int) -> Expr:
    """Applies a scalar function to each lane."""
    if lanes == 1:
        return function(x)
    return tirx.Shuffle([function(tirx.Shuffle([x], [index(i)])) for i in range(lanes)], [index(i) for i in range(lanes)])


def cast(x: Expr, source: str, target: str, lanes: int, held: Held, stored: bool) -> Expr:
    """Returns a value of one element type as another: rounded to nearest, or towards zero for an integer.

    bfloat16 is rounded here unless the value is `stored` as it is. TVM omits the rounding of a value that it widens again. Where
    TVM does round, it treats a NaN with many bits set as a number.
    """
    if source == target:
        return x
    if target != "bfloat16":
        return arithmetic.cut(x, target)
    x = _single(x, source, lanes, held)
    wide = x if stored else _upper_half(x, lanes, held)
    return tirx.Select(tirx.isnan(x), _f(math.nan, lanes), wide).astype(vector_type(target, lanes))


def _single(x: Expr, source: str, lanes: int, held: Held) -> Expr:
    """Returns a value as a float32 that rounds correctly to a 16-bit float: round-to-odd avoids double rounding.

    If float32 does not hold the value, the odd one of its two neighbours is chosen (Boldo and Melquiond, "Emulation of a FMA and
    correctly rounded sums", 2008).
    """
    if source == "int64":  # bits that float64 does not hold are recorded in its last bit (sticky bit)
        x = held(x, source, lanes)
        low = held(x & _c((1 << 11) - 1, source, lanes), source, lanes)
        far = ((x >> _c(11, source, lanes)) | (low != _c(0, source, lanes)).astype(vector_type(source, lanes))) << _c(
            11, source, lanes
        )
        near = tirx.bitwise_and(x < _c(1 << 53, source, lanes), x > _c(-(1 << 53), source, lanes))
        x, source = tirx.Select(near, x, far).astype(vector_type("float64", lanes)), "float64"
    if source not in ("float64", "int32"):
        return held(x if source == "float32" else x.astype(vector_type("float32", lanes)), "float32", lanes)
    exact = held(x.astype(vector_type("float64", lanes)), "float64", lanes)
    near = held(exact.astype(vector_type("float32", lanes)), "float32", lanes)
    size, held_size = (tirx.abs(v.astype(vector_type("float64", lanes))) for v in (exact, near))
    bits = tirx.reinterpret(vector_type("uint32", lanes), near) - (held_size > size).astype(vector_type("uint32", lanes))
    inexact = tirx.bitwise_or(held_size > size, held_size < size)
    return held(
        tirx.reinterpret(vector_type("float32", lanes), bits | inexact.astype(vector_type("uint32", lanes))), "float32", lanes
    )


def _upper_half(x: Expr, lanes: int, held: Held) -> Expr:
    """Returns a float32 rounded to its upper 16 bits, ties to even."""
    bits = held(tirx.reinterpret(vector_type("uint32", lanes), x), "uint32", lanes)
    odd = (bits >> _c(16, "uint32", lanes)) & _c(1, "uint32", lanes)
    kept = (bits + odd + _c(0x7FFF, "uint32", lanes)) & _c(0xFFFF0000, "uint32", lanes)
    return tirx.reinterpret(vector_type("float32", lanes), kept)


def _c(value: float, dtype: str, lanes: int) -> Expr:
    return spread(number(value, dtype), lanes)


def _f(value: float, lanes: int) -> Expr:
    return _c(value, "float32", lanes)


def _horner(terms: tuple[float, ...], x: Expr, lanes: int) -> Expr:
    result = _f(terms[0], lanes)
    for term in terms[1:]:
        result = result * x + _f(term, lanes)
    return result


def _exp(x: Expr, lanes: int, held: Held) -> Expr:
    x = held(x, "float32", lanes)
    inside = held(tirx.max(tirx.min(x, _f(EXP_HIGH, lanes)), _f(EXP_LOW, lanes)), "float32", lanes)
    n = held(tirx.floor(inside * _f(1 / math.log(2), lanes) + _f(0.5, lanes)), "float32", lanes)
    r = held(inside - n * _f(LN2_HIGH, lanes) - n * _f(LN2_LOW, lanes), "float32", lanes)
    value = _horner(EXP_TERMS, r, lanes) * r * r + r + _f(1.0, lanes)
    # 2^n is applied by adding to the value's exponent: 2^128 alone would overflow, 2^128 times the value does not.
    shift = n.astype(vector_type("int32", lanes)) << _c(23, "int32", lanes)
    bits = tirx.reinterpret(vector_type("int32", lanes), value) + shift
    result = tirx.reinterpret(vector_type("float32", lanes), bits)
    result = tirx.Select(x < _f(EXP_LOW, lanes), _f(0.0, lanes), result)
    result = tirx.Select(x > _f(EXP_HIGH, lanes), _f(math.inf, lanes), result)
    return tirx.Select(tirx.isnan(x), x, result)


def _tanh(x: Expr, lanes: int, held: Held) -> Expr:
    return _rational(x, TANH_ONE, TANH_ABOVE, TANH_BELOW, lanes, held)


def _sigmoid(x: Expr, lanes: int, held: Held) -> Expr:
    return _f(1, lanes) / (_f(1, lanes) + _exp(_f(0, lanes) - x, lanes, held))


def _erf(x: Expr, lanes: int, held: Held) -> Expr:
    return _rational(x, ERF_ONE, ERF_ABOVE, ERF_BELOW, lanes, held)


def _rational(x: Expr, one: float, above: tuple[float, ...], below: tuple[float, ...], lanes: int, held: Held) -> Expr:
    """Computes x P(x^2) / Q(x^2), an odd function that is 1 from `one` on."""
    x = held(_limited(x, one, lanes), "float32", lanes)
    square = held(x * x, "float32", lanes)
    return _limited(x * (_horner(above, square, lanes) / _horner(below, square, lanes)), 1, lanes)


def _limited(x: Expr, bound: float, lanes: int) -> Expr:
    """Clamps a value to -bound..bound; a NaN stays a NaN, as the second operand of a failed comparison."""
    return tirx.min(_f(bound, lanes), tirx.max(_f(-bound, lanes), x))


_LIBRARY = frozenset({"erf", "tanh"})  # TVM has no such intrinsic, or one that cancels near 0
_FAST = {"exp": _exp, "tanh": _tanh, "sigmoid": _sigmoid, "erf": _erf}
