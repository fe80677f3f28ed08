"""Prints the report of a file of results: python -m bench.cuda.report FILE"""

from __future__ import annotations

import sys

from bench.cuda.platform import PLATFORM
from bench.gpu import report

if __name__ == "__main__":
    sys.exit(report.main(PLATFORM))
