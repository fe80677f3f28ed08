"""A program with other tiles: new copies, and reductions cut anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roller.cost.occupancy import held_copies
from roller.program.rprogram import StageProgram
from roller.search.choices import clusters_of, in_turn, padded, split
from roller.search.tile_space import Chain, TileSpace, start


def recopied(space: TileSpace, program: StageProgram) -> StageProgram | None:
    """Returns a program with changed tiles and newly padded copies; None where there is no room for as many copies."""
    if not space.spec.levels[program.levels[0]].managed or not program.staged:
        return program
    held = max(held_copies(program, space.spec))
    if held > 1 and space.fit.room_left(program.levels, 0, program.unit_tile, held, space.atom) < 0:
        return None
    return replace(program, staged=padded(space, program.levels, program.tiles, program.staged))


def with_tiles(space: TileSpace, program: StageProgram, tiles: Chain) -> Iterator[StageProgram]:
    """Yields the program with other tiles, fitting copies and newly cut reductions; nothing where a rule forbids the tiles."""
    for position, (level, tile) in enumerate(zip(space.levels, tiles, strict=True)):
        inner = tiles[position + 1] if position + 1 < len(tiles) else start(space)
        rules = (space.levels, position, tile, inner, space.mapping, space.atom)
        if level < len(space.spec.levels) and (not space.fit.fits(*rules) or space.fit.legal(*rules)):
            return
    changed = replace(program, tiles=tiles, dispatch=program.dispatch.uncut)
    whole = recopied(space, changed.unbanded if changed.repeated else changed)
    for cut in (whole, *split(space, whole), *in_turn(space, whole)) if whole is not None else ():
        yield cut
        yield from clusters_of(space, cut)
