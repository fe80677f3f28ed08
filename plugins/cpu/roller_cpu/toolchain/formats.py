"""Formats of CPU artifacts."""

from __future__ import annotations

IMAGE = "x86-64-image"  # machine code, as `roller_cpu.toolchain.linking` lays it out
IR = "llvm-ir"  # compiled when it is loaded: for processors that `roller_cpu.toolchain.linking` does not know
ALL = (IMAGE, IR)
