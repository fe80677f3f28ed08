"""why_not(): of a tile that the user names, the rule that excludes it, or the terms of the model that make it slower.

The named tile is that of a unit. Everything that it leaves open is chosen as construction chooses it: other dimensions, the tiles
inside it, atom, loop orders, copies. So the answer is about the best program with this tile.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from operator import index
from typing import Any

from roller.cost.parameters import CostParameters
from roller.errors import ExpressionError
from roller.explain.growth_limits import Growth
from roller.explain.texts import of_term, predicted, size_text
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, Tile, variants
from roller.program.alignment import Rules
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram
from roller.search.choices import program_of, refined, whole_programs
from roller.search.funnel.lattice import extents
from roller.search.funnel.screens import screen_of
from roller.search.funnel.short_list import promising
from roller.search.tile_space import Chain, TileSpace, tile_spaces
from roller.target.hardware import HardwareSpec

LEAST_SHARE = 0.01  # terms that differ by this share of the whole are shown
RATED, REFINED = (
    48,
    3,
)  # budgets: chains that the model rates (least traffic first); those whose orders and copies are tried


@dataclass(frozen=True, slots=True)
class Alternative:
    """The answer for a tile: why it is excluded, or the best program with it and both predictions.

    `rule` and `where`: the rule that excludes it, and how many of its programs each rule excludes; no `program` then. `terms`: for
    each term of the model its seconds with this tile and in the chosen program, the largest difference first.
    """

    stage: str
    tile: tuple[tuple[str, int], ...]
    rule: str | None
    refusals: tuple[tuple[str, int], ...]
    program: StageProgram | None
    estimate: Estimate | None
    chosen: Estimate
    terms: tuple[tuple[str, float, float], ...] = ()

    @property
    def change(self) -> float:
        """The relative change of the predicted seconds: 0.1 is a tenth slower than the chosen program."""
        return self.estimate.seconds / self.chosen.seconds - 1 if self.estimate is not None and self.chosen.seconds else math.inf

    def lines(self) -> list[str]:
        """Returns the answer as text."""
        head = f"{self.stage} with a tile of {', '.join(f'{name} {extent}' for name, extent in self.tile)}"
        if self.program is None or self.estimate is None:
            return [f"{head}: excluded by {self.rule}"]
        much = f"{self.change:+.1%}" if abs(self.change) >= 0.0005 else "the same"
        least = LEAST_SHARE * self.chosen.seconds
        changed = [(name, now, then) for name, now, then in self.terms if abs(now - then) >= least]
        terms = [f"{name} {of_term(self.estimate, now)} instead of {of_term(self.chosen, then)}" for name, now, then in changed]
        lines = [f"{head}: predicted {predicted(self.estimate)}, {much}{': ' if terms else ''}{', '.join(terms)}"]
        if self.change < 0:
            lines.append("  construction did not consider it")
        return [*lines, f"  the best program with it: {self.program.describe()}"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "stage": self.stage,
            "tile": dict(self.tile),
            "rule": self.rule,
            "refusals": dict(self.refusals),
            "program": None if self.program is None else self.program.describe(),
            "predicted_s": None if self.estimate is None else self.estimate.seconds,
            "chosen_s": self.chosen.seconds,
            "terms": {name: {"predicted_s": now, "chosen_s": then} for name, now, then in self.terms},
        }


def why_not(chosen: RProgram, spec: HardwareSpec, rules: Rules, parameters: CostParameters, tile: Mapping[str, int]) -> Alternative:
    """Returns why a program's unit tile is not the named one. `ExpressionError` for a tile that no stage has."""
    tile = _checked(tile)
    number, nests = _stage(chosen.expr, spec, tile)
    stage = _program_of(chosen, number)
    own = rules.of(stage.nest.stage.name)
    found = [space for space in tile_spaces(nests, spec, own, parameters) if _has(space.nest, tile)]
    refusals: Counter[str] = Counter()
    rated: list[tuple[float, Chain, TileSpace, StageProgram]] = []
    for space, chain in sorted(_chains(found, stage, tile, refusals), key=lambda item: _traffic(*item))[:RATED]:
        for program in whole_programs(space, [chain]):
            rated.append((space.model.estimate(program).seconds, chain, space, program))
    rated.sort(key=lambda item: item[:2])
    for _, chain, space, program in rated[:REFINED]:
        rated += [(space.model.estimate(p).seconds, chain, space, p) for p in refined(space, program) if p.unit_tile == chain[0]]
    best = min(rated, key=lambda item: item[:2], default=None)
    now = Growth.of(stage, spec, own, parameters).model.estimate(stage)
    named, counted = tuple(tile.items()), tuple(refusals.most_common())
    if best is None or math.isinf(best[0]):
        reason = _unreached(found, stage, tile) or (counted[0][0] if counted else "no atom of the chip computes with it")
        return Alternative(stage.nest.stage.name, named, reason, counted, None, None, now)
    estimate = best[2].model.estimate(best[3])
    return Alternative(stage.nest.stage.name, named, None, counted, best[3], estimate, now, _terms(estimate, now))


