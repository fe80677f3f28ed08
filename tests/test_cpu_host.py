import os
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import catalog
from roller.catalog import dump_spec, find_spec, lint, load_spec
from roller.errors import SpecError
from roller_cpu import conditions, description, host, probe, runtime, topology
from roller_cpu.conditions import Conditions
from roller_cpu.probe import Rates
from roller_cpu.topology import Cache, Topology, machine

QUIET = "2026-11-27, other programs took 1% of the processors, the fastest repeats differed by 2%"
RATES = Rates(
    clock_ghz=3.03,
    alone_per_cycle=31.7,
    gflops=4 * 32 * 2.96,
    read_gbps={"L1": 800.0, "L2": 412.0, "L3": 203.0, "DRAM": 31.4},
    alone_gbps={"L1": 200.0, "L2": 103.0, "L3": 51.0, "DRAM": 21.7},
    spread=0.02,
)
CACHES = (Cache(3, 32 << 20, 64, 4), Cache(2, 1 << 20, 64, 1, 2048), Cache(1, 48 << 10, 64, 1, 64))


def understood(found, rates, processor="x86-64-v3", family="unknown", limits=(1.0, 4.0)):
    return description.measured(found, description.nearest(found, processor), family, rates, limits, QUIET)


def described(rates=RATES, **changes):
    given = {"name": "Test CPU", "cores": 4, "features": ("avx", "avx2", "fma"), "caches": CACHES, "memory_bytes": 8 << 30}
    found = Topology(**{**given, **changes})
    speeds = understood(found, replace(rates, gflops=rates.gflops * found.cores / 4 * found.vector_bytes / 32,
                                       alone_per_cycle=rates.alone_per_cycle * found.vector_bytes / 32))  # fmt: skip
    return description.describe(found, description.nearest(found, "x86-64-v3"), "x86-64-v3", "host-test", speeds)


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine of files: two cores of two threads each, one L2 each, one L3."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    write("proc/cpuinfo", "processor : 0\nmodel name\t: Test CPU\nflags\t\t: fpu avx avx2 fma")
    write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB")
    for cpu in range(4):
        core = cpu % 2
        write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{core},{core + 2}")
        sizes = [
            (1, "Data", "32K", f"{core},{core + 2}"),
            (1, "Instruction", "64K", "0"),
            (2, "Unified", "1M", f"{core},{core + 2}"),
        ]
        for number, (level, kind, size, shared) in enumerate([*sizes, (3, "Unified", "16M", "0-3")]):
            folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{number}"
            texts = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared, "coherency_line_size": "64"}
            for name, text in texts.items():
                write(f"{folder}/{name}", text)
    monkeypatch.setattr(topology, "affinity", lambda: (0, 1, 2, 3))
    machine.cache_clear()
    yield SimpleNamespace(root=tmp_path, write=write)
    machine.cache_clear()


def test_the_system_is_read(system):
    found = machine(system.root)
    assert (found.name, found.cores, found.vector_bytes, found.memory_bytes) == ("Test CPU", 2, 32, 16 << 20)
    assert [(c.level, c.size_bytes, c.sharing) for c in found.caches] == [(3, 16 << 20, 2), (2, 1 << 20, 1), (1, 32 << 10, 1)]


def test_affinity_and_quota_limit_cores(system, monkeypatch):
    monkeypatch.setattr(topology, "affinity", lambda: (1, 3))
    assert machine(system.root).cores == 1
    machine.cache_clear()
    monkeypatch.setattr(topology, "affinity", lambda: (0, 1, 2, 3))
    system.write("sys/fs/cgroup/cpu.max", "50000 100000")
    assert machine(system.root).cores == 1
    machine.cache_clear()
    system.write("sys/fs/cgroup/cpu.max", "max 100000")
    assert machine(system.root).cores == 2


def test_a_silent_system_is_no_error(tmp_path):
    machine.cache_clear()
    found = machine(tmp_path)
    assert found.cores >= 1 and found.caches == () and found.memory_bytes > 0 and found.vector_bytes == 16
    machine.cache_clear()


def test_descriptions_are_valid_rounded_and_marked():
    spec = described()
    assert spec.unit.count == 4 and spec.clock_ghz == 3.0 and spec.level("L3").instances == 1
    assert [spec.level(n).bandwidth_gbps for n in ("L3", "L2", "L1", "register")] == [31.0, 200.0, 410.0, 800.0]
    assert spec.level("L1").capacity_bytes == 48 << 10 and spec.level("L2").instances == 4
    assert spec.sources["clock_ghz"].startswith("measured: ") and spec.options["llvm_mcpu"] == "x86-64-v3"
    assert spec.peaks_gflops["float32"] == pytest.approx(4 * 32 * 3.0)
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
    assert base("alderlake", "avx") in ("x86-64-v3", "zen3") and base("unknown") == "neoverse-v2"


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


