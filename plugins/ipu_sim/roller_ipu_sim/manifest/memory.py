"""Memory of tiles: bytes of each tile at each step, and buffers that do not fit or overlap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.manifest.boxes import Ranges, numbers
from roller_ipu_sim.manifest.models import BYTES, Buffer, Manifest, ManifestError

__all__ = ["check_memory", "fullest"]


def fullest(manifest: Manifest) -> npt.NDArray[np.int64]:
    """Returns the max bytes that are live at once in each tile: at some step at which a buffer becomes live."""
    found = np.zeros(manifest.tiles, dtype=np.int64)
    for step in {buffer.live[0] for buffer in manifest.buffers}:
        held = np.zeros(manifest.tiles, dtype=np.int64)
        for buffer in manifest.buffers:
            if buffer.live[0] <= step <= buffer.live[1]:
                held[numbers(buffer.tiles)] += buffer.nbytes
        found = np.maximum(found, held)
    return found


def check_memory(manifest: Manifest, machine: Machine) -> None:
    """Refuses buffers beyond a tile's memory, and those that overlap while both are live; `ManifestError` names tile and bytes."""
    for buffer in manifest.buffers:
        _check_place(buffer, machine, max(len(manifest.steps), 1))
    for one, other in _neighbours(manifest.buffers):
        tile = _common(one.tiles, other.tiles)
        if tile is not None:
            step = max(one.live[0], other.live[0])
            low, high = max(one.address, other.address), min(one.address + one.nbytes, other.address + other.nbytes)
            raise ManifestError(
                f"tile {tile}: buffers {one.name!r} and {other.name!r} share the bytes {low} to {high} at step {step}; "
                "move one of them, or let it live later"
            )


def _check_place(buffer: Buffer, machine: Machine, steps: int) -> None:
    tile = int(numbers(buffer.tiles)[0])
    where = f"tile {tile}: buffer {buffer.name!r}"
    end = buffer.address + buffer.nbytes
    if end > machine.tile_bytes:
        raise ManifestError(
            f"{where} ends at byte {end}, {end - machine.tile_bytes} bytes beyond the tile's memory of {machine.tile_bytes}; "
            "cut the tile smaller or let buffers share memory one after another"
        )
    if buffer.address < machine.reserved_bytes:
        raise ManifestError(
            f"{where} begins at byte {buffer.address}, inside the {machine.reserved_bytes} bytes that code and exchange have; "
            "place it behind them"
        )
    if buffer.address % BYTES[buffer.dtype]:
        raise ManifestError(f"{where} of {buffer.dtype} begins at byte {buffer.address}, no multiple of an element; align it")
    if not buffer.live[0] <= buffer.live[1] < steps:
        raise ManifestError(f"{where} is live from step {buffer.live[0]} to {buffer.live[1]} of {steps}; name steps that exist")


def _neighbours(buffers: tuple[Buffer, ...]) -> Iterator[tuple[Buffer, Buffer]]:
    """Yields pairs with overlapping addresses and lifetimes."""
    order = sorted(buffers, key=lambda b: b.address)
    starts = np.array([b.address for b in order], dtype=np.int64)
    lives = np.array([b.live for b in order], dtype=np.int64).reshape(-1, 2)
    for place, buffer in enumerate(order):
        end = int(np.searchsorted(starts, buffer.address + buffer.nbytes))
        later = lives[place + 1 : end]
        for found in np.flatnonzero((later[:, 0] <= buffer.live[1]) & (later[:, 1] >= buffer.live[0])):
            yield buffer, order[place + 1 + int(found)]


def _common(one: Ranges, other: Ranges) -> int | None:
    """Returns the first tile that two sets share."""
    found = np.intersect1d(numbers(one), numbers(other), assume_unique=True)
    return int(found[0]) if len(found) else None
