"""Eight processes at one folder, killed at random, on a disk that is damaged, full or read only: no wrong kernel, no crash."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("cache_worker.py")
PROCESSES, AT_A_TIME = 8, 400


def started(folder: Path, seed: int, operations: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(WORKER.parent.parent / "support"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(WORKER), str(folder), str(seed), str(operations)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def torture(folder: Path, operations: int, seed: int, kills: float) -> dict[str, int]:
    """Counts of all processes that ended by themselves; some are killed, at any moment."""
    chance, total = random.Random(seed), {"operations": 0, "wrong": 0, "built": 0, "killed": 0}
    running: list[subprocess.Popen[str]] = []
    while total["operations"] < operations:
        while len(running) < PROCESSES:
            seed += 1
            running.append(started(folder, seed, AT_A_TIME))
        time.sleep(0.05)
        for process in list(running):
            if process.poll() is None:
                if chance.random() < kills:
                    process.send_signal(signal.SIGKILL)
                continue
            running.remove(process)
            said, error = process.communicate()
            if process.returncode == -signal.SIGKILL:
                total["killed"] += 1
                continue
            assert process.returncode == 0, error
            for name, count in json.loads(said).items():
                total[name] += count
    for process in running:
        process.kill()
        process.communicate()
    return total


def test_a_few_processes_at_once(tmp_path: Path) -> None:
    found = torture(tmp_path, 800, seed=1, kills=0.0)
    assert found["wrong"] == 0 and 0 < found["built"] < found["operations"]


@pytest.mark.long
def test_a_hundred_thousand_operations(tmp_path: Path) -> None:
    found = torture(tmp_path, 100_000, seed=100, kills=0.002)
    print(found)
    assert found["wrong"] == 0 and found["killed"] > 10 and found["operations"] >= 100_000


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_on_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        assert torture(tmp_path, 10_000, seed=200, kills=0.001)["wrong"] == 0
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("mode", [0o500, 0o000, 0o400])
def test_in_a_folder_that_cannot_be_written(mode: int, tmp_path: Path) -> None:
    """As another user than root, whom permissions do not stop, where that is possible."""
    (tmp_path / "kernels").mkdir(mode=0o700)
    (tmp_path / "kernels").chmod(mode)
    try:
        process = started(tmp_path, 1, 50)
        said, error = process.communicate()
    finally:
        (tmp_path / "kernels").chmod(0o700)
    assert process.returncode == 0, error
    assert json.loads(said)["wrong"] == 0
