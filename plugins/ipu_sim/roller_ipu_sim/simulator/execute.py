"""Execution of a manifest: moves and computes numbers, vectorised over the tiles of a group, and counts cycles.

Products: the sum over one grain is formed in float64 and added to the accumulator, which is then rounded to its type; grains come
in the order of the loops over k. Where a float64 does not hold a grain's sum exactly (float32 operands, or float16 ones of very
different size), it is off by less than 2^-48 of the largest term, far below the rounding that follows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from roller.plugin import HardwareSpec, LaunchError, numpy_dtype
from roller_ipu_sim.chip.machine import machine
from roller_ipu_sim.manifest.boxes import Array, Ranges, Rows, numbers, rows_of, view
from roller_ipu_sim.manifest.check import check
from roller_ipu_sim.manifest.families import Part, each_placement, each_send
from roller_ipu_sim.manifest.layout import part, put_part, stored, unstored
from roller_ipu_sim.manifest.models import (
    Amp,
    AmpLoop,
    Buffer,
    Copy,
    Fill,
    Manifest,
    Map,
    Reduce,
    Send,
    TensorHome,
    VertexGroup,
    number,
)
from roller_ipu_sim.manifest.trees import Tree
from roller_ipu_sim.simulator import values
from roller_ipu_sim.simulator.counting import profiled
from roller_ipu_sim.simulator.profile import Profile

__all__ = ["Execution", "Order", "Simulation", "execute"]

POISON = 0xFF  # in every byte: NaN in each floating type
PIECE = 1 << 17  # results processed at once: 1 MiB of float64, so that they stay in a cache
POINTS = 1 << 21  # points of a reduction evaluated at once

# The order of the vertices of a compute set and of the sends of an exchange; results must not depend on it.
Order = Literal["forwards", "backwards"]


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """The result of an execution: the outputs by name, and the profile."""

    outputs: dict[str, Array]
    profile: Profile


def execute(manifest: Manifest, spec: HardwareSpec, inputs: Mapping[str, Array], order: Order = "forwards") -> Execution:
    """Checks, counts and runs a manifest once; see `Simulation`."""
    return Simulation(manifest, spec).run(inputs, order)


class Simulation:
    """A manifest on the machine of a spec, checked and counted once, for any number of runs. `ManifestError` if it is refused."""

    def __init__(self, manifest: Manifest, spec: HardwareSpec) -> None:
        chip = machine(spec)
        check(manifest, chip)
        self._manifest, self.profile = manifest, profiled(manifest, chip)

    def run(self, inputs: Mapping[str, Array], order: Order = "forwards") -> Execution:
        """Returns the outputs. `inputs`: arrays of all inputs and constants by name, of their sizes and types, or `LaunchError`."""
        with np.errstate(all="ignore"):
            return Execution(_Run(self._manifest).outputs(inputs, order), self.profile)


class _Memory:
    """The live buffers: for each its bytes in all of its tiles."""

    def __init__(self, buffers: tuple[Buffer, ...]) -> None:
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self._dtypes = {buffer.name: numpy_dtype(buffer.dtype) for buffer in buffers}
        self._counts = {buffer.name: len(numbers(buffer.tiles)) for buffer in buffers}
        self._raw: dict[str, Array] = {}

    def live_at(self, step: int) -> None:
        """Poisons buffers that become live, drops those that no longer are."""
        for name, buffer in self.buffers.items():
            first, last = buffer.live
            if first <= step <= last and name not in self._raw:
                self._raw[name] = np.full(self._counts[name] * buffer.nbytes, POISON, dtype=np.uint8)
            elif step > last:
                self._raw.pop(name, None)

    def view(self, name: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Returns elements of a buffer in all of its tiles as [tiles, *shape]."""
        rows = (self._counts[name], self.buffers[name].elements)
        return view(self._raw[name], self._dtypes[name], rows, offset, shape, strides)

    def ranged(self, name: str) -> bool:
        """Returns True if a buffer's tiles are consecutive."""
        tiles = self.buffers[name].tiles
        return len(tiles) == 1 and tiles[0][2] == 1

    def repeated(
        self,
        name: str,
        place: tuple[int, int],
        loops: Sequence[tuple[int, int, int]],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> Array:
        """Returns elements of a buffer with consecutive tiles, from a tile and an element on: [*loops, *shape].

        A loop is (count, tiles, elements).
        """
        buffer, dtype = self.buffers[name], self._dtypes[name]
        row, size = buffer.elements, dtype.itemsize
        begin = (place[0] - buffer.tiles[0][0]) * row + place[1]
        steps = (*[tile * row + offset for _, tile, offset in loops], *strides)
        extents = (*[count for count, _, _ in loops], *shape)
        return np.ndarray(extents, dtype, self._raw[name], begin * size, tuple([step * size for step in steps]))

    def rows(self, name: str, tiles: Ranges) -> Rows:
        """Returns the rows of these tiles in a buffer."""
        found = rows_of(self.buffers[name].tiles, tiles)
        assert not isinstance(found, int), "checked before"
        return found

    def dtype(self, name: str) -> str:
        """Returns the element type of a buffer."""
        return self.buffers[name].dtype


def _cut(rows: Rows, first: int, last: int) -> Rows:
    """Returns the rows from the first to before the last."""
    if not isinstance(rows, slice):
        return rows[first:last]
    step = rows.step or 1
    return slice(rows.start + first * step, rows.start + last * step, step)


def _pieces(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields tiles in pieces, so that a piece has few results (`size` per tile)."""
    step = max(1, PIECE // max(size, 1))
    return ((first, min(first + step, count)) for first in range(0, count, step))


class _Run:
    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._memory = _Memory(manifest.buffers)

    def outputs(self, inputs: Mapping[str, Array], order: Order) -> dict[str, Array]:
        self._memory.live_at(0)
        wanted = {tensor.name for tensor in self._manifest.tensors if tensor.role in ("input", "constant")}
        if set(inputs) != wanted:
            raise LaunchError(f"arrays {', '.join(sorted(inputs)) or 'none'}; give {', '.join(sorted(wanted)) or 'none'}")
        for tensor in self._manifest.tensors:
            if tensor.name in wanted:
                self._write(tensor, inputs[tensor.name])
        turn = 1 if order == "forwards" else -1
        for place, step in enumerate(self._manifest.steps):
            self._memory.live_at(place)
            for group in (step.compute or ())[::turn]:
                self._vertex(group)
            for send in (step.exchange or ())[::turn]:
                self._sent(send)
        return {tensor.name: self._read(tensor) for tensor in self._manifest.tensors if tensor.role == "output"}

    def _write(self, tensor: TensorHome, array: Array) -> None:
        if array.dtype != numpy_dtype(tensor.dtype) or array.size != math.prod(tensor.shape):
            raise LaunchError(f"{tensor.name}: {array.dtype} {array.shape}; give {tensor.dtype} {tensor.shape}")
        whole = stored(tensor, array)
        for place in each_placement(tensor.placements):
            self._held(place)[...] = part(place, whole)

    def _read(self, tensor: TensorHome) -> Array:
        dtype = numpy_dtype(tensor.dtype)
        nbytes = math.prod(tensor.stored) * dtype.itemsize
        whole: Array = np.full(nbytes, POISON, dtype=np.uint8).view(dtype).reshape(tensor.stored)
        for place in each_placement(tensor.placements):
            put_part(place, whole, self._held(place))
        return unstored(tensor, whole)

    def _held(self, place: Part) -> Array:
        """Returns the contents of a part's position: its elements in order, or its box where it has strides."""
        shape, strides = ((place.elements,), (1,)) if place.strides is None else (place.shape, place.strides)
        rows = self._memory.rows(place.buffer, ((place.tile, 1, 1),))
        found: Array = self._memory.view(place.buffer, place.offset, shape, strides)[rows][0]
        return found

    def _sent(self, send: Send) -> None:
        """Runs a family as one copy where its tiles are ranges, else send by send."""
        memory, to = self._memory, send.to
        if not send.loops or send.others or not (memory.ranged(send.buffer) and memory.ranged(to.buffer)):
            for one in each_send(send):
                self._send(one)
            return
        from_loops, to_loops = ([(loop[0], loop[at], loop[at + 1]) for loop in send.loops] for at in (1, 3))
        source = memory.repeated(send.buffer, (send.tile, send.offset), [*from_loops, (1, 0, 0)], send.shape, send.strides)
        for first, count, step in to.tiles:
            loops = [*to_loops, (count, step, 0)]
            memory.repeated(to.buffer, (first, to.offset), loops, send.shape, send.to_strides)[...] = source

    def _send(self, send: Send) -> None:
        memory = self._memory
        source = memory.view(send.buffer, send.offset, send.shape, send.strides)
        target = memory.view(send.to.buffer, send.to.offset, send.shape, send.to_strides)
        target[memory.rows(send.to.buffer, send.to.tiles)] = source[memory.rows(send.buffer, ((send.tile, 1, 1),))]

    def _vertex(self, group: VertexGroup) -> None:
        match group.vertex:
            case Amp():
                _Product(self._memory, group.tiles, group.vertex).run()
            case Map():
                _Mapped(self._memory, group, group.vertex).run()
            case Reduce():
                self._reduce(group.tiles, group.vertex)
            case Fill():
                self._fill(group.tiles, group.vertex)
            case Copy():
                self._copy(group.tiles, group.vertex)

    def _reduce(self, tiles: Ranges, vertex: Reduce) -> None:
        memory = self._memory
        parts = memory.view(vertex.parts.buffer, vertex.parts.offset, (vertex.partials, vertex.outputs), (vertex.step, 1))
        found = values.converted(parts[memory.rows(vertex.parts.buffer, tiles)], vertex.acc_dtype)
        total = found[:, 0]
        for place in range(1, vertex.partials):
            total = values.folded("sum", total, found[:, place])
        target = memory.view(vertex.out.buffer, vertex.out.offset, (vertex.outputs,), (1,))
        target[memory.rows(vertex.out.buffer, tiles)] = values.converted(total, memory.dtype(vertex.out.buffer))

    def _fill(self, tiles: Ranges, vertex: Fill) -> None:
        memory, place = self._memory, vertex.to
        target = memory.view(place.buffer, place.offset, (vertex.elements,), (1,))
        target[memory.rows(place.buffer, tiles)] = values.converted(np.asarray(number(vertex.value)), memory.dtype(place.buffer))

    def _copy(self, tiles: Ranges, vertex: Copy) -> None:
        memory, source, place = self._memory, vertex.source, vertex.to
        found = memory.view(source.buffer, source.offset, (vertex.elements,), (1,))[memory.rows(source.buffer, tiles)]
        memory.view(place.buffer, place.offset, (vertex.elements,), (1,))[memory.rows(place.buffer, tiles)] = found


class _Product:
    """One vertex of the matrix unit on its tiles."""

    def __init__(self, memory: _Memory, tiles: Ranges, vertex: Amp) -> None:
        self._memory, self._tiles, self._vertex = memory, tiles, vertex
        loops = {role: [loop for loop in vertex.loops if loop.role == role] for role in "gmnk"}
        self._groups, self._rows, self._columns = loops["g"], loops["m"], loops["n"]
        self._grain, self._outer = loops["k"][-1], loops["k"][:-1]

    def run(self) -> None:
        vertex = self._vertex
        out = self._view("out", (), [*self._groups, *self._rows, *self._columns])
        rows = {which: self._memory.rows(getattr(vertex, which).buffer, self._tiles) for which in ("a", "w", "out")}
        size = math.prod(out.shape[1:])
        for first, last in _pieces(len(numbers(self._tiles)), size):
            cut = {which: _cut(found, first, last) for which, found in rows.items()}
            out[cut["out"]] = self._piece(cut, last - first, out).reshape(last - first, *out.shape[1:])

    def _piece(self, cut: Mapping[str, Rows], count: int, out: Array) -> Array:
        g, m, n = (math.prod(loop.extent for loop in loops) for loops in (self._groups, self._rows, self._columns))
        held: Array = (
            np.zeros((count, g, m, n)) if self._vertex.zero else out[cut["out"]].astype(np.float64).reshape(count, g, m, n)
        )
        grain = self._grain.extent
        for index in itertools.product(*(range(loop.extent) for loop in self._outer)):
            a = self._view("a", index, [*self._groups, *self._rows, self._grain])[cut["a"]]
            w = self._view("w", index, [*self._groups, *self._columns, self._grain])[cut["w"]]
            left, right = a.astype(np.float64).reshape(count, g, m, grain), w.astype(np.float64).reshape(count, g, n, grain)
            held += left @ right.swapaxes(-1, -2)
            held = held.astype(out.dtype).astype(np.float64)
        return held.astype(out.dtype)

    def _view(self, which: str, index: tuple[int, ...], loops: list[AmpLoop]) -> Array:
        """Returns an operand over some loops, at one index of the loops over k other than the grain."""
        place = getattr(self._vertex, which)
        offset = place.offset + sum(i * getattr(loop, which) for i, loop in zip(index, self._outer, strict=False))
        steps = tuple(getattr(loop, which) for loop in loops)
        return self._memory.view(place.buffer, offset, tuple(loop.extent for loop in loops), steps)


class _Mapped:
    """One elementwise vertex on its tiles."""

    def __init__(self, memory: _Memory, group: VertexGroup, vertex: Map) -> None:
        self._memory, self._group, self._vertex = memory, group, vertex
        self._kept = len(vertex.loops) - vertex.reduce
        self._shape, self._points = vertex.loops[: self._kept], vertex.loops[self._kept :]

    def run(self) -> None:
        vertex, memory = self._vertex, self._memory
        out = memory.view(vertex.out.buffer, vertex.out.offset, self._shape, vertex.out.strides)
        rows = memory.rows(vertex.out.buffer, self._group.tiles)
        for first, last in _pieces(len(numbers(self._group.tiles)), math.prod(self._shape)):
            cut = _cut(rows, first, last)
            held = out[cut].copy() if vertex.accumulate else None
            found = self._folded(first, last, held) if vertex.reducer else self._body(first, last, ())
            if vertex.epilogue is not None:
                found = self._evaluated(vertex.epilogue, first, last, (), found)
            out[cut] = values.converted(found, memory.dtype(vertex.out.buffer))

    def _folded(self, first: int, last: int, held: Array | None) -> Array:
        """Returns the fold over all points, in order, from the held values or the reducer's start value."""
        reducer = self._vertex.reducer
        assert reducer is not None, "asked for only with one"
        outputs = (last - first) * math.prod(self._shape)
        depth = next(
            d for d in range(len(self._points) + 1) if outputs * math.prod(self._points[d:]) <= POINTS or d == len(self._points)
        )
        for index in itertools.product(*(range(extent) for extent in self._points[:depth])):
            found = self._body(first, last, index)
            shape = (last - first, *self._shape, *self._points[depth:])
            values_at = np.broadcast_to(found, shape).reshape(last - first, *self._shape, -1)
            for point in range(values_at.shape[-1]):
                if held is None:
                    start = values.start(reducer, found.dtype.name)
                    held = values_at[..., point] if start is None else values.folded(reducer, start, values_at[..., point])
                else:
                    held = values.folded(reducer, held, values_at[..., point])
        assert held is not None, "an extent is at least 1"
        return held

    def _body(self, first: int, last: int, index: tuple[int, ...]) -> Array:
        return self._evaluated(self._vertex.body, first, last, index, None)

    def _evaluated(self, tree: Tree, first: int, last: int, index: tuple[int, ...], result: Array | None) -> Array:
        """Returns a tree on some tiles as [tiles, kept loops, reduce loops]; the first of the reduce loops are fixed at an index.

        With a result it is the epilogue, which has kept loops only.
        """
        vertex, epilogue = self._vertex, result is not None
        loops = self._shape if epilogue else vertex.loops
        fixed = slice(self._kept, self._kept + len(index))
        free = (*loops[: fixed.start], *loops[fixed.stop :])

        def leaf(node: Tree) -> Array:
            match node:
                case ("load", which):
                    place = (vertex.epilogue_loads if epilogue else vertex.loads)[which]
                    offset = place.offset + sum(i * s for i, s in zip(index, place.strides[fixed], strict=True))
                    strides = (*place.strides[: fixed.start], *place.strides[fixed.stop :])
                    rows = _cut(self._memory.rows(place.buffer, self._group.tiles), first, last)
                    return self._memory.view(place.buffer, offset, free, strides)[rows]
                case ("index", loop, scale, origin):
                    return self._index(loop, scale, origin, (first, last), loops, index)
            assert result is not None, "a result is read only in an epilogue"
            return result

        return values.evaluate(tree, leaf)

    def _index(
        self, loop: int, scale: int, origin: str | None, tiles: tuple[int, int], loops: tuple[int, ...], index: tuple[int, ...]
    ) -> Array:
        """Returns the scaled index: scale * the index of a loop + the tile's origin, as int32."""
        count = tiles[1] - tiles[0]
        base = np.zeros(count, dtype=np.int64) if origin is None else np.array(self._group.origins[origin][tiles[0] : tiles[1]])
        rank = len(loops) - len(index)
        fixed = range(self._kept, self._kept + len(index))
        if loop in fixed:
            steps: Array = np.array(scale * index[loop - self._kept])
        else:
            axis = loop if loop < self._kept else loop - len(index)
            steps = (scale * np.arange(loops[loop])).reshape([-1 if d == axis else 1 for d in range(rank)])
        found: Array = base.reshape(-1, *[1] * rank) + steps
        return found.astype(np.int32)
