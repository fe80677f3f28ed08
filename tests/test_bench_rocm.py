"""What the benchmarks about AMD GPUs compute without one: the original's tiles, correlations, and how two choices differ."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bench import paper_fidelity, rocm_paper, rocm_policy, targets
from bench.harness import RESULTS
from bench.paper_ops import DATA
from bench.rocm_policy import MI50, V100, Choice, candidates
from roller.catalog import find_spec


def products() -> dict[str, tuple[int, int, int]]:
    with (DATA / "ops119.csv").open(newline="", encoding="utf-8") as file:
        return {r["id"]: (int(r["M"]), int(r["N"]), int(r["K"])) for r in csv.DictReader(file) if r["id"][0] in "MC"}


def test_the_policy_gives_the_tiles_that_the_originals_own_code_gave() -> None:
    """All 51 of a V100: products bound by arithmetic, thin ones, and those whose blocks are made smaller."""
    known = {o.id: (o.block, o.thread[:2]) for o in paper_fidelity.originals() if o.id[0] in "MC"}
    assert len(known) == 51
    for name, extents in products().items():
        first = candidates(*extents, V100)[0]
        assert (first.block, first.lane) == known[name], name


def test_the_ten_of_a_large_product_are_those_that_were_known() -> None:
    found = candidates(65536, 1024, 4096, V100)
    assert found[:3] == [Choice((128, 64, 8), (8, 4)), Choice((128, 128, 8), (8, 4)), Choice((128, 128, 32), (8, 4))]
    assert len(found) == len(set(found)) == rocm_policy.WANTED


@pytest.mark.parametrize("name", ["M0", "M1", "M4", "C9", "C17", "C33"])
def test_what_the_policy_chooses_keeps_the_chips_limits(name: str) -> None:
    rows, columns, depth = rocm_paper.sizes()[name]
    for choice in candidates(rows, columns, depth, MI50):
        lanes = rocm_policy.lanes(choice.block, choice.lane)
        assert lanes % (4 * MI50.group) == 0 and lanes <= MI50.lanes
        assert rocm_policy.registers(choice.lane) <= MI50.lane_registers
        assert rocm_policy.registers(choice.lane) * lanes <= MI50.block_registers
        assert 4 * sum(choice.block[:2]) * choice.block[2] < MI50.shared_bytes
        assert -(-rows // choice.block[0]) * -(-columns // choice.block[1]) >= MI50.units


def test_the_papers_kernels_had_more_lanes_than_the_toolchain_takes_here() -> None:
    shipped, then = find_spec("rocm", "mi50"), rocm_paper.spec()
    assert then.unit.lanes_max == 1024 > shipped.unit.lanes_max
    assert then.levels == shipped.levels and then.atoms == shipped.atoms


def test_correlations_are_of_the_group_they_are_named_after() -> None:
    def case(name: str, predicted: float, measured: float) -> dict[str, object]:
        ends = {
            f"{side}_efficiency{s}": e for side, e in (("predicted", predicted), ("measured", measured)) for s in ("", "_of_ten")
        }
        return {"case": name, "status": "ok", "predicted_s": 1 / predicted, "measured_s": 1 / measured, **ends}

    rows = [
        case("M0", 0.2, 0.1),
        case("M1", 0.8, 0.4),
        case("C0", 0.3, 0.6),
        case("C1", 0.6, 0.3),
        {"case": "C2", "status": "left out"},
    ]
    found = rocm_paper.summary(rows)
    assert found["matmul"]["pearson"] == pytest.approx(1.0)
    assert found["conv2d"]["pearson"] == pytest.approx(-1.0)
    assert found["conv2d"]["operators"] == 2 and found["matmul + conv2d"]["operators"] == 4
    assert found["matmul"]["predicted_over_measured"] == pytest.approx(0.5)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("rocm/*.json")), ids=lambda p: p.stem)
def test_committed_reports_say_how_they_were_made(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["command"].startswith(f"python -m bench.{found['benchmark']}") and not found["quick"] and found["versions"]
    assert "No AMD hardware was used" in found["about"]


def test_the_committed_report_of_the_paper_is_of_its_cases_and_meets_its_target() -> None:
    found = json.loads(rocm_paper.FILE.read_text(encoding="utf-8"))
    for name, sums in rocm_paper.summary(found["cases"]).items():
        assert sums == pytest.approx(found["summary"][name], rel=1e-3)
    assert [r["case"] for r in found["cases"]] == list(rocm_paper.sizes())
    assert "missed" not in targets.of_sums("rocm_paper", "matmul + conv2d", found["summary"]["matmul + conv2d"])


def test_a_prediction_made_now_is_the_one_in_the_report() -> None:
    """A change of the model or of the spec must be followed by a new report."""
    held = {r["case"]: r for r in json.loads(rocm_paper.FILE.read_text(encoding="utf-8"))["cases"]}
    spec, sizes = rocm_paper.spec(), rocm_paper.sizes()
    for operator in rocm_paper.other_operators():
        if operator.device == "MI50" and operator.id in ("M4", "C9"):
            first = candidates(*sizes[operator.id], MI50)[0]
            assert rocm_paper.predicted(operator, first, spec) == pytest.approx(held[operator.id]["predicted_s"], rel=1e-3)
