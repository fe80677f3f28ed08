"""The machine this runs on: what the system says, when it is measured, and what is kept."""

import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cpu_machines import RATES
from roller.errors import SpecError
from roller.target import catalog
from roller.target.catalog import dump_spec, find_spec, load_spec
from roller.target.linting import lint
from roller_cpu.chip import host, probe, topology
from roller_cpu.chip.topology import Topology, machine
from roller_cpu.runtime import launch_probe
from roller_cpu.toolchain import processors


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


# --- the user's file -------------------------------------------------------------------------------------------------


class Measuring:
    """Measuring without measuring: how often, and what it finds."""

    def __init__(self):
        self.calls, self.busy, self.ratio, self.pauses = 0, 0.0, 1.0, []

    def __len__(self):
        return self.calls

    def measure(self, cores, vector_bytes, *_, own, fused, dots, in_rows):
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
    monkeypatch.setattr(launch_probe, "launch_us", lambda cores, processor: 1.0 + cores)
    monkeypatch.setattr(host, "watching", Watch)
    monkeypatch.setattr(host, "clock_limits", lambda: (0.5, 6.0))
    monkeypatch.setattr(
        processors, "host_processor", lambda: "x86-64-v3"
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
    if (cores := machine().cores) > 1:
        assert first.unit.launch_overhead_us == 1.0 + cores and first.sources["unit.launch_overhead_us"].startswith("measured")
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
    monkeypatch.setattr(processors, "host_features", lambda: frozenset({"avx", "avx2", "avx512f", "fma"}))
    assert host._told(Topology("", 1, (), (), 1)).vector_bytes == 64
    masked = host._told(Topology("", 1, ("avx512f", "hypervisor"), (), 1))
    assert masked.virtual and masked.vector_bytes == 64
    monkeypatch.setattr(processors, "host_features", lambda: frozenset({"avx"}))
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
