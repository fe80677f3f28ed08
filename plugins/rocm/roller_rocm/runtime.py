"""Artifact → running kernel."""
from __future__ import annotations


def problems() -> tuple[str, ...]:
    """What keeps this machine from running kernels."""
    return ()
