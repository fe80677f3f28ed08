"""The GPU benchmark without a GPU: packages built by the real toolchain, run end to end on a driver that checks every call."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import roller
from bench import summary
from bench.cuda import driver, profile
from bench.cuda.platform import PLATFORM
from bench.gpu import build, child, compiling, launcher, package, report, run, timing
from bench.gpu.driver import DriverError
from bench.gpu.expressions import expression
from bench.gpu.operators import Operator
from bench.gpu.package import Package
from bench.gpu.worker import Settings, Worker
from emulating import needs_compiler
from fake_gpu import LEFT, RIGHT, of_groups
from gpu_stand_in import (
    CHIP,
    DEEP,
    FAULTS,
    PRODUCT,
    RELU,
    FakeGpu,
    NumpyLibrary,
    at,
    compiled,
    packed,
    served,
    supervised,
)

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the stand-in for the driver needs g++")


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpu(libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(timing, "FLUSH_LEAST", 1 << 12)
    monkeypatch.setattr(timing, "FLUSH_TIMES_L2", 0)
    return FakeGpu(libcuda, tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of small operators for sm_80."""
    return packed(PLATFORM, CHIP, tmp_path_factory.mktemp("package"))


# --- the driver ------------------------------------------------------------------------------------------------------


@needs_gxx
def test_refusals_have_names(gpu: FakeGpu) -> None:
    found = gpu.driver()
    with pytest.raises(DriverError, match=r"cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE \(200\)"):
        found.load(b"\x7fELF nothing that is known")
    gpu.knows(b"\x7fELF kernel", "kernel", 0, lambda *_: 0)
    module = found.load(b"\x7fELF kernel")
    with pytest.raises(DriverError, match="CUDA_ERROR_NOT_FOUND"):
        found.function(module, "nobody")
    nothing = (ctypes.c_void_p * 1)()
    for shape in ((1, 2048, 0, 1), (0, 32, 0, 1), (3, 32, 0, 2), (1, 32, 64 << 10, 1)):
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            found.launch(found.function(module, "kernel"), *shape, 0, nothing)
    found.launch(found.function(module, "kernel", 64 << 10), 1, 32, 64 << 10, 1, 0, nothing)
    found.launch(found.function(module, "kernel", 0, 16), 32, 32, 0, 16, 0, nothing)
    found.unload(module)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        found.unload(module)
    with pytest.raises(DriverError, match="this needs a machine with an NVIDIA GPU"):
        driver.Driver("libcuda-that-is-not-there.so")


def noting(seen: list[list[int]]) -> Callable[[list[int], int, int], int]:
    """A kernel that only says with what it was started: arguments, blocks, threads."""

    def run_it(places: list[int], blocks: int, threads: int) -> int:
        seen.append([*places, blocks, threads])
        return 0

    return run_it


@needs_gxx
def test_tensor_maps_and_clusters_reach_the_kernel(gpu: FakeGpu) -> None:
    """A map is 128 aligned bytes by value, made for the array's address; the cluster is an attribute of the launch."""
    seen: list[list[int]] = []
    gpu.knows(b"\x7fELF mapped", "mapped", 2, noting(seen))
    array = NumpyLibrary().room(64 * 32 * 2)
    where = int(array.ctypes.data)
    described = {"tensor": "a", "dtype": "float16", "extents": [32, 64], "strides_bytes": [64], "box": [32, 8], "steps": [1, 1]}
    kernel = {"name": "mapped", "arguments": ["a_map", "c"], "blocks": 4, "threads": 384, "shared_bytes": 100_000, "cluster": 2}
    launch = {"kernels": [{**kernel, "maps": {"a_map": {**described, "swizzle_bytes": 64}}}], "workspaces": []}
    launcher.Program(gpu.driver(), b"\x7fELF mapped", launch, {"a": where, "c": 12345}).start(0)
    assert seen == [[where, 12345, 4, 384]]
    calls = gpu.calls()
    assert calls.index("cuFuncSetAttribute") < calls.index("cuLaunchKernelEx")
    narrow = {**kernel, "maps": {"a_map": {**described, "swizzle_bytes": 32}}}  # a row of the box is longer than what is swizzled
    with pytest.raises(DriverError, match="cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE"):
        launcher.Program(gpu.driver(), b"\x7fELF mapped", {"kernels": [narrow]}, {"a": where, "c": 1})
    assert gpu.alive() == 1  # the one that was refused is not left behind


