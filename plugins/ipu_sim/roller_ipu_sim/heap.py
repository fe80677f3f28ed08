"""A tile's memory: where buffers lie, and whether they fit. All tiles that have a buffer have it at the same address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roller_ipu_sim.machine import Machine

WORD_BYTES = 8  # buffers begin at multiples of the widest plain access


@dataclass(frozen=True, slots=True)
class Wish:
    """A buffer to be placed: `apart` begins at a memory element of its own, `interleaved` wants the interleaved region."""

    name: str
    nbytes: int
    apart: bool = False
    interleaved: bool = False


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


def placed(wishes: Sequence[Wish], machine: Machine) -> Memory:
    """Addresses for all buffers: those that want the interleaved region from its beginning on, the others in the plain region after
    the program's code, or behind the former where that has no room for them.
    """
    elements = machine.memory.element_bytes
    start = machine.memory.region0_bytes
    addresses: dict[str, int] = {}
    low, high = machine.reserved_bytes, start
    for wish in sorted(wishes, key=lambda w: (not w.interleaved, not w.apart)):
        pair = machine.memory.interleave * elements  # an element of the interleaved region
        if not (wish.interleaved and machine.placing.interleaved):
            at = _up(low, elements if wish.apart else WORD_BYTES)
            if at + wish.nbytes <= start:
                addresses[wish.name], low = at, at + wish.nbytes
                if wish.apart:
                    low = _up(low, elements)
                continue
        at = _up(high - start, pair if wish.apart else WORD_BYTES) + start
        addresses[wish.name], high = at, at + wish.nbytes
        if wish.apart:
            high = _up(high - start, pair) + start
    return Memory(addresses, max(high, low), machine.tile_bytes)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
