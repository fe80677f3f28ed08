"""why_not(): of a tile that the user names, the rule that excludes it, or the terms of the model that make it slower.

The named tile is that of a unit. Construction chooses everything that it leaves open: other dimensions, the tiles inside it, atom,
loop orders, copies, split-K. So the answer is about the best program with this tile.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.errors import ExpressionError
from roller.explain.growth_limits import Growth
from roller.explain.texts import no_dimension, of_term, predicted, size_text
from roller.ir.nest import Nest, Tile, variants
from roller.program.alignment import LANES, Rules
from roller.program.estimate import Estimate
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.search.choices import program_of
from roller.search.construct import search
from roller.search.feasible import hopeless
from roller.search.funnel.lattice import inner_tiles, named_around
from roller.search.funnel.short_list import EACH
from roller.search.pool import Pool
from roller.search.row_programs import rated_rows
from roller.search.stages import Rated
from roller.search.tile_space import TileSpace, start, tile_spaces
from roller.target.hardware import ComputeAtom, HardwareSpec

LEAST_SHARE = 0.01  # terms that differ by this share of the whole are shown
PURSUED = (EACH, 16 * EACH, sys.maxsize)  # innermost tiles of each kind: more take more time; all of them if nothing runs otherwise
SHOWN = 3  # rules that exclude a tile are shown, those first that exclude most


@dataclass(frozen=True, slots=True)
class Alternative:
    """The answer for a tile: why it is excluded, or the best program with it and both predictions.

    `rule`: the rules that exclude it, as text, and there is no `program` then; `refusals`: each rule, and how often it refused a
    tile or a tile space. `terms`: for each term of the model its seconds with this tile and in the chosen program, the largest
    difference first. `considered`: whether construction offered the program, too.
    """

    stage: str
    tile: tuple[tuple[str, int], ...]
    rule: str | None
    refusals: tuple[tuple[str, int], ...]
    program: StageProgram | None
    estimate: Estimate | None
    chosen: Estimate
    terms: tuple[tuple[str, float, float], ...] = ()
    considered: bool = False

    @property
    def change(self) -> float:
        """The relative change of the predicted seconds: 0.1 is a tenth slower than the chosen program."""
        if self.estimate is None:
            return math.inf
        return self.estimate.seconds / self.chosen.seconds - 1 if self.chosen.seconds else 0.0

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
        if self.change < 0 and not self.considered:
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


def why_not(
    chosen: RProgram,
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    tile: Mapping[str, int],
    candidates: Sequence[RProgram] = (),
) -> Alternative:
    """Returns why a program's unit tile is not the named one. `ExpressionError` for a tile that no stage has.

    The answer is the best program that construction finds where units may have no other tile, or one of the `candidates`. It takes
    a few times as long as construction.
    """
    tile = _checked(tile)
    number, nests = _stage(chosen, spec, parameters, tile)
    stage = _program_of(chosen, number)
    own = rules.of(stage.nest.stage.name)
    now = _rated_alone(stage, spec, parameters)
    known = [_program_of(candidate, number) for candidate in (chosen, *candidates)]
    if stage.nest.before:
        ranked = rated_rows(stage.nest, spec, own, parameters)
        found, reasons = [one for one in ranked if _is_named(one[0], tile)], Counter([_lacking([p for p, _ in ranked], tile)])
    else:
        alone = [program for program in known if not program.nest.before]
        found, reasons = _constructed(nests, spec, own, parameters, tile, alone)
    named, counted = tuple(tile.items()), tuple(reasons.items())
    if not found:
        return Alternative(stage.nest.stage.name, named, "; ".join([rule for rule, _ in counted[:SHOWN]]), counted, None, None, now)
    program, estimate = found[0]
    considered = any(program.key == one.key for one in known)
    return Alternative(stage.nest.stage.name, named, None, (), program, estimate, now, _terms(estimate, now), considered)


def _rated_alone(program: StageProgram, spec: HardwareSpec, parameters: CostParameters) -> Estimate:
    """Returns the estimate of one stage as construction rates it: for as many tiles on a unit as the device predicts."""
    return Model(spec, parameters, Geometry(program.nest), parameters.room_of(program)).estimate(program)


def _constructed(
    nests: tuple[Nest, ...],
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    tile: Mapping[str, int],
    known: Sequence[StageProgram],
) -> tuple[list[Rated], Counter[str]]:
    """Returns the programs with the named tile, best first; if there are none, the rules that exclude it, and how often."""
    constants = frozenset([name for program in known for name in _constants(program)])
    having = [nest for nest in nests if _has(nest, tile)]
    every = tile_spaces(having, spec, rules.naming(tiled_levels(spec)[0], tile), parameters, constants)
    spaces, pool = [space for space in every if not hopeless(space)], Pool()
    for program in known:
        for space in [space for space in every if space.way == program.way]:
            pool.rate(space, program)
    for each in PURSUED if spaces else ():
        if each < sys.maxsize or not pool.programs:
            search(spaces, pool, each=each)
    return pool.ranked, Counter() if pool.programs else _excluding(every, known[0].atom)


def _checked(tile: Mapping[str, int]) -> dict[str, int]:
    """Returns the tile with Python's integers; `ExpressionError` for anything else."""
    try:
        found = {name: index(extent) for name, extent in tile.items() if isinstance(name, str) and not isinstance(extent, bool)}
    except (TypeError, AttributeError):
        found = {}
    if not found or len(found) != len(tile) or not all(0 < extent < sys.maxsize for extent in found.values()):
        raise ExpressionError(f"why_not={tile!r}: a tile such as {{'m': 256}} expected, with positive integers of 63 bits at most")
    return found


