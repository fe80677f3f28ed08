"""What the model says of operators that were measured: times that ROLLER's authors published."""

from __future__ import annotations

import statistics

import pytest

import roller
from bench.common.paper_ops import paper_operators
from bench.engine import paper_fidelity


@pytest.mark.parametrize(("kind", "median", "each"), [("E", 0.05, 0.12), ("P", 0.15, 0.3), ("R", 0.1, 0.2)])
def test_what_memory_bounds_is_predicted_as_the_fastest_was_measured(kind: str, median: float, each: float) -> None:
    """On the V100: relu, pooling, sums. No kernel is faster than memory, so ours is predicted to take what the fastest one took."""
    spec = roller.load_spec(paper_fidelity.V100)
    chosen = [o for o in paper_operators() if o.id[0] == kind]
    ratios = [paper_fidelity.ours(o, spec) / (min(o.paper_ms.values()) * 1e-3) for o in chosen]
    assert abs(statistics.median(ratios) - 1) <= median
    assert max(abs(ratio - 1) for ratio in ratios) <= each
