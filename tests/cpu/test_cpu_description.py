"""A machine as a spec: what is believed of a measurement, and what stands in where there is none."""

import os
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_machines import CACHES, QUIET, RATES, ROWS
from roller.errors import SpecError
from roller.target.catalog import find_spec
from roller.target.linting import lint
from roller_cpu.chip import conditions, description, host
from roller_cpu.chip.conditions import Conditions
from roller_cpu.chip.topology import Cache, Topology


def understood(found, rates, processor="x86-64-v3", family="unknown", limits=(1.0, 4.0)):
    return description.measured(found, description.nearest(found, processor), family, rates, limits, QUIET)


def described(rates=RATES, **changes):
    given = {"name": "Test CPU", "cores": 4, "features": ("avx", "avx2", "fma"), "caches": CACHES, "memory_bytes": 8 << 30}
    found = Topology(**{**given, **changes})
    speeds = understood(found, replace(rates, gflops=rates.gflops * found.cores / 4 * found.vector_bytes / 32,
                                       alone_per_cycle=rates.alone_per_cycle * found.vector_bytes / 32))  # fmt: skip
    return description.describe(found, description.nearest(found, "x86-64-v3"), "x86-64-v3", "host-test", speeds)


def test_descriptions_are_valid_rounded_and_marked():
    spec = described()
    assert spec.unit.count == 4 and spec.clock_ghz == 3.0 and spec.level("L3").instances == 1
    assert [spec.level(n).bandwidth_gbps for n in ("L3", "L2", "L1", "register")] == [31.0, 200.0, 410.0, 800.0]
    assert spec.level("L1").capacity_bytes == 48 << 10 and spec.level("L2").instances == 4
    assert spec.sources["clock_ghz"].startswith("measured: ") and spec.options["llvm_mcpu"] == "x86-64-v3"
    assert spec.peaks_gflops["float32"] == pytest.approx(4 * 32 * 3.0)
    assert spec.level("L3").row_shares == ROWS  # of the bandwidth of the memory, from which data move into the L3
    assert spec.level("L3").unit_row_shares == RATES.alone_rows["DRAM"]
    assert all(level.row_shares is None for level in spec.levels if level.name != "L3")
    assert spec.source("levels.L3.row_shares.shares").startswith("measured: ")
    assert lint(spec) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"cores": 1, "caches": ()},
        {"cores": 3, "caches": (Cache(3, 32 << 20, 64, 2), Cache(2, 1 << 20, 64, 1), Cache(1, 48 << 10, 64, 1))},
        {"cores": 6, "caches": (Cache(2, 2 << 20, 64, 6), Cache(1, 32 << 10, 128, 1))},
        {"cores": 64, "features": ("avx512f",)},
        {"cores": 2, "features": (), "caches": (Cache(4, 1 << 30, 64, 2), *CACHES)},
    ],
)
def test_odd_machines_are_described(changes):
    assert described(**changes).unit.count == changes["cores"]


def test_noise_does_not_turn_levels_around():
    noisy = replace(RATES, read_gbps={"L1": 100.0, "L2": 300.0, "L3": 20.0, "DRAM": 50.0})
    rates = [level.bandwidth_gbps for level in described(noisy).levels[1:]]
    assert rates == sorted(rates)


def test_what_one_core_draws_of_a_shared_level_is_measured():
    shared = described().level("L3")
    assert (shared.bandwidth_gbps, shared.unit_bandwidth_gbps) == (31.0, 22.0)
    assert all(level.unit_bandwidth_gbps is None for level in described().levels if level.name != "L3")


def test_a_guest_counts_on_a_part_of_the_outermost_cache():
    own, guest = described(), described(features=("avx", "avx2", "fma", "hypervisor"))
    assert guest.level("L3").usable_fraction == description.GUEST_SHARE < own.level("L3").usable_fraction
    assert guest.level("L2") == own.level("L2")


def test_the_nearest_shipped_chip():
    def base(processor, *features):
        return description.nearest(Topology("", 1, features, (), 1), processor).chip

    assert base("znver3", "avx") == "zen3" and base("znver5", "avx512f") == "zen5"
    assert base("alderlake", "avx") == "alder-lake" and base("skylake", "avx") == "x86-64-v3" and base("unknown") == "neoverse-v2"


# --- what is believed ------------------------------------------------------------------------------------------------


FOUR = Topology("", 4, ("avx", "avx2", "fma"), CACHES, 8 << 30)


@given(st.sampled_from([0.5, 1.0, 2.0]), st.floats(1.0, 4.0), st.floats(0.6, 1.0), st.floats(0.9, 1.1), st.sampled_from([1, 2, 64]))
def test_clock_and_pipes_of_any_core_are_found(pipes, alone_ghz, slower, noise, cores):
    """Of any number of pipes, all cores at work slower than one alone, some noise between the two loops of one core."""
    found, per_cycle = replace(FOUR, cores=cores), 16 * pipes
    rates = replace(RATES, clock_ghz=alone_ghz, alone_per_cycle=per_cycle * noise, gflops=cores * per_cycle * alone_ghz * slower)
    speeds = understood(found, rates, limits=(0.5, 5.0))
    assert (speeds.per_cycle, speeds.clock_ghz) == (per_cycle, pytest.approx(alone_ghz * slower, rel=0.05))


