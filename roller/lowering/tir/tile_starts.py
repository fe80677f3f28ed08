"""Loops of a program: the start of each dimension's tile and the number of positions left in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from roller.lowering.tir.builder import Expr, Stmt, ceil_div, index, least, loop, plus, sequence, times, variable
from roller.program.rprogram import StageProgram

Position = int | Expr


@dataclass(frozen=True)
class State:
    """The current tile: first position and remaining positions of each dimension, loop variables and trip counts.

    `shift`: offset inside the innermost tile, while the remainder of a vector dimension is walked element by element. `skipped`:
    number of leading elements already reduced, if the last step overlaps the one before. `whole`: dimensions with the same trip
    count in every tile, even if no positions are left.
    """

    bases: tuple[Position, ...]
    limits: tuple[Position, ...]
    variables: tuple[tuple[int, Position], ...] = ()  # (number of the loop, its variable)
    trips: tuple[tuple[int, Position], ...] = ()
    shift: Position = 0
    skipped: Position = 0
    whole: frozenset[int] = frozenset()

    def variable(self, number: int) -> Position:
        """Returns the variable of a loop; 0 outside the loop."""
        return dict(self.variables).get(number, 0)


def start(program: StageProgram) -> State:
    """Returns the state of the whole problem."""
    extents = program.nest.extents
    return State((0,) * len(extents), extents)


def exact(program: StageProgram, dim: int) -> bool:
    """True if whole innermost tiles cover the dimension exactly."""
    inner = program.inner[dim]
    return inner == 0 or program.nest.extents[dim] % inner == 0


def step_of(program: StageProgram, number: int) -> int:
    """Positions that one trip of a loop covers."""
    return program.step(program.loops[number])


def trips_of(program: StageProgram, state: State, number: int) -> Position:
    """Returns the trips of a loop from the current tile: fewer in the remainder."""
    if program.loops[number].dim in state.whole:
        return program.loops[number].trips
    return ceil_div(state.limits[program.loops[number].dim], step_of(program, number))


def enter(program: StageProgram, state: State, number: int, var: Position, trips: Position) -> State:
    """Returns the state inside one trip of a loop."""
    dim, step = program.loops[number].dim, step_of(program, number)
    base = plus(state.bases[dim], times(var, step))
    divides = not step or (isinstance(state.limits[dim], int) and state.limits[dim] % step == 0)
    left: Position = step if divides else least(step, _minus(state.limits[dim], times(var, step)))
    return replace(
        state,
        bases=(*state.bases[:dim], base, *state.bases[dim + 1 :]),
        limits=(*state.limits[:dim], left, *state.limits[dim + 1 :]),
        variables=(*state.variables, (number, var)),
        trips=(*state.trips, (number, trips)),
    )


def serial(
    program: StageProgram, state: State, number: int, body: Callable[[State], Stmt], parallel: bool = False, name: str | None = None
) -> Stmt:
    """Returns one loop around a body."""
    var = variable(name or f"i{number}")
    trips = trips_of(program, state, number)
    return loop(var, trips, body(enter(program, state, number, var, trips)), parallel)


def nested(
    program: StageProgram, state: State, numbers: Sequence[int], body: Callable[[State], Stmt], parallel: bool = False
) -> Stmt:
    """Returns nested loops around a body; the outermost may run in parallel over units."""
    if not numbers:
        return body(state)
    return serial(program, state, numbers[0], lambda s: nested(program, s, numbers[1:], body), parallel)


def fused_units(program: StageProgram, state: State, count: int, body: Callable[[State], Stmt]) -> Stmt:
    """Returns the first `count` loops fused into one loop over units; their trip counts are constants, as no loop encloses them."""
    fused = variable("unit")
    total = 1
    for lp in program.loops[:count]:
        total *= lp.trips
    rest: Position = fused
    values: list[Position] = []
    for lp in reversed(program.loops[:count]):
        values.append(rest if len(values) == count - 1 else tirx.floormod(rest, index(lp.trips)))
        rest = tirx.floordiv(rest, index(lp.trips))
    # Bound to names, because positions occur in every address: each pass of the compiler would process a repeated expression.
    names = [variable(f"u{number}") for number in range(count)]
    for number, name in enumerate(names):
        state = enter(program, state, number, name, program.loops[number].trips)
    bindings = [tirx.Bind(name, index(value)) for name, value in zip(names, reversed(values), strict=True)]
    return loop(fused, total, sequence([*bindings, body(state)]), parallel=total > 1)


def tile_start(program: StageProgram, state: State, dim: int) -> Position:
    """Returns the start of the innermost tile; a boundary tile of a spatial dimension is shifted inwards to stay inside.

    Points computed twice get the same value twice, so the tile needs no guard.
    """
    base = state.bases[dim]
    if exact(program, dim) or program.nest.dims[dim].is_reduce:
        return base
    return least(base, program.nest.extents[dim] - program.inner[dim])


def _minus(a: Position, b: Position) -> Position:
    return a if isinstance(b, int) and b == 0 else a - b
