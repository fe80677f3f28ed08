"""Tensor cores on the emulator: which results a lane holds, how operands come into registers, what is refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import roller
from emulating import emulated, expression, needs_compiler, needs_cxx, ranked, text_of
from random_operators import random_examples
from roller import ops, verify
from roller.cost.occupancy import held_copies
from roller.device.chip import load_spec
from roller.errors import LaunchError, WrongResultError
from roller.ir.expr import TensorExpr
from roller.runtime.arrays import aligned_empty
from roller.runtime.artifact import Artifact
from roller.testing import with_level
from roller_cuda.codegen import limits
from roller_cuda.emulator import emulator

HALVES = ("float16", "bfloat16")
MOST_BLOCKS = 60  # of a random program: the emulator runs thread after thread


def T(name: str, *shape: int, dtype: str = "float16") -> ops.SymbolicTensor:
    return ops.tensor(shape, dtype, name=name)


def on_tensor_cores(op: ops.SymbolicTensor, chip: str = "a100", count: int = 3) -> list[Artifact]:
    """Kernels of the best programs that multiply matrices; of tiny products others may be better."""
    spec = load_spec(f"cuda:{chip}")
    found = [p for p in ranked(op, spec, 60) if any(s.atom.kind == "matrix" for s in p.stages)][:count]
    assert found, "no program for tensor cores among the best"
    return [text_of(spec, program) for program in found]


def of_whole_warps(op: ops.SymbolicTensor, chip: str = "a100") -> Artifact:
    """A kernel whose warps share no reduction and read several matrices of each operand at a time."""
    spec = load_spec(f"cuda:{chip}")
    for program in ranked(op, spec, 400):
        (stage,) = program.stages
        if stage.atom.kind == "matrix" and not stage.cooperate and min(stage.inner[:2]) >= 16 and stage.dispatch.split == 1:
            return text_of(spec, program)
    raise AssertionError("no such program among the best")


def right(op: ops.SymbolicTensor, artifact: Artifact, backwards: bool, eager: bool = False) -> None:
    expr = expression(op)
    arrays = verify.random_inputs(expr, 7)
    verify.check(expr, arrays, emulated(expr, artifact, arrays, backwards, eager))


# --- numbers ---------------------------------------------------------------------------------------------------------

PRODUCTS = {
    "plain": lambda d: ops.matmul(T("a", 64, 96, dtype=d), T("b", 96, 80, dtype=d)),
    "both turned": lambda d: ops.matmul(T("a", 96, 64, dtype=d), T("b", 80, 96, dtype=d), transpose_a=True, transpose_b=True),
    "odd": lambda d: ops.matmul(T("a", 101, 77, dtype=d), T("b", 77, 83, dtype=d)),
    "few rows": lambda d: ops.matmul(T("a", 5, 64, dtype=d), T("b", 64, 40, dtype=d)),
    "fused": lambda d: ops.relu(ops.matmul(T("a", 48, 64, dtype=d), T("b", 64, 40, dtype=d)) + T("bias", 40, dtype=d)),
    "float32 out": lambda d: ops.matmul(T("a", 33, 64, dtype=d), T("b", 64, 40, dtype=d), out_dtype="float32"),
    "batched": lambda d: ops.batch_matmul(T("a", 3, 33, 40, dtype=d), T("b", 3, 40, 24, dtype=d)),
    "convolution": lambda d: ops.conv2d(T("x", 1, 16, 9, 9, dtype=d), T("w", 24, 16, 3, 3, dtype=d), padding=1),
    "channels last": lambda d: ops.conv2d(T("x", 1, 7, 6, 32, dtype=d), T("w", 3, 3, 32, 24, dtype=d), padding=1, layout="NHWC"),
    "deep": lambda d: ops.matmul(T("a", 32, 2048, dtype=d), T("b", 2048, 16, dtype=d)),
}


@pytest.mark.one_in(4)
@needs_compiler
@needs_cxx
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_right(name: str, dtype: str) -> None:
    op = PRODUCTS[name](dtype)
    for number, artifact in enumerate(on_tensor_cores(op)):
        right(op, artifact, backwards=number % 2 == 1)


@st.composite
def products(draw: st.DrawFn, dtypes: tuple[str, ...]) -> ops.SymbolicTensor:
    """A product of two tensors of these types, perhaps with work before and after it."""
    dtype, size = draw(st.sampled_from(dtypes)), st.integers(1, 70)
    m, n, k = draw(size), draw(size), draw(size)
    left, right, out = draw(st.sampled_from((("mk", "kn", "mn"), ("km", "nk", "mn"), ("bmk", "kn", "bmn"), ("kbm", "bnk", "nbm"))))
    extents = {"m": m, "n": n, "k": k, "b": 3}
    a, b = (ops.tensor(tuple(extents[c] for c in part), dtype) for part in (left, right))
    if draw(st.booleans()):
        a = ops.relu(a)
    product = ops.einsum(f"{left},{right}->{out}", a, b)
    return product + ops.tensor(product.shape[-1:], product.dtype) if draw(st.booleans()) else product


MULTIPLIED = {"a100": (*HALVES, "int8"), "rtx4090": (*HALVES, "int8"), "v100": ("float16",)}  # types that tensor cores take


def random_product(data: st.DataObject) -> None:
    chip = data.draw(st.sampled_from(tuple(MULTIPLIED)))
    op = data.draw(products(MULTIPLIED[chip]))
    expr, spec = expression(op), load_spec(f"cuda:{chip}")
    drawn = roller.enumerate_programs(op, "cuda", spec=spec).sample(30, seed=data.draw(st.integers(0, 10**6)))
    program = next((p for p in drawn if p.stages[0].atom.kind == "matrix" and limits.refusal(spec, p) is None), None)
    assume(program is not None)
    assert program is not None
    assume(math.prod(lp.trips for s in program.stages for lp in s.loops if lp.over == "units") <= MOST_BLOCKS)
    note(f"{spec.chip}: {program.describe()}")
    arrays = verify.random_inputs(expr, data.draw(st.integers(0, 99)), integer=data.draw(st.booleans()))
    verify.check(expr, arrays, emulated(expr, text_of(spec, program), arrays, *data.draw(st.tuples(st.booleans(), st.booleans()))))


@needs_cxx
@pytest.mark.parametrize("part", [0, 1])
def test_random_programs_are_right(part: int) -> None:
    random_examples(random_product, part, 6)


@needs_cxx
@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs_are_right(part: int) -> None:
    random_examples(random_product, 100 + part, 100)


# --- what is chosen --------------------------------------------------------------------------------------------------


def atoms_of(op: ops.SymbolicTensor, chip: str) -> set[str]:
    kernel = roller.compile(op, device=f"cuda:{chip}")
    return {s.atom.name for s in kernel.program.stages}


@needs_compiler
def test_the_path_follows_from_types_and_accesses() -> None:
    """Tensor cores where a product of halves adds up in float32, or one of bytes in int32; else the CUDA cores."""
    half = ops.matmul(T("a", 512, 512), T("b", 512, 512))
    assert atoms_of(half, "a100") == {"mma_m16n8k16_f16"}
    assert atoms_of(half, "v100") == {"wmma_m16n16k16"}
    bytes_ = ops.matmul(T("a", 512, 512, dtype="int8"), T("b", 512, 512, dtype="int8"), transpose_b=True)
    assert atoms_of(bytes_, "a100") == {"mma_m16n8k32_s8"}
    assert atoms_of(ops.matmul(T("a", 2048, 2048), T("b", 2048, 2048)), "h100") < {
        a.name for a in load_spec("cuda:h100").atoms if "wgmma" in a.name
    }
    assert atoms_of(ops.matmul(T("a", 512, 512, dtype="float32"), T("b", 512, 512, dtype="float32")), "a100") == {"f32"}
    assert atoms_of(ops.reduce_sum(T("a", 512, 512), 1), "a100") == {"f32"}
    assert "mma_m16n8k16_f16" in str(roller.compile(half, device="cuda:a100").explain())


def test_operands_that_a_matrix_atom_would_round_stay_off_it() -> None:
    """A product of sums that are computed in float32 has operands that no half holds."""
    a, b = T("a", 64, 64), T("b", 64, 64)
    wide = ops.cast(a, "float32") * 1.001
    op = ops.einsum("mk,kn->mn", wide, ops.cast(b, "float32"))
    programs = roller.enumerate_programs(op, "cuda", spec=load_spec("cuda:a100")).sample(50, seed=0)
    assert all(s.atom.kind != "matrix" for p in programs for s in p.stages)


# --- the emulator catches what is wrong ------------------------------------------------------------------------------


def caught(expr: TensorExpr, artifact: Artifact, call: str, before: str, after: str) -> bool:
    """True if a kernel with one word of its first such call exchanged is wrong in some order of events, or is reported."""
    text = str(artifact.launch["text"])
    start = text.index(call, text.index('extern "C"'))
    end = text.index("\n", start)
    assert before in text[start:end]
    changed = text[:start] + text[start:end].replace(before, after, 1) + text[end:]
    broken = replace(artifact, launch={**artifact.launch, "text": changed})
    arrays = verify.random_inputs(expr, 5, integer=True)
    for backwards, eager in itertools.product((False, True), repeat=2):
        try:
            verify.check(expr, arrays, emulated(expr, broken, arrays, backwards, eager))
        except (WrongResultError, LaunchError):
            return True
    return False


@needs_compiler
@needs_cxx
@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        ("roller_ldmatrix_x4_trans(", "_trans", ""),  # operands not turned
        ("roller_ldmatrix_x4(", "x4", "x4_trans"),  # turned that should not be
        ("roller_ldmatrix_x4(", "& 15)", "& 7)"),  # rows of half of the matrices twice
        ("roller_ldmatrix_x4(", " * 16)", " * 17)"),  # addresses that are not aligned
        ("roller_mma_m16n8k16_f16(", "f16", "bf16"),  # bits taken for another type
        ("roller_mma_m16n8k16_f16(", "acc_ptr[1]", "acc_ptr[0]"),  # one accumulator for two results
        ("__syncthreads();", "__syncthreads()", ""),
    ],
)
def test_faults_in_fragments_are_caught(call: str, before: str, after: str) -> None:
    op = ops.matmul(T("a", 96, 96), T("b", 96, 96))
    noticed = caught(expression(op), of_whole_warps(op), call, before, after)
    assert noticed


@needs_compiler
@needs_cxx
@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        ("roller_mma_quads_row_row(", "quads_row_row", "quads_row_col"),  # taken for another layout
        ("roller_mma_quads_row_row(", "acc_ptr[1]", "acc_ptr[2]"),
        ("roller_quads_across<", "_across<", "_across<2 * "),  # the wrong depths
        ("roller_quads_rows(", "roller_quads_rows(", "(void)("),
    ],
)
def test_faults_in_fragments_of_quad_pairs_are_caught(call: str, before: str, after: str) -> None:
    op = ops.matmul(T("a", 128, 192), T("b", 192, 128))
    noticed = caught(expression(op), of_whole_warps(op, "v100"), call, before, after)
    assert noticed


# --- copies that run by themselves -----------------------------------------------------------------------------------


def pipelined(dtype: str, chip: str = "a100") -> tuple[ops.SymbolicTensor, Artifact]:
    """A product whose panels are filled ahead, step after step, in two copies."""
    op = ops.matmul(T("a", 64, 768, dtype=dtype), T("b", 768, 64, dtype=dtype))
    spec = with_level(load_spec(f"cuda:{chip}"), 2, depth_max=2)
    for program in ranked(op, spec, 200):
        (stage,) = program.stages
        if held_copies(stage, spec) == (2, 2) and not stage.cooperate:
            return op, text_of(spec, program)
    raise AssertionError("no candidate fills its panels ahead")


@needs_compiler
@needs_cxx
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_copies_arrive_before_they_are_read(dtype: str) -> None:
    op, artifact = pipelined(dtype)
    text = str(artifact.launch["text"])
    assert "roller_copy_async_16(" in text
    assert "_next" not in text, "what runs by itself needs no registers"
    for backwards, eager in itertools.product((False, True), repeat=2):
        right(op, artifact, backwards, eager)


@pytest.mark.one_in(2)
@needs_compiler
@needs_cxx
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        ("roller_copies_wait<0>();", "roller_copies_wait<0>()", ""),
        ("roller_copies_wait<0>();", "<0>", "<1>"),
        ("roller_copies_close();", "roller_copies_close()", ""),
        ("__syncthreads();", "__syncthreads()", ""),
        ("roller_copy_async_16(", ", 1)", ", 0)"),  # zeros instead of values
        ("roller_copy_async_16(", "roller_copy_async_16", "roller_copy_async_8"),  # half of a piece
    ],
)
def test_faults_in_copies_are_caught(dtype: str, call: str, before: str, after: str) -> None:
    op, artifact = pipelined(dtype)
    noticed = caught(expression(op), artifact, call, before, after)
    assert noticed


@needs_compiler
@needs_cxx
def test_the_emulator_itself_finds_results_that_depend_on_the_order_of_events() -> None:
    """Without the wait for copies, lazy ones come too late: nobody needs to know the right result to see that."""
    op, artifact = pipelined("float32")
    arrays = tuple(verify.random_inputs(expression(op), 1).values())
    out = aligned_empty((64, 64), np.dtype(np.float32))
    emulator.Emulator(artifact).run(arrays, out)
    text = str(artifact.launch["text"])
    start = text.index('extern "C"')
    broken = replace(
        artifact, launch={**artifact.launch, "text": text[:start] + text[start:].replace("roller_copies_wait<0>();", "")}
    )
    with pytest.raises(LaunchError, match="order of events"):
        emulator.Emulator(broken).run(arrays, out)


def test_chips_without_such_copies_carry_values_through_registers() -> None:
    op = ops.matmul(T("a", 2048, 2048, dtype="float32"), T("b", 2048, 2048, dtype="float32"))
    spec = load_spec("cuda:v100-pcie")
    ahead = next(program for program in ranked(op, spec, 50) if held_copies(program.stages[0], spec) == (2, 2))
    text = str(text_of(spec, ahead).launch["text"])
    assert "roller_cop" not in text
    assert "panel0_next" in text
    assert "panel1_next" in text
