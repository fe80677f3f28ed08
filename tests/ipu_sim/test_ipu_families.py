"""Families of sends and placements do what many by themselves do: checked, executed, interpreted, and as Poplar's text."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_ipu_manifest import MACHINE, refused

from ipu_manifests import Draft, bow, every, ref, run
from ipu_poplar_cases import needs_compiler
from ipu_random import alike
from roller import compile as compiled
from roller import ops
from roller_ipu_sim.manifest.affine import Nest, nest_over, spans
from roller_ipu_sim.manifest.check import check
from roller_ipu_sim.manifest.models import (
    Fill,
    Manifest,
    ManifestError,
    Placement,
    Receivers,
    Send,
    VertexGroup,
    from_json,
    to_json,
)
from roller_ipu_sim.poplar.host_check import run_on_host
from roller_ipu_sim.simulator.execute import execute
from roller_ipu_sim.simulator.interpret import interpret

pytestmark = pytest.mark.usefixtures("headers_read_once")

ROW = 8  # elements of a tile


def family(tile: int, source: tuple[str, int], to: tuple[str, int], elements: int, receivers: Any, *loops: Any) -> Send:
    return run(tile, source, to, elements, receivers).model_copy(update={"loops": loops})


def moving(tiles: int, *sends: Send, then: Sequence[Send] = (), ranged: bool = True) -> Manifest:
    """x comes from the host, y is zero and goes there; exchanges. `ranged`: the tiles of the buffers are one range."""
    draft = Draft(tiles=tiles, last=2)
    for name, role in (("x", "input"), ("y", "output")):
        draft.buffer(name, "float32", ROW, tiles=every(tiles) if ranged else tuple((t, 1, 1) for t in range(tiles)))
        rows = Placement(tile=0, buffer=name, offset=0, start=(0, 0), shape=(1, ROW), loops=((tiles, 1, 0, (1, 0), 0),))
        draft.tensor(name, "float32", (tiles, ROW), role, [rows])
    draft.compute("zero", VertexGroup(tiles=every(tiles), vertex=Fill(to=ref("y"), elements=ROW, value=0)))
    draft.exchange("move", *sends)
    draft.exchange("then", *then)
    return draft.done()


def rows(tiles: int) -> dict[str, Any]:
    return {"x": np.arange(1, tiles * ROW + 1, dtype=np.float32).reshape(tiles, ROW)}


def one_by_one(send: Send) -> list[Send]:
    """The sends of a family, by plain loops."""
    found = []
    for index in itertools.product(*(range(loop[0]) for loop in send.loops)):
        tile, offset, by, to = (sum(i * loop[c] for i, loop in zip(index, send.loops, strict=True)) for c in (1, 2, 3, 4))
        receivers = [t + by for first, count, step in send.to.tiles for t in range(first, first + count * step, step)]
        kept = tuple((t, 1, 1) for t in receivers if not (send.others and t == send.tile + tile))
        target = Receivers.model_construct(tiles=kept, buffer=send.to.buffer, offset=send.to.offset + to)
        place = {"tile": send.tile + tile, "offset": send.offset + offset, "to": target}
        found.append(send.model_copy(update={**place, "others": False, "loops": ()}))
    return found


def verdict(manifest: Manifest) -> str:
    try:
        check(manifest, MACHINE)
    except ManifestError as error:
        return str(error)
    return ""


def agree(manifest: Manifest, inputs: dict[str, Any]) -> dict[str, Any]:
    """Executed in both orders and interpreted: the same numbers and cycles."""
    found, slow = execute(manifest, bow(), inputs), interpret(manifest, bow(), inputs)
    assert [step.cycles for step in found.profile.supersteps] == list(slow.cycles)
    again = execute(manifest, bow(), inputs, order="backwards")
    for name, values in found.outputs.items():
        assert alike(values, slow.outputs[name]) and alike(values, again.outputs[name])
    return found.outputs


# --- sends -----------------------------------------------------------------------------------------------------------


@st.composite
def families(draw: st.DrawFn, tiles: int) -> Send:
    """A family that mostly stays among the tiles and in the buffers."""
    count, others = draw(st.integers(1, 3)), {"others": draw(st.booleans())}
    many = draw(st.integers(1, tiles))
    match draw(st.sampled_from(("any", "shares", "ring", "own"))):
        case "shares":
            loops = [(many, 1, draw(st.integers(0, 2)), 0, count)]
            return family(0, ("x", 0), ("y", draw(st.integers(0, 1))), count, every(tiles), *loops).model_copy(update=others)
        case "ring":
            rounds = (draw(st.integers(1, 2)), 0, count, 0, draw(st.integers(count - 1, count + 1)))
            return family(0, ("x", 0), (draw(st.sampled_from("xy")), 0), count, every(1, 1), (many, 1, 0, 1, 0), rounds)
        case "own":  # a share to all others: each sender's own place is what it sends
            return family(0, ("x", 0), ("x", 0), 2, every(tiles), (many, 1, 2, 0, 2)).model_copy(update={"others": True})
    step = st.sampled_from((0, 1, 1, 2, -1))
    loops = [(draw(st.integers(1, 3)), *(draw(step) for _ in range(4))) for _ in range(draw(st.integers(0, 2)))]
    to = draw(st.sampled_from(("y", "y", "x")))
    receivers = every(draw(st.integers(1, 2)), draw(st.integers(0, tiles - 1)))
    starts = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    tile = draw(st.integers(0, tiles - 1))
    return family(tile, ("x", starts[0]), (to, starts[1]), count, receivers, *loops).model_copy(update=others)


@given(st.data())
def test_a_family_is_its_sends(data: st.DataObject) -> None:
    """Refused or accepted as they are; accepted, it moves the same words to the same places at the same cost."""
    tiles = data.draw(st.integers(1, 4))
    sends = data.draw(st.lists(families(tiles), min_size=1, max_size=2))
    whole, torn = moving(tiles, *sends), moving(tiles, *sends, ranged=False)
    single = moving(tiles, *(one for send in sends for one in one_by_one(send)))
    assert bool(verdict(whole)) == bool(verdict(single)) == bool(verdict(torn))
    if not verdict(whole):
        assert from_json(to_json(whole)) == whole
        found = agree(whole, rows(tiles))
        assert all(alike(values, found[name]) for name, values in execute(single, bow(), rows(tiles)).outputs.items())
        agree(torn, rows(tiles))


SHARES = family(0, ("x", 0), ("y", 0), 2, every(4), (4, 1, 2, 0, 2))  # two elements of each of four tiles to all of them
TO_OTHERS = family(0, ("x", 0), ("x", 0), 2, every(4), (4, 1, 2, 0, 2)).model_copy(update={"others": True})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"loops": ((5, 1, 0, 0, 0),)},
            r"step 1 \(move\), send 0 of tile 0, repetition \[4\]: tile 4 of 4; name tiles",
        ),
        ({"loops": ((2, -1, 0, 0, 2),)}, r"repetition \[1\]: tile -1 of 4; name tiles that are there"),
        ({"loops": ((2, 0, 2, 1, 2),)}, r"repetition \[1\]: tile 4 of 4; name tiles that are there"),
        ({"loops": ((4, 1, 3, 0, 2),)}, r"repetition \[3\]: elements 9 to 11 of buffer 'x', which has 8; stay inside it"),
        ({"loops": ((2, 0, 0, 0, -2),)}, r"repetition \[1\]: elements -2 to 0 of buffer 'y', which has 8; stay inside it"),
        ({"loops": ((4, 1, 2, 0, 1),)}, r"repetition \[1\]: element 1 of buffer 'y' in tile 0 is written twice .*send it once"),
        ({"loops": ((2**20, 0, 0, 0, 0),)}, "1048576 repetitions into 32 elements of buffer 'y'; send each once"),
        (
            {"to": Receivers(tiles=every(1, 2), buffer="y", offset=0), "others": True},
            r"repetition \[2\]: the only receiver is the sender itself, tile 2; name others",
        ),
    ],
)
def test_families_off_the_rules_are_refused(changed: dict[str, Any], words: str) -> None:
    refused(moving(4, SHARES.model_copy(update=changed)), words)


def test_steps_inside_a_word_are_refused() -> None:
    draft = Draft(tiles=2)
    draft.buffer("x", "float16", 8)
    draft.compute("zero", VertexGroup(tiles=every(2), vertex=Fill(to=ref("x"), elements=8, value=0)))
    draft.exchange("move", family(0, ("x", 0), ("x", 4), 1, every(1, 1), (2, 0, 1, 0, 2)))
    refused(draft.done(), r"repetition \[1\]: runs in buffer 'x' lie or step at \d+ bytes, no multiple of 4; align them")


def test_what_one_repetition_reads_must_be_written() -> None:
    draft = Draft(tiles=3, last=1)
    for name in ("x", "y"):
        draft.buffer(name, "float32", ROW)
    draft.compute("some", VertexGroup(tiles=every(2), vertex=Fill(to=ref("x"), elements=ROW, value=1)))
    draft.exchange("move", family(0, ("x", 0), ("y", 0), 2, every(1), (3, 1, 0, 0, 2)))
    refused(draft.done(), r"send 0 of tile 0, repetition \[2\]: tile 2 reads element 0 of buffer 'x', which nothing has written")


def test_what_one_repetition_receives_must_not_be_sent() -> None:
    ring = family(0, ("x", 0), ("x", 0), 4, every(1, 1), (3, 1, 0, 1, 0))
    refused(moving(4, ring), r"element 0 of buffer 'x' in tile 1 is sent and written in one exchange; receive into another place")
    beside = family(0, ("x", 0), ("x", 4), 4, every(1, 1), (3, 1, 0, 1, 0))
    check(moving(4, beside), MACHINE)


def test_others_are_all_but_the_sender() -> None:
    manifest = moving(4, TO_OTHERS, run(0, ("y", 0), ("y", 4), 4, every(1)).model_copy(update={"tile": 1}))
    agree(manifest, rows(4))
    phase = execute(manifest, bow(), rows(4)).profile.supersteps[1]
    assert phase.words_in is not None and phase.words_in.tolist() == [6 + 4, 6, 6, 6]
    again = family(3, ("y", 0), ("x", 6), 2, every(1, 3))
    refused(moving(4, TO_OTHERS, again), "element 6 of buffer 'x' in tile 3 is sent and written in one exchange")


def numbers_of(table: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    below = [place for key, value in items for place in numbers_of(value, (*path, key))]
    return [*below, path] if isinstance(table, int) and not isinstance(table, bool) else below


TEXT = to_json(moving(4, SHARES, TO_OTHERS.model_copy(update={"tile": 0})))
NUMBERS = numbers_of([json.loads(TEXT)["steps"][1], json.loads(TEXT)["tensors"][0]["placements"]])


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("path", NUMBERS)
def test_one_number_of_a_family_changed_is_refused_or_shows(path: tuple[Any, ...], by: int) -> None:
    table = json.loads(TEXT)
    parts = [table["steps"][1], table["tensors"][0]["placements"]]
    place = parts
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] += by
    right = execute(from_json(TEXT), bow(), rows(4))
    try:
        found = execute(from_json(json.dumps(table)), bow(), rows(4))
    except ManifestError:
        return
    assert not alike(found.outputs["y"], right.outputs["y"]) or found.profile.to_dict() != right.profile.to_dict()


# --- placements ------------------------------------------------------------------------------------------------------


def placed(*placements: Placement, shape: Sequence[int] = (4, ROW), elements: int = 3 * ROW) -> Manifest:
    """A tensor whose parts lie so in a buffer of four tiles, read and written by the host."""
    draft = Draft(tiles=4)
    draft.buffer("x", "float32", elements)
    draft.tensor("x", "float32", shape, "input", placements)
    draft.tensor("y", "float32", shape, "output", placements)
    draft.compute("nothing")
    return draft.done()


def part(start: Sequence[int], shape: Sequence[int], *loops: Any, **more: Any) -> Placement:
    made = {"tile": 0, "buffer": "x", "offset": 0, **more}
    return Placement(**made, start=start, shape=shape, loops=loops)


WHOLE = part((0, 0), (1, ROW), (4, 1, 0, (1, 0), 0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"loops": ((5, 1, 0, (1, 0), 0),)}, "no buffer 'x' in tile 4; place it where one is"),
        ({"loops": ((4, 1, 0, (2, 0), 0),)}, r"tile 2: a box that leaves the stored array \(4, 8\); stay inside it"),
        ({"loops": ((4, 1, 0, (-1, 0), 0),)}, "tile 1: a box that leaves the stored array"),
        ({"loops": ((4, 1, -1, (1, 0), 0),)}, "tile 1: 1 elements before buffer 'x'; place it inside"),
        ({"loops": ((4, 1, 6, (1, 0), 0),)}, "tile 3: 2 elements beyond buffer 'x'; make it larger"),
        ({"loops": ((4, 1, 0, (1,), 0),)}, "a box of 1 dimensions; the stored array has 2"),
        ({"loops": ((4, 1, 0, (1, 0), 1),)}, "parts that begin at different elements of a box; say how many each holds"),
        ({"loops": ((4, 1, 0, (1, 0), 1),), "count": 7}, "tile 2: elements 2 to 9 of a box of 8; stay inside it"),
        ({"loops": ((4, 1, 0, (0, 0), 0),)}, "tile 1: a part that another placement holds too; place each element once"),
        ({"loops": ((2**30, 0, 0, (0, 0), 0),)}, "1073741824 repetitions of a part; place each element once"),
        ({"loops": ((3, 1, 0, (1, 0), 0),)}, r"the element stored at \(3, 0\) is read by the host, but lies nowhere; place it"),
        ({"strides": (8,)}, "what lies in strides is a whole box with a step for each of its dimensions"),
        ({"strides": (8, 1), "count": 7}, "what lies in strides is a whole box"),
        ({"strides": (16, 2)}, "the last dimension of a box in steps of 2; let it lie densely"),
        ({"shape": (2, ROW), "strides": (7, 1)}, "rows of a box that overlap in buffer 'x'; take larger steps"),
        ({"shape": (4, ROW), "strides": (9, 1), "loops": ()}, "tile 0: 11 elements beyond buffer 'x'; make it larger"),
    ],
)
def test_placements_off_the_rules_are_refused(changed: dict[str, Any], words: str) -> None:
    refused(placed(WHOLE.model_copy(update=changed)), words)


@given(st.data())
def test_a_tensor_is_covered_just_once_or_refused(data: st.DataObject) -> None:
    """As counting its elements one by one says."""
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(2))
    box = tuple(data.draw(st.integers(1, extent)) for extent in shape)
    first = data.draw(st.integers(0, math.prod(box) - 1)) if data.draw(st.booleans()) else 0
    count = data.draw(st.integers(1, math.prod(box) - first)) if first else None
    times = [(data.draw(st.integers(1, 4)), tuple(data.draw(st.integers(0, 2)) for _ in shape)) for _ in range(2)]
    loops = [(n, 0, 0, step, 0) for n, step in times]
    family = part((0, 0), box, *loops, first=first, count=count)
    left = data.draw(st.sampled_from(((), (part((0, 0), box, first=0, count=first),) if first else ())))
    held = np.zeros(shape, np.int64)
    for placement in (family, *left):
        for index in itertools.product(*(range(loop[0]) for loop in placement.loops)):
            low = [sum(i * loop[3][d] for i, loop in zip(index, placement.loops, strict=True)) for d in range(2)]
            if any(s + e > x for s, e, x in zip(low, box, shape, strict=True)):
                said = verdict(placed(family, *left, shape=shape))
                assert "leaves" in said or "repetitions" in said
                return
            window = np.zeros(math.prod(box), np.int64)
            window[placement.first : placement.first + placement.elements] = 1
            held[low[0] : low[0] + box[0], low[1] : low[1] + box[1]] += window.reshape(box)
    said = verdict(placed(family, *left, shape=shape))
    assert bool(said) == bool((held != 1).any()), said


def strided() -> Manifest:
    """Boxes of 2 x 4 of a 4 x 8 array, each inside rows of 5 of a tile's buffer; beside them a whole row that is dense."""
    boxes = part((0, 0), (2, 4), (2, 2, 0, (2, 0), 0), (2, 1, 3, (0, 4), 0), strides=(5, 1))
    return placed(boxes)