def _checked(tile: Mapping[str, int]) -> dict[str, int]:
    """Returns the tile with Python's integers; `ExpressionError` for anything else."""
    try:
        found = {name: index(extent) for name, extent in tile.items() if isinstance(name, str) and not isinstance(extent, bool)}
    except (TypeError, AttributeError):
        found = {}
    if not found or len(found) != len(tile) or min(found.values()) < 1:
        raise ExpressionError(f"why_not={tile!r}: a tile such as {{'m': 256}} expected, with positive integers")
    return found


def _stage(expr: TensorExpr, spec: HardwareSpec, tile: Mapping[str, int]) -> tuple[int, tuple[Nest, ...]]:
    """Returns the first stage with these dimensions, by its number, and its nests."""
    known: dict[str, None] = {}
    for number, stage in enumerate(expr.stages):
        nests = variants(stage, expr.tensors, spec.spread)
        if any(_has(nest, tile) for nest in nests):
            return number, nests
        known |= dict.fromkeys(dim.name for nest in nests for dim in nest.dims)
    stranger = next((name for name in tile if name not in known), ", ".join(tile))
    close = get_close_matches(stranger, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ExpressionError(f"why_not: no loop nest has dimension {stranger!r}{hint}; there is: {', '.join(known)}")


def _has(nest: Nest, tile: Mapping[str, int]) -> bool:
    return set(tile) <= {dim.name for dim in nest.dims}


def _program_of(chosen: RProgram, number: int) -> StageProgram:
    """Returns the program that computes a stage; a row group computes several."""
    for program in chosen.stages:
        number -= len(program.nest.stages)
        if number < 0:
            return program
    raise AssertionError("every stage has a program")


def _chains(
    spaces: Sequence[TileSpace], stage: StageProgram, tile: Mapping[str, int], refusals: Counter[str]
) -> Iterator[tuple[TileSpace, Chain]]:
    """Yields the legal chains with the named unit tile; counts the rules that the others break."""
    for space, inner in _innermost(spaces, stage):
        chains: list[Chain] = [(tile,) for tile in inner]
        for position in reversed(range(1, len(space.levels) - 1)):
            chains = [(outer, *chain) for chain in chains for outer in _around(space, position, chain[0])]
            chains = [stage.tiles[position:], *chains] if stage.nest.dims == space.nest.dims else chains
        for chain in dict.fromkeys(chains):
            for unit in _units(space, stage, chain[0], tile):
                broken = _broken(space, (unit, *chain))
                if broken is None:
                    yield space, (unit, *chain)
                else:
                    refusals[broken] += 1


def _innermost(spaces: Sequence[TileSpace], stage: StageProgram) -> Iterator[tuple[TileSpace, list[Tile]]]:
    """Yields the tile spaces with the innermost tiles that construction pursues, that of the chosen program first."""
    screens = [screen_of(space) for space in spaces]
    pursued = dict(promising(screens))
    for number, space in enumerate(spaces):
        found: list[Tile] = [tuple(tile) for tiles, _ in pursued[number] for tile in tiles.T.tolist()]
        if space.nest.dims == stage.nest.dims and (space.atom, space.mapping) == (stage.atom, stage.mapping):
            found.insert(0, stage.tiles[-1])
        yield space, list(dict.fromkeys(found))


def _around(space: TileSpace, position: int, inner: Tile) -> Iterator[Tile]:
    """Yields the tiles of a level between: the one inside it, and twice, four times … its extents in every dimension."""
    times, last = 1, None
    while True:
        tile = tuple(min(times * e, -(-whole // e) * e) if e else e for e, whole in zip(inner, space.nest.extents, strict=True))
        if tile == last:
            return
        yield tile
        times, last = 2 * times, tile


def _unreached(spaces: Sequence[TileSpace], stage: StageProgram, tile: Mapping[str, int]) -> str | None:
    """Returns the dimension of a tile that no innermost tile divides; None if there is none."""
    steps: dict[str, set[int]] = {name: set() for name in tile}
    for space, inner in _innermost(spaces, stage):
        for one in inner:
            for dim, extent in zip(space.nest.dims, one, strict=True):
                if dim.name in tile:
                    steps[dim.name].add(extent)
    for name, found in steps.items():
        if found and all(tile[name] % extent for extent in found):
            return f"{name} = {tile[name]}, no multiple of an innermost tile, which have {', '.join(map(str, sorted(found)))}"
    return None


def _units(space: TileSpace, stage: StageProgram, inner: Tile, tile: Mapping[str, int]) -> Iterator[Tile]:
    """Yields unit tiles with the named extents; a dimension that is not named is as in the chosen program, as inside, or whole."""
    alike = space.nest.dims == stage.nest.dims
    choices = []
    for place, dim in enumerate(space.nest.dims):
        if dim.name in tile:
            choices.append([tile[dim.name]])
            continue
        aligned = extents(space, 0, place, inner[place])
        mine = [stage.unit_tile[place]] if alike and stage.unit_tile[place] in aligned else []
        choices.append(list(dict.fromkeys([*mine, aligned[-1], inner[place]])))
    yield from product(*choices)


def _broken(space: TileSpace, chain: Chain) -> str | None:
    """Returns the rule that a chain breaks; None if it is legal."""
    unit = space.levels[0]
    for dim, extent, inner in zip(space.nest.dims, chain[0], chain[1], strict=True):
        if extent > max(inner, -(-dim.extent // inner) * inner):
            return f"{dim.name} = {extent}, more than the dimension's {dim.extent}"
    broken = Growth(program_of(space, space.levels, chain), space.spec, space.rules, space.model, space.fit).broken()
    if broken == space.fit.rule(space.levels, 0):
        needed = space.fit.footprint(space.levels, 0, chain[0], chain[1], space.atom)
        return f"{broken}: {size_text(needed)} of {size_text(space.spec.levels[unit].usable_bytes)}"
    return broken


def _traffic(space: TileSpace, chain: Chain) -> tuple[float, Chain]:
    return space.fit.traffic(space.levels, 0, chain[0]), chain


def _terms(estimate: Estimate, chosen: Estimate) -> tuple[tuple[str, float, float], ...]:
    """Returns the terms with both predictions, the largest increase first."""
    then, now = dict(estimate.terms), dict(chosen.terms)
    pairs = [(name, then.get(name, 0.0), now.get(name, 0.0)) for name in dict.fromkeys([*then, *now])]
    return tuple(sorted((p for p in pairs if p[1] or p[2]), key=lambda p: p[2] - p[1]))
