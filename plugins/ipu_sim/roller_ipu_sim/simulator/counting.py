"""Count of a manifest's cycles and words on a machine, from the manifest alone: the profile of its execution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from roller.plugin import CodegenError
from roller_ipu_sim.chip import cycles
from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.manifest import trees
from roller_ipu_sim.manifest.boxes import Array, Box, numbers, reads, writes
from roller_ipu_sim.manifest.families import sums
from roller_ipu_sim.manifest.memory import fullest
from roller_ipu_sim.manifest.models import BYTES, Amp, Buffer, Copy, Fill, Manifest, ManifestError, Map, Reduce, Send, Step, Vertex
from roller_ipu_sim.simulator.profile import VERTEX_KINDS, Profile, Superstep

__all__ = ["phases", "profiled", "vertex_cycles"]


def profiled(manifest: Manifest, machine: Machine) -> Profile:
    """Returns the profile of a checked manifest; `ManifestError` for work whose cycles are unknown on this machine."""
    buffers = {buffer.name: buffer for buffer in manifest.buffers}
    exchanges = _Exchanges(manifest, machine)
    found = [
        exchanges.superstep(steps[0])
        if manifest.steps[steps[0]].exchange is not None
        else _compute(manifest, machine, buffers, steps)
        for steps in phases(manifest.steps)
    ]
    return Profile(
        chip=machine.chip,
        clock_ghz=machine.clock_ghz,
        supersteps=tuple(found),
        memory=fullest(manifest),
        capacity=machine.tile_bytes,
        reserved=machine.reserved_bytes,
    )


def phases(steps: tuple[Step, ...]) -> Iterator[tuple[int, ...]]:
    """Yields the numbers of the steps of each phase: an exchange, or consecutive compute steps."""
    run: list[int] = []
    for number, step in enumerate(steps):
        if step.exchange is None:
            run.append(number)
            continue
        if run:
            yield tuple(run)
        run = []
        yield (number,)
    if run:
        yield tuple(run)


def _compute(manifest: Manifest, machine: Machine, buffers: Mapping[str, Buffer], steps: tuple[int, ...]) -> Superstep:
    """Counts steps without a sync between them: a tile runs through them alone, so its sum counts."""
    taken = np.zeros((len(VERTEX_KINDS), manifest.tiles), dtype=np.int64)
    for number in steps:
        for group in manifest.steps[number].compute or ():
            try:
                cost = vertex_cycles(machine, buffers, group.vertex)
            except CodegenError as error:
                raise ManifestError(f"step {number} ({manifest.steps[number].name}): {error}") from error
            taken[VERTEX_KINDS.index(group.vertex.kind), numbers(group.tiles)] += cost
    total = taken.sum(axis=0)
    slowest = int(total.argmax())
    return Superstep(
        name=" + ".join(manifest.steps[number].name for number in steps),
        kind="compute",
        steps=(steps[0], steps[-1]),
        cycles=int(total[slowest]),
        slowest=slowest,
        parts={kind: int(n) for kind, n in zip(VERTEX_KINDS, taken[:, slowest], strict=True) if n},
        tile_cycles=total,
    )


def vertex_cycles(machine: Machine, buffers: Mapping[str, Buffer], vertex: Vertex) -> int:
    """Returns the simulated cycles of one vertex on one tile; `CodegenError` where the machine has no figure for it."""
    match vertex:
        case Amp():
            return cycles.amp(machine, _amp_shape(machine, buffers, vertex))
        case Map():
            return cycles.mapped(machine, _map_shape(vertex))
        case Reduce():
            return cycles.reduced(machine, vertex.acc_dtype, vertex.outputs, vertex.partials)
        case Fill():
            return cycles.filled(machine, buffers[vertex.to.buffer].dtype, vertex.elements)
        case Copy():
            return cycles.copied(machine, vertex.elements * BYTES[buffers[vertex.to.buffer].dtype])


def _amp_shape(machine: Machine, buffers: Mapping[str, Buffer], vertex: Amp) -> cycles.AmpShape:
    rows = [loop.extent for loop in vertex.loops if loop.role == "m"] or [1]
    spans = [_elements(machine, buffers, box) for box in (*reads(vertex)[:2], writes(vertex))]
    pairs = ((spans[0], spans[1]), (spans[0], spans[2]), (spans[1], spans[2]))
    weights = buffers[vertex.w.buffer]
    return cycles.AmpShape(
        in_dtype=vertex.in_dtype,
        acc_dtype=vertex.acc_dtype,
        runs=math.prod(rows[:-1]),
        run_rows=rows[-1],
        k_blocks=vertex.k_blocks,
        n_blocks=vertex.n_blocks,
        taps=vertex.taps,
        groups=vertex.groups,
        zero=vertex.zero,
        interleaved=weights.address + vertex.w.offset * BYTES[weights.dtype] >= machine.interleaved_from,
        conflict=any(one.start < other.stop and other.start < one.stop for one, other in pairs),
    )


def _elements(machine: Machine, buffers: Mapping[str, Buffer], box: Box) -> range:
    """Returns the memory elements from a box's first to its last byte."""
    size = BYTES[buffers[box.buffer].dtype]
    return machine.elements(buffers[box.buffer].address + box.offset * size, (box.end - box.offset) * size)


