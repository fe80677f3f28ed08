"""The engine: enumerate, screen, rate, choose, descend.

    for each nest, atom and mapping:
        list the aligned innermost tiles that fit, and around the promising ones the chains of tiles that fit
        screen all of them at a time: the model's terms as arrays
    rate the best ones with the model, exactly
    try the choices that the best ones leave open: loop orders, copies, split-K, rasterisation, pipeline stages
    go down from the best ones to neighbouring tiles, as long as the model rates one of them better
    rank by estimate; drop near-duplicates

The parts are in `roller.search.funnel`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from roller.cost.parameters import CostParameters
from roller.errors import ConstructionError
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, variants
from roller.ir.row_groups import row_groups
from roller.program.alignment import Rules
from roller.program.rprogram import StageProgram
from roller.search.choices import ordered, program_of, refined
from roller.search.feasible import hopeless, reason_of
from roller.search.funnel.descent import descended
from roller.search.funnel.screens import in_caches, screen_of
from roller.search.funnel.short_list import EACH, budget, rate_short_list
from roller.search.lower_bound import least_seconds
from roller.search.pool import Pool
from roller.search.row_programs import rated_groups
from roller.search.stages import Candidate, Rated, best_ways, diverse
from roller.search.tile_space import TileSpace, start, tile_spaces
from roller.target.hardware import ComputeAtom, HardwareSpec

CHOSEN, DESCENTS = 4, 2  # programs whose choices are tried, and from which steps lead to neighbouring tiles; more take more time


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
    return best_ways(expr, rated_ways(expr, spec, rules, parameters, constants, top_k=top_k), parameters, top_k)


def rated_ways(
    expr: TensorExpr,
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    constants: frozenset[str] = frozenset(),
    worth: float = math.inf,
    top_k: int = 1,
) -> list[list[list[Rated]]]:
    """Returns the result of `rated_stages`, and where the device supports row groups also that with each group as one stage.

    Returns nothing where every program takes `worth` seconds or longer. `top_k`: the programs that will be asked for.
    """
    grouped = parameters.row_groups and len(row_groups(expr)) < len(expr.stages)  # grouped stages take less than single ones
    alone = rated_stages(expr, spec, rules, parameters, constants, math.inf if grouped else worth, top_k)
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
    top_k: int = 1,
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
            rated.append(_rated_stage(nests, spec, own, parameters, constants, top_k))
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


def construct_stage(
    nests: tuple[Nest, ...],
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    top_k: int,
    constants: frozenset[str] = frozenset(),
) -> list[Rated]:
    """Returns the best programs for one stage over its nest variants."""
    return diverse(_rated_stage(nests, spec, rules, parameters, constants, top_k), top_k)


def _rated_stage(
    nests: tuple[Nest, ...],
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    constants: frozenset[str],
    top_k: int,
) -> list[Rated]:
    """Returns all rated programs for one stage, best first."""
    every = tile_spaces(nests, spec, rules, parameters, constants)
    found = [s for s in every if not hopeless(s)]
    pool = Pool()
    if found:
        search(found, pool, top_k)
    if not pool.programs:
        raise _nothing_fits(nests, spec, rules, every)
    return pool.ranked


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


def search(found: list[TileSpace], pool: Pool, top_k: int = 1, each: int = EACH) -> None:
    """Rates programs of tile spaces: those of the short list, their choices, and neighbours of the best.

    `each`: at least so many innermost tiles of each kind are pursued.
    """
    if any(0 in space.nest.extents for space in found):  # nothing is computed: the least tiles do
        for space in found:
            pool.rate(space, program_of(space, space.levels, (start(space),) * len(space.levels)))
        return
    screens = [screen_of(space) for space in found]
    by_way = {screen.space.way: screen for screen in screens}
    often = budget(found[0])
    rate_short_list(screens, pool.rate, top_k, each=each)
    turned = [screen for screen in screens if screen.turn()]
    rate_short_list(turned, lambda space, program: pool.rate(space, program, pool.best), worth=pool.best, each=each)
    for program in pool.leaders(CHOSEN * often):
        for choice in _choices(by_way[program.way].space, program):
            pool.rate(by_way[program.way].space, choice)
    for program in pool.leaders(DESCENTS * often):
        screen = by_way[program.way]
        rate = partial(pool.rate, screen.space)
        settled, _ = descended(screen, program, rate(program), rate)
        for choice in _choices(screen.space, settled):
            rate(choice)


def _choices(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields the choices that the tiles of a program leave open."""
    yield from ordered(program) if in_caches(space) else refined(space, program)


def _computes(atom: ComputeAtom) -> str:
    """Returns the types in which an atom computes, as an expression would request them."""
    return atom.acc_dtype if atom.in_dtype == atom.acc_dtype else f"{atom.acc_dtype} of {atom.in_dtype} factors"
