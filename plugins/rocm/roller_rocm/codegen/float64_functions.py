"""Elementary functions of float64 as LLVM IR without tables, as LLVM's AMDGPU back end has no code for them.

Each reduces its argument to a short interval and evaluates a polynomial there. Max errors, in units of the last place
(`tests/rocm/test_rocm_doubles.py` measures them): exp 1, log 1, sin and cos 1, tanh 1, erf 1, pow 1.25; a result below the smallest
normal number may be one more off. NaN, infinities, signed zeros, overflow and arguments without a real result follow C99.

sin and cos reduce exactly enough for |x| < 2^30. Up to 2^50 the absolute error stays below 2^-52; beyond, results are those at 0.

The polynomials interpolate their functions at Chebyshev's nodes (computed with 400 bits, coefficients then rounded to float64). The
max error of each is noted beside it, relative to the function that it is part of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from roller_rocm.codegen.writer import Value, Writer

Body = tuple[Sequence[str], Callable[..., Value]]

# (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2; 2^-61.6.
EXP_TERMS = (
    2.0914686968086876e-09, 2.5105217004720745e-08, 2.75572736431103e-07, 2.7557255400206422e-06, 2.4801587325547743e-05,
    0.00019841269874820627, 0.0013888888888883748, 0.008333333333326136, 0.04166666666666667, 0.1666666666666667, 0.5,
)  # fmt: skip
# ((2 atanh(s) / s - 2) / z - 2/3) / z in z = s^2, for m = (1 + s) / (1 - s) from sqrt(1/2) to sqrt(2); 2^-66.4.
LOG_TERMS = (
    0.11723178623876518, 0.11706236339491206, 0.1333480469384731, 0.1538459496251843, 0.18181818335392802, 0.22222222221655885,
    0.28571428571429364, 0.4,
)  # fmt: skip
# (sin(r) / r - 1) / z and (cos(r) - 1 + z / 2) / z^2 in z = r^2, for |r| <= pi / 4; 2^-57.3 and 2^-59.9.
SIN_TERMS = (
    -7.586691094197958e-13, 1.6058531516797758e-10, -2.5052106231802837e-08, 2.7557319219337312e-06, -0.00019841269841265063,
    0.008333333333333331, -0.16666666666666666,
)  # fmt: skip
COS_TERMS = (
    -1.1382623647474604e-11, 2.087614614655861e-09, -2.7557317271145144e-07, 2.480158729876456e-05, -0.0013888888888887398,
    0.041666666666666664,
)  # fmt: skip
# erf(x) / x - 1 in x^2, for |x| <= 1; 2^-56.2.
ERF_TERMS = (
    -4.230945824295338e-12, 8.709045129053106e-11, -1.216456005728345e-09, 1.4792401209404813e-08, -1.6364642158167616e-07,
    1.6462045441468418e-06, -1.4925647567519332e-05, 0.00012055332902888736, -0.000854832702193483, 0.0052239776254232985,
    -0.02686617064512984, 0.1128379167095512, -0.37612638903183754, 0.1283791670955126,
)  # fmt: skip
# e^(x^2) (1 - erf(x)) in (x - 3) / (x + 3), for x from 1 to 6, from where on erf is 1; 2^-57.6 of erf.
TAIL_TERMS = (
    1.2801900862962662e-06, 2.023603179641757e-06, -8.008021319412685e-06, -1.284889451252353e-05, 6.406182073530546e-05,
    4.525472635483354e-05, -0.0005970623517093284, 0.0007077464443901538, 0.004269136347508256, -0.024392499318273194,
    0.07166583719774874, -0.15011593650078744, 0.24560380171233195, -0.32623356004303716, 0.17900115118138996,
)  # fmt: skip
ERF_ONE = 6.0
TANH_ONE = 22.0  # tanh is 1 from here on

LN2 = (0.6931471805599453, 2.3190468138462996e-17)
LN2_SHORT = (0.6931471805598903, 5.497923018708371e-14)  # the first part in 42 bits: times an exponent it is exact
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
REDUCED = 2.0**50  # up to here the reduction finds nearly the nearest multiple of pi / 2


# --- exponentials -----------------------------------------------------------------------------------------------------


def exponential(w: Writer, x: Value, more: Value | float = 0.0) -> tuple[Value, Value, Value]:
    """Returns e^(x + more) as 2^n (1 + r + q).

    n is an integer, r lies within half of ln 2, and q is small beside it. |more| must be far below |x|.
    """
    n = w.rint(x * (1 / math.log(2)))
    near = w.fma(-n, LN2[0], x)  # exact: at most 53 bits are left
    rest = w.fma(-n, LN2[1], more)
    r = near + rest
    q = w.fma(r * r, w.horner(EXP_TERMS, r), (near - r) + rest)
    return n, r, q


def exp(w: Writer, x: Value) -> Value:
    """Returns e^x."""
    n, r, q = exponential(w, within(w, x, 1100.0))
    return _unless_nan(w, x, w.scaled((r + q) + 1.0, w.whole(n)))


def tanh(w: Writer, x: Value) -> Value:
    """Returns the hyperbolic tangent as e / (e + 2) with e = e^2|x| - 1, where e and the quotient are sums of two."""
    size = w.abs(x)
    size = w.select(size < TANH_ONE, size, TANH_ONE)
    n, r, q = exponential(w, size + size)
    power = w.scaled(w.constant(x.kind, 1.0), w.whole(n))
    grown = r + q
    less, more = power - 1.0, power * grown
    e = less + more
    e_rest = w.fma(power, (r - grown) + q, (less - e) + more)
    below = e + 2.0
    inverse = w.constant(x.kind, 1.0) / below
    quotient = e * inverse
    lost = w.fma(-quotient, below, e) + w.fma(-quotient, _lost(w, below, 2.0, e) + e_rest, e_rest)
    return _unless_nan(w, x, w.signed(w.fma(lost, inverse, quotient), x))


def erf(w: Writer, x: Value) -> Value:
    """Returns the error function."""
    size = w.abs(x)
    near = w.fma(x, w.horner(ERF_TERMS, x * x), x)

    def away() -> Value:
        far = w.select(size < ERF_ONE, size, ERF_ONE)
        n, r, q = exponential(w, -(far * far))
        tail = w.horner(TAIL_TERMS, (far - 3.0) / (far + 3.0)) * w.scaled((r + q) + 1.0, w.whole(n))
        return w.signed(w.constant(x.kind, 1.0) - tail, x)

    return w.only(size >= 1.0, away, near)


def _lost(w: Writer, total: Value, a: float, b: Value) -> Value:
    """Returns the rounding error of a + b, for any two."""
    back = total - a
    return (b - back) + ((back - total) + a)


def within(w: Writer, x: Value, bound: float) -> Value:
    """Returns the value clamped to -bound..bound; a NaN becomes one of them."""
    return w.select(x > -bound, w.select(x < bound, x, bound), -bound)


def _unless_nan(w: Writer, x: Value, value: Value) -> Value:
    return w.select(x.compared("uno", x), x, value)


# --- logarithms and powers --------------------------------------------------------------------------------------------


def _taken_apart(w: Writer, x: Value) -> tuple[Value, Value]:
    """Returns k and f with x = 2^k (1 + f), 1 + f from sqrt(1/2) to sqrt(2)."""
    fraction, power = w.apart(x)
    low = fraction < math.sqrt(0.5)
    f = w.select(low, fraction + fraction, fraction) - 1.0
    return w.cast("sitofp", w.select(low, power - 1, power), x.kind), f


def logarithm(w: Writer, x: Value) -> Value:
    """Returns the natural logarithm of a finite x above 0: with s = f / (2 + f), ln(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2)))."""
    k, f = _taken_apart(w, x)
    s = f / (f + 2.0)
    z = s * s
    series = z * w.fma(z, w.horner(LOG_TERMS, z), TWO_THIRDS[0])
    half = f * f * 0.5
    return w.fma(k, LN2_SHORT[0], f - (half - w.fma(s, half + series, k * LN2_SHORT[1])))


def log(w: Writer, x: Value) -> Value:
    """Returns the natural logarithm."""
    value = w.select(x.compared("oeq", math.inf), x, logarithm(w, x))
    value = w.select(x.compared("ult", 0.0), math.nan, value)
    return w.select(x.compared("oeq", 0.0), -math.inf, value)


def _long_logarithm(w: Writer, x: Value) -> tuple[Value, Value]:
    """Returns the same as a sum of two, 2 s + s^3 (2/3 + s^2 (...)), with a relative error near 2^-65."""
    k, f = _taken_apart(w, x)
    below = f + 2.0
    inverse = w.constant(x.kind, 1.0) / below
    s = w.kept(f * inverse)
    s_rest = w.fma(-s, f - (below - 2.0), w.fma(-s, below, f)) * inverse
    z, z_rest = _product(w, s, s)
    z_rest = w.fma(s + s, s_rest, z_rest)
    p = w.kept(z * w.horner(LOG_TERMS, z))
    c = p + TWO_THIRDS[0]
    c_rest = ((w.constant(x.kind, TWO_THIRDS[0]) - c) + p) + TWO_THIRDS[1]
    t, t_rest = _product(w, z, c)
    t_rest = w.fma(z, c_rest, w.fma(z_rest, c, t_rest))
    u, u_rest = _product(w, s, t)
    u_rest = w.fma(s, t_rest, w.fma(s_rest, t, u_rest))
    double = s + s
    m = double + u
    m_rest = ((double - m) + u) + w.fma(s_rest, 2.0, u_rest)
    high = w.kept(k * LN2_SHORT[0])
    whole = high + m
    return whole, ((high - whole) + m) + w.fma(k, LN2_SHORT[1], m_rest)


def _product(w: Writer, a: Value, b: Value) -> tuple[Value, Value]:
    """Returns a·b and its rounding error."""
    near = w.kept(a * b)
    return near, w.fma(a, b, -near)


def pow(w: Writer, x: Value, y: Value) -> Value:
    """Returns the power x to the y: e^(y ln |x|) with a sign."""

    def usual() -> Value:
        long, rest = _long_logarithm(w, w.abs(x))
        near, lost = _product(w, y, long)
        small = w.abs(near) < 1000.0
        n, r, q = exponential(w, within(w, near, 1100.0), w.select(small, w.fma(y, rest, lost), 0.0))
        return w.scaled((r + q) + 1.0, w.whole(n))

    return power(w, x, y, usual)


def power(w: Writer, x: Value, y: Value, usual: Callable[[], Value]) -> Value:
    """Returns the power x to the y by C99; `usual` computes it for finite |x| above 0 and finite y."""
    size = w.abs(x)
    grows = (size > 1.0).compared("eq", y > 0.0)
    edge = w.select(grows, w.constant(x.kind, math.inf), 0.0)
    value = w.only((size > 0.0) & (size < math.inf) & (w.abs(y) < math.inf), usual, edge)
    value = w.select(size.compared("oeq", 1.0), 1.0, value)
    whole = w.rint(y).compared("oeq", y)
    half = y * 0.5
    odd = whole & w.rint(half).compared("one", half)
    value = w.select(odd, w.signed(value, x), value)
    value = w.select((x < 0.0) & (size < math.inf) & y.compared("une", w.rint(y)), math.nan, value)
    value = w.select(x.compared("uno", y), math.nan, value)
    return w.select(y.compared("oeq", 0.0) | x.compared("oeq", 1.0), 1.0, value)


# --- circular functions -----------------------------------------------------------------------------------------------


def quarters(w: Writer, x: Value) -> tuple[Value, Value]:
    """Returns the integer nearest to x / (pi / 2), and its remainder by 4 as an i32."""
    n = w.rint(x * (2 / math.pi))
    part = n * 0.25
    return n, w.whole((part - w.rint(part)) * 4.0)


def _reduced(w: Writer, x: Value, n: Value) -> tuple[Value, Value]:
    """Returns x - n pi / 2 as a sum of two."""
    first = w.fma(-n, HALF_PI[0], x)  # exact for |n| < 2^52: no bits are left below those of pi / 2
    step, lost = _product(w, n, w.constant(x.kind, HALF_PI[1]))
    near = first - step
    back = near - first
    rest = (first - (near - back)) - (step + back)
    rest = w.fma(-n, HALF_PI[2], rest - lost)
    total = near + rest
    return total, (near - total) + rest


def circular(w: Writer, turn: Value, sine: Value, cosine: Value) -> Value:
    """Returns the sine of r + turn pi / 2, from r's sine and cosine."""
    value = w.select((turn & 1).compared("eq", 0), sine, cosine)
    return w.select((turn & 2).compared("eq", 0), value, -value)


