"""Optional hardware features of a device with lanes: matrix atoms, asynchronous copies, producers, staged stores.

Device plugins describe them; the kernel source calls the functions that they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from roller.cost.parameters import PLACE_REGISTERS, Unrolling
from roller.lowering.tir.builder import AT_LAUNCH, Buffer, Expr, Stmt
from roller.lowering.tir.tile_starts import Position
from roller.target.hardware import ComputeAtom


@dataclass(frozen=True)
class Operand:
    """The position of a matrix atom's operand in a panel: corners from a common address, and steps.

    `corners`: the element of each atom's corner. `side_step`: along the operand's rows (columns for the second operand).
    `depth_step`: along the reduction. `beside`: number of neighbours along the reduction that are interleaved; `depth_step` goes
    from one multiple of it to the next.
    """

    panel: Buffer
    base: Position
    corners: tuple[int, ...]
    side_step: int
    depth_step: int
    beside: int = 1


class MatrixUnit(Protocol):
    """A matrix atom that a group of lanes computes. The first operand has the results' rows m, the second their columns n."""

    @property
    def results(self) -> Mapping[str, tuple[int, ...]]:
        """For m and n: the rows and columns of a lane's results, relative to its first one."""

    @property
    def registers(self) -> Mapping[str, int]:
        """For m and n: the elements of a lane's share of an operand, of type `dtype`."""

    @property
    def dtype(self) -> str:
        """The type of the registers that hold operands."""

    def first(self, role: str, lane: Expr) -> Expr:
        """Returns the row (m) or column (n) of the first result of a lane of the group."""

    def fetch(self, role: str, lane: Expr, operand: Operand, held: Buffer) -> list[Stmt]:
        """Loads an operand's fragments, one atom after another, into a lane's registers."""

    def multiply(self, results: Sequence[Expr], first: Expr, second: Expr, turned: tuple[bool, bool]) -> Stmt:
        """Multiplies one atom: adds the product of two fragments to the results, row by row; all arguments are addresses.

        `turned`: for each operand, whether it was loaded from rows that lie across the reduction.
        """


class Copies(Protocol):
    """Asynchronous copies into a block's shared memory (cp.async)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of one copy in bytes."""

    def copy(self, target: Expr, source: Expr, size: int, inside: Expr | None) -> Stmt:
        """Starts one copy between two addresses; it writes zeros if `inside` is false."""

    def close(self) -> Stmt:
        """Commits the copies that a lane has started since the last call as one group."""

    def wait(self, open_groups: int) -> Stmt:
        """Waits until at most `open_groups` of a lane's most recent groups are in flight."""


@dataclass(frozen=True)
class InPlace:
    """The operand of an atom that reads panels in place: byte offset of its first element, and the panel's layout.

    `offset`: bytes from `base`, an address common to all panels. Rows of `row_bytes` follow one another; in each row, pieces of 16
    bytes are XOR-swizzled by the row's number. Elements beyond `row_bytes` along a row continue `across_bytes` further. `turned`:
    rows lie across the reduction.
    """

    base: Expr
    offset: Position
    row_bytes: int
    across_bytes: int
    turned: bool


class PanelUnit(Protocol):
    """A matrix atom that reads both operands from panels, asynchronously to the lanes of its group (wgmma)."""

    @property
    def rows(self) -> int:
        """Neighbouring whole rows of results that one lane group (warp) holds."""

    @property
    def results(self) -> Mapping[str, tuple[int, ...]]:
        """For m and n: the rows and columns of a lane's results, relative to its first one."""

    def first(self, role: str, lane: Expr) -> Expr:
        """Returns the row (m) or column (n) of the first result of a lane of the group."""

    @property
    def rounds(self) -> bool:
        """True if values are rounded before they are stored in panels, because the atom would truncate them."""

    def taken(self, value: Expr) -> Expr:
        """Converts a value for its store into a panel."""

    def begin(self) -> Stmt:
        """Orders the lanes' accesses to accumulators before the atoms that follow."""

    def settled(self, results: Expr, count: int) -> Stmt:
        """Prevents the compiler from moving accesses to `count` accumulators across this point."""

    def multiply(self, results: Expr, steps: tuple[int, int], first: InPlace, second: InPlace) -> Stmt:
        """Starts one atom. `steps`: from the lane's first result to its next row and to its next column."""

    def close(self) -> Stmt:
        """Commits the atoms started since the last call as one group."""

    def wait(self, open_groups: int) -> Stmt:
        """Waits until at most `open_groups` of the last groups are in flight."""


@dataclass(frozen=True)
class TensorMap:
    """An array's description for bulk copies of boxes.

    `extents`: from the innermost dimension outwards. `strides_bytes`: of all dimensions but the innermost. `box` and `steps`:
    extents of a box and its element steps. `swizzle_bytes`: the span within which pieces are swizzled.
    """

    tensor: str
    dtype: str
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle_bytes: int


