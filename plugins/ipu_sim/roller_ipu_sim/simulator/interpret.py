"""Slow interpreter of a manifest, the oracle of `execute`: one tile, one vertex, one element at a time, in bytes at addresses.

It shares with `execute` only the manifest, the machine's constants and the formulas of `cycles`: addresses, layouts, arithmetic and
the count of words are its own. It checks nothing, and may give wrong results for a manifest that `check` refuses. A grain's
products are summed exactly (`math.fsum`), then added to the accumulator in float64 and rounded to its type.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from roller.plugin import HardwareSpec, numpy_dtype
from roller_ipu_sim.chip import cycles
from roller_ipu_sim.chip.machine import Machine, machine
from roller_ipu_sim.manifest.models import (
    BYTES,
    Amp,
    Buffer,
    Copy,
    Fill,
    Manifest,
    Map,
    Placement,
    Reduce,
    Ref,
    Send,
    TensorHome,
    VertexGroup,
    View,
    nodes,
    number,
    operands,
    tiles_in,
)
from roller_ipu_sim.simulator.scalars import Value, convert, exact_sum, from_bytes, operate, to_bytes

__all__ = ["Interpretation", "indices", "interpret"]

Array = npt.NDArray[Any]
LEAVES = ("load", "const", "result", "index")
FOLDS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


@dataclass(frozen=True, slots=True, eq=False)
class Interpretation:
    """The outputs by name, and the simulated cycles of each phase: an exchange, or consecutive compute steps."""

    outputs: dict[str, Array]
    cycles: tuple[int, ...]


def interpret(manifest: Manifest, spec: HardwareSpec, inputs: Mapping[str, Array]) -> Interpretation:
    """Runs a manifest that `check` accepts, slowly. Arrays as for `execute`."""
    chip = machine(spec)
    return Interpretation(_Tiles(manifest).run(inputs), tuple(_Counter(manifest, chip).phases()))


def indices(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Returns all indices of a shape, row-major."""
    return itertools.product(*(range(extent) for extent in shape))


