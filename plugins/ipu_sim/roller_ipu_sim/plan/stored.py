"""Storage of arrays, independent of a program's tiles: the order that its instructions require, in dimensions that loops walk."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from roller.plugin import ELEMENT_BYTES, Access, ComputeAtom, Load, Nest, StageProgram
from roller_ipu_sim.plan.bodies import loads_in

GRAIN_BYTES = 8  # parts of a block, and rows of boxes, are multiples of it: the smallest size that moves well


@dataclass(frozen=True, slots=True)
class ArrayDim:
    """One stored dimension: its extent in the array, and its index as a sum of dimensions of the nest, each with a coefficient.

    It is one of the array's, neighbours merged, or a digit of one: index // divisor, modulo the extent.
    """

    source: int  # its index among the array's dimensions
    extent: int
    terms: tuple[tuple[int, int], ...]
    offset: int
    divisor: int = 1
    whole: bool = True  # the array's whole dimension, not a digit of it

    def reach(self, tile: tuple[int, ...]) -> int:
        """Returns the number of elements from the first to the last one that a tile touches, both included."""
        return 1 + sum([abs(c) * (tile[d] - 1) for d, c in self.terms])

    def plain(self, extents: tuple[int, ...]) -> bool:
        """Returns True if a dimension of the nest walks it from end to end."""
        return len(self.terms) == 1 and self.terms[0][1] == 1 and not self.offset and extents[self.terms[0][0]] == self.extent

    def least(self, tile: tuple[int, ...]) -> int:
        """Returns the offset of a box's start from the sum of its positions' contributions."""
        return self.offset + sum([c * (tile[d] - 1) for d, c in self.terms if c < 0])


@dataclass(frozen=True, slots=True)
class Stored:
    """Storage of an array, independent of a program's tiles.

    Its dimensions, those of the nest that walk them, and whether each of these walks one from end to end.
    """

    dims: tuple[ArrayDim, ...]
    walked: frozenset[int]
    plain: bool
    outside: float | int = 0  # the value of loads outside of it


_Orders = tuple[Stored | None, ...]
_known: deque[tuple[Nest, ComputeAtom, tuple[tuple[str, int], ...], _Orders]] = deque(maxlen=64)


def stored_of(program: StageProgram) -> _Orders:
    """Returns the storage of each array of a program's nest; None where an index is no sum of the nest's dimensions.

    It is the same for all programs of a construction with the same nest, atom and mapping: the most recent ones are cached.
    """
    nest, atom, mapping = program.nest, program.atom, program.mapping
    for known, unit, roles, found in tuple(_known):
        if known is nest and unit is atom and roles == mapping:
            return found
    made = tuple([_stored(nest, access, _last(program, number)) for number, access in enumerate(nest.accesses)])
    _known.appendleft((nest, atom, mapping, made))
    return made


def _stored(nest: Nest, access: Access, last: int | None) -> Stored | None:
    """Returns the storage with the dimension that walks `last` of the nest as the innermost one."""
    dims = _dims(nest, access)
    if dims is None:
        return None
    along = [d for d in dims if last is not None and any(n == last for n, _ in d.terms)]
    order = tuple([d for d in dims if d not in along[-1:]] + along[-1:])
    used = [d.terms[0][0] for d in order if d.plain(nest.extents)]
    plain = len(used) == len(order) == len(set(used)) and not access.guarded
    return Stored(order, frozenset([n for d in order for n, _ in d.terms]), plain, _outside(nest, access))


def _outside(nest: Nest, access: Access) -> float | int:
    stage = nest.stage
    loads = [*loads_in(stage.body), *(loads_in(stage.epilogue) if stage.epilogue is not None else [])]
    fills = [ld.fill for ld in loads if ld.tensor == access.tensor.name and ld.index == access.index]
    return next((f for f in fills if f is not None), 0)


def _dims(nest: Nest, access: Access) -> list[ArrayDim] | None:
    """Returns the array's dimensions over those of the nest; neighbours that one fused dimension walks become one."""
    where = {axis.name: (n, m) for n, d in enumerate(nest.dims) for m, axis in enumerate(d.members)}
    found: list[ArrayDim] = []
    place = 0
    while place < len(access.index):
        fused = _fused(nest, access, place)
        if fused is not None:
            dim, count = fused
            extent = math.prod(access.tensor.shape[place : place + count])
            found.append(ArrayDim(max([d.source + 1 for d in found], default=0), extent, ((dim, 1),), 0))
            place += count
            continue
        index = access.index[place]
        if access.tensor.shape[place] == 1 and not index.offset and not any(name in where for name, _ in index.terms):
            place += 1  # a single row, without storage or movement of its own
            continue
        terms = [(where[name], c) for name, c in index.terms if name in where]
        if any(len(nest.dims[n].members) > 1 for (n, _), _ in terms):
            return None
        source = max([d.source + 1 for d in found], default=0)
        walked = tuple([(n, c) for (n, _), c in terms])
        extent = access.tensor.shape[place]
        found += _in_digits(nest, source, extent, walked, index.offset) or [ArrayDim(source, extent, walked, index.offset)]
        place += 1
    return found