@needs_gxx
@pytest.mark.parametrize("percent", [None, 0, 37, 100])
def test_the_share_of_shared_memory_that_a_kernel_prefers_is_asked_for(gpu: FakeGpu, percent: int | None) -> None:
    gpu.knows(b"\x7fELF parts", "parts", 1, noting([]))
    kernel = {"name": "parts", "arguments": ["x"], "blocks": 2, "threads": 32, "shared_bytes": 0}
    said = {} if percent is None else {"carveout_percent": percent}
    launcher.Program(gpu.driver(), b"\x7fELF parts", {"kernels": [{**kernel, **said}], "workspaces": []}, {"x": 1}).start(0)
    assert gpu.carved() == (-1 if percent is None else percent)


@needs_gxx
def test_a_profiler_gets_the_launches_of_a_case_and_nothing_else(
    built: Path, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[int]] = []
    found = {e.operator.id: e for e in Package(built, PLATFORM).entries(CHIP)}
    program = found[RELU.id].programs[0]
    (kernel,) = program["launch"]["kernels"]
    code = Package(built, PLATFORM).binary(program["binary"])
    gpu.knows(code, kernel["name"], len(kernel["arguments"]), noting(seen))
    module = ModuleType("bench.gpu.torch_library")
    module.TorchLibrary = lambda _: NumpyLibrary()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(profile, "PLATFORM", replace(PLATFORM, driver=gpu.driver))
    assert profile.main([str(built), RELU.id, "--times", "3", "--chip", CHIP]) == 0
    assert len(seen) == 3 and {tuple(each[-2:]) for each in seen} == {(kernel["blocks"], kernel["threads"])}
    assert gpu.alive() == 0
    assert profile.main([str(built), "nobody's case", "--chip", CHIP]) == 2
    assert 'the package has no case "nobody\'s case"' in capsys.readouterr().err


@needs_gxx
def test_kernels_of_a_program_share_the_arrays_between_them(gpu: FakeGpu) -> None:
    seen: list[list[int]] = []
    gpu.knows(b"\x7fELF parts", "parts", 2, noting(seen))
    shape = {"name": "parts", "blocks": 2, "threads": 32, "shared_bytes": 0}
    kernels = [{**shape, "arguments": names} for names in (["x", "p"], ["p", "y"])]
    launch = {"kernels": kernels, "workspaces": [{"name": "p", "elements": 3, "dtype": "float32"}]}
    spaces = launcher.workspaces(launch, lambda size: 4096 + size)
    launcher.Program(gpu.driver(), b"\x7fELF parts", launch, {"x": 1, "y": 2, **spaces}).start(0)
    assert seen == [[1, 4096 + 256, 2, 32], [4096 + 256, 2, 2, 32]]


# --- end to end ------------------------------------------------------------------------------------------------------


@needs_compiler
@needs_gxx
def test_a_package_runs_and_its_report_can_be_read(built: Path, gpu: FakeGpu, tmp_path: Path) -> None:
    """The kernels' own text, on the emulator, through the launches that the package describes."""
    found = Package(built, PLATFORM)
    for op in (RELU, PRODUCT):
        kernel = roller.compile(expression(op), device=f"cuda:{CHIP}")
        gpu.emulates(kernel.artifact)
    status, hello, rows = served(PLATFORM, built, gpu.driver(), NumpyLibrary(disagreeing=True), only="small")
    assert status == 0 and hello["chip"] == CHIP and hello["device"]["gpu"] == "Fake GPU"
    for row in rows.values():
        assert (row["status"], row["reason"]) == ("ok", "")
        assert set(row["sides"]) == {"roller", "numpy"} and set(row["left_out"]) == {"refuses", "differs"}
        assert row["ratio"] > 0 and row["best"] == "numpy" and row["sides"]["roller"]["predicted_s"] > 0
    assert gpu.alive() == 0
    whole = report.results(PLATFORM, hello, list(rows.values()), False, 100.0)
    path = tmp_path / "results" / "fake" / "cuda.json"
    report.write(path, whole)
    text = report.text(json.loads(path.read_text()))
    assert "Fake GPU" in text and "small product" in text and "Predicted against measured" in text
    page = summary.document(summary.results(tmp_path / "results"))
    assert "## Fake GPU, 108 SMs, 40 GiB" in page and "| fp16 GEMM ragged | 1 | 1 |" in page
    assert found.chips[CHIP]["arch"] == "sm_80"


