"""Small manifests written by hand, each with its inputs and what NumPy gives: what the printed Poplar program must compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from roller.plugin import DeviceUnavailableError, host_compiler
from roller_ipu_sim.manifest.models import BYTES, Manifest
from roller_ipu_sim.poplar.host_check import PURPOSE

Array = npt.NDArray[Any]
Json = dict[str, Any]

EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

FIRST_ADDRESS = 65536


def compiler_missing() -> str:
    try:
        host_compiler(PURPOSE)
    except DeviceUnavailableError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing() or "there is a compiler")


def same(got: Array, expected: Array, loose: bool = False) -> None:
    """Equal, bit patterns of NaN aside; `loose`: up to one unit in the last place."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if expected.dtype.name in EPSILON:
        with np.errstate(invalid="ignore"):  # NumPy warns of NaNs that signal
            there, wanted = got.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(there, wanted, rtol=EPSILON[expected.dtype.name] if loose else 0, atol=0)
    else:
        np.testing.assert_array_equal(got, expected)


@dataclass(frozen=True)
class Case:
    manifest: Manifest
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]


def buffers(steps: int, **wanted: tuple[str, int, Sequence[Sequence[int]]]) -> list[Json]:
    """Buffers one after another, in all steps: name=(dtype, elements, tiles)."""
    found, address = [], FIRST_ADDRESS
    for name, (dtype, elements, tiles) in wanted.items():
        live = [0, max(steps - 1, 0)]
        found.append({"name": name, "dtype": dtype, "elements": elements, "address": address, "tiles": tiles, "live": live})
        address += -(-elements * BYTES[dtype] // 32) * 32
    return found


def plain(name: str, dtype: str, role: str, shape: Sequence[int], placements: Sequence[Json]) -> Json:
    """A tensor that is stored as it is."""
    layout = [[dim, 1, None] for dim in range(len(shape))]
    return {
        "name": name, "dtype": dtype, "shape": shape, "role": role, "layout": layout, "stored": shape, "placements": placements,
    }  # fmt: skip


def place(tile: int, buffer: str, start: Sequence[int], shape: Sequence[int], offset: int = 0, **more: int) -> Json:
    return {"tile": tile, "buffer": buffer, "offset": offset, "start": start, "shape": shape, **more}


def send(tile: int, buffer: str, to: Sequence[Sequence[int]], there: str, run: int, offset: int = 0, to_offset: int = 0) -> Json:
    """A plain run."""
    receivers = {"tiles": to, "buffer": there, "offset": to_offset}
    return {"tile": tile, "buffer": buffer, "offset": offset, "to": receivers, "shape": [run], "strides": [1], "to_strides": [1]}


def compute(name: str, tiles: Sequence[Sequence[int]], vertex: Json, origins: Json | None = None) -> Json:
    return {"name": name, "compute": [{"tiles": tiles, "vertex": vertex, "origins": origins or {}}]}


def manifest(tiles: int, buffer: list[Json], tensors: list[Json], steps: list[Json]) -> Manifest:
    return Manifest.model_validate({"chip": "bow", "tiles": tiles, "buffers": buffer, "tensors": tensors, "steps": steps})


def view(buffer: str, *strides: int, offset: int = 0) -> Json:
    return {"buffer": buffer, "offset": offset, "strides": strides}


def ref(buffer: str, offset: int = 0) -> Json:
    return {"buffer": buffer, "offset": offset}


@dataclass(frozen=True)
class Formula:
    """A tree over arrays of equal length, and its values."""

    body: Any
    arrays: Sequence[Array]
    expected: Array


def formulas(wanted: Sequence[Formula]) -> Case:
    """One tile for each formula."""
    held: dict[str, Any] = {}
    tensors, groups = [], []
    for tile, formula in enumerate(wanted):
        count, out = formula.expected.size, f"y{tile}"
        here = [[tile, 1, 1]]
        for n, array in enumerate(formula.arrays):
            name = f"x{tile}_{n}"
            held[name] = (array.dtype.name, count, here)
            tensors.append(plain(name, array.dtype.name, "input", [count], [place(tile, name, [0], [count])]))
        kind = formula.expected.dtype.name
        held[out] = (kind, count, here)
        tensors.append(plain(out, kind, "output", [count], [place(tile, out, [0], [count])]))
        loads = [view(f"x{tile}_{n}", 1) for n in range(len(formula.arrays))]
        vertex = {"kind": "map", "dtype": kind, "loops": [count], "loads": loads, "body": formula.body, "out": view(out, 1)}
        groups.append({"tiles": here, "vertex": vertex, "origins": {"base": [1000 * tile]}})
    made = manifest(len(wanted), buffers(1, **held), tensors, [{"name": "all", "compute": groups}])
    inputs = {f"x{t}_{n}": array for t, formula in enumerate(wanted) for n, array in enumerate(formula.arrays)}
    return Case(made, inputs, {f"y{t}": formula.expected for t, formula in enumerate(wanted)})


def pooling(rng: np.random.Generator) -> Case:
    """Greatest of 3 × 3 windows at every second point of [4, 9, 9] images, a channel on each tile."""
    x = rng.integers(-50, 50, (4, 9, 9)).astype(np.float16)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::2, ::2]
    tiles = [[1, 4, 2]]
    numbers = (1, 3, 5, 7)
    vertex = {
        "kind": "map", "dtype": "float16", "loops": [4, 4, 3, 3], "reduce": 2, "loads": [view("x", 18, 2, 9, 1)],
        "body": ["load", 0], "reducer": "max", "out": view("y", 4, 1),
    }  # fmt: skip
    tensors = [
        plain("x", "float16", "input", (4, 9, 9), [place(t, "x", [n, 0, 0], [1, 9, 9]) for n, t in enumerate(numbers)]),
        plain("y", "float16", "output", (4, 4, 4), [place(t, "y", [n, 0, 0], [1, 4, 4]) for n, t in enumerate(numbers)]),
    ]
    held = buffers(1, x=("float16", 81, tiles), y=("float16", 16, tiles))
    return Case(manifest(8, held, tensors, [compute("pool", tiles, vertex)]), {"x": x}, {"y": windows.max((-1, -2))})


