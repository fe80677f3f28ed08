"""The process with the GPU, as `bench.cuda.run` starts it."""

from __future__ import annotations

import sys

from bench.cuda.platform import PLATFORM
from bench.gpu import child

if __name__ == "__main__":
    sys.exit(child.main(PLATFORM))