def test_work_of_others_is_seen_and_ones_own_is_not():
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
    with conditions.watching() as watch:
        begin = time.process_time()
        while time.process_time() - begin < 0.3:
            pass
    busy = watch.others
    with conditions.watching() as idle:
        time.sleep(0.3)
    assert busy < idle.others + 0.5


def test_a_machine_that_was_not_measured_has_the_speeds_of_a_like_chip():
    base = find_spec("cpu", "zen3")
    found = Topology("", 8, ("avx", "avx2", "fma"), (Cache(3, 32 << 20, 64, 8), *CACHES[1:]), 8 << 30)
    spec = description.describe(found, base, "znver3", "host-test", description.assumed(found, base, "busy"))
    assert spec.clock_ghz == base.clock_ghz and lint(spec) == [] and not host.is_measured(spec)
    assert spec.peaks_gflops["float32"] == pytest.approx(4 * base.peaks_gflops["float32"], rel=0.01)
    ratios = [mine.bandwidth_gbps / theirs.bandwidth_gbps for mine, theirs in zip(spec.levels[1:], base.levels[1:], strict=True)]
    assert ratios == pytest.approx([4] * len(ratios), rel=0.05)
    assert spec.source("clock_ghz").startswith("estimate: not measured (busy), each core as one of the shipped spec zen3")


# --- the user's file -------------------------------------------------------------------------------------------------


class Measuring:
    """Measuring without measuring: how often, and what it finds."""

    def __init__(self):
        self.calls, self.busy, self.ratio, self.pauses = 0, 0.0, 1.0, []

    def __len__(self):
        return self.calls

    def measure(self, cores, vector_bytes, *_, own, fused):
        self.calls += 1
        per_cycle = vector_bytes  # two pipes
        return replace(RATES, clock_ghz=3.0, alone_per_cycle=per_cycle, gflops=cores * per_cycle * 3.0 * self.ratio)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("ROLLER_CALIBRATE", "once")
    monkeypatch.delenv("ROLLER_NUM_THREADS", raising=False)
    made = Measuring()

    class Watch:
        def __enter__(self):
            return SimpleNamespace(others=made.busy)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(probe, "measure", made.measure)
    monkeypatch.setattr(host, "watching", Watch)
    monkeypatch.setattr(host, "clock_limits", lambda: (0.5, 6.0))
    monkeypatch.setattr(
        runtime, "host_processor", lambda: "x86-64-v3"
    )  # of any machine, so that pipes are those of the measurement
    monkeypatch.setattr(host.time, "sleep", made.pauses.append)
    host._default.cache_clear()
    yield made
    host._default.cache_clear()


def files(tmp_path):
    return sorted((tmp_path / "config").rglob("*.toml"))


def test_measured_once_and_remembered(measured, tmp_path):
    first = host.default_spec()
    host._default.cache_clear()
    assert host.default_spec() == first and len(measured) == 1
    (path,) = files(tmp_path)
    assert load_spec(path) == first and path.stem == first.chip and lint(first) == []
    assert {p.suffix for p in path.parent.iterdir()} <= {".toml", ".lock"}
    host.measure_spec()
    assert len(measured) == 2


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"schema_version = 1\n", b"x" * 4096])
def test_a_corrupt_file_is_measured_anew(measured, tmp_path, content):
    first = host.default_spec()
    (path,) = files(tmp_path)
    path.write_bytes(content)
    host._default.cache_clear()
    assert host.default_spec() == first and len(measured) == 2 and load_spec(path) == first


def test_a_file_of_another_machine_is_measured_anew(measured, tmp_path):
    host.default_spec()
    (path,) = files(tmp_path)
    path.write_text(dump_spec(find_spec("cpu", "zen5")))
    host._default.cache_clear()
    assert host.default_spec().chip == path.stem and len(measured) == 2


def test_a_folder_that_cannot_be_written_is_no_error(measured, tmp_path, caplog):
    (tmp_path / "config").write_text("in the way")
    assert host.default_spec().device == "cpu" and "cannot be kept" in caplog.text


def test_the_variable_narrows_the_machine(measured, monkeypatch):
    monkeypatch.setenv("ROLLER_NUM_THREADS", "1")
    assert host.default_spec().unit.count == 1
    monkeypatch.setenv("ROLLER_NUM_THREADS", "1000")
    assert host.default_spec().unit.count == machine().cores


