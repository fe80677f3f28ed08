"""Addresses in a tile's memory: no buffers overlap, those that must not share a memory element do not, and what fits is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from ipu_programs import BOW
from roller import ops
from roller_ipu_sim.chip.machine import Machine, machine
from roller_ipu_sim.plan.heap import Wish, placed

CHIP = machine(BOW)
WISHES = st.lists(
    st.builds(
        lambda size, apart, interleaved, lasting: (8 * size, apart, apart and interleaved, lasting),
        st.one_of(st.integers(1, 200), st.integers(1, 20_000)),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
STAGES = st.lists(WISHES, min_size=1, max_size=3)


def named(stages: list[list[tuple[int, bool, bool, bool]]]) -> list[list[Wish]]:
    return [[Wish(f"{n}.{m}", *wish) for m, wish in enumerate(wishes)] for n, wishes in enumerate(stages)]


def spans(chip: Machine, wish: Wish, address: int) -> range:
    """What nothing else may have: its bytes, or whole memory elements."""
    return chip.elements(address, wish.nbytes) if wish.apart else range(address, address + wish.nbytes)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(STAGES)
def test_what_is_live_together_does_not_overlap(given_stages: list[list[tuple[int, bool, bool, bool]]]) -> None:
    stages = named(given_stages)
    memory = placed(stages, CHIP)
    ends = [memory.addresses[w.name] + w.nbytes for wishes in stages for w in wishes]
    assert max(ends) <= memory.needed and min(memory.addresses.values()) >= CHIP.reserved_bytes
    kept = [w for wishes in stages for w in wishes if w.lasting]
    for wishes in stages:
        live = [*kept, *[w for w in wishes if not w.lasting]]
        for n, one in enumerate(live):
            for other in live[n + 1 :]:
                at, there = memory.addresses[one.name], memory.addresses[other.name]
                assert at + one.nbytes <= there or there + other.nbytes <= at
                if one.apart and other.apart:
                    mine, theirs = spans(CHIP, one, at), spans(CHIP, other, there)
                    assert mine.stop <= theirs.start or theirs.stop <= mine.start


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 40_000).map(lambda n: 8 * n), min_size=1, max_size=5))
def test_buffers_without_wishes_take_no_more_than_their_bytes_where_memory_is_short(sizes: list[int]) -> None:
    memory = placed([[Wish(str(n), size) for n, size in enumerate(sizes)]], CHIP)
    assert memory.excess == 0 or memory.needed == CHIP.reserved_bytes + sum(sizes) > memory.room


def test_an_array_of_nearly_all_memory_fits() -> None:
    elements = 1472 * 73_000  # two arrays of 292 kB in each tile, larger than what the plain region has
    kernel = roller.compile(ops.relu(ops.tensor((elements,))), device="ipu_sim:bow")
    assert kernel.profile().profile.memory.max() + CHIP.reserved_bytes <= CHIP.tile_bytes
    with pytest.raises(roller.RollerError, match="more than"):
        roller.compile(ops.relu(ops.tensor((1472 * 75_000,))), device="ipu_sim:bow")
