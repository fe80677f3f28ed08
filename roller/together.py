"""Programs of whole expressions, put together from those that were rated for single stages.

Where the core's model rates them, stages take what they take alone, and the best of each go together. A device that rates
whole programs itself (`CostParameters.own_model`) also sees what lies between stages: what one computes may lie where the next
wants it, or in an order that cannot be brought there. Stages are then added one by one, each in several ways, to the best few
beginnings.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from roller.estimate import Estimate, combine_estimates
from roller.expr import TensorExpr
from roller.program import RProgram, StageProgram
from roller.rates import CostParameters, OwnRating

Rated = tuple[StageProgram, Estimate]

BEGINNINGS = 4  # kept after a stage
WAYS = 8  # in which a stage is added to each: the best program for each mapping, then others


@dataclass(frozen=True)
class Candidate:
    """A program and its prediction."""

    program: RProgram
    estimate: Estimate


def best_of(expr: TensorExpr, rated: list[list[Rated]], parameters: CostParameters, top_k: int) -> list[Candidate]:
    """The `top_k` best programs for an expression, best first, from what was rated for its stages."""
    if parameters.own_model is not None and len(rated) > 1:
        found = _stage_by_stage(expr, rated, parameters.own_model, top_k)
        if found is not None:
            return found
    per_stage = [diverse(programs, top_k) for programs in rated]
    candidates = []
    for rank in range(min(top_k, max(len(found) for found in per_stage))):
        chosen = [found[min(rank, len(found) - 1)] for found in per_stage]
        candidates.append(Candidate(RProgram(expr, tuple(p for p, _ in chosen)), combine_estimates([e for _, e in chosen])))
    return sorted(candidates, key=lambda c: c.estimate.seconds)


def _stage_by_stage(expr: TensorExpr, rated: list[list[Rated]], own: OwnRating, count: int) -> list[Candidate] | None:
    """The best programs as the device rates them; None where it leaves that to the core's model."""
    begun = _beginnings([(way,) for way in _ways(rated[0])])
    found: list[Candidate] = []
    for number, programs in enumerate(rated[1:], 2):
        part = TensorExpr(expr.inputs, expr.stages[:number]) if number < len(rated) else expr
        found = []
        for before in begun:
            for way in _ways(programs):
                program = RProgram(part, (*before, way))
                estimate = own(program, math.inf)
                if estimate is None:
                    return None
                found.append(Candidate(program, estimate))
        found.sort(key=lambda c: c.estimate.seconds)
        begun = _beginnings([candidate.program.stages for candidate in found])
    return found[:count]


def _ways(programs: list[Rated]) -> list[StageProgram]:
    """Programs for a stage, best first, among them the best one of each mapping."""
    first: dict[object, Rated] = {}
    for program, rating in programs:
        first.setdefault((program.nest.dims, program.atom.name, program.mapping), (program, rating))
    chosen = list(first.values())[:WAYS]
    others = [item for item in diverse(programs, WAYS) if all(item[0] is not program for program, _ in chosen)]
    ways = sorted([*chosen, *others[: WAYS - len(chosen)]], key=lambda item: item[1].seconds)
    return [program for program, _ in ways]


def _beginnings(found: list[tuple[StageProgram, ...]]) -> list[tuple[StageProgram, ...]]:
    """The best few, at most half of them with the same mapping of the last stage: the next one may want another order."""
    kept: list[tuple[StageProgram, ...]] = []
    taken: Counter[object] = Counter()
    for stages in found:
        mapping = stages[-1].nest.dims, stages[-1].atom.name, stages[-1].mapping
        if taken[mapping] < BEGINNINGS // 2:
            kept.append(stages)
            taken[mapping] += 1
    others = [stages for stages in found if all(stages is not other for other in kept)]
    return [*kept, *others][:BEGINNINGS]


def diverse(ranked: list[Rated], count: int) -> list[Rated]:
    """The best programs of which no two share atom, innermost tile, unit tile, split and cluster; near-duplicates only fill up."""
    kept: list[Rated] = []
    rest: list[Rated] = []
    seen: set[tuple[object, ...]] = set()
    for program, rating in ranked:
        tiles = program.inner, program.unit_tile, program.split, program.cluster
        key = (program.nest.dims, program.atom.name, program.mapping, *tiles)
        (rest if key in seen else kept).append((program, rating))
        seen.add(key)
        if len(kept) >= count:
            break
    return sorted([*kept, *rest][:count], key=lambda item: item[1].seconds)


__all__ = ["Candidate", "Rated", "best_of", "diverse"]
