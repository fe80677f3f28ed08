"""The process that has the GPU: checks and times case after case, and reports each as a line of JSON.

A kernel that is wrong is never timed. One that cannot be launched is reported, and the rest goes on; after one that destroys the
context the process ends, and `bench.gpu.run` starts another for what is left.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bench.gpu import launcher, rounding, timing
from bench.gpu.driver import Driver, DriverError
from bench.gpu.library import Choices, Library
from bench.gpu.operators import BYTES
from bench.gpu.package import Entry, Package, PackageError
from bench.gpu.timing import Clock, Side

POISON, GUARD_BYTES = 0xFF, 4096  # a NaN in every floating type
MOST_SECONDS, LEAST_SECONDS = 1.5, 0.15  # of timing for a case
TEN_SHARE = 0.7  # of the time of a case for its ten best programs
CONTEXT_LOST = 3  # exit status
AGAIN = 3  # runs in a row behind the timing, of which the last one's result is checked
TIMED = ("ours_s", "best", "best_s", "ratio", "best_free", "ratio_free", "ten", "regret")  # of a row, by timing

Report = Callable[[Mapping[str, Any]], None]
Row = dict[str, Any]
Memory = tuple[Mapping[str, int], Any, int, list[tuple[int, Any]]]  # where inputs lie, the output's room and size, other rooms


class WrongResult(Exception):
    """A kernel's result is not what the reference says; nothing of the case is timed."""


@dataclass(frozen=True)
class Settings:
    """Seconds for everything, rounds of a case, what the libraries may do; bytes of the last cache, by the spec; what launches have
    in common that are not to be tried again, as several of them hung.
    """

    seconds: float
    rounds: int = timing.ROUNDS
    choices: Choices = field(default_factory=Choices)
    cache_bytes: int = 0
    avoid: Sequence[Sequence[str]] = ()


