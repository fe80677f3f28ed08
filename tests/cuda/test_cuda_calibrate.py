"""Measuring a GPU without one: what is made of times, what is refused, and where the result goes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from emulating import needs_compiler
from measuring import FakeGpu, facts_of, truth
from roller.cli.app import app
from roller.errors import DeviceUnavailableError, SpecError
from roller.target.catalog import find_spec, load_spec, shipped_specs
from roller.target.hardware import HardwareSpec
from roller.target.linting import lint
from roller_cuda.chip import calibration, default, nearest_chip, probe_timer, probes
from roller_cuda.chip.probes import Facts, Sample
from roller_cuda.runtime import gpu

KNOWN = shipped_specs("cuda")
CHIPS = [spec.chip for spec in KNOWN if spec.chip != "k80"]
DATE = "2026-01-31"
ROUNDING = 0.006  # three digits


def described(facts: Facts, values: dict[str, float], clock: float) -> HardwareSpec:
    """What becomes of a GPU with such rates; nothing is compiled."""
    base = nearest_chip.nearest(facts, KNOWN)
    instrument = FakeGpu(facts, values, clock)
    table = probes.table(facts, calibration.expected(facts, base))
    found = calibration.evaluated({probe: instrument.samples(probe) for probe in table})
    calibration.check(found, facts, base)
    return calibration.describe(found, facts, base, DATE)


@pytest.mark.parametrize("name", CHIPS)
def test_a_chips_own_facts_lead_back_to_it(name: str) -> None:
    spec = find_spec("cuda", name)
    facts = facts_of(spec, name="a board of another name")
    assert nearest_chip.nearest(facts, KNOWN) == spec
    assert nearest_chip.nearest(facts, reversed(KNOWN)) == spec
    assert nearest_chip.architecture(facts.capability) == spec.options["arch"]


def test_chips_that_are_not_shipped_get_the_nearest_of_their_architecture() -> None:
    rtx4080 = facts_of(find_spec("cuda", "rtx4090"), sms=76, l2_bytes=64 << 20, memory_bytes=16 << 30)
    assert nearest_chip.nearest(rtx4080, KNOWN).options["arch"] == "sm_89"
    orin = facts_of(find_spec("cuda", "rtx3090"), capability=(8, 7), sms=16)
    assert nearest_chip.nearest(orin, KNOWN).chip == "rtx3090"
    with pytest.raises(DeviceUnavailableError, match=r"compute capability 12\.x: write a spec file"):
        nearest_chip.nearest(replace(orin, capability=(12, 0)), KNOWN)


# --- from times to a spec ---------------------------------------------------------------------------------------------

SHARES = st.floats(0.3, 1.1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_known_rates_come_back(data: st.DataObject) -> None:
    """Whatever a chip can really do, the spec says it, but for digits left out."""
    shipped = find_spec("cuda", data.draw(st.sampled_from(CHIPS)))
    sms, clock_khz = shipped.unit.count, round(1e6 * shipped.clock_ghz)
    facts = facts_of(
        shipped, sms=data.draw(st.integers(sms // 2, 2 * sms)), clock_khz=data.draw(st.integers(clock_khz // 2, 2 * clock_khz))
    )
    base = nearest_chip.nearest(facts, KNOWN)
    values = {name: value * data.draw(SHARES) for name, value in truth(facts, base, 1.0).items()}
    values |= {f"stride_{s}": min(s, 32) * 0.6 for s in probes.STRIDES}
    values["l2_read"] = max(values["l2_read"], 1.01 * values["dram_read"])
    values["shared_read"] = max(values["shared_read"], 1.01 * values["l2_read"])
    values["dram_latency"] = max(values["dram_latency"], 1.01 * values["l2_latency"])
    clock = facts.clock_ghz * data.draw(SHARES)
    spec = described(facts, values, clock)

    def close(value: float | None, true: float) -> None:
        assert value == pytest.approx(true, rel=ROUNDING)

    l2, shared, register = (spec.level(name) for name in ("L2", "shared", "register"))
    close(spec.clock_ghz, clock)
    close(l2.bandwidth_gbps, values["dram_read"])
    close(shared.bandwidth_gbps, values["l2_read"])
    close(register.bandwidth_gbps, values["shared_read"])
    close(l2.latency_ns, values["dram_latency"])
    close(shared.latency_ns, values["l2_latency"])
    close(register.latency_ns, values["shared_latency"])
    close(shared.step_overhead_ns, values["barrier"])
    close(spec.unit.launch_overhead_us, values["launch"])
    for atom in spec.atoms:
        close(atom.gflops, values[f"rate_{atom.name}"])
        close(atom.clock_ghz or spec.clock_ghz, clock * (0.9 if "mma" in atom.name else 1.0))
        close((atom.flops_per_cycle_per_unit or 0) * spec.unit.count * (atom.clock_ghz or spec.clock_ghz), atom.gflops)
    assert lint(spec) == []


@pytest.mark.parametrize("name", CHIPS)
def test_a_measured_spec_says_where_each_number_is_from(name: str) -> None:
    shipped = find_spec("cuda", name)
    facts = facts_of(shipped)
    spec = described(facts, truth(facts, shipped), facts.clock_ghz)
    for path in ("clock_ghz", "levels.*.latency_ns", "levels.L2.bandwidth_gbps", "peaks_gflops.*", "atoms.f32.*"):
        assert spec.sources[path].startswith(f"measured: {DATE}")
    for path in ("unit.count", "unit.resident_*", "levels.*.capacity_bytes"):
        assert spec.sources[path].startswith("query: the CUDA driver")
    assert spec.sources["*"] == f"estimate: as the shipped spec {name}"
    assert spec.title == f"{facts.name}, measured"
    assert spec.chip == calibration.chip_name(facts)
    assert spec.options["arch"] == shipped.options["arch"]
    assert spec.outermost.capacity_bytes == facts.memory_bytes
    assert spec.level("shared") == shipped.level("shared").model_copy(
        update={"bandwidth_gbps": spec.level("shared").bandwidth_gbps, "latency_ns": 220.0, "step_overhead_ns": 15.0}
    )
    kept = {"lane_storage_max_bytes", "lane_storage_granule", "chains", "combine", "sync_ns", "count", "resident_tiles_max"}
    assert spec.unit.model_dump(include=kept) == shipped.unit.model_dump(include=kept)


def test_what_was_not_measured_follows_the_clock_and_says_so() -> None:
    h100 = find_spec("cuda", "h100")
    facts = facts_of(h100)
    table = probes.table(facts, {"f32": 60000.0})
    instrument = FakeGpu(facts, truth(facts, h100), 1.5)
    found = calibration.evaluated({probe: instrument.samples(probe) for probe in table})
    spec = calibration.describe(found, facts, h100, DATE)
    mine = {atom.name: atom for atom in spec.atoms}
    for atom in h100.atoms:
        if atom.name != "f32":
            assert mine[atom.name].flops_per_cycle_per_unit == atom.flops_per_cycle_per_unit
            assert mine[atom.name].gflops == pytest.approx(atom.gflops * 1.5 / 1.98, rel=ROUNDING)
            assert f"atoms.{atom.name}.*" not in spec.sources
    assert lint(spec) == []


def test_gpus_alike_have_one_name_and_others_another() -> None:
    facts = facts_of(find_spec("cuda", "h100"))
    assert calibration.chip_name(facts).startswith("sm90-132-")
    assert calibration.chip_name(replace(facts, memory_bytes=facts.memory_bytes + 4096)) == calibration.chip_name(facts)
    for change in ({"clock_khz": 1_755_000}, {"sms": 114}, {"l2_bytes": 1 << 25}, {"memory_khz": 1_000_000}):
        assert calibration.chip_name(replace(facts, **change)) != calibration.chip_name(facts)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dram_read", "dram_copy", "l2_read", "shared_read", "rate_f32", "rate_wgmma_m64n256k16_f16"])
@pytest.mark.parametrize(("times", "words"), [(1.25, "more than 1.2 times"), (0.04, "less than 0.05 times")])
def test_a_value_that_cannot_be_is_refused(name: str, times: float, words: str) -> None:
    h100 = find_spec("cuda", "h100")
    facts = facts_of(h100)
    values = truth(facts, h100, 1.0)
    values["dram_copy"] = values["dram_read"]
    values[name] *= times
    with pytest.raises(SpecError, match=rf"measured \S+ for {name}, {words} the .*nothing is kept: measure again"):
        described(facts, values, facts.clock_ghz)
    values[name] /= times
    with pytest.raises(SpecError, match=f"clock of rate_.*{words}"):
        described(facts, values, facts.clock_ghz * times)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"l2_latency": 500.0}, "500 for l2_latency but 480 for dram_latency"),
        ({"shared_latency": 230.0}, "230 for shared_latency but 220 for l2_latency"),
        ({"l2_read": 2000.0}, "for dram_read but 2000 for l2_read"),
        ({"shared_read": 9000.0}, "for l2_read but 9000 for shared_read"),
    ],
)
def test_values_in_the_wrong_order_are_refused(changes: dict[str, float], words: str) -> None:
    h100 = find_spec("cuda", "h100")
    facts = facts_of(h100)
    with pytest.raises(SpecError, match=words):
        described(facts, truth(facts, h100) | changes, facts.clock_ghz)


def test_a_driver_that_does_not_know_its_clocks_leaves_the_shipped_ones_as_the_limit() -> None:
    h100 = find_spec("cuda", "h100")
    facts = facts_of(h100)
    silent = replace(facts, clock_khz=0, memory_khz=0)
    assert described(silent, truth(facts, h100), 1.9).clock_ghz == 1.9
    with pytest.raises(SpecError, match=r"more than 1.2 times the 3352 GB/s"):
        described(silent, truth(facts, h100) | {"dram_read": 4200.0}, 1.9)


@pytest.mark.parametrize("seconds", [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [1.0, math.nan, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0], []])
def test_timings_that_say_nothing_are_refused(seconds: list[float]) -> None:
    (probe, *_) = probes.table(facts_of(find_spec("cuda", "a100")), {"f32": 1.0})
    with pytest.raises(SpecError, match="measuring warm_up: "):
        calibration.evaluated({probe: [Sample(s) for s in seconds]})


def test_the_first_timing_does_not_count() -> None:
    assert probes.settled([1000.0, 3.0, 1.0, 2.0]) == 2.0
    assert probes.settled([0.0, 3.0, 1.0, 2.0]) == 2.0


@pytest.mark.parametrize(
    ("meets", "banks"), [(32, 32), (16, 16), (128, None), (1, None)], ids=["32", "16", "more than shown", "no conflict at all"]
)
def test_banks_are_where_strides_stop_to_matter(meets: int, banks: int | None) -> None:
    times = {s: 0.5 * min(s, meets) for s in probes.STRIDES}
    assert probes.banks_of(times) == banks
    times[1] = times[2]  # too few accesses at once to show the first step
    assert probes.banks_of(times) == banks


# --- the command, and what it leaves ----------------------------------------------------------------------------------


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpu:
    """An H100 that is not there, and a folder of the user's own."""
    h100 = find_spec("cuda", "h100")
    facts = facts_of(h100)
    fake = FakeGpu(facts, truth(facts, h100), 1.7)
    monkeypatch.setenv("ROLLER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(gpu, "current", lambda: None)
    monkeypatch.setattr(default, "facts_of", lambda _: facts)
    monkeypatch.setattr(probe_timer, "measuring", lambda _: fake)
    calibration._kept.cache_clear()
    return fake


@needs_compiler
def test_the_command_measures_and_the_attached_chip_is_remembered(attached: FakeGpu, tmp_path: Path) -> None:
    assert default.default_spec().chip == "h100"
    done = CliRunner().invoke(app, ["specs", "calibrate", "cuda", "--format", "json"])
    assert done.exit_code == 0, done.stderr
    spec = json.loads(done.stdout)["spec"]
    file = tmp_path / "specs" / "cuda" / f"{spec['chip']}.toml"
    assert load_spec(file).model_dump(mode="json") == spec
    assert default.default_spec() == load_spec(file)
    assert default.default_spec().clock_ghz == 1.7
    assert attached.loaded == [probes.buffer_bytes(probes.table(attached.facts, {}))]
    file.write_text("schema_version = 1\n", encoding="utf-8")
    calibration._kept.cache_clear()
    assert default.default_spec().chip == "h100"  # with a warning, and the file left to its owner


@needs_compiler
def test_a_folder_that_cannot_be_written_costs_only_the_memory(
    attached: FakeGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("ROLLER_CONFIG_DIR", str(tmp_path / "file"))
    assert calibration.measure_spec().unit.count == attached.facts.sms
    assert "cannot be kept" in caplog.text


def test_an_implausible_measurement_leaves_no_file(attached: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attached._values = {**attached._values, "dram_read": 1e6}
    monkeypatch.setattr(calibration.compiling, "compiled", lambda *_: (b"cubin", ""))
    done = CliRunner().invoke(app, ["specs", "calibrate", "cuda"])
    assert done.exit_code == 3
    assert "1e+06 for dram_read" in done.stderr
    assert not list(tmp_path.rglob("*.toml"))


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise DeviceUnavailableError("the NVIDIA driver finds no GPU")

    monkeypatch.setattr(gpu, "current", nothing)
    done = CliRunner().invoke(app, ["specs", "calibrate", "cuda"])
    assert done.exit_code == 4
    assert done.stderr.strip().endswith("DeviceUnavailableError: the NVIDIA driver finds no GPU")
    assert default.default_spec().chip == "a100"
