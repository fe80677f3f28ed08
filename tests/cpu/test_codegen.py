"""The CPU's generated code: the same text every time, registers, constants, threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import launching
import roller
from by_hand import SPEC, given, right, t, vector
from roller import ops, verify
from roller.cost.register_traffic import RegisterTraffic
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.dispatch import Dispatch
from roller.program.rprogram import RProgram, StageProgram, Staging, tiled_levels
from roller.runtime.artifact import BuildOptions
from roller.target.catalog import find_spec
from roller.target.subset import narrowed
from roller_cpu.codegen import generator
from roller_cpu.toolchain import compiling

# --- the same text ---------------------------------------------------------------------------------------------------

TEXTS = """
import hashlib, roller
from roller import ops
x, w = roller.tensor((1, 8, 14, 14), name="x"), roller.tensor((16, 8, 3, 3), name="w")
a, b = roller.tensor((33, 65), name="a"), roller.tensor((65, 47), name="b")
for op in (ops.relu(ops.conv2d(x, w, padding=1)), ops.gelu(ops.matmul(a, b)), ops.reduce_sum(roller.tensor((2, 100000)), 1)):
    kernel = roller.compile(op, "cpu:x86-64-v3")
    print(hashlib.sha256(kernel.source.encode()).hexdigest(), hashlib.sha256(kernel.artifact.data).hexdigest())
"""


def test_passes_that_are_skipped_find_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a guarded box, panels, ragged edges, a reduction along the vector, an epilogue: the same machine code either way."""
    x, w = t(2, 8, 13, 13, name="x"), t(20, 8, 3, 3, name="w")
    for op in (ops.relu(ops.conv2d(x, w, padding=1)), ops.matmul(t(33, 70), t(70, 45)), ops.reduce_max(t(61, 97), 1)):
        program = roller.compile(op, "cpu:x86-64-v3", threads=1).program
        spec, texts = narrowed(SPEC, 1), []
        for skipped in (generator.IDLE, []):
            monkeypatch.setattr(generator, "IDLE", skipped)
            texts.append(compiling.assembly(generator.generate(spec, program, BuildOptions(threads=1)).text))
        assert texts[0] == texts[1]


def test_the_same_text_in_every_process() -> None:
    said = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", TEXTS], env=environment, capture_output=True, text=True, check=True)
        said.add(done.stdout)
    (lines,) = said
    assert len(lines.splitlines()) == 3


def test_the_same_text_twice_in_one_process() -> None:
    programs = [given(ops.matmul(t(17, 19), t(19, 23)), ((8, 16, 19), (4, 8, 1)), 1) for _ in range(2)]
    first, second = (launching.artifact(SPEC, program).data for program in programs)
    assert first == second and b"0x" not in re.sub(rb"(float|double|half|bfloat|[,<(]) 0x[HR]?[0-9A-Fa-f]+", b"", first)


# --- results across the vector ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("inner", [(8, 4), (8, 7), (16, 14), (12, 5), (8, 17), (24, 16), (3, 6)])
def test_results_across_the_vector_are_transposed(inner: tuple[int, int], dtype: str) -> None:
    """A product whose vector lies along its rows, where results of a column are far apart; ragged in both dimensions."""
    m, n = inner
    a, b, bias, more = (t(*s, dtype=dtype) for s in ((2 * m + 1, 9), (9, 3 * n - 1), (2 * m + 1, 1), (2 * m + 1, 3 * n - 1)))
    op = ops.relu(ops.matmul(a, b) + bias) + more
    program = given(op, ((2 * m, 2 * n, 9), (m, n, 1)), 0, staged=(Staging("panel", 0, tiled_levels(SPEC)[0]),))
    assert program.stages[0].across == 1
    right(op, program)


def test_transposed_results_need_few_stores() -> None:
    op = ops.matmul(t(16, 64), t(64, 8))
    panel = (Staging("panel", 0, tiled_levels(SPEC)[0]),)
    for inner, across in (((8, 8, 1), 1), ((8, 2, 1), None)):
        program = given(op, ((16, 8, 64), inner), 0, staged=panel)
        assert program.stages[0].across == across
        text = launching.artifact(SPEC, program).source
        single = len(re.findall(r"store float |store <1 x float>", text))
        assert single == 0 if across is not None else single >= 8


def test_what_is_transposed_is_charged_less_than_what_is_scattered() -> None:
    op = ops.matmul(t(64, 64), t(64, 64))
    bytes_of = [RegisterTraffic(p.nest, 1.0).bytes(p, 32) for p in (
        given(op, ((64, 64, 64), inner), 0, staged=(Staging("panel", 0, tiled_levels(SPEC)[0]),)).stages[0]
        for inner in ((8, 8, 1), (8, 2, 1))
    )]  # fmt: skip
    assert bytes_of[0] < bytes_of[1]


