"""The benchmarks' harness: fair turns, right ratios, refusals, and results that others can read. No timing."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from bench import summary
from bench.common import figures, harness, machine, report, targets
from bench.common.harness import Case, Mismatch, Row, Side
from bench.cpu import compile_ten
from bench.gpu import operators
from bench.gpu import report as gpu

GIB = 2**30


def options(**more: object) -> argparse.Namespace:
    made = harness.complete(harness.parser("A benchmark.\n").parse_args([]))
    vars(made).update({"rounds": 4, "sample": 0.0, "threads": 1, "cases": "", "quick": False, **more})
    return made


def side(name: str, value: float = 1.0, log: list[str] | None = None, **more: object) -> Side:
    def call() -> np.ndarray:
        if log is not None:
            log.append(name)
        return np.full((2, 3), value, np.float32)

    return Side(name, call, **more)  # type: ignore[arg-type]


def ticking(step: float = 1.0) -> Callable[[], float]:
    ticks: Iterator[float] = iter(step * n for n in range(1_000_000))
    return lambda: next(ticks)


# Turns


def test_every_side_runs_in_every_round_and_the_order_rotates() -> None:
    log: list[str] = []
    sides = [side(name, log=log) for name in "abc"]
    times, calls, quiet = harness.interleave(sides, options(), ticking())
    turns = [log[i : i + 3] for i in range(len(log) - 12, len(log), 3)]
    assert turns == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert {name: len(taken) for name, taken in times.items()} == dict.fromkeys("abc", 4)
    assert calls == dict.fromkeys("abc", 1)
    assert quiet is None


def test_fast_calls_repeat_until_they_fill_a_sample() -> None:
    log: list[str] = []
    assert harness.once(side("a", log=log).call, options(sample=10.0), ticking(0.5)) == 0.5 and len(log) == 4
    assert harness.calls_for(0.5, options(sample=10.0)) == 20
    assert harness.calls_for(0.5, options(sample=0.1)) == 1


def test_long_calls_are_made_once() -> None:
    log: list[str] = []
    assert harness.once(side("a", log=log).call, options(sample=0.1), ticking(0.5)) == 0.5 and len(log) == 1
    assert harness.timed(side("b").call, 4, ticking()) == 0.25


def test_a_slow_case_gets_fewer_rounds_but_never_too_few() -> None:
    times, _, _ = harness.interleave([side("a")], options(rounds=50, limit=0.0), ticking())
    assert len(times["a"]) == harness.LEAST_ROUNDS


# Ratios


def test_a_ratio_is_the_median_over_rounds() -> None:
    assert harness.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == 2.0


def test_the_best_library_is_the_one_with_the_least_median_and_conversions_are_charged_once() -> None:
    sides = [
        side("roller", ours=True),
        side("roller, packed", ours=True, boundary=False),
        side("slow"),
        side("lucky"),
        side("converted", boundary=False),
    ]
    times = {
        "roller": [2.0, 2.0, 2.0],
        "roller, packed": [1.0, 1.0, 1.0],
        "slow": [4.0, 4.0, 4.0],
        "lucky": [0.1, 3.0, 3.0],
        "converted": [2.5, 2.5, 2.5],
    }
    row = Row("case", "family")
    harness.fill(row, sides, times, dict.fromkeys(times, 1), None)
    assert (row.best, row.ratio) == ("lucky", 1.5)
    assert (row.best_free, row.ratio_free) == ("converted", 2.5)
    assert (row.ours_s, row.best_s) == (2.0, 3.0)


def test_geometric_mean_and_correlations() -> None:
    assert figures.geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(figures.geomean([]))
    assert figures.spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)
    assert figures.spearman([1, 1, 2], [5, 5, 7]) == pytest.approx(1.0)
    assert math.isnan(figures.pearson([1, 1], [1, 2]))


# Results are checked


def test_sides_that_agree_are_kept_and_outputs_are_poisoned_first() -> None:
    out = np.zeros((2, 3), np.float32)
    lazy = Side("lazy", lambda: out, outs=(out,), ours=True)
    with pytest.raises(Mismatch, match="lazy is off by nan"):
        harness.checked([lazy, Side("library", lambda: np.zeros((2, 3), np.float32))], 1e-5)
    kept = harness.checked([side("roller", ours=True), side("library")], 1e-5)
    assert [s.name for s in kept] == ["library", "roller"]


def test_a_library_that_refuses_is_left_out_but_we_may_not() -> None:
    def refuse() -> np.ndarray:
        raise RuntimeError("no such kernel")

    kept = harness.checked([side("library"), Side("other", refuse), side("roller", ours=True)], 1e-5)
    assert [s.name for s in kept] == ["library", "roller"]
    with pytest.raises(RuntimeError, match="no such kernel"):
        harness.checked([side("library"), Side("roller", refuse, ours=True)], 1e-5)


@pytest.mark.parametrize(("got", "off"), [(np.ones((3, 2)), math.inf), (np.full((2, 3), 1.5), 0.5)])
def test_disagreement_is_relative_to_the_largest_value(got: np.ndarray, off: float) -> None:
    assert harness.disagreement(got, np.ones((2, 3))) == off


def test_disagreement_of_large_scalar_and_empty_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CHECK_ELEMENTS", 4)
    want = np.arange(12.0).reshape(6, 2)
    assert harness.disagreement(want + (want == 11) * 11, want) == 1.0
    assert harness.disagreement(np.array(3.0), np.array(2.0)) == 0.5
    assert harness.disagreement(np.empty((0, 2)), np.empty((0, 2))) == 0.0


def test_a_wrong_result_is_never_timed() -> None:
    log: list[str] = []
    case = Case("c", "f", lambda _: [side("roller", 2.0, log, ours=True), side("library", 1.0, log)])
    row = harness.run_case(case, options(), GIB)
    assert (row.status, row.ratio) == ("wrong", None)
    assert "roller is off by 1.0e+00" in row.reason
    assert log == ["library", "roller"]


def test_a_case_that_raises_fails_alone() -> None:
    def broken(_: argparse.Namespace) -> list[Side]:
        raise ValueError("no")

    row = harness.run_case(Case("c", "f", broken), options(), GIB)
    assert (row.status, row.reason) == ("failed", "ValueError: no")


def test_what_exceeds_half_of_the_memory_is_listed_as_left_out() -> None:
    def never(_: argparse.Namespace) -> list[Side]:
        raise AssertionError("built")

    row = harness.run_case(Case("c", "f", never, need=GIB), options(), 2 * GIB - 1)
    assert (row.status, row.reason) == ("left out", "needs 1.0 GiB, the machine has 2.0")


# Choosing, settings, results


def test_choosing_cases() -> None:
    found = [Case(name, name[0], lambda _: [], need=need) for need, name in enumerate(["a1", "a2", "a3", "b1"])]
    assert [c.name for c in harness.selected(found, options())] == ["a1", "a2", "a3", "b1"]
    assert [c.name for c in harness.selected(found, options(cases="2,b"))] == ["a2", "b1"]
    assert [c.name for c in harness.selected(found, options(quick=True))] == ["a1", "a2", "b1"]


def test_every_library_gets_the_same_threads_and_its_best_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    plain = harness.environment(3, frozenset({"avx2", "fma"}))
    assert {plain[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL", "ROLLER")} == {"3"}
    assert "OPENBLAS_CORETYPE" not in plain
    wide = harness.environment(1, frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}))
    assert wide["OPENBLAS_CORETYPE"] == "SkylakeX"


@pytest.mark.parametrize("flags", [frozenset({"avx2"}), frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})])
def test_a_callers_settings_hold_no_library_back(monkeypatch: pytest.MonkeyPatch, flags: frozenset[str]) -> None:
    class Restarted(Exception):
        pass

    def execve(_program: str, _arguments: list[str], environment: dict[str, str]) -> None:
        raise Restarted(environment)

    for name, value in {**harness.environment(1, flags), "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(harness, "cpu_flags", lambda: flags)
    monkeypatch.setattr(harness.os, "execve", execve)
    monkeypatch.setattr(sys, "argv", ["bench", "--threads", "1"])
    with pytest.raises(Restarted) as found:
        harness.start("a benchmark")
    (environment,) = found.value.args
    assert "OPENBLAS_L2_SIZE" not in environment
    assert environment.get("OPENBLAS_CORETYPE") == ("SkylakeX" if "avx512f" in flags else None)


def test_results_say_where_they_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results" / "x.json"
    cases = [
        Case("good", "one", lambda _: [side("library"), side("roller", ours=True, about={"program": "p"})], flops=8.0),
        Case("bad", "two", lambda _: [side("library"), side("roller", 2.0, ours=True)]),
    ]
    assert report.run("x", cases, options(out=path)) == 1
    told = capsys.readouterr().out
    assert "good" in told
    assert "wrong: roller is off" in told
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]
    assert found["schema"] == report.SCHEMA
    for key in ("benchmark", "date", "command", "threads", "clock", "quick", "device", "versions", "summary", "cases"):
        assert key in found
    assert {"cpu", "cores", "features", "memory_gib"} <= set(found["device"])
    assert {"python", "numpy", "roller-compiler"} <= set(found["versions"])
    good, bad = found["cases"]
    assert (good["status"], bad["status"]) == ("ok", "wrong")
    assert len(good["sides"]["roller"]["rounds_s"]) == 4
    assert good["sides"]["roller"]["program"] == "p"
    assert found["summary"]["one"]["worst_case"] == "good"
    assert found["summary"]["two"] == {
        "cases": 1, "timed": 0, "geomean": None, "geomean_free": None, "worst": None, "worst_case": None,
    }  # fmt: skip


def test_a_smoke_test_writes_nothing_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert report.write("x", {}, options(quick=True, out=None)) is None
    assert report.write("x", {}, options(threads=2, out=None)) == tmp_path / machine.folder(machine.device()) / "x-2t.json"


def test_an_interrupted_run_leaves_the_results_before_it(tmp_path: Path) -> None:
    def interrupted(_: argparse.Namespace) -> list[Side]:
        raise KeyboardInterrupt

    kept = tmp_path / "x.json"
    kept.write_text("before", encoding="utf-8")
    cases = [Case("good", "one", lambda _: [side("numpy")]), Case("bad", "one", interrupted)]
    with pytest.raises(KeyboardInterrupt):
        report.run("x", cases, options(out=kept))
    assert kept.read_text(encoding="utf-8") == "before"


def test_numbers_in_results_are_short() -> None:
    text = figures.compact({"a": [1, 2], "b": 0.0001234567891, "c": {"d": ["1.23456789  [0]"]}})
    assert '"a": [1, 2],' in text
    assert json.loads(text) == {"a": [1, 2], "b": 0.000123457, "c": {"d": ["1.23456789  [0]"]}}


def test_this_machine_is_described() -> None:
    assert machine.memory_bytes() > 0
    assert machine.device()["cores"] >= 1
    assert machine.cpu_name()


def test_the_summary_shows_families_sums_and_commands() -> None:
    head = {"threads": 2, "command": "python -m bench.cpu.gemm", "date": "2026-01-02T03:04:05+00:00", "versions": {"numpy": "2.0"}}
    device = {"cpu": "Test CPU", "cores": 2, "memory_gib": 23.5}
    family = {"cases": 3, "timed": 2, "geomean": 1.25, "geomean_free": 0.5, "worst": 0.75, "worst_case": "8x8"}
    ratios = {**head, "benchmark": "gemm", "device": device, "summary": {"GEMM": family, "none": {"cases": 1, "geomean": None}}}
    sums = {**head, "benchmark": "fidelity", "device": device, "summary": {"operators": 16, "spearman": {"median": 0.75}}}
    text = summary.document([ratios, sums])
    assert "| gemm: GEMM | 2 | 2 of 3 | 1.25 | 0.50 | 0.75 (8x8) |  | ≥ 1.05 met, worst ≥ 0.9 **missed** |" in text
    assert "| fidelity | 2 | operators | 16 |  |" in text and "| spearman | median 0.75 | median ≥ 0.75 met |" in text
    assert text.count("| `python -m bench.cpu.gemm` | 2026-01-02T03:04 | numpy 2.0 |") == 2
    assert text.count("## Test CPU, 2 cores, 24 GiB\n") == 1


def test_the_summary_has_a_section_for_every_machine() -> None:
    head = {"threads": 1, "command": "python -m bench.x", "date": "2026-01-02T03:04:05+00:00", "versions": {}, "summary": {"a": 1}}
    devices = [
        {"cpu": "CPU (model 1)", "cores": c, "memory_gib": 8.0, "features": ["avx2", *more]}
        for c, more in ((2, []), (4, ["avx512f"]))
    ]
    text = summary.document([{**head, "benchmark": name, "device": device} for device in devices for name in ("x", "y")])
    first, second = text.split("\n## ")[1:]
    assert first.startswith("CPU (model 1), 2 cores, 8 GiB, AVX2\n") and second.startswith(
        "CPU (model 1), 4 cores, 8 GiB, AVX-512\n"
    )
    assert all("| x | 1 | a | 1 |" in part and "| y | 1 | a | 1 |" in part for part in (first, second))


def test_limits_from_above_and_of_groups() -> None:
    assert targets.of_sums("compile_time", "kernel wall", {"median_s": 0.3, "worst_s": 1.6}) == (
        "median_s ≤ 0.3 met, worst_s ≤ 1.5 **missed**"
    )
    assert targets.of_sums("paper_fidelity", "K80", {"matmul + conv2d": {"pearson": 0.59}}).endswith("**missed**")
    assert targets.of_sums("fidelity", "top10_regret", {}) == "worst ≤ 0.03 **missed**"
    assert targets.of_ratios("gemm", "no such family", {}) == targets.of_sums("gemm", "no such sum", 3) == ""


TEN = {"case": "M0 for cpu", "status": "ok", "one_by_one": {"wall_s": 4.0}, "at_once": {"wall_s": 2.5}}


def test_ten_programs_are_told_one_by_one_and_at_once() -> None:
    slower = {"case": "M0 for cuda:a100", "status": "ok", "one_by_one": {"wall_s": 9.0}, "at_once": {"wall_s": 5.0}}
    found = compile_ten.summary([TEN, slower, {"case": "C0 for cpu", "status": "failed", "reason": "CodegenError: no"}])
    assert (found["operators"], found["built"]) == (3, 2)
    assert found["one by one"] == {"median_s": 6.5, "worst_s": 9.0, "worst_case": "M0 for cuda:a100"}
    assert found["at once"] == {"median_s": 3.75, "worst_s": 5.0, "worst_case": "M0 for cuda:a100"}
    assert found["less_time"] == {"median": pytest.approx(1.7)}


def test_every_target_has_its_result() -> None:
    """A family or a sum that is renamed takes its target along."""
    there = {result["benchmark"]: {**result["summary"], **summary.searching(result)} for result in summary.results()}
    unmeasured = [path for folder in ("ipu", "rocm") for path in harness.RESULTS.glob(f"{folder}/*.json")]
    simulated = [json.loads(path.read_text(encoding="utf-8")) for path in unmeasured]  # summary leaves them out
    there |= {result["benchmark"]: result["summary"] for result in simulated}
    there["cuda"] = dict.fromkeys([*operators.TIERS, *gpu.GROUPS, *gpu.fidelity([])])  # known without a GPU's results
    for wanted in (targets.RATIOS, targets.LIMITS):
        for benchmark, keys in wanted.items():
            assert set(keys) <= set(there[benchmark])


def test_a_search_is_compared_by_its_time() -> None:
    sides = {"search": {"search_s": 200.0}, "roller": {"compile_s": 0.5}}
    slower = {"search": {"search_s": 90.0}, "roller": {"compile_s": 1.0}}
    found = {"cases": [{"case": "a", "sides": sides}, {"case": "b", "sides": slower}, {"case": "c", "sides": {"roller": {}}}]}
    assert summary.searching(found)["less_time"] == {
        "geomean_times": pytest.approx(190, rel=0.01),
        "worst_times": 90.0,
        "worst_case": "b",
    }
    assert summary.searching({"cases": found["cases"][2:]}) == {}


def test_the_highest_rate_bounds_what_counts_operations() -> None:
    """10 operations in 2 s and in 1 s, where a library takes 0.5 s for 10: both could take 0.5 s; what moves bytes stays."""

    def case(name: str, ours: float, theirs: float, flops: float = 10.0) -> dict[str, object]:
        sides = {"library": {"median_s": theirs}, "roller": {"median_s": ours}}
        return {"case": name, "family": name, "ratio": theirs / ours, "flops": flops, "ours_s": ours, "sides": sides}

    found = {"cases": [case("a", 2.0, 1.0), case("b", 1.0, 0.5), case("c", 1.0, 3.0, flops=0.0)]}
    assert summary.fastest_everywhere(found, "a") == pytest.approx(0.5 * 4)
    assert summary.fastest_everywhere(found, "all") == pytest.approx((2 * 1 * 3) ** (1 / 3))
    assert summary.fastest_everywhere(found, "c") is None


def test_committed_results_say_how_they_were_made() -> None:
    found = summary.results()
    assert found, "no results are committed"
    for result in found:
        assert util.find_spec(result["command"].split()[2]) and not result["quick"]
        on_gpu = "gpu" in result["device"]
        assert result["schema"] == (gpu.SCHEMA if on_gpu else report.SCHEMA)
        assert result["device"]["gpu" if on_gpu else "cpu"] and result["versions"]["apache-tvm"]
