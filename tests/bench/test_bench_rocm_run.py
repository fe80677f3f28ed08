"""The benchmark on AMD GPUs without one: packages built by the real toolchain, run on a runtime that checks every call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
from fake_hip import library, why_not
from gpu_stand_in import DEEP, FAULTS, LAST, OTHER, PRODUCT, RELU, at, packed, served, supervised
from hip_stand_in import CHIP, HipGpu, HipLibrary
from roller import ops
from roller.target.catalog import list_specs
from roller_rocm.runtime import hip
from roller_rocm.toolchain import install

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
SUM = Operator("long sum", "paper119 reduce", "reduce_sum", "float32", {"x": (1 << 18,)}, {"axes": [0]})
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, hip_folder: Path) -> Iterator[HipGpu]:
    """A GPU like an MI210; afterwards nothing wrong was asked of the runtime, and nothing is loaded."""
    monkeypatch.setattr(timing, "FLUSH_LEAST", 1 << 12)
    monkeypatch.setattr(timing, "FLUSH_TIMES_L2", 0)
    made = HipGpu(monkeypatch, hip_folder)
    yield made
    assert not made.faults and not made.fake.modules()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of small operators for gfx90a."""
    return packed(PLATFORM, CHIP, tmp_path_factory.mktemp("package"))


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


