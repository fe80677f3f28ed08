"""Conditions of a measurement: whether the machine was quiet and the numbers are plausible. They are stored with the numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from roller_cpu.chip.topology import affinity

QUIET = 0.05  # max share of processor time that others may take; the numbers are then off by as much
AGREE = 0.10  # max relative difference between the fastest repeats
# Bounds relative to the clock that the system reports: wide vectors on all cores halve it, boosts of small parts triple it.
BELOW, ABOVE = 0.5, 3.0
PLAUSIBLE_GHZ = (0.3, 7.0)  # bounds where the system reports no clock


@dataclass(frozen=True, slots=True)
class Conditions:
    """The load on the machine during a measurement.

    `others`: share of our processors' time that other processes, or other guests of the host, took. `spread`: relative difference
    between the fastest few repeats of a measurement; the largest of all measurements.
    """

    date: str  # ISO 8601
    others: float
    spread: float

    def __str__(self) -> str:
        return f"{self.date}, {_taken(self.others)}, {_within(self.spread)}"

    def problems(self) -> tuple[str, ...]:
        """Returns the reasons why the numbers are unreliable; empty if the machine was quiet."""
        busy = (_taken(self.others),) if self.others > QUIET else ()
        return (*busy, _within(self.spread)) if self.spread > AGREE else busy


def _taken(share: float) -> str:
    return f"other programs took {share:.0%} of the processors"


def _within(spread: float) -> str:
    return f"the fastest repeats differed by {spread:.0%}"


@dataclass(slots=True)
class Watch:
    """The share of processor time that others took during a measurement; set when the watching ends."""

    others: float = 0.0


@contextmanager
def watching() -> Iterator[Watch]:
    """Measures the share of this process's processors that others use while the context is open."""
    watch, processors = Watch(), affinity()
    busy, own, begin = _busy(processors), time.process_time(), time.perf_counter()
    yield watch
    wall = time.perf_counter() - begin
    taken = _busy(processors) - busy - (time.process_time() - own)
    watch.others = min(1.0, max(0.0, taken / (wall * len(processors))))


def _busy(processors: tuple[int, ...]) -> float:
    """Returns the busy seconds of the processors over all processes; time that a host gave to other guests counts too."""
    times = psutil.cpu_times(percpu=True)
    some = [times[n] for n in processors if n < len(times)]
    return float(sum(sum(t) - t.idle - sum(getattr(t, name, 0.0) for name in ("iowait", "guest", "guest_nice")) for t in some))


def clock_limits() -> tuple[float, float]:
    """Returns the slowest and the fastest clock (GHz) possible for this processor, derived from the system's report."""
    try:
        said = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):  # psutil raises any of these where files are missing
        said = None
    if said is None or not said.current:
        return PLAUSIBLE_GHZ
    if said.max:
        return BELOW * min(said.max, said.current) * 1e-3, max(said.max, said.current) * (1 + AGREE) * 1e-3
    return BELOW * said.current * 1e-3, ABOVE * said.current * 1e-3
