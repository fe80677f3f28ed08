"""The screen: a rough estimate of a tile chain's programs from a few terms, so that the model rates only the best of many.

    computing      the model's own term, with the copies as they are without padding
    moving         every tile reloads its data from the next outer level; every array moves once into the outermost one
    around it      combining partial results, starting kernels, dispatching tiles: the model's own terms

These overlap as in the model (`roller.cost.model.overlapped`). The screen leaves out terms such as which lanes read together,
padding against bank conflicts, and the cost of waits. These take most of the time of a rating and distinguish tiles less. Reloaded
data arrive at the rate of the unit's own level if all of them are still near, and at that of the slowest level on the way if none
are. The truth is between, so the short list has the chains that are good by either rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roller.cost.combining import combine_seconds
from roller.cost.model import overlapped
from roller.program.rprogram import StageProgram
from roller.search.choices import program_of, split
from roller.search.tile_space import Chain, TileSpace, start

SHORT_LIST = 32  # chains by either rate that the model rates at a time, over all tile spaces of a stage: more take more time
OF_EACH = 3  # and at least this many of each tile space


def trusted(space: TileSpace) -> bool:
    """True if the screen distinguishes the chains of a tile space.

    It does where software fills a unit's memory, as no cache keeps data from one tile to the next. A device's own model counts
    something else.
    """
    return space.spec.levels[space.levels[0]].managed and space.model.parameters.own_model is None


def screened(space: TileSpace, chain: Chain) -> tuple[float, float]:
    """Returns the approximate seconds of the better of a chain's programs, whole or with its reduction cut (split-K).

    The first number holds if the reloaded data are near, the second if they are not.
    """
    whole = program_of(space, space.levels, chain, pad=False)
    found = [_seconds(space, program) for program in (whole, *split(space, whole, pad=False))]
    return min(near for near, _ in found), min(far for _, far in found)


def _seconds(space: TileSpace, program: StageProgram) -> tuple[float, float]:
    model, levels = space.model, space.spec.levels
    busy, moved = model.rates.busy(program), [0.0] * len(levels)
    for position, level in enumerate(space.levels):
        if level < len(levels) and level != space.lane_level:
            loaded = space.fit.traffic(space.levels, position, program.tiles[position])
            moved[level] = loaded / model.rates.into(levels[level], busy)
    moved[1] = max(moved[1], model.compulsory_seconds)
    far = space.fit.traffic(space.levels, 0, program.unit_tile) / model.rates.from_outside(busy)
    combine = combine_seconds(model.rates, program, model.resident(program))
    around = combine + model.launch_seconds(program) + model.overhead_seconds(program)
    compute, steps, losses = model.compute_seconds(program), max(1, model.steps(program)), model.losses(program)
    near = overlapped((compute, *moved[1:]), steps, losses)
    return near + around, overlapped((compute, max(moved[1], far), *moved[2:]), steps, losses) + around


def least_seconds(found: Sequence[TileSpace]) -> float:
    """Returns a lower bound of the seconds of every program of a stage.

    It is the time to compute without any wait, or to move once the data read and written that cannot be cached beforehand. Where
    lanes need a kernel launch, that is added.
    """
    if not found:
        return 0.0
    model, unit = found[0].model, found[0].spec.unit
    floor = min(s.model.floor_seconds(program_of(s, s.levels[-1:], (start(s),))) for s in found)
    started = unit.launch_overhead_us * 1e-6 if found[0].lane_level is not None else 0.0
    moved = (1 - model.parameters.warm) * model.compulsory_seconds
    return started + max(floor, min(moved * _touched(s) for s in found))


def _touched(space: TileSpace) -> float:
    """Returns the share of its arrays that a nest touches."""
    whole = sum({a.tensor.name: a.tensor.nbytes for a in space.nest.accesses}.values())
    return min(1.0, space.fit.touched_bytes(space.nest.extents) / whole) if whole else 0.0


def short_lists(tile_spaces: Sequence[TileSpace], chains: Sequence[Sequence[Chain]]) -> Iterator[list[list[Chain]]]:
    """Yields for each tile space its most promising chains, then the next ones, until none is left.

    A caller that finds a program that can run among the first need not look at the others.
    """
    left = [
        _Screened(screened(space, chain), space.fit.touched_bytes(chain[-1]), chain, number)
        for number, (space, mine) in enumerate(zip(tile_spaces, chains, strict=True))
        for chain in mine
    ]
    while left:
        chosen = {id(item) for side in range(2) for item in _best_by(side, left)}
        yield [[item.chain for item in left if id(item) in chosen and item.number == number] for number in range(len(tile_spaces))]
        left = [item for item in left if id(item) not in chosen]


class _Screened(NamedTuple):
    """A chain with its seconds, the bytes that its innermost tile touches, and the number of its tile space."""

    seconds: tuple[float, float]
    touched: int
    chain: Chain
    number: int


def _best_by(side: int, items: list[_Screened]) -> Iterator[_Screened]:
    """Yields the best of all, and some of each tile space."""
    seen: Counter[int] = Counter()
    for rank, item in enumerate(sorted(items, key=lambda item: (item.seconds[side], item.touched, item.chain, item.number))):
        seen[item.number] += 1
        if rank < SHORT_LIST or seen[item.number] <= OF_EACH:
            yield item


__all__ = ["least_seconds", "screened", "short_lists", "trusted"]
