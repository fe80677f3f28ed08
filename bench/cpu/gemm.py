"""GEMM in float32: squares, thin, ragged and random shapes, against OpenBLAS, MKL and oneDNN. python -m bench.cpu.gemm"""

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
RANDOM, SEED = 4, 1


def shapes() -> list[tuple[int, int, int]]:
    """M, N, K of every case; the random ones are log-uniform, so that small extents are as likely as large ones."""
    generator = np.random.default_rng(SEED)
    random = np.exp(generator.uniform(np.log(32), np.log(3000), (RANDOM, 3))).astype(int)
    return [(n, n, n) for n in SQUARES] + THIN + OTHER + [(int(m), int(n), int(k)) for m, n, k in random]


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
