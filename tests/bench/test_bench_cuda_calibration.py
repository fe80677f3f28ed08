"""The GPU benchmark measures the chip it runs on: probes from the package, on a stand-in for the driver, with invented times."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import gpu_stand_in
from bench.cuda import calibration
from bench.cuda.platform import PLATFORM
from bench.gpu import build, package, report, run, timing
from bench.gpu.operators import Operator
from bench.gpu.package import Package
from emulating import needs_compiler
from gpu_stand_in import FakeGpu, NumpyLibrary, at, compiled
from measuring import facts_of, seconds_of, truth
from roller.target.catalog import find_spec
from roller_cuda.chip import calibration as ours
from roller_cuda.chip import facts as driver_facts
from roller_cuda.chip import probes

pytestmark = [needs_compiler, pytest.mark.skipif(shutil.which("g++") is None, reason="the stand-in for the driver needs g++")]
RELU = Operator("small relu", "paper119 elementwise", "relu", "float32", {"x": (3, 37)})
CLOCK = 1.4  # GHz
SECONDS = 480.0


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with probes for two chips, and one case."""
    folder = tmp_path_factory.mktemp("package")
    build.manifest(PLATFORM, folder, ["a100", "h100"])
    build.build(PLATFORM, folder, "a100", [RELU], lambda _: None)
    for chip in ("a100", "h100"):
        build.calibration(PLATFORM, folder, chip, lambda _: None)
    return folder