def split_reduction(rng: np.random.Generator, parts: int = 5, count: int = 11) -> Case:
    """Rows of integers: each tile sums its part of the columns; one tile adds the partial sums, doubles them and adds a bias."""
    x = rng.integers(-9, 9, (count, parts * 8)).astype(np.float32)
    bias = rng.integers(-9, 9, (count,)).astype(np.float16)
    everywhere = [[0, parts, 1]]
    held = buffers(
        4, x=("float32", count * 8, everywhere), partial=("float32", count, everywhere), b=("float16", count, [[2, 1, 1]]),
        all=("float32", parts * 12, [[2, 1, 1]]), total=("float32", count, [[2, 1, 1]]), y=("float16", count, [[2, 1, 1]]),
    )  # fmt: skip
    summed = {
        "kind": "map", "dtype": "float32", "loops": [count, 8], "reduce": 1, "loads": [view("x", 8, 1)], "body": ["load", 0],
        "reducer": "sum", "out": view("partial", 1),
    }  # fmt: skip
    added = {
        "kind": "reduce", "acc_dtype": "float32", "partials": parts, "outputs": count, "parts": ref("all"), "step": 12,
        "out": ref("total"),
    }  # fmt: skip
    last = {
        "kind": "map", "dtype": "float32", "loops": [count], "loads": [view("total", 1), view("b", 1)], "out": view("y", 1),
        "body": ["add", ["mul", ["load", 0], ["const", 2.0, "float32"]], ["cast", "float32", ["load", 1]]],
    }  # fmt: skip
    gathered = {"name": "gather", "exchange": [send(t, "partial", [[2, 1, 1]], "all", count, 0, 12 * t) for t in range(parts)]}
    steps = [compute("sum", everywhere, summed), gathered]
    steps += [compute("add", [[2, 1, 1]], added), compute("scale", [[2, 1, 1]], last)]
    tensors = [
        plain("x", "float32", "input", x.shape, [place(t, "x", [0, 8 * t], [count, 8]) for t in range(parts)]),
        plain("b", "float16", "constant", bias.shape, [place(2, "b", [0], [count])]),
        plain("y", "float16", "output", bias.shape, [place(2, "y", [0], [count])]),
    ]
    expected = (x.sum(1) * 2 + bias).astype(np.float16)
    return Case(manifest(parts, held, tensors, steps), {"x": x, "b": bias}, {"y": expected})


