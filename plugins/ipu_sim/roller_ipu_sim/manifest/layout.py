"""Conversion of tensors between the host's layout and the stored one: reordered, padded with zeros, in parts on tiles."""

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
    """Returns the stored coordinates of all elements: for each stored dimension an array that broadcasts to the tensor's shape."""
    found = []
    for dim, divisor, modulus in tensor.layout:
        index = np.arange(tensor.shape[dim], dtype=np.int64) // divisor
        digits = index if modulus is None else index % modulus
        found.append(digits.reshape([-1 if d == dim else 1 for d in range(len(tensor.shape))]))
    return tuple(found)


def stored(tensor: TensorHome, array: Array) -> Array:
    """Returns the stored array of a tensor: zeros in positions without an element."""
    result = np.zeros(tensor.stored, dtype=array.dtype)
    result[coordinates(tensor)] = array.reshape(tensor.shape)
    return result


def unstored(tensor: TensorHome, array: Array) -> Array:
    """Returns the tensor of a stored array."""
    return np.array(np.broadcast_to(array[coordinates(tensor)], tensor.shape))


Slices = tuple[slice, ...]


def _boxes(start: Sequence[int], shape: Sequence[int], first: int, last: int) -> Iterator[Slices]:
    """Yields the elements from `first` to before `last` of a box, row-major, as boxes in order: at most two and one a dimension."""
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
    """Returns the boxes of the stored array that a part holds."""
    return _boxes(place.start, place.shape, place.first, place.first + place.elements)


def _at(array: Array, box: Slices) -> Array:
    """Returns a box of an array as a view, also of an array without dimensions."""
    index: tuple[Any, ...] = (*box, ...)
    found: Array = array[index]
    return found


def part(place: Part, array: Array) -> Array:
    """Returns a part's elements of a stored array: in the part's storage order, or as its box where it has strides."""
    pieces = [_at(array, box) for box in _held(place)]
    if place.strides is not None:
        return pieces[0]
    return np.concatenate([piece.reshape(-1) for piece in pieces]) if len(pieces) > 1 else pieces[0].reshape(-1)


def put_part(place: Part, array: Array, values: Array) -> None:
    """Writes a part's values to their positions in a stored array; values in the format of `part`."""
    done, flat = 0, values.reshape(-1)
    for box in _held(place):
        target = _at(array, box)
        target[...] = flat[done : done + target.size].reshape(target.shape)
        done += target.size