@pytest.mark.parametrize("trouble", [{"busy": 0.4}, {"ratio": 0.2}, {"ratio": 5.0}])
def test_a_busy_machine_is_measured_again_then_left_at_a_like_chip(measured, tmp_path, caplog, trouble):
    for name, value in trouble.items():
        setattr(measured, name, value)
    spec = host.default_spec()
    assert len(measured) == host.ATTEMPTS and len(measured.pauses) == host.ATTEMPTS
    assert spec.chip.startswith("host-") and not host.is_measured(spec) and lint(spec) == []
    assert "cannot be measured now" in caplog.text and "roller specs calibrate cpu" in caplog.text
    host._default.cache_clear()
    assert host.default_spec() == spec and len(measured) == host.ATTEMPTS  # not in every process
    (path,) = files(tmp_path)
    measured.busy, measured.ratio, old = 0.0, 1.0, time.time() - host.RETRY_SECONDS - 1
    os.utime(path, (old, old))
    host._default.cache_clear()
    quiet = host.default_spec()
    assert host.is_measured(quiet) and load_spec(path) == quiet and quiet.clock_ghz == 3.0
    assert "other programs took 0%" in quiet.source("clock_ghz") and quiet.source("clock_ghz").startswith("measured: 20")


def test_a_busy_moment_does_not_replace_what_was_measured(measured, caplog):
    first = host.default_spec()
    measured.busy = 0.9
    assert host.measure_spec() == first and "stays" in caplog.text
    host._default.cache_clear()
    assert host.default_spec() == first


def test_a_pause_may_be_enough(measured, monkeypatch):
    measured.busy = 0.9
    monkeypatch.setattr(host.time, "sleep", lambda seconds: setattr(measured, "busy", 0.0 if seconds else 0.9))
    assert host.is_measured(host.default_spec()) and len(measured) == 2


def test_the_variable_says_when_to_measure(measured, monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLER_CALIBRATE", "off")
    spec = host.default_spec()
    assert len(measured) == 0 and not host.is_measured(spec) and files(tmp_path) == []
    monkeypatch.setenv("ROLLER_CALIBRATE", "now")
    spec = host.default_spec()
    assert len(measured) == 1 and host.is_measured(spec) and host.default_spec() == spec and len(measured) == 1
    host._default.cache_clear()
    assert host.default_spec() == spec and len(measured) == 2  # once in each process
    monkeypatch.setenv("ROLLER_CALIBRATE", "off")
    assert host.default_spec() == spec and len(measured) == 2
    monkeypatch.setenv("ROLLER_CALIBRATE", "never")
    with pytest.raises(SpecError, match="once, now, off"):
        host.default_spec()


def test_the_date_does_not_change_what_is_compiled(measured):
    spec = host.default_spec()
    later = spec.model_copy(update={"sources": {**spec.sources, "clock_ghz": "measured: another day"}})
    assert later.content_hash() == spec.content_hash()


def test_instruction_sets_are_those_of_the_processor(monkeypatch):
    """Where the system lists none, or others: LLVM asks the processor itself."""
    monkeypatch.setattr(runtime, "host_features", lambda: frozenset({"avx", "avx2", "avx512f", "fma"}))
    assert host._told(Topology("", 1, (), (), 1)).vector_bytes == 64
    masked = host._told(Topology("", 1, ("avx512f", "hypervisor"), (), 1))
    assert masked.virtual and masked.vector_bytes == 64
    monkeypatch.setattr(runtime, "host_features", lambda: frozenset({"avx"}))
    assert host._told(Topology("", 1, ("avx512f",), (), 1)).vector_bytes == 32


@pytest.mark.long  # it times, and a busy machine times anything
@pytest.mark.parametrize(("processor", "fused"), [("x86-64-v2", False), ("x86-64-v3", True)])
def test_real_probing_gives_plausible_rates(monkeypatch, processor, fused):
    monkeypatch.setattr(probe, "TRIAL_SECONDS", 0.002)
    monkeypatch.setattr(probe, "TRIALS", 2)
    rates = probe.measure(1, 16, processor, {"L1": 8192, "DRAM": 1 << 24}, fused=fused)
    assert 0.3 < rates.clock_ghz < 8 and rates.gflops > 1
    assert rates.read_gbps["L1"] > 1 and rates.read_gbps["DRAM"] > 0.2


def test_spec_errors_stay_inside(measured, monkeypatch):
    monkeypatch.setattr(
        catalog, "load_spec", lambda path: (_ for _ in ()).throw(SpecError("bad", path)) if "host" in str(path) else load_spec(path)
    )
    assert host.default_spec().device == "cpu"