def beyond(w: Writer, x: Value, quarter: int) -> Value:
    """Returns the substitute for sin(x + quarter pi / 2) where x is not reduced: the value at 0, or NaN for a non-finite x."""
    return w.select(w.abs(x) < math.inf, w.constant(x.kind, float(quarter % 2)), math.nan)


def _sines(w: Writer, x: Value, quarter: int) -> Value:
    """Returns the sine of x + quarter pi / 2."""

    def reduced() -> Value:
        n, turn = quarters(w, x)
        r, rest = _reduced(w, x, n)
        z = r * r
        half = z * 0.5
        sine = r + w.fma(r * z, w.horner(SIN_TERMS, z), w.fma(-half, rest, rest))
        most = w.constant(x.kind, 1.0) - half
        fine = w.fma(z * z, w.horner(COS_TERMS, z), -(r * rest))
        cosine = most + (((w.constant(x.kind, 1.0) - most) - half) + fine)
        return circular(w, turn + quarter, sine, cosine)

    return w.only(w.abs(x) < REDUCED, reduced, beyond(w, x, quarter))


def sin(w: Writer, x: Value) -> Value:
    """Returns the sine."""
    return w.select(x.compared("oeq", 0.0), x, _sines(w, x, 0))  # 0 with its sign


def cos(w: Writer, x: Value) -> Value:
    """Returns the cosine."""
    return _sines(w, x, 1)


ONE, TWO = ("double",), ("double", "double")
# By the names that kernels call: those of TVM's operations after `roller_`, or C's.
FUNCTIONS: Mapping[str, Body] = {
    "roller_exp_float64": (ONE, exp),
    "roller_log_float64": (ONE, log),
    "roller_sin_float64": (ONE, sin),
    "roller_cos_float64": (ONE, cos),
    "roller_pow_float64": (TWO, pow),
    "tanh": (ONE, tanh),
    "erf": (ONE, erf),
}
