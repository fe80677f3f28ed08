"""Profiles of simulated IPUs: what they add up to, and how they are told."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from ipu_manifests import Draft, Product, bow, every, ref, run
from roller_ipu_sim.chip.machine import machine
from roller_ipu_sim.manifest.models import Fill, Manifest, VertexGroup
from roller_ipu_sim.simulator import report
from roller_ipu_sim.simulator.counting import profiled
from roller_ipu_sim.simulator.profile import KINDS, Profile, ranges

MACHINE = machine(bow())


def profile_of(manifest: Manifest) -> Profile:
    return profiled(manifest, MACHINE)


def uneven() -> Manifest:
    """Two tiles that fill unlike much, then one sends; names that must not become markup."""
    draft = Draft(tiles=3, last=1)
    draft.buffer("x", "float32", 4000)
    draft.buffer("y", "float32", 8, tiles=every(1, 2))
    groups = [VertexGroup(tiles=every(1, t), vertex=Fill(to=ref("x"), elements=n, value=0)) for t, n in ((0, 4000), (1, 400))]
    draft.compute("fill <b>&", *groups)
    draft.exchange("send", run(0, ("x", 0), ("y", 0), 8, every(1, 2)))
    return draft.done()


def test_kinds_and_supersteps_add_up() -> None:
    for manifest in (uneven(), Product(24, 64, 64, 1, 2, 2).manifest()):
        profile = profile_of(manifest)
        assert set(profile.by_kind) == set(KINDS)
        assert sum(profile.by_kind.values()) == profile.cycles == sum(step.cycles for step in profile.supersteps)
        for step in profile.supersteps:
            assert sum(step.parts.values()) == step.cycles == step.tile_cycles[step.slowest] == step.tile_cycles.max()
        assert profile.seconds == profile.cycles / 1.85e9


def test_balance_is_mean_over_slowest() -> None:
    profile = profile_of(uneven())
    filled = profile.supersteps[0].tile_cycles
    assert profile.balance == pytest.approx(filled.sum() / 3 / filled.max())
    assert filled[2] == 0 and profile.supersteps[0].slowest == 0
    assert profile.memory.tolist() == [16000, 16000, 16032]


def test_ranges_of_equal_tiles() -> None:
    assert ranges(np.array([5, 5, 7, 5])) == [[0, 2, 5], [2, 1, 7], [3, 1, 5]]
    assert ranges(np.array([], dtype=np.int64)) == []


def test_as_json() -> None:
    data = json.loads(json.dumps(profile_of(uneven()).to_dict()))
    assert data["simulated_cycles"] == sum(step["simulated_cycles"] for step in data["supersteps"])
    assert data["memory"]["live_bytes"] == [[0, 2, 16000], [2, 1, 16032]]
    assert data["supersteps"][1]["words_out"] == [[0, 1, 8], [1, 2, 0]]
    assert "words_out" not in data["supersteps"][0]


def test_as_text() -> None:
    profile = profile_of(uneven())
    said = report.text(profile)
    assert f"{profile.cycles:,} simulated cycles in 2 supersteps" in said
    assert "fill <b>&" in said and f"{profile.supersteps[1].cycles:,}" in said
    assert "no IPU was used" in said


def test_as_a_page() -> None:
    """Well-formed, self-contained, every superstep in the timeline, and bars that fill it."""
    profile = profile_of(uneven())
    page = report.html(profile)
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    root = ElementTree.fromstring(page)
    timeline, memory = root.iter("{http://www.w3.org/2000/svg}svg")
    bars = [bar for bar in timeline.iter("{http://www.w3.org/2000/svg}rect") if bar.get("fill") != "#777"]
    titles = ["".join(bar.itertext()) for bar in bars]
    assert len(bars) == sum(len(step.parts) for step in profile.supersteps)
    assert titles[0].startswith("0 fill <b>&:") and all("simulated cycles" in title for title in titles)
    assert sum(float(bar.get("width", 0)) for bar in bars) == pytest.approx(960, abs=0.1)
    said = "".join(memory.itertext())
    assert "2 tiles: 16,000 bytes" in said and "1 tiles: 16,032 bytes" in said
    assert "Simulated, not measured" in page


def test_many_supersteps_are_summed_up() -> None:
    draft = Draft(tiles=1, last=99)
    draft.buffer("x", "float32", 100)
    for number in range(100):
        fill = Fill(to=ref("x"), elements=1, value=0)
        draft.compute(f"fill {number}", VertexGroup(tiles=every(1), vertex=fill))
        draft.exchange(f"nothing {number}")
    profile = profile_of(draft.done())
    assert len(profile.supersteps) == 200
    assert "160 shorter ones" in report.text(profile) and report.text(profile).count("\n") < 70


def test_a_program_without_steps() -> None:
    draft = Draft(tiles=2)
    profile = profile_of(draft.done())
    assert profile.cycles == 0 and profile.balance == 1.0
    assert "0 simulated cycles" in report.text(profile)
    ElementTree.fromstring(report.html(profile))
