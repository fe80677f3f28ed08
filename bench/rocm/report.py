"""Prints the report of a file of results: python -m bench.rocm.report FILE"""

from __future__ import annotations

import sys

from bench.gpu import report
from bench.rocm.platform import PLATFORM

if __name__ == "__main__":
    sys.exit(report.main(PLATFORM))
