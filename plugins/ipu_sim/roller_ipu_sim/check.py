"""A manifest held against its machine and against itself: whatever breaks a rule is refused with the reason and never run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

import numpy as np

from roller_ipu_sim.boxes import Box, Ranges, numbers
from roller_ipu_sim.flow import Access, Moment, check_flow
from roller_ipu_sim.layout import coordinates, part, stored
from roller_ipu_sim.machine import Machine
from roller_ipu_sim.manifest import BYTES, Buffer, Manifest, ManifestError, Placement, Send, Step, TensorHome, collection_paused
from roller_ipu_sim.memory import check_memory
from roller_ipu_sim.rules import Rules

__all__ = ["check"]

T = TypeVar("T", Buffer, TensorHome)
HOST = {"input": "read", "constant": "read", "output": "written"}


def check(manifest: Manifest, machine: Machine) -> None:
    """Refuse a manifest that this machine would not run as it says; `ManifestError` names step, tile, buffer and what to do."""
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
        _check_tensor(tensor, buffers, manifest.tiles, manifest.tiles * machine.tile_bytes)
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
    """Refuse tiles that are not there or named twice; sets that are known to be right are not looked at again."""
    if tiles in known:
        return
    last = max(first + (n - 1) * step for first, n, step in tiles)
    if last >= count:
        raise ManifestError(f"{where}: tile {last} of {count}; name tiles that are there")
    if sum(n for _, n, _ in tiles) > count or len(np.unique(numbers(tiles))) != len(numbers(tiles)):
        raise ManifestError(f"{where}: a tile is named twice; name each once")
    known.add(tiles)


def _homes(manifest: Manifest, roles: Iterable[str]) -> Iterator[tuple[TensorHome, Placement]]:
    return ((tensor, place) for tensor in manifest.tensors if tensor.role in roles for place in tensor.placements)


def _host(tensor: TensorHome, place: Placement, verb: Literal["reads", "writes"]) -> Access:
    tiles = ((place.tile, 1, 1),)
    shape, strides = ((place.elements,), (1,)) if place.elements > 1 else ((), ())
    box = [Box(place.buffer, place.offset, shape, strides)]
    where = f"the host {verb} tensor {tensor.name!r}"
    return Access(where, tiles, box, tiles, []) if verb == "reads" else Access(where, tiles, [], tiles, box)


def _check_tensor(tensor: TensorHome, buffers: dict[str, Buffer], tiles: int, room: int) -> None:
    where = f"tensor {tensor.name!r}"
    size = max(math.prod(tensor.shape), math.prod(tensor.stored)) * BYTES[tensor.dtype]
    if size > room:
        raise ManifestError(f"{where} takes {size} bytes, {size - room} more than all tiles have; cut the problem smaller")
    if len(tensor.layout) != len(tensor.stored):
        raise ManifestError(f"{where}: {len(tensor.layout)} digits for {len(tensor.stored)} stored extents; give one for each")
    if any(dim >= len(tensor.shape) for dim, _, _ in tensor.layout):
        raise ManifestError(f"{where}: a digit of a dimension that is not there; the tensor has {len(tensor.shape)}")
    digits = coordinates(tensor)
    for place, (found, extent) in enumerate(zip(digits, tensor.stored, strict=True)):
        if int(found.max()) >= extent:
            raise ManifestError(
                f"{where}: coordinate {found.max()} in stored dimension {place}, which has {extent}; make it larger"
            )
    for dim, extent in enumerate(tensor.shape):
        places = np.zeros(1, np.int64)
        for found, digit, radix in zip(digits, tensor.layout, tensor.stored, strict=True):
            if digit[0] == dim:
                places = places * radix + found.reshape(-1)
        taken = np.zeros(math.prod(tensor.stored), np.bool_)
        taken[places] = True
        if extent > 1 and np.count_nonzero(taken) != extent:
            raise ManifestError(f"{where}: elements along dimension {dim} share a stored place; add a digit")
    for placement in tensor.placements:
        _check_placement(where, tensor, placement, buffers, tiles)
    if tensor.role in HOST:
        _check_cover(where, tensor)


def _check_placement(where: str, tensor: TensorHome, placement: Placement, buffers: dict[str, Buffer], tiles: int) -> None:
    buffer = buffers.get(placement.buffer)
    if buffer is None or placement.tile >= tiles:
        raise ManifestError(f"{where}: no buffer {placement.buffer!r} in tile {placement.tile}; place it where one is")
    if buffer.dtype != tensor.dtype:
        raise ManifestError(f"{where} of {tensor.dtype}: buffer {buffer.name!r} is of {buffer.dtype}; use one of that type")
    at, rank = f"{where}, tile {placement.tile}", len(tensor.stored)
    if len(placement.start) != rank or len(placement.shape) != rank:
        raise ManifestError(f"{at}: a box of {len(placement.shape)} dimensions; the stored array has {rank}")
    if any(s + e > x for s, e, x in zip(placement.start, placement.shape, tensor.stored, strict=True)):
        raise ManifestError(f"{at}: a box that leaves the stored array {tensor.stored}; stay inside it")
    whole = math.prod(placement.shape)
    if placement.elements < 1 or placement.first + placement.elements > whole:
        last = placement.first + placement.elements
        raise ManifestError(f"{at}: elements {placement.first} to {last} of a box of {whole}; stay inside it")
    if placement.offset + placement.elements > buffer.elements:
        over = placement.offset + placement.elements - buffer.elements
        raise ManifestError(f"{at}: {over} elements beyond buffer {buffer.name!r}; make it larger")


def _check_cover(where: str, tensor: TensorHome) -> None:
    """Refuse placements that share elements, or leave some of a tensor out that the host reads or writes."""
    numbered = np.arange(math.prod(tensor.stored), dtype=np.int64).reshape(tensor.stored)
    times = np.zeros(numbered.size, dtype=np.int8)
    for placement in tensor.placements:
        found = part(placement, numbered)
        if times[found].any():
            raise ManifestError(f"{where}, tile {placement.tile}: a part that another placement holds too; place each element once")
        times[found] = 1
    wanted = stored(tensor, np.ones(tensor.shape, dtype=np.bool_)).reshape(-1)
    missing = np.flatnonzero(wanted & (times == 0))
    if len(missing):
        place = tuple(int(i) for i in np.unravel_index(missing[0], tensor.stored))
        raise ManifestError(
            f"{where}: the element stored at {place} is {HOST[tensor.role]} by the host, but lies nowhere; place it"
        )


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
    own = ((send.tile, 1, 1),)
    if send.tile >= tiles:
        _check_tiles(where, own, tiles, known)
    _check_tiles(where, send.to.tiles, tiles, known)
    read, written = rules.send(where, send)
    return Access(where, own, [read], send.to.tiles, [written])
