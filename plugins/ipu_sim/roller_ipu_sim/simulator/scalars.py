"""Arithmetic of the slow interpreter: one value at a time, as Python's floats and integers, in the bytes of each element type."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Value", "convert", "exact_sum", "from_bytes", "operate", "to_bytes"]

Value = float | int | bool

FORMATS: Mapping[str, str] = {
    "float32": "<f",
    "float16": "<e",
    "int32": "<i",
    "int16": "<h",
    "int8": "<b",
    "uint8": "<B",
    "bool": "<?",
}
FLOATS = ("float32", "float16", "bfloat16")
BITS: Mapping[str, int] = {"int32": 32, "int16": 16, "int8": 8, "uint8": 8}


def from_bytes(memory: bytes | bytearray, address: int, dtype: str) -> Value:
    """Returns the element at an address."""
    if dtype == "bfloat16":  # the upper half of a float32
        return float(struct.unpack("<f", b"\0\0" + memory[address : address + 2])[0])
    found: Value = struct.unpack_from(FORMATS[dtype], memory, address)[0]
    return found


def to_bytes(value: Value, dtype: str) -> bytes:
    """Returns an element, from a value of its type."""
    return struct.pack("<f", value)[2:] if dtype == "bfloat16" else struct.pack(FORMATS[dtype], value)


def _nearest(value: float, dtype: str) -> float:
    """Returns a float rounded to a type, ties to even; bfloat16 through float32."""
    if not math.isfinite(value):
        return value
    if dtype == "bfloat16":
        upper = _nearest(value, "float32")
        if not math.isfinite(upper):
            return upper
        (bits,) = struct.unpack("<I", struct.pack("<f", upper))
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    try:
        return float(struct.unpack(FORMATS[dtype], struct.pack(FORMATS[dtype], value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _wrapped(value: int, dtype: str) -> int:
    bits = BITS[dtype]
    low = value & ((1 << bits) - 1)
    return low - (1 << bits) if dtype != "uint8" and low >> (bits - 1) else low


def convert(value: Value, dtype: str) -> Value:
    """Converts a value to a type: to the nearest, to an integer towards zero (0 if no 64-bit integer holds it), to bool: not 0."""
    if dtype == "bool":
        return value != 0
    if dtype in FLOATS:
        return _nearest(float(value), dtype)
    if isinstance(value, float):
        value = math.trunc(value) if abs(value) < 2.0**63 else 0
    return _wrapped(int(value), dtype)


def exact_sum(terms: Sequence[float]) -> float:
    """Returns the float64 nearest to the sum of some terms."""
    return math.fsum(terms) if all(math.isfinite(term) for term in terms) else sum(terms)


def operate(op: str, values: Sequence[Value], dtype: str) -> Value:
    """Applies an operation of a tree to values of one type, except for a select's condition: the result is one of `dtype`."""
    if op == "select":
        return values[1] if values[0] else values[2]
    if op in TRUTHS:
        return TRUTHS[op](*values)
    if dtype in FLOATS:
        return _nearest(_float(op, [float(v) for v in values]), dtype)
    return _wrapped(_integer(op, [int(v) for v in values]), dtype)


TRUTHS: Mapping[str, Callable[..., bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "not": lambda a: not a,
}


def _integer(op: str, values: Sequence[int]) -> int:
    a, b = values[0], values[-1]
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        case "max":
            return max(a, b)
        case "min":
            return min(a, b)
        case "neg":
            return -a
        case "abs":
            return abs(a)
    return a  # floor, ceil, round


def _float(op: str, values: Sequence[float]) -> float:
    a, b = values[0], values[-1]
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return _divided(a, b)
        case "max":
            return a if a >= b or math.isnan(a) else b
        case "min":
            return a if a <= b or math.isnan(a) else b
        case "neg":
            return -a
        case "abs":
            return abs(a)
        case "floor":
            return _whole(math.floor, a)
        case "ceil":
            return _whole(math.ceil, a)
        case "round":
            return _whole(round, a)
    return _elementary(op, a, b)


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) or math.isnan(b) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _whole(function: Callable[[float], int], value: float) -> float:
    if not math.isfinite(value):
        return value
    return math.copysign(float(function(value)), value)


def _elementary(op: str, a: float, b: float) -> float:
    try:
        match op:
            case "exp":
                return math.exp(a)
            case "log":
                return math.log(a) if a else -math.inf
            case "sqrt":
                return math.sqrt(a)
            case "rsqrt":
                return _divided(1.0, math.sqrt(a))
            case "sigmoid":
                return 1 / (1 + _elementary("exp", -a, b))
            case "pow":
                return math.pow(a, b) if a or b >= 0 else math.inf
        return {"tanh": math.tanh, "erf": math.erf, "sin": math.sin, "cos": math.cos}[op](a)
    except OverflowError:
        return math.inf
    except ValueError:  # outside the function's domain
        return math.nan
