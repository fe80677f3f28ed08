"""Dispatch: which part of a stage's work a unit (core, SM, CU, tile processor) gets, and in which order units get it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from roller.ir.nest import Nest, Tile

Over = Literal["time", "units", "lanes"]


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: the position of its dimension, its trips, what it runs over, and the level whose tiles it walks.

    `step`: the positions of one trip where these are not a tile's, but a unit's share of a reduction or a band of tiles.
    """

    dim: int
    trips: int
    over: Over
    level: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How the unit tiles of a stage go to units. The default: the tiles of the results, one after another, over all units.

    `split` (split-K) is the number of parts into which reductions are cut over units (1: none). Each unit tile is a part. With
    `share`, a part is a number of positions of a dimension, which a unit walks in steps of its tile. `parallel` False keeps all
    units but one idle (tiny work). `cluster`: the number of neighbouring unit tiles that run at the same time, on units that fetch
    common data once (1: each its own). `band` (rasterisation, threadblock swizzle, GROUP_SIZE_M): a spatial dimension and a number
    of unit tiles of it. These follow one another before the next tile along the dimensions inside it, so that the tiles in progress
    are as near a square as that makes them. Where the number does not divide the tiles, the last band goes beyond the end, and the
    last tile is computed several times.
    """

    split: int = 1
    parallel: bool = True
    share: tuple[int, int] | None = None
    cluster: int = 1
    band: tuple[int, int] | None = None

    @property
    def cuts_tiles(self) -> bool:
        """True if the parts of a reduction that is cut over units are unit tiles, not longer shares."""
        return self.split > 1 and self.share is None

    @property
    def uncut(self) -> Dispatch:
        """The same without a cut reduction, and without the clusters that its tiles may not allow."""
        return replace(self, split=1, share=None, cluster=1)

    @property
    def unbanded(self) -> Dispatch:
        """The same without a band."""
        return self if self.band is None else replace(self, band=None)

    def shares(self, nest: Nest, level: int) -> list[Loop]:
        """Returns the loop over the shares of a reduction, where it has any."""
        if self.share is None:
            return []
        dim, step = self.share
        return [Loop(dim, -(-nest.extents[dim] // step), self.over(is_reduce=False), level, step)]

    def over(self, is_reduce: bool) -> Over:
        """Returns what a loop over unit tiles runs over."""
        return "units" if self.parallel and (self.cuts_tiles or not is_reduce) else "time"

    def in_bands(self, nest: Nest, unit_tile: Tile, walked: list[Loop]) -> list[Loop]:
        """Returns the loops over unit tiles with the tiles of a band inside those of the dimensions that come after it."""
        if self.band is None:
            return walked
        dim, count = self.band
        dealt = [lp for lp in walked if lp.over == "units" and not nest.dims[lp.dim].is_reduce]
        cut = next((lp for lp in dealt[:-1] if lp.dim == dim and 1 < count < lp.trips), None)
        if cut is None:
            return walked
        bands, inside = replace(cut, trips=-(-cut.trips // count), step=count * unit_tile[dim]), replace(cut, trips=count)
        last = walked.index(dealt[-1])
        return [bands if lp is cut else lp for lp in walked[: last + 1]] + [inside, *walked[last + 1 :]]
