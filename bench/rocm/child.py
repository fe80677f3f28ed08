"""The process with the GPU, as `bench.rocm.run` starts it."""

from __future__ import annotations

import sys

from bench.gpu import child
from bench.rocm.platform import PLATFORM

if __name__ == "__main__":
    sys.exit(child.main(PLATFORM))
