"""Machines and what a probe measures of them, for tests."""

from roller.plugin import RowShares
from roller_cpu.chip.probe import Rates
from roller_cpu.chip.topology import Cache

QUIET = "2026-11-27, other programs took 1% of the processors, the fastest repeats differed by 2%"
ROWS = RowShares(rows=(1, 16), run_bytes=(64, 1024), shares=((1.0, 0.9), (0.8, 0.6)))
RATES = Rates(
    clock_ghz=3.03,
    alone_per_cycle=31.7,
    gflops=4 * 32 * 2.96,
    read_gbps={"L1": 800.0, "L2": 412.0, "L3": 203.0, "DRAM": 31.4},
    alone_gbps={"L1": 200.0, "L2": 103.0, "L3": 51.0, "DRAM": 21.7},
    spread=0.02,
    rows={"DRAM": ROWS},
    alone_rows={"DRAM": ROWS.model_copy(update={"shares": ((0.9, 0.8), (0.5, 0.4))})},
)
CACHES = (Cache(3, 32 << 20, 64, 4), Cache(2, 1 << 20, 64, 1, 2048), Cache(1, 48 << 10, 64, 1, 64))
