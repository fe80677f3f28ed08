"""Tensors of a manifest as the host knows them and as they are stored: reordered, padded with zeros, in parts on tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.boxes import Array
from roller_ipu_sim.manifest import Placement, TensorHome

__all__ = ["coordinates", "part", "put_part", "stored", "unstored"]


def coordinates(tensor: TensorHome) -> tuple[npt.NDArray[np.int64], ...]:
    """The stored coordinates of all elements: for each stored dimension an array that broadcasts to the tensor's shape."""
    found = []
    for dim, divisor, modulus in tensor.layout:
        index = np.arange(tensor.shape[dim], dtype=np.int64) // divisor
        digits = index if modulus is None else index % modulus
        found.append(digits.reshape([-1 if d == dim else 1 for d in range(len(tensor.shape))]))
    return tuple(found)


def stored(tensor: TensorHome, array: Array) -> Array:
    """The stored array of a tensor: zeros where it has no element."""
    result = np.zeros(tensor.stored, dtype=array.dtype)
    result[coordinates(tensor)] = array.reshape(tensor.shape)
    return result


def unstored(tensor: TensorHome, array: Array) -> Array:
    """The tensor of a stored array."""
    return np.broadcast_to(array[coordinates(tensor)], tensor.shape).copy()


def _pieces(placement: Placement) -> Iterator[tuple[tuple[slice, ...], int]]:
    """The part of a box that a placement holds, as boxes in order, with the elements of each."""
    shape, first, last = placement.shape, placement.first, placement.first + placement.elements
    if first == 0 and last == math.prod(shape):
        yield tuple(slice(s, s + e) for s, e in zip(placement.start, shape, strict=True)), last
        return
    inner = math.prod(shape[1:])
    for row in range(first // inner, -(-last // inner)):
        begin, end = max(first - row * inner, 0), min(last - row * inner, inner)
        place = placement.start[0] + row
        if len(shape) == 1:
            yield (slice(place, place + 1),), 1
            continue
        rest = placement.model_copy(update={"start": placement.start[1:], "shape": shape[1:], "first": begin, "count": end - begin})
        for box, count in _pieces(rest):
            yield (slice(place, place + 1), *box), count


def part(placement: Placement, array: Array) -> Array:
    """What of a stored array a placement holds, in the order in which it lies there."""
    pieces = [array[box].reshape(-1) for box, _ in _pieces(placement)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def put_part(placement: Placement, array: Array, values: Array) -> None:
    """Write what a placement holds to its place in a stored array."""
    done = 0
    for box, count in _pieces(placement):
        array[box] = values[done : done + count].reshape(array[box].shape)
        done += count
