"""What each benchmark should reach; `bench.summary` says beside every number whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Benchmark, family: least geometric mean, least ratio of a case (None: no wish for it).
RATIOS: Mapping[str, Mapping[str, tuple[float | None, float | None]]] = {
    "gemm": {"GEMM": (1.05, 0.90)},
    "conv": {"weights at call time": (1.0, 0.80), "weights as constants": (1.25, 0.95)},
    "memory": dict.fromkeys(("depthwise", "pooling", "reduce", "elementwise", "transpose", "batch_matmul"), (1.0, 0.80)),
    "fused": {"all": (1.3, None)},
    "dtypes": {
        f"{dtype} {kind}": (1.10, 0.80) for dtype in ("int8", "bfloat16", "float16") for kind in ("products", "convolutions")
    },
    "paper119": {
        "all": (1.3, None),
        **dict.fromkeys(("matmul", "conv2d", "depthwise", "elementwise", "pooling", "reduce"), (1.0, None)),
    },
    "metaschedule": {"search": (None, 1.0)},
    "cuda": {
        "paper119": (1.05, None),
        "fp16 GEMM 4096 and 8192": (0.90, None),
        "fp16 GEMM skinny": (1.0, None),
        "fp16 GEMM ragged": (1.0, None),
        "fused": (1.1, None),
    },
}
# Benchmark, sum: the limits of its numbers, from below ("≥") or above ("≤").
LIMITS: Mapping[str, Mapping[str, Mapping[str, tuple[str, float]]]] = {
    "compile_time": {
        "construct wall": {"median_s": ("≤", 0.05), "worst_s": ("≤", 0.3)},
        "kernel wall": {"median_s": ("≤", 0.3), "worst_s": ("≤", 1.5)},
    },
    "compile_ten": {"at once": {"worst_s": ("≤", 15.0)}},
    "fidelity": {
        "spearman": {"median": ("≥", 0.75)},
        "top1_regret": {"median": ("≤", 0.03), "worst": ("≤", 0.15)},
        "top10_regret": {"worst": ("≤", 0.03)},
    },
    "metaschedule": {"less_time": {"worst_times": ("≥", 100)}},
    "cuda": {"regret": {"median": ("≤", 0.05)}},
    "ipu_gemm": {"all": {"median_error": ("≤", 0.15), "largest_error": ("≤", 0.35)}},
    "ipu_exec": {"call": {"worst_s": ("≤", 5.0)}},
    "ipu_ops119": {"compile_s": {"worst": ("≤", 2.0)}, "not_right": {"count": ("≤", 0)}},
    "ipu_baseline": {"all": {"geomean": ("≥", 1.2), "worst": ("≥", 1.0)}},
    "paper_fidelity": {card: {"matmul + conv2d": ("≥", 0.6)} for card in ("V100", "K80", "MI50")},
    "rocm_paper": {"matmul + conv2d": {"pearson": ("≥", 0.6)}},
}


def of_ratios(benchmark: str, family: str, found: Mapping[str, Any]) -> str:
    """The wish for a family's ratios, and whether they meet it; nothing where there is none."""
    wanted = RATIOS.get(benchmark, {}).get(family)
    if wanted is None:
        return ""
    reached = found.get("geomean"), found.get("worst")
    names = ("", "worst ")
    judged = [_judged(n, "≥", limit, r) for n, limit, r in zip(names, wanted, reached, strict=True) if limit is not None]
    return ", ".join(judged)


def of_sums(benchmark: str, key: str, found: object) -> str:
    """The limits of a sum's numbers, and whether they are kept; nothing where there are none."""
    limits = LIMITS.get(benchmark, {}).get(key, {})
    if not isinstance(found, Mapping):
        return ""
    return ", ".join(_judged(f"{name} ", sign, limit, _number(found.get(name))) for name, (sign, limit) in limits.items())


def said(benchmark: str) -> str:
    """All limits of a benchmark in one line."""
    sums = []
    for key, limits in LIMITS[benchmark].items():
        sums.append(f"{key} " + ", ".join(f"{name} {sign} {limit:g}" for name, (sign, limit) in limits.items()))
    return "; ".join(sums)


def _judged(name: str, sign: str, limit: float, value: float | None) -> str:
    kept = value is not None and (value >= limit if sign == "≥" else value <= limit)
    return f"{name}{sign} {limit:g} {'met' if kept else '**missed**'}"


def _number(value: object) -> float | None:
    """A number, or the correlation of a group of operators."""
    if isinstance(value, Mapping):
        value = value.get("pearson")
    return float(value) if isinstance(value, int | float) else None
