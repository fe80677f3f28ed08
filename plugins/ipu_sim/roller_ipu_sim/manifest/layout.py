"""Tensors of a manifest as the host knows them and as they are stored: reordered, padded with zeros, in parts on tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from roller_ipu_sim.manifest.boxes import Array
from roller_ipu_sim.manifest.families import Part
from roller_ipu_sim.manifest.models import TensorHome

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
    return np.array(np.broadcast_to(array[coordinates(tensor)], tensor.shape))


Slices = tuple[slice, ...]


def _boxes(start: Sequence[int], shape: Sequence[int], first: int, last: int) -> Iterator[Slices]:
    """The elements from `first` to before `last` of a box, row-major, as boxes in order: at most two and one a dimension."""
    whole = tuple(slice(s, s + e) for s, e in zip(start, shape, strict=True))
    if first == 0 and last == math.prod(shape):
        yield whole
        return
    if len(shape) == 1:
        yield (slice(start[0] + first, start[0] + last),)
        return
    inner = math.prod(shape[1:])

    def within(row: int, begin: int, end: int) -> Iterator[Slices]:
        place = slice(start[0] + row, start[0] + row + 1)
        return ((place, *rest) for rest in _boxes(start[1:], shape[1:], begin, end))

    head, tail = -(-first // inner), last // inner  # rows from head to before tail are whole
    if head > tail:
        yield from within(tail, first - tail * inner, last - tail * inner)
        return
    if first < head * inner:
        yield from within(head - 1, first - (head - 1) * inner, inner)
    if head < tail:
        yield (slice(start[0] + head, start[0] + tail), *whole[1:])
    if last > tail * inner:
        yield from within(tail, 0, last - tail * inner)


def _held(place: Part) -> Iterator[Slices]:
    """The boxes of the stored array that a part holds."""
    return _boxes(place.start, place.shape, place.first, place.first + place.elements)


def _at(array: Array, box: Slices) -> Array:
    """A box of an array as a view, of an array without dimensions too."""
    index: tuple[Any, ...] = (*box, ...)
    found: Array = array[index]
    return found


def part(place: Part, array: Array) -> Array:
    """What of a stored array a part holds: in the order in which it lies there, or as its box where that lies in strides."""
    pieces = [_at(array, box) for box in _held(place)]
    if place.strides is not None:
        return pieces[0]
    return np.concatenate([piece.reshape(-1) for piece in pieces]) if len(pieces) > 1 else pieces[0].reshape(-1)


def put_part(place: Part, array: Array, values: Array) -> None:
    """Write what a part holds to its place in a stored array; values as `part` gives them."""
    done, flat = 0, values.reshape(-1)
    for box in _held(place):
        target = _at(array, box)
        target[...] = flat[done : done + target.size].reshape(target.shape)
        done += target.size
