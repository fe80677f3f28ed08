"""The last step of construction: extents of a constructed program moved to their neighbours while the model rates that better.

Growth gives a dimension its next extent and never takes one back, level by level; what one level chose fits what the outer ones
made of it only nearly. Here a step is an aligned extent more or less of one dimension, or more of one dimension and less of another
where room or lanes are full. A dimension is also taken whole, which growth passes by where that makes no power of two of lanes.
Each step that helps is taken at once and repeated; nothing is looked at twice, and so many programs are rated at most.
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

LEAST_GAIN = 0.002  # a share of the time that a step must save
TO_THE_END = 4  # times an extent: the whole dimension is a step from there


class Reach(Enum):
    """How far a step goes: what becomes longer to the end of its dimension, to about twice the extent, or to the next one; what
    becomes shorter to about half or to the next one.
    """

    END = "end"
    TWICE = "twice"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Move:
    """A step: the tile's position, the dimension that becomes longer and the one that becomes shorter. `along`: tiles outside keep
    their number of these tiles, not their size.
    """

    position: int
    longer: int | None
    shorter: int | None
    reach: Reach
    along: bool = False


def settle(search: Search, program: StageProgram, limit: int, rate: Rate | None = None) -> list[StageProgram]:
    """Where steps lead from a program: of those on the way the last one for each innermost tile and number of lanes, best first, as
    a device may lack room for these; the program itself where no step helps. At most `limit` other tiles are rated, each whole
    and with its reduction cut. `rate`: instead of the search's model.
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
    """Outermost tile first: one dimension longer or shorter, then one longer and another shorter; far steps before near ones. None
    where units take runs of a reduction without lanes that share it, as how long those are follows from the other extents.
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
    """The tiles after a step, those outside it of about the size they had; None where there is no such extent."""
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
    """The aligned extent of a dimension that a step goes to; None beyond the last one, and where its end is near or far away."""
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
    """The program with other tiles, its copies as they fit these, its reduction cut anew; nothing where a rule forbids them."""
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
