"""The layout of boxes (padded copies with halo): along the vector that reads them, whatever the array's own layout."""

from __future__ import annotations

import math

from roller.program.rprogram import StageProgram


def box_order(program: StageProgram, number: int) -> tuple[int, ...]:
    """Returns the dimensions of array `number` in the layout order of its box, innermost last.

    It is the array's order, except that the dimension along which the program's vector moves comes last: the box then holds whole
    vectors. Words that the box holds (`boxed_words`) are elements here.
    """
    access = program.nest.accesses[number]
    order = range(len(access.index))
    if program.lane is None or not access.touches[program.lane]:
        return tuple(order)
    along = [d for d in order if access.index[d].coefficient(access.innermost[program.lane])]
    if len(along) != 1 or math.prod(access.tensor.shape[along[0] + 1 :]) == 1:
        return tuple(order)
    return (*[d for d in order if d != along[0]], along[0])


def turned(program: StageProgram, number: int) -> bool:
    """True if a box of array `number` lies along another dimension than the array, so that filling it transposes."""
    order = box_order(program, number)
    return list(order) != sorted(order)


def lane_step(program: StageProgram, number: int) -> int | None:
    """Returns the elements between neighbours of the vector in array `number`, or in its box where there is one.

    Returns None where they have no constant step.
    """
    access, lane = program.nest.accesses[number], program.lane
    if lane is None or access.strides[lane] is None or not access.touches[lane]:
        return None
    boxed = any(s.kind == "box" and s.operand == number for s in program.staged)
    if not boxed or not turned(program, number):
        return access.strides[lane]
    return access.index[box_order(program, number)[-1]].coefficient(access.innermost[lane])
