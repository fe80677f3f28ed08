"""Every benchmark, each in a process of its own, with one thread and with all. python -m bench [--quick]"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

THREADED = ("cpu.gemm", "cpu.conv", "cpu.memory", "cpu.fused", "cpu.paper119", "cpu.fidelity")
ONCE = ("cpu.compile_time", "engine.paper_fidelity")


def main() -> int:
    """Run them all; 1 if one of them found a wrong result or failed."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--quick", action="store_true", help="a smoke test")
    made.add_argument("--quiet", type=float, default=0.0, help="wait so many seconds at most for an idle machine before a turn")
    options = made.parse_args()
    cores = len(os.sched_getaffinity(0))
    more = ["--quick"] if options.quick else []
    more += ["--quiet", str(options.quiet)] if options.quiet else []
    runs = [(name, threads) for name in THREADED for threads in sorted({1, cores})] + [(name, 1) for name in ONCE]
    failed = []
    for name, threads in runs:
        print(f"== {name}, {threads} thread(s)", flush=True)
        command = [sys.executable, "-m", f"bench.{name}", "--threads", str(threads), *more]
        if subprocess.run(command, check=False).returncode:
            failed.append(f"{name}-{threads}t")
    print(f"failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