def test_a_box_may_lie_inside_a_larger_buffer() -> None:
    inputs = rows(4)
    assert alike(agree(strided(), inputs)["y"], inputs["x"])
    gap = Fill(to=ref("x", 4), elements=1, value=0)  # between two rows of tile 0's box: nobody's
    draft = strided()
    filled = draft.model_copy(
        update={"steps": (draft.steps[0].model_copy(update={"compute": (VertexGroup(tiles=every(1), vertex=gap),)}),)}
    )
    assert alike(agree(filled, inputs)["y"], inputs["x"])
    later = part((0, 0), (2, 4), (2, 2, 0, (2, 0), 0), (2, 1, 3, (0, 4), 0), strides=(6, 1))
    tensors = (draft.tensors[0], draft.tensors[1].model_copy(update={"placements": (later,)}))
    refused(draft.model_copy(update={"tensors": tensors}), "the host reads tensor 'y', repetition .* which nothing has written")


# --- Poplar ----------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("first", [SHARES, TO_OTHERS])
def test_the_printed_program_walks_families(first: Send) -> None:
    home = family(0, ("x", 0), ("y", 0), ROW, every(1), (4, 1, 0, 1, 0))
    manifest = moving(4, first, then=[home] if first.others else [])
    found = agree(manifest, rows(4))["y"]
    assert alike(run_on_host(manifest, rows(4))["y"], found)
    assert (found == rows(4)["x"].reshape(4, 4, 2)[range(4), range(4)].reshape(8)).all()


