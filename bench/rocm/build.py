"""Packs kernels for AMD GPUs: python -m bench.rocm.build --chip mi300x --chip mi210 --out build/rocm-bench"""

from __future__ import annotations

import sys

from bench.gpu import build
from bench.rocm.platform import PLATFORM

if __name__ == "__main__":
    sys.exit(build.main(PLATFORM))
