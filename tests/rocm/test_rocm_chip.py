"""Which chip the attached AMD GPU is taken for; without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import roller
from fake_hip import AmdGpus, why_not
from gpu_runtime import SMALL, A, B, values
from roller import ops, verify
from roller.device.chip import load_spec
from roller.errors import DeviceUnavailableError
from roller.target.catalog import list_specs
from roller_rocm.chip import default
from roller_rocm.chip.facts import facts_of
from roller_rocm.runtime import gpu

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
CHIPS = [entry.chip for entry in list_specs("rocm")]


@pytest.mark.parametrize("name", CHIPS)
def test_attached_chips_are_known_by_what_the_driver_counts(amd: AmdGpus, name: str) -> None:
    amd.become(0, load_spec(f"rocm:{name}"))
    assert default.default_spec().chip == name  # a warning would be an error


def test_facts_are_those_of_the_driver(amd: AmdGpus) -> None:
    """Its features are no part of the processor that code objects are for."""
    spec = load_spec("rocm:mi300x")
    amd.become(1, spec, units=152)
    facts = facts_of(gpu.gpu(1))
    assert (facts.name, facts.arch, facts.units, facts.compute_units) == ("AMD Test", "gfx942", 152, 304)
    assert facts.memory_bytes == int(0.98 * spec.outermost.capacity_bytes) and facts.local_bytes == 65536


def test_the_threads_own_gpu_is_the_attached_one(amd: AmdGpus) -> None:
    amd.become(1, load_spec("rocm:mi300x"))
    amd.current(1)
    assert default.default_spec().chip == "mi300x"
    amd.current(0)
    assert default.default_spec().chip == "mi50"


@pytest.mark.parametrize(("units", "compute_units"), [(152, 304), (304, 608), (304, 0)])
def test_units_may_be_pairs_of_compute_units(amd: AmdGpus, units: int, compute_units: int) -> None:
    """A spec counts one or the other, and a driver may tell but one."""
    amd.become(0, load_spec("rocm:mi300x"), units=units, compute_units=compute_units)
    assert default.default_spec().chip == "mi300x"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"units": 38, "compute_units": 38}, r"mi300x is the nearest. The GPU has compute units 38 \(spec: 304\)\. "),
        ({"local_bytes": 160 << 10}, r"local memory bytes 163840 \(spec: 65536\)"),
        ({"memory_bytes": 96 << 30}, r"memory bytes 103079215104 \(spec: 206158430208\)"),
    ],
)
def test_chips_without_a_spec_get_the_nearest_with_a_warning(amd: AmdGpus, changed: dict[str, int], said: str) -> None:
    known = [load_spec(f"rocm:{name}") for name in ("mi50", "mi300x")]
    amd.become(0, known[1], **changed)
    with pytest.warns(UserWarning, match=f"{said}.*tiles are chosen for mi300x: write a spec file") as told:
        assert default.chosen(facts_of(gpu.gpu(0)), known).chip == "mi300x"
    assert len(told) == 1


def test_the_nearest_is_the_one_that_differs_least(amd: AmdGpus) -> None:
    """Of two of an architecture; a chip of another is never taken, however alike."""
    spec = load_spec("rocm:mi300x")
    small = spec.model_copy(update={"chip": "small", "unit": spec.unit.model_copy(update={"count": 76})})
    other = small.model_copy(update={"chip": "other", "options": {**spec.options, "arch": "gfx90a"}})
    for units, name in ((76, "small"), (304, "mi300x")):
        amd.become(0, spec, units=units, compute_units=units)
        assert default.chosen(facts_of(gpu.gpu(0)), [other, spec, small]).chip == name
    amd.become(0, spec, units=80, compute_units=80)
    with pytest.warns(UserWarning, match="small is the nearest"):
        assert default.chosen(facts_of(gpu.gpu(0)), [other, spec, small]).chip == "small"


def test_chips_of_an_unknown_architecture(amd: AmdGpus) -> None:
    amd.become(0, load_spec("rocm:mi50"), arch="gfx1250")
    with pytest.warns(UserWarning, match=r"no shipped chip is gfx1250: write a spec file for AMD Test.*cannot run them"):
        built = roller.compile(ops.relu(ops.tensor(SMALL, name="a")), device="rocm", top_k=1)
    with pytest.raises(DeviceUnavailableError, match="compiled for gfx942, GPU 0 is gfx1250"):
        built(values(SMALL))


def test_products_are_right_on_the_attached_chip(amd: AmdGpus) -> None:
    """From `device="rocm"` to the result."""
    built = roller.compile(ops.matmul(ops.tensor(A, name="a"), ops.tensor(B, name="b")), device="rocm", top_k=1)
    assert built.artifact.spec.chip == "mi50"
    amd.plan(built)
    a, b = values(A), values(B, 2)
    result: Any = built(a, b)
    verify.check(built.expr, {"a": a, "b": b}, np.asarray(result))


def test_local_memory_is_what_a_workgroup_may_have(amd: AmdGpus) -> None:
    """On chips where two compute units share twice as much."""
    spec = load_spec("rocm:mi50")
    double = {"capacity_bytes": 131072, "tile_max_bytes": 65536}
    levels = tuple(level.model_copy(update=double) if level.name == "shared" else level for level in spec.levels)
    amd.become(0, spec, local_bytes=65536)
    assert default.chosen(facts_of(gpu.gpu(0)), [spec.model_copy(update={"levels": levels})]).chip == "mi50"  # without a warning