def _stage(
    chosen: RProgram, spec: HardwareSpec, parameters: CostParameters, tile: Mapping[str, int]
) -> tuple[int, tuple[Nest, ...]]:
    """Returns the stage with these dimensions, by its number, and its nests; of several the one that takes longest."""
    every = [variants(stage, chosen.expr.tensors, spec.spread) for stage in chosen.expr.stages]
    having = [number for number, nests in enumerate(every) if any(_has(nest, tile) for nest in nests)]
    if having:
        seconds = {number: _rated_alone(_program_of(chosen, number), spec, parameters).seconds for number in having}
        longest = max(having, key=lambda number: (seconds[number], -number))
        return longest, every[longest]
    known = list(dict.fromkeys(dim.name for nests in every for nest in nests for dim in nest.dims))
    strangers = [name for name in tile if name not in known]
    if strangers:
        raise ExpressionError(f"why_not: no loop nest has {no_dimension(strangers[0], known)}")
    raise ExpressionError(f"why_not: no loop nest has all of {', '.join(tile)}; name dimensions of one stage")


def _has(nest: Nest, tile: Mapping[str, int]) -> bool:
    return set(tile) <= {dim.name for dim in nest.dims}


def _program_of(chosen: RProgram, number: int) -> StageProgram:
    """Returns the program that computes a stage; a row group computes several."""
    for program in chosen.stages:
        number -= len(program.nest.stages)
        if number < 0:
            return program
    raise AssertionError("every stage has a program")


def _is_named(program: StageProgram, tile: Mapping[str, int]) -> bool:
    own = {dim.name: extent for dim, extent in zip(program.nest.dims, program.unit_tile, strict=True)}
    return all(own.get(name) == extent for name, extent in tile.items())


def _constants(program: StageProgram) -> Iterator[str]:
    """Yields the inputs that are copied when the kernel is built."""
    factors = {staging.operand for staging in program.staged if staging.constant}
    yield from [access.tensor.name for access in program.nest.inputs if access.factor in factors]


def _lacking(programs: Sequence[StageProgram], tile: Mapping[str, int]) -> str:
    """Returns which extents the programs of a row group have in place of the named ones."""
    for dim, extents in zip(programs[0].nest.dims, zip(*[p.unit_tile for p in programs], strict=True), strict=True):
        if dim.name in tile and tile[dim.name] not in extents:
            there = ", ".join(map(str, sorted(set(extents))))
            return f"{dim.name} = {tile[dim.name]}: one program for all stages has whole rows, and those that fit have {there}"
    return "one program for all stages has whole rows, and none that fits has these extents together"


