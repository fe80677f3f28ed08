"""Prefetch instructions for inputs whose latency a core does not hide by itself."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from roller.lowering.simd.context import Prefetch
from roller.plugin import HardwareSpec
from roller_cpu.cost.requests import Requests

# 8 x 5000 x 3000 on a Zen 5: 3.6 ms without prefetches, 2.5 with the next run, 1.5 with the second to the sixth. On a Zen 4, 2.5 ms
# with the second, 2.8 with the third, 3.1 with the fifth, 4.1 with the sixteenth; 1 x 4096 x 4096: 5.8 ms without, 3.0 with the
# second, 4.9 with the third.
RUNS_AHEAD = 2
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

    def request(place: Any, distance: int) -> Any:
        return tirx.Evaluate(tirx.call_extern("int32", FUNCTION, place, tirx.IntImm("int64", distance)))

    return Prefetch(Requests(spec).pays, request, spec.levels[1].transaction_bytes, RUNS_AHEAD)
