"""Elementary functions as polynomials in TIR, so that they vectorise (library calls do not).

Relative errors (checked by `tests/test_functions.py` against float64): about 2 units in the last place of float32 for exp, 4 for
tanh and sigmoid, 1e-7 absolute for erf. Types other than float32 use TVM's intrinsics.
"""

from __future__ import annotations

import math

from tvm import tirx

from roller.schedule.tir import Expr, number, spread, vector_type

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 split so that n * LN2_HIGH is exact for |n| < 2^9
EXP_LOW, EXP_HIGH = -87.33654, 88.72283  # below: less than the smallest normal float32; above: infinite
# Minimax polynomial of (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2 (Cephes expf).
EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# Odd polynomial of tanh on |x| < 0.625 (Cephes tanhf).
TANH_TERMS = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
# Rational minimax approximation of erf(x) / x in x^2 on |x| <= 4, where erf is 1 in float32 (Eigen's, as in XLA).
ERF_ONE = 4.0
ERF_ABOVE = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
ERF_BELOW = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)


def call(op: str, x: Expr, dtype: str, lanes: int) -> Expr:
    """A unary operation on a scalar or vector of the given element type."""
    if dtype == "float32" and op in _FAST:
        return _FAST[op](x, lanes)
    match op:
        case "neg":
            return _c(0, dtype, lanes) - x
        case "abs":
            return tirx.Select(x < _c(0, dtype, lanes), _c(0, dtype, lanes) - x, x)
        case "not":
            return tirx.Not(x)
        case "rsqrt":
            return _c(1, dtype, lanes) / tirx.sqrt(x)
        case "sigmoid":
            return _c(1, dtype, lanes) / (_c(1, dtype, lanes) + tirx.exp(_c(0, dtype, lanes) - x))
        case "round":
            return tirx.nearbyint(x)
        case _:
            return getattr(tirx, op)(x)


def cast(x: Expr, source: str, target: str, lanes: int) -> Expr:
    """A value of one element type as another: rounded to nearest, or towards zero for an integer.

    bfloat16 is the upper half of a float32. Spelled out here, as TVM leaves out the rounding of a value that it widens again.
    """
    if source == target:
        return x
    if source == "bfloat16":
        upper = tirx.reinterpret(vector_type("uint16", lanes), x).astype(vector_type("uint32", lanes))
        wide = tirx.reinterpret(vector_type("float32", lanes), upper << _c(16, "uint32", lanes))
        return cast(wide, "float32", target, lanes)
    if target != "bfloat16":
        return x.astype(vector_type(target, lanes))
    x = cast(x, source, "float32", lanes)
    bits = tirx.reinterpret(vector_type("uint32", lanes), x)
    even = (bits >> _c(16, "uint32", lanes)) & _c(1, "uint32", lanes)
    bits = tirx.Select(tirx.NE(x, x), _c(0x7FC00000, "uint32", lanes), bits + even + _c(0x7FFF, "uint32", lanes))
    upper = (bits >> _c(16, "uint32", lanes)).astype(vector_type("uint16", lanes))
    return tirx.reinterpret(vector_type("bfloat16", lanes), upper)


def _c(value: float, dtype: str, lanes: int) -> Expr:
    return spread(number(value, dtype), lanes)


def _f(value: float, lanes: int) -> Expr:
    return _c(value, "float32", lanes)


def _horner(terms: tuple[float, ...], x: Expr, lanes: int) -> Expr:
    result = _f(terms[0], lanes)
    for term in terms[1:]:
        result = result * x + _f(term, lanes)
    return result


def _exp(x: Expr, lanes: int) -> Expr:
    clamped = tirx.max(tirx.min(x, _f(EXP_HIGH, lanes)), _f(EXP_LOW, lanes))
    n = tirx.floor(clamped * _f(1 / math.log(2), lanes) + _f(0.5, lanes))
    r = clamped - n * _f(LN2_HIGH, lanes) - n * _f(LN2_LOW, lanes)
    value = _horner(EXP_TERMS, r, lanes) * r * r + r + _f(1.0, lanes)
    # 2^n in two halves: n reaches 128, whose exponent alone would overflow.
    half = tirx.floor(n * _f(0.5, lanes))
    result = value * _power_of_two(half, lanes) * _power_of_two(n - half, lanes)
    result = tirx.Select(x < _f(EXP_LOW, lanes), _f(0.0, lanes), result)
    result = tirx.Select(x > _f(EXP_HIGH, lanes), _f(math.inf, lanes), result)
    return tirx.Select(tirx.NE(x, x), x, result)


def _power_of_two(n: Expr, lanes: int) -> Expr:
    bits = (n.astype(vector_type("int32", lanes)) + _c(127, "int32", lanes)) << _c(23, "int32", lanes)
    return tirx.reinterpret(vector_type("float32", lanes), bits)


def _tanh(x: Expr, lanes: int) -> Expr:
    size = tirx.Select(x < _f(0, lanes), _f(0, lanes) - x, x)
    square = x * x
    small = x + x * square * _horner(TANH_TERMS, square, lanes)
    large = _f(1, lanes) - _f(2, lanes) / (_exp(size + size, lanes) + _f(1, lanes))
    signed = tirx.Select(x < _f(0, lanes), _f(0, lanes) - large, large)
    return tirx.Select(size < _f(0.625, lanes), small, signed)


def _sigmoid(x: Expr, lanes: int) -> Expr:
    return _f(1, lanes) / (_f(1, lanes) + _exp(_f(0, lanes) - x, lanes))


def _erf(x: Expr, lanes: int) -> Expr:
    size = tirx.max(tirx.min(x, _f(ERF_ONE, lanes)), _f(-ERF_ONE, lanes))
    square = size * size
    value = size * (_horner(ERF_ABOVE, square, lanes) / _horner(ERF_BELOW, square, lanes))
    value = tirx.max(tirx.min(value, _f(1, lanes)), _f(-1, lanes))
    return tirx.Select(tirx.NE(x, x), x, value)


_FAST = {"exp": _exp, "tanh": _tanh, "sigmoid": _sigmoid, "erf": _erf}