# --- registers -------------------------------------------------------------------------------------------------------

HOT = {
    "square": ops.matmul(t(1024, 1024), t(1024, 1024)),
    "small": ops.matmul(t(64, 64), t(64, 64)),
    "odd": ops.matmul(t(1023, 1023), t(1023, 1023)),
    "three rows": ops.matmul(t(3, 768), t(768, 3072)),
    "transposed": ops.matmul(t(128, 768), t(3072, 768), transpose_b=True),
    "float64": ops.matmul(t(512, 512, dtype="float64"), t(512, 512, dtype="float64")),
    "3x3": ops.relu(ops.conv2d(t(1, 64, 56, 56), t(64, 64, 3, 3), padding=1) + t(1, 64, 1, 1)),
    "1x1": ops.conv2d(t(1, 256, 14, 14), t(1024, 256, 1, 1)),
    "7x7 stride 2": ops.conv2d(t(1, 3, 224, 224), t(64, 3, 7, 7), stride=2, padding=3),
    "7 pixels": ops.conv2d(t(1, 512, 7, 7), t(512, 512, 3, 3), padding=1),
    "nhwc": ops.conv2d(t(1, 28, 28, 128), t(3, 3, 128, 128), padding=1, layout="NHWC"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("chip", ["zen3", "zen5", "skylake-avx512"])
@pytest.mark.parametrize("name", HOT)
def test_hot_loops_keep_everything_in_registers(name: str, chip: str) -> None:
    """Accumulators too: those of 512-bit vectors take more than TVM leaves on the stack by itself."""
    kernel = roller.compile(HOT[name], f"cpu:{chip}")
    resources, visits = kernel.artifact.resources, kernel.program.stages[0].accumulator_visits
    assert resources["spills"] == 0 and resources["hot_loop_fma"] >= 8
    assert resources["hot_loop_stores"] == 0 or visits > 1  # a short visit, unrolled whole, is a loop that ends with its stores


@pytest.mark.parametrize(("inner", "threads"), [((3, 32, 1), 1), ((6, 16, 1), 1), ((2, 40, 1), 2), ((1, 96, 1), 2)])
def test_full_register_tiles_do_not_spill(inner: tuple[int, ...], threads: int) -> None:
    """Accumulators, all of the smaller operand and one register for the larger one are at most sixteen."""
    source = launching.artifact(find_spec("cpu", "zen3"), given(ops.matmul(t(240, 64), t(64, 480)), ((240, 480, 64), inner), 1))
    from roller_cpu.toolchain import compiling

    assert compiling.resources(compiling.assembly(source.source))["spills"] == 0


def test_small_buffers_live_on_the_stack() -> None:
    for op in (ops.matmul(t(32, 32), t(32, 32)), ops.gelu(t(4096)), ops.reduce_max(t(64, 100), 1)):
        assert "AllocWorkspace" not in roller.compile(op, "cpu:zen3").source


# --- constants and threads -------------------------------------------------------------------------------------------


def test_constants_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from roller_cpu.runtime import mapping

    x, w = t(64, 96, name="x"), t(96, 128, name="w")
    values = np.random.default_rng(0).integers(-4, 5, (96, 128)).astype(np.float32)
    kernel = roller.compile(ops.matmul(x, w), "cpu:x86-64-v3", constants={"w": values})
    launch = kernel.artifact.launch
    assert [c["name"] for c in launch["constants"]] == ["w"] and [i["name"] for i in launch["inputs"]] == ["x"]
    assert len(launch["panels"]) == 1 and list(launch["direct_constants"]) == []
    calls: list[str] = []
    function = mapping.MappedImage.function

    def counted(image: mapping.MappedImage, name: str) -> Callable[[int], int]:
        found = function(image, name)
        return lambda place: calls.append(name) or found(place)

    monkeypatch.setattr(mapping.MappedImage, "function", counted)
    monkeypatch.setattr(mapping.MappedImage, "builtin", lambda *_: None)
    a = np.random.default_rng(1).integers(-4, 5, (64, 96)).astype(np.float32)
    for _ in range(3):
        assert np.array_equal(kernel(a), a @ values)
    assert calls == ["roller_bind", "roller_prepack", *["roller_run"] * 3]


def test_one_thread_launches_nothing_in_parallel() -> None:
    for op in (ops.matmul(t(256, 256), t(256, 256)), ops.relu(t(1 << 20))):
        assert "ParallelLaunch" not in roller.compile(op, "cpu:x86-64-v3", threads=1).source
        assert "ParallelLaunch" in roller.compile(op, "cpu:x86-64-v3", threads=4).source


def test_arguments_are_not_checked_in_the_kernel() -> None:
    source = roller.compile(ops.relu(t(64)), "cpu:x86-64-v3").source
    assert "ErrorSetRaised" not in source


def test_large_operator_at_sampled_elements() -> None:
    op = ops.matmul(t(1021, 2039), t(2039, 1531))
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr)
    got = launching.run(roller.compile(op, "cpu:x86-64-v3").artifact, expr.output, tuple(arrays[i.name] for i in expr.inputs))
    verify.check(expr, arrays, got, verify.sample_points(expr, 3000))


# --- faults that random programs found -------------------------------------------------------------------------------


def test_a_box_of_a_prepacked_constant_is_left_out() -> None:
    op = ops.matmul(t(5, 8, name="a"), ops.pad(t(7, 9, name="b"), [(1, 0), (0, 0)]))
    staged = (Staging("box", 1, tiled_levels(SPEC)[0]), Staging("panel", 1, 0, constant=True))
    right(op, given(op, ((5, 9, 8), (2, 8, 1)), 1, staged=staged), ("b",))


def test_a_box_without_dimensions() -> None:
    op = t(name="x") * 2
    right(op, given(op, ((), ()), staged=(Staging("box", 0, 0),)))


def test_parts_of_a_vector_narrower_than_the_atom() -> None:
    op = ops.matmul(t(3, 3), t(3, 2)) + t(2)
    right(op, given(op, ((3, 2, 2), (2, 2, 1)), 1, dispatch=Dispatch(split=2)))


@pytest.mark.parametrize("tiles", [((1, 14, 32), (1, 14, 8)), ((29, 53, 31), (1, 14, 8)), ((4, 16, 16), (2, 2, 16))])
@pytest.mark.parametrize("levels", [(0, None), (None, 0), (0, 0), (None, 2), (2, 0), (2, 2)])
def test_panels_of_a_ragged_reduction_along_the_vector(tiles: Any, levels: tuple[int | None, int | None]) -> None:
    """The last slot is filled and read one by one: what lies behind it belongs to others."""
    op = ops.matmul(t(29, 31), t(31, 53))
    staged = tuple(Staging("panel", factor, level) for factor, level in enumerate(levels) if level is not None)
    right(op, given(op, tiles, 2, staged=staged))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("k", [96, 100, 37])
@pytest.mark.parametrize("depth", [16, 24])
@pytest.mark.parametrize("orders", [((0, 1, 2), (0, 1, 2)), ((2, 1, 0), (2, 1, 0)), ((2, 0, 1), (1, 2, 0))])
def test_panels_of_a_reduction_tiled_at_two_levels(transposed: bool, k: int, depth: int, orders: Any) -> None:
    """How many steps a tile has is asked inside all loops around them, at any trip: the last tile may have fewer."""
    a, b = t(21, k), t(*((40, k) if transposed else (k, 40)))
    op = ops.matmul(a, b, transpose_b=transposed)
    for levels in ((None, 0), (0, 0)):
        staged = tuple(Staging("panel", factor, level) for factor, level in enumerate(levels) if level is not None)
        for unit in (16, 32):
            program = given(op, ((12, unit, depth), (4, 16, 1)), 1, staged=staged)
            right(op, RProgram(program.expr, (replace(program.stages[0], orders=orders),)))


@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("extent", [8, 12, 16])
def test_vectors_of_elements_a_few_steps_apart_stay_inside_the_array(stride: int, extent: int) -> None:
    """They are picked from whole vectors; around the array lie NaN and, behind its last element, nothing that may be read."""
    op = ops.max_pool2d(t(1, 3, 1, stride * 15 + 1), (1, 1), (1, stride))
    program = given(op, ((3, 16), (1, extent)), 1)
    right(op, program)
    source = launching.artifact(SPEC, program).source
    assert ("shufflevector <8 x float>" in source) == (stride <= 4)


@pytest.mark.parametrize("inner", [(8, 8), (16, 8), (8, 16), (12, 8), (8, 12), (19, 16), (4, 8)])
@pytest.mark.parametrize("lane", [0, 1])
def test_square_blocks_are_transposed_in_registers(inner: tuple[int, int], lane: int) -> None:
    """Where a tile is a vector wide in both directions; ragged tiles move back, and what no block covers is gathered."""
    x, y = t(37, 29), t(29, 37)
    op = ops.transpose(x) * 2 + y
    program = given(op, ((29, 37), inner), lane)
    right(op, program)
    source = launching.artifact(SPEC, program).source
    blocks = inner[1 - lane] >= 8 <= inner[lane]
    assert (source.count("shufflevector <8 x float>") >= 24) == blocks


def test_padded_arrays_are_transposed_into_their_box_and_not_in_place() -> None:
    """The padded array has no element for every place of a block; its box, which lies along the vector, is filled by blocks."""
    op = ops.transpose(ops.pad(t(21, 18), ((1, 2), (3, 4)))) + 1
    tiles = ((25, 24), (8, 8))
    right(op, given(op, tiles, 1))
    boxed = given(op, tiles, 1, staged=(Staging("box", 0, 0),))
    right(op, boxed)
    plain, copied = (launching.artifact(SPEC, p).source for p in (given(op, tiles, 1), boxed))
    assert copied.count("shufflevector <8 x float>") >= 24 > plain.count("shufflevector <8 x float>")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_boxes_at_any_level(level: int) -> None:
    """Once for all, for every tile of a unit, for every tile inside it: halos overlap, ragged tiles move back."""
    alone = narrowed(SPEC, 1)
    op = ops.conv2d(t(1, 3, 9, 11), t(4, 3, 3, 3), stride=2, padding=1)
    expr = fuse(ops.expression(op))
    nest = variants(expr.stages[0], expr.tensors)[0]
    everywhere = tuple(range(len(nest.dims)))
    tiles = ((4, 4, 6, 3, 3, 3), (2, 2, 4, 3, 3, 3), (2, 1, 4, 1, 1, 1))
    number = next(n for n, a in enumerate(nest.inputs) if a.guarded)
    staged = (Staging("box", number, level),)
    stage = StageProgram(nest, vector(8), (("n", 2),), tiled_levels(alone), tiles, (everywhere,) * 3, staged)
    arrays = verify.random_inputs(expr, 0, integer=True)
    launching.check(expr, launching.artifact(alone, RProgram(expr, (stage,))), arrays)


@pytest.mark.parametrize(("lane", "inner"), [(0, (8, 2, 1)), (0, (16, 3, 1)), (1, (2, 16, 1))])
def test_a_long_epilogue_along_any_vector(lane: int, inner: tuple[int, ...]) -> None:
    """Long epilogues loop over a copy of the accumulators, whatever dimension the vector lies on."""
    op = ops.clip(ops.abs(ops.matmul(t(19, 7), t(7, 21)) * 2 - t(19, 1)), 1, 30) + 1
    right(op, given(op, ((19, 21, 7), inner), lane))


@pytest.mark.parametrize("orders", [((2, 0, 1), (0, 1, 2)), ((0, 1, 2), (2, 1, 0))])
def test_an_empty_sum_is_stored_wherever_its_loop_is(orders: tuple[tuple[int, ...], ...]) -> None:
    op = ops.matmul(t(9, 0), t(0, 5)) + t(5)
    for staged in ((), (Staging("panel", 0, 0), Staging("panel", 1, tiled_levels(SPEC)[0]))):
        program = given(op, ((4, 5, 0), (2, 5, 0)), staged=staged)
        right(op, RProgram(program.expr, (replace(program.stages[0], orders=orders),)))


def test_one_array_read_with_two_fills() -> None:
    x = t(5, 7, name="x")
    op = ops.pad(x, [(1, 1), (1, 1)], 1) - ops.pad(x, [(1, 1), (1, 1)], 2)
    program = given(op, ((7, 9), (2, 8)), 1)
    for number, access in enumerate(program.stages[0].nest.inputs):
        for level in (0, tiled_levels(SPEC)[0]):
            stage = replace(program.stages[0], staged=(Staging("box", number, level),))
            assert access.guarded
            right(op, RProgram(program.expr, (stage,)))


def test_an_epilogue_after_a_cut_reduction_does_not_read_boxes() -> None:
    x = ops.pad(t(6, name="x"), [(1, 0)])
    op = ops.einsum("m,mk->m", x, t(7, 16, name="y")) * x
    program = given(op, ((4, 8), (4, 1)), dispatch=Dispatch(split=2))
    number = next(n for n, a in enumerate(program.stages[0].nest.inputs) if a.tensor.name == "x")
    stage = replace(program.stages[0], staged=(Staging("box", number, tiled_levels(SPEC)[0]),))
    right(op, RProgram(program.expr, (stage,)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_between_operators(dtype: str) -> None:
    """A fused sum of three is what two operators one after another give."""
    op = (t(64, dtype=dtype) + t(64, dtype=dtype)) + t(64, dtype=dtype)
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr)
    launching.check(expr, roller.compile(op, "cpu:x86-64-v3").artifact, arrays)


def test_long_chains_of_functions_compile_quickly() -> None:
    """Repeated parts are computed once: as trees they would take TVM minutes."""
    x = t(4096)
    for _ in range(4):
        x = ops.silu(x)
    source = roller.compile(x, "cpu:x86-64-v3").source
    assert len(source) < 400_000
