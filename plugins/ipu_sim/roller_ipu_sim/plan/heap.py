"""Memory allocation in a tile: addresses of buffers, and whether they fit. A buffer has the same address on all its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.plan.stage_plan import GRAIN_BYTES


@dataclass(frozen=True, slots=True)
class Wish:
    """A requested buffer.

    `apart`: it begins at a memory element of its own. `interleaved`: it requires the interleaved region. `lasting`: it lives for
    the whole program, not only while its stage runs.
    """

    name: str
    nbytes: int
    apart: bool = False
    interleaved: bool = False
    lasting: bool = False


@dataclass(frozen=True)
class Memory:
    """Addresses by name, and the bytes that a tile needs, the code of the program and of its exchanges included."""

    addresses: dict[str, int]
    needed: int
    room: int

    @property
    def excess(self) -> int:
        """Bytes by which a tile's memory is exceeded; 0 where everything fits."""
        return max(0, self.needed - self.room)


def placed(stages: Sequence[Sequence[Wish]], machine: Machine) -> Memory:
    """Returns addresses for the buffers of a program's stages, which run in sequence.

    Lasting buffers come first, then each stage's own on top of them. Buffers that require the interleaved region start at its
    beginning, the others in the plain region behind the program's code, or behind the former where that region is full. If the
    result exceeds the memory, and no buffer requires a region, all follow one another from the code on, without a gap between the
    regions. Weights of the matrix unit are excluded from this: many programs that would then fit are slower than programs of
    smaller parts, and construction, which advances by small steps, would stay there.
    """
    start = machine.memory.region0_bytes
    apart = _placed(stages, machine, _Heap(machine, machine.reserved_bytes, start))
    if not apart.excess or any(wish.interleaved for wishes in stages for wish in wishes):
        return apart
    return min(apart, _placed(stages, machine, _Row(machine, machine.reserved_bytes)), key=lambda memory: memory.needed)


def _placed(stages: Sequence[Sequence[Wish]], machine: Machine, lasting: _Heap | _Row) -> Memory:
    addresses = lasting.take([wish for wishes in stages for wish in wishes if wish.lasting])
    needed = lasting.needed
    for wishes in stages:
        heap = replace(lasting)
        addresses |= heap.take([wish for wish in wishes if not wish.lasting])
        needed = max(needed, heap.needed)
    return Memory(addresses, needed, machine.tile_bytes)


@dataclass
class _Heap:
    """A bump allocator with the first free address of the plain region, and of the interleaved one."""

    machine: Machine
    low: int
    high: int

    @property
    def needed(self) -> int:
        """Bytes from the tile's first byte on."""
        return max(self.low, self.high)

    def take(self, wishes: Sequence[Wish]) -> dict[str, int]:
        """Allocates buffers."""
        memory, start = self.machine.memory, self.machine.memory.region0_bytes
        pair = memory.interleave * memory.element_bytes  # an element of the interleaved region
        found = {}
        for wish in sorted(wishes, key=lambda w: (not w.interleaved, not w.apart)):
            at = _up(self.low, memory.element_bytes if wish.apart else GRAIN_BYTES)
            if at + wish.nbytes <= start and not (wish.interleaved and self.machine.placing.interleaved):
                found[wish.name], self.low = at, at + wish.nbytes
                self.low = _up(self.low, memory.element_bytes) if wish.apart else self.low
                continue
            at = _up(self.high - start, pair if wish.apart else GRAIN_BYTES) + start
            found[wish.name], self.high = at, at + wish.nbytes
            self.high = _up(self.high - start, pair) + start if wish.apart else self.high
        return found


@dataclass
class _Row:
    """A bump allocator with the first free address of both regions."""

    machine: Machine
    needed: int

    def take(self, wishes: Sequence[Wish]) -> dict[str, int]:
        """Allocates buffers, those that require the interleaved region last."""
        found = {}
        for wish in sorted(wishes, key=lambda w: (w.interleaved, not w.apart)):
            at = self._element(self.needed) if wish.apart else _up(self.needed, GRAIN_BYTES)
            found[wish.name], self.needed = at, at + wish.nbytes
            self.needed = self._element(self.needed) if wish.apart else self.needed
        return found

    def _element(self, address: int) -> int:
        """Returns the first address, from the given one on, at which a memory element begins."""
        memory, start = self.machine.memory, self.machine.memory.region0_bytes
        if address <= start:
            return min(start, _up(address, memory.element_bytes))
        return _up(address - start, memory.interleave * memory.element_bytes) + start


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
