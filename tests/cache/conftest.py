"""A cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caching import PLACE, Settled
from roller import pipeline
from roller.cache import kernels, sources
from roller.device.plugins import Device


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; sources count as unchanged, whenever the checkout was made."""
    monkeypatch.setenv("ROLLER_CACHE", "rw")
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sources, "digest", lambda package: f"digest of {package}")
    kernels.forget()
    yield tmp_path / PLACE
    kernels.forget()


@pytest.fixture
def settled(toy: Callable[[Any], Device], place: Path) -> Path:
    """The cache, and a device that compiles at once."""
    toy(Settled())
    return place


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows with every kernel that is constructed."""
    found: list[Any] = []
    construct = pipeline.constructed
    monkeypatch.setattr(pipeline, "constructed", lambda plan, *rest: found.append(plan) or construct(plan, *rest))
    return found
