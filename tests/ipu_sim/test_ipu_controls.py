"""Negative controls: a manifest with one number changed is refused, or gives other results or another profile."""

from __future__ import annotations

import json

import pytest
from test_ipu_execute import factors
from test_ipu_manifest import at, numbers_in, product

from ipu_manifests import bow
from ipu_random import alike
from roller_ipu_sim.manifest.models import ManifestError, from_json, to_json
from roller_ipu_sim.simulator.execute import execute

TEXT = to_json(product())
INPUTS = factors(24, 64, 64)
# Two sends of operands, the product, a send of partial sums, their addition, and where a part of each tensor lies.
PARTS = (
    *("steps.0.exchange.0", "steps.0.exchange.1", "steps.1.compute.0", "steps.2.exchange.1", "steps.3.compute.0"),
    *(f"tensors.{n}.placements.1.{name}" for n in (0, 1, 2) for name in ("tile", "offset", "start", "first", "count")),
)


def is_harmless(path: str) -> bool:
    """True for the step of a range of tiles that has one tile."""
    container, key = at(json.loads(TEXT), path)
    return ".tiles." in path and key == 2 and container[1] == 1


PATHS = [path for path in numbers_in(json.loads(TEXT)) if path.startswith(PARTS) and not is_harmless(path)]


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("path", PATHS)
def test_one_number_changed_is_refused_or_shows(path: str, by: int) -> None:
    data = json.loads(TEXT)
    container, key = at(data, path)
    container[key] += by
    try:
        found = execute(from_json(json.dumps(data)), bow(), INPUTS)
    except ManifestError:
        return
    right = execute(from_json(TEXT), bow(), INPUTS)
    same = alike(found.outputs["out"], right.outputs["out"])
    assert not same or found.profile.to_dict() != right.profile.to_dict()


def test_the_controls_reach_every_kind_of_number() -> None:
    assert len(PATHS) > 70
    kinds = {path.rsplit(".", 1)[-1] for path in PATHS} | {path.split(".")[-2] for path in PATHS}
    assert {
        "offset",
        "tile",
        "extent",
        "a",
        "w",
        "out",
        "shape",
        "strides",
        "to_strides",
        "step",
        "partials",
        "start",
        "first",
    } <= kinds
