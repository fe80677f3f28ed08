"""Pieces of partial results for the tiles that add them up: each tile receives a range of elements of the results' box.

If the epilogue reads more than the results, a piece is a box, so that all strides are even. As few loops as possible walk it:
dimensions along which all reads advance like the results are one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Axis", "Pieces", "axes_of", "pieces_of"]

Axis = tuple[int, int]  # the dimension of the nest that a loop walks, and the loop's extent


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of one unit tile's partial results: elements in all, of a piece, and bytes of an element.

    `axes`: loops over all elements, outermost first. A piece is some trips of the loop at `cut`, with all trips of those inside it,
    in one trip of those around it.
    """

    elements: int
    size: int
    element_bytes: int
    axes: tuple[Axis, ...]
    cut: int

    @property
    def count(self) -> int:
        """The number of pieces."""
        return -(-self.elements // self.size)

    @property
    def most(self) -> int:
        """Elements of the largest piece: a single result is less than the whole grain that it takes."""
        return min(self.size, self.elements)

    def of(self, number: int) -> int:
        """Returns the elements of a piece: the last one may be smaller."""
        return min(self.size, self.elements - number * self.size)

    def shape(self, elements: int) -> tuple[int, ...]:
        """Returns the extents of the loops over a piece of `elements` elements."""
        if not self.axes:
            return ()
        inner = tuple([extent for _, extent in self.axes[self.cut + 1 :]])
        return (1,) * self.cut + (elements // math.prod(inner), *inner)

    def begin(self, number: int) -> dict[int, int]:
        """Returns the start of a piece along each loop, by the loop's dimension."""
        left, found = number * self.size, {}
        for dim, extent in reversed(self.axes[1:]):
            left, found[dim] = divmod(left, extent)
        return found | {dim: left for dim, _ in self.axes[:1]}

    def in_vectors(self, vector: int) -> int:
        """Returns the elements of the largest piece, rows in whole vectors."""
        shape = self.shape(self.most)
        return math.prod(shape[:-1]) * (-(-shape[-1] // vector) * vector) if shape else 1


def axes_of(axes: Sequence[Axis], steps: Sequence[Sequence[int]]) -> tuple[Axis, ...]:
    """Returns the fewest loops that walk results and reads (with `steps` along `axes`) evenly, without loops of one trip."""
    kept = [place for place, (_, extent) in enumerate(axes) if extent > 1]
    found: list[tuple[int, int]] = []  # indices and extents
    for place in kept:
        extent = axes[place][1]
        if found and all(each[found[-1][0]] == extent * each[place] for each in steps):
            found[-1] = place, found[-1][1] * extent
        else:
            found.append((place, extent))
    return tuple([(axes[place][0], extent) for place, extent in found])


@lru_cache(4096)
def pieces_of(axes: tuple[Axis, ...], parts: int, grain: int, element_bytes: int) -> Pieces:
    """Returns the smallest pieces, of whole grains of elements, such that there are at most `parts`."""
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