def _in_digits(nest: Nest, source: int, extent: int, terms: tuple[tuple[int, int], ...], offset: int) -> list[ArrayDim]:
    """Returns one stored dimension for each loop, if several loops walk a dimension like digits of a number (channel groups).

    Empty for other dimensions.
    """
    found: list[ArrayDim] = []
    size = 1
    for dim, coefficient in sorted(terms, key=lambda t: t[1]):
        if coefficient != size:
            return []
        found.insert(0, ArrayDim(source, nest.extents[dim], ((dim, 1),), 0, size, False))
        size *= nest.extents[dim]
    return found if len(found) > 1 and size == extent and not offset else []


def _fused(nest: Nest, access: Access, place: int) -> tuple[int, int] | None:
    """Returns the fused dimension whose axes walk the array's dimensions from `place` on one by one, and how many; else None."""
    for number, dim in enumerate(nest.dims):
        if len(dim.members) == 1:
            continue
        wanted = [axis.name for axis in dim.members]
        count = len(wanted)
        if [index.terms for index in access.index[place : place + count]] != [((name, 1),) for name in wanted]:
            continue
        rows = zip(access.index[place : place + count], access.tensor.shape[place:], dim.members, strict=False)
        if all(not index.offset and extent == axis.extent for index, extent, axis in rows):
            return number, count
    return None


def _last(program: StageProgram, number: int) -> int | None:
    """Returns the dimension along which the program's instructions read or write an array.

    An array that is only moved keeps its own order: the move is the purpose of such a program.
    """
    access, stage = program.nest.accesses[number], program.nest.stage
    if isinstance(stage.body, Load) and stage.epilogue is None and stage.reducer is None:
        return None
    role = "k" if access.role == "body" else "n"
    wanted = program.role(role) if program.atom.kind == "matrix" else program.lane
    return wanted if wanted is not None and access.touches[wanted] else in_words(program.nest, access)


def in_words(nest: Nest, access: Access) -> int | None:
    """Returns the dimension that comes last in an array of small elements whose own last dimension is walked in windows.

    Rows of windows would not begin at words. It is the longest of those that are walked from end to end; None for other arrays.
    """
    size, dims = ELEMENT_BYTES[access.tensor.dtype], _dims(nest, access) or []
    if size >= GRAIN_BYTES // 2 or not dims or dims[-1].plain(nest.extents):
        return None
    plain = [d.terms[0][0] for d in dims if d.plain(nest.extents)]
    return max(plain, key=lambda n: (nest.extents[n], n), default=None)


__all__ = ["GRAIN_BYTES", "ArrayDim", "Stored", "in_words", "stored_of"]