class _Tiles:
    """The memories of all tiles, each a row of bytes.

    They start from zeros, not from NaN like those of `execute`: unwritten elements differ between the two.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._buffers = {buffer.name: buffer for buffer in manifest.buffers}
        size = max((b.address + b.elements * BYTES[b.dtype] for b in manifest.buffers), default=0)
        self._memory = [bytearray(size) for _ in range(manifest.tiles)]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the outputs for some inputs."""
        for tensor in self._manifest.tensors:
            if tensor.role in ("input", "constant"):
                self._write(tensor, inputs[tensor.name])
        for step in self._manifest.steps:
            for group in step.compute or ():
                for place, tile in enumerate(tiles_in(group.tiles)):
                    self._vertex(tile, place, group)
            self._exchange(step.exchange or ())
        return {tensor.name: self._read(tensor) for tensor in self._manifest.tensors if tensor.role == "output"}

    def _address(self, buffer: Buffer, element: int) -> int:
        return buffer.address + element * BYTES[buffer.dtype]

    def _get(self, tile: int, name: str, element: int) -> Value:
        buffer = self._buffers[name]
        return from_bytes(self._memory[tile], self._address(buffer, element), buffer.dtype)

    def _put(self, tile: int, name: str, element: int, value: Value) -> None:
        buffer = self._buffers[name]
        self._store(tile, buffer, element, to_bytes(convert(value, buffer.dtype), buffer.dtype))

    def _load(self, tile: int, buffer: Buffer, element: int) -> bytes:
        address = self._address(buffer, element)
        return bytes(self._memory[tile][address : address + BYTES[buffer.dtype]])

    def _store(self, tile: int, buffer: Buffer, element: int, raw: bytes) -> None:
        address = self._address(buffer, element)
        self._memory[tile][address : address + len(raw)] = raw

    def _write(self, tensor: TensorHome, array: Array) -> None:
        size = BYTES[tensor.dtype]
        raw = array.tobytes()
        elements = {_stored_at(tensor, index): place for place, index in enumerate(indices(tensor.shape))}
        for placement in tensor.placements:
            for tile, place, coordinate in _held(placement):
                flat = elements.get(coordinate)
                element = bytes(size) if flat is None else raw[flat * size : (flat + 1) * size]
                self._store(tile, self._buffers[placement.buffer], place, element)

    def _read(self, tensor: TensorHome) -> Array:
        found = {
            coordinate: self._load(tile, self._buffers[placement.buffer], place)
            for placement in tensor.placements
            for tile, place, coordinate in _held(placement)
        }
        raw = b"".join(found[_stored_at(tensor, index)] for index in indices(tensor.shape))
        return np.frombuffer(raw, dtype=np.uint8).view(numpy_dtype(tensor.dtype)).reshape(tensor.shape).copy()

    def _exchange(self, sends: Sequence[Send]) -> None:
        """Runs all sends at once: everything is read before anything is written."""
        moved = []
        for send in sends:
            source, target = self._buffers[send.buffer], self._buffers[send.to.buffer]
            for (tile, offset, to_offset, tiles), index in itertools.product(_repeated(send), indices(send.shape)):
                begin = offset + sum(i * s for i, s in zip(index, send.strides, strict=True))
                end = to_offset + sum(i * s for i, s in zip(index, send.to_strides, strict=True))
                moved.append((tiles, target, end, self._load(tile, source, begin)))
        for tiles, target, element, raw in moved:
            for tile in tiles:
                self._store(tile, target, element, raw)

    def _vertex(self, tile: int, place: int, group: VertexGroup) -> None:
        vertex = group.vertex
        match vertex:
            case Amp():
                self._amp(tile, vertex)
            case Map():
                self._map(tile, vertex, {name: origins[place] for name, origins in group.origins.items()})
            case Reduce():
                self._reduce(tile, vertex)
            case Fill():
                for element in range(vertex.elements):
                    self._put(tile, vertex.to.buffer, vertex.to.offset + element, number(vertex.value))
            case Copy():
                for element in range(vertex.elements):
                    raw = self._load(tile, self._buffers[vertex.source.buffer], vertex.source.offset + element)
                    self._store(tile, self._buffers[vertex.to.buffer], vertex.to.offset + element, raw)

    def _amp(self, tile: int, vertex: Amp) -> None:
        *outer, grain = vertex.loops
        for index in indices([loop.extent for loop in outer]):
            a, w, out = (
                getattr(vertex, which).offset + sum(i * getattr(loop, which) for i, loop in zip(index, outer, strict=True))
                for which in ("a", "w", "out")
            )
            terms = [
                float(self._get(tile, vertex.a.buffer, a + i * grain.a)) * float(self._get(tile, vertex.w.buffer, w + i * grain.w))
                for i in range(grain.extent)
            ]
            first = all(i == 0 for i, loop in zip(index, outer, strict=True) if loop.role == "k")
            held = 0.0 if vertex.zero and first else float(self._get(tile, vertex.out.buffer, out))
            self._put(tile, vertex.out.buffer, out, held + exact_sum(terms))

    def _reduce(self, tile: int, vertex: Reduce) -> None:
        for output in range(vertex.outputs):
            total = convert(self._get(tile, vertex.parts.buffer, vertex.parts.offset + output), vertex.acc_dtype)
            for part in range(1, vertex.partials):
                element = vertex.parts.offset + part * vertex.step + output
                found = convert(self._get(tile, vertex.parts.buffer, element), vertex.acc_dtype)
                total = operate("add", [total, found], vertex.acc_dtype)
            self._put(tile, vertex.out.buffer, vertex.out.offset + output, total)

    def _map(self, tile: int, vertex: Map, origins: Mapping[str, int]) -> None:
        kept = len(vertex.loops) - vertex.reduce
        for index in indices(vertex.loops[:kept]):
            place = vertex.out.offset + sum(i * s for i, s in zip(index, vertex.out.strides, strict=True))
            held: tuple[Value, str] | None = None
            if vertex.accumulate:
                held = self._get(tile, vertex.out.buffer, place), self._buffers[vertex.out.buffer].dtype
            for point in indices(vertex.loops[kept:]):
                found = self._tree(vertex.body, _Point(tile, (*index, *point), vertex.loads, origins, None))
                if held is None and vertex.reducer in ("sum", "prod"):
                    held = convert(0 if vertex.reducer == "sum" else 1, found[1]), found[1]
                if held is not None and vertex.reducer is not None:
                    found = operate(FOLDS[vertex.reducer], [held[0], found[0]], found[1]), found[1]
                held = found
            if vertex.epilogue is not None:
                held = self._tree(vertex.epilogue, _Point(tile, index, vertex.epilogue_loads, origins, held))
            assert held is not None, "every extent is at least 1"
            self._put(tile, vertex.out.buffer, place, held[0])

    def _tree(self, tree: tuple[Any, ...], point: _Point) -> tuple[Value, str]:
        """Returns the value of a tree and its element type."""
        match tree:
            case ("load", which):
                view = point.loads[which]
                element = view.offset + sum(i * s for i, s in zip(point.index, view.strides, strict=True))
                return self._get(point.tile, view.buffer, element), self._buffers[view.buffer].dtype
            case ("const", value, dtype):
                return convert(number(value), dtype), dtype
            case ("result",):
                assert point.result is not None, "only in an epilogue"
                return point.result
            case ("index", loop, scale, origin):
                return convert(scale * point.index[loop] + (0 if origin is None else point.origins[origin]), "int32"), "int32"
            case ("cast", dtype, value):
                return convert(self._tree(value, point)[0], dtype), dtype
        found = [self._tree(operand, point) for operand in operands(tree)]
        dtype = found[-1][1]
        value = operate(tree[0], [v for v, _ in found], dtype)
        return value, "bool" if tree[0] in ("lt", "le", "gt", "ge", "eq", "ne") else dtype