def _excluding(spaces: Sequence[TileSpace], atom: ComputeAtom) -> Counter[str]:
    """Returns the rules that exclude a named tile, and how many chains, or tile spaces, each excludes; those of an atom first."""
    if any(0 in space.nest.extents for space in spaces):
        return Counter(["nothing is computed: the smallest tile will do"])
    found = Counter[str]()
    for mine in (True, False):
        some = [space for space in spaces if (space.atom == atom) == mine]
        ranked = _reasons(some).most_common() if some else []
        found.update({reason: count for reason, count in ranked if reason not in found})
    return found or Counter(["no atom of the chip computes with it"])


def _reasons(spaces: Sequence[TileSpace]) -> Counter[str]:
    """Returns the rules that the smallest tiles break; else those by which the device refuses programs; else of alignment."""
    inner = [(space, [tuple(tile) for tile in inner_tiles(space).T.tolist()]) for space in spaces]
    found, least = Counter[str](), dict[str, tuple[int, int]]()
    for space, tiles in inner:
        for rule, needed, room in _smallest(space, tiles):
            found[rule] += 1
            least[rule] = min(least.get(rule, (needed, room)), (needed, room))
    if found:
        return Counter({_with_sizes(rule, *least[rule]): count for rule, count in found.items()})
    if any(tiles for _, tiles in inner):
        return +spaces[0].refusals
    return Counter([reason for space in spaces for reason in _unaligned(space)])


def _smallest(space: TileSpace, inner: Sequence[Tile]) -> Iterator[tuple[str, int, int]]:
    """Yields the rules that the smallest tiles of the named extents break, around each innermost tile.

    With each rule come what the tile needs and what there is, both 0 for a rule without numbers.
    """
    level = space.spec.levels[space.levels[0]]
    for one in inner:
        unit = tuple([space.named.get(d, extent) for d, extent in enumerate(one)])
        program = program_of(space, space.levels, (unit, *[one] * (len(space.levels) - 1)))
        broken = Growth(program, space.spec, space.rules, space.model, space.fit).broken()
        if broken == space.fit.rule(space.levels, 0):
            yield broken, space.fit.footprint(space.levels, 0, unit, one, space.atom), space.fit.usable_bytes(level)
        elif broken == LANES:
            yield broken, space.fit.lanes(unit, one, space.atom), space.spec.unit.lanes_max
        elif broken is not None:
            yield broken, 0, 0


def _with_sizes(rule: str, needed: int, room: int) -> str:
    if not room:
        return rule
    return f"{rule}: {needed} of {room}" if rule == LANES else f"{rule}: {size_text(needed)} of {size_text(room)}"


def _unaligned(space: TileSpace) -> Iterator[str]:
    """Yields for the named dimensions why no innermost tile divides the unit's."""
    for dim, named in space.named.items():
        name, whole, least = space.nest.dims[dim].name, space.nest.extents[dim], start(space)[dim]
        rule = space.rules.multiple(space.levels[0], name)
        base = math.lcm(max(least, 1), rule.step)
        if named_around(space, dim, np.array(least)):
            continue
        if named > -(-whole // base) * base:
            yield f"{name} = {named}, more than the dimension's {whole}"
        elif rule.limit is not None and rule.limit < named:
            yield f"{name} = {named}, more than the {rule.limit} that the device allows"
        else:
            yield f"{name} = {named}, no multiple of {f'{least} ({space.atom.name})' if named % max(least, 1) else rule.step}"


def _terms(estimate: Estimate, chosen: Estimate) -> tuple[tuple[str, float, float], ...]:
    """Returns the terms with both predictions, the largest increase first."""
    then, now = dict(estimate.terms), dict(chosen.terms)
    pairs = [(name, then.get(name, 0.0), now.get(name, 0.0)) for name in dict.fromkeys([*then, *now])]
    return tuple(sorted((p for p in pairs if p[1] or p[2]), key=lambda p: p[2] - p[1]))