class Producers(Protocol):
    """Producer lanes of a block, which only fill panels, and the barriers between them and the consumer lanes.

    Each copy of a panel has two barriers (mbarriers), full and empty, of 8 bytes each. A barrier's phase ends when all expected
    arrivals and bytes are complete.
    """

    @property
    def lanes(self) -> int:
        """Number of producer lanes."""

    def blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Returns the blocks that can be resident on all units at a time, with these resources per block."""

    def registers(self, groups: int) -> int:
        """Returns the max registers of a consumer lane in a block of `groups` consumer groups."""

    def divide(self, groups: int, producing: bool, registers: int) -> list[Stmt]:
        """Reallocates registers from producer lanes to consumer lanes, which need about `registers`."""

    def signals(self, pair: Expr, full: int, empty: int) -> Stmt:
        """Initialises, by one lane, a pair of barriers (full and empty) with the arrivals that end a phase of each.

        0 arrivals: the barrier has no waiters and its phases must not end. Some machines require the end of a phase to be observed
        before arrivals in the next.
        """

    def ready(self) -> Stmt:
        """Makes the barriers usable, by one lane, after `signals`: all lanes may use them behind the next block barrier."""

    def wait(self, signal: Expr, phase: Expr) -> Stmt:
        """Waits until a phase with this parity has ended."""

    def expect(self, signal: Expr, size: int, arrive: bool) -> Stmt:
        """Announces `size` bytes to a barrier; the lane arrives itself, or will later."""

    def arrive(self, signal: Expr) -> Stmt:
        """Arrives once at a barrier."""

    def arrive_at(self, signal: Expr, rank: Expr) -> Stmt:
        """Arrives once at the same barrier of another block of the cluster."""

    def join(self) -> Stmt:
        """Waits for all lanes of all blocks of a cluster."""

    def copy(self, target: Expr, source: Expr, signal: Expr, corner: Sequence[Expr]) -> Stmt:
        """Starts to copy the box at a corner of an array into a panel; bytes arrive at the barrier, zeros for elements outside."""

    def spread(self, target: Expr, source: Expr, signal: Expr, corner: Sequence[Expr], cluster: int) -> Stmt:
        """Starts the same copy for all blocks of a cluster: box and bytes arrive at the same address and barrier in each block."""

    def visible(self) -> Stmt:
        """Makes the lane's stores visible to atoms that read panels."""


class Departures(Protocol):
    """Asynchronous bulk copies of result boxes from a block's shared memory (TMA store)."""

    def room(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Returns the bytes that a block with these resources may add without lower occupancy."""

    def lay(self, place: Expr, values: Sequence[Expr]) -> Stmt:
        """Stores neighbouring results at an address."""

    def together(self) -> Stmt:
        """Synchronises the lanes of a group (warp), and makes their stores visible to one another."""

    def visible(self) -> Stmt:
        """Makes the lane's stores visible to copies out of shared memory."""

    def leave(self, place: Expr, target: Expr, corner: Sequence[Expr]) -> Stmt:
        """Starts, by one lane, to copy a box to a corner of an array; elements outside the array are omitted."""

    def close(self) -> Stmt:
        """Commits the copies that the lane has started since the last call as one group."""

    def wait(self, open_groups: int) -> Stmt:
        """Waits until all but the last `open_groups` groups of the lane have been read from shared memory."""


@dataclass(frozen=True)
class Machine:
    """The lowering parameters of a device with lanes.

    `group`: lanes that run in step (a warp). `units`: matrix atoms by name. `copies`: None if lanes copy through registers.
    `panel_units`: matrix atoms that read panels, which `producers` fill. `departures`: None if lanes store all results.
    `shared_scope`: TVM's scope of shared memory, which determines when its size is set.
    `views`: addresses in panels are kept in pointers, for compilers that do not find the common parts of addresses themselves.
    `unrolling`: how many times steps of a reduction are repeated.
    `place_registers`: registers of an array address that follows from another one. `apart_registers`: additional registers of an
    address that does not; `guard_registers`: and if it may lie outside the array.
    `most_beside`: limit on the registers of results and of loads for panels; above it, loads are issued a few at a time, because
    the compiler would issue them all. None for a compiler that does not unroll loops itself.
    `across`: loads from arrays for panels stay in flight across block barriers. `settled`: by type, an identity function that is
    called in order, for compilers that would delay the computation of a value to its store and keep all its operands live.
    `functions`: by operation, the target's own function of a float32, instead of a polynomial.
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
    place_registers: float = PLACE_REGISTERS
    apart_registers: float = 1.0
    guard_registers: float = 1.0
    most_beside: int | None = 128
    across: bool = False
    settled: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)

    def in_place(self, atom: ComputeAtom) -> bool:
        """Returns True for atoms that read panels."""
        return atom.name in self.panel_units
