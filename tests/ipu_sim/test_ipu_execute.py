"""The simulated IPU executes manifests: numbers against NumPy in float64, cycles against counts by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ipu_manifests import Draft, Product, bow, every, ref, run, up
from ipu_random import alike
from roller.plugin import LaunchError
from roller_ipu_sim.chip import cycles
from roller_ipu_sim.chip.machine import machine
from roller_ipu_sim.manifest.models import (
    Amp,
    AmpLoop,
    Fill,
    Manifest,
    ManifestError,
    Map,
    Placement,
    Receivers,
    Send,
    VertexGroup,
    View,
)
from roller_ipu_sim.simulator.execute import Execution, Simulation, execute
from roller_ipu_sim.simulator.interpret import interpret

MACHINE = machine(bow())
Array = np.ndarray[Any, Any]


def both(manifest: Manifest, **inputs: Array) -> Execution:
    """Executed; the interpreter and the other order of events agree."""
    found = execute(manifest, bow(), inputs)
    slow, back = interpret(manifest, bow(), inputs), execute(manifest, bow(), inputs, "backwards")
    assert [step.cycles for step in found.profile.supersteps] == list(slow.cycles)
    for name, values in found.outputs.items():
        assert alike(values, slow.outputs[name]) and alike(values, back.outputs[name])
    return found


def factors(m: int, n: int, k: int, dtype: str = "float16") -> dict[str, Array]:
    rng = np.random.default_rng(m + n + k)
    return {"a": rng.standard_normal((m, k)).astype(dtype), "b": rng.standard_normal((k, n)).astype(dtype)}


def exact(inputs: dict[str, Array]) -> Array:
    return inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)


@pytest.mark.parametrize(
    ("grid", "in_dtype", "acc_dtype"),
    [
        ((1, 1, 1), "float16", "float16"),
        ((1, 2, 1), "float16", "float32"),
        ((3, 2, 2), "float16", "float16"),
        ((2, 1, 5), "float32", "float32"),
        ((7, 5, 3), "float16", "float32"),
    ],
)
def test_products_are_right_for_every_grid(grid: tuple[int, int, int], in_dtype: str, acc_dtype: str) -> None:
    inputs = factors(45, 70, 130, in_dtype)
    manifest = Product(45, 70, 130, *grid, in_dtype, acc_dtype).manifest()
    found = execute(manifest, bow(), inputs).outputs["out"]
    assert found.dtype == acc_dtype and found.shape == (45, 70)
    # each grain and each part of k rounds once; an intermediate sum is at most the sum of the terms' sizes
    sizes = np.abs(inputs["a"]).astype(np.float64) @ np.abs(inputs["b"]).astype(np.float64)
    roundings = math.ceil(130 / 8) + grid[2]
    assert (np.abs(found - exact(inputs)) <= roundings * np.finfo(acc_dtype).eps * sizes).all()


def test_two_tiles_count_as_by_hand() -> None:
    """Rows 24, columns 2 x 32, k 2 x 32: each tile gets 768 elements of a from two, 1024 of b from itself."""
    inputs = factors(24, 64, 64)
    found = both(Product(24, 64, 64, rows=1, columns=2, parts=2).manifest(), **inputs)
    operands, multiply, partial, add = found.profile.supersteps
    assert operands.words_in is not None and operands.words_out is not None and operands.fragments is not None
    assert operands.words_in.tolist() == [768 // 2 + 1024 // 2] * 4
    assert operands.words_out.tolist() == [384 // 2 + 1024 // 2] * 4  # a's share leaves once, though two tiles get it
    assert operands.fragments.tolist() == [5] * 4  # two sent, three received
    assert operands.cycles == 896 + 52 + 2 * 11 + 250
    assert operands.parts == {"exchange": 896, "sync": 324}
    shape = cycles.AmpShape("float16", "float16", 1, 24, 2, 2, (), 1, True, False, True)
    assert multiply.cycles == cycles.amp(MACHINE, shape) and multiply.parts == {"amp": multiply.cycles}
    assert partial.words_in is not None
    assert partial.words_in.tolist() == [384] * 4
    assert add.cycles == cycles.reduced(MACHINE, "float16", 384, 2)
    assert found.profile.cycles == sum(step.cycles for step in found.profile.supersteps) == sum(found.profile.by_kind.values())


def test_partial_sums_round_to_the_accumulators_type() -> None:
    """2048 and then one after another 1: float16 holds no 2049."""
    inputs = {"a": np.full((1, 512), 1 / 16, np.float16), "b": np.ones((512, 16), np.float16)}
    inputs["a"][0, :16] = 128
    for acc_dtype, value in (("float16", 2048.0), ("float32", 2079.0)):
        manifest = Product(1, 16, 512, 1, 1, 1, "float16", acc_dtype).manifest()
        assert (both(manifest, **inputs).outputs["out"] == value).all()


def test_weights_in_the_interleaved_region_load_faster_and_shared_elements_slower() -> None:
    product = Product(24, 64, 64, 1, 2)
    manifest = product.manifest()
    taken = []
    for place in ({"b": MACHINE.interleaved_from}, {"b": MACHINE.interleaved_from, "a": 5 * 16384, "out": 6 * 16384}, {}):
        moved = [b.model_copy(update={"address": place.get(b.name, b.address)}) for b in manifest.buffers]
        taken.append(both(manifest.model_copy(update={"buffers": tuple(moved)}), **factors(24, 64, 64)).profile.by_kind["amp"])
    shapes = [(True, True), (True, False), (False, True)]  # interleaved, conflict
    assert taken == [cycles.amp(MACHINE, cycles.AmpShape("float16", "float16", 1, 24, 4, 2, (), 1, True, *s)) for s in shapes]
    assert taken[1] < taken[0] < taken[2]


def everywhere(draft: Draft, name: str, dtype: str, rows: int, columns: int, role: str) -> None:
    """A tensor [tiles, elements] that fills a buffer of all tiles."""
    draft.buffer(name, dtype, columns)
    shares = [Placement(tile=t, buffer=name, offset=0, start=(t, 0), shape=(1, columns)) for t in range(rows)]
    draft.tensor(name, dtype, (rows, columns), role, shares)


def test_strided_sends() -> None:
    """A window of 3 x 2 of a 4 x 4 image arrives in the middle of rows of 6 of two other tiles, over zeros."""
    draft = Draft(tiles=3, last=1)
    everywhere(draft, "x", "float32", 1, 16, "input")
    everywhere(draft, "y", "float32", 3, 24, "output")
    zero = Fill(to=ref("y"), elements=24, value=0)
    draft.compute("zero", VertexGroup(tiles=every(3), vertex=zero))
    to = Receivers(tiles=((1, 1, 1), (2, 1, 1)), buffer="y", offset=7)
    draft.exchange("window", Send(tile=0, buffer="x", offset=5, to=to, shape=(3, 2), strides=(4, 1), to_strides=(6, 1)))
    image = np.arange(16, dtype=np.float32).reshape(1, 16)
    found = both(draft.done(), x=image)
    wanted = np.zeros((4, 6), np.float32)
    wanted[1:4, 1:3] = image.reshape(4, 4)[1:4, 1:3]
    assert (found.outputs["y"][1:].reshape(2, 4, 6) == wanted).all() and (found.outputs["y"][0] == 0).all()
    phase = found.profile.supersteps[1]
    assert phase.fragments is not None and phase.fragments.tolist() == [3, 3, 3]
    assert phase.cycles == 3 * 3 + 324  # three fragments take longer than six words


def test_a_busy_sender_is_what_a_phase_waits_for() -> None:
    """Tile 0 sends other words to each of three tiles; the last run ends inside a word, which counts whole."""
    draft = Draft(tiles=4, last=0)
    everywhere(draft, "x", "float16", 1, 301, "input")
    everywhere(draft, "y", "float16", 4, 102, "output")
    sends = [run(0, ("x", 100 * t), ("y", 0), 100 + (t == 2), every(1, t + 1)) for t in range(3)]
    draft.exchange("spread", *sends)
    draft.tensors[1] = draft.tensors[1].model_copy(
        update={
            "shape": (3, 100),
            "stored": (3, 100),
            "placements": tuple(Placement(tile=t + 1, buffer="y", offset=0, start=(t, 0), shape=(1, 100)) for t in range(3)),
        }
    )
    values = np.arange(301, dtype=np.float16).reshape(1, 301)
    found = both(draft.done(), x=values)
    assert (found.outputs["y"] == values[0, :300].reshape(3, 100)).all()
    phase = found.profile.supersteps[0]
    assert phase.words_out is not None and phase.words_out.tolist() == [151, 0, 0, 0]
    assert phase.cycles == 151 + 324 and phase.slowest == 0


def test_compute_steps_without_exchange_are_one_superstep() -> None:
    """Tile 0 fills much and then little, tile 1 little and then much: they finish together, and nobody syncs."""
    draft = Draft(tiles=2, last=1)
    everywhere(draft, "x", "float32", 2, 6000, "output")
    much, little = (Fill(to=ref("x", first), elements=count, value=1) for first, count in ((600, 5400), (0, 600)))
    for name, one, other in (("first", much, little), ("second", little, much)):
        draft.compute(name, VertexGroup(tiles=every(1), vertex=one), VertexGroup(tiles=every(1, 1), vertex=other))
    found = both(draft.done())
    (phase,) = found.profile.supersteps
    assert phase.name == "first + second" and phase.steps == (0, 1)
    assert phase.cycles == cycles.filled(MACHINE, "float32", 5400) + cycles.filled(MACHINE, "float32", 600)
    assert found.profile.balance == 1.0 and found.profile.by_kind["sync"] == 0


def test_max_pooling_of_overlapping_windows() -> None:
    draft = Draft(tiles=2, last=0)
    everywhere(draft, "x", "float16", 2, 49, "input")
    everywhere(draft, "y", "float16", 2, 9, "output")
    image = View(buffer="x", offset=0, strides=(14, 2, 7, 1))
    pool = Map(
        dtype="float16", loops=(3, 3, 3, 3), reduce=2, loads=(image,), body=("load", 0), reducer="max",
        out=View(buffer="y", offset=0, strides=(3, 1)),
    )  # fmt: skip
    draft.compute("pool", VertexGroup(tiles=every(2), vertex=pool))
    values = np.random.default_rng(1).standard_normal((2, 49)).astype(np.float16)
    found = both(draft.done(), x=values)
    windows = np.lib.stride_tricks.sliding_window_view(values.reshape(2, 7, 7), (3, 3), axis=(1, 2))[:, ::2, ::2]
    assert (found.outputs["y"].reshape(2, 3, 3) == windows.max(axis=(3, 4))).all()
    shape = cycles.MapShape("float16", 9, 9, 1, 1, ("max",), 0, (), True)
    assert found.profile.cycles == cycles.mapped(MACHINE, shape)


def test_elementwise_with_broadcasting_in_place_and_where_tiles_stand() -> None:
    """x += row bias * 2, then index of the element added, counted from each tile's origin."""
    draft = Draft(tiles=3, last=0)
    everywhere(draft, "x", "float32", 3, 10, "input")
    everywhere(draft, "bias", "float32", 3, 5, "input")
    draft.tensors.append(draft.tensors[0].model_copy(update={"name": "y", "role": "output"}))
    place = View(buffer="x", offset=0, strides=(5, 1))
    scaled = ("mul", ("load", 1), ("const", 2, "float32"))
    where = ("cast", "float32", ("add", ("index", 0, 5, "origin"), ("index", 1, 1, None)))
    body = ("add", ("add", ("load", 0), scaled), where)
    bias = View(buffer="bias", offset=0, strides=(0, 1))
    vertex = Map(dtype="float32", loops=(2, 5), vector=2, loads=(place, bias), body=body, out=place)
    draft.compute("add", VertexGroup(tiles=((2, 1, 1), (0, 2, 1)), vertex=vertex, origins={"origin": (20, 0, 10)}))
    rng = np.random.default_rng(2)
    x, row = (rng.integers(-50, 50, (3, n)).astype(np.float32) for n in (10, 5))
    found = both(draft.done(), x=x, bias=row)
    assert (found.outputs["y"] == x + np.tile(2 * row, (1, 2)) + np.arange(30, dtype=np.float32).reshape(3, 10)).all()
    ops = ("mul", "add", "add", "cast", "add")
    shape = cycles.MapShape("float32", 2 * up(5, 2), 1, 2, 2, ops, 0, (), False)
    assert found.profile.cycles == cycles.mapped(MACHINE, shape)


