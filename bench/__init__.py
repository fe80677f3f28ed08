"""Benchmarks: roller and the libraries it competes with, in turns in one process. See README.md beside this file."""

import os

os.environ.setdefault("ROLLER_CACHE", "off")  # what is timed is compiled
