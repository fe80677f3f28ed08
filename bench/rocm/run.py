"""Runs them on the GPU of this machine: python -m bench.rocm.run build/rocm-bench [--limit 480] [--only fused,M3] [--quick]"""

from __future__ import annotations

import sys

from bench.gpu import run
from bench.rocm.platform import PLATFORM

if __name__ == "__main__":
    sys.exit(run.main(PLATFORM))
