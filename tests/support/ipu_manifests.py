"""Manifests of simulated IPUs written by hand: a plain matrix product on a grid of tiles, and what makes others short to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roller.plugin import HardwareSpec, find_spec
from roller_ipu_sim.manifest.models import (
    BYTES,
    Amp,
    AmpLoop,
    Buffer,
    Manifest,
    Placement,
    Receivers,
    Reduce,
    Ref,
    Send,
    Step,
    TensorHome,
    VertexGroup,
    collection_paused,
)

ALIGNMENT = 16  # bytes, of every buffer


def bow() -> HardwareSpec:
    return find_spec("ipu_sim", "bow")


def every(count: int, first: int = 0, step: int = 1) -> tuple[tuple[int, int, int], ...]:
    """A set of tiles."""
    return ((first, count, step),)


def up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass
class Draft:
    """A manifest being written: buffers one after another, each in all tiles and for all steps unless said otherwise."""

    tiles: int
    spec: HardwareSpec = field(default_factory=bow)
    buffers: list[Buffer] = field(default_factory=list)
    tensors: list[TensorHome] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    last: int = 0  # step

    def __post_init__(self) -> None:
        self.free = up(self.spec.level("SRAM").reserved_bytes, ALIGNMENT)

    def buffer(self, name: str, dtype: str, elements: int, **fields: Any) -> None:
        made = {"address": self.free, "tiles": every(self.tiles), "live": (0, self.last), **fields}
        self.buffers.append(Buffer(name=name, dtype=dtype, elements=elements, **made))
        self.free = up(max(self.free, made["address"] + elements * BYTES[dtype]), ALIGNMENT)

    def tensor(
        self, name: str, dtype: str, shape: Sequence[int], role: str, placements: Sequence[Placement], **fields: Any
    ) -> None:
        layout = fields.get("layout", tuple((dim, 1, None) for dim in range(len(shape))))
        stored = fields.get("stored", tuple(shape))
        self.tensors.append(
            TensorHome(name=name, dtype=dtype, shape=shape, role=role, layout=layout, stored=stored, placements=placements)
        )

    def compute(self, name: str, *groups: VertexGroup) -> None:
        self.steps.append(Step(name=name, compute=groups))

    def exchange(self, name: str, *sends: Send) -> None:
        self.steps.append(Step(name=name, exchange=sends))

    def done(self) -> Manifest:
        return Manifest(chip=self.spec.chip, tiles=self.tiles, buffers=self.buffers, tensors=self.tensors, steps=self.steps)


def ref(buffer: str, offset: int = 0) -> Ref:
    return Ref(buffer=buffer, offset=offset)


def run(tile: int, source: tuple[str, int], to: tuple[str, int], elements: int, receivers: Any) -> Send:
    """One dense run from one tile to a place in others."""
    target = Receivers(tiles=receivers, buffer=to[0], offset=to[1])
    return Send(tile=tile, buffer=source[0], offset=source[1], to=target, shape=(elements,), strides=(1,), to_strides=(1,))


@dataclass(frozen=True)
class Product:
    """out[m, n] = sum over k of a[m, k] * b[k, n], cut into rows x columns x parts of k: one tile each.

    Each operand lies once, in shares of equal length over the tiles that need it; the first exchange brings all of them
    to all of these (multicast). With parts of k their sums are exchanged in shares, and each tile adds up its own.
    """

    m: int
    n: int
    k: int
    rows: int
    columns: int
    parts: int = 1
    in_dtype: str = "float16"
    acc_dtype: str = "float16"

    @property
    def grain(self) -> int:
        return 32 // BYTES[self.in_dtype]

    @property
    def box(self) -> tuple[int, int, int]:
        """Rows, columns and k of a tile, padded."""
        return -(-self.m // self.rows), up(-(-self.n // self.columns), 16), up(-(-self.k // self.parts), self.grain)

    def tile(self, i: int, j: int, s: int) -> int:
        return (s * self.rows + i) * self.columns + j

    def manifest(self, spec: HardwareSpec | None = None) -> Manifest:
        with collection_paused():
            return self._manifest(spec or bow())

    def _manifest(self, spec: HardwareSpec) -> Manifest:
        m, n, k = self.box
        draft = Draft(self.rows * self.columns * self.parts, spec, last=3 if self.parts > 1 else 1)
        shares = {"a": up(-(-m * k // self.columns), 8), "b": up(-(-n * k // self.rows), 8), "out": up(-(-m * n // self.parts), 8)}
        draft.buffer("a_home", self.in_dtype, shares["a"])
        draft.buffer("b_home", self.in_dtype, shares["b"])
        draft.buffer("a", self.in_dtype, m * k)
        draft.buffer("out", self.acc_dtype, m * n)
        if self.parts > 1:
            draft.buffer("parts", self.acc_dtype, self.parts * shares["out"])
            draft.buffer("sum", self.acc_dtype, shares["out"])
        draft.buffer("b", self.in_dtype, n * k)
        self._operands(draft, shares)
        draft.compute("multiply", VertexGroup(tiles=every(draft.tiles), vertex=self._vertex()))
        if self.parts > 1:
            self._add(draft, shares["out"])
        self._result(draft, shares["out"])
        return draft.done()

    def _operands(self, draft: Draft, shares: dict[str, int]) -> None:
        m, n, k = self.box
        sends: list[Send] = []
        homes: dict[str, list[Placement]] = {"a": [], "b": []}
        shape = {"a": (1, 1, m, k), "b": (1, 1, k // self.grain, n, self.grain)}
        for s in range(self.parts):
            for i in range(self.rows):
                for j in range(self.columns):
                    sets = {"a": every(self.columns, self.tile(i, 0, s)), "b": every(self.rows, self.tile(0, j, s), self.columns)}
                    for name, place, other in (("a", j, i), ("b", i, j)):
                        first, size = place * shares[name], {"a": m * k, "b": n * k}[name]
                        count = min(shares[name], size - first)
                        if count <= 0:
                            continue
                        box = {
                            "start": (s, other, *[0] * (len(shape[name]) - 2)),
                            "shape": shape[name],
                            "first": first,
                            "count": count,
                        }
                        homes[name].append(Placement(tile=self.tile(i, j, s), buffer=f"{name}_home", offset=0, **box))
                        sends.append(run(self.tile(i, j, s), (f"{name}_home", 0), (name, first), count, sets[name]))
        grain = self.grain
        a_layout = ((1, k, None), (0, m, None), (0, 1, m), (1, 1, k))
        b_layout = ((0, k, None), (1, n, None), (0, grain, k // grain), (1, 1, n), (0, 1, grain))
        draft.tensor(
            "a", self.in_dtype, (self.m, self.k), "input", homes["a"], layout=a_layout, stored=(self.parts, self.rows, m, k)
        )
        stored = (self.parts, self.columns, k // grain, n, grain)
        draft.tensor("b", self.in_dtype, (self.k, self.n), "input", homes["b"], layout=b_layout, stored=stored)
        draft.exchange("operands", *sends)

    def _vertex(self) -> Amp:
        m, n, k = self.box
        grain = self.grain
        loops = (
            AmpLoop(role="k", extent=k // grain, a=grain, w=n * grain, out=0),
            AmpLoop(role="n", extent=n // 16, a=0, w=16 * grain, out=16),
            AmpLoop(role="m", extent=m, a=k, w=0, out=n),
            AmpLoop(role="n", extent=16, a=0, w=grain, out=1),
            AmpLoop(role="k", extent=grain, a=1, w=1, out=0),
        )
        places = {"a": ref("a"), "w": ref("b"), "out": ref("out")}
        counts = {"k_blocks": k // grain, "n_blocks": n // 16}
        return Amp(in_dtype=self.in_dtype, acc_dtype=self.acc_dtype, zero=True, loops=loops, **places, **counts)

    def _add(self, draft: Draft, share: int) -> None:
        m, n, _ = self.box
        sends = []
        for s in range(self.parts):
            for to in range(self.parts):
                count = min(share, m * n - to * share)
                for place in range(self.rows * self.columns if count > 0 else 0):
                    own, other = (part * self.rows * self.columns + place for part in (s, to))
                    sends.append(run(own, ("out", to * share), ("parts", s * share), count, every(1, other)))
        draft.exchange("partial sums", *sends)
        groups = []
        for s in range(self.parts):
            count = min(share, m * n - s * share)
            if count <= 0:
                continue
            vertex = Reduce(
                acc_dtype=self.acc_dtype, partials=self.parts, outputs=count, parts=ref("parts"), step=share, out=ref("sum")
            )
            groups.append(VertexGroup(tiles=every(self.rows * self.columns, self.tile(0, 0, s)), vertex=vertex))
        draft.compute("add", *groups)

    def _result(self, draft: Draft, share: int) -> None:
        m, n, _ = self.box
        placements = []
        for s in range(self.parts):
            for i in range(self.rows):
                for j in range(self.columns):
                    count = min(share, m * n - s * share)
                    if count <= 0:
                        continue
                    box = {"start": (i, j, 0, 0), "shape": (1, 1, m, n), "first": s * share, "count": count}
                    name = "sum" if self.parts > 1 else "out"
                    placements.append(Placement(tile=self.tile(i, j, s), buffer=name, offset=0, **box))
        layout = ((0, m, None), (1, n, None), (0, 1, m), (1, 1, n))
        stored = (self.rows, self.columns, m, n)
        draft.tensor("out", self.acc_dtype, (self.m, self.n), "output", placements, layout=layout, stored=stored)
