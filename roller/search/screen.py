"""The screen: about what the programs of a chain of tiles take, from a few terms, so that the model rates only the best of many.

    computing      the model's own term, with the copies as they are without padding
    moving         every tile loads its data anew from the level outside; every array once into the outermost one
    around it      combining partial results, starting kernels, handing out tiles: the model's own terms

These overlap as in the model (`roller.cost.model.overlapped`). What is left out, such as which lanes read together, padding
against bank conflicts and what a wait costs, takes most of the time of a rating and tells tiles apart less. What tiles load anew
comes at the rate of the unit's own level if all of it is still near, and at that of the slowest level on the way if nothing is:
the truth is between, and chains are on the short list that are good by either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roller.cost.combining import combine_seconds
from roller.cost.model import overlapped
from roller.program.rprogram import StageProgram
from roller.search.choices import program_of, split
from roller.search.tile_space import Chain, Search, start

SHORT_LIST = 32  # chains of tiles by either rate that the model rates at a time, over all searches of a stage: more is more time
OF_EACH = 3  # … and at least so many of each search


def trusted(search: Search) -> bool:
    """True where the screen tells a search's chains apart: where software fills a unit's memory, no cache holds anything from
    one tile to the next; a device's own model counts something else.
    """
    return search.spec.levels[search.levels[0]].managed and search.model.parameters.own_model is None


def screened(search: Search, chain: Chain) -> tuple[float, float]:
    """Seconds, about, of the better of a chain's programs, as it is or with its reduction cut: if what tiles load anew is near, and
    if it is not.
    """
    whole = program_of(search, search.levels, chain, pad=False)
    found = [_seconds(search, program) for program in (whole, *split(search, whole, pad=False))]
    return min(near for near, _ in found), min(far for _, far in found)


def _seconds(search: Search, program: StageProgram) -> tuple[float, float]:
    model, levels = search.model, search.spec.levels
    busy, moved = model.rates.busy(program), [0.0] * len(levels)
    for position, level in enumerate(search.levels):
        if level < len(levels) and level != search.lane_level:
            loaded = search.fit.traffic(search.levels, position, program.tiles[position])
            moved[level] = loaded / model.rates.into(levels[level], busy)
    moved[1] = max(moved[1], model.compulsory_seconds)
    far = search.fit.traffic(search.levels, 0, program.unit_tile) / model.rates.from_outside(busy)
    combine = combine_seconds(model.rates, program, model.resident(program))
    around = combine + model.launch_seconds(program) + model.overhead_seconds(program)
    compute, steps, losses = model.compute_seconds(program), max(1, model.steps(program)), model.losses(program)
    near = overlapped((compute, *moved[1:]), steps, losses)
    return near + around, overlapped((compute, max(moved[1], far), *moved[2:]), steps, losses) + around


def least_seconds(found: Sequence[Search]) -> float:
    """No program of a stage takes less: to compute without waiting for anything, or to move once what is read and written, where it
    cannot be there from before; and to start a kernel, where lanes need one.
    """
    if not found:
        return 0.0
    model, unit = found[0].model, found[0].spec.unit
    floor = min(s.model.floor_seconds(program_of(s, s.levels[-1:], (start(s),))) for s in found)
    started = unit.launch_overhead_us * 1e-6 if found[0].lane_level is not None else 0.0
    moved = (1 - model.parameters.warm) * model.compulsory_seconds
    return started + max(floor, min(moved * _touched(s) for s in found))


def _touched(search: Search) -> float:
    """The share of its arrays that a nest touches."""
    whole = sum({a.tensor.name: a.tensor.nbytes for a in search.nest.accesses}.values())
    return min(1.0, search.fit.touched_bytes(search.nest.extents) / whole) if whole else 0.0


def short_lists(searches: Sequence[Search], chains: Sequence[Sequence[Chain]]) -> Iterator[list[list[Chain]]]:
    """For each search those of its chains that promise most; then the next ones, until there are no more: whoever finds a program
    that can run among the first need not look at others.
    """
    left = [
        _Screened(screened(search, chain), search.fit.touched_bytes(chain[-1]), chain, number)
        for number, (search, mine) in enumerate(zip(searches, chains, strict=True))
        for chain in mine
    ]
    while left:
        chosen = {id(item) for side in range(2) for item in _best_by(side, left)}
        yield [[item.chain for item in left if id(item) in chosen and item.number == number] for number in range(len(searches))]
        left = [item for item in left if id(item) not in chosen]


class _Screened(NamedTuple):
    """A chain with its seconds, what its innermost tile touches (bytes), and the number of its search."""

    seconds: tuple[float, float]
    touched: int
    chain: Chain
    number: int


def _best_by(side: int, items: list[_Screened]) -> Iterator[_Screened]:
    """The best of all, and some of each search."""
    seen: Counter[int] = Counter()
    for rank, item in enumerate(sorted(items, key=lambda item: (item.seconds[side], item.touched, item.chain, item.number))):
        seen[item.number] += 1
        if rank < SHORT_LIST or seen[item.number] <= OF_EACH:
            yield item


__all__ = ["least_seconds", "screened", "short_lists", "trusted"]
