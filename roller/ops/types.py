"""Element types of operators: accumulator types, result types, and conversions."""

from __future__ import annotations

from roller.errors import ExpressionError
from roller.ir.expr import ELEMENT_BYTES, FLOATS
from roller.ir.scalar import Cast, Const, Scalar

HALVES = frozenset({"float16", "bfloat16"})
NARROW_INTEGERS = frozenset({"int8", "uint8", "int16"})


def known_dtype(dtype: object) -> str:
    """Returns the name of an element type given by name or as a type of NumPy, ml_dtypes or torch; else `ExpressionError`."""
    said = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)  # np.dtype, np.float32, torch.float32
    name = str(said).removeprefix("torch.")
    if name not in ELEMENT_BYTES:
        raise ExpressionError(f"unknown element type {dtype!r}; choose one of {', '.join(ELEMENT_BYTES)}")
    return name


def compute_dtype(dtype: str) -> str:
    """Returns the type of elementwise arithmetic: float32 for 16-bit floats, else the type itself."""
    return "float32" if dtype in HALVES else dtype


def compared_dtype(dtype: str) -> str:
    """Returns the type in which max and min are computed: uint8 for bool, which LLVM does not order."""
    return "uint8" if dtype == "bool" else compute_dtype(dtype)


def accumulation_dtype(dtype: str, wanted: str | None = None) -> str:
    """Returns the accumulator type of `dtype` values: float32 (float64 for float64), int32 (int64 for int64), or `wanted`.

    `ExpressionError` for bool, for an unknown type, and for accumulating floats in integers or integers in floats.
    """
    if dtype == "bool":
        raise ExpressionError("bool values cannot be summed; use .astype('int32') first")
    if wanted is not None:
        wanted = known_dtype(wanted)
        if (wanted in FLOATS) != (dtype in FLOATS) or wanted == "bool":
            kind = "floating" if dtype in FLOATS else "integer"
            raise ExpressionError(f"{dtype} cannot be accumulated in {wanted}; choose a {kind} acc_dtype or cast the operands")
        if ELEMENT_BYTES[wanted] < ELEMENT_BYTES[dtype] or (wanted != dtype and {wanted, dtype} == HALVES):
            raise ExpressionError(f"acc_dtype {wanted} does not hold the operands' {dtype}; choose {dtype} or wider")
        return wanted
    if dtype in FLOATS:
        return "float64" if dtype == "float64" else "float32"
    return "int64" if dtype == "int64" else "int32"


def output_dtype(dtype: str, wanted: str | None = None) -> str:
    """Returns the type of a sum's or product's result: the operands' type, int32 for narrower integers, or `wanted`."""
    if wanted is not None:
        return known_dtype(wanted)
    return "int32" if dtype in NARROW_INTEGERS else dtype


def converted(value: Scalar, dtype: str) -> Scalar:
    """Returns the value as `dtype`, without a cast if it has that type already."""
    return value if value.dtype == dtype else Cast(value, dtype)


def constant(value: float | int, dtype: str) -> Const:
    """Returns a literal of a type; `ExpressionError` if an integer type cannot hold it."""
    if dtype in FLOATS:
        return Const(float(value), dtype)
    if value != int(value):
        raise ExpressionError(f"{value} is not an integer, but the tensor is {dtype}; use .astype('float32') first")
    low, high = integer_range(dtype)
    if not low <= value <= high:
        raise ExpressionError(f"{value} does not fit {dtype} ({low}..{high}); cast the tensor to a wider type first")
    return Const(int(value), dtype)


def integer_range(dtype: str) -> tuple[int, int]:
    """Returns the min and max of an integer type (0 and 1 for bool)."""
    if dtype == "bool":
        return 0, 1
    bits = 8 * ELEMENT_BYTES[dtype]
    return (0, (1 << bits) - 1) if dtype.startswith("uint") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def lowest(dtype: str) -> float | int:
    """Returns the type's lower bound: minus infinity, or the integer type's min."""
    return float("-inf") if dtype in FLOATS else integer_range(dtype)[0]
