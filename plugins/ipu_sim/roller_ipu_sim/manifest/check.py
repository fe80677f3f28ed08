"""Validation of a manifest against its machine and itself.

A manifest that breaks a rule is refused with the reason, and never runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

import numpy as np

from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.manifest.boxes import Ranges, box, numbers
from roller_ipu_sim.manifest.cover import check_tensor
from roller_ipu_sim.manifest.families import each_send, indices, reach
from roller_ipu_sim.manifest.flow import Access, Moment, check_flow
from roller_ipu_sim.manifest.memory import check_memory
from roller_ipu_sim.manifest.models import Buffer, Manifest, ManifestError, Placement, Send, Step, TensorHome, collection_paused
from roller_ipu_sim.manifest.rules import Rules

__all__ = ["check"]

T = TypeVar("T", Buffer, TensorHome)


def check(manifest: Manifest, machine: Machine) -> None:
    """Refuses a manifest that this machine could not run as written; `ManifestError` names step, tile, buffer and a remedy."""
    with collection_paused():
        _check(manifest, machine)


def _check(manifest: Manifest, machine: Machine) -> None:
    if manifest.chip != machine.chip:
        raise ManifestError(f"a manifest for {manifest.chip!r}, but a machine {machine.chip!r}; take the spec that it was made for")
    if manifest.tiles > machine.tiles:
        raise ManifestError(f"the manifest uses {manifest.tiles} tiles, {machine.chip} has {machine.tiles}; use no more")
    buffers = _named(manifest.buffers, "buffer")
    _named(manifest.tensors, "tensor")
    known: set[Ranges] = set()
    for buffer in manifest.buffers:
        _check_tiles(f"buffer {buffer.name!r}", buffer.tiles, manifest.tiles, known)
    check_memory(manifest, machine)
    for tensor in manifest.tensors:
        check_tensor(tensor, buffers, manifest.tiles, manifest.tiles * machine.tile_bytes)
    rules = Rules(machine, buffers)
    moments = [_moment(rules, number, step, manifest.tiles, known) for number, step in enumerate(manifest.steps)]
    last = len(manifest.steps) - 1
    before = Moment(0, False, [_host(t, p, "writes") for t, p in _homes(manifest, ("input", "constant"))])
    after = Moment(max(last, 0), False, [_host(t, p, "reads") for t, p in _homes(manifest, ("output",))])
    check_flow(buffers, [before, *moments, after])


def _named(things: tuple[T, ...], kind: str) -> dict[str, T]:
    found: dict[str, T] = {}
    for thing in things:
        if thing.name in found:
            raise ManifestError(f"two {kind}s are called {thing.name!r}; give each its own name")
        found[thing.name] = thing
    return found


def _check_tiles(where: str, tiles: Ranges, count: int, known: set[Ranges]) -> None:
    """Refuses tiles that do not exist or are named twice; known valid sets are skipped."""
    if tiles in known:
        return
    last = max(first + (n - 1) * step for first, n, step in tiles)
    least = min(first for first, _, _ in tiles)
    if last >= count or least < 0:
        raise ManifestError(f"{where}: tile {min(least, 0) or last} of {count}; name tiles that are there")
    if sum(n for _, n, _ in tiles) > count or len(np.unique(numbers(tiles))) != len(numbers(tiles)):
        raise ManifestError(f"{where}: a tile is named twice; name each once")
    known.add(tiles)


def _homes(manifest: Manifest, roles: Iterable[str]) -> Iterator[tuple[TensorHome, Placement]]:
    return ((tensor, place) for tensor in manifest.tensors if tensor.role in roles for place in tensor.placements)


def _host(tensor: TensorHome, place: Placement, verb: Literal["reads", "writes"]) -> Access:
    tiles = ((place.tile, 1, 1),)
    dims = [(place.elements, 1)] if place.strides is None else zip(place.shape, place.strides, strict=True)
    boxes = [box(place.buffer, place.offset, dims)]
    where = f"the host {verb} tensor {tensor.name!r}"
    loops = tuple([(count, tile, offset, tile, offset) for count, tile, offset, _, _ in place.loops])
    return Access(where, tiles, boxes, tiles, [], loops) if verb == "reads" else Access(where, tiles, [], tiles, boxes, loops)


def _moment(rules: Rules, number: int, step: Step, tiles: int, known: set[Ranges]) -> Moment:
    where = f"step {number} ({step.name})"
    if step.exchange is not None:
        return Moment(number, True, [_sent(rules, where, i, send, tiles, known) for i, send in enumerate(step.exchange)])
    busy = np.zeros(tiles, dtype=np.bool_)
    accesses = []
    for group in step.compute or ():
        _check_tiles(where, group.tiles, tiles, known)
        own = numbers(group.tiles)
        if busy[own].any():
            raise ManifestError(f"{where}: two vertices on tile {own[busy[own]][0]}; put one of them in another step")
        busy[own] = True
        reads, writes = rules.vertex(where, group)
        accesses.append(Access(f"{where}, {group.vertex.kind}", group.tiles, reads, group.tiles, [writes]))
    return Moment(number, False, accesses)


def _sent(rules: Rules, where: str, number: int, send: Send, tiles: int, known: set[Ranges]) -> Access:
    where = f"{where}, send {number} of tile {send.tile}"
    read, written = rules.send(where, send)
    if send.loops or send.others:
        _check_family(where, send, tiles, known)
    else:
        _check_ends(where, send, tiles, known)
    return Access(where, ((send.tile, 1, 1),), [read], send.to.tiles, [written], send.loops, send.others)


def _check_ends(where: str, send: Send, tiles: int, known: set[Ranges]) -> None:
    """Refuses a sender or receivers that do not exist."""
    if not 0 <= send.tile < tiles:
        raise ManifestError(f"{where}: tile {send.tile} of {tiles}; name tiles that are there")
    if not send.to.tiles:
        raise ManifestError(f"{where}: the only receiver is the sender itself, tile {send.tile}; name others")
    _check_tiles(where, send.to.tiles, tiles, known)


def _check_family(where: str, send: Send, tiles: int, known: set[Ranges]) -> None:
    """Refuses a family in which some send has a sender or receivers that do not exist."""
    low, high = reach(send.tile, [(loop[0], loop[1]) for loop in send.loops])
    by_low, by_high = reach(0, [(loop[0], loop[3]) for loop in send.loops])
    first, last = min([n for n, _, _ in send.to.tiles]), max([n + (count - 1) * step for n, count, step in send.to.tiles])
    if low >= 0 and high < tiles and first + by_low >= 0 and last + by_high < tiles and (not send.others or last > first):
        _check_tiles(where, send.to.tiles, tiles, known)
        return
    for index, one in zip(indices(send.loops), each_send(send), strict=True):
        _check_ends(f"{where}, repetition {list(index)}" if send.loops else where, one, tiles, known)
