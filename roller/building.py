"""Programs built: one after another until a binary is as good as the model promised, or all of them at once.

A device's hooks are called from several threads here: compilers are native code that runs beside the interpreter, and starting a
thread costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import psutil

from roller.cost.model import estimate
from roller.cost.occupancy import residents
from roller.device.plugins import Device
from roller.errors import RollerError
from roller.ir import serialization
from roller.program import record
from roller.program.record import Choice
from roller.program.rprogram import StageProgram
from roller.runtime.artifact import Artifact, BuildOptions, KernelSource
from roller.target.hardware import HardwareSpec

_step = logging.getLogger("roller.step")  # what a long compilation is at

MOST_AT_ONCE = 16  # every compiler that runs takes memory, however many cores there are
FLAWS = {"spilled_bytes": "bytes spilled", "added_waits": "waits added by the compiler"}  # by how names of resources end
TRIED = 4  # programs that are built at most until one is at least as good as the next is predicted to be


@dataclass(frozen=True, slots=True)
class Plan:
    """What programs are built for: device, chip, options, and row-major bytes of the inputs that are fixed."""

    device: Device
    chip: HardwareSpec
    options: BuildOptions = field(default_factory=BuildOptions)
    fixed: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A program with its source and binary; its estimate is for as many tiles at a time as the binary leaves room for."""

    choice: Choice
    source: KernelSource
    artifact: Artifact

    @property
    def rank(self) -> tuple[bool, float]:
        """What is less is better: what the program says, kept in registers and with no other waits, then predicted seconds."""
        return bool(_flaws(self.artifact)), self.choice.estimate.seconds


def build(plan: Plan, choice: Choice) -> Attempt:
    """One program built; the artifact knows where it comes from."""
    source = plan.device.codegen(plan.chip, choice.program, plan.options)
    artifact = plan.device.build(plan.chip, source, plan.options)
    rated = _rated(plan, choice, artifact)
    made = replace(
        artifact,
        versions={"roller-compiler": version("roller-compiler"), **artifact.versions},
        expr=serialization.expr_to_json(choice.program.expr),
        program=record.program_to_json(choice.program),
        estimate=record.estimate_to_json(rated.estimate),
        constants=plan.fixed,
    )
    return Attempt(rated, source, made)


def build_first(plan: Plan, choices: Sequence[Choice]) -> tuple[Attempt, list[Choice]]:
    """Of ranked programs the first one whose binary is as good as the next program is predicted to be, else the best of the first
    few (the very first where all of those have flaws); and all programs with it in front. Where one has a flaw, those that differ
    in nothing but the order of units' tiles are not built.
    """
    tried: dict[int, Attempt] = {}
    for number, choice in enumerate(choices[:TRIED]):
        if tried and min(a.rank for a in tried.values()) <= (False, choice.estimate.seconds):
            break
        if _flawed_too(choice, tried.values()):
            continue
        if number:
            _step.info("the binary takes more than was predicted: building program %d", number + 1)
        tried[number] = build(plan, choice)
    first = _best(tried)
    rated = [tried[n].choice if n in tried else choice for n, choice in enumerate(choices)]
    return tried[first], [rated.pop(first), *rated]


def preferred(attempts: Sequence[Attempt]) -> int:
    """Which of all attempts `build_first` would take, of programs in the order of their predictions."""
    looked: dict[int, Attempt] = {}
    for number, attempt in enumerate(attempts[:TRIED]):
        if not _flawed_too(attempt.choice, looked.values()):
            looked[number] = attempt
    return _best(looked)


def _best(tried: Mapping[int, Attempt]) -> int:
    """The number of the best attempt, the first one where all have flaws."""
    ranks = {number: attempt.rank for number, attempt in tried.items()}
    return min(ranks) if all(flawed for flawed, _ in ranks.values()) else min(ranks, key=lambda n: ranks[n])


def _flawed_too(choice: Choice, tried: Iterable[Attempt]) -> bool:
    """True where one with a flaw does the same within tiles: it differs in the order of its units' tiles only."""
    within = _within_tiles(choice)
    return any(_flaws(attempt.artifact) and _within_tiles(attempt.choice) == within for attempt in tried)


def _within_tiles(choice: Choice) -> list[StageProgram]:
    return [replace(stage, orders=stage.orders[1:]) for stage in choice.program.stages]


def build_all(plan: Plan, choices: Sequence[Choice]) -> list[Attempt]:
    """All programs, built at once, in their order; the error of the first one that does not build, with a note that names it."""
    made = []
    with closing(attempts(plan, choices)) as outcomes:
        for number, outcome in enumerate(outcomes, 1):
            if isinstance(outcome, RollerError):
                outcome.add_note(f"program {number} of {len(choices)}: {choices[number - 1].program.describe()}")
                raise outcome
            made.append(outcome)
            _step.info("built %d of %d programs", number, len(choices))
    return made


def attempts(plan: Plan, choices: Sequence[Choice]) -> Generator[Attempt | RollerError, None, None]:
    """All programs in their order, built on all cores at once; for one that does not build, its error. Closing it waits for those
    that are being built; no other is begun.
    """

    def attempt(choice: Choice) -> Attempt | RollerError:
        try:
            return build(plan, choice)
        except RollerError as error:
            return error

    with ThreadPoolExecutor(max(1, min(cores(), len(choices), MOST_AT_ONCE))) as pool:
        pending = [pool.submit(attempt, choice) for choice in choices]
        try:
            for outcome in pending:
                yield outcome.result()
        finally:
            for outcome in pending:
                outcome.cancel()


def cores() -> int:
    """Processors that this process may run on."""
    return len(psutil.Process().cpu_affinity() or [0])


def _flaws(artifact: Artifact) -> list[str]:
    """What the binary does that its program does not say, by what the toolchain reports: values that it computes with in memory,
    waits between steps that were to overlap.
    """
    known = artifact.known_resources.items()
    found = {words: sum(value for name, value in known if name.endswith(end)) for end, words in FLAWS.items()}
    return [f"{count} {words}" for words, count in found.items() if count]


def _rated(plan: Plan, choice: Choice, artifact: Artifact) -> Choice:
    """The choice as its binary turned out: rated for fewer tiles on a unit at a time where it leaves no room for as many as was
    assumed, with a note on that and on its flaws.
    """
    parameters = plan.device.cost_parameters(plan.chip, choice.program.expr)
    held = residents(choice.program, plan.chip, artifact.known_resources, parameters.room(choice.program))
    notes = [f"{found.real} of {found.predicted} tiles at a time" for found in held if found.missed]
    if notes:
        again = estimate(choice.program, plan.chip, parameters, [found.real for found in held])
        choice = replace(choice, estimate=again)
    return replace(choice, note=", ".join([*notes, *_flaws(artifact)]))
