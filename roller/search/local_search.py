"""Local search, the last step of construction: moves extents of a program to their neighbours while the model rates that better.

Growth works level by level, gives a dimension its next extent and never takes one back. The choice at one level therefore fits the
outer levels only approximately. Here a step is one aligned extent more or less of one dimension, or more of one dimension and less
of another where room or lanes are full. A step may also take a dimension whole, which growth skips where that makes no power of two
of lanes. Each step that helps is taken at once and repeated. Nothing is evaluated twice, and the number of rated programs is
limited.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from roller.program.rprogram import StageProgram
from roller.search.choices import clusters_of, in_turn, recopied, split
from roller.search.grow import even_at, extents_at
from roller.search.tile_space import Chain, TileSpace, start

Rate = Callable[[StageProgram], float]

LEAST_GAIN = 0.002  # share of the time that a step must save
TO_THE_END = 4  # a step leads to the whole dimension if that is at most this many times the extent


class Reach(Enum):
    """The length of a step.

    An extent grows to the end of its dimension, to about twice its length, or to the next extent. It shrinks to about half or to
    the next extent.
    """

    END = "end"
    TWICE = "twice"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Move:
    """A step: the tile's position, the dimension that becomes longer and the one that becomes shorter.

    `along`: outer tiles keep their number of these tiles, not their size.
    """

    position: int
    longer: int | None
    shorter: int | None
    reach: Reach
    along: bool = False


def settle(space: TileSpace, program: StageProgram, limit: int, rate: Rate | None = None) -> list[StageProgram]:
    """Returns the programs that steps lead to, best first, or the program itself where no step helps.

    It keeps the last program on the way for each innermost tile and number of lanes, as a device may lack room for some of these.
    At most `limit` other tiles are rated, each whole and with its reduction cut (split-K). `rate` replaces the model of the tile
    space.
    """
    below = space.model.seconds_below if rate is None else lambda p, _: rate(p)
    best, seconds, left = program, below(program, math.inf), limit
    seen, found = {program.tiles}, {(program.inner, program.lanes): program}
    moves = _moves(space, program)
    number = failed = 0
    while failed < len(moves) and left:
        taken = False
        tiles = _stepped(space, best.tiles, moves[number])
        if tiles is not None and tiles not in seen:
            seen.add(tiles)
            choices = list(with_tiles(space, best, tiles))
            left -= bool(choices)
            for choice in choices:
                predicted = below(choice, seconds * (1 - LEAST_GAIN))
                if predicted < seconds * (1 - LEAST_GAIN):
                    best, seconds, taken = choice, predicted, True
                    found.pop((best.inner, best.lanes), None)
                    found[best.inner, best.lanes] = best
        if not taken:
            number = (number + 1) % len(moves)
        failed = 0 if taken else failed + 1
    return list(reversed(found.values()))


def _moves(space: TileSpace, program: StageProgram) -> list[Move]:
    """Returns the steps, outermost tile first: one dimension longer or shorter, then one longer and another shorter.

    Far steps come before near ones. There are none where units take runs of a reduction without lanes that share it, as the length
    of these runs follows from the other extents.
    """
    found: list[Move] = []
    runs = any(program.inner[d] != start(space)[d] for d in space.nest.reduce if all(d != lane for _, lane in space.mapping))
    if runs and not program.cooperate:
        return found
    for position, level in enumerate(space.levels):
        if level == len(space.spec.levels):
            continue
        dims = [d for d in range(len(program.inner)) if _open(space, position, d)]
        changes = [(a, b) for a in (*dims, None) for b in (*dims, None) if a != b]
        changes.sort(key=lambda c: None not in c)
        for reach in Reach:
            wanted = [(a, b) for a, b in changes if a is not None or reach is not Reach.END]
            found += [Move(position, a, b, reach) for a, b in wanted]
            found += [Move(position, a, b, reach, along=True) for a, b in wanted] if position else []
    return found


def _open(space: TileSpace, position: int, dim: int) -> bool:
    """True if a dimension of a tile may have several extents: reductions stay whole atoms in the innermost."""
    nest = space.nest
    innermost = position == len(space.levels) - 1
    return nest.extents[dim] > 1 and not (innermost and nest.dims[dim].is_reduce and all(d != dim for _, d in space.mapping))


def _stepped(space: TileSpace, tiles: Chain, move: Move) -> Chain | None:
    """Returns the tiles after a step, with outer tiles of about the same size; None where there is no such extent."""
    found, position = [list(tile) for tile in tiles], move.position
    for dim, longer in ((move.longer, True), (move.shorter, False)):
        if dim is None:
            continue
        extent = _next(space, tiles, position, dim, longer, move.reach)
        if extent is None:
            return None
        found[position][dim] = extent
        for outer in range(position - 1, -1, -1):
            inside, now = found[outer + 1][dim], tiles[outer][dim]
            multiple = space.rules.multiple(space.levels[outer], space.nest.dims[dim].name)
            step = math.lcm(inside, multiple.step)
            wanted = now * inside / tiles[outer + 1][dim] if move.along else now
            count = -(-space.nest.extents[dim] // step)  # steps that cover the problem, as the tile did before
            if wanted < space.nest.extents[dim]:
                count = min(count, max(1, round(wanted / step)))
            found[outer][dim] = count * step
    return tuple([tuple(tile) for tile in found])


def _next(space: TileSpace, tiles: Chain, position: int, dim: int, longer: bool, reach: Reach) -> int | None:
    """Returns the aligned extent of a dimension after a step; None beyond the last one, and for an end that is near or far away."""
    inner, now = tiles[position + 1] if position + 1 < len(tiles) else start(space), tiles[position][dim]
    every = list(extents_at(space, position, dim, inner))
    if reach is Reach.NEXT and space.rules.multiple(space.levels[position], space.nest.dims[dim].name).even:
        every = even_at(space, position, dim, inner)
    most = max(space.nest.extents[dim], inner[dim]) if position == len(tiles) - 1 else math.inf
    if longer and reach is Reach.END:
        return every[-1] if every and 2 * now < every[-1] <= min(TO_THE_END * now, most) else None
    if reach is Reach.NEXT:
        place = bisect_right(every, now) if longer else bisect_left(every, now) - 1
    else:
        place = bisect_left(every, 2 * now) if longer else bisect_right(every, now // 2) - 1
    return every[place] if 0 <= place < len(every) and every[place] <= most else None


def with_tiles(space: TileSpace, program: StageProgram, tiles: Chain) -> Iterator[StageProgram]:
    """Yields the program with other tiles, fitting copies and newly cut reductions; nothing where a rule forbids the tiles."""
    for position, (level, tile) in enumerate(zip(space.levels, tiles, strict=True)):
        inner = tiles[position + 1] if position + 1 < len(tiles) else start(space)
        rules = (space.levels, position, tile, inner, space.mapping, space.atom)
        if level < len(space.spec.levels) and (not space.fit.fits(*rules) or space.fit.legal(*rules)):
            return
    changed = replace(program, tiles=tiles, split=1, share=None, cluster=1)
    whole = recopied(space, replace(changed, band=None) if changed.repeated else changed)
    for cut in (whole, *split(space, whole), *in_turn(space, whole)) if whole is not None else ():
        yield cut
        yield from clusters_of(space, cut)
