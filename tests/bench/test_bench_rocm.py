"""What the benchmarks about AMD GPUs compute without one: the original's tiles, correlations, and how two choices differ."""

from __future__ import annotations

import csv
import json
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from bench.common import targets
from bench.common.harness import RESULTS
from bench.common.paper_ops import DATA
from bench.engine import paper_fidelity
from bench.rocm import compiled, origami, origami_page, origami_peer, paper, policy
from bench.rocm.origami import Mine
from bench.rocm.policy import MI50, V100, Choice, candidates
from roller.errors import ConstructionError
from roller.target.catalog import find_spec


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
    assert len(found) == len(set(found)) == policy.WANTED


@pytest.mark.parametrize("name", ["M0", "M1", "M4", "C9", "C17", "C33"])
def test_what_the_policy_chooses_keeps_the_chips_limits(name: str) -> None:
    rows, columns, depth = paper.sizes()[name]
    for choice in candidates(rows, columns, depth, MI50):
        lanes = policy.lanes(choice.block, choice.lane)
        assert lanes % (4 * MI50.group) == 0 and lanes <= MI50.lanes
        assert policy.registers(choice.lane) <= MI50.lane_registers
        assert policy.registers(choice.lane) * lanes <= MI50.block_registers
        assert 4 * sum(choice.block[:2]) * choice.block[2] < MI50.shared_bytes
        assert -(-rows // choice.block[0]) * -(-columns // choice.block[1]) >= MI50.units


def test_the_papers_kernels_had_more_lanes_than_the_toolchain_takes_here() -> None:
    shipped, then = find_spec("rocm", "mi50"), paper.spec()
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
    found = paper.summary(rows)
    assert found["matmul"]["pearson"] == pytest.approx(1.0)
    assert found["conv2d"]["pearson"] == pytest.approx(-1.0)
    assert found["conv2d"]["operators"] == 2 and found["matmul + conv2d"]["operators"] == 4
    assert found["matmul"]["predicted_over_measured"] == pytest.approx(0.5)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("rocm/*.json")), ids=lambda p: p.stem)
def test_committed_reports_say_how_they_were_made(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert util.find_spec(found["command"].split()[2]) and not found["quick"] and found["versions"]
    assert "No AMD hardware was used" in found["about"]


def test_the_committed_report_of_the_paper_is_of_its_cases_and_meets_its_target() -> None:
    found = json.loads(paper.FILE.read_text(encoding="utf-8"))
    for name, sums in paper.summary(found["cases"]).items():
        assert sums == pytest.approx(found["summary"][name], rel=1e-3)
    assert [r["case"] for r in found["cases"]] == list(paper.sizes())
    assert "missed" not in targets.of_sums("rocm_paper", "matmul + conv2d", found["summary"]["matmul + conv2d"])


def test_a_prediction_made_now_is_the_one_in_the_report() -> None:
    """A change of the model or of the spec must be followed by a new report."""
    held = {r["case"]: r for r in json.loads(paper.FILE.read_text(encoding="utf-8"))["cases"]}
    spec, sizes = paper.spec(), paper.sizes()
    for operator in paper.other_operators():
        if operator.device == "MI50" and operator.id in ("M4", "C9"):
            first = candidates(*sizes[operator.id], MI50)[0]
            assert paper.predicted(operator, first, spec) == pytest.approx(held[operator.id]["predicted_s"], rel=1e-3)


# The paper's operators, compiled and emulated


def test_conflicts_of_reads_and_of_writes_are_counted_apart() -> None:
    both, clean = {"reads": [4, 4], "writes": [2, 3]}, {"reads": [0, 0], "writes": [2, 2]}
    loops = {"a": both, "b": clean, "c": {"reads": [4, 5], "writes": [0, 0]}}
    kernel = {"threads": 512, "vgprs": 100, "predicted_registers": 90, "resident_waves": 2, "predicted_waves": 3}
    row = {"case": "M0", "status": "ok", "compile_s": 1.0, "kernels": [kernel], "emulator": {"status": "right", "loops": loops}}
    failed = {"case": "M1", "status": "failed", "reason": "no", "emulator": {"status": "failed"}}
    counted = compiled.summary([row, failed])
    assert (counted["hot_loops_that_read_local_memory"], counted["hot_loops_with_conflicts_of_reads"]) == (2, 1)
    assert (counted["hot_loops_that_write_local_memory"], counted["hot_loops_with_conflicts_of_writes"]) == (2, 1)
    assert (counted["compiled"], counted["workgroups_too_large"], counted["fewer_waves_than_predicted"]) == (1, 1, 1)
    assert counted["median_registers_error"] == pytest.approx(0.1)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("rocm/compile-*.json")), ids=lambda p: p.stem)