@needs_compiler
@needs_gxx
def test_kernels_with_tensor_maps_are_checked_and_timed(gpu: FakeGpu, tmp_path: Path) -> None:
    """Hopper's own path: the emulator reads the maps that the launcher had encoded."""
    op = Operator("mapped product", "fp16 GEMM ragged", "matmul", "float16", {"a": LEFT, "b": RIGHT})
    kernel = of_groups()
    program = build.kept(tmp_path, *compiling.built(kernel.artifact, kernel.candidates[0]))
    assert {"a", "b"} <= {one["tensor"] for one in program["launch"]["kernels"][0]["maps"].values()}
    build.manifest(PLATFORM, tmp_path, ["h100"])
    entry = package.Entry(op, "h100", "ok", "", "", 1e-6, (program,))
    package.write_json(package.case_path(tmp_path, "h100", op.id), asdict(entry))
    gpu.becomes({75: 9, 97: 227 << 10}, 80 << 30)
    gpu.emulates(kernel.artifact)
    status, hello, rows = served(PLATFORM, tmp_path, gpu.driver(), NumpyLibrary())
    assert (status, hello["chip"]) == (0, "h100")
    row = rows[op.id]
    assert (row["status"], row["reason"]) == ("ok", "") and row["ratio"] > 0


@needs_compiler
@needs_gxx
def test_the_ten_best_are_compared_and_one_that_does_not_start_is_left_out(built: Path, gpu: FakeGpu) -> None:
    (entry,) = [e for e in Package(built, PLATFORM).entries(CHIP) if e.operator.id == DEEP.id]
    assert len(entry.programs) == 10
    several = [p for p in entry.programs if len(p["launch"]["kernels"]) == 1]

    def product(names: list[str]) -> Callable[[list[int], int, int], int]:
        def run_it(places: list[int], *_: int) -> int:
            a, b = (at(places[names.index(n)], DEEP.dtype, DEEP.shapes[n]) for n in "ab")
            at(places[names.index(entry.programs[0]["launch"]["output"])], DEEP.dtype, DEEP.output)[...] = a @ b
            return 0

        return run_it

    changed = replace(entry, programs=tuple(several))
    assert len(several) >= 3 and several[0] is entry.programs[0]
    unknown = several[2]["binary"]
    for program in several:
        (kernel,) = program["launch"]["kernels"]
        if program["binary"] != unknown:
            names = list(kernel["arguments"])
            gpu.knows(Package(built, PLATFORM).binary(program["binary"]), kernel["name"], len(names), product(names))
    messages: list[Any] = []
    library = NumpyLibrary()
    made = Worker(Package(built, PLATFORM), gpu.driver(), library, Settings(100.0, 3))
    assert made.run([changed], messages.append) == 0
    row = messages[-1]["row"]
    assert row["status"] == "ok", row["reason"]
    left = sum(p["binary"] == unknown for p in several)
    assert "INVALID_IMAGE" in row["left_out"]["roller 3"] and len(row["ten"]) == len(several) - left
    assert row["regret"] >= 0


def faulty(built: Path, libcuda: Path, folder: Path, faults: dict[str, str], stall: float = 60.0) -> tuple[int, dict[str, Any]]:
    """Three relus with faults in their kernels."""
    said = {"library": str(libcuda), "copies": str(folder), "faults": faults}
    return supervised(PLATFORM, "gpu_stand_in.py", built, folder, said, stall)


