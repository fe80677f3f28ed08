"""Where ROCm is installed, if it is."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/", "opt", "rocm")
