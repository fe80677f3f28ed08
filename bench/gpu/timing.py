"""Time on the GPU: events around single calls, a flushed cache before each, rounds in which every side has its turn.

Before every call a buffer larger than the last cache is overwritten, so operands come from memory. The flush also keeps the GPU
busy while the processor queues the call, so what is timed is the GPU's work and not the queueing; where a side's queueing takes
longer than a flush, all sides of the case get several. The calls of a turn are queued together.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.driver import Driver

ROUNDS, QUICK_ROUNDS, LEAST_ROUNDS = 5, 2, 3
MOST_CALLS = 25  # of a side in a turn
FLUSH_TIMES_L2, FLUSH_LEAST = 3, 256 << 20
MOST_FLUSHES = 8  # before a call
SETTLE_CALLS = 2  # before anything is timed


@dataclass(frozen=True)
class Side:
    """One way to compute a case's result: `call` queues it on the stream and gives the result.

    `boundary`: it takes operands as the caller has them and gives the result as the caller wants it; otherwise layouts were
    converted beforehand.
    """

    name: str
    call: Callable[[], Any]
    ours: bool = False
    boundary: bool = True
    about: dict[str, Any] = field(default_factory=dict)


class Clock:
    """Times calls on a stream with the driver's events.

    `flushes`: how often the buffer is overwritten before a call. `queue_seconds`: what the processor took for a call and all that
    goes with it, the last time.
    """

    def __init__(self, driver: Driver, stream: int, flush: tuple[int, int]) -> None:
        self._driver, self._stream, self._flush = driver, stream, flush
        self._events: list[tuple[Any, Any]] = []
        self.flushes, self.queue_seconds = 1, 0.0

    def timed(self, call: Callable[[], Any], count: int) -> list[float]:
        """Seconds of each of so many calls, each from a flushed cache."""
        while len(self._events) < count:
            self._events.append((self._driver.event(), self._driver.event()))
        queued = [time.perf_counter()]
        for first, second in self._events[:count]:
            for _ in range(self.flushes):
                self._driver.fill(self._flush[0], 0, self._flush[1], self._stream)
            self._driver.record(first, self._stream)
            call()
            self._driver.record(second, self._stream)
            queued.append(time.perf_counter())
        self._driver.synchronize(self._stream)
        self.queue_seconds = statistics.median(later - sooner for sooner, later in itertools.pairwise(queued))
        return [self._driver.elapsed(first, second) for first, second in self._events[:count]]

    def flush_seconds(self) -> float:
        """What a flush takes."""
        return min(self.timed(lambda: self._driver.fill(self._flush[0], 0, self._flush[1], self._stream), 3))


def flush_bytes(l2_bytes: int) -> int:
    """Bytes that leave nothing of what was there before in a cache of that size."""
    return max(FLUSH_TIMES_L2 * l2_bytes, FLUSH_LEAST)


def interleave(sides: Sequence[Side], clock: Clock, budget: float, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Medians of every side's turns, a turn a round in an order that rotates, and the calls in a turn.

    About `budget` seconds are spent: calls are cut first, then rounds, down to `LEAST_ROUNDS` (or what was asked for).
    """
    clock.flushes = 1
    gap, single, slowest = clock.flush_seconds(), {}, 0.0
    for side in sides:
        single[side.name] = settled(side, clock)
        slowest = max(slowest, clock.queue_seconds)
    clock.flushes = max(1, min(MOST_FLUSHES, math.ceil(slowest / gap)))
    gap *= clock.flushes
    each = budget / rounds / len(sides)
    calls = {name: max(1, min(MOST_CALLS, int(each / (taken + gap)))) for name, taken in single.items()}
    whole = sum(calls[name] * (taken + gap) for name, taken in single.items())
    wanted = max(min(LEAST_ROUNDS, rounds), min(rounds, int(budget / max(whole, 1e-9))))
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(wanted):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            times[side.name].append(statistics.median(clock.timed(side.call, calls[side.name])))
    return times, calls


def settled(side: Side, clock: Clock) -> float:
    """Seconds of a call after some that are not counted: libraries choose their kernels in the first."""
    return clock.timed(side.call, 1 + SETTLE_CALLS)[-1]


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median over rounds of their time over ours: above 1 we are faster."""
    return statistics.median(t / max(o, 1e-12) for t, o in zip(theirs, ours, strict=True))