def test_a_convolution_over_overlapping_rows_in_two_steps() -> None:
    """Columns of 12 with a kernel of 3 along them, 32 channels: the first 16 in one step, the others added in the next."""
    draft = Draft(tiles=1, last=1)
    everywhere(draft, "x", "float16", 1, 14 * 32, "input")
    everywhere(draft, "w", "float16", 1, 3 * 2 * 256, "input")
    everywhere(draft, "y", "float32", 1, 12 * 16, "output")
    loops = (
        AmpLoop(role="k", extent=3, a=32, w=512, out=0),
        AmpLoop(role="k", extent=1, a=0, w=0, out=0),
        AmpLoop(role="m", extent=12, a=32, w=0, out=16),
        AmpLoop(role="n", extent=16, a=0, w=16, out=1),
        AmpLoop(role="k", extent=16, a=1, w=1, out=0),
    )
    for half in (0, 1):
        vertex = Amp(
            in_dtype="float16", acc_dtype="float32", zero=half == 0, a=ref("x", 16 * half), w=ref("w", 256 * half), out=ref("y"),
            loops=loops, k_blocks=1, taps=(3,), n_blocks=1,
        )  # fmt: skip
        draft.compute(f"half {half}", VertexGroup(tiles=every(1), vertex=vertex))
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-8, 8, (1, n)).astype(np.float16) for n in (448, 1536))
    found = both(draft.done(), x=x, w=w)
    image, kernel = x.reshape(14, 2, 16).astype(np.float64), w.reshape(3, 2, 16, 16).astype(np.float64)
    wanted = sum(np.einsum("mhk,hnk->mn", image[tap : tap + 12], kernel[tap]) for tap in range(3))
    assert (found.outputs["y"].reshape(12, 16) == wanted).all()  # small whole numbers: nothing rounds
    taken = [
        cycles.amp(MACHINE, cycles.AmpShape("float16", "float32", 1, 12, 1, 1, (3,), 1, zero, False, True))
        for zero in (True, False)
    ]
    assert found.profile.cycles == sum(taken)


FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "floor", "ceil", "round", "neg", "abs")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", [*FUNCTIONS, "pow", "div", "max", "min", "sub"])
def test_functions_are_rounded_once(op: str, dtype: str) -> None:
    """Every function of 400 values of all sizes, as the interpreter has it; and within a unit of NumPy's float64."""
    draft = Draft(tiles=1, last=0)
    everywhere(draft, "x", dtype, 1, 400, "input")
    everywhere(draft, "y", dtype, 1, 400, "output")
    body = (op, ("load", 0)) if op in FUNCTIONS else (op, ("abs", ("load", 0)), ("load", 1))
    loads = tuple(View(buffer="x", offset=start, strides=(step,)) for start, step in ((0, 1), (399, -1)))
    vertex = Map(dtype=dtype, loops=(400,), loads=loads, body=body, out=View(buffer="y", offset=0, strides=(1,)))
    draft.compute(op, VertexGroup(tiles=every(1), vertex=vertex))
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((1, 400)) * 2.0 ** rng.integers(-8, 5, (1, 400))).astype(dtype)
    x[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8]
    found = both(draft.done(), x=x).outputs["y"]
    reference = {"sqrt": np.sqrt, "tanh": np.tanh, "round": np.rint, "sub": lambda v: np.abs(v) - v[:, ::-1]}
    if op in reference:
        with np.errstate(all="ignore"):
            wanted = reference[op](x.astype(np.float64)).astype(dtype)
        assert alike(found, wanted)