def test_two_threads_of_one_core_share_its_pipes():
    """Guests often see two threads as two cores."""
    speeds = understood(FOUR, replace(RATES, gflops=RATES.gflops / 2))
    assert (speeds.per_cycle, speeds.clock_ghz) == (16, 3.0)


def test_a_known_family_has_the_pipes_of_its_spec_whatever_one_core_seemed_to_do():
    disturbed = replace(RATES, alone_per_cycle=15.0)
    assert understood(FOUR, disturbed, "znver3", "znver3").per_cycle == 32
    with pytest.raises(SpecError, match="clock cannot be"):
        understood(FOUR, disturbed, "znver3", "znver9")


def test_a_familys_pipes_are_those_of_its_spec_only_for_vectors_as_wide():
    """A machine that the compiler calls x86-64-v3 may have wider vectors than the shipped spec of that name."""
    wide = replace(FOUR, features=(*FOUR.features, "avx512f"))
    rates = replace(RATES, gflops=2 * RATES.gflops, alone_per_cycle=2 * RATES.alone_per_cycle)
    speeds = understood(wide, rates, "x86-64-v3", "x86-64-v3")
    assert (speeds.per_cycle, speeds.clock_ghz) == (64, 3.0)


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({"gflops": RATES.gflops / 5}, (0.3, 7.0)),  # a core that was taken away is no slower clock
        ({"gflops": RATES.gflops * 3}, (0.3, 7.0)),
        ({}, (3.5, 7.0)),  # what the system says of the clock
        ({}, (0.5, 2.5)),
        ({"alone_per_cycle": 23.0}, (0.3, 7.0)),  # between one pipe and two
        ({"alone_per_cycle": 3.0}, (0.3, 7.0)),
    ],
)
def test_what_cannot_be_is_refused(changes, limits):
    with pytest.raises(SpecError, match=r"cannot be|are possible"):
        understood(FOUR, replace(RATES, **changes), limits=limits)


def test_limits_of_the_clock_come_from_the_system(monkeypatch):
    def said(*values):
        monkeypatch.setattr(conditions.psutil, "cpu_freq", lambda: SimpleNamespace(current=values[0], min=values[1], max=values[2]))
        return conditions.clock_limits()

    low, high = said(2445.4, 0.0, 0.0)  # a guest sees the nominal clock only
    assert low < 1.7 and 3.5 < high < 8
    low, high = said(800.0, 400.0, 5100.0)  # a laptop at rest
    assert low <= 0.4 and 5.1 < high < 6
    monkeypatch.setattr(conditions.psutil, "cpu_freq", lambda: None)
    assert conditions.clock_limits() == conditions.PLAUSIBLE_GHZ


def test_a_busy_machine_says_so():
    assert Conditions("2026-11-27", 0.01, 0.02).problems() == ()
    assert Conditions("2026-11-27", 0.5, 0.02).problems() == ("other programs took 50% of the processors",)
    assert Conditions("2026-11-27", 0.5, 0.3).problems()[1] == "the fastest repeats differed by 30%"


def test_work_of_others_is_seen():
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        time.sleep(0.5)
        with conditions.watching() as watch:
            time.sleep(0.5)
    finally:
        for process in others:
            process.kill()
            process.wait()
    assert watch.others > 0.5


@pytest.mark.parametrize(
    ("busy", "own", "others"), [(2.0, 2.0, 0.0), (2.0, 0.5, 0.75), (0.1, 0.1, 0.0), (1.0, 1.2, 0.0), (9.0, 1.0, 1.0)]
)
def test_ones_own_work_is_not_that_of_others(monkeypatch, busy, own, others):
    """Two processors and one second; the clocks are invented, as other work on the machine comes and goes."""
    times = namedtuple("times", "user system idle iowait")
    cpu_times = iter([[times(5.0, 3.0, 70.0, 4.0)] * 3, [times(5.0 + busy / 2, 3.0, 71.0 - busy / 2, 4.0)] * 3])
    process_times, walls = iter([7.0, 7.0 + own]), iter([100.0, 101.0])
    monkeypatch.setattr(conditions, "affinity", lambda: (0, 2))
    monkeypatch.setattr(conditions.psutil, "cpu_times", lambda percpu: next(cpu_times))
    clock = SimpleNamespace(process_time=lambda: next(process_times), perf_counter=lambda: next(walls))
    monkeypatch.setattr(conditions, "time", clock)
    with conditions.watching() as watch:
        pass
    assert watch.others == pytest.approx(others)


def test_a_machine_that_was_not_measured_has_the_speeds_of_a_like_chip():
    base = find_spec("cpu", "zen3")
    found = Topology("", 8, ("avx", "avx2", "fma"), (Cache(3, 32 << 20, 64, 8), *CACHES[1:]), 8 << 30)
    spec = description.describe(found, base, "znver3", "host-test", description.assumed(found, base, "busy"))
    assert spec.clock_ghz == base.clock_ghz and lint(spec) == [] and not host.is_measured(spec)
    assert spec.peaks_gflops["float32"] == pytest.approx(4 * base.peaks_gflops["float32"], rel=0.01)
    ratios = [mine.bandwidth_gbps / theirs.bandwidth_gbps for mine, theirs in zip(spec.levels[1:], base.levels[1:], strict=True)]
    assert ratios == pytest.approx([4] * len(ratios), rel=0.05)
    assert spec.source("clock_ghz").startswith("estimate: not measured (busy), each core as one of the shipped spec zen3")
