"""The construction of a kernel: programs for an expression, and the binary of the best one. Imported when a kernel is not kept."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from roller import building, trial
from roller.cost.model import estimate
from roller.cost.parameters import CostParameters
from roller.device.plan import Plan
from roller.device.plugins import Device
from roller.errors import ConstructionError, DeviceUnavailableError, KernelError
from roller.ir import serialization
from roller.ir.compensation import compensated
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.relayout import layouts
from roller.program.record import Choice
from roller.search.construct import rated_ways
from roller.search.stages import Candidate, best_ways
from roller.target.hardware import HardwareSpec

_step = logging.getLogger("roller.step")  # progress messages of a long compilation

MOST_REFUSED = 64  # max multiple of the wanted programs that are constructed if a device refuses programs that fit


def built(plan: Plan, expr: TensorExpr, top_k: int, measure: bool) -> tuple[building.Attempt, tuple[Choice, ...]]:
    """Constructs programs and builds the best one, or all of them to return the fastest; and all programs, best first."""
    choices = constructed(plan, expr, top_k)
    if measure:
        chosen, choices = _fastest(plan, choices)
    else:
        _step.info("building the kernel")
        chosen, choices = building.build_first(plan, choices)
    return chosen, tuple(choices)


def all_built(plan: Plan, expr: TensorExpr, top_k: int) -> list[building.Attempt]:
    """Constructs programs and builds them all; the one that `built` would choose is the first."""
    choices = constructed(plan, expr, top_k)
    _step.info("building %d programs", len(choices))
    attempts = building.build_all(plan, choices)
    attempts.insert(0, attempts.pop(building.preferred(choices, attempts)))
    return attempts


def _fastest(plan: Plan, choices: Sequence[Choice]) -> tuple[building.Attempt, list[Choice]]:
    """Builds and times all programs; returns the fastest, and all of them in the order of their measured seconds."""
    _step.info("building %d programs", len(choices))
    attempts = building.build_all(plan, choices)
    _step.info("timing %d programs", len(attempts))
    seconds = trial.measure([attempt.artifact for attempt in attempts])
    timed = [replace(attempt.choice, measured_s=s) for attempt, s in zip(attempts, seconds, strict=True)]
    order = sorted(range(len(timed)), key=lambda i: (timed[i].measured_s is None, timed[i].measured_s or 0.0, i))
    if timed[order[0]].measured_s is None:
        raise KernelError(f"none of the {len(timed)} best programs runs on this machine")
    return attempts[order[0]], [timed[i] for i in order]


def constructed(plan: Plan, expr: TensorExpr, top_k: int) -> list[Choice]:
    """Returns the best programs; `DeviceUnavailableError`, before anything is constructed, if none can be built here."""
    problem = plan.device.build_problem(plan.chip)
    if problem is not None:
        raise DeviceUnavailableError(problem)
    return programs(plan, expr, top_k)


def programs(plan: Plan, expr: TensorExpr, top_k: int) -> list[Choice]:
    """Returns the best programs, best first; nothing is built."""
    fused = fuse(expr, plan.chip.spread)
    serialization.expr_to_json(fused)  # artifacts store it: an expression that cannot be written is refused before construction
    _step.info("constructing programs")
    return choices_of(fused, plan.device, plan.chip, top_k, frozenset(plan.fixed))


def choices_of(expr: TensorExpr, plugin: Device, chip: HardwareSpec, top_k: int, constants: frozenset[str]) -> list[Choice]:
    """Returns the best programs that the device can run, best first: of the expression, and of its variants with more stages."""
    if type(top_k) is not int or top_k < 1:
        raise ConstructionError(f"top_k={top_k!r} must be a positive integer")
    itself, *others = layouts(expr, chip, plugin.cost_parameters(chip, expr).row_bytes)
    found: list[Choice] = []
    # Expressions that are mostly faster come first: a lower bound then ends the construction of others.
    for one in (*compensated(itself, plugin.rules(chip, itself).atoms), itself, *others):
        worth = min([choice.estimate.seconds for choice in found], default=math.inf)
        # More stages are optional: a device that cannot run them gets none.
        with contextlib.suppress(ConstructionError) if found or one is not itself else contextlib.nullcontext():
            found += _of_one(one, plugin, chip, top_k, constants, worth)
    return sorted(found, key=lambda choice: choice.estimate.seconds)[:top_k]


def _of_one(
    expr: TensorExpr, plugin: Device, chip: HardwareSpec, top_k: int, constants: frozenset[str], worth: float = math.inf
) -> list[Choice]:
    """Returns the best programs of one expression; an empty list if all of them take `worth` seconds or more."""
    rules, parameters = plugin.rules(chip, expr), plugin.cost_parameters(chip, expr)
    rated = rated_ways(expr, chip, rules, parameters, constants, worth, top_k)
    if not rated:
        return []
    wanted = top_k
    while True:
        found = best_ways(expr, rated, parameters, wanted)
        refusals: Counter[str] = Counter()
        reasons: list[str] = []
        choices = []
        for candidate in found:
            refused = plugin.refusal(chip, candidate.program)
            if refused is None:
                choices.append(_offered(candidate, chip, parameters))
            else:
                refusals[refused[0]] += 1
                reasons.append(refused[1])
        if len(choices) >= top_k or len(found) < wanted or wanted >= MOST_REFUSED * top_k:
            break
        wanted *= 2  # refused programs leave places for others
    if not choices:
        said = f"{chip.device}:{chip.chip} can run none of the {len(found)} best programs; the first: {reasons[0]}"
        raise ConstructionError(said, refusals)
    return choices


def _offered(candidate: Candidate, chip: HardwareSpec, parameters: CostParameters) -> Choice:
    """Returns a program with its prediction, for the occupancy (tiles at a time) that the device permits."""
    if parameters.resident_tiles is None:
        return Choice(candidate.program, candidate.estimate)
    return Choice(candidate.program, estimate(candidate.program, chip, parameters, parameters.room(candidate.program)))
