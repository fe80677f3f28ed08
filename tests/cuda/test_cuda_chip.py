"""Which chip the attached GPU is taken for; without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import roller
from emulating import needs_compiler, needs_cxx
from fake_gpu import Gpus, why_not
from gpu_runtime import A, B, values
from measuring import facts_of
from roller import ops, verify
from roller.device.chip import load_spec
from roller.errors import DeviceUnavailableError
from roller.target.catalog import dump_spec, list_specs
from roller_cuda.chip import calibration, default, facts
from roller_cuda.runtime import gpu

pytestmark = [needs_compiler, needs_cxx, pytest.mark.skipif(bool(why_not()), reason=why_not())]
SMALL = (64, 3)

CHIPS = [entry.chip for entry in list_specs("cuda")]


@pytest.mark.parametrize("name", CHIPS)
def test_attached_chips_are_known_by_their_attributes(gpus: Gpus, name: str) -> None:
    gpus.become(0, load_spec(f"cuda:{name}"))
    assert default.default_spec().chip == name  # a warning would be an error


def test_what_the_driver_says_is_asked_once_and_for_all(gpus: Gpus) -> None:
    """By the calibration and by the choice of the chip alike."""
    spec = load_spec("cuda:h100")
    gpus.become(1, spec)
    assert facts.facts_of(gpu.gpu(1)) == facts_of(spec, name="NVIDIA Test", memory_bytes=facts_of(spec).memory_bytes >> 20 << 20)


def test_the_threads_own_gpu_is_the_attached_one(gpus: Gpus) -> None:
    gpus.become(1, load_spec("cuda:h100"))
    gpus.current(1)
    assert default.default_spec().chip == "h100"
    gpus.current(-1)
    assert default.default_spec().chip == "a100"


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"MULTIPROCESSOR_COUNT": 98}, r"a100 is the nearest. The GPU has multiprocessors 98 \(spec: 108\)\. "),
        ({"L2_CACHE_SIZE": 1 << 20, "MULTIPROCESSOR_COUNT": 98}, r"multiprocessors 98 .*, L2 bytes 1048576 \(spec: 41943040\)"),
        ({"MEMORY_CLOCK_RATE": 500000, "GLOBAL_MEMORY_BUS_WIDTH": 5120}, r"GB/s 640 "),
        ({"COMPUTE_CAPABILITY_MINOR": 7}, r"compute capability 8.7 \(spec: 8.0\)"),
    ],
)
def test_chips_without_a_spec_get_the_nearest_with_a_warning(gpus: Gpus, attributes: dict[str, int], said: str) -> None:
    known = [load_spec(f"cuda:{name}") for name in ("v100-pcie", "a100", "h100")]
    gpus.become(0, known[1], **attributes)
    with pytest.warns(UserWarning, match=f"{said}.*roller specs calibrate cuda") as told:
        assert default.chosen(facts.facts_of(gpu.gpu(0)), known).chip == "a100"
    assert len(told) == 1
    if "COMPUTE_CAPABILITY_MINOR" not in attributes:  # of all that are shipped another is the nearest to that one
        with pytest.warns(UserWarning, match=said):
            assert default.default_spec().chip == "a100"


def test_a_spec_that_was_measured_here_wins(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it says of rates is not what the driver computes; it is of GPUs just like this one, and of no others."""
    monkeypatch.setenv("ROLLER_CONFIG_DIR", str(tmp_path))
    shipped = load_spec("cuda:a100")
    cache = shipped.levels[1].model_copy(update={"bandwidth_gbps": 1300.0})
    mine = {"levels": (shipped.levels[0], cache, *shipped.levels[2:])}
    name = calibration.chip_name(facts.facts_of(gpu.gpu(0)))
    (tmp_path / "specs" / "cuda").mkdir(parents=True)
    for each in (name, "unlike"):
        text = dump_spec(shipped.model_copy(update={"chip": each, **mine}))
        (tmp_path / "specs" / "cuda" / f"{each}.toml").write_text(text)
    assert default.default_spec().chip == name
    gpus.become(0, load_spec("cuda:a100"), MULTIPROCESSOR_COUNT=104)
    with pytest.warns(UserWarning, match="multiprocessors 104"):
        assert default.default_spec().chip == "a100"
    gpus.become(0, load_spec("cuda:h100"))
    assert default.default_spec().chip == "h100"


def test_chips_of_an_unknown_kind(gpus: Gpus) -> None:
    gpus.become(0, load_spec("cuda:a100"), COMPUTE_CAPABILITY_MAJOR=14)
    with pytest.warns(UserWarning, match=r"compute capability 14\.x: .*cannot run them"):
        built = roller.compile(ops.relu(ops.tensor(SMALL, name="a")), device="cuda", top_k=1)
    with pytest.raises(DeviceUnavailableError, match="sm_140"):
        built(values(SMALL))


def test_attributes_that_the_driver_does_not_tell_are_left_out(gpus: Gpus) -> None:
    gpus.become(0, load_spec("cuda:a100"), MEMORY_CLOCK_RATE=0, CLOCK_RATE=0)
    assert default.default_spec().chip == "a100"


def test_products_are_right_on_the_attached_chip(gpus: Gpus) -> None:
    """From `device="cuda"` to the result."""
    built = roller.compile(ops.matmul(ops.tensor(A, name="a"), ops.tensor(B, name="b")), device="cuda", top_k=1)
    gpus.plan(built.artifact)
    a, b = values(A), values(B, 2)
    verify.check(built.expr, {"a": a, "b": b}, np.asarray(built(a, b)))
