"""Microseconds of a call of a tiny kernel, by kind of array: what a call costs beyond its work. python -m bench.cpu.calls"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import roller
from bench.common import machine, report
from bench.common.harness import RESULTS
from roller import ops

SHAPE = (64, 128)
ROUNDS, CALLS = 15, 5000


def cases() -> dict[str, Callable[[], Any]]:
    """Calls of relu, ours and torch's; all on one thread."""
    torch.set_num_threads(1)
    kernel = roller.compile(ops.relu(roller.tensor(SHAPE, name="x")), threads=1).load()
    array, tensor = np.ones(SHAPE, np.float32), torch.ones(SHAPE)
    out, into = np.empty(SHAPE, np.float32), torch.empty(SHAPE)
    return {
        "roller, NumPy arrays": lambda: kernel(array),
        "roller, NumPy arrays, out=": lambda: kernel(array, out=out),
        "roller, torch tensors": lambda: kernel(tensor),
        "roller, torch tensors, out=": lambda: kernel(tensor, out=into),
        "numpy.maximum, out=": lambda: np.maximum(array, 0, out=out),
        "torch.relu": lambda: torch.relu(tensor),
    }


def main() -> None:
    """Prints the median of interleaved rounds."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    every = cases()
    found: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(ROUNDS):
        for name, call in every.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            found[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    table = Table("call", "us", box=None)
    summary = {name: statistics.median(times) for name, times in found.items()}
    for name, microseconds in summary.items():
        table.add_row(name, f"{microseconds:.2f}")
    Console().print(table)
    device = machine.device()
    body = {"device": device, "versions": machine.versions(), "rounds": ROUNDS, "calls": CALLS, "summary": summary}
    report.store(RESULTS / machine.folder(device) / "calls.json", report.provenance("calls") | body)


if __name__ == "__main__":
    main()
