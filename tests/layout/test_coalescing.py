"""Lines that lanes touch together, against counting them lane by lane and access by access."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roller import ops
from roller.compiler import expression_of
from roller.ir.nest import variants
from roller.layout.coalescing import _touched, lines
from roller.layout.lanes import group_tile, lane_pieces
from roller.program.rprogram import StageProgram, lane_level, tiled_levels
from roller.target.hardware import HardwareSpec
from roller.testing import toy_atom, toy_level, toy_spec

LINE = 128


def chip() -> HardwareSpec:
    levels = [toy_level("pad", 1 << 16, 64, 2), toy_level("register", 1 << 12, 256, 2)]
    return toy_spec(levels, (toy_atom("scalar", 64.0),), 0.1, count=2, lanes_max=256, lane_group=32, resident_tiles_max=8)


def program(shape: tuple[int, int], inner: tuple[int, int], lanes: tuple[int, int]) -> StageProgram:
    """A thing of two dimensions, element by element: `lanes` tiles of `inner` along each."""
    spec = chip()
    expr = expression_of(ops.tensor(shape, name="x") + ops.tensor((shape[0], 1), name="y"))  # rows do not fuse
    nest = variants(expr.stages[0], expr.tensors)[0]
    unit = tuple(i * n for i, n in zip(inner, lanes, strict=True))
    order = ((0, 1), (0, 1))
    return StageProgram(nest, spec.atoms[0], (), tiled_levels(spec), (unit, inner), order, (), lane_level=lane_level(spec))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_they_are_counted_as_lanes_touch_them(data: st.DataObject) -> None:
    inner = data.draw(st.tuples(st.integers(1, 4), st.sampled_from((1, 2, 3, 4, 7, 8, 12))))
    lanes = data.draw(st.sampled_from(((32, 1), (1, 32), (4, 8), (8, 4), (2, 16))))
    columns = data.draw(st.sampled_from((2, 3))) * inner[1] * lanes[1]
    made = program((inner[0] * lanes[0] * 2, columns), inner, lanes)
    group = group_tile(made, 32)
    for access in [a for a in made.nest.accesses if all(a.touches)]:
        widest = max(n for n in (1, 2, 4) if columns % n == 0)
        found = 0
        offset = 0
        for piece in lane_pieces(made, 1):
            left = piece
            while left:
                width = max(n for n in (1, 2, 4) if n <= min(left, widest))
                places = set()
                for row in range(group.get(0, 1)):
                    for column in range(group.get(1, 1)):
                        start = row * lane_pieces(made, 0)[0] * columns + offset * group.get(1, 1) + column * piece + piece - left
                        places |= {4 * start // LINE, (4 * (start + width) - 1) // LINE}
                found += len(places)
                left -= width
            offset += piece
        exact = found * inner[0]
        # Pieces further along start elsewhere in a line than the first one does: a line more or less.
        assert abs(lines(made, access, group, LINE) - exact) <= exact / 2


def test_neighbours_share_lines_and_rows_do_not() -> None:
    assert _touched(((32, 4),), 16, 4, LINE) == 4, "a whole run of 512 bytes"
    assert _touched(((32, 63),), 4, 4, LINE) == 32, "rows of 63"
    assert _touched(((4, 1 << 20), (8, 1)), 4, 4, LINE) == 4
    assert _touched((), 16, 4, LINE) == 1


def test_a_line_that_is_written_in_part_counts_more() -> None:
    apart, together = program((64, 63), (1, 63), (32, 1)), program((2, 128), (1, 4), (1, 32))
    whole: dict[str, Any] = {"line_bytes": LINE, "least": 32, "partly": 4.0}
    for made, times in ((apart, 4.0), (together, 1.0)):
        output, group = made.nest.output, group_tile(made, 32)
        assert lines(made, output, group, **whole) == times * lines(made, output, group, LINE)