@dataclass(frozen=True, slots=True)
class _Point:
    tile: int
    index: tuple[int, ...]
    loads: tuple[View, ...]
    origins: Mapping[str, int]
    result: tuple[Value, str] | None


def _stored_at(tensor: TensorHome, index: tuple[int, ...]) -> tuple[int, ...]:
    digits = ((index[dim] // divisor, modulus) for dim, divisor, modulus in tensor.layout)
    return tuple(digit if modulus is None else digit % modulus for digit, modulus in digits)


def _held(placement: Placement) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yields tile, element of the buffer and stored coordinates of a placement's elements, one repetition after another."""
    for times in indices([loop[0] for loop in placement.loops]):
        tile, offset, first, start = placement.tile, placement.offset, placement.first, placement.start
        for i, (_, by_tile, by_offset, by_start, by_first) in zip(times, placement.loops, strict=True):
            tile, offset, first = tile + i * by_tile, offset + i * by_offset, first + i * by_first
            start = tuple(s + i * by for s, by in zip(start, by_start, strict=True))
        for place, index in enumerate(indices(placement.shape)):
            if place >= first and (placement.count is None or place < first + placement.count):
                at = place - first
                if placement.strides is not None:
                    at = sum(i * s for i, s in zip(index, placement.strides, strict=True))
                yield tile, offset + at, tuple(s + i for s, i in zip(start, index, strict=True))


def _repeated(send: Send) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """Yields the sender, its offset, that of the receivers and their tiles, repetition by repetition."""
    for times in indices([loop[0] for loop in send.loops]):
        tile, offset, by, to_offset = send.tile, send.offset, 0, send.to.offset
        for i, (_, by_tile, by_offset, to_tile, by_to_offset) in zip(times, send.loops, strict=True):
            tile, offset, by, to_offset = tile + i * by_tile, offset + i * by_offset, by + i * to_tile, to_offset + i * by_to_offset
        yield tile, offset, to_offset, tuple(t + by for t in tiles_in(send.to.tiles) if not (send.others and t + by == tile))


class _Counter:
    """The count of simulated cycles, tile by tile."""

    def __init__(self, manifest: Manifest, chip: Machine) -> None:
        self._manifest, self._machine = manifest, chip
        self._buffers = {buffer.name: buffer for buffer in manifest.buffers}

    def phases(self) -> Iterator[int]:
        """Yields the cycles of each phase."""
        busy: dict[int, int] | None = None  # cycles of each tile since the last exchange
        for step in self._manifest.steps:
            if step.exchange is not None:
                if busy is not None:
                    yield max(busy.values(), default=0)
                busy = None
                yield self._exchange(step.exchange)
                continue
            busy = {} if busy is None else busy
            for group in step.compute or ():
                for tile in tiles_in(group.tiles):
                    busy[tile] = busy.get(tile, 0) + self._vertex(group)
        if busy is not None:
            yield max(busy.values(), default=0)

    def _exchange(self, sends: Sequence[Send]) -> int:
        words_in, words_out, fragments = ([0] * self._manifest.tiles for _ in range(3))
        for send in sends:
            length = send.shape[-1] * BYTES[self._buffers[send.buffer].dtype]
            words = math.ceil(length / self._machine.exchange.word_bytes)
            for (sender, _, _, tiles), _ in itertools.product(_repeated(send), indices(send.shape[:-1])):
                words_out[sender] += words
                fragments[sender] += 1
                for tile in tiles:
                    words_in[tile] += words
                    fragments[tile] += 1
        return max(cycles.exchanged(self._machine, *tile) for tile in zip(words_in, words_out, fragments, strict=True))

    def _vertex(self, group: VertexGroup) -> int:
        vertex = group.vertex
        match vertex:
            case Amp():
                return cycles.amp(self._machine, self._product(vertex))
            case Map():
                return cycles.mapped(self._machine, _mapped(vertex))
            case Reduce():
                return cycles.reduced(self._machine, vertex.acc_dtype, vertex.outputs, vertex.partials)
            case Fill():
                return cycles.filled(self._machine, self._buffers[vertex.to.buffer].dtype, vertex.elements)
            case Copy():
                return cycles.copied(self._machine, vertex.elements * BYTES[self._buffers[vertex.to.buffer].dtype])

    def _product(self, vertex: Amp) -> cycles.AmpShape:
        rows = [loop.extent for loop in vertex.loops if loop.role == "m"]
        runs = 1
        for extent in rows[:-1]:
            runs *= extent
        used = [set(self._elements(vertex, which)) for which in ("a", "w", "out")]
        return cycles.AmpShape(
            vertex.in_dtype, vertex.acc_dtype, runs, rows[-1] if rows else 1, vertex.k_blocks, vertex.n_blocks, vertex.taps,
            vertex.groups, vertex.zero, self._first_byte(vertex.w) >= self._machine.interleaved_from,
            len(set.union(*used)) < sum(len(elements) for elements in used),
        )  # fmt: skip

    def _first_byte(self, place: Ref) -> int:
        buffer = self._buffers[place.buffer]
        return buffer.address + place.offset * BYTES[buffer.dtype]

    def _elements(self, vertex: Amp, which: str) -> range:
        """Returns the memory elements from an operand's first to its last byte."""
        place: Ref = getattr(vertex, which)
        last = sum((loop.extent - 1) * getattr(loop, which) for loop in vertex.loops)
        return self._machine.elements(self._first_byte(place), (last + 1) * BYTES[self._buffers[place.buffer].dtype])


def _mapped(vertex: Map) -> cycles.MapShape:
    outputs = points = 1
    kept = len(vertex.loops) - vertex.reduce
    for place, extent in enumerate(vertex.loops):
        if place < kept - 1:
            outputs *= extent
        elif place == kept - 1:
            outputs *= math.ceil(extent / vertex.vector) * vertex.vector
        else:
            points *= extent
    ops = [node[0] for node in nodes(vertex.body) if node[0] not in LEAVES]
    after = [node[0] for node in nodes(vertex.epilogue) if node[0] not in LEAVES] if vertex.epilogue is not None else []
    if vertex.reducer is not None:
        ops.append(FOLDS[vertex.reducer])
    sizes = (outputs, points, vertex.vector, len(vertex.loads))
    return cycles.MapShape(vertex.dtype, *sizes, tuple(ops), len(vertex.epilogue_loads), tuple(after), vertex.reducer is not None)