def multicast(rng: np.random.Generator) -> Case:
    """A [4, 6] table of one tile goes, every second column, to all eleven others of an uneven set; each adds its own number."""
    x = rng.integers(-99, 99, (4, 6)).astype(np.int32)
    tiles, numbers = [[0, 4, 1], [6, 7, 2]], (0, 1, 2, 3, 6, 8, 10, 12, 14, 16, 18)
    held = buffers(2, x=("int32", 24, [[5, 1, 1]]), got=("int32", 12, tiles), y=("int32", 12, tiles))
    moved = {
        "tile": 5, "buffer": "x", "offset": 1, "to": {"tiles": tiles, "buffer": "got", "offset": 0}, "shape": [4, 3, 1],
        "strides": [6, 2, 1], "to_strides": [3, 1, 1],
    }  # fmt: skip
    vertex = {
        "kind": "map", "dtype": "int32", "loops": [12], "loads": [view("got", 1)], "out": view("y", 1),
        "body": ["add", ["load", 0], ["index", 0, 100, "who"]],
    }  # fmt: skip
    steps = [{"name": "multicast", "exchange": [moved]}, compute("number", tiles, vertex, {"who": numbers})]
    tensors = [
        plain("x", "int32", "input", (4, 6), [place(5, "x", [0, 0], [4, 6])]),
        plain("y", "int32", "output", (11, 12), [place(t, "y", [n, 0], [1, 12]) for n, t in enumerate(numbers)]),
    ]
    expected = x[:, 1::2].reshape(1, 12) + np.array(numbers, np.int32)[:, None] + 100 * np.arange(12, dtype=np.int32)
    return Case(manifest(20, held, tensors, steps), {"x": x}, {"y": expected})


def product(rng: np.random.Generator, m: int, blocks: int, in_dtype: str, acc: str) -> Case:
    """Whole numbers [m, k] times [k, 32], k of `blocks` grains: two tiles with half of the columns each."""
    grain = 16 if in_dtype == "float16" else 8
    k = grain * blocks
    a, w = (rng.integers(-2, 3, shape).astype(in_dtype) for shape in ((m, k), (k, 32)))
    tiles = [[0, 2, 1]]
    held = buffers(
        2, a0=(in_dtype, m * k, [[0, 1, 1]]), a=(in_dtype, m * k, tiles), w=(in_dtype, k * 16, tiles), out=(acc, m * 16, tiles)
    )
    vertex = {
        "kind": "amp", "in_dtype": in_dtype, "acc_dtype": acc, "zero": True, "a": ref("a"), "w": ref("w"), "out": ref("out"),
        "loops": [
            {"role": "k", "extent": blocks, "a": m * grain, "w": 16 * grain, "out": 0},
            {"role": "m", "extent": m, "a": grain, "w": 0, "out": 16},
            {"role": "n", "extent": 16, "a": 0, "w": grain, "out": 1},
            {"role": "k", "extent": grain, "a": 1, "w": 1, "out": 0},
        ],
        "k_blocks": blocks, "n_blocks": 1,
    }  # fmt: skip
    grains = [[1, grain, None], [0, 1, None], [1, 1, grain]]
    tensors = [
        {"name": "a", "dtype": in_dtype, "shape": (m, k), "role": "input", "layout": grains, "stored": (blocks, m, grain),
         "placements": [place(0, "a0", [0, 0, 0], [blocks, m, grain])]},
        {"name": "w", "dtype": in_dtype, "shape": (k, 32), "role": "constant",
         "layout": [[1, 16, None], [0, grain, None], [1, 1, 16], [0, 1, grain]], "stored": (2, blocks, 16, grain),
         "placements": [place(t, "w", [t, 0, 0, 0], [1, blocks, 16, grain]) for t in range(2)]},
        {"name": "c", "dtype": acc, "shape": (m, 32), "role": "output", "layout": [[1, 16, None], [0, 1, None], [1, 1, 16]],
         "stored": (2, m, 16), "placements": [place(t, "out", [t, 0, 0], [1, m, 16]) for t in range(2)]},
    ]  # fmt: skip
    steps = [{"name": "spread", "exchange": [send(0, "a0", tiles, "a", m * k)]}, compute("multiply", tiles, vertex)]
    expected = (a.astype(np.float64) @ w.astype(np.float64)).astype(acc)
    return Case(manifest(2, held, tensors, steps), {"a": a, "w": w}, {"c": expected})