def test_sums_start_from_zero_and_greatest_from_the_first() -> None:
    draft = Draft(tiles=1, last=1)
    everywhere(draft, "x", "float32", 1, 1, "input")
    everywhere(draft, "y", "float32", 1, 2, "output")
    for place, reducer in enumerate(("sum", "max")):
        out = View(buffer="y", offset=place, strides=())
        loads = (View(buffer="x", offset=0, strides=(0,)),)
        vertex = Map(dtype="float32", loops=(3,), reduce=1, loads=loads, body=("load", 0), reducer=reducer, out=out)
        draft.compute(reducer, VertexGroup(tiles=every(1), vertex=vertex))
    found = both(draft.done(), x=np.array([[-0.0]], np.float32)).outputs["y"]
    assert np.signbit(found).tolist() == [[False, True]]


def test_long_reductions_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits however many points and tiles are worked on at once."""
    draft = Draft(tiles=3, last=0)
    everywhere(draft, "x", "float16", 3, 60, "input")
    everywhere(draft, "y", "float16", 3, 2, "output")
    loads = (View(buffer="x", offset=0, strides=(30, 6, 1)),)
    total = Map(
        dtype="float16", loops=(2, 5, 6), reduce=2, loads=loads, body=("load", 0), reducer="sum",
        out=View(buffer="y", offset=0, strides=(1,)),
    )  # fmt: skip
    draft.compute("sum", VertexGroup(tiles=every(3), vertex=total))
    values = np.random.default_rng(5).standard_normal((3, 60)).astype(np.float16)
    whole = both(draft.done(), x=values).outputs["y"]
    for piece, points in ((1, 1), (2, 12), (5, 40)):
        monkeypatch.setattr("roller_ipu_sim.simulator.execute.PIECE", piece)
        monkeypatch.setattr("roller_ipu_sim.simulator.execute.POINTS", points)
        assert alike(both(draft.done(), x=values).outputs["y"], whole)


def test_a_simulation_runs_again_with_other_arrays() -> None:
    product = Product(24, 64, 64, 1, 2)
    simulation = Simulation(product.manifest(), bow())
    for inputs in (factors(24, 64, 64), {name: -values for name, values in factors(24, 64, 64).items()}):
        found = simulation.run(inputs)
        assert found.profile is simulation.profile
        assert alike(found.outputs["out"], execute(product.manifest(), bow(), inputs).outputs["out"])
    halved = simulation.run({"a": factors(24, 64, 64)["a"] / 2, "b": factors(24, 64, 64)["b"]})
    assert not alike(halved.outputs["out"], found.outputs["out"])


def test_arrays_that_do_not_fit_are_refused() -> None:
    manifest, inputs = Product(8, 16, 16, 1, 1).manifest(), factors(8, 16, 16)
    with pytest.raises(LaunchError, match="arrays a; give a, b"):
        execute(manifest, bow(), {"a": inputs["a"]})
    with pytest.raises(LaunchError, match="give float16"):
        execute(manifest, bow(), {**inputs, "a": inputs["a"].astype(np.float32)})
    with pytest.raises(LaunchError, match=r"give float16 \(8, 16\)"):
        execute(manifest, bow(), {**inputs, "a": inputs["a"][:4]})
    reshaped = execute(manifest, bow(), {**inputs, "a": inputs["a"].reshape(2, 4, 16)})
    assert alike(reshaped.outputs["out"], execute(manifest, bow(), inputs).outputs["out"])


def test_what_nothing_writes_stays_poisoned() -> None:
    """Of the parts that are added, one too few arrives: refused. Written by nobody, an output would be NaN."""
    draft = Draft(tiles=1, last=0)
    everywhere(draft, "x", "float32", 1, 4, "output")
    draft.compute("some", VertexGroup(tiles=every(1), vertex=Fill(to=ref("x"), elements=3, value=1)))
    with pytest.raises(ManifestError, match="the host reads tensor 'x': tile 0 reads element 3"):
        execute(draft.done(), bow(), {})


def test_a_large_grid_has_ragged_and_empty_tiles() -> None:
    """45 rows of tiles for 89 rows: tiles of 2 rows, the last of one; all of bow's columns in use."""
    inputs = factors(89, 500, 48)
    found = execute(Product(89, 500, 48, 46, 32).manifest(), bow(), inputs)
    small = execute(Product(89, 500, 48, 1, 1).manifest(), bow(), inputs)
    assert alike(found.outputs["out"], small.outputs["out"])  # without a cut of k the order of additions is the same
    assert len(found.profile.memory) == 1472
