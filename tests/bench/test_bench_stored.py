"""Programs that CPUs have run: the model ranks them no worse than before, on no family."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bench.cpu import stored
from bench.engine.beside import HERE
from roller.target.catalog import find_spec

RANK, REGRET = 0.005, 0.01  # of means over some dozen operators; a program that is predicted like another may change places


@pytest.mark.parametrize("path", stored.files(), ids=stored.name_of)
def test_no_family_is_ranked_worse_than_before(path: Path) -> None:
    kept = json.loads(stored.KEPT.read_text())["summary"][stored.name_of(path)]
    now = stored.summary(stored.ranked(stored.read(path), stored.predicted(path, HERE)))
    assert now["mean_spearman"] >= kept["mean_spearman"] - RANK
    assert now["mean_top1_regret"] <= kept["mean_top1_regret"] + REGRET


def test_trees_that_do_not_read_all_of_a_spec_rate_by_the_rest(tmp_path: Path) -> None:
    path, found = tmp_path / "programs-1t.json.gz", stored.read(stored.files()[0])
    found["cases"] = found["cases"][:1]
    level, rated = found["spec"]["levels"][1], []
    for unknown in ({}, {"of_tomorrow": [1, 2]}):
        found["spec"] |= unknown
        level |= unknown
        path.write_bytes(gzip.compress(json.dumps(found).encode()))
        rated.append(stored.predicted(path, HERE))
    assert rated[0] == rated[1] and len(rated[0]) == 1


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path, case = tmp_path / "programs-1t.json.gz", {"case": "sum", "expr": {}, "programs": [{"name": "top 1", "median_s": 1e-3}]}
    stored.write(path, {"threads": 1}, find_spec("cpu", "zen5"), [case])
    first = path.read_bytes()
    assert stored.read(path)["cases"] == [case] and stored.read(path)["spec"]["chip"] == "zen5"
    stored.write(path, {"threads": 1}, find_spec("cpu", "zen5"), [case])
    assert path.read_bytes() == first


def test_regrets_are_those_of_the_predicted_order() -> None:
    programs = [{"median_s": 2.0}, {"median_s": 1.0}, {"median_s": 4.0}]
    (row,) = stored.ranked({"cases": [{"case": "a", "programs": programs}]}, {"a": [0.1, 0.2, 0.3]})
    assert row["top1_regret"] == 1.0 and row["top10_regret"] == 0.0 and row["spearman"] == pytest.approx(0.5)
