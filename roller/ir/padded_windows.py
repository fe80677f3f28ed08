"""Padded windows: taps that lie outside the array, where they add nothing to the reduction, so that kernels may leave them out.

A padded convolution multiplies the zeros around its image: 10 % of the products of a 3 x 3 window over 7 rows. That adds nothing if
the other factors are finite (0 times an infinity is NaN), which is known of integers and of constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roller.ir.expr import FLOATS, Reducer
from roller.ir.nest import Access, Nest
from roller.ir.scalar import Cast, Const, Load, Scalar
from roller.ir.sliding_windows import Window, windows

WIDER = frozenset({"float32", "float64"})  # hold every finite number of all types but float64


@dataclass(frozen=True)
class PaddedWindow:
    """A window that leaves its array, and whose taps there add nothing.

    `tap`: its only reduction, of `taps` positions. `offset`: the array's position of the first tap of the window's first position;
    `extent`: the array's extent there.
    """

    window: Window
    tap: int
    taps: int
    offset: int
    extent: int

    def inside(
        self, first: Any, points: int, least: Callable[..., Any] = min, largest: Callable[..., Any] = max
    ) -> tuple[Any, Any]:
        """Returns the first tap, and the end of the taps, that read the array for any of so many positions from `first` on.

        `first` is a number, or an expression, for which `least` and `largest` are given.
        """
        steps = dict(self.window.steps)
        along, step = steps[self.window.spatial], steps[self.tap]
        start = first * along + self.offset
        last = start + along * (points - 1)
        end = largest(least((self.extent - start + step - 1) // step, self.taps), 0)
        return least(largest((step - 1 - last) // step, 0), end), end

    def share(self, positions: int, points: int) -> float:
        """Returns the share of the taps that tiles of so many of all positions compute; the last tile is shifted inwards."""
        if not positions or not points:
            return 1.0
        points = min(points, positions)
        firsts = [min(first, positions - points) for first in range(0, positions, points)]
        ranges = [self.inside(first, points) for first in firsts]
        return float(sum(end - begin for begin, end in ranges) / (self.taps * len(firsts)))


def padded_windows(nest: Nest) -> tuple[PaddedWindow, ...]:
    """Returns the windows with one reduction that leave their arrays, where what they read adds nothing."""
    found: tuple[PaddedWindow, ...] | None = nest.known.get("padded windows")
    if found is None:
        neutral = [factor for factor in range(len(nest.factors)) if windows(nest, factor) and _adds_nothing(nest, factor)]
        every = [_padded(nest, factor, window) for factor in neutral for window in windows(nest, factor) if len(window.taps) == 1]
        found = nest.known["padded windows"] = tuple([one for one in every if _leaves(nest, one)])
    return found


def _padded(nest: Nest, factor: int, window: Window) -> PaddedWindow:
    (access,) = [a for a in nest.inputs if a.factor == factor]
    tap = window.taps[0]
    name = nest.dims[tap].members[0].name
    (place,) = [place for place, index in enumerate(access.index) if index.coefficient(name)]
    return PaddedWindow(window, tap, nest.extents[tap], access.index[place].offset, access.tensor.shape[place])


def _leaves(nest: Nest, padded: PaddedWindow) -> bool:
    return padded.offset < 0 or padded.offset + padded.window.length(nest.extents) > padded.extent


def _adds_nothing(nest: Nest, factor: int) -> bool:
    """True if the reduction stays as it is where this factor, one load, reads its fill value."""
    stage, node = nest.stage, nest.factors[factor]
    load = node.value if isinstance(node, Cast) else node
    if nest.before or stage.reducer is None or not isinstance(load, Load) or load.fill is None:
        return False
    if len(nest.factors) == 1:
        return load.fill == _neutral(stage.reducer, node.dtype)
    others = [other for number, other in enumerate(nest.factors) if number != factor]
    integer = stage.body.dtype not in FLOATS
    return stage.reducer == "sum" and load.fill == 0 and (integer or all(_finite(nest, other) for other in others))


def _neutral(reducer: Reducer, dtype: str) -> float | None:
    """Returns the number that changes no result; None for minima and maxima of integers, which are not looked at."""
    if reducer == "sum":
        return 0
    if dtype not in FLOATS:
        return None
    return -math.inf if reducer == "max" else math.inf


def _finite(nest: Nest, node: Scalar) -> bool:
    """True if a factor is known to be neither infinite nor a NaN."""
    if isinstance(node, Const):
        return math.isfinite(node.value)
    if isinstance(node, Cast):
        fits = node.dtype == node.value.dtype or (node.dtype in WIDER and node.value.dtype != "float64")
        return fits and _finite(nest, node.value)
    return isinstance(node, Load) and _loads_finite(_read(nest, node), node)


def _read(nest: Nest, load: Load) -> Access:
    return next(a for a in nest.inputs if (a.tensor.name, a.index) == (load.tensor, load.index))


def _loads_finite(access: Access, load: Load) -> bool:
    known = access.tensor.finite or load.dtype not in FLOATS
    return known and (load.fill is None or math.isfinite(load.fill))
