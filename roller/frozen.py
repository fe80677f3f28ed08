"""Immutable, hashable mappings, which specs, artifacts and kernels hold beside plain fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["FrozenMap", "freeze", "plain", "thaw"]

V = TypeVar("V")


class FrozenMap(Mapping[str, V]):
    """An immutable, hashable mapping; nested mappings and lists are frozen too."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V]) -> None:
        self._items: dict[str, V] = {key: freeze(value) for key, value in items.items()}

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"


def freeze(value: Any) -> Any:
    """Returns an immutable copy of a mapping or a list, including nested values."""
    if isinstance(value, Mapping):
        return FrozenMap(value)
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def thaw(value: Any) -> Any:
    """Returns a frozen value as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, tuple) else value


def plain(value: Any) -> Any:
    """Refuses values that a spec file cannot hold: anything but text, numbers, booleans, and lists and tables of them."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("keys must be text")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{value!r} is not text, a finite number, true, false, a list or a table")
    return value
