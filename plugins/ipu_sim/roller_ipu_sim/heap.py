"""A tile's memory: where buffers lie, and whether they fit. All tiles that have a buffer have it at the same address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roller_ipu_sim.machine import Machine
from roller_ipu_sim.plan import GRAIN_BYTES


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
    code, or behind the former where that has no room for them.
    """
    lasting = _Heap(machine, machine.reserved_bytes, machine.memory.region0_bytes)
    addresses = lasting.take([wish for wishes in stages for wish in wishes if wish.lasting])
    needed = max(lasting.low, lasting.high)
    for wishes in stages:
        heap = _Heap(machine, lasting.low, lasting.high)
        addresses |= heap.take([wish for wish in wishes if not wish.lasting])
        needed = max(needed, heap.low, heap.high)
    return Memory(addresses, needed, machine.tile_bytes)


@dataclass
class _Heap:
    """The first free address of the plain region, and of the interleaved one."""

    machine: Machine
    low: int
    high: int

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


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
