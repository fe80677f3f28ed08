"""What a device with lanes can do beyond computing and waiting: groups that multiply matrices, copies that run by themselves.

Device plugins describe both; the text of a kernel calls the functions that they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from roller.cost.parameters import Unrolling
from roller.lowering.tir.builder import AT_LAUNCH, Buffer, Expr, Stmt
from roller.lowering.tir.tile_starts import Position
from roller.target.hardware import ComputeAtom


@dataclass(frozen=True)
class Operand:
    """Where a matrix atom's operand lies in a panel: the element of each atom's corner, from a common address, and the steps along
    the operand's rows (columns for the second) and along the reduction. So many neighbours along it lie `beside` one another: the
    step is that from one multiple of it to the next, for each of them.
    """

    panel: Buffer
    base: Position
    corners: tuple[int, ...]
    side_step: int
    depth_step: int
    beside: int = 1


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

    def multiply(self, results: Sequence[Expr], first: Expr, second: Expr, turned: tuple[bool, bool]) -> Stmt:
        """One atom: results, row by row, take in the product of the fragments that begin at two places; all are addresses.
        `turned`: whether each was read from rows that lie across the reduction.
        """


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
class InPlace:
    """Where the operand of an atom that reads panels lies: bytes from an address of all panels to its first element, and how its
    panel is laid out.

    Rows of `row_bytes` follow one another; in each, pieces of 16 bytes change places with the row's number. Along the rows there is
    room for `row_bytes`, what follows lies `across_bytes` further. `turned`: rows lie across the reduction.
    """

    base: Expr
    offset: Position
    row_bytes: int
    across_bytes: int
    turned: bool


class PanelUnit(Protocol):
    """How a group of lanes computes a matrix atom that takes both operands from panels, while the lanes go on."""

    @property
    def rows(self) -> int:
        """Neighbouring rows of results that lanes in step have between them, whole ones."""

    @property
    def results(self) -> Mapping[str, tuple[int, ...]]:
        """For m and n the rows and columns of a lane's results, from its first one."""

    def first(self, role: str, lane: Expr) -> Expr:
        """The row (m) or column (n) of the first result of a lane of the group."""

    @property
    def rounds(self) -> bool:
        """True if values for panels are rounded, as the atom would cut them off."""

    def taken(self, value: Expr) -> Expr:
        """A value as a lane stores it into a panel."""

    def begin(self) -> Stmt:
        """Accumulators are as lanes have left them."""

    def settled(self, results: Expr, count: int) -> Stmt:
        """So many accumulators are not touched by anybody between what stands before and what comes after."""

    def multiply(self, results: Expr, steps: tuple[int, int], first: InPlace, second: InPlace) -> Stmt:
        """Start one atom. `steps`: from one of the lane's rows to the next, and columns, from the address of its first result."""

    def close(self) -> Stmt:
        """What was started since the last time belongs together."""

    def wait(self, open_groups: int) -> Stmt:
        """Wait until only so many of the last groups are under way."""


@dataclass(frozen=True)
class TensorMap:
    """An array as boxes are copied from it: extents from the innermost dimension outwards, bytes from one position to the next of
    all but the innermost, the extents of a box and the steps in it (in elements), the bytes within which pieces change places.
    """

    tensor: str
    dtype: str
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle_bytes: int


