"""How lanes fill a panel, and the banks that they and its readers meet in: numbers walked one by one."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from given_programs import given_tiles
from roller import ops
from roller.device.chip import load_spec
from roller.ir.nest import variants
from roller.layout.banks import panel_steps
from roller.layout.fill_order import Digit, FillOrder, fill
from roller.layout.row_padding import conflicts
from roller.program.rprogram import StageProgram
from roller.target.hardware import Banks
from roller.testing import expression

GPU = Banks(count=32, width_bytes=4)
CHIPS = ("cuda:a100", "rocm:mi210", "rocm:rx7900xtx")
ROOM = 1 << 15  # bytes of both panels, twice, which leaves some for padding on every chip
POWERS = st.sampled_from((1, 2, 4, 8))


def places(digits: tuple[Digit, ...], dims: int) -> Iterator[tuple[int, ...]]:
    """The places of the unit's tile in the order of their numbers."""
    for numbers in itertools.product(*(range(count) for _, count, _ in digits)):
        at = [0] * dims
        for (dim, _, step), number in zip(digits, numbers, strict=True):
            at[dim] += number * step
        yield tuple(at)


def cycles(addresses: list[int], width: int, size: int, banks: Banks) -> tuple[int, int]:
    """Cycles of the banks without conflicts, and with them, lane after lane and word after word."""
    together, ideal, actual = max(1, banks.count * banks.width_bytes // max(width * size, banks.width_bytes)), 0, 0
    for first in range(0, len(addresses), together):
        words: dict[int, set[int]] = defaultdict(set)
        for address in addresses[first : first + together]:
            for byte in range(address * size, (address + width) * size):
                words[byte // banks.width_bytes % banks.count].add(byte // banks.width_bytes)
        ideal += -(-sum(map(len, words.values())) // banks.count)
        actual += max(map(len, words.values()))
    return ideal, actual


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4),
    st.integers(1, 64),
    st.sampled_from(((1, 4), (1, 8), (1, 2), (2, 4), (4, 4))),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_conflicts_are_those_of_a_memory_that_is_walked(
    digits: list[tuple[int, int]], count: int, access: tuple[int, int], touched: list[bool]
) -> None:
    width, size = access
    steps, step = [], width
    for (many, apart), touches in zip(digits, touched, strict=False):
        steps.append(step * apart if touches else 0)
        step *= apart * many if touches else 1
    order = tuple((d, many, 1) for d, (many, _) in reversed(list(enumerate(digits))))
    addresses = [sum(a * s for a, s in zip(at, steps, strict=True)) for at in places(order, len(steps))][:count]
    ideal, actual = cycles(addresses, width, size, GPU)
    assert conflicts(order, steps, width, count, GPU, size) == actual / ideal


def programs() -> st.SearchStrategy[tuple[ops.SymbolicTensor, tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Operators with unit's and lane's tiles, powers of two but for windows."""

    def product(m: int, n: int, k: int, a: int, b: int, turned: bool) -> object:
        shape = (16 * n, 8 * k) if turned else (8 * k, 16 * n)
        op = ops.matmul(ops.tensor((8 * m, 8 * k)), ops.tensor(shape), transpose_b=turned)
        return op, ((8 * m, 16 * n, 8 * k), (min(a, 4), b, 1))

    def window(n: int, c: int, h: int, w: int, side: int, stride: int) -> object:
        x = ops.tensor((2, 2 * c, 8 * stride + 3, 8 * stride + 3))
        op = ops.depthwise_conv2d(x, ops.tensor((2 * c, 1, side, side)), stride=stride, padding=1)
        return op, ((min(n, 2), 2 * c, h, max(w, 4), side, side), (1, 1, 1, 1, 1, 1))

    products = st.builds(product, POWERS, POWERS, POWERS, POWERS, POWERS, st.booleans())
    windows = st.builds(window, POWERS, POWERS, POWERS, POWERS, st.sampled_from((3, 5)), st.sampled_from((1, 2)))
    return st.one_of(products, windows)  # type: ignore[return-value]


def staged_elements(program: StageProgram) -> Iterator[int]:
    """Elements of each panel without padding."""
    for staging in program.staged:
        touches = program.nest.factor_touches(staging.operand)
        yield math.prod([t for t, touched in zip(program.unit_tile, touches, strict=True) if touched])


def fillings(program: StageProgram, group: int) -> Iterator[tuple[int, object]]:
    nest = program.nest
    for staging in program.staged:
        steps, _ = panel_steps(nest, staging, program.unit_tile, nest.spatial, nest.reduce)
        order = fill(nest, program.unit_tile, nest.factors[staging.operand], steps, nest.spatial, group).order(steps)
        found = [sum(a * s for a, s in zip(at, steps, strict=True)) for at in places(order.digits, len(steps))]
        yield staging.operand, (steps, order, found)


@pytest.mark.parametrize("chip", CHIPS)
@given(made=programs())
def test_every_value_is_one_lanes_and_no_two_lanes_meet_in_a_bank(chip: str, made: object) -> None:
    """Of the numbers that lanes take, every place of a panel comes once; aligned tiles are filled without conflicts."""
    op, tiles = made  # type: ignore[misc]
    spec = load_spec(chip)
    program = given_tiles(expression(op), tiles, chip).stages[0]
    assume(sum(staged_elements(program)) * 4 * 2 <= ROOM)
    for _, (steps, order, found) in fillings(program, spec.levels[-1].access_lanes):  # type: ignore[misc]
        covered = sorted(at + n * steps[order.along or 0] for at in found for n in range(order.width))
        extents = [range(t) if s else range(1) for t, s in zip(program.unit_tile, steps, strict=True)]
        assert covered == sorted(sum(a * s for a, s in zip(at, steps, strict=True)) for at in itertools.product(*extents))
        ideal, actual = cycles(found, order.stored, 4, GPU)
        assert actual == ideal, (program.describe(), program.staged, order)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16, 24)), st.integers(1, 6))
def test_places_follow_from_the_first_where_all_lanes_go_the_same_way(counts: list[int], lanes: int, trips: int) -> None:
    """Numbers in the digits' system, lane by lane; the outermost digit goes on as long as there are numbers."""
    order = FillOrder(tuple((dim, count, 1) for dim, count in enumerate(counts)), None, 1, 1)

    def place(number: int) -> tuple[int, ...]:
        found = []
        for count in reversed(counts[1:]):
            number, digit = divmod(number, count)
            found.append(digit)
        return (number, *reversed(found))

    def way(lane: int, trip: int) -> tuple[int, ...]:
        return tuple(there - here for here, there in zip(place(lane), place(trip * lanes + lane), strict=True))

    ways = [{way(lane, trip) for lane in range(lanes)} for trip in range(trips)]
    if order.follows(lanes):
        assert all(len(way) == 1 for way in ways)
    elif trips > 1 and trips * lanes > math.prod(counts):
        assert any(len(way) > 1 for way in ways)


@pytest.mark.parametrize(("stride", "near"), [(1, True), (2, True), (4, False)])
def test_lanes_go_along_an_array_of_which_a_panel_takes_every_other_value(stride: int, near: bool) -> None:
    """32 lanes touch the fewest lines of float32 values: a line's share of pixels each, not a channel's plane each; where fewer
    than four of them lie in a piece of 32 bytes, nothing is gained.
    """
    op = ops.conv2d(ops.tensor((1, 64, 64 * stride, 64 * stride)), ops.tensor((64, 64, 1, 1)), stride=stride)
    nest = variants(expression(op).stages[0], expression(op).tensors)[0]
    tile = tuple(min(d.extent, 32) for d in nest.dims)
    (pixels,) = [a for a in nest.inputs if a.tensor.shape[-1] == 64 * stride]
    channel = nest.reduce[0]
    steps = [0 if not touched else 1 if dim == channel else 64 * (dim + 1) for dim, touched in enumerate(pixels.touches)]
    order = fill(nest, tile, nest.factors[pixels.factor], steps, (channel,), 32).order(steps)
    (along, _, _) = order.digits[-1] if order.digits[-1][0] != channel else order.digits[-2]
    assert (order.along is not None) == near
    assert order.along is None or order.along == along != channel
