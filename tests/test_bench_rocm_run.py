"""The benchmark on AMD GPUs without one: packages built by the real toolchain, run end to end on a runtime that checks every call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hip import library, why_not
from gpu_stand_in import DEEP, FAULTS, LAST, OTHER, PRODUCT, RELU, at, served, silent, supervised
from hip_stand_in import CHIP, HipGpu, HipLibrary

import roller
from bench import summary
from bench.gpu import build, child, compiling, launcher, package, report, run, timing
from bench.gpu.driver import DriverError
from bench.gpu.expressions import expression
from bench.gpu.operators import Operator
from bench.gpu.package import Package, PackageError
from bench.gpu.worker import Settings, Worker
from bench.rocm import driver
from bench.rocm.driver import Driver
from bench.rocm.platform import PLATFORM
from roller import ops
from roller.catalog import list_specs
from roller_rocm import hip

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
SUM = Operator("long sum", "paper119 reduce", "reduce_sum", "float32", {"x": (1 << 18,)}, {"axes": [0]})
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[HipGpu]:
    """A GPU like an MI210; afterwards nothing wrong was asked of the runtime, and nothing is loaded."""
    monkeypatch.setattr(timing, "FLUSH_LEAST", 1 << 12)
    monkeypatch.setattr(timing, "FLUSH_TIMES_L2", 0)
    made = HipGpu(monkeypatch)
    yield made
    assert not made.faults and not made.fake.modules()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of small operators for gfx90a."""
    folder = tmp_path_factory.mktemp("package")
    build.manifest(PLATFORM, folder, [CHIP])
    found = build.build(PLATFORM, folder, CHIP, [RELU, OTHER, LAST, PRODUCT, DEEP], silent)
    assert [e.status for e in found] == ["ok"] * 5, [e.reason for e in found]
    return folder


def of(folder: Path, op: Operator) -> package.Entry:
    """What a package has of an operator."""
    (found,) = [entry for entry in Package(folder, PLATFORM).entries(CHIP) if entry.operator.id == op.id]
    return found


# --- the package -----------------------------------------------------------------------------------------------------


def test_a_package_says_what_tells_chips_apart_and_leaves_the_assembly_here(built: Path) -> None:
    about = Package(built, PLATFORM).manifest
    assert (about["device"], about["schema"]) == ("rocm", package.SCHEMA) and "ziglang" in about["versions"]
    chip = about["chips"][CHIP]
    assert {**chip, "title": ""} == {
        **{"title": "", "arch": "gfx90a", "units": 104, "local_bytes": 64 << 10},
        **{"memory_bytes": 64 << 30, "cache_bytes": 8 << 20},
    }
    entry = of(built, DEEP)
    assert len(entry.programs) == 10 and all("assembly" not in program["launch"] for program in entry.programs)
    code = Package(built, PLATFORM).binary(entry.programs[0]["binary"])
    assert code[:4] == b"\x7fELF" and code[18] == 224  # EM_AMDGPU
    assert not (built / "calibration").exists()


def test_the_largest_cache_of_a_chip_is_emptied(tmp_path: Path) -> None:
    """Of an MI300X the driver knows 4 MiB a die; behind them lie 256 MiB."""
    build.manifest(PLATFORM, tmp_path, ["mi300x"])
    assert Package(tmp_path, PLATFORM).chips["mi300x"]["cache_bytes"] == 256 << 20
    assert timing.flush_bytes(256 << 20) > 256 << 20