class Producers(Protocol):
    """Lanes of a block that do nothing but fill panels, and how they and those that compute signal one another.

    Each copy of a panel has two signals, full and empty, of 8 bytes each; a phase of one ends when all arrivals and all bytes that
    it waits for are there.
    """

    @property
    def lanes(self) -> int:
        """How many there are."""

    def blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks that can be on all units at a time, if each takes so much."""

    def registers(self, groups: int) -> int:
        """Registers that a lane may have which computes, in a block of so many groups of them."""

    def divide(self, groups: int, producing: bool, registers: int) -> list[Stmt]:
        """Registers handed from lanes that fill to those that compute, where these take about so many."""

    def signals(self, pair: Expr, full: int, empty: int) -> Stmt:
        """By one lane: a pair of signals, full and empty, with the arrivals that end a phase of each. 0: nobody waits for it, and
        its phases are not to end, as some machines want the end of one to be seen before there are arrivals in the next.
        """

    def ready(self) -> Stmt:
        """By one lane, after `signals`: everybody may use them behind the next barrier."""

    def wait(self, signal: Expr, phase: Expr) -> Stmt:
        """Wait until a phase with this parity has ended."""

    def expect(self, signal: Expr, size: int, arrive: bool) -> Stmt:
        """So many bytes are to come; the lane itself arrives, or will later."""

    def arrive(self, signal: Expr) -> Stmt:
        """One arrival."""

    def arrive_at(self, signal: Expr, rank: Expr) -> Stmt:
        """One arrival at the same signal of a block of the cluster."""

    def join(self) -> Stmt:
        """All lanes of all blocks of a cluster wait for one another."""

    def copy(self, target: Expr, source: Expr, signal: Expr, corner: Sequence[Expr]) -> Stmt:
        """Start to copy the box at a corner of an array into a panel; its bytes arrive at the signal, zeros for what lies
        outside.
        """

    def spread(self, target: Expr, source: Expr, signal: Expr, corner: Sequence[Expr], cluster: int) -> Stmt:
        """The same for all blocks of a cluster: the box arrives at this place in each one's memory, its bytes at its signal."""

    def visible(self) -> Stmt:
        """What the lane has stored is seen by atoms that read panels."""


class Departures(Protocol):
    """Boxes of results that are copied out of the memory of a block by themselves."""

    def room(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Bytes that a block which takes so much may take beside it without fewer blocks being on a unit at a time."""

    def lay(self, place: Expr, values: Sequence[Expr]) -> Stmt:
        """Neighbouring results stored at an address."""

    def together(self) -> Stmt:
        """Lanes in step wait for one another, and see what each has stored."""

    def visible(self) -> Stmt:
        """What the lane has stored is seen by copies out of the memory."""

    def leave(self, place: Expr, target: Expr, corner: Sequence[Expr]) -> Stmt:
        """By one lane: start to copy a box to a corner of an array; what lies outside is left out."""

    def close(self) -> Stmt:
        """What the lane has started since the last time belongs together."""

    def wait(self, open_groups: int) -> Stmt:
        """Wait until of the lane's groups only so many last ones have yet to be read from the memory."""


@dataclass(frozen=True)
class Machine:
    """`group`: lanes that run in step (a warp); `units`: matrix atoms by name; `copies`: None where lanes carry what they copy;
    `panel_units`: matrix atoms that read panels, for which `producers` fill them; `departures`: None where lanes store all results;
    `shared_scope`: where the size of the memory that a block shares is said; `views`: places in panels are kept in pointers, as
    compilers of the printed text do not find by themselves what addresses have in common; `unrolling`: how often steps of a
    reduction are repeated; `place_registers`: of a place in an array that follows from another one; `apart_registers`: what it
    takes more where it does not; `guard_registers`: and where it may lie outside;
    `most_beside`: registers of results and of what a lane reads into panels, from which on its accesses stand a few at a time, as
    the compiler would have them all under way; None where it repeats no loop by itself;
    `across`: what lanes carry from arrays to panels is on its way while they wait for one another, too; `settled`: by type, a
    function that gives back its argument and is called in order, for compilers that would put off computing a value until it is
    stored and keep all that it is computed of; `functions`: by operation, the target's own function of a float32, in the place of a
    polynomial.
    """

    group: int
    units: Mapping[str, MatrixUnit]
    copies: Copies | None = None
    panel_units: Mapping[str, PanelUnit] = field(default_factory=dict)
    producers: Producers | None = None
    departures: Departures | None = None
    shared_scope: str = AT_LAUNCH
    views: bool = True
    unrolling: Unrolling = field(default_factory=Unrolling)
    place_registers: float = 0.5
    apart_registers: float = 1.0
    guard_registers: float = 1.0
    most_beside: int | None = 128
    across: bool = False
    settled: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)

    def in_place(self, atom: ComputeAtom) -> bool:
        """True for atoms that read panels."""
        return atom.name in self.panel_units