def convolution(rng: np.random.Generator, acc: str = "float32") -> Case:
    """Three by three taps over padded 8 × 7 images of 16 channels to 6 × 5 × 32, as runs of rows, one group after the other."""
    x, w = rng.integers(-3, 4, (2, 8, 7, 16)).astype(np.float16), rng.integers(-3, 4, (2, 3, 3, 2, 16, 16)).astype(np.float16)
    here = [[3, 1, 1]]
    held = buffers(1, x=("float16", x.size, here), w=("float16", w.size, here), y=(acc, 2 * 30 * 32, here))
    vertex = {
        "kind": "amp", "in_dtype": "float16", "acc_dtype": acc, "zero": True, "a": ref("x"), "w": ref("w"), "out": ref("y"),
        "loops": [
            {"role": "g", "extent": 2, "a": 896, "w": 4608, "out": 960},
            {"role": "n", "extent": 2, "a": 0, "w": 256, "out": 16},
            {"role": "k", "extent": 3, "a": 112, "w": 1536, "out": 0},
            {"role": "k", "extent": 3, "a": 16, "w": 512, "out": 0},
            {"role": "m", "extent": 6, "a": 112, "w": 0, "out": 160},
            {"role": "m", "extent": 5, "a": 16, "w": 0, "out": 32},
            {"role": "n", "extent": 16, "a": 0, "w": 16, "out": 1},
            {"role": "k", "extent": 16, "a": 1, "w": 1, "out": 0},
        ],
        "k_blocks": 1, "taps": [3, 3], "n_blocks": 2, "groups": 2,
    }  # fmt: skip
    tensors = [
        plain("x", "float16", "input", x.shape, [place(3, "x", [0] * 4, x.shape)]),
        plain("w", "float16", "constant", w.shape, [place(3, "w", [0] * 6, w.shape)]),
        plain("y", acc, "output", (2, 6, 5, 32), [place(3, "y", [0] * 4, (2, 6, 5, 32))]),
    ]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), axis=(1, 2))
    expected = np.einsum("gyxcij,gijnoc->gyxno", windows, w.astype(np.float64)).reshape(2, 6, 5, 32).astype(acc)
    return Case(manifest(4, held, tensors, [compute("convolve", here, vertex)]), {"x": x, "w": w}, {"y": expected})


def odds(rng: np.random.Generator) -> Case:
    """What is left: a fill, a fold that goes on from it over a row read backwards, work in place, an epilogue that loads, a copy,
    partial sums added where they lie, products and least elements, and results of two bytes in rows of five.
    """
    x, e = rng.integers(-5, 6, (8, 3)).astype(np.float32), rng.integers(-5, 6, (8,)).astype(np.int32)
    here = [[0, 1, 1]]
    held = buffers(
        7, x=("float32", 24, here), e=("int32", 8, here), s=("float32", 8, here), y=("float32", 9, here), z=("float32", 8, here),
        p=("float32", 8, here), h=("float16", 40, here),
    )  # fmt: skip

    def folding(reducer: str, out: Json, **more: Any) -> Json:
        loads = [view("x", 3, -1, offset=2)]
        common = {"kind": "map", "dtype": "float32", "loops": [8, 3], "reduce": 1, "loads": loads, "body": ["load", 0]}
        return {**common, "reducer": reducer, "out": out, **more}

    scaled = {"kind": "map", "dtype": "float32", "loops": [8], "loads": [view("s", 1)], "out": view("s", 1)}
    doubled = ["add", ["cast", "float16", ["load", 0]], ["cast", "float16", ["index", 1, 2, None]]]
    rows = {"kind": "map", "dtype": "float16", "loops": [8, 5], "loads": [view("y", 1, 0, offset=1)], "out": view("h", 5, 1)}
    halves = {"kind": "reduce", "acc_dtype": "float32", "partials": 2, "outputs": 4, "parts": ref("z"), "step": 4, "out": ref("z")}
    steps = [
        compute("fill", here, {"kind": "fill", "to": ref("s"), "elements": 8, "value": 2.5}),
        compute("go on", here, folding("sum", view("s", 1), accumulate=True)),
        compute("in place", here, {**scaled, "body": ["mul", ["load", 0], ["const", 3.0, "float32"]]}),
        compute("epilogue", here, folding("min", view("y", 1, offset=1), epilogue_loads=[view("s", 1), view("e", 1)],
                epilogue=["add", ["sub", ["result"], ["load", 0]], ["cast", "float32", ["load", 1]]])),
        compute("copy", here, {"kind": "copy", "from": ref("y", 1), "to": ref("z"), "elements": 8}),
        compute("products", here, folding("prod", view("p", 1))),
        compute("halves", here, halves),
        compute("rows", here, {**rows, "body": doubled}),
    ]  # fmt: skip
    for buffer in held:
        buffer["live"] = [0, len(steps) - 1]
    tensors = [
        plain("x", "float32", "input", (8, 3), [place(0, "x", [0, 0], [8, 3])]),
        plain("e", "int32", "input", (8,), [place(0, "e", [0], [8])]),
        plain("z", "float32", "output", (8,), [place(0, "z", [0], [8])]),
        plain("p", "float32", "output", (8,), [place(0, "p", [0], [8])]),
        plain("h", "float16", "output", (8, 5), [place(0, "h", [0, 0], [8, 5])]),
    ]
    y = x.min(1) - (2.5 + x.sum(1)) * 3 + e
    z = np.concatenate([y[:4] + y[4:], y[4:]]).astype(np.float32)
    h = y[:, None].astype(np.float16) + (2 * np.arange(5)).astype(np.float16)
    expected = {"z": z, "p": x[:, ::-1].prod(1), "h": h}
    return Case(manifest(1, held, tensors, steps), {"x": x, "e": e}, expected)
