"""Rules of single vertices and sends: element types, operands inside their buffers, alignment, no aliasing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from roller.plugin import CodegenError
from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.manifest import trees
from roller_ipu_sim.manifest.boxes import Box, arrived, injective, numbers, reads, sent, writes
from roller_ipu_sim.manifest.families import each_send, indices, reach, repetitions
from roller_ipu_sim.manifest.models import (
    BYTES,
    Amp,
    AmpLoop,
    Buffer,
    Copy,
    Fill,
    ManifestError,
    Map,
    Reduce,
    Send,
    VertexGroup,
    nodes,
    number,
)

__all__ = ["Rules"]


POINTS_MAX = 2**32  # max points of a vertex: far more than operands in a tile's memory allow; only loops with step 0 exceed it


class Rules:
    """The rules of one machine for the vertices and sends of one manifest, whose buffers are given by name."""

    def __init__(self, machine: Machine, buffers: Mapping[str, Buffer]) -> None:
        self._machine, self._buffers = machine, buffers
        self._sends: dict[tuple[object, ...], tuple[Box, Box]] = {}  # keyed without their tiles, as most are equal

    def buffer(self, where: str, name: str) -> Buffer:
        """Returns the buffer of that name."""
        found = self._buffers.get(name)
        if found is None:
            raise ManifestError(f"{where}: there is no buffer {name!r}; name one of the manifest's")
        return found

    def vertex(self, where: str, group: VertexGroup) -> tuple[list[Box], Box]:
        """Returns the reads and the write of a vertex that obeys the rules; `ManifestError` otherwise."""
        vertex = group.vertex
        where = f"{where}, tile {numbers(group.tiles)[0]}, {vertex.kind}"
        loops = (
            vertex.loops if isinstance(vertex, Map) else [loop.extent for loop in vertex.loops] if isinstance(vertex, Amp) else []
        )
        if math.prod(loops) > POINTS_MAX:
            raise ManifestError(
                f"{where}: {math.prod(loops)} points of {len(loops)} loops; a vertex has at most {POINTS_MAX}, cut it"
            )
        try:
            if isinstance(vertex, Map):
                self._map_form(where, vertex)
            if isinstance(vertex, Amp):
                self._amp_form(where, vertex)
            read, written = reads(vertex), writes(vertex)
            for box in (*read, written):
                self._inside(where, box)
            match vertex:
                case Amp():
                    self._amp(where, vertex, read, written)
                case Map():
                    self._map(where, vertex, group, written)
                case Reduce():
                    self._reduce(where, vertex, read[0], written)
                case Fill():
                    self._fill(where, vertex)
                case Copy():
                    self._copy(where, vertex, read[0], written)
        except CodegenError as error:  # the machine lacks the type or operation
            raise ManifestError(f"{where}: {error}") from error
        return read, written

    def _inside(self, where: str, box: Box) -> None:
        buffer = self.buffer(where, box.buffer)
        if box.offset < 0 or box.end > buffer.elements:
            raise ManifestError(
                f"{where}: elements {box.offset} to {box.end} of buffer {box.buffer!r}, which has {buffer.elements}; stay inside it"
            )

    def _type(self, where: str, name: str, dtype: str) -> None:
        found = self.buffer(where, name).dtype
        if found != dtype:
            raise ManifestError(f"{where}: buffer {name!r} is of {found}, not {dtype}; use one of that type")

    def _bytes(self, name: str, offset: int) -> int:
        buffer = self._buffers[name]
        return buffer.address + offset * BYTES[buffer.dtype]

    def _amp_form(self, where: str, vertex: Amp) -> None:
        self._type(where, vertex.a.buffer, vertex.in_dtype)
        self._type(where, vertex.w.buffer, vertex.in_dtype)
        self._type(where, vertex.out.buffer, vertex.acc_dtype)
        unit = self._machine.amp_type(vertex.in_dtype, vertex.acc_dtype)
        if [loop.role for loop in vertex.loops[-2:]] != ["n", "k"]:
            raise ManifestError(f"{where}: the last two loops are the matrix unit's own, n and then k; put them there")
        columns, grain = vertex.loops[-2:]
        if (columns.extent, grain.extent) != (unit.columns, unit.grain):
            raise ManifestError(
                f"{where}: the last loops are {columns.extent} columns and a grain of {grain.extent}; the matrix unit of "
                f"{self._machine.chip} takes {unit.columns} and {unit.grain} in {vertex.in_dtype}; pad to multiples of them"
            )
        if (grain.a, grain.w, columns.out) != (1, 1, 1):
            steps = f"{grain.a} and {grain.w}, columns of the result {columns.out}"
            raise ManifestError(f"{where}: a grain's elements are {steps} apart; let all three lie densely")
        for loop in vertex.loops:
            untouched = {"m": loop.w, "n": loop.a, "k": loop.out, "g": 0}[loop.role]
            if untouched:
                raise ManifestError(f"{where}: a loop over {loop.role} steps an operand that has no {loop.role}; make that step 0")
        self._amp_counts(where, vertex)

    def _amp(self, where: str, vertex: Amp, read: list[Box], written: Box) -> None:
        self._amp_alignment(where, vertex)
        self._distinct(where, [(loop.extent, loop.out) for loop in vertex.loops if loop.role != "k"])
        if any(written.meets(box) for box in read[:2]):
            raise ManifestError(f"{where}: the result overlaps an operand in buffer {written.buffer!r}; place it elsewhere")

    def _amp_counts(self, where: str, vertex: Amp) -> None:
        def product(role: str, loops: tuple[AmpLoop, ...]) -> int:
            return math.prod(loop.extent for loop in loops if loop.role == role)

        said = {"n_blocks": vertex.n_blocks, "k_blocks x taps": vertex.k_blocks * math.prod(vertex.taps), "groups": vertex.groups}
        outer = vertex.loops[:-2]
        found = {"n_blocks": product("n", outer), "k_blocks x taps": product("k", outer), "groups": product("g", outer)}
        for name, value in said.items():
            if value != found[name]:
                raise ManifestError(f"{where}: {name} is {value}, but the loops make {found[name]}; let them agree")

    def _amp_alignment(self, where: str, vertex: Amp) -> None:
        places = (("a", vertex.a), ("w", vertex.w), ("out", vertex.out))
        for which, place in places:
            address = self._bytes(place.buffer, place.offset)
            wide = which == "w" and address >= self._machine.interleaved_from
            unit = self._machine.amp.interleaved_load_bytes if wide else self._machine.amp.load_bytes
            size = BYTES[self._buffers[place.buffer].dtype]
            steps = [step * size for step in _steps(vertex, which)]
            wrong = next((byte for byte in (address, *steps) if byte % unit), None)
            if wrong is not None:
                raise ManifestError(
                    f"{where}: operand {which} in buffer {place.buffer!r} lies or steps at {wrong} bytes, "
                    f"which is no multiple of the matrix unit's {unit}; align it"
                )

    def _distinct(self, where: str, dims: list[tuple[int, int]]) -> None:
        if not injective(tuple(extent for extent, _ in dims), tuple(step for _, step in dims)):
            raise ManifestError(f"{where}: two results have the same element; give each its own")

    def _map_form(self, where: str, vertex: Map) -> None:
        kept = len(vertex.loops) - vertex.reduce
        if kept < 0:
            raise ManifestError(f"{where}: {vertex.reduce} of {len(vertex.loops)} loops reduce; name at most all")
        for views, rank in ((vertex.loads, len(vertex.loops)), ((vertex.out, *vertex.epilogue_loads), kept)):
            for view in views:
                if len(view.strides) != rank:
                    given = f"{len(view.strides)} strides in buffer {view.buffer!r}"
                    raise ManifestError(f"{where}: {given} for {rank} loops; give each loop one")
        if vertex.reducer is None and (vertex.reduce or vertex.accumulate):
            raise ManifestError(f"{where}: loops reduce or results accumulate without a reducer; name one")

    def _map(self, where: str, vertex: Map, group: VertexGroup, written: Box) -> None:
        kept = vertex.loops[: len(vertex.loops) - vertex.reduce]
        width = self._machine.vector_type(vertex.dtype).width
        if vertex.vector > width:
            raise ManifestError(f"{where}: vectors of {vertex.vector} {vertex.dtype}; {self._machine.chip} has {width}")
        try:
            body = trees.body_dtype(vertex, [self.buffer(where, v.buffer).dtype for v in vertex.loads])
            if vertex.epilogue is not None:
                trees.dtype_of(vertex.epilogue, [self.buffer(where, v.buffer).dtype for v in vertex.epilogue_loads], body)
        except ValueError as error:
            raise ManifestError(f"{where}: {error}") from error
        if vertex.accumulate:
            self._type(where, vertex.out.buffer, body)
        self._leaves(where, vertex.body, len(vertex.loops), group)
        self._leaves(where, vertex.epilogue, len(kept), group)
        self._distinct(where, list(zip(kept, vertex.out.strides, strict=True)))
        place = (vertex.out.buffer, vertex.out.offset, vertex.out.strides)
        for view in (*vertex.loads, *vertex.epilogue_loads):
            read = (view.buffer, view.offset, view.strides)
            if read == place and (not vertex.reduce or view in vertex.epilogue_loads):
                continue
            loops = vertex.loops if view in vertex.loads else kept
            if written.meets(_span(read, loops)):
                raise ManifestError(f"{where}: results overlap what is read of buffer {view.buffer!r}; place them elsewhere")

    def _leaves(self, where: str, tree: trees.Tree | None, loops: int, group: VertexGroup) -> None:
        """Refuses indices of loops or origins that do not exist, and constants that their type cannot hold."""
        for node in () if tree is None else nodes(tree):
            match node:
                case ("index", loop, _, origin):
                    if loop >= loops:
                        raise ManifestError(f"{where}: the index of loop {loop} of {loops}; name one that is there")
                    if origin is not None and len(group.origins.get(origin, ())) != len(numbers(group.tiles)):
                        raise ManifestError(f"{where}: origins {origin!r} give no number for each tile of the group; add them")
                case ("const", value, dtype) if not trees.held(number(value), dtype):
                    raise ManifestError(f"{where}: {dtype} does not hold {value}; choose another type")

    def _reduce(self, where: str, vertex: Reduce, read: Box, written: Box) -> None:
        self._machine.vector_type(vertex.acc_dtype)
        own = (vertex.parts == vertex.out and vertex.step >= vertex.outputs) or vertex.partials == 1
        if written.meets(read) and not own:
            raise ManifestError(
                f"{where}: sums overlap parts in buffer {written.buffer!r}; place them elsewhere or on the first part"
            )

    def _fill(self, where: str, vertex: Fill) -> None:
        dtype = self.buffer(where, vertex.to.buffer).dtype
        if not trees.held(number(vertex.value), dtype):
            raise ManifestError(f"{where}: {dtype} does not hold {vertex.value}; choose another value")

    def _copy(self, where: str, vertex: Copy, read: Box, written: Box) -> None:
        self._type(where, vertex.to.buffer, self.buffer(where, vertex.source.buffer).dtype)
        if written.meets(read):
            raise ManifestError(f"{where}: the copy overlaps its source in buffer {written.buffer!r}; place it elsewhere")

    def send(self, where: str, send: Send) -> tuple[Box, Box]:
        """Returns the read of a send, and its write in each receiver, if it obeys the rules; `ManifestError` otherwise.

        For a family: those of its first send.
        """
        to = send.to
        steps = tuple([(loop[0], loop[2], loop[4]) for loop in send.loops])
        key = (send.buffer, send.offset, to.buffer, to.offset, send.shape, send.strides, send.to_strides, steps)
        found = self._sends.get(key)
        if found is None:
            found = self._sends[key] = self._send(where, send)
            self._family(where, send, *found)
        return found

    def _family(self, where: str, send: Send, read: Box, written: Box) -> None:
        """Refuses families in which a send leaves a buffer or begins inside a word."""
        places = self._buffers[send.to.buffer].elements * len(numbers(self._buffers[send.to.buffer].tiles))
        if repetitions(send.loops) > places:
            count = repetitions(send.loops)
            raise ManifestError(f"{where}: {count} repetitions into {places} elements of buffer {send.to.buffer!r}; send each once")
        word = self._machine.exchange.word_bytes
        for box, column in ((read, 2), (written, 4)):
            loops = [(loop[0], int(loop[column])) for loop in send.loops]
            low, high = reach(box.offset, loops)
            size = BYTES[self._buffers[box.buffer].dtype]
            if (
                low < 0
                or high + box.end - box.offset > self._buffers[box.buffer].elements
                or any(step * size % word for count, step in loops if count > 1)
            ):
                for index, one in zip(indices(send.loops), each_send(send), strict=True):
                    self._send(f"{where}, repetition {list(index)}", one)

    def _send(self, where: str, send: Send) -> tuple[Box, Box]:
        if not len(send.shape) == len(send.strides) == len(send.to_strides) or not send.shape:
            found = f"{len(send.shape)} extents with {len(send.strides)} and {len(send.to_strides)} strides"
            raise ManifestError(f"{where}: {found}; give each extent its two")
        if send.strides[-1] != 1 or send.to_strides[-1] != 1:
            found = f"{send.strides[-1]} and {send.to_strides[-1]} apart"
            raise ManifestError(f"{where}: elements of a run {found}, not dense; end with strides of 1")
        read, written = sent(send), arrived(send)
        self._inside(where, read)
        self._inside(where, written)
        dtype = self._buffers[send.buffer].dtype
        self._type(where, send.to.buffer, dtype)
        self._runs(where, send.buffer, send.offset, send.shape, send.strides)
        self._runs(where, send.to.buffer, send.to.offset, send.shape, send.to_strides)
        if not injective(send.shape, send.to_strides):
            raise ManifestError(f"{where}: two elements arrive at one place of buffer {send.to.buffer!r}; give each its own")
        return read, written

    def _runs(self, where: str, name: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        size, word = BYTES[self._buffers[name].dtype], self._machine.exchange.word_bytes
        steps = (step * size for extent, step in zip(shape[:-1], strides[:-1], strict=True) if extent > 1)
        wrong = next((byte for byte in (self._bytes(name, offset), *steps) if byte % word), None)
        if wrong is not None:
            raise ManifestError(f"{where}: runs in buffer {name!r} lie or step at {wrong} bytes, no multiple of {word}; align them")


def _steps(vertex: Amp, which: str) -> list[int]:
    """Returns the steps of an operand, except the dense ones inside one access of the matrix unit."""
    inner = vertex.loops[-2 if which == "out" else -1]
    return [getattr(loop, which) for loop in vertex.loops if loop is not inner and loop.extent > 1]


def _span(read: tuple[str, int, tuple[int, ...]], loops: tuple[int, ...]) -> Box:
    """Returns the box from the first to the last element of a view."""
    buffer, offset, strides = read
    reach = [(extent - 1) * step for extent, step in zip(loops, strides, strict=True)]
    low = offset + sum(r for r in reach if r < 0)
    return Box(buffer, low, (offset + sum(r for r in reach if r > 0) - low + 1,), (1,))
