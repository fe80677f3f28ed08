"""What the benchmark needs of an array library on the GPU; `bench.gpu.torch_library` is the one that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bench.gpu.operators import Operator
from bench.gpu.rounding import Bound
from bench.gpu.timing import Side


@dataclass(frozen=True)
class Choices:
    """What the command line asks of the libraries."""

    compiled: bool = True
    max_autotune: bool = False
    triton: bool = True


class Library(Protocol):
    """Arrays in the GPU's memory, the reference, and other implementations to compare with."""

    def describe(self) -> dict[str, str]:
        """Versions by name."""

    def stream(self) -> int:
        """The stream on which everything runs."""

    def room(self, size: int) -> Any:
        """So many bytes, as an array of bytes."""

    def address(self, array: Any) -> int:
        """Where an array lies."""

    def view(self, raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """The first bytes of a room as an array."""

    def operands(self, op: Operator, integer: bool, largest: int, seed: int) -> dict[str, Any]:
        """Random inputs by name: whole numbers of at most that size, or uniform from -1 to 1."""

    def expected(self, op: Operator, operands: Mapping[str, Any], bound: Bound) -> tuple[Any, Any]:
        """The result in float64 (rounded to the operator's type where the bound is exact), and how far each element may be off."""

    def excess(self, got: Any, expected: tuple[Any, Any], slack: float) -> float:
        """The largest error as a multiple of what is allowed, or infinity: at most 1 is right."""

    def untouched(self, raw: Any, start: int, byte: int) -> bool:
        """Whether every byte of a room from there on has that value."""

    def peers(self, op: Operator, operands: Mapping[str, Any], choices: Choices) -> Iterator[Side]:
        """Other ways to compute it, best known configurations; results are arrays in the operator's axes."""

    def failures(self) -> tuple[type[Exception], ...]:
        """What the library raises where it cannot do something."""

    def release(self) -> None:
        """Give unused memory back."""
