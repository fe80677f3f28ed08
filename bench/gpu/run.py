"""Runs a package of kernels on the GPU of this machine against torch (its libraries, its compiler) and Triton, in one report.

`bench.cuda.run` and `bench.rocm.run` are its commands. They need Python, PyTorch and a driver; roller is not imported. This process
never touches the GPU: one that it starts does, and is started again without the case at hand where that crashes, hangs, or destroys
the GPU's context. Results are written after every case.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu import report
from bench.gpu.child import CALIBRATION, REFUSED
from bench.gpu.package import Package, PackageError
from bench.gpu.platform import Platform
from bench.gpu.timing import QUICK_ROUNDS, ROUNDS

LIMIT_SECONDS = 480.0
STALL_SECONDS = 120.0  # for one case; more with --max-autotune
AUTOTUNE_STALL_SECONDS = 600.0
GRACE_SECONDS = 20.0  # beyond the limit, for the case at hand
MOST_HUNG = 2  # cases with the same kind of launches, until others of that kind are no longer tried
INTERRUPTED = 130


@dataclass
class Session:
    """What is known so far: who runs, the rows, the case at hand, what cannot run here, what was measured of the chip."""

    hello: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    current: str = ""
    refused: str = ""
    calibration: dict[str, Any] | None = None
    before: dict[str, Any] = field(default_factory=dict)  # results that are gone on with

    @property
    def avoid(self) -> list[list[str]]:
        """Kinds of launches that hung so often that the others are not tried."""
        hung = [row["kind"] for row in self.rows if row.get("hung") and row.get("kind")]
        return [kind for n, kind in enumerate(hung) if kind not in hung[:n] and hung.count(kind) >= MOST_HUNG]

    def goes_on(self, found: dict[str, Any]) -> None:
        """With what an earlier run measured."""
        self.before, self.rows = found, list(found["cases"])
        self.calibration = found["calibration"] if found["calibration"]["values"] else None

    @property
    def done(self) -> list[str]:
        """Ids of the cases that have a row."""
        return [row["case"] for row in self.rows]

    @property
    def steps(self) -> int:
        """How much is done: a process that did nothing of it is not followed by another."""
        return len(self.rows) + (self.calibration is not None)

    def take(self, message: dict[str, Any]) -> None:
        """A message of the process with the GPU."""
        self.hello = message.get("hello", self.hello)
        if "hello" in message and any(
            self.before.get(key, self.hello[key]) != self.hello[key] for key in ("chip", "built", "device")
        ):
            self.refused = "--resume: those results are of another GPU, chip or package"
        self.refused = message.get("refused", self.refused)
        self.current = message.get("begin", self.current)
        if "calibration" in message:
            self.calibration, self.current = message["calibration"], ""
        if "row" in message:
            self.rows.append(message["row"])
            self.current = ""

    def lose(self, reason: str) -> None:
        """The case at hand ended the process, or measuring the chip did."""
        if self.current == CALIBRATION:
            self.calibration, self.current = {"values": [], "clocks": [], "reason": reason}, ""
            return
        families = dict(self.hello.get("cases", ()))
        row = {"case": self.current, "family": families.get(self.current, ""), "status": "failed", "reason": reason, "sides": {}}
        self.rows.append(row | {"left_out": {}})
        self.current = ""


def options(platform: Platform, words: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    made = argparse.ArgumentParser(
        prog=platform.command("run"),
        description=f"Checks and times the kernels of a package on an {platform.maker} GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    made.set_defaults(platform=platform)
    made.add_argument("package", type=Path, help=f"the folder that `{platform.command('build')}` wrote")
    made.add_argument("--out", type=Path, help=f"the JSON file (bench/results/<GPU>/{platform.device}.json; with --quick none)")
    made.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on from these results: their cases are not run again, but kept"
    )
    made.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for everything; what was not reached is listed")
    made.add_argument("--only", default="", help="cases whose id or family contains one of these, separated by commas")
    made.add_argument("--quick", action="store_true", help="a smoke test: two small cases of each family, few rounds")
    made.add_argument("--chip", default="", help="which kernels of the package (those for the chip that this GPU is most like)")
    if platform.calibration:
        text = "without measuring the chip's own rates and latencies"
        made.add_argument("--no-calibration", action="store_true", help=text)
    else:
        made.set_defaults(no_calibration=True)
    made.add_argument("--no-compile", action="store_true", help="without torch.compile")
    made.add_argument("--no-triton", action="store_true", help="without Triton")
    made.add_argument("--max-autotune", action="store_true", help="let torch.compile search: minutes more")
    return made.parse_args(words)


def job_of(given: argparse.Namespace, session: Session, seconds: float) -> dict[str, Any]:
    """What the process with the GPU is asked to do."""
    choices = {"compiled": not given.no_compile, "triton": not given.no_triton, "max_autotune": given.max_autotune}
    return {
        "package": str(given.package.resolve()),
        "chip": given.chip,
        "only": given.only,
        "quick": given.quick,
        "rounds": QUICK_ROUNDS if given.quick else ROUNDS,
        "seconds": seconds,
        "asked": time.monotonic(),
        "avoid": session.avoid,
        "choices": choices,
        "done": session.done,
        "calibrate": session.calibration is None and not given.no_calibration,
    }


def supervise(given: argparse.Namespace, session: Session, command: Sequence[str], stall: float) -> None:
    """Run all cases, in as many processes as it takes; after each case the results are written. Ends with the time."""
    end = time.monotonic() + given.limit
    while time.monotonic() < end:
        before = session.steps
        status = attended(command, job_of(given, session, end - time.monotonic()), session, given, stall, end + GRACE_SECONDS)
        if time.monotonic() > end and status is None:  # not the case's fault
            session.current = ""
            return
        if session.refused or not session.hello:
            session.refused = session.refused or f"the process with the GPU {unbegun(status, stall)}"
            return
        if session.current:
            session.lose(ended(status, stall))
            write(given, session)
        elif status == 0 or session.steps == before:
            if status:
                print(f"the process with the GPU ended with status {status} between two cases", file=sys.stderr)
            return


def unbegun(status: int | None, stall: float) -> str:
    """What became of a process that never said a word."""
    return f"said nothing for {stall:g} s" if status is None else f"ended with status {status} before it began"


def attended(
    command: Sequence[str], job: dict[str, Any], session: Session, given: argparse.Namespace, stall: float, end: float
) -> int | None:
    """One process from start to end; its exit status, None where it was killed: nothing happened for `stall` seconds, or the time
    is up.
    """
    with started(command, job) as (process, messages):
        while True:
            try:
                text = messages.get(timeout=max(0.0, min(stall, end - time.monotonic())))
            except queue.Empty:
                return None
            if text is None:
                return process.wait()
            try:
                message = json.loads(text)
            except ValueError:  # half a line: it ended while it wrote
                continue
            session.take(message)
            if session.refused:
                return process.wait() if "refused" in message else None
            if "row" in message:
                say(session)
            if "row" in message or "calibration" in message:
                write(given, session)


@contextmanager
def started(command: Sequence[str], job: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[bytes], queue.Queue[str | None]]]:
    """A process with its job, and its messages as they come (None: no more); it is gone afterwards, whatever happens."""
    reading, writing = os.pipe()
    messages: queue.Queue[str | None] = queue.Queue()
    with os.fdopen(reading, encoding="utf-8") as lines:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, pass_fds=(writing,), start_new_session=True)
        os.close(writing)

        def follow() -> None:
            for text in lines:
                messages.put(text)
            messages.put(None)

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as given:  # where it ended before it has read, its status says why
                given.write(json.dumps(job | {"descriptor": writing}).encode())
            yield process, messages
        finally:
            process.kill()
            process.wait()
            follower.join(5.0)


def ended(status: int | None, stall: float) -> str:
    """Why a case has no result."""
    if status is None:
        return f"nothing happened for {stall:g} s; its process was killed"
    return f"its process crashed: {signal.Signals(-status).name}" if status < 0 else f"its process ended with status {status}"


def say(session: Session) -> None:
    """Progress on stderr."""
    row, of = session.rows[-1], len(session.hello["cases"])
    ratio = f", ratio {row['ratio']:.2f} against {row['best']}" if row.get("ratio") else ""
    reason = f": {row['reason']}" if row["reason"] else ""
    print(f"[{len(session.rows)}/{of}] {row['case']}: {row['status']}{reason}{ratio}", file=sys.stderr, flush=True)


def write(given: argparse.Namespace, session: Session) -> Path | None:
    """The results so far, whole or not at all; of quick runs only where --out says so."""
    if given.out is None and given.quick:
        return None
    path: Path = given.out or report.RESULTS / report.folder(session.hello["device"]) / f"{given.platform.device}.json"
    report.write(path, report.results(given.platform, session.hello, session.rows, given.quick, given.limit, session.calibration))
    return path


def main(platform: Platform, words: Sequence[str] | None = None, command: Sequence[str] = (), stall: float | None = None) -> int:
    """Run, write, print; 1 if a result was wrong or a case failed, 2 where nothing can run, 130 if interrupted. `command`: another
    process than the platform's own.
    """
    given, session, code = options(platform, words), Session(), 0
    command = command or (sys.executable, "-m", f"bench.{platform.device}.child")
    try:
        Package(given.package, platform)
        if given.resume is not None:
            session.goes_on(report.read(given.resume, platform))
    except PackageError as error:
        print(f"{error}; `{platform.command('build')}` makes packages", file=sys.stderr)
        return REFUSED
    except report.UnreadableError as error:
        print(error, file=sys.stderr)
        return REFUSED
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the process with the GPU does not outlive this one
    try:
        supervise(given, session, command, stall or (AUTOTUNE_STALL_SECONDS if given.max_autotune else STALL_SECONDS))
    except KeyboardInterrupt:
        code = INTERRUPTED
        print("interrupted; what was measured is kept", file=sys.stderr)
    if session.refused or not session.hello:
        print(session.refused or "nothing ran", file=sys.stderr)
        code = code or REFUSED
        if len(session.rows) == len(session.before.get("cases", ())):
            return code
    path = write(given, session)
    found = report.results(given.platform, session.hello, session.rows, given.quick, given.limit, session.calibration)
    print(report.text(found))
    if path is not None:
        print(f"results: {path}", file=sys.stderr)
    return code or int(any(row["status"] in ("wrong", "failed") or row.get("others_wrong") for row in session.rows))
