"""Operators of every kind on the simulated IPU: execution, interpreter and estimate agree; what cannot be is refused."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roller
from ipu_programs import BOW, CHIPS, agrees, interpreted, simulated
from roller import ops, verify
from roller.errors import CodegenError, ConstructionError, KernelError, RollerError
from roller.ops import SymbolicTensor
from roller.runtime.artifact import Artifact
from roller.target.catalog import find_spec
from roller_ipu_sim.codegen.generator import AGAIN
from roller_ipu_sim.manifest.families import each_placement
from roller_ipu_sim.manifest.models import Manifest, from_json

FEW = CHIPS[2]  # five tiles


def t(*shape: int, dtype: str = "float32", name: str | None = None) -> SymbolicTensor:
    return ops.tensor(shape, dtype, name)


def softmax(x: SymbolicTensor) -> SymbolicTensor:
    raised = ops.exp(x - ops.reduce_max(x, 1, keepdims=True))
    return raised / ops.reduce_sum(raised, 1, keepdims=True)


def layer_norm(x: SymbolicTensor, scale: SymbolicTensor, shift: SymbolicTensor) -> SymbolicTensor:
    centred = x - ops.reduce_mean(x, 1, keepdims=True)
    variance = ops.reduce_mean(centred * centred, 1, keepdims=True)
    return centred * ops.rsqrt(variance + 1e-5) * scale + shift


def squared(x: SymbolicTensor) -> SymbolicTensor:
    return ops.matmul(x, x, transpose_b=True) + x


def twice(x: SymbolicTensor) -> SymbolicTensor:
    return ops.matmul(x, x, transpose_b=True) + ops.matmul(x, x, transpose_b=True)


OPERATORS: dict[str, Callable[[], SymbolicTensor]] = {
    "softmax": lambda: softmax(t(12, 20)),
    "softmax in half precision": lambda: softmax(t(12, 20, dtype="float16")),
    "two products": lambda: ops.matmul(ops.relu(ops.matmul(t(20, 24), t(24, 16))), t(16, 12)),
    "two products in half precision": lambda: ops.matmul(
        ops.relu(ops.matmul(t(20, 32, dtype="float16"), t(32, 16, dtype="float16"))), t(16, 20, dtype="float16")
    ),
    "layer norm": lambda: layer_norm(t(10, 24), t(24), t(24)),
    "a product and its neighbour's sum": lambda: ops.matmul(t(9, 8), t(8, 16)) + ops.reduce_sum(t(9, 5), 1, keepdims=True),
    "grouped convolution": lambda: ops.conv2d(t(1, 8, 6, 6), t(12, 4, 3, 3), groups=2, padding=1),
    "depthwise convolution": lambda: ops.depthwise_conv2d(t(1, 6, 7, 7), t(6, 2, 3, 3), stride=2),
    "convolution with channels last": lambda: ops.conv2d(
        t(1, 6, 6, 16, dtype="float16"), t(3, 3, 16, 16, dtype="float16"), layout="NHWC"
    ),
    "pooling": lambda: ops.max_pool2d(t(1, 4, 7, 7), (3, 3), stride=2, padding=1),
    "average pooling": lambda: ops.avg_pool2d(t(1, 4, 7, 7), (3, 3), stride=2, padding=1),
    "broadcast rows and columns": lambda: t(9, 1) * t(1, 10) + t(10),
    "broadcast whole": lambda: ops.broadcast_to(t(1, 7), (5, 7)) + t(5, 7),
    "transposed": lambda: ops.transpose(t(9, 6, 4), (2, 0, 1)),
    "padded": lambda: ops.pad(t(5, 7), [(1, 2), (0, 3)], 2),
    "average at the border": lambda: ops.avg_pool2d(t(1, 2, 5, 6), (3, 3), padding=1, count_include_pad=False),
    "nothing to add up": lambda: ops.reduce_sum(t(6, 0), 1),
    "nothing to multiply": lambda: ops.matmul(t(6, 0), t(0, 5)),
    "no results": lambda: ops.matmul(t(0, 6), t(6, 5)),
    "nothing in between": lambda: ops.matmul(ops.relu(ops.matmul(t(4, 6), t(6, 0))), t(0, 5)),
    "a scalar": lambda: ops.relu(t()),
    "a scalar of everything": lambda: ops.reduce_sum(t(30, 40), (0, 1)),
    "a scalar in half precision": lambda: ops.reduce_max(t(30, 40, dtype="float16"), (0, 1)) + t(dtype="float16"),
    "one input in three roles": lambda: squared(t(16, 16)),
    "a row added": lambda: ops.matmul(t(16, 12), t(12, 16)) + t(16),
    "one input in two stages": lambda: twice(t(8, 16)),
    "whole numbers": lambda: ops.matmul(t(9, 17, dtype="int8"), t(17, 12, dtype="int8")),
    "conditions": lambda: ops.where(t(6, 8, dtype="bool"), t(6, 8), t(8)),
}


def compiled(make: Callable[[], SymbolicTensor]) -> roller.Kernel:
    return roller.compile(make(), device="ipu_sim", spec=FEW, top_k=3)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_interpreter_agrees(name: str) -> None:
    kernel = compiled(OPERATORS[name])
    arrays = verify.random_inputs(kernel.expr, 3)
    for candidate in kernel.candidates[:2]:
        manifest, _ = agrees(FEW, candidate.program, candidate.estimate, 3, False)
        interpreted(FEW, manifest, arrays)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_whole_chip_agrees(name: str) -> None:
    kernel = roller.compile(OPERATORS[name](), device="ipu_sim", top_k=3)
    for candidate in kernel.candidates:
        agrees(BOW, candidate.program, candidate.estimate, 4, True)


# --- what a manifest says --------------------------------------------------------------------------------------------


def manifest_for(kernel: roller.Kernel) -> Manifest:
    return from_json(kernel.source)


def test_an_input_has_a_home_for_each_way_that_it_is_read() -> None:
    x = t(64, 64, name="x")
    kernel = roller.compile(ops.matmul(x, x), device="ipu_sim")
    assert [tensor.name for tensor in manifest_for(kernel).tensors if tensor.role == "input"] == ["x", f"x{AGAIN}1"]
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_allclose(kernel(values), values.astype(np.float64) @ values, rtol=1e-4, atol=1e-4)


def test_constants_are_named_and_come_with_the_kernel(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weights, rows = rng.standard_normal((24, 16)).astype(np.float32), rng.standard_normal((10, 24)).astype(np.float32)
    product = ops.matmul(t(10, 24, name="a"), t(24, 16, name="w"))
    kernel = roller.compile(product, device="ipu_sim", constants={"w": weights})
    assert {tensor.name: tensor.role for tensor in manifest_for(kernel).tensors} == {
        "a": "input",
        "w": "constant",
        kernel.output.name: "output",
    }
    kernel.save(tmp_path / "product")
    for held in (kernel, roller.load(tmp_path / "product")):
        assert [tensor.name for tensor in held.inputs] == ["a"]
        np.testing.assert_allclose(held(rows), rows.astype(np.float64) @ weights, rtol=1e-4, atol=1e-4)


def test_stages_that_agree_exchange_nothing_between_them() -> None:
    kernel = roller.compile(ops.exp(t(64, 8)) / ops.reduce_sum(ops.exp(t(64, 8)), 1, keepdims=True), device="ipu_sim")
    assert len(kernel.expr.stages) > 1
    assert not [step.name for step in manifest_for(kernel).steps if step.name.startswith("move")]


@pytest.mark.parametrize("change", [ops.relu, lambda x: x * 2.0, lambda x: ops.cast(ops.cast(x, "float32"), "float16")])
def test_functions_of_operands_leave_the_product_to_the_matrix_unit(change: Callable[[SymbolicTensor], SymbolicTensor]) -> None:
    op = ops.matmul(change(t(96, 64, dtype="float16")), t(64, 48, dtype="float16"))
    kernel = roller.compile(op, device="ipu_sim")
    assert [stage.atom.kind for stage in kernel.program.stages][-1] == "matrix"
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr, 1, False)
    verify.check(expr, arrays, kernel(*arrays.values()))


def test_a_single_filter_with_an_array_along_the_width_compiles() -> None:
    op = ops.conv2d(t(3, 3, 5, 12), t(1, 3, 3, 3), stride=(1, 2), padding=(1, 2), dilation=2) + t(6)
    kernel, expr = roller.compile(op, device="ipu_sim"), ops.expression(op)
    arrays = verify.random_inputs(expr, 1, False)
    verify.check(expr, arrays, kernel(*arrays.values()))


def test_attention_in_halves_compiles_and_is_right() -> None:
    q, k, v = (t(2, 24, 16, dtype="float16") for _ in range(3))
    scores = ops.einsum("bmd,bnd->bmn", q, k)
    raised = ops.exp(scores - ops.reduce_max(scores, 2, keepdims=True))
    op = ops.einsum("bmn,bnd->bmd", raised / ops.reduce_sum(raised, 2, keepdims=True), v)
    kernel, expr = roller.compile(op, device="ipu_sim"), ops.expression(op)
    arrays = verify.random_inputs(expr, 1, False)
    verify.check(expr, arrays, kernel(*arrays.values()))


def test_threads_are_tiles() -> None:
    kernel = roller.compile(ops.matmul(t(64, 64), t(64, 64)), device="ipu_sim", threads=10)
    manifest = manifest_for(kernel)
    assert manifest.tiles == 10
    assert 1 < len({place.tile for tensor in manifest.tensors for place in each_placement(tensor.placements)}) <= 10
    np.testing.assert_array_equal(kernel(*[np.ones((64, 64), np.float32)] * 2), np.full((64, 64), 64))


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_types_that_tiles_lack_are_named(dtype: str) -> None:
    with pytest.raises(ConstructionError, match=f"element type|does not compute in {dtype}"):
        roller.compile(ops.relu(t(8, 8, dtype=dtype)), device="ipu_sim")


def test_types_that_tiles_lack_on_the_way_are_named() -> None:
    with pytest.raises(ConstructionError, match="tiles do not compute with float64"):
        roller.compile(ops.cast(ops.cast(t(8, 8), "float64") * 2.0, "float32"), device="ipu_sim")


def edited(kernel: roller.Kernel, change: Callable[[dict[str, Any]], None], path: Path) -> roller.Kernel:
    """The kernel saved, its manifest changed by hand, and loaded."""
    kernel.save(path)
    artifact = Artifact.load(path)
    table = json.loads(zlib.decompress(artifact.data))
    change(table)
    replace(artifact, data=zlib.compress(json.dumps(table).encode())).save(path)
    return roller.load(path)


def overlap(table: dict[str, Any]) -> None:
    for buffer in table["buffers"]:
        buffer["address"] = table["buffers"][0]["address"]


def unwritten(table: dict[str, Any]) -> None:
    for step in table["steps"]:
        if step.get("exchange"):
            step["exchange"] = step["exchange"][:1]
            step["exchange"][0]["loops"] = []


def beyond(table: dict[str, Any]) -> None:
    table["buffers"][-1]["address"] = 638976


def misaligned(table: dict[str, Any]) -> None:
    amp = next(
        group["vertex"] for step in table["steps"] for group in step.get("compute") or () if group["vertex"]["kind"] == "amp"
    )
    next(buffer for buffer in table["buffers"] if buffer["name"] == amp["a"]["buffer"])["address"] += 4


def several(table: dict[str, Any]) -> None:
    groups = next(step["compute"] for step in table["steps"] if step.get("compute"))
    groups.append(groups[0])


def nonsense(table: dict[str, Any]) -> None:
    table["tiles"] = "many"


def extra(table: dict[str, Any]) -> None:
    table["version"] = 99


EDITS = {
    overlap: "tile 0: buffers .* share the bytes",
    unwritten: "nothing has written",
    beyond: r"tile 0.*bytes",
    misaligned: "no multiple of the matrix unit's 8",
    several: "tile 0",
    nonsense: "tiles",
    extra: "version",
}


@pytest.mark.parametrize("change", EDITS)
def test_manifests_edited_by_hand_never_run(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    kernel = roller.compile(ops.matmul(t(48, 64), t(64, 48)), device="ipu_sim", spec=FEW)
    arrays = [np.ones(tensor.shape, np.float32) for tensor in kernel.inputs]
    np.testing.assert_array_equal(edited(kernel, lambda table: None, tmp_path / "same")(*arrays), np.full((48, 48), 64))
    out = np.full((48, 48), 7, np.float32)
    with pytest.raises(RollerError, match=EDITS[change]) as caught:
        edited(kernel, change, tmp_path / "edited")(*arrays, out=out)
    assert isinstance(caught.value, KernelError | CodegenError)
    np.testing.assert_array_equal(out, 7)


def test_a_damaged_manifest_is_no_kernel(tmp_path: Path) -> None:
    kernel = roller.compile(ops.relu(t(8, 8)), device="ipu_sim")
    replace(kernel.artifact, data=b"damaged").save(tmp_path / "kernel")
    with pytest.raises(RollerError, match="compile the operator again"):
        roller.load(tmp_path / "kernel").load()


@pytest.mark.parametrize(
    ("chip", "make"),
    [
        ("gc2", lambda: ops.matmul(t(16384, 16384, dtype="float16"), t(16384, 16384, dtype="float16"))),
        ("bow", lambda: ops.matmul(t(8192, 8192), t(8192, 8192))),
        ("bow", lambda: ops.relu(t(200_000_000))),
    ],
)
def test_what_is_too_large_says_by_how_much_and_where(chip: str, make: Callable[[], SymbolicTensor]) -> None:
    with pytest.raises(ConstructionError, match="SRAM capacity") as caught:
        roller.compile(make(), device=f"ipu_sim:{chip}")
    told = re.search(r"tile (\d+) would need (\d+) bytes, (\d+) more than the (\d+) that it has", str(caught.value))
    assert told is not None
    tile, needed, more, room = map(int, told.groups())
    expr, spec = ops.expression(make()), find_spec("ipu_sim", chip)
    assert (tile, room, needed - room) == (0, spec.levels[1].capacity_bytes, more)
    share = expr.compulsory_bytes / spec.unit.count
    assert share < needed < 3 * share  # about what there is to hold: nothing is told of a program that wastes memory


# --- what is told of a kernel ----------------------------------------------------------------------------------------


def test_a_profile_is_what_was_predicted_and_every_call_takes(tmp_path: Path) -> None:
    kernel = roller.compile(ops.matmul(t(64, 64), t(64, 64)), device="ipu_sim")
    kernel.save(tmp_path / "product.roller")
    for held in (kernel, roller.load(tmp_path / "product.roller")):
        told = held.profile().to_dict()
        assert told["simulated_cycles"] == kernel.estimate.cycles() == simulated(BOW, kernel.estimate) > 0
        assert sum(step["simulated_cycles"] for step in told["supersteps"]) == told["simulated_cycles"]
        assert held.estimate.clock_ghz == 1.85
        assert "simulated cycles" in held.profile().text() and "<svg" in held.profile().html()


def test_steps_are_called_after_what_they_work_on() -> None:
    one = roller.compile(ops.matmul(t(64, 64, name="x"), t(64, 64, name="w")), device="ipu_sim")
    assert from_json(one.source).steps[0].name == "bring x, w"
    wide = ops.matmul(t(2048, 4096, dtype="float16", name="x"), t(4096, 4096, dtype="float16", name="w" * 300))
    steps = [step.name for step in from_json(roller.compile(wide, device="ipu_sim:gc200").source).steps]
    assert steps[0].startswith("bring x, www") and re.search(r"… \(1 of \d+\)$", steps[0]) and max(map(len, steps)) <= 100


def test_explanations_speak_of_simulated_cycles() -> None:
    kernel = roller.compile(ops.matmul(ops.relu(ops.matmul(t(40, 64), t(64, 48))), t(48, 32)), device="ipu_sim", top_k=3)
    said, cycles = str(kernel.explain()), kernel.estimate.cycles()
    assert said.startswith(f"for ipu_sim:bow: predicted {cycles:,} simulated cycles (")
    assert not re.search(r"predicted [\d.]+ [mun]?s", said), "a time of no machine"
    assert kernel.explain().to_dict()["estimate"]["simulated_cycles"] == cycles


def test_a_simulator_is_not_timed() -> None:
    with pytest.raises(KernelError, match="ipu_sim is simulated"):
        roller.compile(ops.relu(t(64)), device="ipu_sim", measure=True)
