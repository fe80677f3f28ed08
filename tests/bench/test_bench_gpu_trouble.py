"""GPU benchmarks in trouble: kernels that hang, peers that fail, time that is up, runs that go on from an earlier one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_bench_cuda import needs_gxx

from bench.cuda.platform import PLATFORM
from bench.gpu import child, run, timing
from bench.gpu.package import Package
from emulating import needs_compiler
from gpu_stand_in import CHIP, FakeGpu, NumpyLibrary, compiled, packed, served, supervised, teach

ROOT = Path(run.__file__).parents[2]


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpu(libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(timing, "FLUSH_LEAST", 1 << 12)
    monkeypatch.setattr(timing, "FLUSH_TIMES_L2", 0)
    return FakeGpu(libcuda, tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(PLATFORM, CHIP, tmp_path_factory.mktemp("package"))


def faulty(built: Path, libcuda: Path, folder: Path, faults: dict[str, str], *more: str) -> tuple[int, dict[str, Any]]:
    """Three relus with faults in their kernels."""
    said = {"library": str(libcuda), "copies": str(folder), "faults": faults}
    return supervised(PLATFORM, "gpu_stand_in.py", built, folder, said, more=more)


@needs_compiler
@needs_gxx
def test_a_kernel_that_does_not_end_is_given_up_and_the_gpu_with_it(built: Path, libcuda: Path, tmp_path: Path) -> None:
    code, found = faulty(built, libcuda, tmp_path, {"other relu": "endless"})
    rows = {row["case"]: row for row in found["cases"]}
    assert code == 1 and rows["other relu"]["hung"]
    assert rows["other relu"]["reason"] == "cuStreamQuery: hangs (600): not done after 1 s"
    assert {rows[name]["status"] for name in ("small relu", "last relu")} == {"ok"}


def test_kinds_of_launches_that_hang_are_not_tried_for_ever() -> None:
    kinds = [["clusters", "tensor maps"], [], ["tensor maps"], ["clusters", "tensor maps"], []]
    assert run.Session(rows=[{"case": str(n), "hung": True, "kind": kind} for n, kind in enumerate(kinds)]).avoid == [kinds[0]]


@needs_compiler
@needs_gxx
def test_what_is_avoided_is_named(built: Path, gpu: FakeGpu) -> None:
    status, _, rows = served(PLATFORM, built, gpu.driver(), NumpyLibrary(), only="small relu", avoid=[[]])
    assert status == 0 and rows["small relu"]["status"] == "failed" and "not tried" in rows["small relu"]["reason"]


@needs_compiler
@needs_gxx
@pytest.mark.parametrize("how", ["prepares", "computes"])
def test_a_peer_that_fails_in_any_way_is_left_out(built: Path, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def refused() -> Any:
        raise IndexError("of its own")

    def peers(self: NumpyLibrary, *_: Any) -> Iterator[timing.Side]:
        yield timing.Side("odd", refused)
        if how == "prepares":
            raise RuntimeError("a broken installation")

    monkeypatch.setattr(NumpyLibrary, "peers", peers)
    teach(gpu, Package(built, PLATFORM), CHIP, {})
    _, _, rows = served(PLATFORM, built, gpu.driver(), NumpyLibrary(), only="small relu")
    row = rows["small relu"]
    assert row["status"] == "ok" and row["ours_s"] > 0, row["reason"]
    assert "IndexError" in row["left_out"]["odd"]
    assert ("a broken installation" in row["left_out"].get("the next peer", "")) is (how == "prepares")


@needs_compiler
@needs_gxx
def test_a_run_goes_on_from_results(built: Path, libcuda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"library": str(libcuda), "copies": str(tmp_path), "faults": {}}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    code, found = supervised(PLATFORM, "gpu_stand_in.py", built, tmp_path / "first", said, more=["--only", "small relu"])
    assert code == 0 and [row["case"] for row in found["cases"]] == ["small relu"]
    earlier = tmp_path / "first" / "results.json"
    code, whole = supervised(PLATFORM, "gpu_stand_in.py", built, tmp_path / "second", said, more=["--resume", str(earlier)])
    assert code == 0 and whole["cases"][0] == found["cases"][0] and len(whole["cases"]) == 3 and not whole["not_reached"]
    earlier.write_text(json.dumps({**found, "chip": "another"}))
    (tmp_path / "third").mkdir()
    code, nothing = supervised(PLATFORM, "gpu_stand_in.py", built, tmp_path / "third", said, more=["--resume", str(earlier)])
    assert code == child.REFUSED and not nothing and "of another GPU, chip or package" in capsys.readouterr().err


@needs_compiler
@needs_gxx
def test_the_limit_is_one(built: Path, libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that takes for ever is not waited for when the time is up, and is not blamed."""
    monkeypatch.setattr(run, "GRACE_SECONDS", 1.0)
    said = {"library": str(libcuda), "copies": str(tmp_path), "faults": {"other relu": "hang"}}
    begin = time.monotonic()
    _, found = supervised(PLATFORM, "gpu_stand_in.py", built, tmp_path, said, more=["--limit", "12"])
    assert time.monotonic() - begin < 40 and "other relu" in found["not_reached"]


CHILD = """
import time
from bench.gpu import child
child.orphaned()
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys
started = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(started.pid, flush=True)
started.wait()
"""


def test_the_process_with_the_gpu_ends_with_the_one_that_started_it() -> None:
    """It has a session of its own, and would keep the GPU from whoever comes next."""
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        words = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        (pid,) = (int(word) for word in words - {"up"})
        assert runs(pid)
        process.kill()
    end = time.monotonic() + 20
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not runs(pid)


def runs(pid: int) -> bool:
    """True while there is such a process that has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
