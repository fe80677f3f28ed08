"""A matrix product in Triton, as its users write one: tiles in grouped order, software pipelining, a few configurations tried."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from bench.gpu.platform import Tile

ROWS_TOGETHER = 8  # tiles that share a strip of b follow one another


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(a, b, c, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    high, wide = tl.cdiv(M, TM), tl.cdiv(N, TN)
    number = tl.program_id(0)
    band = number // (GROUP * wide)
    top = band * GROUP
    rows = min(high - top, GROUP)
    inside = number - band * GROUP * wide
    i = (top + inside % rows) * TM + tl.arange(0, TM)
    j = (inside // rows) * TN + tl.arange(0, TN)
    k = tl.arange(0, TK)
    # Beyond the edge the first rows are read again: what they give is not stored.
    left = a + (i % M).to(tl.int64)[:, None] * K + k[None, :]
    right = b + k.to(tl.int64)[:, None] * N + (j % N)[None, :]
    total = tl.zeros((TM, TN), dtype=tl.float32)
    for start in range(0, K, TK):
        x = tl.load(left, mask=k[None, :] < K - start, other=0.0)
        y = tl.load(right, mask=k[:, None] < K - start, other=0.0)
        total = tl.dot(x, y, total)
        left += TK
        right += TK * N
    out = c + i.to(tl.int64)[:, None] * N + j[None, :]
    tl.store(out, total.to(c.dtype.element_ty), mask=(i[:, None] < M) & (j[None, :] < N))


@cache
def _tuned(tiles: tuple[Tile, ...]) -> Any:
    """The kernel that takes the fastest of these tiles for a shape; those that the GPU has no room for are passed over."""
    configs = [triton.Config({"TM": m, "TN": n, "TK": k}, num_warps=warps, num_stages=stages) for m, n, k, warps, stages in tiles]
    return triton.autotune(configs=configs, key=["M", "N", "K"])(_kernel)


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, tiles: tuple[Tile, ...]) -> torch.Tensor:
    """out = a·b for contiguous operands in half precision; the first call of a shape tries the tiles."""
    (m, k), n = a.shape, b.shape[1]
    tuned = _tuned(tiles)
    tuned[lambda meta: (triton.cdiv(m, meta["TM"]) * triton.cdiv(n, meta["TN"]),)](a, b, out, m, n, k, GROUP=ROWS_TOGETHER)
    return out
