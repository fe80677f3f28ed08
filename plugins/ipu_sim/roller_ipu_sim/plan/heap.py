"""A tile's memory: where buffers lie, and whether they fit. All tiles that have a buffer have it at the same address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.plan.stage_plan import GRAIN_BYTES


@dataclass(frozen=True, slots=True)
class Wish:
    """A buffer to be placed: `apart` begins at a memory element of its own, `interleaved` wants the interleaved region,
    `lasting` is there from the beginning to the end, not only while its stage runs.
    """

    name: str
    nbytes: int
    apart: bool = False
    interleaved: bool = False
    lasting: bool = False


@dataclass(frozen=True)
class Memory:
    """Addresses by name, and the bytes that a tile needs, the program's code and that of its exchanges included."""

    addresses: dict[str, int]
    needed: int
    room: int

    @property
    def excess(self) -> int:
        """Bytes by which a tile's memory is exceeded; 0 where everything fits."""
        return max(0, self.needed - self.room)


def placed(stages: Sequence[Sequence[Wish]], machine: Machine) -> Memory:
    """Addresses for the buffers of a program's stages, which run one after another: what lasts first, then on top of it what each
    stage needs for itself.

    Those that want the interleaved region lie there from its beginning on, the others in the plain region behind the program's
    code, or behind the former where that has no room for them. Where that takes more than there is, and nothing wants a region
    of its own, all follow one another from the code on, so that nothing stays free between the regions. Not weights of the matrix
    unit: of what then fits much is slower than programs of smaller parts, and construction, going by small steps, stays there.
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
    """The first free address of the plain region, and of the interleaved one."""

    machine: Machine
    low: int
    high: int

    @property
    def needed(self) -> int:
        """Bytes from the first one of the tile on."""
        return max(self.low, self.high)

    def take(self, wishes: Sequence[Wish]) -> dict[str, int]:
        """Room for buffers."""
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
    """The first free address of both regions."""

    machine: Machine
    needed: int

    def take(self, wishes: Sequence[Wish]) -> dict[str, int]:
        """Room for buffers, those that want the interleaved region last."""
        found = {}
        for wish in sorted(wishes, key=lambda w: (w.interleaved, not w.apart)):
            at = self._element(self.needed) if wish.apart else _up(self.needed, GRAIN_BYTES)
            found[wish.name], self.needed = at, at + wish.nbytes
            self.needed = self._element(self.needed) if wish.apart else self.needed
        return found

    def _element(self, address: int) -> int:
        """The first address from there on at which a memory element begins."""
        memory, start = self.machine.memory, self.machine.memory.region0_bytes
        if address <= start:
            return min(start, _up(address, memory.element_bytes))
        return _up(address - start, memory.interleave * memory.element_bytes) + start


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
