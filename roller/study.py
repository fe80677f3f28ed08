"""Studies without a toolchain: construct(), rate() and enumerate_programs()."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roller.compiler import Op, expression_of, planned
from roller.cost.parameters import CostParameters
from roller.device.chip import SpecLike, resolve
from roller.device.plan import Plan
from roller.errors import ConstructionError, ExpressionError
from roller.explain.growth_limits import Growth, level_name
from roller.explain.report import Explanation
from roller.explain.report import explain as explanation
from roller.explain.texts import no_dimension
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, Tile, variants
from roller.kernel import source_of
from roller.pipeline import programs
from roller.precision import permitted
from roller.program.alignment import Rules
from roller.program.estimate import Estimate, combine_estimates
from roller.program.record import Choice
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.search.choices import in_turn, parts_of, program_of, refined, split
from roller.search.enumeration import ProgramSpace, program_space
from roller.search.tile_space import Chain, TileSpace, start, tile_spaces
from roller.target.hardware import HardwareSpec
from roller.target.subset import limited

Tiles = Sequence[Mapping[str, int]]  # tiles of one stage, from the unit's to the innermost


def rate(
    op: Op, device: str | None = None, *, tiles: Tiles | Sequence[Tiles], spec: SpecLike | None = None, precision: str = "ieee"
) -> Estimate:
    """Computes the prediction for given tiles, with the best atom for them; nothing is built. `precision` as for `compile`.

    `tiles`: for every stage of the fused operator a list of {dimension: extent}, one for each tiled level from the unit's to the
    innermost (a single stage needs no outer list). An omitted dimension is 1 in the innermost tile, and elsewhere the same as in
    the next inner one. `ConstructionError` names the rule that the tiles break; `ExpressionError` describes malformed tiles.
    """
    plugin, chip = resolve(device, spec)
    expr = fuse(permitted(expression_of(op), precision), chip.spread)
    rules, parameters = plugin.rules(chip, expr), plugin.cost_parameters(chip, expr)
    given = _per_stage(tiles)
    if len(given) != len(expr.stages):
        names = ", ".join(s.name for s in expr.stages)
        raise ExpressionError(f"tiles of {len(given)} stages given, the fused operator has {len(expr.stages)}: {names}")
    parts = []
    for stage, wanted in zip(expr.stages, given, strict=True):
        parts.append(_rated(variants(stage, expr.tensors, chip.spread), wanted, chip, rules.of(stage.name), parameters))
    return combine_estimates(parts)


def _per_stage(tiles: Tiles | Sequence[Tiles]) -> Sequence[Tiles]:
    """Returns tiles as a list for each stage; `ExpressionError` for anything but a list of {dimension: extent}, or such lists."""
    given: Any = [tiles] if _is_list(tiles) and tiles and isinstance(tiles[0], Mapping) else tiles
    if not _is_list(given) or not all(_is_list(stage) and all(isinstance(tile, Mapping) for tile in stage) for stage in given):
        raise ExpressionError("tiles: a list of {dimension: extent}, one for each tiled level, or such a list for each stage")
    return given  # type: ignore[no-any-return]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _rated(nests: Sequence[Nest], wanted: Tiles, chip: HardwareSpec, rules: Rules, parameters: CostParameters) -> Estimate:
    """Returns the best estimate over the nests, atoms and mappings that suit these tiles."""
    nest, chain = _chain(nests, wanted, chip)
    refusals: Counter[str] = Counter()
    found = []
    for program in _programs(nest, chain, chip, rules, parameters):
        broken = Growth.of(program, chip, rules, parameters).broken()
        if broken is None:
            estimate = Growth.of(program, chip, rules, parameters).model.estimate(program)
            if math.isfinite(estimate.seconds):
                found.append(estimate)
            else:
                refusals[estimate.reason or estimate.bound_by] += 1
        else:
            refusals[broken] += 1
    if not found:
        raise ConstructionError(f"these tiles of {nest.stage.name!r} do not suit {chip.device}:{chip.chip}", refusals)
    return min(found, key=lambda e: e.seconds)


def _chain(nests: Sequence[Nest], wanted: Tiles, chip: HardwareSpec) -> tuple[Nest, tuple[Tile, ...]]:
    levels = [level_name(chip, i) for i in tiled_levels(chip)]
    if len(wanted) != len(levels):
        raise ExpressionError(f"{len(wanted)} tiles given, {chip.device}:{chip.chip} has {len(levels)} levels: {', '.join(levels)}")
    names = dict.fromkeys(name for tile in wanted for name in tile)
    for nest in nests:
        dims = [d.name for d in nest.dims]
        if all(name in dims for name in names):
            break
    else:
        known = list(dict.fromkeys(d.name for nest in nests for d in nest.dims))
        stranger = next((n for n in names if n not in known), ", ".join(names))
        raise ExpressionError(f"no loop nest of {nests[0].stage.name!r} has {no_dimension(stranger, known)}")
    chain: list[Tile] = []
    inner: Tile = (1,) * len(nest.dims)
    for tile in reversed(wanted):
        inner = tuple(tile.get(name, extent) for name, extent in zip(dims, inner, strict=True))
        if any(type(extent) is not int or extent < 1 for extent in inner):
            raise ExpressionError(f"tile {dict(tile)}: extents are positive integers")
        chain.insert(0, inner)
    return nest, tuple(chain)


def _programs(
    nest: Nest, chain: tuple[Tile, ...], chip: HardwareSpec, rules: Rules, parameters: CostParameters
) -> Iterator[StageProgram]:
    """Yields the programs with these tiles, with the engine's choices of order and staging.

    They have every atom and mapping, with and without lanes that share reductions.
    """
    for space in tile_spaces([nest], chip, rules, parameters):
        if space.fit.windowed and (space.fit.window_rule(chain[0]) or not _covers(chain[-1], start(space))):
            continue
        plain = _whole_programs(space, chain)
        yield from (p for p in plain if p.tiles == chain)
        yield from (p for start in plain for p in refined(space, start) if p.tiles == chain)


def _whole_programs(space: TileSpace, chain: Chain) -> list[StageProgram]:
    """Returns the program of a chain with default orders and staging, and those in which units share results (split-K)."""
    whole = program_of(space, space.levels, chain)
    found = [whole, *split(space, whole), *in_turn(space, whole)]
    parts = parts_of(space, chain[0])
    if parts > 1 and space.spec.unit.combine and not space.spec.levels[space.levels[0]].managed:
        found.append(whole.dispatched(split=parts))  # a unit with caches computes any part of a reduction
    return found


def _covers(tile: Tile, least: Tile) -> bool:
    return all(extent >= needed for extent, needed in zip(tile, least, strict=True))


def enumerate_programs(
    op: Op, device: str | None = None, *, spec: SpecLike | None = None, threads: int | None = None, precision: str = "ieee"
) -> ProgramSpace:
    """Returns every aligned program for an operator that fits the chip: iterate lazily, or draw with `.sample(count, seed)`.

    `compile` considers a few hundred of them. This function is for studies of the model: draw some, rate them, run them. The
    arguments are those of `compile`.
    """
    plugin, chip = resolve(device, spec)
    expr = fuse(permitted(expression_of(op), precision), chip.spread)
    chip = limited(chip, threads)
    return program_space(expr, chip, plugin.rules(chip, expr), plugin.cost_parameters(chip, expr))


@dataclass(frozen=True, repr=False)
class Construction:
    """Programs for an operator on a chip, best first, of which none is built: this needs no toolchain of the device."""

    plan: Plan
    candidates: tuple[Choice, ...]

    def __repr__(self) -> str:
        chip = f"{self.spec.device}:{self.spec.chip}"
        return f"<Construction of {self.program.describe()} for {chip}; {len(self.candidates)} programs, none built>"

    @property
    def spec(self) -> HardwareSpec:
        """The chip."""
        return self.plan.chip

    @property
    def program(self) -> RProgram:
        """The program with the least prediction."""
        return self.candidates[0].program

    @property
    def estimate(self) -> Estimate:
        """The prediction for it."""
        return self.candidates[0].estimate

    def explain(self, why_not: Mapping[str, int] | None = None) -> Explanation:
        """Returns the explanation of the program, as predicted: occupancy and launches of a binary are not known.

        `why_not` as for `Kernel.explain`.
        """
        expr, device = self.program.expr, self.plan.device
        parameters, rules = device.cost_parameters(self.spec, expr), device.rules(self.spec, expr)
        return explanation(self.program, self.spec, parameters, self.candidates, rules, tile=why_not)

    def source_in(self, language: str | None = None) -> str:
        """Returns the program as source text; None: in the language that the device builds. `KernelError` for an unknown one."""
        return source_of(self.plan.device, self.spec, self.program, replace(self.plan.options, language=language))


def construct(
    op: Op,
    device: str | None = None,
    *,
    spec: SpecLike | None = None,
    top_k: int = 10,
    constants: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "ieee",
    math: str = "ieee",
) -> Construction:
    """Constructs programs without building one; the arguments are those of `compile`.

    `compile` builds them in this order, and may prefer another one whose binary has fewer flaws (spills, for example).
    """
    expr = permitted(expression_of(op), precision, math)
    plan, expr = planned(expr, device, spec, constants, threads, False)
    return Construction(plan, tuple(programs(plan, expr, top_k)))
