"""Whether a machine was quiet enough to be measured, and whether what was measured can be: kept beside the numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from roller_cpu.chip.topology import affinity

QUIET = 0.05  # share of the processors' time that others may take: as much as the numbers are then wrong by
AGREE = 0.10  # by which the fastest repeats may differ
# Of the clock that a system calls the processor's: wide vectors on all cores halve it, boosts of small parts triple it.
BELOW, ABOVE = 0.5, 3.0
PLAUSIBLE_GHZ = (0.3, 7.0)  # where the system names no clock


@dataclass(frozen=True, slots=True)
class Conditions:
    """What went on while the machine was measured.

    `others`: share of our processors' time that other processes, or other guests of the host, took. `spread`: by how much the
    fastest few repeats of a measurement differ, the worst of all measurements.
    """

    date: str  # ISO 8601
    others: float
    spread: float

    def __str__(self) -> str:
        return f"{self.date}, {_taken(self.others)}, {_within(self.spread)}"

    def problems(self) -> tuple[str, ...]:
        """Why what was measured says little of the machine; empty if it was quiet."""
        busy = (_taken(self.others),) if self.others > QUIET else ()
        return (*busy, _within(self.spread)) if self.spread > AGREE else busy


def _taken(share: float) -> str:
    return f"other programs took {share:.0%} of the processors"


def _within(spread: float) -> str:
    return f"the fastest repeats differed by {spread:.0%}"


@dataclass(slots=True)
class Watch:
    """The share of the processors' time that others took while something was measured: there when the watching ends."""

    others: float = 0.0


@contextmanager
def watching() -> Iterator[Watch]:
    """See how much of the processors that this process may use others take meanwhile."""
    watch, processors = Watch(), affinity()
    busy, own, begin = _busy(processors), time.process_time(), time.perf_counter()
    yield watch
    wall = time.perf_counter() - begin
    taken = _busy(processors) - busy - (time.process_time() - own)
    watch.others = min(1.0, max(0.0, taken / (wall * len(processors))))


def _busy(processors: tuple[int, ...]) -> float:
    """Seconds that the processors worked, for whomever: the time that a host gave to other guests is among them."""
    times = psutil.cpu_times(percpu=True)
    some = [times[n] for n in processors if n < len(times)]
    return float(sum(sum(t) - t.idle - sum(getattr(t, name, 0.0) for name in ("iowait", "guest", "guest_nice")) for t in some))


def clock_limits() -> tuple[float, float]:
    """The slowest and the fastest clock (GHz) that this processor can have, from what the system says of it."""
    try:
        said = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):  # psutil raises any of these where files are missing
        said = None
    if said is None or not said.current:
        return PLAUSIBLE_GHZ
    if said.max:
        return BELOW * min(said.max, said.current) * 1e-3, max(said.max, said.current) * (1 + AGREE) * 1e-3
    return BELOW * said.current * 1e-3, ABOVE * said.current * 1e-3