def test_committed_sums_are_those_of_their_rows(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    sums = compiled.summary(found["cases"])
    assert found["summary"] == {k: pytest.approx(v, rel=1e-3) if isinstance(v, float) else v for k, v in sums.items()}
    assert [row["case"] for row in found["cases"]] == [case.id for case in compiled.paper_cases()]


# Beside Origami


def test_products_are_the_same_every_time_and_of_every_kind() -> None:
    found = origami.products()
    assert found == origami.products() and len(set(found)) == len(found) >= 50
    assert all(extent > 0 for product in found for extent in product)
    assert any(batch > 1 for batch, *_ in found) and any(m % 8 for _, m, *_ in found) and any(m == n == k for _, m, n, k in found)


def test_differences_are_named_by_what_can_be_measured() -> None:
    def side(tile: list[int], split: int = 1, residents: int = 1, waves: float = 1.0) -> dict[str, Any]:
        return {"tile": tile, "split": split, "residents": residents, "waves": waves}

    product = (1, 4096, 4096, 4096)
    why = origami.why
    assert why(product, side([128, 256, 64]), side([256, 128, 64])) == ["same tile, turned"]
    assert why(product, side([160, 256, 32], residents=2), side([128, 128, 64], 4, 1, 0.5)) == [
        "our tile is larger",
        "our tile is no power of two, all of theirs are",
        "only they cut the reduction",
        "their step is deeper",
        "more of our tiles on a unit",
        "our last wave is fuller",
    ]
    assert why((1, 100, 64, 64), side([100, 64, 64]), side([128, 64, 64])) == ["as large a tile of another form"]  # the whole of it


def test_workgroups_of_a_unit_count_with_the_batch() -> None:
    assert origami.waves((8, 256, 256, 64), (128, 64, 64), 2, 104) == pytest.approx(8 * 2 * 4 * 2 / 104)


def test_the_peer_is_told_how_many_workgroups_have_room() -> None:
    assert origami_peer.occupancy([256, 256, 32], 2, 65536) == 1  # 256 registers of results
    assert origami_peer.occupancy([128, 128, 64], 2, 65536) == 2  # 32 KiB
    assert origami_peer.occupancy([64, 64, 16], 2, 65536) == 4
    assert origami_peer.occupancy([256, 256, 256], 4, 65536) == 1  # too large: for it to refuse


@pytest.mark.parametrize("product", [(1, 512, 512, 512), (4, 256, 128, 256)])
def test_our_side_takes_matrix_instructions_and_rates_the_others_tile(product: tuple[int, int, int, int]) -> None:
    mine = origami.ours(product, "float16", "mi210")
    assert "mfma" in mine.about and 0 < mine.seconds < 1e-3
    assert 0.9 * mine.seconds < origami.of_tile(product, "float16", "mi210", (64, 64, 64)) < 1e-3
    with pytest.raises(ConstructionError, match="has no program"):
        origami.of_tile(product, "float16", "mi210", (512, 512, 512))


def test_a_row_says_what_both_sides_chose() -> None:
    mine = Mine((64, 64, 64), 1, 2, 2e-5, "compute", "a program")
    answer = {
        "tile": [128, 64, 64],
        "split": 2,
        "residents": 2,
        "instruction": [16, 16, 16],
        "seconds": 1e-5,
        "seconds_of_other": 1.5e-5,
    }
    found = origami.row((1, 512, 512, 512), "float16", "mi210", mine, answer)
    assert found["ratio"] == 2.0 and found["ratio_without_launch"] == pytest.approx(1.2) and found["our_tile_by_their_model"] == 1.5
    assert found["ours"]["waves"] == pytest.approx(64 / 104) and found["theirs"]["waves"] == pytest.approx(64 / 104)
    asked = origami.asked("mi300x", [((1, 512, 512, 512), "float16", mine)])
    assert (asked["arch"], asked["units"], asked["cache_bytes"]) == ("gfx942", 304, 4 << 20)
    assert asked["products"] == [{"batch": 1, "m": 512, "n": 512, "k": 512, "dtype": "float16", "tile": [64, 64, 64]}]
    sums = origami_page.summary([found, found])
    assert (
        sums["mi210 float16"]["products"] == 2
        and sums["mi210 float16"]["differences"]["only they cut the reduction"]["products"] == 2
    )
    body = {"command": "c", "date": "d", "versions": {}, "summary": sums, "cases": [found]}
    assert "nothing ran" in origami_page.page(body) and "our tile is smaller" in origami_page.page(body)


def test_without_origami_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert origami.main(["--peer", sys.executable]) == 2
    assert "environment of its own" in capsys.readouterr().err


def test_the_committed_comparison_is_of_all_products_and_both_chips() -> None:
    found = json.loads(origami.FILE.read_text(encoding="utf-8"))
    assert len(found["cases"]) == len(origami.products()) * len(origami.CHIPS) * len(origami.DTYPES)
    assert found["summary"].keys() == origami_page.summary(found["cases"]).keys()
    assert found["versions"][origami.PACKAGE]
    assert origami.FILE.with_suffix(".md").read_text(encoding="utf-8") == origami_page.page(found)
