"""Products of warp groups on the emulator: panels that boxes or lanes fill, blocks whose lanes divide labour, what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import roller
from emulating import emulated, expression, needs_compiler, needs_cxx, text_of
from random_operators import random_examples
from roller import ops, verify
from roller.program.rprogram import RProgram
from roller.runtime.artifact import Artifact
from roller_cuda.codegen import generator, hopper
from roller_cuda.toolchain import compiling
from warp_groups import ORDERS, SPEC, T, broken, conv, maps_of, noticed, of_groups, right

# For each product which of its operands come by boxes: rows of 16 bytes, aligned, values as they lie there.
PRODUCTS: dict[str, tuple[Callable[[], ops.SymbolicTensor], set[str]]] = {
    "plain": (lambda: ops.matmul(T("a", 128, 192), T("b", 192, 256)), {"a", "b"}),
    "both turned": (lambda: ops.matmul(T("a", 192, 128), T("b", 136, 192), transpose_a=True, transpose_b=True), {"a", "b"}),
    "bfloat16": (lambda: ops.matmul(T("a", 128, 64, dtype="bfloat16"), T("b", 64, 128, dtype="bfloat16")), {"a", "b"}),
    "ragged": (lambda: ops.matmul(T("a", 200, 152), T("b", 152, 136)), {"a", "b"}),
    "rows that are not aligned": (lambda: ops.matmul(T("a", 101, 77), T("b", 77, 83)), set()),
    "one that is": (lambda: ops.matmul(T("a", 101, 77), T("b", 77, 88)), {"b"}),
    "bytes": (lambda: ops.matmul(T("a", 96, 128, dtype="int8"), T("b", 72, 128, dtype="int8"), transpose_b=True), {"a", "b"}),
    "bytes across": (lambda: ops.matmul(T("a", 64, 64, dtype="int8"), T("b", 64, 80, dtype="int8")), {"a"}),
    "few rows": (lambda: ops.matmul(T("a", 5, 128), T("b", 128, 200)), {"a", "b"}),
    "fused": (lambda: ops.relu(ops.matmul(T("a", 100, 64), T("b", 64, 72)) + T("bias", 72)), {"a", "b"}),
    "computed on the way": (lambda: ops.matmul(ops.relu(T("a", 96, 64)), T("b", 64, 72)), {"b"}),
    "float32 out": (lambda: ops.matmul(T("a", 70, 64), T("b", 64, 72), out_dtype="float32"), {"a", "b"}),
    "batched": (lambda: ops.batch_matmul(T("a", 3, 72, 64), T("b", 3, 64, 80)), {"a", "b"}),
    "channels last": (lambda: conv("NHWC"), {"x", "w"}),
    "channels last, stride": (lambda: conv("NHWC", stride=2), {"x", "w"}),
    "channels first": (lambda: conv("NCHW"), {"w"}),
}


@pytest.mark.one_in(2)
@needs_cxx
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_right(name: str) -> None:
    made, boxed = PRODUCTS[name]
    op, seen = made(), set()
    drawn = [text_of(SPEC, program) for program, _ in zip(of_groups(op), range(3), strict=False)]
    assert drawn, "no program of warp groups"
    for number, artifact in enumerate(drawn):
        seen |= maps_of(artifact)
        right(op, artifact, *ORDERS[number % len(ORDERS)])
    assert seen <= boxed
    assert seen == boxed or "channels" in name, f"boxes fill {seen or 'nothing'}, {boxed} wanted"


@st.composite
def products(draw: st.DrawFn) -> ops.SymbolicTensor:
    """A product of two tensors in half precision, perhaps with work before and after it."""
    dtype, size = (
        draw(st.sampled_from(("float16", "bfloat16"))),
        st.one_of(st.integers(1, 200), st.integers(1, 25).map(lambda n: 8 * n)),
    )
    m, n, k = draw(size), draw(size), max(draw(size), 2)  # one place is no reduction: nothing for matrices
    left, right_, out = draw(st.sampled_from((("mk", "kn", "mn"), ("km", "nk", "mn"), ("bmk", "kn", "bmn"), ("kbm", "bnk", "nbm"))))
    extents = {"m": m, "n": n, "k": k, "b": 3}
    a, b = (ops.tensor(tuple(extents[c] for c in part), dtype) for part in (left, right_))
    if draw(st.integers(0, 3)) == 0:
        a = ops.relu(a)
    product = ops.einsum(f"{left},{right_}->{out}", a, b)
    return product + ops.tensor(product.shape[-1:], dtype) if draw(st.booleans()) else product


@st.composite
def convolutions(draw: st.DrawFn) -> ops.SymbolicTensor:
    """A convolution in half precision with channels last."""
    channels, filters = 8 * draw(st.integers(1, 9)), draw(st.integers(1, 80))
    kernel, padding = draw(st.sampled_from(((1, 0), (3, 0), (3, 1), (5, 2))))
    height, width = draw(st.integers(kernel, 14)), draw(st.integers(kernel, 14))
    x, w = T("x", draw(st.integers(1, 2)), height, width, channels), T("w", kernel, kernel, channels, filters)
    return ops.conv2d(x, w, padding=padding, stride=draw(st.integers(1, 2)), layout="NHWC")


def random_program(data: st.DataObject) -> None:
    op = data.draw(st.one_of(products(), convolutions()))
    expr = expression(op)
    assume(min(expr.output.shape[-1], math.prod(expr.output.shape[:-1])) > 1)  # no rows or no columns: nothing for matrices
    program = next(of_groups(op, 60, data.draw(st.integers(0, 10**6))), None)
    assume(program is not None)
    assert program is not None
    note(program.describe())
    arrays = verify.random_inputs(expr, data.draw(st.integers(0, 99)), integer=data.draw(st.booleans()))
    verify.check(expr, arrays, emulated(expr, text_of(SPEC, program), arrays, *data.draw(st.sampled_from(ORDERS))))


@needs_cxx
@pytest.mark.parametrize("part", [0, 1])
def test_random_programs_are_right(part: int) -> None:
    random_examples(random_program, part, 6)


@needs_cxx
@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs_are_right(part: int) -> None:
    random_examples(random_program, 100 + part, 100)


# --- the emulator catches what is wrong ------------------------------------------------------------------------------


def pipelined(relu: bool = False) -> tuple[ops.SymbolicTensor, Artifact]:
    """A product with several steps and several tiles a block, its panels in rings of at least two copies."""
    op = ops.matmul(T("a", 128, 512), T("b", 512, 128))
    if relu:
        op = ops.matmul(ops.relu(T("a", 128, 512)), T("b", 512, 128))
    for program in of_groups(op, 2000):
        (stage,) = program.stages
        steps = math.prod(lp.trips for lp in stage.loops if lp.over == "time" and lp.level == stage.levels[0])
        if (
            steps > 3
            and len(stage.staged) == 2
            and all(s.depth > 1 for s in stage.staged)
            and stage.dispatch.split == stage.dispatch.cluster == 1
        ):
            return op, text_of(SPEC, program)
    raise AssertionError("no program fills its panels ahead")


@pytest.mark.one_in(3)
@needs_cxx
@pytest.mark.parametrize(
    ("before", "after", "number"),
    [
        ("roller_signal_wait(", "(void)(", 0),  # consumers read what is not there yet
        ("roller_signal_wait(", "(void)(", -1),  # producers write over what is still read
        ("roller_signal_arrive(", "(void)(", 0),  # a copy is never given back
        ("roller_signal_arrive_expecting(", "roller_signal_arrive(", 0),  # bytes that nobody waits for
        ("roller_products_wait<1>()", "roller_products_wait<2>()", 0),  # given back while it is still read
        ("roller_products_wait<0>()", "roller_products_wait<1>()", 0),  # results stored before they are there
        ("roller_products_close()", "(void)0", 0),
        ("roller_copy_box_2(", "(void)(", 0),  # bytes that never come
        ("__syncthreads()", "(void)0", 0),  # signals used before they are set up
        (str(hopper.MOST_ARRIVALS), "1", 0),  # arrivals in a phase though nobody saw the end of the one before
    ],
)
def test_faults_are_caught(before: str, after: str, number: int) -> None:
    op, artifact = pipelined()
    assert not noticed(op, artifact)
    assert noticed(op, broken(artifact, before, after, number))


@needs_cxx
@pytest.mark.parametrize("which", [2, 4, 5, 7])
def test_faults_in_how_operands_lie_are_caught(which: int) -> None:
    """The bytes of a row, and whether it lies across the reduction, of each operand."""
    op, artifact = pipelined()
    (layout, *_) = re.findall(r"roller_wgmma_n\d+_f16<([^>]*)>", str(artifact.launch["text"]))
    numbers = [int(n) for n in layout.split(",")]
    numbers[which] = numbers[which] // 2 if numbers[which] > 32 else 64 if numbers[which] == 32 else 1 - numbers[which]
    assert noticed(op, broken(artifact, f"<{layout}>", f"<{', '.join(map(str, numbers))}>", 0))


@needs_cxx
@pytest.mark.parametrize(
    "field, value", [("swizzle_bytes", 0), ("box", (16, 32)), ("strides_bytes", (1040,)), ("extents", (496, 128))]
)
def test_faults_in_descriptions_are_caught(field: str, value: object) -> None:
    op, artifact = pipelined()
    (kernel,) = artifact.launch["kernels"]
    changed = {**kernel, "maps": {**kernel["maps"], "map0": {**kernel["maps"]["map0"], field: value}}}
    assert noticed(op, replace(artifact, launch={**artifact.launch, "kernels": [changed]}))


@needs_cxx
@pytest.mark.parametrize("number", [0, 1])
def test_faults_of_lanes_that_fill_are_caught(number: int) -> None:
    """Panels that lanes fill: one arrival of each, and the bytes of boxes beside."""
    op, artifact = pipelined(relu=True)
    assert maps_of(artifact) == {"b"}
    assert not noticed(op, artifact)
    before = ("roller_signal_expect(", "roller_signal_arrive(")[number]
    assert noticed(op, broken(artifact, before, "(void)(", -1))


# --- what the compiler makes of it -----------------------------------------------------------------------------------


def of_so_many_groups(groups: int) -> RProgram:
    """With results for 128 registers of a lane at the most."""
    op = ops.matmul(T("a", 4096, 4096), T("b", 4096, 4096))
    programs = [c.program for c in roller.compile(op, device="cuda:h100", top_k=60).candidates]
    wanted = [p for p in programs if "wgmma" in p.stages[0].atom.name and math.prod(p.stages[0].inner[:2]) <= 128 * hopper.GROUP]
    return next(p for p in wanted if _groups(p) == groups)


@needs_compiler
@pytest.mark.parametrize("groups", [2, 4])
def test_lanes_hand_around_no_more_registers_than_their_block_has(groups: int) -> None:
    """A block asks for its registers when it is launched: if those that compute wanted more, they would wait forever."""
    source = generator.generate(SPEC, of_so_many_groups(groups))
    built = compiling.build(SPEC, source)
    (kernel,) = source.launch["kernels"]
    handed = dict(compiling.HANDED.findall(source.text))
    assert bool(handed) == (groups == 4), "only those ask for more who have less than they need"
    assert compiling.AS_LAUNCHED not in built.launch["text"]
    if handed:
        asked = (kernel["threads"] - hopper.GROUP) * int(handed["more"]) + hopper.GROUP * int(handed["fewer"])
        assert asked <= kernel["threads"] * built.resources[f"{kernel['name']}.registers"]


@needs_compiler
def test_a_kernel_that_has_no_registers_to_hand_around_is_built_without() -> None:
    source = generator.generate(SPEC, of_so_many_groups(4))
    (more,) = (count for word, count in compiling.HANDED.findall(source.text) if word == "more")
    greedy = replace(source, text=source.text.replace(f"more<{more}>", f"more<{int(more) + 8}>"))
    built = compiling.build(SPEC, greedy)
    assert str(built.launch["text"]).startswith(compiling.AS_LAUNCHED)
    assert built.resources["stage0_kernel.spilled_bytes"] == 0


def _groups(program: RProgram) -> int:
    stage = program.stages[0]
    return math.prod(lp.trips for lp in stage.loops if lp.over == "lanes")
