"""Kernels in forked children: TVM's pool does not survive a fork, kernels do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PROGRAM = """
import multiprocessing, os, signal, sys, threading
import numpy as np
import roller
from roller import ops

def fork(child):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # one that hangs ends
        sys.exit(5 if child() else 1)  # not os._exit: what ends a process must not wait for lost threads either
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5

idle = threading.Event()
for _ in range(2):
    threading.Thread(target=idle.wait, daemon=True).start()
x = roller.tensor((1 << 18,))
kernel, other = (roller.compile(op, "cpu:x86-64-v3", threads=2) for op in (ops.relu(x), x + 1.0))
a = np.linspace(-1, 1, 1 << 18, dtype=np.float32)

def right():
    return all((kernel(a) == np.maximum(a, 0)).all() and (other(a) == a + np.float32(1)).all() for _ in range(3))

WHAT
"""
CASES = {
    "fork": "assert right() and fork(right) and right() and fork(right)",
    "fork in a fork": "assert right() and fork(lambda: right() and fork(right) and right()) and right()",
    "fork first": "assert fork(right) and right()",
    "threads of the child": """
def threaded():
    found = []
    threads = [threading.Thread(target=lambda: found.append(right())) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return found == [True, True] and right()
assert right() and fork(threaded)
""",
    "compiled in the child": """
def compiled():
    return (roller.compile(x * 2.0, "cpu:x86-64-v3", threads=2)(a) == a * 2).all()
assert right() and fork(compiled)
""",
    "multiprocessing": """
assert right()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(lambda_free, range(4)).get(60) == [True] * 4
assert right()
""",
}


@pytest.mark.parametrize("what", CASES)
def test_kernels_run_in_forked_children(what: str, tmp_path: Path) -> None:
    text = PROGRAM.replace("WHAT", "def lambda_free(_): return right()\n" + CASES[what])
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr
