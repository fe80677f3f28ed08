"""Random manifests of simulated IPUs that keep all rules: small buffers on some tiles, steps of random vertices and sends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ipu_manifests import Draft, every, ref, up
from roller.plugin import HardwareSpec, find_spec, numpy_dtype
from roller_ipu_sim.manifest.models import (
    BYTES,
    Amp,
    AmpLoop,
    Copy,
    Fill,
    Manifest,
    Map,
    Placement,
    Receivers,
    Reduce,
    Send,
    VertexGroup,
    View,
)

CHIPS = ("bow", "c600", "gc2", "gc200")
DTYPES = ("float32", "float16", "int32", "int8", "bfloat16", "uint8", "bool", "int16")
WHOLE = ("int32", "int8", "uint8", "bool", "int16")
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 6e-8, 1e-40)


@dataclass(frozen=True)
class Case:
    """A manifest, its machine, and arrays for its inputs."""

    manifest: Manifest
    spec: HardwareSpec
    inputs: dict[str, np.ndarray[Any, Any]]


def alike(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """True if all bits agree, but for those of a NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    raw = np.dtype(f"u{one.itemsize}")
    return bool(((one.view(raw) == other.view(raw)) | (np.isnan(one) & np.isnan(other))).all())


def array(draw: st.DrawFn, dtype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype in WHOLE:
        return rng.integers(-100 if dtype.startswith("int") else 0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 8, shape)
    special = rng.choice(SPECIAL, shape)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < draw(st.sampled_from([0.0, 0.1])), special, values).astype(numpy_dtype(dtype))


def strides_of(draw: st.DrawFn, extents: Sequence[int], unit: int = 1, inner: int = 1) -> list[int]:
    """Strides of a box that is dense, in a random order of its dimensions but for gaps; multiples of `unit`, from `inner` on."""
    strides = [0] * len(extents)
    step = inner
    for dim in draw(st.permutations(range(len(extents)))):
        strides[dim] = step = up(step + draw(st.integers(0, 2)) * unit, unit)
        step *= extents[dim]
    return strides


@dataclass
class Writer:
    """Draws the parts of a program. Every buffer is an input and an output, so every element may be read."""

    draw: st.DrawFn
    draft: Draft
    sizes: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    homes: dict[str, list[int]] = field(default_factory=dict)
    inputs: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def buffer(self, name: str, dtype: str, elements: int, tiles: Sequence[int]) -> None:
        self.sizes[name], self.dtypes[name], self.homes[name] = elements, dtype, list(tiles)
        if self.draw(st.booleans()):
            self.draft.free = max(self.draft.free, up(self.draft.spec.options["memory"]["region0_bytes"], 16))
        self.draft.buffer(name, dtype, elements, tiles=tuple((t, 1, 1) for t in tiles))
        self.inputs[f"in_{name}"] = array(self.draw, dtype, (len(tiles), elements))
        for role in ("input", "output"):
            self._home(f"{role[:-3]}_{name}" if role == "output" else f"in_{name}", role, name)

    def _home(self, name: str, role: str, buffer: str) -> None:
        """A tensor that fills the buffer in all of its tiles, its rows whole or cut into digits."""
        elements, tiles = self.sizes[buffer], self.homes[buffer]
        digit = self.draw(st.sampled_from([d for d in range(1, elements + 1) if elements % d == 0]))
        order = self.draw(st.permutations([(1, digit, None, elements // digit), (1, 1, digit, digit)]))
        layout = ((0, 1, None), *(entry[:3] for entry in order))
        shape = tuple(entry[3] for entry in order)
        cut = self.draw(st.integers(0, elements))
        placements = []
        for row, tile in enumerate(tiles):
            for first, count in ((0, cut), (cut, elements - cut)):
                if count:
                    box = {"start": (row, 0, 0), "shape": (1, *shape), "first": first, "count": count}
                    placements.append(Placement(tile=tile, buffer=buffer, offset=first, **box))
        stored = (len(tiles), *shape)
        self.draft.tensor(name, self.dtypes[buffer], (len(tiles), elements), role, placements, layout=layout, stored=stored)

    def named(self, tiles: Sequence[int], *, dtypes: Sequence[str] = DTYPES, but: Sequence[str] = ()) -> list[str]:
        """Buffers that all of some tiles have."""
        return [n for n, home in self.homes.items() if n not in but and self.dtypes[n] in dtypes and set(tiles) <= set(home)]

    def vertex(self, tiles: Sequence[int]) -> Any:
        kinds = ["fill", "copy", "map", "map", "map"]
        kinds += ["reduce"] if len(self.named(tiles, dtypes=("float32", "float16"))) > 1 else []
        out = self.draw(st.sampled_from(self.named(tiles)))
        match self.draw(st.sampled_from(kinds)):
            case "fill" if self.dtypes[out] != "bfloat16":
                count = self.draw(st.integers(1, self.sizes[out]))
                value = self.draw(st.sampled_from([0, 1] if self.dtypes[out] in WHOLE else [0, -1.5, "-inf", "nan"]))
                return Fill(to=ref(out, self.sizes[out] - count), elements=count, value=value)
            case "copy":
                like = self.named(tiles, dtypes=(self.dtypes[out],), but=(out,))
                if like:
                    source = self.draw(st.sampled_from(like))
                    count = self.draw(st.integers(1, min(self.sizes[out], self.sizes[source])))
                    return Copy(source=ref(source, self.sizes[source] - count), to=ref(out), elements=count)
            case "reduce":
                return self.reduction(tiles)
        return self.map(tiles, out)

    def reduction(self, tiles: Sequence[int]) -> Reduce:
        out, parts = self.draw(st.permutations(self.named(tiles, dtypes=("float32", "float16"))))[:2]
        outputs = self.draw(st.integers(1, min(self.sizes[out], self.sizes[parts])))
        partials = self.draw(st.integers(1, self.sizes[parts] // outputs))
        acc = self.draw(st.sampled_from(["float32", "float16"]))
        return Reduce(acc_dtype=acc, partials=partials, outputs=outputs, parts=ref(parts), step=outputs, out=ref(out))

    def view(self, name: str, loops: Sequence[int]) -> View:
        """Any elements of a buffer, walked in any direction or not at all."""
        room, strides, low, high = self.sizes[name] - 1, [], 0, 0
        for extent in loops:
            most = (room - high + low) // max(extent - 1, 1)
            step = self.draw(st.integers(-most, most))
            low, high = low + min(step * (extent - 1), 0), high + max(step * (extent - 1), 0)
            strides.append(step)
        return View(buffer=name, offset=self.draw(st.integers(-low, room - high)), strides=tuple(strides))

    def map(self, tiles: Sequence[int], out: str) -> Map:
        draw = self.draw
        loops: list[int] = []
        for _ in range(draw(st.integers(0, 3))):
            loops.append(draw(st.integers(1, max(1, min(4, self.sizes[out] // math.prod(loops))))))
        strides = []
        room = self.sizes[out] - 1
        for extent in reversed(loops):  # dense
            strides.insert(0, math.prod(loops[len(loops) - len(strides) :]))
            room -= strides[0] * (extent - 1)
        points = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(0, 2)))]
        reducer = draw(st.sampled_from(["sum", "max", "min", "prod"])) if points else None
        dtype = draw(st.sampled_from(["float32", "float16", "int32"]))
        sources = self.named(tiles, but=(out,))
        loads = [
            self.view(draw(st.sampled_from(sources)), [*loops, *points])
            for _ in range(draw(st.sampled_from([1, 2, 1, 2, 0])) if sources else 0)
        ]
        late = [self.view(draw(st.sampled_from(sources)), loops) for _ in range(draw(st.integers(0, 1)) if sources else 0)]
        accumulate = reducer is not None and self.dtypes[out] == dtype and draw(st.booleans())
        return Map(
            dtype=dtype,
            loops=(*loops, *points),
            reduce=len(points),
            vector=draw(st.sampled_from([1, 2])) if dtype != "int32" else 1,
            loads=tuple(loads),
            body=self.tree(dtype, [self.dtypes[v.buffer] for v in loads], len(loops) + len(points), False),
            reducer=reducer,
            accumulate=accumulate,
            epilogue_loads=tuple(late),
            epilogue=self.tree(dtype, [self.dtypes[v.buffer] for v in late], len(loops), True) if draw(st.booleans()) else None,
            out=View(buffer=out, offset=draw(st.integers(0, room)), strides=tuple(strides)),
        )

    def tree(self, dtype: str, loads: Sequence[str], loops: int, epilogue: bool, depth: int = 0) -> tuple[Any, ...]:
        """A tree of one type; what it loads is cast."""
        draw = self.draw
        leaves: list[tuple[Any, ...]] = [("const", draw(st.sampled_from([0, 1, -2, 3])), dtype)]
        leaves += [("load", n) if found == dtype else ("cast", dtype, ("load", n)) for n, found in enumerate(loads)] * 2
        leaves += [
            ("cast", dtype, ("index", n, draw(st.integers(-3, 3)), draw(st.sampled_from([None, "here"])))) for n in range(loops)
        ]
        leaves += [("result",)] * 3 if epilogue else []
        if depth == 3 or draw(st.integers(0, 2)) == 0:
            return draw(st.sampled_from(leaves))

        def below() -> tuple[Any, ...]:
            return self.tree(dtype, loads, loops, epilogue, depth + 1)

        unary = ["neg", "abs"] + ["floor", "ceil", "round", "sqrt", "exp", "tanh", "sigmoid", "erf"] * (dtype != "int32")
        match draw(st.sampled_from(["unary", "binary", "binary", "select", "narrow"])):
            case "unary":
                return (draw(st.sampled_from(unary)), below())
            case "select":
                compare = (draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])), below(), below())
                condition = draw(st.sampled_from([compare, ("not", compare), ("and", compare, ("ne", below(), below()))]))
                return ("select", condition, below(), below())
            case "narrow":
                return ("cast", dtype, ("cast", draw(st.sampled_from(["float16", "int8", "bool"])), below()))
        return (draw(st.sampled_from(["add", "sub", "mul", "div", "max", "min"])), below(), below())

    def compute(self, number: int) -> None:
        groups = []
        left = list(range(self.draft.tiles))
        while left and len(groups) < 2:
            tiles = [t for t in left if self.draw(st.booleans())] or left[:1]
            left = [t for t in left if t not in tiles]
            if self.named(tiles):
                origins = {"here": tuple(self.draw(st.integers(-9, 9)) for _ in tiles)}
                ranges = tuple((t, 1, 1) for t in tiles)
                groups.append(VertexGroup(tiles=ranges, vertex=self.vertex(tiles), origins=origins))
        self.draft.compute(f"compute {number}", *groups)

    def exchange(self, number: int) -> None:
        """Sends from buffers to others that are each written by one send, and not read."""
        sends: list[Send] = []
        for _ in range(self.draw(st.integers(0, 3))):
            read, written = {s.buffer for s in sends}, {s.to.buffer for s in sends}
            free = [n for n in self.homes if n not in read | written]
            pairs = [(a, b) for b in free for a in self.homes if a != b and a not in written and self.dtypes[a] == self.dtypes[b]]
            if pairs:
                sends.append(self.send(*self.draw(st.sampled_from(pairs))))
        self.draft.exchange(f"exchange {number}", *sends)

    def send(self, source: str, to: str) -> Send:
        draw, unit = self.draw, max(1, 4 // BYTES[self.dtypes[source]])
        room = min(self.sizes[source], self.sizes[to])
        length = draw(st.integers(1, min(6, room)))
        shape = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
        strides, to_strides = (strides_of(draw, shape, unit, up(length, unit)) for _ in range(2))
        for found, size in ((strides, self.sizes[source]), (to_strides, self.sizes[to])):
            for dim in range(len(shape)):
                over = size - length - sum(s * (e - 1) for s, e in zip(found[dim + 1 :], shape[dim + 1 :], strict=True))
                over -= sum(s * (e - 1) for s, e in zip(found[:dim], shape[:dim], strict=True))
                shape[dim] = max(1, min(shape[dim], 1 + max(over, 0) // max(found[dim], 1)))
        if any(
            length + sum(s * (e - 1) for s, e in zip(f, shape, strict=True)) > self.sizes[n]
            for f, n in ((strides, source), (to_strides, to))
        ):
            shape = [1] * len(shape)
        receivers = [t for t in self.homes[to] if draw(st.booleans())] or self.homes[to][:1]
        return Send(
            tile=draw(st.sampled_from(self.homes[source])), buffer=source, offset=0,
            to=Receivers(tiles=tuple((t, 1, 1) for t in receivers), buffer=to, offset=0),
            shape=(*shape, length), strides=(*strides, 1), to_strides=(*to_strides, 1),
        )  # fmt: skip


@st.composite
def manifests(draw: st.DrawFn) -> Case:
    """Steps of random work on random buffers."""
    steps = draw(st.lists(st.sampled_from(["compute", "compute", "exchange"]), min_size=1, max_size=5))
    draft = Draft(draw(st.integers(1, 4)), find_spec("ipu_sim", draw(st.sampled_from(CHIPS))), last=len(steps) - 1)
    writer = Writer(draw, draft)
    every_tile = list(range(draft.tiles))
    for number in range(draw(st.integers(2, 5))):
        tiles = every_tile if draw(st.booleans()) else [t for t in every_tile if draw(st.booleans())] or every_tile[-1:]
        writer.buffer(f"b{number}", draw(st.sampled_from((*DTYPES, *DTYPES[:3], *DTYPES[:3]))), draw(st.integers(1, 12)) * 2, tiles)
    for number, kind in enumerate(steps):
        writer.compute(number) if kind == "compute" else writer.exchange(number)
    return Case(draft.done(), draft.spec, writer.inputs)


TYPES = (("float16", "float16"), ("float16", "float32"), ("float32", "float32"))


@st.composite
def products(draw: st.DrawFn) -> Case:
    """One vertex of the matrix unit with groups, runs of rows, kernel positions that overlap, in a random order of loops."""
    in_dtype, acc_dtype = draw(st.sampled_from(TYPES))
    grain = 32 // BYTES[in_dtype]
    runs, rows, taps, groups, k, n = (draw(st.integers(1, most)) for most in (2, 4, 3, 2, 2, 2))
    a_run, a_row, a_tap, a_group, a_k = strides_of(draw, (runs, rows + taps, taps, groups, k), grain, grain)
    a_tap = a_row if draw(st.booleans()) else a_tap
    w_tap, w_group, w_k, w_n = strides_of(draw, (taps, groups, k, n), 16 * grain, 16 * grain)
    out_run, out_row, out_group, out_n = strides_of(draw, (runs, rows, groups, n), 16, 16)
    outer = [
        AmpLoop(role="m", extent=runs, a=a_run, w=0, out=out_run),
        AmpLoop(role="m", extent=rows, a=a_row, w=0, out=out_row),
        AmpLoop(role="k", extent=taps, a=a_tap, w=w_tap, out=0),
        AmpLoop(role="k", extent=k, a=a_k, w=w_k, out=0),
        AmpLoop(role="g", extent=groups, a=a_group, w=w_group, out=out_group),
        AmpLoop(role="n", extent=n, a=0, w=16 * grain if n == 1 else w_n, out=out_n),
    ]
    unit = [AmpLoop(role="n", extent=16, a=0, w=grain, out=1), AmpLoop(role="k", extent=grain, a=1, w=1, out=0)]
    loops = (*draw(st.permutations(outer)), *unit)
    draft = Draft(draw(st.integers(1, 2)), find_spec("ipu_sim", draw(st.sampled_from(CHIPS))), last=0)
    writer = Writer(draw, draft)
    for name, dtype in (("a", in_dtype), ("w", in_dtype), ("out", acc_dtype)):
        size = 1 + sum((loop.extent - 1) * getattr(loop, name) for loop in loops)
        writer.buffer(name, dtype, size + draw(st.integers(0, 1)) * 16, range(draft.tiles))
    places = {"a": ref("a"), "w": ref("w"), "out": ref("out")}
    counts = {"k_blocks": k, "taps": (taps,), "n_blocks": n, "groups": groups}
    vertex = Amp(in_dtype=in_dtype, acc_dtype=acc_dtype, zero=draw(st.booleans()), loops=loops, **places, **counts)
    draft.compute("multiply", VertexGroup(tiles=every(draft.tiles), vertex=vertex))
    return Case(draft.done(), draft.spec, writer.inputs)