class Worker:
    """Runs a package's cases one after another on one GPU."""

    def __init__(self, package: Package, driver: Driver, library: Library, settings: Settings) -> None:
        self._package, self._driver, self._library, self._settings = package, driver, library, settings
        size = timing.flush_bytes(max(driver.attribute(driver.CACHE), settings.cache_bytes))
        self._flush = library.room(size)
        self._clock = Clock(driver, library.stream(), (library.address(self._flush), size))
        self._end = time.monotonic() + settings.seconds
        self._spent = [0.0, 0.0]  # cases, seconds of them beside timing
        self._open: dict[int, launcher.Program] = {}  # by rank
        self._failures: tuple[type[Exception], ...] = (*library.failures(), PackageError, OSError, KeyError, ValueError)

    def run(self, entries: Sequence[Entry], report: Report) -> int:
        """Every case while there is time; the exit status."""
        for number, entry in enumerate(entries):
            if time.monotonic() >= self._end:
                break
            report({"begin": entry.operator.id})
            row, lost = self._row(entry, len(entries) - number)
            report({"row": row})
            if lost:
                return CONTEXT_LOST
        return 0

    def _row(self, entry: Entry, left: int) -> tuple[Row, bool]:
        """What became of a case, and whether the GPU's context is lost with it."""
        op, lost, begin = entry.operator, False, time.monotonic()
        row: Row = {"case": op.id, "family": op.family, "status": entry.status, "reason": entry.reason}
        row |= {"flops": op.flops, "moved": op.moved, "roofline_s": entry.roofline_s, "sides": {}, "left_out": {}}
        timed, row["kind"] = 0.0, kind(entry)
        try:
            if row["kind"] in self._settings.avoid:
                raise PackageError(f"not tried: several others with {' and '.join(row['kind'])} hung")
            if entry.status == "ok":
                timed = self._measured(entry, row, self._budget(left))
        except WrongResult as error:
            row |= {"status": "wrong", "reason": str(error), "sides": {}}
            for word in TIMED:
                row.pop(word, None)
        except DriverError as error:
            row |= {"status": "failed", "reason": str(error), "hung": error.hangs}
            lost = error.fatal
        except self._failures as error:
            row["status"], row["reason"] = "failed", said(error)
            lost = self._lost()
        row["seconds"] = time.monotonic() - begin
        self._spent = [self._spent[0] + 1, self._spent[1] + row["seconds"] - timed]
        try:
            if not lost:
                self._close()
                self._library.release()
        except DriverError:
            lost = True
        return row, lost

    def _lost(self) -> bool:
        """True if nothing else runs in this process: a library may be the first to see it."""
        try:
            self._driver.synchronize(self._library.stream())
        except DriverError as error:
            return error.fatal
        return False

    def _budget(self, left: int) -> float:
        """Seconds of timing for the next case: what remains for each, less what cases take beside timing."""
        beside = self._spent[1] / self._spent[0] if self._spent[0] else 0.0
        return min(MOST_SECONDS, max(LEAST_SECONDS, (self._end - time.monotonic()) / left - beside))

    def launch(self, entry: Entry, times: int) -> None:
        """Start a case's chosen program on random values, so many times in a row, and wait; nothing is checked or timed."""
        op, library = entry.operator, self._library
        size = math.prod(op.output) * BYTES[op.out_dtype]
        raw = library.room(launcher.rounded(size))
        operands = library.operands(op, False, rounding.largest(op), seed=0)
        places = {name: library.address(array) for name, array in operands.items()}
        program = self._loaded(entry.programs[0], (places, raw, size, []))
        for _ in range(times):
            program.start(library.stream())
        self._driver.synchronize(library.stream())
        program.close()

    # --- one case -----------------------------------------------------------------------------------------------------

    def _measured(self, entry: Entry, row: Row, budget: float) -> float:
        """Check and time a case into its row; gives the seconds that timing took."""
        op, library = entry.operator, self._library
        size = math.prod(op.output) * BYTES[op.out_dtype]
        raw = library.room(launcher.rounded(size) + GUARD_BYTES)
        result = library.view(raw, op.out_dtype, op.output)
        rooms: list[tuple[int, Any]] = []
        for integer in (True, False):
            self._close()
            operands = library.operands(op, integer, rounding.largest(op), seed=0)
            expected = library.expected(op, operands, rounding.bound(op, integer))
            excess = partial(library.excess, result, expected, 1.0)
            places = {name: library.address(array) for name, array in operands.items()}
            for number, program in enumerate(entry.programs, 1):
                if f"roller {number}" not in row["left_out"]:
                    self._try(number, program, (places, raw, size, rooms), excess, row)
        ours = [Side(f"roller {n}", self._starting(one), True, True, about(entry.programs[n - 1])) for n, one in self._open.items()]
        ours[0] = replace(ours[0], name="roller")
        peers = self._peers(entry, operands, expected, row)
        begin = time.monotonic()
        share = TEN_SHARE if len(ours) > 1 else 0.0
        self._time([ours[0], *peers], budget * (1 - share), row)
        if len(ours) > 1:
            self._regret(ours, budget * share, row)
        took = time.monotonic() - begin
        self._check(1, (places, raw, size, rooms), excess, AGAIN)
        return took

    def _try(self, number: int, program: Mapping[str, Any], memory: Memory, excess: Callable[[], float], row: Row) -> None:
        """Load a program and check it. One of the ten that does not start, or is wrong, is left out; the case is about the chosen
        one.
        """
        try:
            if "binary" not in program:
                raise DriverError("compiling", -1, "left out when it was built", program.get("reason", ""))
            self._open[number] = self._loaded(program, memory)
            self._check(number, memory, excess)
        except (DriverError, WrongResult) as error:
            if number == 1 or (isinstance(error, DriverError) and error.fatal):
                raise
            row["left_out"][f"roller {number}"] = str(error)
            row["others_wrong"] = row.get("others_wrong", 0) + isinstance(error, WrongResult)
            self._open.pop(number, None)

    def _loaded(self, program: Mapping[str, Any], memory: Memory) -> launcher.Program:
        """A program with the addresses of a case. Programs take turns, so they share the rooms for what lies between kernels."""
        places, raw, _, rooms = memory
        free = list(rooms)

        def place(size: int) -> int:
            found = next((room for room in free if room[0] >= size), None)
            if found is None:
                found = (size, self._library.room(size))
                rooms.append(found)
            else:
                free.remove(found)
            return self._library.address(found[1])

        launch = program["launch"]
        spaces = launcher.workspaces(launch, place)
        constants = {name: self._constant(digest) for name, digest in program["constants"].items()}
        fixed = {name: self._library.address(room) for name, room in constants.items()}
        whole = {**places, launch["output"]: self._library.address(raw), **spaces, **fixed}
        return launcher.Program(self._driver, self._package.binary(program["binary"]), launch, whole, constants)

    def _constant(self, digest: str) -> Any:
        """A room that holds the values of a constant."""
        data = self._package.binary(digest)
        room = self._library.room(launcher.rounded(len(data)))
        self._driver.write(self._library.address(room), data)
        return room

    def _check(self, number: int, memory: Memory, excess: Callable[[], float], times: int = 1) -> None:
        """`WrongResult` unless the program fills the poisoned output with right numbers and leaves what lies behind it alone, run
        so many times in a row.
        """
        stream, library = self._library.stream(), self._library
        _, raw, size, rooms = memory
        for room_size, room in rooms:
            self._driver.fill(library.address(room), POISON, room_size, stream)
        self._driver.fill(library.address(raw), POISON, launcher.rounded(size) + GUARD_BYTES, stream)
        for _ in range(times):
            self._open[number].start(stream)
        self._driver.synchronize(stream)
        off = excess()
        if not off <= 1.0:
            raise WrongResult(f"program {number} is off by {off:.3g} times what rounding allows")
        if not library.untouched(raw, size, POISON):
            raise WrongResult(f"program {number} writes beyond its output")

    def _close(self) -> None:
        """Forget the binaries of a case."""
        while self._open:
            self._open.popitem()[1].close()

    def _starting(self, program: launcher.Program) -> Callable[[], None]:
        stream = self._library.stream()
        return lambda: program.start(stream)

    def _peers(self, entry: Entry, operands: Mapping[str, Any], expected: Any, row: Row) -> list[Side]:
        """Libraries' sides that compute the same thing; the others are named in the row with the reason."""
        kept: list[Side] = []
        peers, name = self._library.peers(entry.operator, operands, self._settings.choices), ""
        while True:
            try:
                name = "the next peer"
                side = next(peers, None)
                if side is None:
                    return kept
                name = side.name
                off = self._library.excess(side.call(), expected, rounding.LIBRARY_SLACK)
            except Exception as error:  # whatever it is: a peer's failure is no failure of ours
                row["left_out"][name] = said(error)
                if self._lost():
                    raise DriverError(name, -1, "the GPU's context is lost with a peer", said(error), True) from error
                continue
            if off <= 1.0:
                kept.append(side)
            else:
                row["left_out"][side.name] = f"off by {off:.3g} times what rounding allows"

    # --- time ---------------------------------------------------------------------------------------------------------

    def _time(self, sides: Sequence[Side], budget: float, row: Row) -> None:
        """Put times and ratios into the row; a case without a library has no ratio."""
        times, calls = timing.interleave(sides, self._clock, budget, self._settings.rounds)
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        for side in sides:
            known = {"median_s": medians[side.name], "rounds_s": times[side.name], "calls": calls[side.name]}
            row["sides"][side.name] = known | {"ours": side.ours, "boundary": side.boundary, **side.about}
        mine = sides[0].name
        row["ours_s"] = medians[mine]
        for key, found in (("", [s for s in sides[1:] if s.boundary]), ("_free", list(sides[1:]))):
            if found:
                best = min((s.name for s in found), key=lambda name: medians[name])
                row[f"best{key}"], row[f"ratio{key}"] = best, timing.ratio(times[best], times[mine])
                if not key:
                    row["best_s"] = medians[best]

    def _regret(self, ours: Sequence[Side], budget: float, row: Row) -> None:
        """The ten best programs against one another: how much slower the first is than the fastest."""
        times, _ = timing.interleave(ours, self._clock, budget, self._settings.rounds)
        medians = [statistics.median(times[side.name]) for side in ours]
        row["ten"] = [{"median_s": m, **side.about} for m, side in zip(medians, ours, strict=True)]
        row["regret"] = medians[0] / min(medians) - 1


def kind(entry: Entry) -> list[str]:
    """What the launches of a case's chosen program have that plain ones have not."""
    kernels = entry.programs[0].get("launch", {}).get("kernels", ()) if entry.programs else ()
    found = {"clusters": any(k.get("cluster", 1) > 1 for k in kernels), "tensor maps": any(k.get("maps") for k in kernels)}
    return [word for word, has in found.items() if has]


def said(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def about(program: Mapping[str, Any]) -> dict[str, Any]:
    """What results say of a program of ours."""
    return {key: program[key] for key in ("predicted_s", "program", "bound_by", "compile_s") if key in program}


def line(message: Mapping[str, Any]) -> str:
    """A message as one line."""
    return json.dumps(message, ensure_ascii=False) + "\n"
