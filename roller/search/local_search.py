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
from roller.search.tile_space import Chain, Search, start

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


def settle(search: Search, program: StageProgram, limit: int, rate: Rate | None = None) -> list[StageProgram]:
    """Returns the programs that steps lead to, best first, or the program itself where no step helps.

    It keeps the last program on the way for each innermost tile and number of lanes, as a device may lack room for some of these.
    At most `limit` other tiles are rated, each whole and with its reduction cut (split-K). `rate` replaces the search's model.
    """
    below = search.model.seconds_below if rate is None else lambda p, _: rate(p)
    best, seconds, left = program, below(program, math.inf), limit
    seen, found = {program.tiles}, {(program.inner, program.lanes): program}
    moves = _moves(search, program)
    number = failed = 0
    while failed < len(moves) and left:
        taken = False
        tiles = _stepped(search, best.tiles, moves[number])
        if tiles is not None and tiles not in seen:
            seen.add(tiles)
            choices = list(with_tiles(search, best, tiles))
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


def _moves(search: Search, program: StageProgram) -> list[Move]:
    """Returns the steps, outermost tile first: one dimension longer or shorter, then one longer and another shorter.

    Far steps come before near ones. There are none where units take runs of a reduction without lanes that share it, as the length
    of these runs follows from the other extents.
    """
    found: list[Move] = []
    runs = any(program.inner[d] != start(search)[d] for d in search.nest.reduce if all(d != lane for _, lane in search.mapping))
    if runs and not program.cooperate:
        return found
    for position, level in enumerate(search.levels):
        if level == len(search.spec.levels):
            continue
        dims = [d for d in range(len(program.inner)) if _open(search, position, d)]
        changes = [(a, b) for a in (*dims, None) for b in (*dims, None) if a != b]
        changes.sort(key=lambda c: None not in c)
        for reach in Reach:
            wanted = [(a, b) for a, b in changes if a is not None or reach is not Reach.END]
            found += [Move(position, a, b, reach) for a, b in wanted]
            found += [Move(position, a, b, reach, along=True) for a, b in wanted] if position else []
    return found


def _open(search: Search, position: int, dim: int) -> bool:
    """True if a dimension of a tile may have several extents: reductions stay whole atoms in the innermost."""
    nest = search.nest
    innermost = position == len(search.levels) - 1
    return nest.extents[dim] > 1 and not (innermost and nest.dims[dim].is_reduce and all(d != dim for _, d in search.mapping))


def _stepped(search: Search, tiles: Chain, move: Move) -> Chain | None:
    """Returns the tiles after a step, with outer tiles of about the same size; None where there is no such extent."""
    found, position = [list(tile) for tile in tiles], move.position
    for dim, longer in ((move.longer, True), (move.shorter, False)):
        if dim is None:
            continue
        extent = _next(search, tiles, position, dim, longer, move.reach)
        if extent is None:
            return None
        found[position][dim] = extent
        for outer in range(position - 1, -1, -1):
            inside, now = found[outer + 1][dim], tiles[outer][dim]
            multiple = search.rules.multiple(search.levels[outer], search.nest.dims[dim].name)
            step = math.lcm(inside, multiple.step)
            wanted = now * inside / tiles[outer + 1][dim] if move.along else now
            count = -(-search.nest.extents[dim] // step)  # steps that cover the problem, as the tile did before
            if wanted < search.nest.extents[dim]:
                count = min(count, max(1, round(wanted / step)))
            found[outer][dim] = count * step
    return tuple([tuple(tile) for tile in found])


def _next(search: Search, tiles: Chain, position: int, dim: int, longer: bool, reach: Reach) -> int | None:
    """Returns the aligned extent of a dimension after a step; None beyond the last one, and for an end that is near or far away."""
    inner, now = tiles[position + 1] if position + 1 < len(tiles) else start(search), tiles[position][dim]
    every = list(extents_at(search, position, dim, inner))
    if reach is Reach.NEXT and search.rules.multiple(search.levels[position], search.nest.dims[dim].name).even:
        every = even_at(search, position, dim, inner)
    most = max(search.nest.extents[dim], inner[dim]) if position == len(tiles) - 1 else math.inf
    if longer and reach is Reach.END:
        return every[-1] if every and 2 * now < every[-1] <= min(TO_THE_END * now, most) else None
    if reach is Reach.NEXT:
        place = bisect_right(every, now) if longer else bisect_left(every, now) - 1
    else:
        place = bisect_left(every, 2 * now) if longer else bisect_right(every, now // 2) - 1
    return every[place] if 0 <= place < len(every) and every[place] <= most else None


def with_tiles(search: Search, program: StageProgram, tiles: Chain) -> Iterator[StageProgram]:
    """Yields the program with other tiles, fitting copies and newly cut reductions; nothing where a rule forbids the tiles."""
    for position, (level, tile) in enumerate(zip(search.levels, tiles, strict=True)):
        inner = tiles[position + 1] if position + 1 < len(tiles) else start(search)
        rules = (search.levels, position, tile, inner, search.mapping, search.atom)
        if level < len(search.spec.levels) and (not search.fit.fits(*rules) or search.fit.legal(*rules)):
            return
    changed = replace(program, tiles=tiles, split=1, share=None, cluster=1)
    whole = recopied(search, replace(changed, band=None) if changed.repeated else changed)
    for cut in (whole, *split(search, whole), *in_turn(search, whole)) if whole is not None else ():
        yield cut
        yield from clusters_of(search, cut)
