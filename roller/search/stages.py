"""Programs of whole expressions, put together from those that were rated for single stages.

In the core's model a stage takes the same time as alone, and the best programs of each are combined. A device that rates whole
programs itself (`CostParameters.own_model`) also models the transition between stages: a result may lie where the next stage needs
it, or in an order that cannot be moved there. Stages are then added one by one, each in several ways, to the best few partial
programs.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from dataclasses import dataclass

from roller.cost.parameters import CostParameters, OwnRating
from roller.ir.expr import TensorExpr
from roller.program.estimate import Estimate, combine_estimates
from roller.program.rprogram import RProgram, StageProgram

Rated = tuple[StageProgram, Estimate]

BEGINNINGS = 4  # partial programs kept after a stage
MOST_TIMES_SLOWER = 10  # programs beyond this multiple of the best one's time are left out
FEW = 3  # but this many are kept: a device may refuse some
WAYS = 8  # ways to add a stage to each: the best program for each mapping, then others


@dataclass(frozen=True)
class Candidate:
    """A program and its prediction."""

    program: RProgram
    estimate: Estimate


def best_ways(expr: TensorExpr, ways: list[list[list[Rated]]], parameters: CostParameters, top_k: int) -> list[Candidate]:
    """Returns the `top_k` best programs for an expression, best first, from its stages' rated programs in several ways."""
    found = [candidate for rated in ways for candidate in best_of(expr, rated, parameters, top_k)]
    return sorted(found, key=lambda c: c.estimate.seconds)[:top_k]


def best_of(expr: TensorExpr, rated: list[list[Rated]], parameters: CostParameters, top_k: int) -> list[Candidate]:
    """Returns the `top_k` best programs for an expression, best first, from its stages' rated programs."""
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
    """Returns the best programs as the device rates them; None where it leaves that to the core's model."""
    first = TensorExpr(expr.inputs, expr.stages[:1])
    found = [Candidate(RProgram(first, (program,)), alone) for program, alone in _ways(rated[0])]
    for number, programs in enumerate(rated[1:], 2):
        part = TensorExpr(expr.inputs, expr.stages[:number]) if number < len(rated) else expr
        more = _continued(part, _beginnings(found), _ways(programs), own)
        if more is None:
            return None
        found = sorted(more, key=lambda c: c.estimate.seconds)
    return found[:count]


def _continued(part: TensorExpr, begun: list[Candidate], ways: list[Rated], own: OwnRating) -> list[Candidate] | None:
    """Returns every partial program with one more stage in every way, except those that cannot be among the best.

    The bound is that stages take no less time together than alone.
    """
    found: list[Candidate] = []
    kept: dict[object, list[float]] = {}  # seconds of those that can run, by the mapping of the last stage
    for before in begun:
        for program, alone in ways:
            mine = kept.setdefault(_mapping(program), [])
            if len(mine) >= BEGINNINGS and before.estimate.seconds + alone.seconds >= mine[BEGINNINGS - 1]:
                continue
            whole = RProgram(part, (*before.program.stages, program))
            estimate = own(whole, math.inf)
            if estimate is None:
                return None
            found.append(Candidate(whole, estimate))
            if estimate.seconds < math.inf:
                insort(mine, estimate.seconds)
    return found


def _mapping(program: StageProgram) -> object:
    return program.nest.dims, program.atom.name, program.mapping


def _ways(programs: list[Rated]) -> list[Rated]:
    """Returns programs for a stage, best first, among them the best one of each mapping."""
    first: dict[object, Rated] = {}
    for program, alone in programs:
        first.setdefault(_mapping(program), (program, alone))
    chosen = list(first.values())[:WAYS]
    others = [item for item in diverse(programs, WAYS) if all(item[0] is not program for program, _ in chosen)]
    return sorted([*chosen, *others[: WAYS - len(chosen)]], key=lambda item: item[1].seconds)


def _beginnings(found: list[Candidate]) -> list[Candidate]:
    """Returns the best few, at most half with the same mapping of the last stage: the next stage may need another order."""
    kept: list[Candidate] = []
    taken: Counter[object] = Counter()
    for candidate in found:
        mapping = _mapping(candidate.program.stages[-1])
        if taken[mapping] < BEGINNINGS // 2:
            kept.append(candidate)
            taken[mapping] += 1
    others = [candidate for candidate in found if all(candidate is not other for other in kept)]
    return [*kept, *others][:BEGINNINGS]


def diverse(ranked: list[Rated], count: int) -> list[Rated]:
    """Returns the best programs, no two with the same atom, innermost tile, unit tile, split and cluster.

    Near-duplicates only fill up the list. It has few programs that are predicted many times slower than the best, as these are not
    worth measuring.
    """
    kept: list[Rated] = []
    rest: list[Rated] = []
    seen: set[tuple[object, ...]] = set()
    for program, rating in ranked:
        if len(kept) >= FEW and rating.seconds > MOST_TIMES_SLOWER * ranked[0][1].seconds:
            break
        tiles = program.inner, program.unit_tile, program.dispatch.split, program.dispatch.cluster
        key = (program.nest.dims, program.atom.name, program.mapping, *tiles)
        (rest if key in seen else kept).append((program, rating))
        seen.add(key)
        if len(kept) >= count:
            break
    return sorted([*kept, *rest][:count], key=lambda item: item[1].seconds)


__all__ = ["Candidate", "Rated", "best_of", "best_ways", "diverse"]
