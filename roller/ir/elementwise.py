"""Formulas that hold for one tile and for arrays of tiles: an extent is an integer, or an array with one integer for each tile.

Arithmetic is the same for both. These functions are the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

TABLE = 8  # a table with as many places for each extent takes less time than sorting these
Extent = Any  # an int, or an integer array with one value for each tile
Extents = Any  # extents of a tile, one for each dimension; or of tiles, as an array of [dimension, tile]
Value = Any  # a number, or an array with one number for each tile


def largest(first: Value, second: Value) -> Value:
    """Returns the larger of two values, tile by tile."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.maximum(first, second)
    return first if first > second else second


def least(first: Value, second: Value) -> Value:
    """Returns the smaller of two values, tile by tile."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.minimum(first, second)
    return first if first < second else second


def where(condition: Value, holds: Value, fails: Value) -> Value:
    """Returns the one value for tiles for which a condition holds, the other one for the rest."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, holds, fails)
    return holds if condition else fails


def each(function: Callable[[int], Value], extents: Extent) -> Value:
    """Returns a function of one extent for every tile; of equal extents it is computed once."""
    if not isinstance(extents, np.ndarray):
        return function(extents)
    if not extents.size:
        return extents
    longest = int(extents.max())
    if longest > TABLE * extents.size or extents.min() < 0:
        different, places = np.unique(extents, return_inverse=True)
        return np.array([function(int(extent)) for extent in different])[places.reshape(extents.shape)]
    there = np.zeros(longest + 1, dtype=bool)
    there[extents] = True
    different = np.flatnonzero(there)
    values = np.array([function(int(extent)) for extent in different])
    table = np.zeros(longest + 1, dtype=values.dtype)
    table[different] = values
    return table[extents]


__all__ = ["Extent", "Extents", "Value", "each", "largest", "least", "where"]
