"""Pooling where strides do not come out even."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_ops import computed

from roller import ops
from roller.ops import tensor as T


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(1, 2))
def test_pooling_in_ceil_mode(size: tuple[int, int], kernel: int, stride: int, padding: int, dilation: int) -> None:
    """As torch defines it: one more window where the last elements have none, unless it begins in the padding at the end."""
    reach = dilation * (kernel - 1) + 1
    assume(2 * padding <= kernel and all(extent + 2 * padding >= reach for extent in size))
    places = []
    for extent in size:
        count = -(-(extent + 2 * padding - reach) // stride) + 1
        count -= (count - 1) * stride >= extent + padding
        places.append([[place * stride - padding + r * dilation for r in range(kernel)] for place in range(count)])
    assume(all(any(0 <= at < extent for at in taps) for extent, side in zip(size, places, strict=True) for taps in side))
    x = T((1, 1, *size))
    greatest, (a,) = computed(ops.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=True))
    padded, _ = computed(ops.avg_pool2d(x, kernel, stride, padding, dilation, ceil_mode=True))
    inside, _ = computed(ops.avg_pool2d(x, kernel, stride, padding, dilation, count_include_pad=False, ceil_mode=True))
    assert greatest.shape == padded.shape == (1, 1, len(places[0]), len(places[1]))
    for i, j in itertools.product(*(range(len(side)) for side in places)):
        taps = list(itertools.product(places[0][i], places[1][j]))
        known = [a[0, 0, h, w] for h, w in taps if 0 <= h < size[0] and 0 <= w < size[1]]
        counted = sum(h < size[0] + padding and w < size[1] + padding for h, w in taps)
        assert greatest[0, 0, i, j] == max(known)
        assert padded[0, 0, i, j] == pytest.approx(sum(known) / counted)
        assert inside[0, 0, i, j] == pytest.approx(sum(known) / len(known))
