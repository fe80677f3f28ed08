"""Manifests of simulated IPUs: as JSON and back, and what is refused with the reason and never run."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ipu_manifests import Draft, Product, bow, every, ref, run
from roller_ipu_sim.chip.machine import machine
from roller_ipu_sim.manifest.check import check
from roller_ipu_sim.manifest.memory import fullest
from roller_ipu_sim.manifest.models import (
    Copy,
    Fill,
    Manifest,
    ManifestError,
    Map,
    Placement,
    Reduce,
    VertexGroup,
    View,
    from_json,
    number,
    to_json,
)
from roller_ipu_sim.simulator.counting import profiled
from roller_ipu_sim.simulator.execute import execute

MACHINE = machine(bow())
Change = Callable[[dict[str, Any]], None]


def product() -> Manifest:
    """24 x 32 x 32 on two tiles beside one another, k in two parts: four tiles."""
    return Product(m=24, n=64, k=64, rows=1, columns=2, parts=2).manifest()


def changed(manifest: Manifest, change: Change) -> Manifest:
    data = json.loads(to_json(manifest))
    change(data)
    return from_json(json.dumps(data))


def at(data: Any, path: str) -> tuple[Any, Any]:
    """Where a dotted path leads: the container and the key."""
    *outer, last = [int(p) if p.lstrip("-").isdigit() else p for p in path.split(".")]
    for part in outer:
        data = data[part]
    return data, last


def put(path: str, value: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        container, key = at(data, path)
        container[key] = value

    return change


def drop(path: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        container, key = at(data, path)
        del container[key]

    return change


def again(path: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        container, key = at(data, path)
        container.append(container[key])

    return change


def refused(manifest: Manifest, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        check(manifest, MACHINE)


def test_json_and_back() -> None:
    manifest = product()
    text = to_json(manifest)
    assert from_json(text) == manifest
    assert to_json(from_json(text.encode())) == text
    assert json.loads(text)["steps"][1]["compute"][0]["vertex"]["kind"] == "amp"
    check(manifest, MACHINE)


def test_every_vertex_is_the_same_after_json() -> None:
    manifest = elementwise()
    assert from_json(to_json(manifest)) == manifest
    assert '"from":{' in to_json(manifest) and '"value":"-inf"' in to_json(manifest)
    assert number("-inf") == -np.inf and number(3) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("version", 1), "version 1, but manifests of version 2 are read here; compile the operator again"),
        (put("surprise", 1), "surprise"),
        (drop("buffers.0.address"), "buffers.0.address"),
        (put("buffers.0.address", "0"), "valid integer"),
        (put("buffers.0.elements", 0), "greater than or equal to 1"),
        (put("buffers.0.dtype", "float13"), "buffers.0.dtype"),
        (put("steps.0.compute", []), "either compute or exchange"),
        (put("steps.1.compute.0.vertex.kind", "wish"), "steps.1"),
        (put("steps.1.compute.0.vertex.loops.0.role", "x"), "role"),
    ],
)
def test_a_malformed_manifest_is_refused(change: Change, words: str) -> None:
    with pytest.raises(ManifestError, match=words) as caught:
        changed(product(), change)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "tree", [["wish"], ["add", ["load", 0]], ["load", -1], ["const", 1], ["cast", "float13", ["load", 0]], [], [["load"]]]
)
def test_a_malformed_tree_is_refused(tree: Any) -> None:
    with pytest.raises(ManifestError, match=r"tree|node|operation"):
        changed(elementwise(), put("steps.2.compute.0.vertex.body", tree))


def test_a_tree_that_is_too_deep_is_refused() -> None:
    tree: list[Any] = ["load", 0]
    for depth, words in ((160, "deep"), (300, "recursion")):
        while json.dumps(tree).count("neg") < depth:
            tree = ["neg", tree]
        with pytest.raises(ManifestError, match=words):
            changed(elementwise(), put("steps.2.compute.0.vertex.body", tree))


TOP, RESERVED = MACHINE.tile_bytes, MACHINE.reserved_bytes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("chip", "gc2"), "machine 'bow'"),
        (put("tiles", 2000), "2000 tiles"),
        (again("buffers.0"), "two buffers are called 'a_home'"),
        (again("tensors.0"), "two tensors are called 'a'"),
        (put("buffers.0.tiles", [[0, 5, 1]]), "tile 4 of 4"),
        (put("buffers.0.tiles", [[0, 2, 1], [1, 2, 1]]), "named twice"),
        (put("buffers.0.tiles", [[0, 3, 1]]), "tile 3 .*a_home"),
        (put("buffers.0.address", TOP), rf"tile 0: buffer 'a_home' .* 768 bytes beyond the tile's memory of {TOP}"),
        (put("buffers.0.address", RESERVED - 16), "inside the 40960 bytes"),
        (put("buffers.0.address", RESERVED + 1), "no multiple of an element"),
        (put("buffers.1.address", RESERVED + 16), "tile 0: buffers 'a_home' and 'b_home' share the bytes 40976 to 41728 at step 0"),
        (put("buffers.0.live", [0, 9]), "live from step 0 to 9 of 4"),
        (put("buffers.0.live", [1, 3]), "the host writes tensor 'a': buffer 'a_home' lives from step 1"),
        (put("buffers.2.live", [1, 3]), "step 0 .*buffer 'a' lives from step 1"),
        (put("buffers.5.live", [0, 2]), "step 3 .*buffer 'sum' lives"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(change: Change, words: str) -> None:
    refused(changed(product(), change), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("tensors.0.layout", [[0, 1, None]]), "1 digits for 4"),
        (put("tensors.0.layout.0.0", 2), "a dimension that is not there"),
        (put("tensors.0.stored.3", 16), "coordinate 31 in stored dimension 3"),
        (put("tensors.0.layout.3.1", 2), "dimension 1 share a stored place"),
        (put("tensors.0.shape", [2**30, 64]), "more than all tiles have"),
        (put("tensors.0.dtype", "float32"), "buffer 'a_home' is of float16"),
        (put("tensors.0.placements.0.buffer", "no"), "no buffer 'no' in tile 0"),
        (put("tensors.0.placements.0.tile", 4), "in tile 4"),
        (put("tensors.0.placements.0.start", [0, 0]), "tile 0: elements|tile 0: a box of"),
        (put("tensors.0.placements.0.start", [2, 0, 0, 0]), "leaves the stored array"),
        (put("tensors.0.placements.0.first", 400), "elements 400 to 784 of a box of 768"),
        (put("tensors.0.placements.0.offset", 1), "1 elements beyond buffer"),
        (drop("tensors.0.placements.0"), r"the element stored at \(0, 0, 0, 0\) is read by the host, but lies nowhere"),
        (drop("tensors.2.placements.0"), "is written by the host"),
        (again("tensors.0.placements.0"), "another placement holds too"),
    ],
)
def test_tensors_that_lie_wrong_are_refused(change: Change, words: str) -> None:
    refused(changed(product(), change), words)


AMP = "steps.1.compute.0.vertex"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (again("steps.1.compute.0"), "step 1 .*two vertices on tile 0"),
        (put("steps.1.compute.0.tiles", [[0, 5, 1]]), "tile 4 of 4"),
        (put(f"{AMP}.a.buffer", "no"), "no buffer 'no'"),
        (put(f"{AMP}.a.offset", 16), "elements 16 to 784 of buffer 'a', which has 768"),
        (put(f"{AMP}.in_dtype", "float32"), "buffer 'a' is of float16, not float32"),
        (put(f"{AMP}.in_dtype", "bfloat16"), "buffer 'a' is of float16, not bfloat16"),
        (put(f"{AMP}.loops.4.extent", 8), "16 columns and a grain of 8"),
        (put(f"{AMP}.loops.3.extent", 8), "8 columns and a grain of 16"),
        (put(f"{AMP}.loops.4.role", "m"), "last two loops"),
        (put(f"{AMP}.loops.4.w", 2), "lie densely"),
        (put(f"{AMP}.loops.2.w", 4), "a loop over m steps an operand that has no m"),
        (put(f"{AMP}.k_blocks", 1), "k_blocks x taps is 1, but the loops make 2"),
        (put(f"{AMP}.n_blocks", 1), "n_blocks is 1, but the loops make 2"),
        (put(f"{AMP}.groups", 2), "groups is 2"),
        (put(f"{AMP}.loops.2.a", 30), "operand a .* 60 bytes, which is no multiple of the matrix unit's 8"),
        (put("buffers.2.address", 2 * RESERVED + 4), "operand a .* 81924 bytes"),
        (put("buffers.6.address", MACHINE.memory.region0_bytes + 8), "operand w .* no multiple of the matrix unit's 16"),
        (put(f"{AMP}.loops.2.out", 16), "two results have the same element"),
        (put(f"{AMP}.out.buffer", "a"), "the result overlaps an operand"),
        (put(f"{AMP}.zero", False), "tile 0 reads element 0 of buffer 'out', which nothing has written"),
    ],
)
def test_products_off_the_rules_are_refused(change: Change, words: str) -> None:
    refused(changed(product(), change), words)


SEND = "steps.0.exchange.0"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(f"{SEND}.strides", []), "1 extents with 0 and 1 strides"),
        (put(f"{SEND}.strides", [2]), "not dense"),
        (put(f"{SEND}.buffer", "parts"), "elements 0 to 384 of buffer 'parts'|which nothing has written"),
        (put(f"{SEND}.to.buffer", "sums"), "no buffer 'sums'"),
        (put(f"{SEND}.to.offset", 700), "elements 700 to 1084"),
        (put(f"{SEND}.to.offset", 1), "no multiple of 4"),
        (put(f"{SEND}.to.tiles", [[3, 2, 1]]), "tile 4 of 4"),
        (put(f"{SEND}.tile", 7), "tile 7 of 4"),
        (drop(SEND), r"step 1 \(multiply\), amp: tile 0 reads element 0 of buffer 'a', which nothing has written"),
        (again(SEND), "element 0 of buffer 'a' in tile 0 is written twice in one exchange"),
        (put(f"{SEND}.to.tiles", [[0, 1, 1]]), "tile 1 reads element 0 of buffer 'a'"),
    ],
)
def test_exchanges_off_the_rules_are_refused(change: Change, words: str) -> None:
    refused(changed(product(), change), words)


def test_partial_sums_of_another_type_are_refused() -> None:
    mixed = Product(m=24, n=64, k=64, rows=1, columns=2, parts=2, acc_dtype="float32").manifest()
    refused(changed(mixed, put(f"{SEND}.to.buffer", "parts")), "buffer 'parts' is of float32, not float16")


def test_a_send_of_what_arrives_at_once_is_refused() -> None:
    draft = Draft(tiles=2)
    draft.buffer("x", "float32", 4)
    shares = [Placement(tile=t, buffer="x", offset=0, start=(t, 0), shape=(1, 4)) for t in (0, 1)]
    draft.tensor("x", "float32", (2, 4), "input", shares)
    draft.exchange("swap", run(0, ("x", 0), ("x", 0), 4, every(1, 1)), run(1, ("x", 0), ("x", 0), 4, every(1)))
    refused(draft.done(), "element 0 of buffer 'x' in tile 0 is sent and written in one exchange")
    draft.steps.clear()
    double = run(0, ("x", 0), ("x", 0), 2, every(1, 1)).model_copy(
        update={"shape": (2, 2), "strides": (2, 1), "to_strides": (0, 1)}
    )
    draft.exchange("twice", double)
    refused(draft.done(), "two elements arrive at one place")


def elementwise() -> Manifest:
    """Two tiles: a fill, a copy, y = x + 1 over rows of 4, z = largest of each row, a sum of two rows."""
    draft = Draft(tiles=2, last=4)
    for name, size in (("x", 8), ("y", 8), ("z", 2), ("low", 8), ("s", 4)):
        draft.buffer(name, "float32", size)
    draft.tensor(
        "x", "float32", (2, 8), "input", [Placement(tile=t, buffer="x", offset=0, start=(t, 0), shape=(1, 8)) for t in (0, 1)]
    )
    draft.tensor(
        "z", "float32", (2, 2), "output", [Placement(tile=t, buffer="z", offset=0, start=(t, 0), shape=(1, 2)) for t in (0, 1)]
    )
    rows = View(buffer="y", offset=0, strides=(4, 1))
    one = ("add", ("load", 0), ("const", 1.0, "float32"))
    plus = Map(dtype="float32", loops=(2, 4), vector=2, loads=(View(buffer="x", offset=0, strides=(4, 1)),), body=one, out=rows)
    top = Map(
        dtype="float32", loops=(2, 4), reduce=1, loads=(rows,), body=("load", 0), reducer="max",
        epilogue_loads=(View(buffer="s", offset=0, strides=(0,)),), epilogue=("add", ("result",), ("load", 0)),
        out=View(buffer="z", offset=0, strides=(1,)),
    )  # fmt: skip
    draft.compute("fill", VertexGroup(tiles=every(2), vertex=Fill(to=ref("low"), elements=8, value=-np.inf)))
    draft.compute("copy", VertexGroup(tiles=every(2), vertex=Copy(source=ref("x"), to=ref("low"), elements=8)))
    draft.compute("plus", VertexGroup(tiles=every(2), vertex=plus))
    add = Reduce(acc_dtype="float32", partials=2, outputs=4, parts=ref("y"), step=4, out=ref("s"))
    draft.compute("add", VertexGroup(tiles=every(1), vertex=add), VertexGroup(tiles=every(1, 1), vertex=add))
    draft.compute("top", VertexGroup(tiles=every(2), vertex=top))
    return draft.done()


FILL, COPY, PLUS, ADD, TOPS = (f"steps.{n}.compute.0.vertex" for n in range(5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(f"{FILL}.elements", 9), "elements 0 to 9 of buffer 'low', which has 8"),
        (put("buffers.3.dtype", "int32"), "int32 does not hold -inf"),
        (put(f"{COPY}.from.buffer", "low"), "the copy overlaps its source"),
        (put("buffers.2.dtype", "float16"), "tensor 'z' of float32: buffer 'z' is of float16"),
        (put(f"{PLUS}.loads.0.strides", [1]), "1 strides in buffer 'x' for 2 loops"),
        (put(f"{PLUS}.loads.0.strides", [4, 2]), "elements 0 to 11 of buffer 'x'"),
        (put(f"{PLUS}.loads.0.strides", [4, -1]), "elements -3 to"),
        (put(f"{PLUS}.reduce", 3), "3 of 2 loops reduce"),
        (put(f"{PLUS}.loops", [2, 2**32]), "8589934592 points of 2 loops"),
        (put(f"{TOPS}.reducer", None), "without a reducer"),
        (put(f"{PLUS}.accumulate", True), "without a reducer"),
        (put(f"{PLUS}.vector", 8), "vectors of 8 float32; bow has 2"),
        (put(f"{PLUS}.dtype", "bfloat16"), "does not compute in bfloat16"),
        (put(f"{PLUS}.body.1.1", 1), "load 1 of 1"),
        (put(f"{PLUS}.body", ["result"]), "only in an epilogue"),
        (put(f"{PLUS}.body.2.2", "float16"), "'add' of float32 and float16; cast"),
        (put(f"{PLUS}.body.2", ["const", 0.5, "int32"]), "int32"),
        (put(f"{PLUS}.body.2", ["cast", "float32", ["const", 0.5, "int32"]]), "int32 does not hold 0.5"),
        (put(f"{PLUS}.body.0", "and"), "'and' is of bool"),
        (put(f"{PLUS}.body", ["select", ["load", 0], ["load", 0], ["load", 0]]), "decides by a bool"),
        (put(f"{PLUS}.body", ["sin", ["index", 0, 1, None]]), "'sin' is of floats"),
        (put(f"{PLUS}.body.2", ["cast", "float32", ["index", 2, 1, None]]), "the index of loop 2 of 2"),
        (put(f"{PLUS}.body.2", ["cast", "float32", ["index", 1, 1, "here"]]), "origins 'here' give no number"),
        (put(f"{PLUS}.out.strides", [2, 1]), "two results have the same element"),
        (put(f"{PLUS}.loads.0.buffer", "y"), "which nothing has written"),
        (put(f"{PLUS}.loads.0", {"buffer": "y", "offset": 7, "strides": [-4, -1]}), "results overlap what is read of buffer 'y'"),
        (put(f"{TOPS}.out.buffer", "y"), "results overlap what is read of buffer 'y'"),
        (put(f"{ADD}.out", {"buffer": "y", "offset": 2}), "sums overlap parts"),
        (put(f"{ADD}.partials", 3), "elements 0 to 12 of buffer 'y'"),
        (put(f"{ADD}.acc_dtype", "bfloat16"), "does not compute in bfloat16"),
        (drop("steps.3.compute.1"), r"step 4 \(top\), map: tile 1 reads element 0 of buffer 's'"),
    ],
)
def test_elementwise_work_off_the_rules_is_refused(change: Change, words: str) -> None:
    refused(changed(elementwise(), change), words)


def test_work_whose_cycles_are_not_known_is_refused() -> None:
    body = ["cast", "float32", ["floor", ["index", 0, 1, None]]]
    manifest = changed(changed(elementwise(), put(f"{PLUS}.body", body)), put(f"{PLUS}.dtype", "int32"))
    manifest = changed(manifest, put(f"{PLUS}.vector", 1))
    check(manifest, MACHINE)
    with pytest.raises(ManifestError, match=r"step 2 \(plus\): .*'floor'"):
        profiled(manifest, MACHINE)


def test_refused_means_never_run() -> None:
    with pytest.raises(ManifestError, match="machine"):
        execute(changed(product(), put("chip", "gc2")), bow(), {})


def test_memory_is_counted_where_and_when_buffers_live() -> None:
    draft = Draft(tiles=3, last=1)
    draft.buffer("x", "float16", 10)
    draft.buffer("y", "float32", 4, tiles=every(1, 2), live=(1, 1))
    draft.buffer("z", "float32", 2, tiles=every(2, 1), live=(0, 0))
    draft.compute("first")
    draft.compute("second")
    assert fullest(draft.done()).tolist() == [20, 28, 36]


def test_buffers_may_share_memory_one_after_another() -> None:
    draft = Draft(tiles=2, last=1)
    draft.buffer("x", "float16", 10, live=(0, 0))
    draft.buffer("y", "float16", 10, address=RESERVED, live=(1, 1))
    for name, buffer in (("first", "x"), ("second", "y")):
        draft.compute(name, VertexGroup(tiles=every(2), vertex=Fill(to=ref(buffer), elements=10, value=1)))
    check(draft.done(), MACHINE)
    late = Fill(to=ref("x"), elements=10, value=1)
    draft.steps.pop()
    draft.compute("second", VertexGroup(tiles=every(2), vertex=late))
    refused(draft.done(), "step 1 .*buffer 'x' lives from step 0 to 0")


@pytest.mark.parametrize(("one", "other"), [((0, 0), (0, 1)), ((0, 1), (1, 1)), ((1, 1), (0, 1)), ((0, 1), (0, 1))])
def test_buffers_that_live_in_one_step_do_not_share_memory(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Not even where the last step of one is the first of the other."""
    draft = Draft(tiles=2, last=1)
    draft.buffer("x", "float16", 10, live=one)
    draft.buffer("y", "float16", 10, address=RESERVED, live=other)
    draft.compute("first")
    draft.compute("second")
    refused(draft.done(), f"buffers 'x' and 'y' share the bytes .* at step {max(one[0], other[0])}")


def numbers_in(data: Any, path: str = "") -> Iterator[str]:
    """Paths of all numbers."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, int) and not isinstance(value, bool):
            yield place
        yield from numbers_in(value, place)
