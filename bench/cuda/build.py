"""Packs kernels for NVIDIA GPUs: python -m bench.cuda.build --chip h100 --chip h200 --out build/gpu-bench"""

from __future__ import annotations

import sys

from bench.cuda.platform import PLATFORM
from bench.gpu import build

if __name__ == "__main__":
    sys.exit(build.main(PLATFORM))
