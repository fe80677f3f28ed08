"""What boxes and parts have in common along a dimension: element by element, and of all dimensions together tile by tile."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from roller_ipu_sim.plan.overlaps import Cuts, Line, Overlap, longest, overlap, starts
from roller_ipu_sim.plan.windows import fullest


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """A dimension of at most 20 elements under boxes that may leave it, kept by one or by the tiles along an axis."""
    axes = tuple(draw(st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 6)), max_size=2)))
    owner = draw(st.sampled_from([None, *range(len(axes))]))
    cuts = Cuts(draw(st.integers(-6, 8)), draw(st.integers(1, 6)), axes[owner][0] if owner is not None else 1, 20)
    shares = draw(st.integers(1, 5))
    size = draw(st.sampled_from([0, -(-longest(cuts) // shares)]))
    word = draw(st.sampled_from([0, 4]))
    return Line(
        draw(st.integers(-6, 8)),
        axes,
        draw(st.integers(1, 7)),
        cuts,
        owner,
        size,
        shares if size else 1,
        draw(st.sampled_from([2, 4])),
        word,
    )


def test_a_dimension_is_cut_where_its_parts_begin() -> None:
    assert starts(Cuts(0, 0, 1, 7)) == (0, 7)
    assert starts(Cuts(-1, 4, 3, 10)) == (0, 3, 7, 10)  # the first part from the beginning on, the last one to the end
    assert starts(Cuts(-5, 4, 4, 6)) == (0, 0, 3, 6, 6)  # none leaves the array
    assert [longest(Cuts(-1, 4, 3, 10)), longest(Cuts(0, 2, 2, 10))] == [4, 8]


def _moved(line: Line, part: int, share: int, place: tuple[int, ...]) -> tuple[int, int]:
    """Words and rows from a share of a part to the tile at a place."""
    low = line.low + sum(at * distance for at, (_, distance) in zip(place, line.axes, strict=True))
    begin, end = starts(line.cuts)[part : part + 2]
    if line.size:
        begin, end = begin + share * line.size, min(begin + (share + 1) * line.size, end)
    common = len(set(range(begin, end)) & set(range(low, low + line.reach)))
    return (math.ceil(common * line.element_bytes / line.word_bytes), min(common, 1)) if line.word_bytes else (common, common)


@settings(max_examples=300, deadline=None)
@given(lines())
def test_an_overlap_counts_every_element(line: Line) -> None:
    found = overlap(line)
    places = list(itertools.product(*[range(count) for count, _ in line.axes]))
    kept = list(itertools.product(range(line.cuts.parts), range(line.shares)))
    for place in places:
        moved = [_moved(line, *keeper, place) for keeper in kept]
        assert (found.words_in[place], found.rows_in[place]) == tuple(map(sum, zip(*moved, strict=True)))
    for keeper in kept:
        moved = [_moved(line, *keeper, place) for place in places]
        assert (found.words_out[keeper], found.rows_out[keeper]) == tuple(map(sum, zip(*moved, strict=True)))
    assert (found.most_in, found.most_out) == (found.words_in.max(), found.words_out.max())


def _tiles(line: Line, found: Overlap) -> list[tuple[int, int, int, int]]:
    """Of each tile, whatever its share is, words and rows that arrive, words and rows that leave."""
    places = itertools.product(*[range(count) for count, _ in line.axes])
    own = [(place, place[line.owner] if line.owner is not None else 0, share) for place in places for share in range(line.shares)]
    return [
        tuple(int(n) for n in (found.words_in[p], found.rows_in[p], found.words_out[o, s], found.rows_out[o, s])) for p, o, s in own
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(lines(), max_size=3))
def test_the_fullest_tile_is_the_fullest_of_all(chosen: list[Line]) -> None:
    found = [overlap(line) for line in chosen]
    every = [
        [math.prod(kind) for kind in zip(*tile, strict=True)] or [1, 1, 1, 1]
        for tile in itertools.product(*[_tiles(line, part) for line, part in zip(chosen, found, strict=True)])
    ]
    most = max(t[0] for t in every), max(t[2] for t in every), max(t[1] + t[3] for t in every)
    assert fullest(found) == most
