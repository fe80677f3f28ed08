"""The short list of a stage: of all chains on the lattices of its tile spaces, the programs that the screen rates best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from roller.ir.elementwise import Value
from roller.program.rprogram import StageProgram
from roller.search.choices import orders_of
from roller.search.funnel.lattice import Chains, Tiles, best_places, chains_of, inner_tiles, innermost_fits, tiles_of
from roller.search.funnel.steps import nearby
from roller.search.tile_space import Chain, TileSpace


class Screen(Protocol):
    """The screen of one tile space: approximate seconds of whole arrays of tile chains, in each of several ways."""

    space: TileSpace

    def halve_room(self) -> bool:
        """Assumes that data may take half as much room as before; False where that leads to no other chains."""

    def turn(self) -> bool:
        """Turns to the programs that have a short list of their own, which it then screens alone; False if there are none."""

    def kinds(self, inner: Tiles) -> Value:
        """Returns a number for each innermost tile; some tiles of each number are pursued."""

    def least_seconds(self, inner: Tiles) -> Value:
        """Returns a lower bound for chains around innermost tiles."""

    def around(self, inner: Sequence[Tiles]) -> Chains:
        """Returns chains around innermost tiles of several kinds."""

    def seconds(self, chains: Chains, least: float, worth: float, most: int) -> list[Value]:
        """Returns the approximate seconds of chains of tiles in each way.

        `least`: a lower bound of all of them. Numbers of `worth` and above, and those behind the `most` best, need not be exact.
        """

    def seconds_of(self, chains: Chains, program: StageProgram) -> Value:
        """Returns the approximate seconds of chains of tiles in the way of a program."""

    def programs(self, chain: Chain, way: int) -> Iterator[StageProgram]:
        """Yields the programs of a chain in the way with this number, with the default loop orders."""


INNER = 12  # innermost tiles around which chains are screened, over all tile spaces of a stage; more take more time
EACH = 6  # and at least this many of each kind in each tile space
ROUNDS, SETTLED = 1, 8  # how often, and around how many of the best, neighbours are screened; more take more time
LONG = 128  # programs among which the model looks for those
MISLED = 1.2  # how many times longer a program may take than the screen says
OF_EACH = 2  # programs of each tile space that promises about as much as the best one
ALIKE = 3  # programs with the same innermost tile
REFUSED = 24  # programs of a tile space that a device refuses before the next one is tried
UNSURE = 4  # times as many programs where a device has a model of its own
SHORT = 16  # programs that the model rates; more take more time

Rate = Callable[[TileSpace, StageProgram], float]
Listed = tuple[float, Chain, int, int]  # seconds, tiles, numbers of the tile space and of the way


def budget(space: TileSpace) -> int:
    """Returns how many times more programs are rated where a device's own model counts something else than the screen."""
    return 1 if space.model.parameters.own_model is None else UNSURE