def test_the_kernels_for_the_chip_that_is_most_alike_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shipped chip finds itself, by what the driver counts; a chip of another architecture runs nothing."""
    names = [entry.spec.chip if hasattr(entry, "spec") else entry.path.stem for entry in list_specs("rocm")]
    build.manifest(PLATFORM, tmp_path, names)
    found = Package(tmp_path, PLATFORM)
    assert {"mi210", "mi250x", "rx7900xtx"} <= set(names)
    for chip in names:
        told = HipGpu(monkeypatch, chip).driver().describe()
        assert package.chip_for(found, PLATFORM, told) == chip
    fewer = HipGpu(monkeypatch, "mi210", units=96, compute_units=96).driver().describe()
    assert package.chip_for(found, PLATFORM, fewer) == "mi210"
    pairs = HipGpu(monkeypatch, "rx7900xtx", units=48, compute_units=96).driver().describe()
    assert package.chip_for(found, PLATFORM, pairs) == "rx7900xtx"
    with pytest.raises(PackageError, match=r"no kernels for gfx90a: the package has mi300x \(gfx942\)$"):
        package.chip_for(found, PLATFORM, fewer, "mi300x")


# --- the runtime -----------------------------------------------------------------------------------------------------


def test_refusals_have_names_and_are_forgotten(gpu: HipGpu, built: Path) -> None:
    found, code = gpu.driver(), Package(built, PLATFORM).binary(of(built, RELU).programs[0]["binary"])
    with pytest.raises(DriverError, match=r"hipModuleLoadData: hipErrorInvalidImage \(200\): said by the fake"):
        found.load(b"\x7fELF" + bytes(100))
    assert gpu.fake.calls[-1] == "hipGetLastError"  # else torch takes it for its own
    gpu.becomes("mi300x")
    with pytest.raises(DriverError, match="hipErrorNoBinaryForGpu"):
        found.load(code)
    gpu.becomes(CHIP)
    module = found.load(code)
    with pytest.raises(DriverError, match="hipErrorNotFound"):
        found.named(module, "nobody")
    found.unload(module)


@pytest.mark.parametrize(
    ("kernel", "chip", "compiled_for", "words"),
    [
        ({"threads": 512}, {}, {"lanes": 256}, "it wants 512 threads a block, of 256"),
        ({"threads": 512}, {"lanes": 128}, {}, "it wants 512 threads a block, of 128"),
        ({"blocks": 1000}, {"blocks": 999}, {}, "it wants 1000 blocks, of 999"),
        ({"blocks": 1 << 24, "threads": 256}, {}, {}, "it wants 4294967296 threads together, of 4294967295"),
        ({}, {}, {"local": 65537}, "it wants 65537 bytes of local memory a block, of 65536"),
        ({"shared_bytes": 70000}, {}, {}, "it wants 70000 bytes of local memory"),
        ({"blocks": 0}, {}, {}, "0 blocks of 64 threads"),
    ],
)
def test_launches_past_limits_are_refused_before_they_start(
    gpu: HipGpu, built: Path, kernel: dict[str, int], chip: dict[str, int], compiled_for: dict[str, int], words: str
) -> None:
    """Some of these HIP would take, and compute something else."""
    gpu.becomes(CHIP, **chip)
    entry = of(built, RELU)
    code, launch = Package(built, PLATFORM).binary(entry.programs[0]["binary"]), entry.programs[0]["launch"]
    described = {**launch["kernels"][0], "blocks": 1, "threads": 64, "shared_bytes": 0, **kernel}
    gpu.knows(code, described["name"], 2, lambda *_: 0, **compiled_for)
    with pytest.raises(DriverError, match=words):
        launcher.Program(gpu.driver(), code, {**launch, "kernels": [described]}, {"x": 16, launch["output"]: 32})


def test_kernels_run_in_order_with_the_arrays_between_them_and_constants(gpu: HipGpu, tmp_path: Path) -> None:
    """A sum of two kernels, and a product one of whose operands the package holds."""
    seen: list[tuple[str, list[int]]] = []
    kernel, store = roller.compile(expression(SUM), device=f"rocm:{CHIP}"), HipLibrary(gpu)
    assert len(kernel.artifact.launch["kernels"]) == 2
    for described in kernel.artifact.launch["kernels"]:
        name = described["name"]
        gpu.knows(kernel.artifact.data, name, 2, lambda places, *_, name=name: seen.append((name, places)) or 0)  # type: ignore[misc]
    launch = compiling.built(kernel.artifact, kernel.candidates[0])[0]["launch"]
    rooms = {name: store.room(64) for name in ("x", launch["output"], launch["workspaces"][0]["name"])}
    places = {name: store.address(room) for name, room in rooms.items()}
    made = launcher.Program(gpu.driver(), kernel.artifact.data, launch, places)
    made.start(0)
    gpu.driver().synchronize(0)
    assert seen == [(k["name"], [places[n] for n in k["arguments"]]) for k in launch["kernels"]]
    made.close()

    values = np.arange(20, dtype=np.float32).reshape(5, 4) % 3 - 1
    a, b = ops.tensor((7, 5), name="a"), ops.tensor((5, 4), name="b")
    kernel = roller.compile(ops.matmul(a, b), device=f"rocm:{CHIP}", constants={"b": values})
    program = build.kept(tmp_path, *compiling.built(kernel.artifact, kernel.candidates[0]))
    build.manifest(PLATFORM, tmp_path, [CHIP])
    gpu.emulates(kernel.artifact, (7, 4), "float32")

    class Fixed(HipLibrary):
        def _computed(self, op: Operator, t: Any) -> Any:
            return t["a"] @ (np.abs(values) if (t["a"] >= 0).all() else values)

    op = Operator("fixed operand", "paper119 matmul", "matmul", "float32", {"a": (7, 5)})
    object.__setattr__(op, "shapes", {"a": (7, 5)})
    entry = package.Entry(op, CHIP, "ok", "", "", 1e-6, (program,))
    assert set(program["constants"]) == {"b"} and build.digests(entry) == {program["binary"], *program["constants"].values()}
    package.write_json(package.case_path(tmp_path, CHIP, op.id), asdict(entry))
