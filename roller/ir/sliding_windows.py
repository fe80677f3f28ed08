"""Windows: dimensions that walk one dimension of an array together, such as the pixels of a row and the taps of a filter.

Neighbouring positions of a window read mostly the same values. A panel with a value for every point of the nest holds each of them
once for every tap; one that holds what the window passes over holds each once (`Staging.windowed`), and a lane that takes all taps
along the array's innermost window at a step reads each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roller.ir.nest import Access, Nest, Tile
from roller.ir.scalar import Affine, Coordinate, Scalar, loads, walk

MOST_TAPS = 16  # that a lane takes at a step: its code has each of them once


@dataclass(frozen=True, slots=True)
class Window:
    """A spatial dimension and the reductions (`taps`) that walk an array's dimension with it; the values that one step of each
    passes; and a dimension along which that is one value (`mover`).
    """

    spatial: int
    taps: tuple[int, ...]
    mover: int
    steps: tuple[tuple[int, int], ...]

    def length(self, tile: Tile) -> int:
        """Values that the window passes over inside a tile."""
        return 1 + sum([step * (max(tile[dim], 1) - 1) for dim, step in self.steps])

    def place(self, offsets: Tile) -> int:
        """Which of these values the window is at, from the place of the first point of a tile."""
        return sum([step * offsets[dim] for dim, step in self.steps])


def windows(nest: Nest, factor: int) -> tuple[Window, ...]:
    """The windows of a factor, as its array's dimensions come: of one that depends on its place in the nest by one load alone."""
    key = "windows", factor
    found: tuple[Window, ...] | None = nest.known.get(key)
    if found is None:
        found = nest.known[key] = tuple(_windows(nest, factor))
    return found


def every_window(nest: Nest) -> tuple[Window, ...]:
    """The windows of all factors."""
    return tuple([window for factor in range(len(nest.factors)) for window in windows(nest, factor)])


def sliding(nest: Nest) -> list[int]:
    """The reduce dimensions, fused ones too, all of whose axes share an index of an array with a spatial one: a window's."""
    spatial = {a.name for d in nest.dims if not d.is_reduce for a in d.members}
    indices = [{name for name, _ in index.terms} for access in nest.inputs for index in access.index]
    beside = set().union(*(names for names in indices if names & spatial)) - spatial
    return [i for i in nest.reduce if all(a.name in beside for a in nest.dims[i].members)]


def taps_at_once(nest: Nest) -> tuple[int, ...]:
    """The reductions that lanes take whole at a step where panels hold windows: those of each array's innermost window; none where
    there is no window, or one of too many taps.
    """
    inmost = [found[-1] for f in range(len(nest.factors)) if (found := windows(nest, f))]
    taps = tuple(sorted({d for window in inmost for d in window.taps}))
    return taps if all(window.length(_only(nest, taps)) <= MOST_TAPS for window in inmost) else ()


def stored_tile(nest: Nest, factor: int, tile: Tile) -> Tile:
    """The extents of a panel that holds windows: what each passes over along its spatial dimension, nothing along its taps."""
    key = "stored", factor, tile
    found: Tile | None = nest.known.get(key)
    if found is None:
        found = nest.known[key] = _laid(tile, [(w.spatial, w) for w in windows(nest, factor)])
    return found


def filled_tile(nest: Nest, factor: int, tile: Tile) -> Tile:
    """The same, as the points whose values fill the panel: along the dimension that moves from one value to the next."""
    return _laid(tile, [(w.mover, w) for w in windows(nest, factor)])


def filled_steps(nest: Nest, factor: int, steps: Sequence[int]) -> tuple[int, ...]:
    """The steps of a panel along those of its dimensions whose points fill it."""
    others = {d for w in windows(nest, factor) for d, _ in w.steps if d != w.mover}
    return tuple([0 if d in others else s for d, s in enumerate(steps)])


def in_rows(nest: Nest, factor: int) -> tuple[int, ...]:
    """The dimensions that move inside a row of a panel that holds windows: spatial ones, and taps."""
    return (*nest.spatial, *sorted({d for w in windows(nest, factor) for d in w.taps}))


def _laid(tile: Tile, along: list[tuple[int, Window]]) -> Tile:
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
    """True if nothing but one load tells points apart."""
    return len(loads(node)) == 1 and not any(isinstance(n, Coordinate) for n in walk(node))


def _window(nest: Nest, access: Access, index: Affine) -> Window | None:
    """The window along one of an array's dimensions; None where there is none, or where axes are fused or go elsewhere too."""
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
