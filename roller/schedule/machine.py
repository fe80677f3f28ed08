"""What a device with lanes can do beyond computing and waiting: groups that multiply matrices, copies that run by themselves.

Device plugins describe both; the text of a kernel calls the functions that they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from roller.schedule.tir import Buffer, Expr, Stmt
from roller.schedule.walk import Position


@dataclass(frozen=True)
class Operand:
    """Where a matrix atom's operand lies in a panel: the element of each atom's corner, from a common address, and the steps along
    the operand's rows (columns for the second) and along the reduction.
    """

    panel: Buffer
    base: Position
    corners: tuple[int, ...]
    side_step: int
    depth_step: int


class MatrixUnit(Protocol):
    """How a group of lanes computes one matrix atom. The first operand has the rows m of the results, the second the columns n."""

    @property
    def results(self) -> Mapping[str, tuple[int, ...]]:
        """For m and n the rows and columns of a lane's results, from its first one."""

    @property
    def registers(self) -> Mapping[str, int]:
        """For m and n the elements of a lane's part of an operand, of type `dtype`."""

    @property
    def dtype(self) -> str:
        """The type of registers that hold operands."""

    def first(self, role: str, lane: Expr) -> Expr:
        """The row (m) or column (n) of the first result of a lane of the group."""

    def fetch(self, role: str, lane: Expr, operand: Operand, held: Buffer) -> list[Stmt]:
        """Read an operand's fragments, those of one atom after another, into a lane's registers."""

    def multiply(self, results: Sequence[Expr], first: Expr, second: Expr) -> Stmt:
        """One atom: results, row by row, take in the product of the fragments that begin at two places; all are addresses."""


class Copies(Protocol):
    """Copies into the memory of a block that run while lanes do something else."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes that one copy can take."""

    def copy(self, target: Expr, source: Expr, size: int, inside: Expr | None) -> Stmt:
        """Start one copy between two addresses; zeros arrive where `inside` does not hold."""

    def close(self) -> Stmt:
        """What a lane has started since the last time belongs together."""

    def wait(self, open_groups: int) -> Stmt:
        """Wait until of a lane's groups only so many last ones are under way."""


@dataclass(frozen=True)
class Machine:
    """`group`: lanes that run in step (a warp); `units`: matrix atoms by name; `copies`: None where lanes carry what they copy."""

    group: int
    units: Mapping[str, MatrixUnit]
    copies: Copies | None = None
