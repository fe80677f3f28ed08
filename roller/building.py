"""Building of programs: one by one until a binary is as good as its prediction, or all of them in parallel.

The hooks of a device are called from several threads: compilers are native code that runs in parallel to the interpreter, and a
thread starts at no cost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version

import psutil

from roller.cost.model import estimate
from roller.cost.occupancy import residents
from roller.device.plan import Plan
from roller.errors import RollerError
from roller.ir import serialization
from roller.program import record
from roller.program.record import Choice
from roller.program.rprogram import StageProgram
from roller.runtime.artifact import Artifact

_step = logging.getLogger("roller.step")  # progress messages of a long compilation

MOST_AT_ONCE = 16  # each running compiler takes memory, however many cores there are
FLAWS = {"spilled_bytes": "bytes spilled", "added_waits": "waits added by the compiler"}  # by suffixes of resource names
TRIED = 4  # max programs built until one is at least as good as the prediction of the next one


@dataclass(frozen=True, slots=True)
class Attempt:
    """A program with its binary; its estimate uses the occupancy (tiles at a time) that the binary permits."""

    choice: Choice
    artifact: Artifact

    @property
    def rank(self) -> tuple[bool, float]:
        """The sort key, less is better: binaries without spills and added waits first, then predicted seconds."""
        return bool(_flaws(self.artifact)), self.choice.estimate.seconds


def build(plan: Plan, choice: Choice) -> Attempt:
    """Builds one program; the artifact records its origin."""
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
        source=artifact.source or source.text,
    )
    return Attempt(rated, made)


def build_first(plan: Plan, choices: Sequence[Choice]) -> tuple[Attempt, list[Choice]]:
    """Builds ranked programs until a binary is as good as the prediction of the next program, at most a few.

    Returns the best of those built (the very first, if all have flaws), and all programs with it in front. After a program with a
    flaw, programs that differ only in the order of units' tiles are skipped. After two whose lanes do the same, others come first.
    """

    def attempt(number: int) -> Attempt:
        if number:
            _step.info("the binary takes more than was predicted: building program %d", number + 1)
        return build(plan, choices[number])

    tried = _tried(choices, attempt)
    first = _best(tried)
    rated = [tried[n].choice if n in tried else choice for n, choice in enumerate(choices)]
    return tried[first], [rated.pop(first), *rated]


def preferred(choices: Sequence[Choice], attempts: Sequence[Attempt]) -> int:
    """Returns the number of the attempt that `build_first` would return, of those at all of these ranked programs."""
    return _best(_tried(choices, lambda number: attempts[number]))


def _tried(choices: Sequence[Choice], attempt: Callable[[int], Attempt]) -> dict[int, Attempt]:
    """Returns by number the programs that are built before one is chosen."""
    tried: dict[int, Attempt] = {}
    while len(tried) < TRIED:
        number = _next(choices, tried)
        if number is None or (tried and min(a.rank for a in tried.values()) <= (False, choices[number].estimate.seconds)):
            break
        tried[number] = attempt(number)
    return tried


def _next(choices: Sequence[Choice], tried: Mapping[int, Attempt]) -> int | None:
    """Returns the number of the best program that is unlike two with flaws; while all have flaws, else of the best one left."""
    flawed = [one.choice for one in tried.values() if _flaws(one.artifact)]
    twins, lanes = ([same(choice) for choice in flawed] for same in (_within_tiles, _in_lanes))
    left = [n for n, choice in enumerate(choices) if n not in tried and _within_tiles(choice) not in twins]
    others = [n for n in left if lanes.count(_in_lanes(choices[n])) < 2]
    return next(iter(others or (left if len(flawed) == len(tried) else ())), None)


def _best(tried: Mapping[int, Attempt]) -> int:
    """Returns the number of the best attempt; the first one if all have flaws."""
    ranks = {number: attempt.rank for number, attempt in tried.items()}
    return min(ranks) if all(flawed for flawed, _ in ranks.values()) else min(ranks, key=lambda n: ranks[n])


def _within_tiles(choice: Choice) -> list[StageProgram]:
    return [replace(stage, orders=stage.orders[1:]) for stage in choice.program.stages]


def _in_lanes(choice: Choice) -> list[tuple[object, ...]]:
    """Returns what mostly decides whether a binary has flaws: the lanes, what each computes at a time, and the copies."""
    copies = [[(c.kind, c.operand, c.depth, c.windowed) for c in stage.staged] for stage in choice.program.stages]
    return [(s.nest, s.atom, s.mapping, s.inner, s.lanes, c) for s, c in zip(choice.program.stages, copies, strict=True)]


def build_all(plan: Plan, choices: Sequence[Choice]) -> list[Attempt]:
    """Builds all programs in parallel, in order; raises the first program's error, with a note that names the program."""
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
    """Yields all programs in order, built in parallel on all cores; for a program that does not build, its error.

    Closing the generator waits for running builds and starts no others.
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
    """Returns the number of processors that this process may run on."""
    return len(psutil.Process().cpu_affinity() or [0])


def _flaws(artifact: Artifact) -> list[str]:
    """Returns the flaws that the toolchain reports: values spilled to memory, and waits added between overlapped steps."""
    known = artifact.known_resources.items()
    found = {words: sum(value for name, value in known if name.endswith(end)) for end, words in FLAWS.items()}
    return [f"{count} {words}" for words, count in found.items() if count]


def _rated(plan: Plan, choice: Choice, artifact: Artifact) -> Choice:
    """Returns the choice, rated for its binary's occupancy.

    If the binary permits fewer tiles on a unit at a time than assumed, the estimate is recomputed; a note has that number and the
    binary's flaws.
    """
    parameters = plan.device.cost_parameters(plan.chip, choice.program.expr)
    held = residents(choice.program, plan.chip, artifact.known_resources, parameters.room(choice.program))
    notes = [f"{found.real} of {found.predicted} tiles at a time" for found in held if found.missed]
    if notes:
        again = estimate(choice.program, plan.chip, parameters, [found.real for found in held])
        choice = replace(choice, estimate=again)
    return replace(choice, note=", ".join([*notes, *_flaws(artifact)]))
