"""Elementary functions of float32 as LLVM IR, where those of LLVM's AMDGPU back end are too inaccurate.

Its sin and cos multiply by 1 / (2 pi) in float32 and leave the rest to an instruction of limited range: the error grows with the
argument. Its pow is 2^(y log2 |x|) in float32: off by as many units as the exponent has bits before the point, and not a number for
negative bases. Here arguments are reduced, and powers computed, in float64.

Max errors, in units of the last place: pow 0.51, sin and cos 1.6 for |x| < 2^50; beyond, results are those at 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from roller_rocm.codegen.float64_functions import (
    HALF_PI,
    REDUCED,
    Body,
    beyond,
    circular,
    exponential,
    logarithm,
    power,
    quarters,
    within,
)
from roller_rocm.codegen.writer import Value, Writer

# Of the same functions as in `doubles`, rounded to float32; 2^-28.3 and 2^-30.7.
SIN_TERMS = (2.7249895993008977e-06, -0.00019840087043121457, 0.008333331905305386, -0.1666666716337204)
COS_TERMS = (2.454791683703661e-05, -0.001388830249197781, 0.0416666641831398)


def _sines(w: Writer, x: Value, quarter: int) -> Value:
    """Returns the sine of x + quarter pi / 2."""

    def reduced() -> Value:
        wide = w.cast("fpext", x, "double")
        n, turn = quarters(w, wide)
        r = w.cast("fptrunc", w.fma(-n, HALF_PI[1], w.fma(-n, HALF_PI[0], wide)), "float")
        z = r * r
        sine = w.fma(r * z, w.horner(SIN_TERMS, z), r)
        cosine = w.fma(z * z, w.horner(COS_TERMS, z), w.fma(z, -0.5, 1.0))
        return circular(w, turn + quarter, sine, cosine)

    return w.only(w.abs(x) < REDUCED, reduced, beyond(w, x, quarter))


def sin(w: Writer, x: Value) -> Value:
    """Returns the sine."""
    return w.select(x.compared("oeq", 0.0), x, _sines(w, x, 0))


def cos(w: Writer, x: Value) -> Value:
    """Returns the cosine."""
    return _sines(w, x, 1)


def pow(w: Writer, x: Value, y: Value) -> Value:
    """Returns the power x to the y."""
    wide, by = w.cast("fpext", x, "double"), w.cast("fpext", y, "double")

    def usual() -> Value:
        grown = by * logarithm(w, w.abs(wide))
        n, r, q = exponential(w, within(w, grown, 1000.0))
        return w.scaled((r + q) + 1.0, w.whole(n))

    return w.cast("fptrunc", power(w, wide, by, usual), "float")


ONE, TWO = ("float",), ("float", "float")
FUNCTIONS: Mapping[str, Body] = {
    "roller_sin_float32": (ONE, sin),
    "roller_cos_float32": (ONE, cos),
    "roller_pow_float32": (TWO, pow),
}
