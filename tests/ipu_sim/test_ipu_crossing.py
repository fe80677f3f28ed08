"""Moves between ways of laying an array over tiles: the closed form gives the runs that going through all elements gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from ipu_programs import CHIPS, chains, programs
from random_operators import random_examples
from roller import ops
from roller.errors import ExpressionError
from roller.ir.fusion import fuse
from roller_ipu_sim.codegen.crossing import common_digits, crossed, side
from roller_ipu_sim.codegen.placements import kept, results
from roller_ipu_sim.codegen.program_plan import Whole, whole_of
from roller_ipu_sim.codegen.runs import Common, Runs
from roller_ipu_sim.manifest.families import each_placement
from roller_ipu_sim.manifest.models import Placement

Place = tuple[int, int]  # tile, place in its buffer
Run = tuple[int, int, int, int, int]  # sender, place, receiver, place, elements


# --- one element at a time -------------------------------------------------------------------------------------------


def _lying(digits: tuple[int, ...], order: tuple[int, ...], placements: list[Placement]) -> dict[int, Place]:
    """Where each element of the array lies, by its number."""
    found: dict[int, Place] = {}
    for part in each_placement(placements):
        box = itertools.product(*[range(low, low + size) for low, size in zip(part.start, part.shape, strict=True)])
        for at, stored in enumerate(itertools.islice(box, part.first, part.first + part.elements)):
            index = [stored[order.index(place)] for place in range(len(digits))]
            if any(i >= extent for i, extent in zip(index, digits, strict=True)):
                continue  # padding
            number = 0
            for i, extent in zip(index, digits, strict=True):
                number = number * extent + i
            assert number not in found, "the layouts of this test keep elements once"
            found[number] = part.tile, part.offset + at
    assert len(found) == math.prod(digits)
    return found


def _one_by_one(source: dict[int, Place], target: dict[int, Place]) -> list[Run]:
    """Runs that no neighbour continues."""
    found: list[Run] = []
    for to, number in sorted((place, number) for number, place in target.items()):
        if found:
            tile, start, receiver, place, count = found[-1]
            if (tile, start + count) == source[number] and (receiver, place + count) == to:
                found[-1] = tile, start, receiver, place, count + 1
                continue
        found.append((*source[number], *to, 1))
    return sorted(found)


def _every(runs: Runs) -> Iterator[Run]:
    for source, start, target, to, count, trips, step, to_step in zip(*[c.tolist() for c in runs.columns], strict=True):
        for index in itertools.product(*[range(n) for n in trips]):
            there = sum(i * by for i, by in zip(index, step, strict=True))
            here = sum(i * by for i, by in zip(index, to_step, strict=True))
            yield source, start + there, target, to + here, count


# --- layouts ---------------------------------------------------------------------------------------------------------

Layout = tuple[tuple[int, ...], tuple[int, ...], list[Placement]]


def layout(data: st.DataObject, digits: tuple[int, ...]) -> Layout:
    """Boxes of one size, several on a tile or one on several, which keep a share each; the last ones may be padded."""
    draw, rank = data.draw, len(digits)
    order = tuple(draw(st.permutations(range(rank))))
    shape = tuple([draw(st.integers(1, digits[place] + (1 if digits[place] > 1 else 0))) for place in order])
    counts = [-(-digits[place] // size) for place, size in zip(order, shape, strict=True)]
    elements, boxes = math.prod(shape), math.prod(counts)
    share = draw(st.integers(1, elements)) if draw(st.booleans()) else elements
    serial = [draw(st.booleans()) for _ in counts]  # dimensions whose boxes lie on one tile
    per_tile = math.prod([n for n, mine in zip(counts, serial, strict=True) if mine])
    sharers, tiles = -(-elements // share), boxes // per_tile
    loops, by_tile, by_offset = [], sharers * tiles, per_tile * elements
    for dim, (count, mine) in enumerate(zip(counts, serial, strict=True)):
        start = tuple([shape[dim] if d == dim else 0 for d in range(rank)])
        if mine:
            by_offset //= count
        else:
            by_tile //= count
        loops.append((count, 0 if mine else by_tile, by_offset if mine else 0, start, 0))
    beside = draw(st.booleans())  # shares lie where they would lie in the box, or at its beginning
    whole, rest = divmod(elements, share)
    still = (0,) * rank
    families = []
    for low, high, count in ((0, whole, share), (whole, whole + 1, rest)):
        if count and high > low:
            place = (high - low, 1, share if beside else 0, still, share)
            families.append(
                Placement(
                    tile=low,
                    buffer="b",
                    offset=low * share if beside else 0,
                    start=still,
                    shape=shape,
                    first=low * share,
                    count=count,
                    loops=(*loops, place),
                )
            )
    return digits, order, families


def regrouped(data: st.DataObject, factors: list[int]) -> tuple[int, ...]:
    """The same array by other digits: neighbours merged."""
    found: list[int] = []
    for factor in factors:
        if found and data.draw(st.booleans()):
            found[-1] *= factor
        else:
            found.append(factor)
    return tuple(found)


def same(one: Layout, other: Layout) -> None:
    """Both ways give the same runs."""
    a, b = (side(digits, order, iter(placements)) for digits, order, placements in (one, other))
    expected = _one_by_one(_lying(*one), _lying(*other))
    common = crossed(a, b)
    assert sorted(_every(common.listed())) == expected
    for size in (1, 2, 4):
        counted_alike(common, expected, size, 4)


def counted_alike(common: Common, runs: list[Run], size: int, word: int) -> None:
    """Words and fragments of each tile, and whether a run begins off a word, are those of the runs one by one."""
    tiles = 1 + max(max(source, target) for source, _, target, _, _ in runs)
    into, out, fragments = [0] * tiles, [0] * tiles, [0] * tiles
    for source, _, target, _, count in runs:
        words = -(-count * size // word)
        into[target] += words
        out[source] += words
        fragments[target] += 1
        fragments[source] += 1
    assert [found.tolist() for found in common.traffic(tiles, size, word)] == [into, out, fragments]
    off = any(at * size % word for _, start, _, to, _ in runs for at in (start, to))
    assert common.misaligned(size, word) == off


def any_move(data: st.DataObject) -> None:
    """Layouts over the same digits, in any order."""
    digits = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    same(layout(data, digits), layout(data, digits))


def any_regrouped_move(data: st.DataObject) -> None:
    """Layouts over digits that differ."""
    factors = data.draw(st.lists(st.sampled_from((1, 2, 2, 3, 3, 5)), min_size=2, max_size=5))
    same(layout(data, regrouped(data, factors)), layout(data, regrouped(data, factors)))


@pytest.mark.parametrize("part", [0, 1])
def test_any_move_is_that_of_all_elements(part: int) -> None:
    random_examples(any_move, part, 400)


@pytest.mark.parametrize("part", [0, 1])
def test_any_move_between_other_digits_is_that_of_all_elements(part: int) -> None:
    random_examples(any_regrouped_move, 100 + part, 300)


def any_program(data: st.DataObject) -> None:
    """What a random program's stages leave and want."""
    try:
        expr = fuse(ops.expression(data.draw(chains())))
    except ExpressionError:
        assume(False)
        return
    spec = CHIPS[data.draw(st.integers(0, len(CHIPS) - 1))]
    found = whole_of(spec, data.draw(programs(expr, spec)))
    assume(isinstance(found, Whole) and any(found.moves))
    assert isinstance(found, Whole)
    for move in itertools.chain(*found.moves):
        out, array = move.made.output, move.array
        source = _lying(out.digits, out.order, list(results(move.made)))
        target = _lying(array.digits, array.order, list(kept(move.plan, array)))
        expected, size, word = _one_by_one(source, target), array.element_bytes, array.word_bytes
        assert sorted(_every(move.runs)) == expected
        counted_alike(crossed(move.from_, move.to), expected, size, word)


