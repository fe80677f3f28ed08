"""Runs them on the GPU of this machine: python -m bench.cuda.run build/gpu-bench [--limit 480] [--only fused,M3] [--quick]"""

from __future__ import annotations

import sys

from bench.cuda.platform import PLATFORM
from bench.gpu import run

if __name__ == "__main__":
    sys.exit(run.main(PLATFORM))
