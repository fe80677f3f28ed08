"""The four alignment rules: which extents a tile may have.

1. Execution unit: extents are multiples of the atom's, and concurrent sub-tiles fill whole lane groups.
2. Memory transaction: a staged tile's contiguous run is a multiple of the transaction, or the whole row.
3. Bank: rows of a staged tile start in different banks (storage padding; `roller.layout.banks`).
4. Tensor shape: covering the tensor with whole tiles wastes work (tensor padding). No tile is refused for it: the model charges it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from roller.ir.elementwise import Extent
from roller.ir.nest import Nest, Tile
from roller.target.hardware import ComputeAtom, HardwareSpec, MemoryLevel

LANES = "lanes per unit"
FINE_STEPS = 8  # multiples of the base step tried one by one before extents double


@dataclass(frozen=True, slots=True)
class Multiple:
    """The extents that a dimension may have at a level: multiples of `step`, at most `limit`.

    `even`: construction may choose any of them that cuts the dimension into equal parts, beyond those of `aligned_extents`. This
    serves machines with so many units that all of them work only if the parts are equal. `exact`: the only extent, if there is one.
    """

    step: int = 1
    limit: int | None = None
    even: bool = False
    exact: int | None = None

    def around(self, inner: Extent) -> Extent:
        """Returns the extent around an inner one of which all others are multiples: for one, or an array of them."""
        if self.exact is not None:
            return self.exact + 0 * inner
        return np.lcm(np.maximum(inner, 1), self.step) if isinstance(inner, np.ndarray) else math.lcm(max(inner, 1), self.step)


def atom_tile(nest: Nest, atom: ComputeAtom, mapping: tuple[tuple[str, int], ...]) -> Tile:
    """Returns the innermost tile of an atom: its extents along the dimensions of its roles, 1 elsewhere (rule 1).

    A role that streams starts with the atom's own step. Without one, it starts with the number of rows, a power of two, that takes
    as long as loading the stationary block.
    """
    roles = atom.extents
    rows = atom.startup_cycles / atom.row_cycles if atom.row_cycles else 1.0
    streamed = atom.stream_step or 1 << max(0, math.ceil(math.log2(max(rows, 1.0))))
    tile = [1] * len(nest.dims)
    for role, dim in mapping:
        extent = roles[role]
        tile[dim] = extent if isinstance(extent, int) else min(streamed, max(nest.dims[dim].extent, 1))
    return tuple(tile)


# Types without an instruction of their own are computed as the next wider type of their kind, at its rate.
STAND_IN: Mapping[str, str] = {
    "float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32", "bool": "int32",
    "int64": "int32",
}  # fmt: skip


def atoms_for(dtype: str, atoms: tuple[ComputeAtom, ...]) -> tuple[ComputeAtom, ...]:
    """Returns the scalar and vector atoms that can compute in a type: those of the type, else those of its `STAND_IN`."""
    plain = [a for a in atoms if not a.sums]
    own = tuple(a for a in plain if a.acc_dtype == dtype)
    return own or tuple(a for a in plain if a.acc_dtype == STAND_IN.get(dtype))


def transaction_step(nest: Nest, level: MemoryLevel, dim: int) -> int:
    """Returns the elements along a dimension that fill one transaction of the level, if some array is contiguous there (rule 2)."""
    sizes = [a.element_bytes for a in nest.accesses if a.strides[dim] == 1 and a.role != "epilogue"]
    return max((max(1, level.transaction_bytes // size) for size in sizes), default=1)


def aligned_extents(extent: int, inner: int, multiple: Multiple) -> Iterator[int]:
    """Yields the extents worth trying for a dimension, in rising order: multiples of the inner tile's and the rule's step.

    The list depends on the base step only, never on the current tile: `FINE_STEPS` single steps, then steps that double, and last
    the whole extent rounded up.
    """
    base = multiple.around(inner)
    whole = -(-extent // base) * base
    limit = min(whole, multiple.limit) if multiple.limit is not None else whole
    count = 1
    while count * base < limit:
        yield count * base
        count += 1 if count < FINE_STEPS else 2 ** (count.bit_length() - 3)
    if limit >= base:
        yield limit // base * base


def even_extents(extent: int, inner: int, multiple: Multiple) -> list[int]:
    """Returns in rising order the extents that cut a dimension into equal parts, rounded to the inner tile's and rule's step."""
    base = multiple.around(inner)
    whole = -(-extent // base)
    limit = whole if multiple.limit is None else min(whole, multiple.limit // base)
    found, parts = [], 1
    while parts <= whole:
        size = -(-whole // parts)
        if size <= limit:
            found.append(size * base)
        parts = -(-whole // (size - 1)) if size > 1 else whole + 1
    return found[::-1]


def next_aligned(extent: int, inner: int, current: int, multiple: Multiple) -> int | None:
    """Returns the next extent after the current one, None at the end."""
    return next((e for e in aligned_extents(extent, inner, multiple) if e > current), None)


def lane_rule(spec: HardwareSpec, lanes: int, every: int) -> str | None:
    """Returns why this number of concurrent sub-tiles of a unit breaks rule 1, or None; `every`: those of the whole problem.

    Fewer than one lane group are allowed only where the problem has no more; the cost model charges the idle lanes.
    """
    group = spec.unit.lane_group
    if lanes > spec.unit.lanes_max:
        return LANES
    few = every <= lanes < group
    return None if spec.unit.lanes_fixed or lanes % group == 0 or few else "lane group multiple"


@dataclass(frozen=True)
class Rules:
    """The atoms and extent rules of one device; frozen, so that construction cannot depend on call order."""

    atoms: tuple[ComputeAtom, ...]
    multiples: Mapping[tuple[int, str], Multiple]  # (level, dimension name) → rule
    # The same for each stage alone, by its name, where an expression has several: a name may mean another dimension in each.
    stages: Mapping[str, Mapping[tuple[int, str], Multiple]] = field(default_factory=dict)

    def of(self, stage: str) -> Rules:
        """Returns the rules for one stage's dimensions."""
        return Rules(self.atoms, self.stages[stage]) if stage in self.stages else self

    def naming(self, level: int, tile: Mapping[str, int]) -> Rules:
        """Returns the rules under which tiles of a level have the named extents, and no others."""
        named = {(level, name): self.multiple(level, name) for name in tile}
        for (_, name), rule in named.items():
            most = tile[name] if rule.limit is None else min(rule.limit, tile[name])
            named[level, name] = replace(rule, limit=most, exact=tile[name])
        return Rules(self.atoms, {**self.multiples, **named})

    def limits(self, nest: Nest, levels: int) -> dict[tuple[int, int], int]:
        """Returns the largest extents that the rules allow, for `levels` levels.

        The keys are (level, position of the dimension in the nest).

        A limit at a level also holds at the levels inside it, whose tiles are parts of its own.
        """
        found: dict[tuple[int, int], int] = {}
        for (level, name), multiple in self.multiples.items():
            if multiple.limit is None:
                continue
            for place in itertools.product(range(level, levels), [d for d, dim in enumerate(nest.dims) if dim.name == name]):
                found[place] = min(multiple.limit, found.get(place, multiple.limit))
        return found

    def multiple(self, level: int, dim: str) -> Multiple:
        """Returns the rule for a dimension at a level."""
        return self.multiples.get((level, dim), Multiple())
