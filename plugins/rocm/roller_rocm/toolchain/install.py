"""Path of a ROCm install."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/", "opt", "rocm")
