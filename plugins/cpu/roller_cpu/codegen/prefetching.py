"""Prefetch instructions for inputs whose latency a core does not hide by itself."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from roller.lowering.simd.context import Prefetch
from roller.plugin import HardwareSpec, Tensor

RUNS_AHEAD = 3  # 8 x 5000 x 3000 on a Zen 5: 3.6 ms without prefetches, 2.5 with the next run, 1.5 with the second to the sixth
HIDDEN_NS = 20.0  # latency that cores hide: on a Zen 5, prefetches of data in the L3 (10 ns) slow products down by up to 8 %
# Operations on a line from which on a core has too few lines in flight: 448 instructions (Zen 5; 256 on Zen 3, 512 on Golden Cove)
# with 4 or more a line are at most 80 lines, those of 50 GB/s and 100 ns. On a Zen 5, products of 64 MB gain nothing with 1 or 2
# rows of results, 10 % with 4, and run 2.5 times as fast with 8.
OPERATIONS = 4
# Operations on a line, over all passes, up to which it pays: with as many rows of results as this, products of 34 MB gain 0 to 2 %
# on a Zen 5. With 64 they gain 10 to 20 %, with 512 they lose 1 to 5 %.
OPERATIONS_MOST = 256
KEPT = 0.5  # share of a cache that one input may take and still be found there
FUNCTION = "roller_prefetch"
DEFINITION = (
    "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
    f"define i32 @{FUNCTION}(ptr %p, i64 %bytes) alwaysinline nounwind {{",
    "  %line = getelementptr i8, ptr %p, i64 %bytes",  # may lie beyond the array: not `inbounds`
    # Into the L2: in an L1 of few ways, rows a power of two apart would evict one another before they are read.
    "  call void @llvm.prefetch.p0(ptr %line, i32 0, i32 2, i32 1)",
    "  ret i32 0\n}",
)


def prefetch(spec: HardwareSpec) -> Prefetch:
    """Returns which rows a chip's kernels request ahead, and how."""
    near = near_bytes(spec)

    def pays(tensor: Tensor, operations: float, passes: int) -> bool:
        return tensor.nbytes > near and OPERATIONS <= operations <= OPERATIONS_MOST / passes

    def request(place: Any, distance: int) -> Any:
        return tirx.Evaluate(tirx.call_extern("int32", FUNCTION, place, tirx.IntImm("int64", distance)))

    return Prefetch(pays, request, spec.levels[1].transaction_bytes, RUNS_AHEAD)


def near_bytes(spec: HardwareSpec) -> float:
    """Returns the size of an input up to which a core hides the latency of reading it."""
    far = [level for level in spec.levels[1:] if not level.managed and level.latency_ns > HIDDEN_NS]
    return min((level.capacity_bytes * KEPT for level in far), default=float("inf"))
