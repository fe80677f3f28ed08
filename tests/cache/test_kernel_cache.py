"""The kernel cache: a hit equals a build, options, and several who want the same kernel."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

import roller
from caching import kept, product
from roller.cache import folder, kernels, key, settings
from roller.cache.folder import Folder
from roller.errors import SettingError

CHIPS = ("cpu:x86-64-v3", "cuda:a100", "rocm:mi300x", "ipu_sim:gc200")


@pytest.mark.parametrize("chip", CHIPS)
def test_a_hit_equals_a_build(chip: str, place: Path, built: list[Any]) -> None:
    first = roller.compile(product(), chip, top_k=4)
    again = roller.compile(product(), chip, top_k=4)
    kernels.forget()
    other = roller.compile(product(), chip, top_k=4)
    assert len(built) == 1 and len(kept(place)) == 1
    for kernel in (again, other):
        assert kernel.artifact == first.artifact and kernel.artifact.resources == first.artifact.resources
        assert (kernel.source, kernel.expr, kernel.spec) == (first.source, first.expr, first.spec)
        assert (kernel.program, kernel.estimate, kernel.candidates) == (first.program, first.estimate, first.candidates)
        assert str(kernel.explain()) == str(first.explain()) and kernel.explain().to_dict() == first.explain().to_dict()


def test_kernels_from_the_cache_compute_and_close_alone(place: Path) -> None:
    a, b = np.ones((24, 40), "f4"), np.ones((40, 32), "f4")
    first, second = (roller.compile(product(), "cpu:x86-64-v3") for _ in range(2))
    assert np.all(first(a, b) == 40) and np.all(second(a, b) == 40)
    assert first._runner is not second._runner
    first._runner.close()  # type: ignore[union-attr]
    assert np.all(second(a, b) == 40)


def test_values_of_constants_are_not_kept_and_are_those_of_the_call(place: Path, built: list[Any]) -> None:
    a, shape = np.ones((24, 40), "f4"), (40, 32)
    marked = np.full(shape, 1234.5, "f4")
    for forget in (False, True):
        for value in (marked, np.full(shape, 2, "f4")):
            kernel = roller.compile(product(), "cpu:x86-64-v3", constants={"b": value})
            assert np.array_equal(kernel(a), a @ value)
        if forget:
            kernels.forget()
    assert len(built) == 1
    (file,) = kept(place)
    assert marked[0].tobytes() not in file.read_bytes()


def test_a_new_process_needs_no_compiler(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real digests of sources: from the second process on, neither TVM nor torch is imported."""
    code = (
        "import sys, numpy as np, roller\nfrom roller import ops\n"
        "k = roller.compile(ops.relu(roller.tensor((64,))) * 2.0, 'cpu:x86-64-v3')\n"
        "assert np.array_equal(k(np.ones(64, 'f4')), np.full(64, 2, 'f4'))\n"
        "print('tvm' in sys.modules, sorted({'torch'} & set(sys.modules)) if 'tvm' not in sys.modules else '')"
    )
    time.sleep(1.0)  # what a checkout wrote just now is older than the next process
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    said = [run.stdout.strip() for run in runs]
    assert said == ["True", "False []"] and len(kept(place)) == 1


def test_verify_verifies_a_hit_too(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("roller.trial.verify", lambda artifact, expr: seen.append(artifact))
    for _ in range(2):
        roller.compile(product(), "toy", verify=True)
    assert len(seen) == 2


def test_what_was_measured_serves_only_those_who_measure(settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roller.trial.measure", lambda artifacts: [1.0 / (n + 1) for n, _ in enumerate(artifacts)])
    timed = [roller.compile(product(), "toy", top_k=3, measure=True) for _ in range(2)]
    roller.compile(product(), "toy", top_k=3)
    assert len(built) == 2 and timed[0].candidates == timed[1].candidates and timed[1].candidates[0].measured_s == 1 / 3


def test_off_keeps_nothing_and_ro_writes_nothing(settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLER_CACHE", "off")
    roller.compile(product(), "toy")
    monkeypatch.setenv("ROLLER_CACHE", "ro")
    roller.compile(product(), "toy")
    assert len(built) == 2 and not settled.exists()
    monkeypatch.setenv("ROLLER_CACHE", "RW ")
    kernels.forget()
    roller.compile(product(), "toy")
    (file,) = kept(settled)
    before = file.stat().st_mtime_ns
    monkeypatch.setenv("ROLLER_CACHE", "ro")
    kernels.forget()
    roller.compile(product(), "toy")
    assert len(built) == 3 and file.stat().st_mtime_ns == before


@pytest.mark.parametrize("hit", [False, True])
@pytest.mark.parametrize(("name", "value"), [("ROLLER_CACHE", "yes"), ("ROLLER_CACHE_LIMIT", "much")])
def test_wrong_settings_are_said_before_anything_is_built(
    name: str, value: str, hit: bool, settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if hit:
        roller.compile(product(), "toy")
        built.clear()
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=value):
        roller.compile(product(), "toy")
    assert not built


def test_a_folder_of_an_unknown_user_is_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLER_CACHE_DIR", "~no_such_user_here/x")
    assert settings.folder() == Path("~no_such_user_here/x/kernels")


def test_limits_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, number in (("500MB", 500 * 10**6), ("2GiB", 2 << 30), ("1024", 1024), ("", settings.MOST_BYTES)):
        monkeypatch.setenv("ROLLER_CACHE_LIMIT", text)
        assert settings.most_bytes() == number


def test_the_same_kernel_is_built_once(settled: Path, built: list[Any]) -> None:
    op = product(48)
    threads = [threading.Thread(target=lambda: roller.compile(op, "toy")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1 and list(settled.glob("*.lock")) == []


def test_nobody_waits_beyond_the_deadline(settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(key.Key, "digest", "d" * 64)
    settled.mkdir(parents=True, mode=0o700)
    with FileLock(settled / ("d" * 64 + folder.LOCK)):
        roller.compile(product(), "toy")
    assert len(built) == 1 and len(kept(settled)) == 1


def test_memory_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "IN_MEMORY", 3)
    made: Any = object()
    for n in range(9):
        kernels.fetch(key.Key({"n": n}, persistent=False), lambda: made)
    assert len(kernels._memory) == 3 and kernels.fetch(key.Key({"n": 8}, persistent=False), lambda: pytest.fail("built")) is made


def test_an_opened_folder_is_that_folder(tmp_path: Path) -> None:
    """What takes its place later is not written to."""
    (tmp_path / "a").mkdir(mode=0o700)
    opened = Folder(tmp_path / "a", create=False)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir(mode=0o700)
    opened.write("0" * 64, b"content")
    assert [f.digest for f in opened.files()] == ["0" * 64] and not list((tmp_path / "a").iterdir())
    opened.close()
