"""Parts of results dealt out to the tiles that add them up: each gets a piece of the results' box, a range of its elements.

Where finishing them takes more than the results themselves, a piece is a box, so that whatever is read steps evenly: loops walk it,
as many as it takes for that. Dimensions along which all that is read steps on like the results are one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Axis", "Pieces", "axes_of", "pieces_of"]

Axis = tuple[int, int]  # a dimension of the nest whose steps a loop takes, and its extent


@dataclass(frozen=True, slots=True)
class Pieces:
    """Partial results of one unit tile, dealt out: elements in all, of a piece, of how many bytes. `axes`: loops over all of them,
    outermost first; a piece is some trips of the one at `cut`, with all of those inside it, in one trip of those around it.
    """

    elements: int
    size: int
    element_bytes: int
    axes: tuple[Axis, ...]
    cut: int

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return -(-self.elements // self.size)

    @property
    def most(self) -> int:
        """Elements of the largest piece: a single result is less than the whole grain that it takes."""
        return min(self.size, self.elements)

    def of(self, number: int) -> int:
        """Elements of a piece: the last one may be smaller."""
        return min(self.size, self.elements - number * self.size)

    def shape(self, elements: int) -> tuple[int, ...]:
        """The extents of the loops over a piece of so many elements."""
        if not self.axes:
            return ()
        inner = tuple([extent for _, extent in self.axes[self.cut + 1 :]])
        return (1,) * self.cut + (elements // math.prod(inner), *inner)

    def begin(self, number: int) -> dict[int, int]:
        """Where a piece begins along each loop, by the loop's dimension."""
        left, found = number * self.size, {}
        for dim, extent in reversed(self.axes[1:]):
            left, found[dim] = divmod(left, extent)
        return found | {dim: left for dim, _ in self.axes[:1]}

    def in_vectors(self, vector: int) -> int:
        """Elements of the largest piece, rows in whole vectors."""
        shape = self.shape(self.most)
        return math.prod(shape[:-1]) * (-(-shape[-1] // vector) * vector) if shape else 1


def axes_of(axes: Sequence[Axis], steps: Sequence[Sequence[int]]) -> tuple[Axis, ...]:
    """As few loops as walk results and what is read, which has `steps` along `axes`, evenly. Without the loops of one trip."""
    kept = [place for place, (_, extent) in enumerate(axes) if extent > 1]
    found: list[tuple[int, int]] = []  # places and extents
    for place in kept:
        extent = axes[place][1]
        if found and all(each[found[-1][0]] == extent * each[place] for each in steps):
            found[-1] = place, found[-1][1] * extent
        else:
            found.append((place, extent))
    return tuple([(axes[place][0], extent) for place, extent in found])


@lru_cache(4096)
def pieces_of(axes: tuple[Axis, ...], parts: int, grain: int, element_bytes: int) -> Pieces:
    """The smallest pieces, whole grains of elements, of which there are no more than `parts`."""
    extents = [extent for _, extent in axes] or [1]
    elements = math.prod(extents)
    least = -(-elements // (parts * grain)) * grain
    inner = elements // extents[0]
    step = grain // math.gcd(inner, grain)
    choices = [(-(-least // (inner * step)) * step * inner, 0)]
    for cut, extent in enumerate(extents[1:], 1):
        inner //= extent
        sizes = [count * inner for count in range(1, extent) if extent % count == 0]
        choices += [(size, cut) for size in sizes if size >= least and size % grain == 0][:1]
    size, cut = min(choices)
    return Pieces(elements, size, element_bytes, axes, cut)
