"""The engine: construct programs from the innermost memory level outward, rate them, keep the best that differ.

    for each nest, atom and mapping:
        start from the atom; at each level, innermost first:
            grow the dimension with the best data-reuse score to its next aligned extent
            while it fits, parallelism suffices and memory still bounds; keep a spread of the path
        give every chain of tiles its loop orders, staging and reduce splits
    where software places data: move extents of the best one to their neighbours while that is rated better
    rank by estimate; drop near-duplicates

Where caches hold the data of units without lanes, all aligned tiles are screened instead (`roller.search.funnel`).

Construction starts innermost, so that outer extents are multiples of inner ones and a register tile of 6 rows is reachable.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from roller.cost.packing import panel_room
from roller.cost.parameters import CostParameters
from roller.errors import ConstructionError
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, Tile, variants
from roller.ir.row_groups import row_groups
from roller.program.alignment import Rules
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes
from roller.search.chains import best_chains, kept_of, runs
from roller.search.choices import ordered, panels_at_unit, program_of, refined, whole_programs
from roller.search.even_parts import evened
from roller.search.feasible import hopeless, reason_of
from roller.search.funnel.descent import descended
from roller.search.funnel.screen import CacheScreen, in_caches
from roller.search.funnel.short_list import short_list
from roller.search.grow import extents_at, tiles_at
from roller.search.innermost import innermost
from roller.search.local_search import settle
from roller.search.row_programs import rated_groups
from roller.search.screen import least_seconds
from roller.search.stages import Candidate, Rated, best_ways, diverse
from roller.search.tile_space import Chain, TileSpace, start, tile_spaces
from roller.target.hardware import ComputeAtom, HardwareSpec

PASSED_KEEP = 2  # chains kept beside the best of a level: those whose tile there equals the one inside it
REFINED = 8  # programs whose orders and staging are tried, beside the best one of each nest, atom and mapping
REFINE_SLACK = 1.5  # except those slower than the best by this factor: orders, copies and steps do not make up for that
# The local search at the end starts from `SETTLED` programs, at most `SAME_SETTLED` of one tile space, of different innermost
# tiles. For each it rates `STEPS` other tiles that differ in an extent or two. Where even parts may reverse the ranking, it starts
# from `SPREAD_SETTLED` programs, one of each tile space, and none that is predicted slower than the best by the factor
# `SPREAD_SLACK`.
SETTLED, SAME_SETTLED, STEPS = 3, 2, 120
SPREAD_SETTLED, SPREAD_SLACK = 4, 2.5
CHOSEN, DESCENTS = 4, 4  # in caches: programs whose loop orders are tried, and from which steps lead to neighbouring tiles
EVENED = 1200  # tiles of equal parts that are evaluated for each of these, where parts must be even


def construct(
    expr: TensorExpr,
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    top_k: int = 10,
    constants: frozenset[str] = frozenset(),
) -> list[Candidate]:
    """Returns the `top_k` best programs for a fused expression, best first; `ConstructionError` where nothing fits.

    `constants` names inputs whose values are known when the kernel is built: panels of them cost nothing.
    """
    return best_ways(expr, rated_ways(expr, spec, rules, parameters, constants), parameters, top_k)


def rated_ways(
    expr: TensorExpr,
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    constants: frozenset[str] = frozenset(),
    worth: float = math.inf,
) -> list[list[list[Rated]]]:
    """Returns the result of `rated_stages`, and where the device supports row groups also that with each group as one stage.

    Returns nothing where every program takes `worth` seconds or longer.
    """
    grouped = parameters.row_groups and len(row_groups(expr)) < len(expr.stages)  # grouped stages take less than single ones
    alone = rated_stages(expr, spec, rules, parameters, constants, math.inf if grouped else worth)
    if not alone:
        return []
    together = rated_groups(expr, alone, spec, rules, parameters)
    return [alone] if together is None else [alone, together]


def rated_stages(
    expr: TensorExpr,
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    constants: frozenset[str] = frozenset(),
    worth: float = math.inf,
) -> list[list[Rated]]:
    """Returns for each stage of a fused expression all rated programs, best first; `ConstructionError` where nothing fits.

    Returns no stages where these, run one after another, take `worth` seconds or longer.
    """
    with _uncollected():
        stages = [(nests, rules.of(nests[0].stage.name)) for nests in _nests(expr, spec)]
        least = [least_seconds(tile_spaces(nests, spec, own, parameters)) if worth < math.inf else 0.0 for nests, own in stages]
        rated: list[list[Rated]] = []
        for nests, own in stages:
            if sum(least) >= worth:
                return []
            rated.append(_rated_stage(nests, spec, own, parameters, constants))
            least[len(rated) - 1] = rated[-1][0][1].seconds
    return rated if sum(least) < worth or worth == math.inf else []


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switches off the collector of cyclic garbage.

    Construction makes many small objects and keeps them to its end. Repeated scans of them and of all other objects of the process
    took a seventh of its time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _nests(expr: TensorExpr, spec: HardwareSpec) -> Iterator[tuple[Nest, ...]]:
    for stage in expr.stages:
        yield variants(stage, expr.tensors, spec.spread)


_Pooled = tuple[tuple[float, int, tuple[Tile, ...]], Rated]  # with its ranking key


def construct_stage(
    nests: tuple[Nest, ...],
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    top_k: int,
    constants: frozenset[str] = frozenset(),
) -> list[Rated]:
    """Returns the best programs for one stage over its nest variants."""
    return diverse(_rated_stage(nests, spec, rules, parameters, constants), top_k)


def _rated_stage(
    nests: tuple[Nest, ...],
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    constants: frozenset[str],
) -> list[Rated]:
    """Returns all rated programs for one stage, best first."""
    every = tile_spaces(nests, spec, rules, parameters, constants)
    found = [s for s in every if not hopeless(s)]
    pool = _Pool()
    if found and in_caches(found[0]):
        _from_lattice(found, pool)
    else:
        for begun in _worth_refining(_started(found, pool)):
            for choice in refined(begun.space, begun.program):
                pool.rate(begun.space, choice)
    if not pool.programs:
        raise _nothing_fits(nests, spec, rules, every)
    for space, program in _worth_settling(found, pool.ranked):
        settled = settle(space, evened(space, program, EVENED), STEPS)
        for choice in (*settled, *refined(space, settled[0])):
            pool.rate(space, choice)
    return [rated for _, rated in pool.ranked]


def _nothing_fits(nests: tuple[Nest, ...], spec: HardwareSpec, rules: Rules, every: list[TileSpace]) -> ConstructionError:
    """Returns the error for a stage without any program."""
    if not every:
        stage, known = nests[0].stage, ", ".join(sorted({_computes(a) for a in rules.atoms}))
        said = f"{spec.device}:{spec.chip} does not compute in {stage.body.dtype}, as {stage.name!r} would"
        return ConstructionError(f"{said}; it computes in {known}: cast to one of these")
    refused = dict(every[0].refusals)
    reason = reason_of(every, refused)
    said = f"no tile of {nests[0].stage.name!r} fits {spec.device}:{spec.chip}"
    return ConstructionError(f"{said}: {reason}" if reason else said, refused)


def _from_lattice(found: list[TileSpace], pool: _Pool) -> None:
    """Rates programs for units whose data caches hold: enumerate, screen, rate, choose, descend."""
    if any(0 in space.nest.extents for space in found):  # nothing is computed: the least tiles do
        for space in found:
            pool.rate(space, program_of(space, space.levels, (start(space),) * len(space.levels)))
        return
    screens = [CacheScreen(space) for space in found]
    by_way = {screen.space.way: screen for screen in screens}
    for screen, program in short_list(screens):
        pool.rate(screen.space, program)
    for program in pool.leaders(CHOSEN):
        for choice in ordered(program):
            pool.rate(by_way[program.way].space, choice)
    for program in pool.leaders(DESCENTS):
        screen = by_way[program.way]
        rate = partial(pool.rate, screen.space)
        settled, _ = descended(screen, program, rate(program), rate)
        for choice in ordered(settled):
            rate(choice)


def _computes(atom: ComputeAtom) -> str:
    """Returns the types in which an atom computes, as an expression would request them."""
    return atom.acc_dtype if atom.in_dtype == atom.acc_dtype else f"{atom.acc_dtype} of {atom.in_dtype} factors"


class _Pool:
    """The rated programs of a stage, over all tile spaces."""

    def __init__(self) -> None:
        self.programs: dict[tuple[object, ...], _Pooled] = {}
        self.best = math.inf  # seconds of the best of them

    def rate(self, space: TileSpace, program: StageProgram) -> float:
        """Returns the predicted seconds of a program and keeps it, unless it cannot run.

        Programs that are no better than the best one so far are checked later.
        """
        rating = space.model.estimate(program)
        if math.isinf(rating.seconds):
            if program.parallel:  # others are tried as well
                space.refusals[rating.bound_by] += 1
            return rating.seconds
        if rating.seconds < self.best:
            if not runs(space, program):
                return math.inf
            self.best = rating.seconds
        order = rating.seconds, space.fit.touched_bytes(program.inner), program.tiles
        self.programs.setdefault((space.nest.dims, *program.key), (order, (program, rating)))
        return rating.seconds

    def leaders(self, count: int) -> list[StageProgram]:
        """Returns the best programs, no two of one tile space with the same innermost tile."""
        first: dict[object, StageProgram] = {}
        for _, (program, _) in self.ranked:
            first.setdefault((program.way, program.inner), program)
            if len(first) == count:
                break
        return list(first.values())

    @property
    def ranked(self) -> list[_Pooled]:
        """The programs, best first."""
        return sorted(self.programs.values(), key=lambda item: item[0])


@dataclass(frozen=True)
class _Start:
    """A program whose orders and copies are still open."""

    seconds: float
    tiles: Chain
    number: int
    space: TileSpace
    program: StageProgram

    def order(self) -> tuple[float, Chain, int]:
        return self.seconds, self.tiles, self.number


def _started(found: list[TileSpace], pool: _Pool) -> list[list[_Start]]:
    """Returns rated programs around the most promising innermost tiles.

    Where none of them fits, it continues with the tile spaces that were passed over for these. The promise of an atom is known
    before it is known whether its panels fit.
    """
    plain: list[list[_Start]] = []
    left = found
    while left and not pool.programs:
        pursued = list(innermost(left))
        grown = [_grown(space, chains) for space, chains in pursued]
        for number, ((space, _), every, best) in enumerate(zip(pursued, grown, best_chains(pursued, grown), strict=True)):
            for programs in (whole_programs(space, best), _with_panels(space, every)):
                starts = [_Start(pool.rate(space, p), p.tiles, number, space, p) for p in programs]
                plain.append(sorted(starts, key=_Start.order))
        tried = {id(space) for space, _ in pursued} or {id(left[0])}
        left = [space for space in left if id(space) not in tried]
    return plain


def _worth_refining(plain: list[list[_Start]]) -> list[_Start]:
    """Returns the best program of each tile space as it is and with panels, as copies change their ranking; then the best
    others.
    """
    best = min((starts[0].seconds for starts in plain if starts), default=0.0)
    first = [starts[0] for starts in plain if starts and starts[0].seconds <= REFINE_SLACK * best]
    rest = sorted((start for starts in plain for start in starts[1:]), key=_Start.order)
    return [*first, *rest[:REFINED]]


def _worth_settling(found: list[TileSpace], ranked: list[_Pooled]) -> Iterator[tuple[TileSpace, StageProgram]]:
    """Yields the best programs of the best tile spaces; those of one tile space have different innermost tiles.

    Yields none where caches hold the units' tiles. Cache traffic is an estimate, and the predicted gains of small steps were none
    when they were measured: such steps lead to where the model is weakest.
    """
    known = {s.way: s for s in found}
    spread = bool(found) and found[0].spec.spread
    wanted = dict.fromkeys((False, True), SPREAD_SETTLED if spread else SETTLED)  # with and without windows
    begun: dict[object, set[Tile]] = {}
    for (seconds, *_), (program, _) in ranked:
        if seconds > (SPREAD_SLACK if spread else REFINE_SLACK) * ranked[0][0][0]:
            break
        inner = begun.setdefault(program.way, set())
        if not wanted[program.windowed] or program.inner in inner or len(inner) == (1 if spread else SAME_SETTLED):
            continue
        wanted[program.windowed] -= 1
        inner.add(program.inner)
        space = known[program.way]
        if space.spec.levels[program.levels[0]].managed:
            yield space, program


def _grown(space: TileSpace, chains: list[Chain]) -> list[Chain]:
    """Returns chains with a tile for every level, grown from the innermost tiles outward."""
    keep = kept_of(chains)
    for position in reversed(range(len(space.levels) - 1)):
        found: dict[Chain, None] = {}
        for chain in chains:
            found.update({(tile, *chain): None for tile in tiles_at(space, position, chain[0])})
        chains = list(found) if position == 0 else _prune(space, space.levels[position:], list(found), keep)
    return chains


def _with_panels(space: TileSpace, chains: list[Chain]) -> list[StageProgram]:
    """Returns programs whose factors lie in panels at the unit's level, packed in the order in which the nest reads them.

    Around each inner tile these have the outer tile with the least traffic whose panel a cache holds, as little else depends on it
    then. That tile is taken as grown, and also as long as the problem where the panel is reused: the panel is filled once for more
    work, and takes no more room.
    """
    if not chains:
        return []
    model, rated = space.model, []
    for staged in panels_at_unit(space, program_of(space, space.levels, chains[0])):
        least: dict[tuple[Chain, bool], tuple[float, Chain]] = {}
        for chain in chains:
            if not _held(space, chain, staged[-1]):
                continue
            for long in (_along(space, chain, staged[-1].operand), chain):
                found = space.fit.traffic(space.levels, 0, long[0]), long
                key = chain[1:], long is chain
                least[key] = min(found, least.get(key, found))
        programs = [replace(program_of(space, space.levels, chain), staged=staged) for _, chain in least.values()]
        rated += [(model.estimate(program).seconds, program.tiles, program) for program in programs]
    rated.sort(key=lambda item: item[:2])
    return [program for *_, program in rated]


def _along(space: TileSpace, chain: Chain, factor: int) -> Chain:
    """Returns the chain with the longest allowed outermost tile in the spatial dimensions that a factor does not depend on."""
    nest, touches, tile = space.nest, space.nest.factor_touches(factor), list(chain[0])
    for dim in nest.spatial:
        if not touches[dim]:
            tile[dim] = max([tile[dim], *extents_at(space, 0, dim, chain[1])])
    return (tuple(tile), *chain[1:])


def _held(space: TileSpace, chain: Chain, staging: Staging) -> bool:
    elements = space.model.geometry.panel_elements(staging.operand, chain[0])
    return elements * panel_element_bytes(space.nest, space.atom) <= panel_room(space.spec, staging.level)


def _prune(space: TileSpace, levels: tuple[int, ...], chains: list[Chain], keep: int) -> list[Chain]:
    """Returns the chains with the least predicted time so far, counting only the levels that have a tile."""
    if len(chains) <= keep:
        return chains
    rated = []
    for chain in chains:
        seconds = space.model.partial_seconds(program_of(space, levels, chain), levels[0])
        rated.append((seconds, space.fit.touched_bytes(chain[-1]), chain))
    rated.sort()
    # This level's traffic alone determines the best ratings so far; a level passed through leaves the choice to outer levels.
    passed = [chain for *_, chain in rated[keep:] if chain[0] == chain[1]]
    return [*(chain for *_, chain in rated[:keep]), *passed[:PASSED_KEEP]]
