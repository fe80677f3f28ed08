from types import SimpleNamespace

import pytest

from roller.catalog import find_spec, lint, load_spec
from roller.errors import SpecError
from roller_cpu import host, probe, topology
from roller_cpu.topology import Cache, Topology, machine

RATES = SimpleNamespace(
    clock_ghz=3.03,
    gflops=4 * 32 * 2.96,
    read_gbps={"L1": 800.0, "L2": 412.0, "L3": 203.0, "DRAM": 31.4},
    alone_gbps={"L1": 200.0, "L2": 103.0, "L3": 51.0, "DRAM": 21.7},
)
CACHES = (Cache(3, 32 << 20, 64, 4), Cache(2, 1 << 20, 64, 1, 2048), Cache(1, 48 << 10, 64, 1, 64))


def described(**changes):
    given = {"name": "Test CPU", "cores": 4, "features": ("avx", "avx2", "fma"), "caches": CACHES, "memory_bytes": 8 << 30}
    found = Topology(**{**given, **changes})
    return host.describe(found, host.nearest(found, "x86-64-v3"), "x86-64-v3", "host-test", RATES)


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
    monkeypatch.setattr(topology, "_affinity", lambda: (0, 1, 2, 3))
    machine.cache_clear()
    yield SimpleNamespace(root=tmp_path, write=write)
    machine.cache_clear()


def test_the_system_is_read(system):
    found = machine(system.root)
    assert (found.name, found.cores, found.vector_bytes, found.memory_bytes) == ("Test CPU", 2, 32, 16 << 20)
    assert [(c.level, c.size_bytes, c.sharing) for c in found.caches] == [(3, 16 << 20, 2), (2, 1 << 20, 1), (1, 32 << 10, 1)]


def test_affinity_and_quota_limit_cores(system, monkeypatch):
    monkeypatch.setattr(topology, "_affinity", lambda: (1, 3))
    assert machine(system.root).cores == 1
    machine.cache_clear()
    monkeypatch.setattr(topology, "_affinity", lambda: (0, 1, 2, 3))
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


def test_noise_does_not_turn_levels_around(monkeypatch):
    monkeypatch.setattr(RATES, "read_gbps", {"L1": 100.0, "L2": 300.0, "L3": 20.0, "DRAM": 50.0})
    rates = [level.bandwidth_gbps for level in described().levels[1:]]
    assert rates == sorted(rates)


def test_what_one_core_draws_of_a_shared_level_is_measured():
    shared = described().level("L3")
    assert (shared.bandwidth_gbps, shared.unit_bandwidth_gbps) == (31.0, 22.0)
    assert all(level.unit_bandwidth_gbps is None for level in described().levels if level.name != "L3")


def test_a_guest_counts_on_a_part_of_the_outermost_cache():
    own, guest = described(), described(features=("avx", "avx2", "fma", "hypervisor"))
    assert guest.level("L3").usable_fraction == host.GUEST_SHARE < own.level("L3").usable_fraction
    assert guest.level("L2") == own.level("L2")


def test_the_nearest_shipped_chip():
    def base(processor, *features):
        return host.nearest(Topology("", 1, features, (), 1), processor).chip

    assert base("znver3", "avx") == "zen3" and base("znver5", "avx512f") == "zen5"
    assert base("alderlake", "avx") in ("x86-64-v3", "zen3") and base("unknown") == "neoverse-v2"


# --- the user's file -------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measuring without measuring; the list of how often."""
    monkeypatch.setenv("ROLLER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("ROLLER_NUM_THREADS", raising=False)
    calls = []

    def measure(cores, *_, fused):
        calls.append(cores)
        return SimpleNamespace(clock_ghz=3.0, gflops=cores * 96.0, read_gbps=RATES.read_gbps, alone_gbps=RATES.alone_gbps)

    monkeypatch.setattr(probe, "measure", measure)
    host._remembered.cache_clear()
    yield calls
    host._remembered.cache_clear()


def files(tmp_path):
    return sorted((tmp_path / "config").rglob("*.toml"))


def test_measured_once_and_remembered(measured, tmp_path):
    first = host.default_spec()
    host._remembered.cache_clear()
    assert host.default_spec() == first and len(measured) == 1
    (path,) = files(tmp_path)
    assert load_spec(path) == first and path.stem == first.chip and lint(first) == []
    assert list(path.parent.iterdir()) == [path]
    host.measure_spec()
    assert len(measured) == 2


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"schema_version = 1\n", b"x" * 4096])
def test_a_corrupt_file_is_measured_anew(measured, tmp_path, content):
    first = host.default_spec()
    (path,) = files(tmp_path)
    path.write_bytes(content)
    host._remembered.cache_clear()
    assert host.default_spec() == first and len(measured) == 2 and load_spec(path) == first


def test_a_file_of_another_machine_is_measured_anew(measured, tmp_path):
    from roller.catalog import dump_spec

    host.default_spec()
    (path,) = files(tmp_path)
    path.write_text(dump_spec(find_spec("cpu", "zen5")))
    host._remembered.cache_clear()
    assert host.default_spec().chip == path.stem and len(measured) == 2


def test_a_folder_that_cannot_be_written_is_no_error(measured, tmp_path, caplog):
    (tmp_path / "config").write_text("in the way")
    assert host.default_spec().device == "cpu" and "cannot be kept" in caplog.text


def test_the_variable_narrows_the_machine(measured, monkeypatch):
    monkeypatch.setenv("ROLLER_NUM_THREADS", "1")
    assert host.default_spec().unit.count == 1
    monkeypatch.setenv("ROLLER_NUM_THREADS", "1000")
    assert host.default_spec().unit.count == machine().cores


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
        host, "load_spec", lambda path: (_ for _ in ()).throw(SpecError("bad", path)) if "host" in str(path) else load_spec(path)
    )
    assert host.default_spec().device == "cpu"
