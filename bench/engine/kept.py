"""CPU seconds of a new process that compiles and calls a kernel, without and with the kernel cache. python -m bench.engine.kept"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.common import machine, report
from bench.common.harness import RESULTS

PROGRAM = """
import json, sys, time
begin = time.perf_counter()
import roller
import numpy as np
from roller import ops
imported = time.perf_counter()
a, b = roller.tensor((512, 512), name="a"), roller.tensor((512, 512), name="b")
op = ops.gelu(ops.matmul(a, b))
start = time.perf_counter()
kernel = roller.compile(op)
compiled = time.perf_counter()
x = np.ones((512, 512), np.float32)
kernel(x, x)
called = time.perf_counter()
again = []
for _ in range(20):
    now = time.perf_counter()
    roller.compile(op)
    again.append(time.perf_counter() - now)
print(json.dumps({
    "import": imported - begin, "compile": compiled - start, "load and call": called - compiled, "compile again": sorted(again)[10],
    "CPU": time.process_time() - sum(again), "TVM": "tvm" in sys.modules,
}))
"""


def once(folder: str) -> dict[str, Any]:
    """What one process says."""
    variables = {**os.environ, "ROLLER_CACHE": "rw", "ROLLER_CACHE_DIR": folder}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=variables)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="roller-kept-") as warm:
        once(warm)  # reads every file once
        built, kept = [], []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory(prefix="roller-kept-") as empty:
                built.append(once(empty))
            kept.append(once(warm))
    table = Table("seconds", "not kept", "kept", box=None)
    summary: dict[str, Any] = {}
    for name in built[0]:
        sides = [[run[name] for run in runs] for runs in (built, kept)]
        summary[name] = [statistics.median(side) for side in sides]
        table.add_row(name, *(str(any(s)) if name == "TVM" else f"{statistics.median(s):.4f}" for s in sides))
    Console().print(table)
    device = machine.device()
    body = {"device": device, "versions": machine.versions(), "summary": summary, "cases": {"not kept": built, "kept": kept}}
    report.store(RESULTS / machine.folder(device) / "kept.json", report.provenance("kept") | body)


if __name__ == "__main__":
    main()