def _map_shape(vertex: Map) -> cycles.MapShape:
    kept = len(vertex.loops) - vertex.reduce
    last = -(-vertex.loops[kept - 1] // vertex.vector) * vertex.vector if kept else 1  # vectors do not go on into the next row
    return cycles.MapShape(
        dtype=vertex.dtype,
        outputs=math.prod(vertex.loops[: max(kept - 1, 0)]) * last,
        points=math.prod(vertex.loops[kept:]),
        vector=vertex.vector,
        loads=len(vertex.loads),
        ops=trees.operations(vertex),
        epilogue_loads=len(vertex.epilogue_loads),
        epilogue_ops=trees.epilogue_operations(vertex),
        reduces=vertex.reducer is not None,
    )


class _Exchanges:
    """The traffic of exchanges. Those that differ only in positions are counted once."""

    def __init__(self, manifest: Manifest, machine: Machine) -> None:
        self._manifest, self._machine = manifest, machine
        self._sizes = {buffer.name: BYTES[buffer.dtype] for buffer in manifest.buffers}
        self._known: dict[tuple[object, ...], tuple[Array, Array, Array, Array]] = {}

    def superstep(self, number: int) -> Superstep:
        """Returns the phase of a step."""
        step = self._manifest.steps[number]
        sends = step.exchange or ()
        words_in, words_out, fragments, taken = self._counted(sends)
        slowest = int(taken.argmax())
        idle = cycles.exchanged(self._machine, 0, 0, 0)
        return Superstep(
            name=step.name,
            kind="exchange",
            steps=(number, number),
            cycles=int(taken[slowest]),
            slowest=slowest,
            parts={"exchange": int(taken[slowest]) - idle, "sync": idle},
            tile_cycles=taken,
            words_in=words_in,
            words_out=words_out,
            fragments=fragments,
        )

    def _counted(self, sends: tuple[Send, ...]) -> tuple[Array, Array, Array, Array]:
        """Returns words in and out, fragments and cycles of each tile."""
        key = tuple([self._kind(send) for send in sends])
        if key not in self._known:
            words_in, words_out, fragments = self._traffic(sends)
            loads, places = np.unique(np.stack([words_in, words_out, fragments], axis=1), axis=0, return_inverse=True)
            costs = np.array([cycles.exchanged(self._machine, *(int(n) for n in load)) for load in loads], dtype=np.int64)
            self._known[key] = words_in, words_out, fragments, costs[places.reshape(-1)]
        return self._known[key]

    def _kind(self, send: Send) -> tuple[object, ...]:
        """Returns the properties of a send that its traffic depends on."""
        loops = tuple([(count, tile, to_tile) for count, tile, _, to_tile, _ in send.loops])
        return send.tile, send.to.tiles, send.shape, self._sizes[send.buffer], send.others, loops

    def _traffic(self, sends: tuple[Send, ...]) -> tuple[Array, Array, Array]:
        """Returns words in and out and fragments of each tile. A multicast leaves once; fragments count at both ends."""
        words_in, words_out, fragments = np.zeros((3, self._manifest.tiles), dtype=np.int64)
        for send in sends:
            runs = math.prod(send.shape[:-1])
            words = runs * -(-send.shape[-1] * self._sizes[send.buffer] // self._machine.exchange.word_bytes)
            leaving, arriving = self._ends(send)
            words_out += leaving * words
            words_in += arriving * words
            fragments += (leaving + arriving) * runs
        return words_in, words_out, fragments

    def _ends(self, send: Send) -> tuple[Array, Array]:
        """Returns how often each tile sends in a family, and how often it receives."""
        idle, still = (math.prod([loop[0] for loop in send.loops if not loop[column]]) for column in (1, 3))
        senders = self._times(sums(send.tile, [(loop[0], loop[1]) for loop in send.loops if loop[1]])) * idle
        moved = sums(0, [(loop[0], loop[3]) for loop in send.loops if loop[3]])
        receivers = self._times((numbers(send.to.tiles)[:, None] + moved).reshape(-1)) * still
        if send.others:
            apart = sums(send.tile, [(loop[0], loop[1] - loop[3]) for loop in send.loops])  # relative to the start of the receivers
            own = sums(send.tile, [(loop[0], loop[1]) for loop in send.loops])[np.isin(apart, numbers(send.to.tiles))]
            receivers = receivers - self._times(own)
        return senders, receivers

    def _times(self, tiles: Array) -> Array:
        return np.bincount(tiles, minlength=self._manifest.tiles)