def test_any_programs_moves_are_those_of_all_elements() -> None:
    random_examples(any_program, 300, 150)


@pytest.mark.parametrize("digits", [((6, 4), (4, 6)), ((2, 6, 5), (3, 4, 5)), ((10,), (2, 5)), ((1, 6, 1), (6,)), ((), (1, 1))])
def test_digits_without_common_ones_too(digits: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    random_examples(lambda data: same(layout(data, digits[0]), layout(data, digits[1])), 200, 60)


def test_common_digits() -> None:
    assert common_digits((64, 16, 2, 16, 2), (2, 32, 32, 32)) == (2, 32, 16, 2, 16, 2)
    assert common_digits((6, 4), (24,)) == (6, 4)
    assert common_digits((1, 7, 1), (7,)) == (7,)
    assert common_digits((6, 4), (4, 6)) is None


def _family(tile: int, offset: int, start: tuple[int, ...], shape: tuple[int, ...], *loops: tuple[object, ...]) -> Placement:
    return Placement.model_validate(
        {"tile": tile, "buffer": "b", "offset": offset, "start": start, "shape": shape, "first": 0, "count": None, "loops": loops}
    )


def _moved(digits: tuple[int, ...], one: tuple[int, ...], source: Placement, other: tuple[int, ...], target: Placement) -> Runs:
    return crossed(side(digits, one, iter([source])), side(digits, other, iter([target]))).listed()


def test_a_transposed_array_is_as_many_rows_as_boxes_meet() -> None:
    source = _family(0, 0, (0, 0), (64, 32), (16, 1, 0, (0, 32), 0))  # 16 tiles with 32 columns each
    target = _family(0, 0, (0, 0), (512, 16), (4, 1, 0, (0, 16), 0))  # 4 tiles with 16 rows each, column by column
    runs = _moved((64, 512), (0, 1), source, (1, 0), target)
    assert len(runs.count) == 64
    assert int(runs.repeated.sum()) == 64 * 512 and set(runs.count.tolist()) == {1}


def test_what_ends_at_a_corner_goes_on_at_the_next() -> None:
    source = _family(0, 0, (0, 0, 0), (2, 3, 4))  # one tile has both planes, row by row
    target = _family(1, 0, (0, 0, 0), (2, 4, 3))  # another one wants them column by column
    runs = _moved((2, 3, 4), (0, 1, 2), source, (0, 2, 1), target)
    assert int(runs.repeated.sum()) == 23  # the last element of the first plane is followed by the first of the second
    assert sorted(runs.count.tolist())[-1] == 2


def test_what_other_digits_cut_apart_stays_one_run() -> None:
    source = _family(0, 0, (0, 0), (2, 3), (2, 1, 0, (0, 3), 0))  # two tiles with half of each of two rows of 6
    target = _family(2, 0, (0, 0, 0), (2, 3, 2))  # pairs of neighbours: the halves meet in the middle of one
    runs = crossed(side((2, 6), (0, 1), iter([source])), side((2, 3, 2), (0, 1, 2), iter([target])))
    assert sorted(_every(runs.listed())) == [(0, 0, 2, 0, 3), (0, 3, 2, 6, 3), (1, 0, 2, 3, 3), (1, 3, 2, 9, 3)]
