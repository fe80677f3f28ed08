"""GEMM in float32: squares, thin, ragged and random products, against OpenBLAS, MKL and oneDNN. python -m bench.cpu.gemm"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np

from bench.common import harness, peers, report
from bench.common.harness import Case, Side
from roller import ops

SQUARES = (256, 384, 512, 768, 1000, 1023, 1024, 1536, 2048, 3000)
THIN = [(m, n, n) for n in (1024, 4096) for m in (1, 16, 64, 128)]
OTHER = [(3072, 768, 768), (1000, 2500, 3000)]
ROWS = [(8, 5000, 3000), (37, 2048, 2048), (64, 1040, 1024), (128, 2048, 2048)]  # rows at and beside powers of two
RANDOM, SEED = 4, 1
RANDOM_THIN, THIN_SEED = 8, 2


def shapes() -> list[tuple[int, int, int]]:
    """M, N, K of every case; random extents are log-uniform, so that small ones are as likely as large ones."""
    fixed = [*((n, n, n) for n in SQUARES), *THIN, *OTHER, *drawn(SEED, RANDOM, (32, 3000), (32, 3000))]
    return [*fixed, *ROWS, *drawn(THIN_SEED, RANDOM_THIN, (2, 128), (256, 6000))]


def drawn(seed: int, count: int, rows: tuple[int, int], others: tuple[int, int]) -> list[tuple[int, int, int]]:
    """So many random products with M in one range, N and K in another."""
    low, high = np.log(np.array([rows, others, others], float)).T
    found = np.exp(np.random.default_rng(seed).uniform(low, high, (count, 3))).astype(int)
    return [(int(m), int(n), int(k)) for m, n, k in found]


def build(options: argparse.Namespace, m: int, n: int, k: int) -> list[Side]:
    """All sides of one shape; with b known beforehand on both sides in the second column."""
    given = peers.arrays(a=(m, k), b=(k, n))
    op = ops.matmul(ops.tensor((m, k), name="a"), ops.tensor((k, n), name="b"))
    mine = [
        peers.ours(op, given, options),
        peers.ours(op, given, options, "roller, b constant", ["b"], boundary=False),
    ]
    return mine + peers.matmul(given["a"], given["b"])


def cases() -> Iterator[Case]:
    """Every shape."""
    for m, n, k in shapes():
        need = 3 * peers.bytes_of((m, k), (k, n)) + 8 * peers.bytes_of((m, n))
        yield Case(f"{m}x{n}x{k}", "GEMM", partial(build, m=m, n=n, k=k), need, 2.0 * m * n * k, depth=k)


if __name__ == "__main__":
    sys.exit(report.run("gemm", cases(), harness.start(__doc__)))
