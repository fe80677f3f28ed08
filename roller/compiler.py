"""compile(): the pipeline from an operator to a kernel, in one function; also compile_top() and load()."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from roller import building, trial
from roller.cache.entry import Kept
from roller.cache.kernels import fetch
from roller.cache.key import key_of
from roller.cost.model import estimate
from roller.cost.parameters import CostParameters
from roller.device.chip import SpecLike, resolve
from roller.device.plugins import Device
from roller.errors import ConstructionError, DeviceUnavailableError, ExpressionError, KernelError
from roller.ir import serialization
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.relayout import layouts
from roller.kernel import Kernel, restored
from roller.ops import SymbolicTensor, expression
from roller.precision import permitted
from roller.program.record import Choice
from roller.runtime.arrays import Wanted, admit, numpy_dtype
from roller.runtime.artifact import Artifact, BuildOptions
from roller.search.construct import rated_ways
from roller.search.stages import Candidate, best_ways
from roller.target.hardware import HardwareSpec
from roller.target.subset import limited

Op = SymbolicTensor | TensorExpr

_step = logging.getLogger("roller.step")  # progress messages of a long compilation

MOST_REFUSED = 64  # max multiple of the wanted programs that are constructed if a device refuses programs that fit


def compile(
    op: Op,
    device: str = "cpu",
    *,
    spec: SpecLike | None = None,
    top_k: int = 10,
    measure: bool = False,
    verify: bool = False,
    constants: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "ieee",
    math: str = "ieee",
    debug: bool = False,
) -> Kernel:
    """Compiles an operator to a kernel, constructed for a chip; the chip need not be present.

    `device`: "name" or "name:chip"; `spec`: a spec or its file instead of a chip. `top_k`: how many programs to keep. `measure`:
    build and time them all here, and return the fastest. `verify`: compare the kernel with the reference. `constants`: values of
    constant inputs, packed once and omitted from calls. `threads`: max number of units, for devices whose units get runs of tiles
    (not for GPUs).
    `precision`: "ieee", or "tf32", which permits a kernel to round the factors of float32 products. `math`: "ieee"; "strict", which
    forbids fused multiply-adds outside reductions; or "fast", which permits more than IEEE 754 does (both: `roller.precision`).
    Every failure is a `RollerError`. The logger "roller.step" reports progress.
    """
    expr = permitted(expression_of(op), precision, math)
    plan = _plan(expr, device, spec, constants, threads, debug)
    key = key_of(plan.device, plan.chip, expr, plan.options, top_k, measure)
    kept = fetch(key, lambda: _built(plan, expr, top_k, measure))
    artifact = kept.of(plan.chip, plan.fixed)
    if verify:
        _step.info("comparing with the reference")
        trial.verify(artifact, expr)
    return Kernel(artifact, kept.expr, plan.device, kept.choices)


def _built(plan: building.Plan, expr: TensorExpr, top_k: int, measure: bool) -> Kept:
    """Constructs programs and builds the best one, or all of them to return the fastest."""
    choices = _constructed(plan, expr, top_k)
    if measure:
        chosen, choices = _fastest(plan, choices)
    else:
        _step.info("building the kernel")
        chosen, choices = building.build_first(plan, choices)
    considered = tuple(choices)
    return Kept(replace(chosen.artifact, constants={}), chosen.choice.program.expr, lambda: considered)


def _fastest(plan: building.Plan, choices: Sequence[Choice]) -> tuple[building.Attempt, list[Choice]]:
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


def compile_top(
    op: Op,
    device: str = "cpu",
    *,
    spec: SpecLike | None = None,
    top_k: int = 10,
    constants: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "ieee",
    math: str = "ieee",
    debug: bool = False,
) -> tuple[Kernel, ...]:
    """Compiles the `top_k` best programs, built in parallel on all cores; the kernel that `compile` would return is the first.

    None of them is run: measure them elsewhere, on the machine that they are for. All else is as for `compile`; the error of a
    program that does not build has a note that names it.
    """
    expr = permitted(expression_of(op), precision, math)
    plan = _plan(expr, device, spec, constants, threads, debug)
    choices = _constructed(plan, expr, top_k)
    _step.info("building %d programs", len(choices))
    attempts = building.build_all(plan, choices)
    attempts.insert(0, attempts.pop(building.preferred(attempts)))
    rated = [attempt.choice for attempt in attempts]
    return tuple(_kernel(plan, a, [a.choice, *rated[:n], *rated[n + 1 :]]) for n, a in enumerate(attempts))


def _plan(
    expr: TensorExpr,
    device: str,
    spec: SpecLike | None,
    constants: Mapping[str, Any] | None,
    threads: int | None,
    debug: bool,
) -> building.Plan:
    """Returns the context in which programs are built, from checked arguments."""
    plugin, chip = resolve(device, spec)
    fixed = _constants(expr, {} if constants is None else constants)
    return building.Plan(plugin, limited(chip, threads), BuildOptions(threads, tuple(fixed), debug), fixed)


def _constructed(plan: building.Plan, expr: TensorExpr, top_k: int) -> list[Choice]:
    """Returns the best programs; `DeviceUnavailableError`, before anything is constructed, if none can be built here."""
    problem = plan.device.build_problem(plan.chip)
    if problem is not None:
        raise DeviceUnavailableError(problem)
    fused = fuse(expr, plan.chip.spread)
    serialization.expr_to_json(fused)  # artifacts store it: an expression that cannot be written is refused before construction
    _step.info("constructing programs")
    return _choices(fused, plan.device, plan.chip, top_k, frozenset(plan.fixed))


def _kernel(plan: building.Plan, chosen: building.Attempt, choices: Sequence[Choice]) -> Kernel:
    return Kernel(chosen.artifact, chosen.choice.program.expr, plan.device, tuple(choices))


def load(path: str | os.PathLike[str]) -> Kernel:
    """Loads the kernel that `Kernel.save` wrote, in any process, without constructing it again.

    A saved kernel is code: load only files that you trust. `KernelError`, with the file's name, if it cannot be loaded.
    """
    return restored(Artifact.load(path), os.fspath(path))


def expression_of(op: Op) -> TensorExpr:
    """Returns the tensor expression of an operator to compile; `ExpressionError` for anything else."""
    if isinstance(op, TensorExpr):
        return op
    if isinstance(op, SymbolicTensor):
        return expression(op)
    kind = type(op).__name__
    raise ExpressionError(f"an operator expected, such as ops.matmul(a, b) of roller.tensor(...); got {kind}")


def _choices(expr: TensorExpr, plugin: Device, chip: HardwareSpec, top_k: int, constants: frozenset[str]) -> list[Choice]:
    """Returns the best programs that the device can run, best first: of the expression, and of its variants with input copies."""
    if type(top_k) is not int or top_k < 1:
        raise ConstructionError(f"top_k={top_k!r} must be a positive integer")
    itself, *laid = layouts(expr, chip, plugin.cost_parameters(chip, expr).row_bytes)
    found = _choices_of(itself, plugin, chip, top_k, constants)
    for one in laid:
        with contextlib.suppress(ConstructionError):  # input copies are optional: a device that cannot make them gets none
            found += _choices_of(one, plugin, chip, top_k, constants, found[0].estimate.seconds)
    return sorted(found, key=lambda choice: choice.estimate.seconds)[:top_k]


def _choices_of(
    expr: TensorExpr, plugin: Device, chip: HardwareSpec, top_k: int, constants: frozenset[str], worth: float = math.inf
) -> list[Choice]:
    """Returns the best programs of one expression; an empty list if all of them take `worth` seconds or more."""
    rules, parameters = plugin.rules(chip, expr), plugin.cost_parameters(chip, expr)
    rated = rated_ways(expr, chip, rules, parameters, constants, worth)
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


def _constants(expr: TensorExpr, given: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the row-major bytes of the constant inputs, in the expression's order."""
    if not isinstance(given, Mapping):
        raise ExpressionError(f'constants: {{"name of an input": array}} expected, got {type(given).__name__}')
    tensors = {t.name: t for t in expr.inputs}
    for name in given:
        if name not in tensors:
            raise ExpressionError(f"constants: no input is called {name!r}; inputs: {', '.join(tensors)}")
    wanted = [Wanted(t.name, t.shape, numpy_dtype(t.dtype)) for t in expr.inputs if t.name in given]
    return {w.name: admit(given[w.name], w)[0].tobytes() for w in wanted}