@needs_compiler
def test_the_printed_program_reads_and_writes_boxes_in_strides() -> None:
    assert alike(run_on_host(strided(), rows(4))["y"], rows(4)["x"])


# --- parts -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_spans_are_the_numbers_in_order(radices: list[int], data: st.DataObject) -> None:
    low = data.draw(st.integers(0, math.prod(radices)))
    high = data.draw(st.integers(low, math.prod(radices)))
    digits = list(itertools.product(*(range(radix) for radix in radices)))
    boxes = list(spans(radices, low, high))
    found = [point for box in boxes for point in itertools.product(*(range(first, first + count) for first, count in box))]
    assert found == digits[low:high] and len(boxes) <= max(1, 2 * len(radices))


def test_loops_that_walk_on_become_one() -> None:
    walks = [(0, 3, (8, 2)), (1, 4, (2, 0)), (0, 2, (1, 0)), (5, 1, (100, 1))]
    assert nest_over((0, 0), walks) == Nest((502, 5), ((3, (8, 2)), (8, (1, 0))))


def test_a_large_product_is_a_handful_of_lines() -> None:
    product = ops.matmul(ops.tensor((8192, 1024), "float16"), ops.tensor((1024, 1024), "float16"))
    manifest = from_json(compiled(product, device="ipu_sim").source)
    assert max(len(step.exchange or ()) for step in manifest.steps) <= 4
    assert all(len(tensor.placements) <= 4 for tensor in manifest.tensors)
