"""Mappings that cannot change and can be hashed: what specs, artifacts and kernels hold beside plain fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["FrozenMap", "freeze", "plain", "thaw"]

V = TypeVar("V")


class FrozenMap(Mapping[str, V]):
    """A mapping that cannot change and can be hashed; nested mappings and lists are frozen with it."""

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
    """A mapping or a list, and what is in it, as something that cannot change."""
    if isinstance(value, Mapping):
        return FrozenMap(value)
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def thaw(value: Any) -> Any:
    """What was frozen, as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, tuple) else value


def plain(value: Any) -> Any:
    """Refuse what a spec file could not hold: anything but text, numbers, truth values, lists and tables of them."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("keys must be text")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{value!r} is not text, a finite number, true, false, a list or a table")
    return value
