"""Profile of an execution in simulated cycles: supersteps, kinds of work, words, memory of tiles. No silicon was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["KINDS", "VERTEX_KINDS", "Profile", "Superstep", "ranges"]

VERTEX_KINDS = ("amp", "map", "reduce", "fill", "copy")
KINDS = (*VERTEX_KINDS, "exchange", "sync")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Superstep:
    """One phase: compute steps without sync between them, or an exchange with its sync. Arrays have an entry for each tile.

    `parts`: the cycles of the slowest tile by kind of work; they sum to `cycles`. A multicast's words leave once.
    """

    name: str
    kind: Literal["compute", "exchange"]
    steps: tuple[int, int]  # first and last step of the manifest
    cycles: int
    slowest: int
    parts: Mapping[str, int]
    tile_cycles: Numbers
    words_in: Numbers | None = None
    words_out: Numbers | None = None
    fragments: Numbers | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values; values that differ by tile become ranges of equal tiles."""
        table: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "steps": list(self.steps),
            "simulated_cycles": self.cycles,
            "slowest_tile": self.slowest,
            "parts": dict(self.parts),
            "tile_cycles": ranges(self.tile_cycles),
        }
        for name in ("words_in", "words_out", "fragments"):
            values = getattr(self, name)
            if values is not None:
                table[name] = ranges(values)
        return table


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The phases of one execution, and the memory of each tile: the most bytes live at once, without reserved memory."""

    chip: str
    clock_ghz: float
    supersteps: tuple[Superstep, ...]
    memory: Numbers
    capacity: int
    reserved: int

    @property
    def cycles(self) -> int:
        """Simulated cycles of the whole program."""
        return sum(step.cycles for step in self.supersteps)

    @property
    def seconds(self) -> float:
        """The simulated cycles at the chip's clock."""
        return self.cycles / (self.clock_ghz * 1e9)

    @property
    def by_kind(self) -> dict[str, int]:
        """Simulated cycles by kind of work, along the slowest tile of each phase; they sum to `cycles`."""
        return {kind: sum(step.parts.get(kind, 0) for step in self.supersteps) for kind in KINDS}

    @property
    def balance(self) -> float:
        """Mean over tiles of the cycles in compute phases, relative to the slowest tiles' cycles; 1.0 without compute."""
        computing = [step for step in self.supersteps if step.kind == "compute"]
        longest = sum(step.cycles for step in computing)
        return sum(float(step.tile_cycles.mean()) for step in computing) / longest if longest else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {
            "chip": self.chip,
            "clock_ghz": self.clock_ghz,
            "tiles": len(self.memory),
            "simulated_cycles": self.cycles,
            "simulated_seconds": self.seconds,
            "by_kind": self.by_kind,
            "balance": self.balance,
            "supersteps": [step.to_dict() for step in self.supersteps],
            "memory": {"capacity_bytes": self.capacity, "reserved_bytes": self.reserved, "live_bytes": ranges(self.memory)},
        }


def ranges(values: Numbers) -> list[list[int]]:
    """Returns neighbouring tiles of one value as [first tile, count, value]."""
    if not len(values):
        return []
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    counts = np.diff(np.r_[starts, len(values)])
    return [[int(first), int(count), int(values[first])] for first, count in zip(starts, counts, strict=True)]
