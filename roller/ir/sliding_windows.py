"""Sliding windows: dimensions that walk one dimension of an array together, such as the pixels of a row and the taps of a filter.

Neighbouring positions of a window read mostly the same values. A panel with a value for every point of the nest holds each value
once per tap. A windowed panel (`Staging.windowed`) holds each once. A lane that computes all taps along the array's innermost
window in one step then reads each value once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roller.ir.elementwise import Extent, Extents, largest
from roller.ir.nest import Access, Nest, Tile
from roller.ir.scalar import Affine, Coordinate, Scalar, loads, walk

MOST_TAPS = 16  # taps that a lane computes in one step: its code repeats each of them


@dataclass(frozen=True, slots=True)
class Window:
    """A spatial dimension and the reductions (`taps`) that walk an array's dimension together with it.

    `steps`: by dimension, the values that one step of it passes. `mover`: a dimension whose step is one value.
    """

    spatial: int
    taps: tuple[int, ...]
    mover: int
    steps: tuple[tuple[int, int], ...]

    def length(self, tile: Extents) -> Extent:
        """Returns the number of values that the window covers inside a tile."""
        return 1 + sum([step * (largest(tile[dim], 1) - 1) for dim, step in self.steps])

    def place(self, offsets: Tile) -> int:
        """Returns the offset of the window's value from the first point of a tile."""
        return sum([step * offsets[dim] for dim, step in self.steps])


def windows(nest: Nest, factor: int) -> tuple[Window, ...]:
    """Returns the windows of a factor in its array's order; none if the factor depends on its position by more than one load."""
    key = "windows", factor
    found: tuple[Window, ...] | None = nest.known.get(key)
    if found is None:
        found = nest.known[key] = tuple(_windows(nest, factor))
    return found


def every_window(nest: Nest) -> tuple[Window, ...]:
    """Returns the windows of all factors."""
    return tuple([window for factor in range(len(nest.factors)) for window in windows(nest, factor)])


def sliding(nest: Nest) -> list[int]:
    """Returns the reduce dimensions (fused ones too) whose axes all share an array index with a spatial axis: window dimensions."""
    spatial = {a.name for d in nest.dims if not d.is_reduce for a in d.members}
    indices = [{name for name, _ in index.terms} for access in nest.inputs for index in access.index]
    beside = set().union(*(names for names in indices if names & spatial)) - spatial
    return [i for i in nest.reduce if all(a.name in beside for a in nest.dims[i].members)]


def taps_at_once(nest: Nest) -> tuple[int, ...]:
    """Returns the reductions that lanes compute whole in one step if panels are windowed: those of each array's innermost window.

    It is empty if there is no window, or one with too many taps.
    """
    inmost = [found[-1] for f in range(len(nest.factors)) if (found := windows(nest, f))]
    taps = tuple(sorted({d for window in inmost for d in window.taps}))
    return taps if all(window.length(_only(nest, taps)) <= MOST_TAPS for window in inmost) else ()


def stored_tile(nest: Nest, factor: int, tile: Tile) -> Tile:
    """Returns the extents of a windowed panel: the values covered along each spatial dimension, 1 along its taps."""
    key = "stored", factor, tile
    found: Tile | None = nest.known.get(key)
    if found is None:
        found = nest.known[key] = tuple(stored_extents(nest, factor, tile))
    return found


def filled_tile(nest: Nest, factor: int, tile: Tile) -> Tile:
    """Returns the same extents along the movers, the dimensions whose points fill the panel."""
    return _laid(tile, [(w.mover, w) for w in windows(nest, factor)])


def filled_steps(nest: Nest, factor: int, steps: Sequence[int]) -> tuple[int, ...]:
    """Returns the steps of a panel along the dimensions whose points fill it."""
    others = {d for w in windows(nest, factor) for d, _ in w.steps if d != w.mover}
    return tuple([0 if d in others else s for d, s in enumerate(steps)])


def in_rows(nest: Nest, factor: int) -> tuple[int, ...]:
    """Returns the dimensions that move inside a row of a windowed panel: spatial ones, and taps."""
    return (*nest.spatial, *sorted({d for w in windows(nest, factor) for d in w.taps}))


def stored_extents(nest: Nest, factor: int, tile: Extents) -> Extents:
    """Returns the extents of a windowed panel for one tile or for an array of tiles, without a cache."""
    return _laid(tile, [(w.spatial, w) for w in windows(nest, factor)])


def _laid(tile: Extents, along: list[tuple[int, Window]]) -> tuple[Extent, ...]:
    found = list(tile)
    for dim, window in along:
        for other, _ in window.steps:
            found[other] = 1
        found[dim] = window.length(tile)
    return tuple(found)


def _only(nest: Nest, dims: tuple[int, ...]) -> Tile:
    return tuple([e if d in dims else 1 for d, e in enumerate(nest.extents)])


def _windows(nest: Nest, factor: int) -> list[Window]:
    mine = [a for a in nest.inputs if a.factor == factor]
    if len(mine) != 1 or not _placed_by_load(nest.factors[factor]):
        return []
    access = mine[0]
    found = [window for index in access.index if (window := _window(nest, access, index)) is not None]
    return [w for w in found if all(d not in (o for v in found if v is not w for o, _ in v.steps) for d, _ in w.steps)]


def _placed_by_load(node: Scalar) -> bool:
    """Returns True if points differ by nothing but one load."""
    return len(loads(node)) == 1 and not any(isinstance(n, Coordinate) for n in walk(node))


def _window(nest: Nest, access: Access, index: Affine) -> Window | None:
    """Returns the window along an array dimension; None if there is none, or if its axes are fused or used in other dimensions."""
    names = {name for name, _ in index.terms}
    dims = [d for d, dim in enumerate(nest.dims) if names & {a.name for a in dim.members}]
    steps = tuple((d, index.coefficient(nest.dims[d].members[0].name)) for d in dims)
    alone = all(len(nest.dims[d].members) == 1 for d in dims) and all(step > 0 for _, step in steps)
    elsewhere = [i for i in access.index if i is not index and {name for name, _ in i.terms} & names]
    spatial, taps = [d for d in dims if d in nest.spatial], tuple(d for d in dims if d in nest.reduce)
    movers = [d for d in (*spatial, *taps) if (d, 1) in steps]
    if not alone or elsewhere or len(spatial) != 1 or not taps or not movers:
        return None
    return Window(spatial[0], taps, movers[0], steps)
