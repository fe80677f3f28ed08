"""The tiles of the original ROLLER for a product, by its published policy: reduction-bound operators, K candidates, no ranking.

Written from a description of the artifact (branch osdi22_artifact of https://github.com/microsoft/nnfusion). Asked about a V100 it
gives the tiles that running the original's own code gave (`data/roller_v100_top1.csv`, which a test compares); for the MI50, whose
tiles nobody published, it says which ones the published times belong to.

Tiles grow depth-first, in two levels: what a lane computes, then what a block does, each along the axis that one more element of
would raise the work for a byte most. A block's tile that fills its lanes and is bound by arithmetic is a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

WANTED = 10  # candidates
EPSILONS = tuple(step / 5 for step in range(6))  # how much of the work may be padding, tried in this order
LANE_STEPS = (1, 2, 4, 8, 16, 32)
BLOCK_STEPS = range(1, 33)  # multiples of a lane's rows or columns
DEEPEST, DEEPER = 32, 4  # the most of the reduction at a time, and by how much a step of it grows
ROUND = 4  # groups of lanes that a block has a multiple of
BYTES = 4  # float32
Tile = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """The original's file about a chip: GB/s from memory and from shared memory, GFLOP/s, registers of a block and of a lane, bytes
    of shared memory, lanes of a group and of a block, units, elements of a transaction.
    """

    bandwidths: tuple[float, float]
    gflops: float
    block_registers: int
    lane_registers: int
    shared_bytes: int
    group: int
    units: int
    transaction: int
    lanes: int = 512


V100 = Device((750.0, 12080.0), 12480.0, 32768, 96, 49152, 32, 80, 8)
MI50 = Device((900.0, 8000.0), 12000.0, 20000, 70, 34000, 64, 60, 16)


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows, columns and depth of a block's tile, rows and columns of a lane's."""

    block: Tile
    lane: Tile


@dataclass
class Walk:
    """One search for tiles of a product, with one limit of padding."""

    extents: Tile
    device: Device
    epsilon: float
    found: list[Choice] = field(default_factory=list)
    border: list[Choice] = field(default_factory=list)  # the last ones before a limit, for where nothing is bound by arithmetic
    seen: set[tuple[Tile, Tile | None]] = field(default_factory=set)

    def choices(self) -> list[Choice]:
        """The tiles, in the order they are met."""
        steps = [[s for s in LANE_STEPS if self._pads_little(s, axis)] for axis in (0, 1)]
        self._grow((0, 0, 0), [*steps, [1]], None, None)
        return self.found or self.border

    def _grow(self, place: Tile, steps: Sequence[Sequence[int]], lane: Tile | None, before: Tile | None) -> None:
        """Go on from one tile: a lane's where `lane` is None, else a block's over it."""
        tile = tuple(axis[at] for axis, at in zip(steps, place, strict=True))
        if (tile, lane) in self.seen or len(self.found) >= WANTED:
            return
        self.seen.add((tile, lane))
        if not self._fits(tile, lane):
            if before is not None:
                self._at_the_border(before, lane)
            return
        if self._whole_groups(tile, lane) and self._bound_by_arithmetic(tile, lane is None):
            if lane is None:
                self._blocks(tile)
            else:
                self.found.append(Choice(tile, lane[:2]))
        for axis in sorted(range(3), key=lambda a: -self._score(tile, a)):
            if place[axis] + 1 < len(steps[axis]):
                self._grow((*place[:axis], place[axis] + 1, *place[axis + 1 :]), steps, lane, tile)

    def _at_the_border(self, tile: Tile, lane: Tile | None) -> None:
        if lane is None and not self.found:
            self._blocks(tile)
        elif lane is not None and self._whole_groups(tile, lane):
            self.border.append(Choice(tile, lane[:2]))

    def _blocks(self, lane: Tile) -> None:
        """All blocks over a lane's tile: columns in whole transactions, depths that grow fourfold."""
        bases = lane[0], math.lcm(lane[1], self.device.transaction)
        steps = [[base * n for n in BLOCK_STEPS if self._pads_little(base * n, axis)] for axis, base in enumerate(bases)]
        most, depths = min(self.extents[2], DEEPEST), [min(self.device.transaction, self.extents[2], DEEPEST)]
        while depths[-1] < most:
            depths.append(min(depths[-1] * DEEPER, most))
        if all(steps):
            self._grow((0, 0, 0), [*steps, depths], lane, None)

    def _pads_little(self, size: int, axis: int) -> bool:
        extent = self.extents[axis]
        return -(-extent // size) * size <= extent * (1 + self.epsilon)

    def _fits(self, tile: Tile, lane: Tile | None) -> bool:
        if lane is None:
            return registers(tile) <= self.device.lane_registers
        many = lanes(tile, lane)
        held = BYTES * (tile[0] + tile[1]) * tile[2]
        roomy = registers(lane) * many <= self.device.block_registers
        return many <= self.device.lanes and roomy and held < self.device.shared_bytes

    def _whole_groups(self, tile: Tile, lane: Tile | None) -> bool:
        return lane is None or lanes(tile, lane) % (ROUND * self.device.group) == 0

    def _work(self, tile: Sequence[int]) -> tuple[float, float]:
        """Operations of a tile over the whole reduction, and the bytes it reads and writes."""
        depth = -(-self.extents[2] // tile[2]) * tile[2]
        return 2.0 * tile[0] * tile[1] * depth, BYTES * float((tile[0] + tile[1]) * depth + tile[0] * tile[1])

    def _bound_by_arithmetic(self, tile: Tile, of_lane: bool) -> bool:
        flops, moved = self._work(tile)
        return flops / self.device.gflops > moved / self.device.bandwidths[of_lane]

    def _score(self, tile: Tile, axis: int) -> float:
        flops, moved = self._work([extent + (at == axis) for at, extent in enumerate(tile)])
        return flops / moved


def registers(lane: Tile) -> int:
    """Elements of a lane's operands and results at a time."""
    return lane[0] * lane[1] + lane[0] + lane[1]


def lanes(block: Tile, lane: Tile) -> int:
    """Lanes of a block."""
    return -(-block[0] // lane[0]) * -(-block[1] // lane[1])


def candidates(rows: int, columns: int, depth: int, device: Device) -> list[Choice]:
    """What the original tries for a product, its first choice first."""
    found: list[Choice] = []
    for epsilon in EPSILONS:
        new = Walk((rows, columns, depth), device, epsilon).choices()
        found += [choice for choice in new if choice not in found]
        if len(found) >= WANTED:
            break
    return [_shrunk(choice, rows, columns, device.units) for choice in found[:WANTED]]


def _shrunk(choice: Choice, rows: int, columns: int, units: int) -> Choice:
    """Rows and columns halved until every unit has a block."""
    block, lane = choice.block, choice.lane
    while -(-rows // block[0]) * -(-columns // block[1]) < units and max(block[:2]) > 1:
        block = (-(-block[0] // 2), -(-block[1] // 2), block[2])
        lane = (-(-lane[0] // 2), -(-lane[1] // 2))
    return Choice(block, lane)