def rate_short_list(screens: Sequence[Screen], rate: Rate, count: int = 1, worth: float = math.inf, each: int = EACH) -> None:
    """Rates the best programs by the screen, best first; of equal ones the one with the smaller tiles.

    It goes on until `SHORT` of them take about as long as the screen says, as it may be wrong about all that are alike. For the
    same reason, few of them have the same innermost tile. If none can run, a device needs more room than the screen knows.
    `count`: the programs that a caller asks for; there are at least as many. `worth`: seconds; longer programs are not rated.
    `each`: at least so many innermost tiles of each kind are pursued.
    """
    left = list(screens)
    while left:
        lacking = _rate_screened(left, rate, -(-count // SHORT), worth, each)
        left = [screen for screen in left if screen in lacking and screen.halve_room()]


def _rate_screened(screens: Sequence[Screen], rate: Rate, often: int, worth: float, each: int) -> list[Screen]:
    """Rates the short list, so many times as long; returns the screens of whose programs none ran, as units have no room."""
    seen, refused, ran, lacking = Counter[object](), Counter[object](), set[object](), dict[int, bool]()
    unsure = budget(screens[0].space)
    left, trusted = SHORT * max(unsure, often), 1.0 if unsure == 1 else math.inf  # a device's own model may be longer throughout
    listed = _screened(screens, often, each)
    for seconds, chain, number, way in listed:
        space = screens[number].space
        if seconds > worth:
            break
        alike, kind = _alike(space, number, chain)
        if not left and (seen[number] >= OF_EACH or seconds > MISLED * listed[0][0]):
            continue
        if seen[alike] == ALIKE * often or (refused[kind] == REFUSED and kind not in ran):
            continue
        seen[alike] += 1
        seen[number] += 1
        rule = space.fit.rule(space.levels, 0)
        before = space.refusals[rule]
        named = [one for one in screens[number].programs(chain, way) if space.has_named(one.unit_tile)]
        longer = min([_in_any_order(space, rate, one) for one in named], default=math.inf) / seconds
        lacking[number] = lacking.get(number, True) and math.isinf(longer) and space.refusals[rule] > before
        if math.isinf(longer):
            refused[kind] = min(refused[kind] + 1, REFUSED)
        else:
            ran.add(kind)
        trusted = max(1.0, min(trusted, longer))
        left = max(0, left - (longer <= MISLED * trusted < math.inf))
    return [screens[number] for number, lacks in lacking.items() if lacks]


def _in_any_order(space: TileSpace, rate: Rate, program: StageProgram) -> float:
    """Returns the seconds of a program, or where units have no room for its order of loops, of the fastest in another one."""
    seconds = rate(space, program)
    if math.isinf(seconds) and space.model.parameters.own_model is not None:
        return min([rate(space, replace(program, orders=orders)) for orders in orders_of(program)], default=seconds)
    return seconds


def _alike(space: TileSpace, number: int, chain: Chain) -> tuple[object, object]:
    """Returns the key of chains with the same innermost tile, if these differ, and of those with reductions whole or in steps."""
    inner = chain[-1] if space.levels[-1] < len(space.spec.levels) else chain
    stepped = any(chain[0][d] < space.nest.extents[d] for d in space.nest.reduce)
    return (number, inner), (number, stepped)


def _screened(screens: Sequence[Screen], often: int, each: int) -> list[Listed]:
    """Returns the best programs by the screen, best first: `LONG`, or as many of each tile space where a device rates otherwise."""
    best: list[Listed] = []
    long = LONG * often
    for number, kinds in promising(screens, each):
        sure = budget(screens[number].space) == 1
        worst = best[long - 1][0] if len(best) >= long and sure else math.inf
        inner = [tiles[:, least < worst] for tiles, least in kinds if np.any(least < worst)]
        chains = screens[number].around(inner) if inner else []
        if chains and chains[0].shape[1]:
            most = long if sure else chains[0].shape[1]  # of each way many are listed where a device rates otherwise
            seconds = screens[number].seconds(chains, min(float(least.min()) for _, least in kinds), worst, most)
            best = sorted([*best, *_listed(number, chains, seconds, worst, long)])[: long if sure else None]
    for _ in range(ROUNDS):
        best = _settled(screens, best, max(long, len(best)))
    return best


def _settled(screens: Sequence[Screen], best: list[Listed], most: int) -> list[Listed]:
    """Returns the best `most` of a list and of the chains around its first ones."""
    found = dict.fromkeys(best)
    for number in dict.fromkeys(number for _, _, number, _ in best[:SETTLED]):
        mine = [chain for _, chain, other, _ in best[:SETTLED] if other == number]
        chains = nearby(screens[number].space, [tiles_of(tiles) for tiles in zip(*mine, strict=True)])
        fits = innermost_fits(screens[number].space, chains[-1])
        chains = [tiles[:, fits] for tiles in chains]
        if not fits.any():
            continue
        seconds = screens[number].seconds(chains, best[0][0], best[-1][0], most)
        found.update(dict.fromkeys(_listed(number, chains, seconds, best[-1][0], most)))
    return sorted(found)[:most]


def promising(screens: Sequence[Screen], each: int) -> Iterator[tuple[int, list[tuple[Tiles, Value]]]]:
    """Yields for each tile space the innermost tiles of each kind with the least lower bounds; the most promising space first."""
    inner = [inner_tiles(screen.space) for screen in screens]
    least = [screen.least_seconds(tiles) for screen, tiles in zip(screens, inner, strict=True)]
    every = np.sort(np.concatenate(least))
    worth = every[min(INNER, len(every)) - 1] if len(every) else 0.0
    for number in sorted(range(len(screens)), key=lambda n: (least[n].min(initial=math.inf), n)):
        kinds, found = screens[number].kinds(inner[number]), []
        for kind in np.unique(kinds).tolist():
            mine = np.flatnonzero(kinds == kind)
            mine = mine[np.argsort(least[number][mine], kind="stable")]
            chosen = mine[: max(each, int(np.count_nonzero(least[number][mine] <= worth)))]
            found.append((inner[number][:, chosen], least[number][chosen]))
        yield number, found


def _listed(number: int, chains: Chains, rated: list[Value], worst: float, most: int) -> Iterator[Listed]:
    """Yields the best chains that take less than `worst` seconds, at most `most` of each way."""
    for way, seconds in enumerate(rated):
        near = best_places(seconds, chains, most, worst)
        for place, chain in zip(near, chains_of(chains, near), strict=True):
            yield float(seconds[place]), chain, number, way
