"""Benchmarks: roller and the libraries it competes with, in turns in one process. See README.md beside this file."""