def test_the_largest_cache_of_a_chip_is_emptied(gpu: HipGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an MI300X the driver knows 4 MiB a die; behind them lie 256 MiB."""
    build.manifest(PLATFORM, tmp_path, ["mi300x"])
    assert Package(tmp_path, PLATFORM).chips["mi300x"]["cache_bytes"] == 256 << 20
    sizes: list[int] = []

    class Counting(HipLibrary):
        def room(self, size: int) -> Any:
            sizes.append(size)
            return super().room(size)

    monkeypatch.setattr(timing, "FLUSH_TIMES_L2", 3)
    gpu.fake.attribute(0, driver.L2_BYTES, 4 << 10)
    Worker(Package(tmp_path, PLATFORM), gpu.driver(), Counting(gpu), Settings(1.0, cache_bytes=64 << 10))
    assert sizes == [192 << 10]


def test_the_kernels_for_the_chip_that_is_most_alike_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hip_folder: Path
) -> None:
    """Every shipped chip finds itself, by what the driver counts; a chip of another architecture runs nothing."""
    names = [entry.chip for entry in list_specs("rocm")]
    build.manifest(PLATFORM, tmp_path, names)
    found = Package(tmp_path, PLATFORM)
    assert {"mi210", "mi250x", "rx7900xtx"} <= set(names)
    for chip in names:
        told = HipGpu(monkeypatch, hip_folder, chip).driver().describe()
        assert package.chip_for(found, PLATFORM, told) == chip
    fewer = HipGpu(monkeypatch, hip_folder, "mi210", units=96, compute_units=96).driver().describe()
    assert package.chip_for(found, PLATFORM, fewer) == "mi210"
    pairs = HipGpu(monkeypatch, hip_folder, "rx7900xtx", units=48, compute_units=96).driver().describe()
    assert package.chip_for(found, PLATFORM, pairs) == "rx7900xtx"
    chips = {**found.chips, "of-90": {**found.chips["rx7900xtx"], "units": 90}}  # which is nearer to 96, if those were meant
    package.write_json(tmp_path / "manifest.json", {**found.manifest, "chips": chips})
    assert package.chip_for(Package(tmp_path, PLATFORM), PLATFORM, pairs) == "rx7900xtx"
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
        found.load(code)  # of another processor
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


def test_kernels_run_in_order_with_the_arrays_between_them(gpu: HipGpu) -> None:
    seen: list[tuple[str, list[int]]] = []
    kernel, store = roller.compile(expression(SUM), device=f"rocm:{CHIP}"), HipLibrary(gpu)

    def noting(name: str) -> Callable[[list[int], int, int], int]:
        return lambda places, *_: seen.append((name, places)) or 0

    for described in kernel.artifact.launch["kernels"]:
        gpu.knows(kernel.artifact.data, described["name"], 2, noting(described["name"]))
    launch = compiling.built(kernel.artifact, kernel.candidates[0])[0]["launch"]
    assert len(launch["kernels"]) == 2
    rooms = {name: store.room(64) for name in ("x", launch["output"])}
    places = {name: store.address(room) for name, room in rooms.items()}
    places |= launcher.workspaces(launch, lambda size: store.address(rooms.setdefault("between", store.room(size))))
    with closing(launcher.Program(gpu.driver(), kernel.artifact.data, launch, places)) as made:
        made.start(0)
        gpu.driver().synchronize(0)
    assert seen == [(k["name"], [places[n] for n in k["arguments"]]) for k in launch["kernels"]]


def test_constants_lie_on_the_gpu(gpu: HipGpu, tmp_path: Path) -> None:
    """A relu of its operand times one: the ones come with the package."""
    op = replace(RELU, id="relu of one times")
    x, one = ops.tensor(op.shapes["x"], name="x"), ops.tensor((op.shapes["x"][1],), name="one")
    ones = np.ones(one.shape, np.float32)
    kernel = roller.compile(ops.relu(x * one), device=f"rocm:{CHIP}", constants={"one": ones})
    program = build.kept(tmp_path, *compiling.built(kernel.artifact, kernel.candidates[0]))
    entry = package.Entry(op, CHIP, "ok", "", "", 1e-6, (program,))
    assert build.digests(entry) == {program["binary"], program["constants"]["one"]}
    build.manifest(PLATFORM, tmp_path, [CHIP])
    package.write_json(package.case_path(tmp_path, CHIP, op.id), asdict(entry))
    gpu.emulates(kernel.artifact, op.output, op.dtype)
    _, _, rows = served(PLATFORM, tmp_path, gpu.driver(), HipLibrary(gpu))
    assert (rows[op.id]["status"], rows[op.id]["reason"]) == ("ok", "")


# --- end to end ------------------------------------------------------------------------------------------------------


def test_a_package_runs_and_its_report_can_be_read(built: Path, gpu: HipGpu, tmp_path: Path) -> None:
    """The kernels' own assembly, on the emulator, through the launches that the package describes."""
    for op in (RELU, PRODUCT):
        gpu.emulates(roller.compile(expression(op), device=f"rocm:{CHIP}").artifact, op.output, op.dtype)
    status, hello, rows = served(PLATFORM, built, gpu.driver(), HipLibrary(gpu, disagreeing=True), only="small")
    told = {"arch": "gfx90a", "units": 104, "gpu": "AMD Test", "driver_hip": "6.3", "clock_mhz": 1700}
    assert status == 0 and hello["chip"] == CHIP and told.items() <= hello["device"].items()
    assert set(rows) == {RELU.id, PRODUCT.id}
    for row in rows.values():
        assert (row["status"], row["reason"]) == ("ok", "")
        assert set(row["sides"]) == {"roller", "numpy"} and set(row["left_out"]) == {"refuses", "differs"}
        assert row["ratio"] > 0 and row["best"] == "numpy" and row["sides"]["roller"]["predicted_s"] > 0
    path = tmp_path / "results" / "amd-test" / "rocm.json"
    whole = report.results(PLATFORM, hello, list(rows.values()), False, 100.0)
    assert (whole["benchmark"], report.folder(hello["device"])) == ("rocm", "amd-test") and "HIP events" in whole["clock"]
    report.write(path, whole)
    text = report.text(json.loads(path.read_text()))
    assert (
        "AMD Test, 104 units, 63 GiB, driver 6.3" in text
        and "small product" in text
        and "Not measured: there are no probes for AMD GPUs" in text
    )
    page = summary.document(summary.results(tmp_path / "results"))
    assert "## AMD Test, 104 units, 63 GiB" in page and "| fp16 GEMM ragged | 1 | 1 |" in page
    done = subprocess.run(
        [sys.executable, "-m", "bench.rocm.report", str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == text.strip()


def test_the_ten_best_are_compared_and_one_that_does_not_start_is_left_out(built: Path, gpu: HipGpu) -> None:
    entry, found, messages = of(built, DEEP), Package(built, PLATFORM), []
    several = [program for program in entry.programs if len(program["launch"]["kernels"]) == 1][:4]
    unknown = several[2]["binary"]

    def product(names: list[str], output: str) -> Callable[[list[int], int, int], int]:
        def run_it(places: list[int], *_: int) -> int:
            a, b = (at(places[names.index(n)], DEEP.dtype, DEEP.shapes[n]) for n in "ab")
            at(places[names.index(output)], DEEP.dtype, DEEP.output)[...] = a @ b
            return 0

        return run_it

    for program in several:
        (kernel,) = program["launch"]["kernels"]
        names = list(kernel["arguments"])
        if program["binary"] != unknown:
            run_it = product(names, program["launch"]["output"])
            gpu.knows(found.binary(program["binary"]), kernel["name"], len(names), run_it)
    made = Worker(found, gpu.driver(), HipLibrary(gpu), Settings(100.0, 3))
    assert made.run([replace(entry, programs=tuple(several))], messages.append) == 0
    row: dict[str, Any] = messages[-1]["row"]
    assert (row["status"], row["reason"]) == ("ok", "")
    left = sum(program["binary"] == unknown for program in several)
    assert "hipErrorNotFound" in row["left_out"]["roller 3"] and len(row["ten"]) == len(several) - left
    hello = {"device": gpu.driver().describe(), "chip": CHIP, "built": "", "versions": {}, "cases": [[DEEP.id, DEEP.family]]}
    text = report.text(report.results(PLATFORM, hello, [row], False, 1.0))
    assert row["regret"] >= 0 and f"(worst, {DEEP.id}); rank correlation among the ten" in text


@pytest.mark.parametrize("fault", ["beyond", "unknown", "lost", "crash"])
def test_what_goes_wrong_is_reported_and_the_rest_goes_on(
    built: Path, tmp_path: Path, hip_folder: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, reason = FAULTS[fault]
    code, found = supervised(PLATFORM, "hip_stand_in.py", built, tmp_path, {"folder": str(hip_folder), "faults": {OTHER.id: fault}})
    rows = {row["case"]: row for row in found["cases"]}
    assert code == 1 and set(rows) == {RELU.id, OTHER.id, LAST.id}
    known = {"unknown": "hipErrorNotFound (500)", "lost": "hipErrorIllegalAddress (700)"}
    assert rows[OTHER.id]["status"] == status and known.get(fault, reason) in rows[OTHER.id]["reason"]
    assert not rows[OTHER.id]["sides"]  # never timed
    assert {rows[name]["status"] for name in (RELU.id, LAST.id)} == {"ok"}
    assert f"{OTHER.id}: {status}" in capsys.readouterr().out


# --- where nothing can run -------------------------------------------------------------------------------------------

TORCH = """
import os, sys
from types import SimpleNamespace as Some
print("MIOpen:", os.environ.get("PYTORCH_MIOPEN_SUGGEST_NHWC"), file=sys.stderr)
__version__, channels_last, Tensor = "2.0", None, None
device = lambda name: Some(type=name)
version, cuda = Some(hip=HIP), Some(is_available=lambda: True)
backends = Some(cuda=Some(matmul=Some()), cudnn=Some())
set_grad_enabled = lambda enabled: None
"""


def commanded(
    folder: Path, words: list[str], hip_version: str = "'6.3'", where: str = "/nowhere/libamdhip64.so"
) -> tuple[int, str]:
    """`python -m bench.rocm.run` beside a torch for AMD GPUs that has no GPU: exit status and what it says."""
    place = folder / "torch"
    (place / "nn").mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text(TORCH.replace("HIP)", f"{hip_version})"))
    (place / "nn" / "__init__.py").write_text("functional = None\n")
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), driver.VARIABLE: where}
    command = [sys.executable, "-m", "bench.rocm.run", *words, "--quick"]
    done = subprocess.run(command, env={**os.environ, **paths}, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_without_a_runtime_or_a_gpu_it_says_what_is_missing(built: Path, tmp_path: Path, hip_folder: Path) -> None:
    status, said = commanded(tmp_path, [str(built)])
    assert status == child.REFUSED and "no HIP runtime (-1): /nowhere/libamdhip64.so" in said
    assert "this needs a machine with an AMD GPU and ROCm 5.2 or newer" in said and "Traceback" not in said
    assert "MIOpen: 1" in said  # channels-last images stay so
    status, said = commanded(tmp_path, [str(built)], where=str(library(hip_folder)))
    assert status == child.REFUSED and "hipInit: " in said  # the stand-in has no GPU until a test says so
    status, said = commanded(tmp_path, [str(built)], hip_version="None")
    assert status == child.REFUSED and "torch 2.0 finds no AMD GPU: a build for rocm is needed" in said


def test_packages_of_others_are_refused(built: Path, tmp_path: Path, gpu: HipGpu, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads((built / "manifest.json").read_text())
    for changed, words in (
        ({"schema": 1}, "schema 1, this reads 2"),
        ({"device": "cuda"}, "for the device 'cuda', this for 'rocm': see bench/cuda"),
    ):
        package.write_json(tmp_path / "manifest.json", {**about, **changed})
        assert run.main(PLATFORM, [str(tmp_path)]) == child.REFUSED
        assert words in capsys.readouterr().err
    gpu.becomes("mi300x")
    with pytest.raises(PackageError, match=r"no kernels for gfx942: the package has mi210 \(gfx90a\)"):
        served(PLATFORM, built, gpu.driver(), HipLibrary(gpu))
    with pytest.raises(SystemExit):
        run.options(PLATFORM, [str(built), "--no-calibration"])  # there are no probes to leave out
    assert run.options(PLATFORM, [str(built)]).no_calibration


def test_the_runtime_is_looked_for_where_the_plugin_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hip_folder: Path
) -> None:
    """One that torch brought is in the process and goes first; several at once cannot share memory."""
    monkeypatch.delenv(hip.LIBRARY, raising=False)
    monkeypatch.setenv("ROCM_PATH", "/elsewhere")
    mapped = [tmp_path / name for name in ("a/libamdhip64.so.6", "b/libamdhip64.so.7")]
    maps = [f"7f00-7f01 r-xp 0000 00:00 {n} {path}" for n, path in enumerate(mapped)]
    monkeypatch.setattr(driver, "MAPS", tmp_path / "maps")
    driver.MAPS.write_text("\n".join([*maps[:1], *maps[:1], "7f02-7f03 rw-p 0000 00:00 0 "]))
    expected = [str(mapped[0]), *hip.NAMES, "/elsewhere/lib/libamdhip64.so", str(install.ROOT / "lib" / "libamdhip64.so")]
    assert list(driver.candidates()) == expected and hip.LIBRARY == driver.VARIABLE and hip.OLDEST == driver.OLDEST
    driver.MAPS.write_text("\n".join(maps))
    with pytest.raises(DriverError, match="several copies of HIP's runtime"):
        Driver(str(library(hip_folder)))


def test_an_old_runtime_is_refused(gpu: HipGpu) -> None:
    gpu.fake.version(40_500_000)
    with pytest.raises(DriverError, match=r"kernels need ROCm 5\.2 or newer"):
        gpu.driver()
