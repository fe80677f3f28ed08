"""Validation of a manifest's tensors: elements have positions of their own, and placements hold each of them exactly once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from roller_ipu_sim.manifest.boxes import Array
from roller_ipu_sim.manifest.families import each_placement, reach, repetitions
from roller_ipu_sim.manifest.layout import part, stored
from roller_ipu_sim.manifest.models import BYTES, Buffer, ManifestError, Placement, TensorHome

__all__ = ["HOST", "check_tensor"]

HOST = {"input": "read", "constant": "read", "output": "written"}


def check_tensor(tensor: TensorHome, buffers: Mapping[str, Buffer], tiles: int, room: int) -> None:
    """Refuses a tensor with elements that share a position, are not placed or are placed twice. `room`: bytes of all tiles."""
    where = f"tensor {tensor.name!r}"
    size = max(math.prod(tensor.shape), math.prod(tensor.stored)) * BYTES[tensor.dtype]
    if size > room:
        raise ManifestError(f"{where} takes {size} bytes, {size - room} more than all tiles have; cut the problem smaller")
    if len(tensor.layout) != len(tensor.stored):
        raise ManifestError(f"{where}: {len(tensor.layout)} digits for {len(tensor.stored)} stored extents; give one for each")
    if any(dim >= len(tensor.shape) for dim, _, _ in tensor.layout):
        raise ManifestError(f"{where}: a digit of a dimension that is not there; the tensor has {len(tensor.shape)}")
    for place, ((dim, divisor, modulus), extent) in enumerate(zip(tensor.layout, tensor.stored, strict=True)):
        highest = max(tensor.shape[dim] - 1, 0) // divisor
        highest = highest if modulus is None else min(highest, modulus - 1)
        if highest >= extent:
            raise ManifestError(f"{where}: coordinate {highest} in stored dimension {place}, which has {extent}; make it larger")
    for dim in range(len(tensor.shape)):
        if not _distinct(tensor, dim):
            raise ManifestError(f"{where}: elements along dimension {dim} share a stored place; add a digit")
    for placement in tensor.placements:
        _check_placement(where, tensor, placement, buffers, tiles)
    if tensor.role in HOST and not (_in_boxes(tensor) or _in_granules(tensor)):
        _check_cover(where, tensor)


def _distinct(tensor: TensorHome, dim: int) -> bool:
    """Returns True if no two elements along a dimension have the same digits."""
    extent = tensor.shape[dim]
    digits = sorted([digit[1:] for digit in tensor.layout if digit[0] == dim], key=lambda digit: digit[0])
    known = 1  # the digits determine the index modulo this
    for divisor, modulus in digits:
        if divisor == known:
            known = max(extent, known) if modulus is None else known * modulus
    if extent <= 1 or known >= extent:
        return True
    index = np.arange(extent, dtype=np.int64)
    rows = [index // divisor if modulus is None else index // divisor % modulus for divisor, modulus in digits]
    return bool(rows) and np.unique(np.stack(rows), axis=1).shape[1] == extent


# --- placements ------------------------------------------------------------------------------------------------------


def _check_placement(where: str, tensor: TensorHome, placement: Placement, buffers: Mapping[str, Buffer], tiles: int) -> None:
    """Refuses a placement, or a family of them, that leaves its buffer, its box or the stored array."""
    buffer, rank = buffers.get(placement.buffer), len(tensor.stored)
    at = f"{where}, tile {placement.tile}"
    if buffer is None:
        raise ManifestError(f"{where}: no buffer {placement.buffer!r} in tile {placement.tile}; place it where one is")
    if buffer.dtype != tensor.dtype:
        raise ManifestError(f"{where} of {tensor.dtype}: buffer {buffer.name!r} is of {buffer.dtype}; use one of that type")
    ranks = {len(placement.start), len(placement.shape), *[len(loop[3]) for loop in placement.loops]}
    if ranks != {rank}:
        raise ManifestError(f"{at}: a box of {max(ranks - {rank})} dimensions; the stored array has {rank}")
    if repetitions(placement.loops) > math.prod(tensor.stored):
        raise ManifestError(f"{at}: {repetitions(placement.loops)} repetitions of a part; place each element once")
    if placement.count is None and any(loop[0] > 1 and loop[4] for loop in placement.loops):
        raise ManifestError(f"{at}: parts that begin at different elements of a box; say how many each holds")
    _check_strides(at, placement)
    corners = [reach(first, loops) for first, loops in _columns(placement)]
    for which in (0, 1):
        tile, offset, first, *start = (corner[which] for corner in corners)
        if _wrong(where, tensor, placement, buffer, tiles, (tile, offset, first, *start)):
            break
    else:
        return
    for one in each_placement((placement,)):
        said = _wrong(where, tensor, placement, buffer, tiles, (one.tile, one.offset, one.first, *one.start))
        if said:
            raise ManifestError(said)


def _check_strides(at: str, placement: Placement) -> None:
    strides, shape = placement.strides, placement.shape
    if strides is None:
        return
    if len(strides) != len(shape) or placement.first or placement.count is not None or any(loop[4] for loop in placement.loops):
        raise ManifestError(f"{at}: what lies in strides is a whole box with a step for each of its dimensions; place it so")
    if strides and strides[-1] != 1:
        raise ManifestError(f"{at}: the last dimension of a box in steps of {strides[-1]}; let it lie densely")
    inner = list(zip(strides, strides[1:], shape[1:], strict=False))
    if any(step < after * extent for step, after, extent in inner):
        raise ManifestError(f"{at}: rows of a box that overlap in buffer {placement.buffer!r}; take larger steps")


def _columns(placement: Placement) -> list[tuple[int, list[tuple[int, int]]]]:
    """Returns tile, offset, first element and start, each with its changes by the loops."""
    rows = [(loop[0], (loop[1], loop[2], loop[4], *loop[3])) for loop in placement.loops]
    values = (placement.tile, placement.offset, placement.first, *placement.start)
    return [(value, [(count, step[column]) for count, step in rows]) for column, value in enumerate(values)]


def _wrong(where: str, tensor: TensorHome, placement: Placement, buffer: Buffer, tiles: int, row: tuple[int, ...]) -> str:
    """Returns the error of a part with that tile, offset, first element and start; empty if it is valid."""
    tile, offset, first, *start = row
    at = f"{where}, tile {tile}"
    if not 0 <= tile < tiles:
        return f"{where}: no buffer {placement.buffer!r} in tile {tile}; place it where one is"
    if min(start, default=0) < 0 or any(s + e > x for s, e, x in zip(start, placement.shape, tensor.stored, strict=True)):
        return f"{at}: a box that leaves the stored array {tensor.stored}; stay inside it"
    whole, count = math.prod(placement.shape), placement.elements
    if count < 1 or first < 0 or first + count > whole:
        return f"{at}: elements {first} to {first + count} of a box of {whole}; stay inside it"
    if offset < 0:
        return f"{at}: {-offset} elements before buffer {buffer.name!r}; place it inside"
    length = count
    if placement.strides is not None:
        length = 1 + sum([(e - 1) * s for e, s in zip(placement.shape, placement.strides, strict=True)])
    if offset + length > buffer.elements:
        return f"{at}: {offset + length - buffer.elements} elements beyond buffer {buffer.name!r}; make it larger"
    return ""


# --- cover -----------------------------------------------------------------------------------------------------------


def _in_boxes(tensor: TensorHome) -> bool:
    """Returns True if all placements are parts of equal adjacent boxes, and hold the whole stored array exactly once."""
    shape = tensor.placements[0].shape if tensor.placements else tensor.stored
    if not tensor.placements or any(p.shape != shape for p in tensor.placements):
        return False
    if any(x % e for x, e in zip(tensor.stored, shape, strict=True)):
        return False
    unit = math.prod(shape)
    for placement in tensor.placements:
        begins = (placement.start, *[loop[3] for loop in placement.loops])
        if any(s % e for step in begins for s, e in zip(step, shape, strict=True)):
            return False
        unit = math.gcd(unit, placement.first, placement.elements, *[loop[4] for loop in placement.loops])
    counts = [x // e for x, e in zip(tensor.stored, shape, strict=True)]
    apart = [math.prod(counts[dim + 1 :]) * math.prod(shape) // unit for dim in range(len(counts))]
    taken = np.zeros(math.prod(tensor.stored) // unit, np.bool_)
    for placement in tensor.placements:
        begin, steps = _linear(placement, apart, shape, unit)
        run = (placement.elements // unit, 1)
        _view(taken, begin, [*steps, run])[...] = True
    held = sum([repetitions(p.loops) * (p.elements // unit) for p in tensor.placements])
    return held == taken.size and bool(taken.all())


def _in_granules(tensor: TensorHome) -> bool:
    """Returns True if all placements are whole boxes, and hold the whole stored array exactly once."""
    if any(p.elements != math.prod(p.shape) for p in tensor.placements):
        return False
    granules = list(tensor.stored)
    for placement in tensor.placements:
        for step in (placement.start, placement.shape, *[loop[3] for loop in placement.loops]):
            granules = [math.gcd(g, s) for g, s in zip(granules, step, strict=True)]
    counts = [x // g for x, g in zip(tensor.stored, granules, strict=True)]
    apart = [math.prod(counts[dim + 1 :]) for dim in range(len(counts))]
    taken = np.zeros(math.prod(counts), np.bool_)
    held = 0
    for placement in tensor.placements:
        box = [e // g for e, g in zip(placement.shape, granules, strict=True)]
        begin, steps = _linear(placement, apart, granules, 0)
        _view(taken, begin, [*steps, *zip(box, apart, strict=True)])[...] = True
        held += repetitions(placement.loops) * math.prod(box)
    return held == taken.size and bool(taken.all())


def _linear(placement: Placement, apart: Sequence[int], unit: Sequence[int], first: int) -> tuple[int, list[tuple[int, int]]]:
    """Returns the start of a family in an array of units of boxes, and its loops there; `first`: elements of a box in one unit."""

    def place(start: Sequence[int], element: int) -> int:
        return sum([s // u * a for s, u, a in zip(start, unit, apart, strict=True)]) + (element // first if first else 0)

    return place(placement.start, placement.first), [(loop[0], place(loop[3], loop[4])) for loop in placement.loops]


def _view(taken: Array, begin: int, loops: Sequence[tuple[int, int]]) -> Array:
    return np.ndarray([count for count, _ in loops], taken.dtype, taken, begin, [step for _, step in loops])


def _check_cover(where: str, tensor: TensorHome) -> None:
    """Refuses placements that share elements, or omit elements of a tensor that the host reads or writes."""
    numbered = np.arange(math.prod(tensor.stored), dtype=np.int64).reshape(tensor.stored)
    times = np.zeros(numbered.size, dtype=np.int8)
    for placement in each_placement(tensor.placements):
        found = part(placement, numbered).reshape(-1)
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
