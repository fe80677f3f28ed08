"""The probe of launches: it calls what it is given, as often as it says, and subtracts what the work takes."""

import ctypes
import itertools

import pytest

from roller_cpu.runtime import launch_probe
from roller_cpu.toolchain.processors import host_processor

TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, TASK, ctypes.c_void_p, ctypes.c_int)


def test_every_round_launches_the_work_over_all_cores():
    """Each task gets a pointer to the number of steps, and can run on its own."""
    seen = []

    @LAUNCH
    def launch(task, given, tasks):
        seen.append((ctypes.cast(given, ctypes.POINTER(ctypes.c_int64))[0], tasks, [task(n, None, given) for n in range(tasks)]))
        return 0

    launch_probe.loaded(host_processor())(ctypes.cast(launch, ctypes.c_void_p), 3, 128, 5)
    assert seen == [(128, 3, [0, 0, 0])] * 5


def test_without_a_launch_the_work_is_called():
    launch_probe.loaded(host_processor())(ctypes.c_void_p(None), 3, 128, 5)


@pytest.mark.parametrize(("slow", "fast", "found"), [(20e-6, 5e-6, 20e-6), (1e-6, 5e-6, 5e-6), (-1e-6, -2e-6, 0.0)])
def test_the_cost_is_what_a_launch_adds_to_its_work(monkeypatch, slow, fast, found):
    """On invented clocks: one trial in four is disturbed, and the median does not see it. The slowest distance counts."""
    now, trials = [0.0], itertools.count()
    monkeypatch.setattr(launch_probe.time, "perf_counter", lambda: now[0])

    def function(launch, cores, steps, rounds):
        assert (cores, rounds) == (2, launch_probe.ROUNDS)
        added = (slow if steps == launch_probe.STEPS[1] else fast) if launch.value else 0.0
        now[0] += (30e-6 + added) * rounds + (1.0 if next(trials) % 8 < 2 else 0.0)

    kinds = ctypes.c_void_p(1), ctypes.c_void_p(None)
    assert launch_probe.difference(function, 2, kinds) == pytest.approx(found)


def test_the_real_pool_runs_the_loop(monkeypatch):
    """What it measures is of no importance."""
    monkeypatch.setattr(launch_probe, "TRIALS", 1)
    monkeypatch.setattr(launch_probe, "ROUNDS", 2)
    assert launch_probe.launch_us(2, host_processor()) >= 0
