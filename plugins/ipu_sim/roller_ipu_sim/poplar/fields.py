"""Accesses of a vertex as fields of a codelet, one for each piece of a buffer, and the loop that its workers divide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roller_ipu_sim.manifest.affine import total
from roller_ipu_sim.manifest.models import BYTES
from roller_ipu_sim.poplar.scalars import STORED_TYPES

__all__ = ["Access", "Deal", "Field", "dealt", "fields_of"]

WORD = 4  # bytes of a worker's store; narrower stores read the word, change it and write it back
VECTOR = 8  # bytes: the alignment of fields for loads and stores
WIDE = 16  # bytes of a load from interleaved memory


@dataclass(frozen=True, slots=True)
class Access:
    """One operand of a vertex: elements `offset + sum of stride * loop index` of a buffer, over loops of `extents`."""

    name: str
    buffer: str
    dtype: str
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    reads: bool = True
    writes: bool = False
    interleaved: bool = False

    @property
    def low(self) -> int:
        """The first element."""
        return self.offset + sum(min(0, s * (e - 1)) for e, s in zip(self.extents, self.strides, strict=True))

    @property
    def high(self) -> int:
        """One behind the last element."""
        return self.offset + sum(max(0, s * (e - 1)) for e, s in zip(self.extents, self.strides, strict=True)) + 1

    @property
    def dense(self) -> bool:
        """True if every element between the first and the last is touched; holds only if none is touched twice."""
        moved = [e for e, s in zip(self.extents, self.strides, strict=True) if s]
        return math.prod(moved) == self.high - self.low


@dataclass(frozen=True, slots=True)
class Field:
    """A piece of a buffer as a member of a codelet: elements low … high."""

    name: str
    buffer: str
    dtype: str
    low: int
    high: int
    direction: str
    interleaved: bool

    @property
    def declaration(self) -> str:
        """The member of the codelet's class."""
        start = self.low * BYTES[self.dtype]
        layout = ", VectorLayout::SPAN"
        if self.interleaved and start % WIDE == 0:
            layout += f", {WIDE}, true"
        elif start % VECTOR == 0:
            layout += f", {VECTOR}" + (", true" if self.interleaved else "")
        else:
            layout = ""  # not aligned to more than an element
        return f"{self.direction}<Vector<{STORED_TYPES[self.dtype]}{layout}>> {self.name};"

    def element(self, access: Access, variables: Sequence[str]) -> str:
        """Returns an element of an operand at the loops' variables."""
        terms = [(s if e > 1 else 0, v) for e, s, v in zip(access.extents, access.strides, variables, strict=True)]
        return f"{self.name}[{total(access.offset - self.low, terms)}]"


def fields_of(accesses: Sequence[Access]) -> dict[str, Field]:
    """Returns the field of each operand: operands whose pieces of a buffer overlap share one."""
    groups: list[list[Access]] = []
    for access in accesses:
        joined = [access]
        for group in list(groups):
            low, high = min(a.low for a in joined), max(a.high for a in joined)
            if group[0].buffer == access.buffer and any(a.low < high and low < a.high for a in group):
                groups.remove(group)
                joined = group + joined
        groups.append(joined)
    found: dict[str, Field] = {}
    for group in sorted(groups, key=lambda g: accesses.index(g[0])):
        low, high = min(a.low for a in group), max(a.high for a in group)
        reads, writes = any(a.reads for a in group), any(a.writes for a in group)
        whole = any(a.writes and a.dense and (a.low, a.high) == (low, high) for a in group)
        direction = "Input" if not writes else "Output" if whole and not reads else "InOut"
        interleaved = any(a.interleaved for a in group)
        name = next((a.name for a in group if a.writes), group[0].name)
        made = Field(name, group[0].buffer, group[0].dtype, low, high, direction, interleaved)
        found |= {a.name: made for a in group}
    return found


@dataclass(frozen=True, slots=True)
class Deal:
    """The loop whose indices workers take in turn, `chunk` at a time; loop None: one worker does everything."""

    loop: int | None
    chunk: int = 1


def dealt(out: Access, loops: Sequence[int]) -> Deal:
    """Returns the division of the given loops of a result among workers, so that no two of them store to one word of memory."""
    choices = [(-(-out.extents[loop] // chunk), Deal(loop, chunk)) for loop in loops if (chunk := _chunk(out, loop))]
    return max((c for c in choices if c[0] > 1), key=lambda choice: choice[0], default=(0, Deal(None)))[1]


def _chunk(out: Access, loop: int) -> int:
    """Returns the fewest consecutive indices of a loop whose results start at a word and share none with others; 0 if none do."""
    per_word = max(1, WORD // BYTES[out.dtype])
    if per_word == 1:
        return 1
    walked = sorted((s, e) for e, s in zip(out.extents, out.strides, strict=True) if e > 1 and s)
    reach = 0
    for stride, extent in walked:
        if stride <= reach:  # backwards, or loops that interleave
            return 0
        reach += stride * (extent - 1)
    outer = [stride for stride, _ in walked if stride > out.strides[loop]]
    if any(value % per_word for value in (*outer, out.offset)):
        return 0
    return per_word // math.gcd(per_word, out.strides[loop])
