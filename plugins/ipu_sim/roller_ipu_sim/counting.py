"""Cycles and words that a manifest means on a machine, from the manifest alone: the profile of its execution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from roller.plugin import CodegenError
from roller_ipu_sim import cycles, trees
from roller_ipu_sim.boxes import Array, Box, numbers, reads, writes
from roller_ipu_sim.machine import Machine
from roller_ipu_sim.manifest import BYTES, Amp, Buffer, Copy, Fill, Manifest, ManifestError, Map, Reduce, Send, Step, Vertex
from roller_ipu_sim.memory import occupied
from roller_ipu_sim.profile import VERTEX_KINDS, Profile, Superstep

__all__ = ["phases", "profiled", "vertex_cycles"]


def profiled(manifest: Manifest, machine: Machine) -> Profile:
    """The profile of a manifest that has been checked; `ManifestError` for work whose cycles are not known on this machine."""
    buffers = {buffer.name: buffer for buffer in manifest.buffers}
    found = [
        _exchange(manifest, machine, steps[0])
        if manifest.steps[steps[0]].exchange is not None
        else _compute(manifest, machine, buffers, steps)
        for steps in phases(manifest.steps)
    ]
    return Profile(
        chip=machine.chip,
        clock_ghz=machine.clock_ghz,
        supersteps=tuple(found),
        memory=occupied(manifest).max(axis=0),
        capacity=machine.tile_bytes,
        reserved=machine.reserved_bytes,
    )


def phases(steps: tuple[Step, ...]) -> Iterator[tuple[int, ...]]:
    """Numbers of the steps that make one phase: an exchange, or compute steps that follow one another."""
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
    """Steps without sync between them: a tile goes from one to the next by itself, so its sum counts."""
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
    """Simulated cycles of one vertex on one tile; `CodegenError` where the machine has no figure for it."""
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
    """The memory elements from a box's first to its last byte."""
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


def _exchange(manifest: Manifest, machine: Machine, number: int) -> Superstep:
    step = manifest.steps[number]
    words_in, words_out, fragments = _traffic(manifest, machine, step.exchange or ())
    loads, places = np.unique(np.stack([words_in, words_out, fragments], axis=1), axis=0, return_inverse=True)
    costs = np.array([cycles.exchanged(machine, *(int(n) for n in load)) for load in loads], dtype=np.int64)
    taken = costs[places.reshape(-1)]
    slowest = int(taken.argmax())
    idle = cycles.exchanged(machine, 0, 0, 0)
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


def _traffic(manifest: Manifest, machine: Machine, sends: tuple[Send, ...]) -> tuple[Array, Array, Array]:
    """Words in and out and fragments of each tile. A multicast leaves once; fragments count at both ends."""
    sizes = {buffer.name: BYTES[buffer.dtype] for buffer in manifest.buffers}
    runs = np.array([math.prod(send.shape[:-1]) for send in sends], dtype=np.int64)
    nbytes = np.array([send.shape[-1] * sizes[send.buffer] for send in sends], dtype=np.int64)
    words = runs * -(-nbytes // machine.exchange.word_bytes)
    senders = np.array([send.tile for send in sends], dtype=np.int64)
    receivers = [numbers(send.to.tiles) for send in sends]
    counts = np.array([len(tiles) for tiles in receivers], dtype=np.int64)
    arrived = np.concatenate(receivers) if receivers else senders

    def per_tile(tiles: Array, amounts: Array) -> Array:
        total = np.zeros(manifest.tiles, dtype=np.int64)
        np.add.at(total, tiles, amounts)
        return total

    fragments = per_tile(senders, runs) + per_tile(arrived, np.repeat(runs, counts))
    return per_tile(arrived, np.repeat(words, counts)), per_tile(senders, words), fragments
