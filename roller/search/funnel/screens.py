"""The screen that suits a tile space."""

from __future__ import annotations

from roller.search.funnel.cache_screen import CacheScreen
from roller.search.funnel.placed_screen import PlacedScreen
from roller.search.funnel.short_list import Screen
from roller.search.tile_space import TileSpace


def in_caches(space: TileSpace) -> bool:
    """True if caches hold the tiles of a unit, which runs what is inside them one after another."""
    return not space.spec.levels[space.levels[0]].managed and space.lane_level is None


def screen_of(space: TileSpace) -> Screen:
    """Returns the screen of a tile space: for units whose data caches hold, or for those whose memory software fills."""
    return CacheScreen(space) if in_caches(space) else PlacedScreen(space)