@pytest.fixture
def device(libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(timing, "FLUSH_LEAST", 1 << 12)
    monkeypatch.setattr(timing, "FLUSH_TIMES_L2", 0)
    return FakeGpu(libcuda, tmp_path)


def become(device: FakeGpu, facts: probes.Facts) -> None:
    told = {number: getattr(facts, field) for field, number in {**calibration.ATTRIBUTES, **calibration.CLOCKS}.items()}
    device.becomes({**told, 75: facts.capability[0], 76: facts.capability[1]}, facts.memory_bytes)


def teach(device: FakeGpu, cubin: bytes, table: tuple[probes.Probe, ...], values: Mapping[str, float]) -> None:
    """Every launch takes as long as its probe's true value says; others, which prepare something, take a millisecond."""
    times = seconds_of(table, values)

    def running(kernel: str) -> Callable[[list[int], int, int], int]:
        def taking(given: list[int], blocks: int, threads: int) -> int:
            _, ticks, count, rounds = given
            seconds = times.get((kernel, count, rounds & 0xFFFFFFFF), 1e-3)  # the last argument has but 32 bits
            device.takes(seconds)
            at(ticks, "uint64", (2,))[...] = round(CLOCK * 1e9 * seconds), round(1e9 * seconds)
            return 0

        return taking

    launches = [launch for probe in table for launch in (probe.launch, probe.prepare, probe.flush) if launch is not None]
    for kernel in {launch.kernel for launch in launches}:
        device.knows(cubin, kernel, 4, running(kernel))


def measured(folder: Path, device: FakeGpu, chip: str = "a100", seconds: float = SECONDS) -> tuple[dict[str, Any], bool]:
    return calibration.section(Package(folder, PLATFORM), chip, device.driver(), NumpyLibrary(), seconds)


def cubin_of(folder: Path, chip: str) -> bytes:
    return (folder / "calibration" / chip / "probes.cubin").read_bytes()


@pytest.mark.parametrize("chip", ["a100", "h100"])
def test_known_rates_come_back_beside_what_the_spec_says(built: Path, device: FakeGpu, chip: str) -> None:
    """Of a GPU that is not quite the chip: its own facts say what to launch."""
    spec = find_spec("cuda", chip)
    facts = facts_of(spec, name="Fake GPU", sms=spec.unit.count - 8)
    become(device, facts)
    values = truth(facts, spec, 0.8)
    teach(device, cubin_of(built, chip), probes.table(facts, {atom.name: atom.gflops for atom in spec.atoms}), values)
    found, lost = measured(built, device, chip)
    assert (found["reason"], lost, device.alive()) == ("", False, 0)
    rows = {row["probe"]: row for row in json.loads(json.dumps(found["values"]))}
    assert rows.keys() == values.keys() - {"warm_up"}
    for name, row in rows.items():
        assert row["measured"] == pytest.approx(values[name], rel=0.02), name
        assert row["spec"] == ours.specified(spec).get(name)
    assert {name for name, row in rows.items() if row["spec"]} == ours.specified(spec).keys()
    clocks = {row["probe"]: row for row in found["clocks"]}
    assert clocks.keys() == {f"rate_{atom.name}" for atom in spec.atoms}
    assert all(row["measured"] == pytest.approx(CLOCK, rel=1e-3) for row in clocks.values())
    assert clocks["rate_f32"]["spec"] == spec.clock_ghz
    assert "probes_of_a_package" not in sys.modules


def test_what_the_driver_is_asked_is_what_the_calibration_asks() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    asked = {**calibration.ATTRIBUTES, **calibration.CLOCKS}
    assert asked.keys() == driver_facts.ATTRIBUTES.keys()
    for field, name in driver_facts.ATTRIBUTES.items():
        assert asked[field] == int(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"))


def test_drivers_that_do_not_know_their_clocks_are_asked_for_the_rest(device: FakeGpu) -> None:
    device.becomes(dict.fromkeys(calibration.ATTRIBUTES.values(), 64), 1 << 30)
    found = calibration.facts(probes, device.driver())
    assert (found.bus_bits, found.sms) == (0, 64)  # the stand-in knows no width of its bus


def test_what_a_spec_says_of_probes_is_what_is_made_of_their_values() -> None:
    spec = find_spec("cuda", "h100")
    facts = facts_of(spec)
    values = truth(facts, spec)
    table = probes.table(facts, ours.expected(facts, spec))
    clocks = {probe.name: 1.9 for probe in table if probe.clocked}
    made = ours.describe(ours.Measured(values, clocks), facts, spec, "2026-01-31")
    for name, value in ours.specified(made).items():
        assert value == pytest.approx(values[name], rel=0.006), name


def test_with_little_time_or_no_probes_the_reason_is_said(
    built: Path, device: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = measured(built, device, seconds=59.0)
    assert (found["values"], found["reason"]) == ([], "59 s are left, at least 60 are wanted: see --limit")
    package.write_json(tmp_path / "bare" / "manifest.json", {"schema": package.SCHEMA, "device": "cuda", "chips": {}})
    assert measured(tmp_path / "bare", device)[0]["reason"] == "the package has no probes for a100"
    spec = find_spec("cuda", "a100")
    facts = facts_of(spec)
    become(device, facts)
    table = probes.table(facts, {atom.name: atom.gflops for atom in spec.atoms})
    teach(device, cubin_of(built, "a100"), table, truth(facts, spec))
    monkeypatch.setattr(calibration, "SHARE", 0.0)
    found, _ = measured(built, device)
    assert found["reason"] == f"time was up: {len(table)} of {len(table)} probes did not run" and not found["values"]


def test_a_damaged_package_and_a_driver_that_refuses_cost_only_this(built: Path, device: FakeGpu, tmp_path: Path) -> None:
    found, lost = measured(built, device)
    assert "INVALID_VALUE" in found["reason"] and not lost  # the stand-in does not know all attributes yet
    become(device, facts_of(find_spec("cuda", "a100")))
    found, lost = measured(built, device)
    assert "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE" in found["reason"] and not lost
    damaged = Path(shutil.copytree(built, tmp_path / "damaged"))
    (damaged / "calibration" / "a100" / "spec.json").write_text("{")
    found, lost = measured(damaged, device)
    assert found["reason"].startswith("JSONDecodeError") and not lost


def stood_in(built: Path, libcuda: Path, folder: Path, fault: str, *words: str) -> dict[str, Any]:
    """Results of `bench.gpu.run`, where probes may fail. The spec lists one kind of arithmetic: the stand-in has little to do."""
    made = Path(shutil.copytree(built, folder / "package"))
    spec = find_spec("cuda", "a100")
    names = {launch.kernel for p in probes.table(facts_of(spec), {"f32": 1.0}) for launch in (p.launch, p.prepare) if launch}
    said = {"library": str(libcuda), "copies": str(folder), "faults": {"calibration": fault}, "probes": sorted(names)}
    facts = {number: getattr(facts_of(spec), field) for field, number in calibration.ATTRIBUTES.items()}
    (made / "stand-in.json").write_text(json.dumps({**said, "attributes": facts}))
    path = made / "calibration" / "a100" / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "expected": {"f32": 1.0}}))
    command = [sys.executable, str(Path(gpu_stand_in.__file__))]
    assert run.main(PLATFORM, [str(made), "--out", str(folder / "results.json"), *words], command, 60.0) == 0
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    assert [row["status"] for row in found["cases"]] == ["ok"]
    return found


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("", ""), ("crash", "its process crashed: SIGSEGV"), ("lost", "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)")],
)
def test_probes_that_fail_cost_no_case_and_are_not_tried_again(
    built: Path, libcuda: Path, tmp_path: Path, fault: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = stood_in(built, libcuda, tmp_path, fault)
    assert reason in found["calibration"]["reason"] and bool(found["calibration"]["values"]) == (not fault)
    text = capsys.readouterr().out
    assert f"Not measured: {reason}" in text if fault else "measured ÷ spec" in text
    assert ("| dram_read | GB/s | 1555 |" in "\n".join(report.markdown(found))) == (not fault)


def test_it_can_be_left_out(built: Path, libcuda: Path, tmp_path: Path) -> None:
    assert stood_in(built, libcuda, tmp_path, "crash", "--no-calibration")["calibration"]["reason"] == "not asked for"
