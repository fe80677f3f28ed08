"""The field types of machine descriptions: names, quantities with their limits, frozen mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from roller.frozen import FrozenMap, plain, thaw

TOLERANCE = 0.05  # max relative difference between a derived rate and the quoted one

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.+-]*$", max_length=64)]
Count = Annotated[int, Field(strict=True, ge=1, le=2**62)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=2**62)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e15, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(strict=True, ge=0, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
DType = Literal[
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "tfloat32", "float32", "float64",
]  # fmt: skip
# Formats to which units round their operands; no array has one. tfloat32: sign, 8 bits of exponent, 10 of fraction.
STORED_AS: Mapping[str, str] = {"tfloat32": "float32"}
Holds = Literal["input", "output", "accumulator"]
FROZEN = (AfterValidator(FrozenMap), PlainSerializer(thaw))
Roles = Annotated[Mapping[Literal["m", "n", "k"], Count | Literal["stream"]], *FROZEN]
Peaks = Annotated[Mapping[str, Positive], *FROZEN]
Options = Annotated[Mapping[str, Any], BeforeValidator(plain), *FROZEN]
Sources = Annotated[Mapping[str, str], *FROZEN]


class Frozen(BaseModel):
    """A model whose instances never change, and which has no other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def agree(field: str, derived: float, quoted: float, what: str) -> None:
    """Raises `ValueError` where a derived rate is further from the quoted one than the tolerance."""
    if abs(derived - quoted) > TOLERANCE * quoted:
        raise ValueError(f"{field}: {derived:.6g} {what} derived, {quoted:.6g} quoted: more than 5 % apart")
