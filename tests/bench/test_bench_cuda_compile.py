"""The reports about CUDA kernels that need no GPU: what they count, how small operators are made, how choices are compared."""

from __future__ import annotations

import json
import math
from importlib import util
from pathlib import Path

import pytest

from bench import summary
from bench.common import figures, survey_cases
from bench.common.harness import RESULTS
from bench.cuda import compiled, cycles
from bench.engine import heuristics
from roller import ops
from roller_cuda.toolchain import compiling, disassembly

needs_tools = pytest.mark.skipif(
    bool(compiling.problems()) or disassembly.tool() is None, reason="; ".join([*compiling.problems(), disassembly.INSTALL])
)


def test_all_operators_of_the_paper_are_there_and_small_ones_are_small() -> None:
    cases = survey_cases.cases()
    assert len(cases) == 119 + 4 and len({c.id for c in cases}) == len(cases)
    for case in cases:
        full, small = ops.expression(case.full()), ops.expression(case.small())
        assert [len(t.shape) for t in full.inputs] == [len(t.shape) for t in small.inputs]
        assert small.flops <= 2e7 and all(
            s <= f for t, u in zip(full.inputs, small.inputs, strict=True) for f, s in zip(t.shape, u.shape, strict=True)
        )
    assert ops.expression(cases[-1].full()).inputs[0].dtype == "float16"


def test_what_divided_an_extent_still_does() -> None:
    row = {"kind": "matmul", "M": "65536", "N": "1000", "K": "30522", "batch": ""}
    assert survey_cases.small(row) == {"kind": "matmul", "M": "64", "N": "40", "K": "58", "batch": ""}


def result(**changes: object) -> dict[str, object]:
    kernel = {"hot": {"instructions": 10, "divisions": 1}}
    row = {"case": "M0", "status": "ok", "compile_s": 1.0, "passed_over": 0, "matrix": False, "kernels": [kernel]}
    return {**row, "emulator": {"status": "right", "small": "x"}, **changes}


def test_the_summary_counts_failures_spills_and_slow_compilations() -> None:
    failed = {"case": "M1", "status": "failed", "reason": "no", "emulator": {"status": "failed", "small": "y"}}
    counted = compiled.summary([result(), result(status="spills", compile_s=4.0, matrix=True, passed_over=2), failed])
    wanted = {
        "operators": 3,
        "compiled": 2,
        "with_spills": 1,
        "chosen_after_spills": 1,
        "right_on_the_emulator": 2,
        "on_tensor_cores": 1,
    }
    assert {name: counted[name] for name in wanted} == wanted
    assert counted["slower_than_3_s"] == 1 and counted["slowest_compile_s"] == 4.0 and counted["hot_with_divisions"] == 2


@needs_tools
def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the file has are kept as they are, others are added."""
    monkeypatch.setattr("sys.argv", ["cuda_compile", "--chips", "a100", "--only", "P0,P7", "--out", str(tmp_path), "--limit", "1"])
    assert compiled.main() == 0
    path = tmp_path / "a100.json"
    first = json.loads(path.read_text())
    assert [r["case"] for r in first["cases"]] == ["P0"] and first["cases"][0]["emulator"]["status"] == "right"
    first["cases"][0]["compile_s"] = 123.0
    path.write_text(json.dumps(first))
    monkeypatch.setattr("sys.argv", ["cuda_compile", "--chips", "a100", "--only", "P0,P7", "--out", str(tmp_path)])
    compiled.main()
    second = json.loads(path.read_text())
    assert [r["case"] for r in second["cases"]] == ["P0", "P7"] and second["cases"][0]["compile_s"] == 123.0
    (kernel,) = second["cases"][1]["kernels"]
    assert kernel["registers"] > 0 and kernel["stack_bytes"] == 0 and kernel["hot"]["instructions"] > 0


@needs_tools
def test_loops_are_walked_told_of_blocks_and_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["cuda_cycles", "--chips", "h100", "--products", "1", "--out", str(tmp_path)])
    assert cycles.main() == 0
    found = json.loads((tmp_path / "h100.json").read_text(encoding="utf-8"))
    large, drawn = found["cases"]
    assert large["case"] == "4096x4096x4096" and large["busy"] != large["busy_untold"]
    assert min(large["busy"], large["busy_untold"]) > 0.8
    assert found["summary"]["products"] == 2 and drawn["case"] == "x".join(map(str, cycles.shapes(1)[1]))


def test_reports_that_time_nothing_stay_out_of_the_table() -> None:
    assert all(found["benchmark"] not in ("cuda_compile", "cuda_cycles", "heuristics") for found in summary.results())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("cuda-*/*.json")), ids=lambda p: p.stem)
def test_committed_reports_say_how_they_were_made(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert util.find_spec(found["command"].split()[2]) and not found["quick"] and found["versions"]
    if found["benchmark"] == "cuda_compile":
        assert found["summary"] == figures.rounded(compiled.summary(found["cases"])) and len(found["cases"]) == 123


def chosen(m: int, n: int, k: int, stages: int = 2, split: int = 1) -> heuristics.Chosen:
    return heuristics.Chosen(m, n, k, stages, split, 1e-5, ())


def test_differences_are_named() -> None:
    why, shape = heuristics.why, (4096, 4096, 4096)
    assert why(chosen(128, 256, 64), chosen(256, 128, 64), shape, 108) == ["same tile, turned"]
    assert why(chosen(64, 64, 64), chosen(128, 128, 32, 4, 2), shape, 108) == [
        "our tile is smaller",
        "only they cut the reduction",
        "our step is deeper",
        "they hold more copies",
    ]
    assert heuristics.waves(chosen(128, 256, 64), shape, 108) == pytest.approx(512 / 108)
    assert "our last wave is fuller" in why(chosen(128, 128, 32), chosen(256, 256, 32), (1664, 1024, 512), 104)


def test_products_are_the_same_every_time_and_enough() -> None:
    found = heuristics.shapes()
    assert found == heuristics.shapes() and len(set(found)) == len(found) >= 100
    assert all(extent > 0 for shape in found for extent in shape)


def test_our_side_is_a_program_that_runs_there() -> None:
    mine = heuristics.ours((512, 512, 512), "float16", "a100")
    assert "mma_m16n8k16_f16" in mine.about and mine.m * mine.n > 64 and 0 < mine.seconds < math.inf