@needs_compiler
@needs_gxx
@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_is_reported_and_the_rest_goes_on(
    built: Path, libcuda: Path, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, reason = FAULTS[fault]
    code, found = faulty(built, libcuda, tmp_path, {"other relu": fault})
    rows = {row["case"]: row for row in found["cases"]}
    assert code == 1 and set(rows) == {"small relu", "other relu", "last relu"}
    assert rows["other relu"]["status"] == status and reason in rows["other relu"]["reason"]
    known = {"unknown": "CUDA_ERROR_INVALID_IMAGE (200)", "lost": "CUDA_ERROR_ILLEGAL_ADDRESS (700)"}
    assert known.get(fault, "") in rows["other relu"]["reason"] and not rows["other relu"]["sides"]  # never timed
    assert {rows[name]["status"] for name in ("small relu", "last relu")} == {"ok"}
    assert f"other relu: {status}" in capsys.readouterr().out


@needs_compiler
@needs_gxx
def test_a_kernel_that_hangs_costs_only_itself(built: Path, libcuda: Path, tmp_path: Path) -> None:
    code, found = faulty(built, libcuda, tmp_path, {"other relu": "hang"}, stall=6.0)
    reasons = {row["case"]: row["reason"] for row in found["cases"]}
    assert code == 1 and reasons["other relu"] == "nothing happened for 6 s; its process was killed" and len(reasons) == 3


@needs_compiler
@needs_gxx
def test_an_interruption_keeps_what_was_measured(
    built: Path, libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(session: run.Session) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "say", stop)
    code, found = faulty(built, libcuda, tmp_path, {})
    assert code == run.INTERRUPTED and len(found["cases"]) == 1 and len(found["not_reached"]) == 2
    assert "Not reached" in capsys.readouterr().out


def test_time_that_is_up_leaves_a_list_of_what_was_not_reached() -> None:
    hello = {"device": {}, "chip": CHIP, "built": "", "versions": {}, "cases": [["one", "fused"], ["two", "fused"]]}
    row = {"case": "one", "family": "fused", "status": "failed", "reason": "", "sides": {}, "left_out": {}}
    assert report.results(PLATFORM, hello, [row], False, 1.0)["not_reached"] == ["two"]


DEVICE = {"gpu": "GPU", "units": 1, "memory_gib": 1.0, "driver_cuda": "13.0"}


def test_a_gpu_that_is_gone_leaves_the_report_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process with the GPU is started again after a crash, and finds none."""
    row = {"case": "one", "family": "fused", "status": "failed", "reason": "crashed", "sides": {}, "left_out": {}}

    def supervise(_given: object, session: run.Session, *_others: object) -> None:
        hello = {
            "device": DEVICE,
            "chip": CHIP,
            "built": "",
            "versions": {},
            "cases": [["one", "fused"], ["two", "fused"]],
        }
        session.hello, session.rows, session.refused = hello, [row], "no GPU is attached"

    monkeypatch.setattr(run, "supervise", supervise)
    package.write_json(tmp_path / "manifest.json", {"schema": package.SCHEMA, "device": PLATFORM.device})
    assert run.main(PLATFORM, [str(tmp_path), "--out", str(tmp_path / "found.json")]) == child.REFUSED
    said = capsys.readouterr()
    assert "no GPU is attached" in said.err and "one: failed" in said.out and "Not reached" in said.out
    assert [case["case"] for case in report.read(tmp_path / "found.json", PLATFORM)["cases"]] == ["one"]


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(PLATFORM, [str(tmp_path / "nowhere")]) == child.REFUSED
    assert "manifest.json cannot be read" in capsys.readouterr().err
    package.write_json(tmp_path / "manifest.json", {"schema": package.SCHEMA, "device": PLATFORM.device})
    given = run.main(PLATFORM, [str(tmp_path), "--quick"], [sys.executable, "-c", "import sys; sys.exit(9)"])
    assert given == child.REFUSED and "ended with status 9 before it began" in capsys.readouterr().err
    long = ["--only", "x" * (1 << 20)]  # more than a pipe holds: written to a process that never reads it
    given = run.main(PLATFORM, [str(tmp_path), "--quick", *long], [sys.executable, "-c", "import sys; sys.exit(9)"])
    assert given == child.REFUSED and "ended with status 9 before it began" in capsys.readouterr().err


def test_calls_are_cut_before_rounds_and_rounds_never_below_three() -> None:
    class Steady:
        flushes, queue_seconds = 1, 0.1

        def flush_seconds(self) -> float:
            return 0.1

        def timed(self, call: Any, count: int) -> list[float]:
            call()
            return [0.4] * count

    turns: list[str] = []
    sides = [timing.Side(name, lambda name=name: turns.append(name)) for name in "abc"]  # type: ignore[misc]
    times, calls = timing.interleave(sides, Steady(), 30.0, 5)  # type: ignore[arg-type]
    assert calls == dict.fromkeys("abc", 4) and [len(t) for t in times.values()] == [5] * 3
    assert turns[3:12] == list("abcbcacab")
    times, calls = timing.interleave(sides, Steady(), 0.1, 5)  # type: ignore[arg-type]
    assert calls == dict.fromkeys("abc", 1) and [len(t) for t in times.values()] == [3] * 3


@needs_gxx
def test_a_side_that_queues_slowly_gives_all_sides_longer_flushes(gpu: FakeGpu) -> None:
    """On the stand-in a flush takes 0.1 ms of its own time, an event 1 µs."""
    library = NumpyLibrary()
    clock = timing.Clock(gpu.driver(), 0, (library.address(room := library.room(64)), 64))
    sides = [timing.Side("slow", lambda: time.sleep(0.00035)), timing.Side("quick", lambda: None)]
    timing.interleave(sides, clock, 0.0, 1)
    assert 4 <= clock.flushes <= timing.MOST_FLUSHES
    gpu.calls()
    assert clock.timed(lambda: None, 1) == [pytest.approx(1e-6)]
    assert gpu.calls().count("cuMemsetD8Async") == clock.flushes
    assert not room.any()


def test_what_runs_on_the_gpus_machine_needs_nothing_installed() -> None:
    modules = ", ".join(f"bench.{device}.{part}" for device in ("cuda", "rocm") for part in ("run", "child", "report"))
    modules += ", bench.gpu.worker, bench.cuda.calibration"
    strangers = "{m.split('.')[0] for m in sys.modules} & {'roller', 'numpy', 'torch', 'rich', 'psutil', 'tvm', 'pydantic'}"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print(sorted({strangers}))"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
