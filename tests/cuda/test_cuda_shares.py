"""Reductions that are cut over blocks of warp groups: the last block's share reaches beyond the problem, through zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from emulating import emulated, expression, needs_cxx, text_of
from roller import ops, verify
from roller.program.rprogram import RProgram
from roller_cuda.codegen import limits
from warp_groups import ORDERS, SPEC, T, maps_of, of_groups, right


def cut(op: ops.SymbolicTensor, name: str, steps: int, count: int = 400) -> Iterator[RProgram]:
    """Programs whose reduction of this name is cut into shares of so many steps, where whole shares do not cover it."""
    for program in of_groups(op, count):
        (stage,) = program.stages
        dim = next(i for i in stage.nest.reduce if stage.nest.dims[i].name == name)
        share = steps * stage.unit_tile[dim]
        parts = -(-stage.nest.extents[dim] // share)
        other = stage.dispatched(share=(dim, share), split=parts)
        walked = any(lp.over == "time" and lp.dim == dim and lp.level == stage.levels[0] for lp in other.loops)
        made = replace(program, stages=(other,))
        if parts > 1 and parts * share > stage.nest.extents[dim] and walked and limits.refusal(SPEC, made) is None:
            yield made


PRODUCTS: dict[str, Callable[[], ops.SymbolicTensor]] = {
    "boxes": lambda: ops.matmul(T("a", 64, 328), T("b", 328, 72)),
    "one side carried": lambda: ops.matmul(ops.relu(T("a", 64, 328)), T("b", 328, 72)),
    "both carried": lambda: ops.matmul(T("a", 61, 331), T("b", 331, 67)),
    "bytes": lambda: ops.matmul(T("a", 64, 336, dtype="int8"), T("b", 72, 336, dtype="int8"), transpose_b=True),
}


@pytest.mark.one_in(2)
@needs_cxx
@pytest.mark.parametrize("name", PRODUCTS)
def test_shares_that_reach_beyond_the_reduction_are_right(name: str) -> None:
    op = PRODUCTS[name]()
    drawn = [p for steps in (2, 3) for p, _ in zip(cut(op, "k", steps), range(2), strict=False)]
    assert drawn, "no program with such a share"
    for number, program in enumerate(drawn):
        artifact = text_of(SPEC, program)
        assert "min(" not in loop_of_products(str(artifact.launch["text"])), "steps that are counted at run time"
        right(op, artifact, *ORDERS[number % len(ORDERS)])


def loop_of_products(text: str) -> str:
    """The head of the loop around the first products."""
    before = text[: text.index("roller_products_begin();")]
    return before[before.rindex("for (") :].splitlines()[0]


@needs_cxx
def test_what_lies_beyond_a_window_is_not_read() -> None:
    """Behind the last row of a window lies another row of the image, not zeros: of boxes that bring it, nothing may be taken in."""
    op = ops.conv2d(T("x", 1, 6, 64, 16), T("w", 3, 3, 16, 64), padding=1, layout="NHWC")
    expr = expression(op)
    arrays = verify.random_inputs(expr, 3)
    arrays["x"][:, 4] = np.inf
    artifact = next(a for a in (text_of(SPEC, program) for program in in_rows(op)) if "x" in maps_of(a))
    found = emulated(expr, artifact, arrays, False, False)
    assert np.isfinite(found[:, :3]).all()


def in_rows(op: ops.SymbolicTensor) -> Iterator[RProgram]:
    """Programs whose tiles are of one row of the image and of one place of the window, whose rows are cut into shares of two."""
    for program in of_groups(op, 3000):
        (stage,) = program.stages
        names = [d.name for d in stage.nest.dims]
        if {"h", "s"} <= set(names) and all(stage.inner[names.index(name)] == 1 for name in ("h", "r", "s")):
            other = replace(stage, tiles=(stage.inner, *stage.tiles[1:])).dispatched(share=(names.index("r"), 2), split=2)
            made = replace(program, stages=(other,))
            if limits.refusal(SPEC, made) is None:
                yield made
