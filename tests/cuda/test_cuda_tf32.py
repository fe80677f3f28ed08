"""Products of float32 values on tensor cores, where a caller permits factors to be rounded to tf32: who rounds what, and how."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import roller
from emulating import emulated, expression, needs_compiler, needs_cxx, text_of
from random_operators import random_examples
from roller import ops, verify
from roller.device.chip import load_spec
from roller.errors import ConstructionError, LaunchError, WrongResultError
from roller.frozen import FrozenMap
from roller.layout.banks import staged_rows
from roller.precision import permitted
from roller.program.rprogram import RProgram
from roller.runtime.artifact import Artifact
from roller.target.hardware import HardwareSpec
from roller.verify.rounding import Array
from roller_cuda.codegen import limits

ORDERS = list(itertools.product((False, True), repeat=2))
UNITS = {"a100": "mma", "rtx4090": "mma", "h100": "mma", "h100 groups": "wgmma"}
MOST_BLOCKS = 24  # of a program: the emulator runs thread after thread


def T(name: str, *shape: int) -> ops.SymbolicTensor:
    return ops.tensor(shape, "float32", name=name)


def spec_of(unit: str) -> HardwareSpec:
    return load_spec(f"cuda:{unit.split(maxsplit=1)[0]}")


def only(unit: str) -> HardwareSpec:
    """The chip with nothing but units that round to tf32, those whose names begin so."""
    spec = spec_of(unit)
    atoms = tuple(a for a in spec.atoms if a.in_dtype == "tfloat32" and a.name.startswith(UNITS[unit]))
    return spec.model_copy(update={"atoms": atoms, "peaks_gflops": FrozenMap({})})


def programs(op: ops.SymbolicTensor, unit: str, count: int = 200, seed_: int = 0) -> Iterator[RProgram]:
    """Programs that round to tf32, drawn from all that fit a chip."""
    spec, space = spec_of(unit), roller.enumerate_programs(op, "cuda", spec=only(unit), precision="tf32")
    try:
        space.sample(1, seed=seed_)
    except ConstructionError:  # none of these units takes it
        return
    for program in itertools.islice(space.drawn(seed_), count):
        blocks = math.prod(lp.trips for lp in program.stages[0].loops if lp.over == "units")
        if limits.refusal(spec, program) is None and blocks <= MOST_BLOCKS:
            yield program


def kernel(op: ops.SymbolicTensor, unit: str, wanted: Callable[[RProgram], bool] = lambda _: True, count: int = 200) -> Artifact:
    program = next((p for p in programs(op, unit, count) if wanted(p)), None)
    assert program is not None, "no such program among those drawn"
    return text_of(spec_of(unit), program)


def boxed(artifact: Artifact) -> set[str]:
    """The arrays that boxes bring, or take away."""
    return {m["tensor"] for k in artifact.launch["kernels"] for m in k.get("maps", {}).values()}


def rounded(array: Array, even: bool) -> Array:
    """The nearest values of tf32; of two as near the even one, or the one further from zero."""
    bits = array.view(np.uint32)
    up = (bits >> 13 & 1) + 0xFFF if even else 0x1000
    return ((bits + up) & np.uint32(0xFFFFE000)).view(np.float32)


def right(op: ops.SymbolicTensor, artifact: Artifact, arrays: Mapping[str, Any], order: tuple[bool, bool]) -> None:
    """Within the bound that the permission leaves, and of rounded factors within that of float32: nothing else is lost."""
    strict = expression(op)
    result = emulated(strict, artifact, dict(arrays), *order)
    verify.check(permitted(strict, "tf32"), arrays, result)
    factors = {a.name for a in (strict.tensors[n.tensor] for n in strict.stages[0].reads) if a.name in ("a", "b", "x", "w")}
    even = boxed(artifact)
    verify.check(strict, {n: rounded(a, n in even) if n in factors else a for n, a in arrays.items()}, result)


# --- numbers ----------------------------------------------------------------------------------------------------------

PRODUCTS: dict[str, Callable[[], ops.SymbolicTensor]] = {
    "plain": lambda: ops.matmul(T("a", 64, 96), T("b", 96, 80)),
    "first turned": lambda: ops.matmul(T("a", 96, 64), T("b", 96, 80), transpose_a=True),
    "second turned": lambda: ops.matmul(T("a", 64, 96), T("b", 80, 96), transpose_b=True),
    "both turned": lambda: ops.matmul(T("a", 96, 64), T("b", 80, 96), transpose_a=True, transpose_b=True),
    "odd": lambda: ops.matmul(T("a", 101, 77), T("b", 77, 83)),
    "odd, along the reduction": lambda: ops.matmul(T("a", 101, 77), T("b", 83, 77), transpose_b=True),
    "ragged": lambda: ops.matmul(T("a", 100, 92), T("b", 84, 92), transpose_b=True),
    "few rows": lambda: ops.matmul(T("a", 5, 64), T("b", 40, 64), transpose_b=True),
    "batched": lambda: ops.batch_matmul(T("a", 3, 33, 40), T("b", 3, 40, 24)),
    "batched, second turned": lambda: ops.batch_matmul(T("a", 3, 65, 40), T("b", 3, 24, 40), transpose_b=True),
    "fused": lambda: ops.relu(ops.matmul(T("a", 48, 64), T("b", 40, 64), transpose_b=True) + T("bias", 40)),
    "computed on the way": lambda: ops.matmul(ops.relu(T("a", 70, 64)), T("b", 40, 64), transpose_b=True),
    "convolution": lambda: ops.conv2d(T("x", 1, 16, 9, 9), T("w", 24, 16, 3, 3), padding=1),
    "channels last": lambda: ops.conv2d(T("x", 1, 7, 6, 32), T("w", 3, 3, 32, 24), padding=1, layout="NHWC"),
}
ALONG = {
    "second turned",
    "odd, along the reduction",
    "ragged",
    "few rows",
    "batched, second turned",
    "fused",
    "computed on the way",
}


CASES = [(name, unit) for name in PRODUCTS for unit in UNITS if unit != "rtx4090" or name in ("plain", "odd", "convolution")]


@pytest.mark.one_in(4)
@needs_cxx
@pytest.mark.parametrize(("name", "unit"), CASES)
def test_products_are_right(name: str, unit: str) -> None:
    """On every unit, in every order of events; warp groups take only what lies along the reduction."""
    op = PRODUCTS[name]()
    drawn = [text_of(spec_of(unit), p) for p, _ in zip(programs(op, unit), range(1 + (unit == "h100 groups")), strict=False)]
    if UNITS[unit] == "wgmma" and name not in ALONG:
        assert not drawn
        return
    assert drawn, "no program that rounds to tf32"
    arrays = verify.random_inputs(expression(op), 7)
    for artifact, orders in zip(drawn, (ORDERS, ORDERS[1:2]), strict=False):
        for order in orders:
            right(op, artifact, arrays, order)


@needs_compiler
@needs_cxx
@pytest.mark.parametrize("unit", ["a100", "h100 groups"])
def test_cut_reductions_are_right(unit: str) -> None:
    op = ops.matmul(T("a", 64, 2048), T("b", 64, 2048), transpose_b=True)
    choices = roller.compile(op, device="cuda", spec=only(unit), precision="tf32", top_k=200).candidates
    program = next(c.program for c in choices if c.program.stages[0].dispatch.split > 1)
    arrays = verify.random_inputs(expression(op), 3)
    for order in ORDERS:
        right(op, text_of(spec_of(unit), program), arrays, order)


@st.composite
def products(draw: st.DrawFn) -> ops.SymbolicTensor:
    """A product of two tensors, perhaps with work before and after it."""
    size = st.one_of(st.integers(1, 130), st.integers(1, 33).map(lambda n: 4 * n))
    extents = {"m": draw(size), "n": draw(size), "k": draw(size), "b": 3}
    left, right_, out = draw(st.sampled_from((("mk", "kn", "mn"), ("km", "nk", "mn"), ("mk", "nk", "mn"), ("bmk", "bnk", "bmn"))))
    a, b = (ops.tensor(tuple(extents[c] for c in part), "float32", name=n) for n, part in (("a", left), ("b", right_)))
    if draw(st.integers(0, 3)) == 0:
        a = ops.relu(a)
    product = ops.einsum(f"{left},{right_}->{out}", a, b)
    return product + T("bias", *product.shape[-1:]) if draw(st.booleans()) else product


def random_program(data: st.DataObject) -> None:
    op, unit = data.draw(products()), data.draw(st.sampled_from(tuple(UNITS)))
    program = next(programs(op, unit, 60, data.draw(st.integers(0, 10**6))), None)
    assume(program is not None)
    assert program is not None
    note(f"{unit}: {program.describe()}")
    arrays = verify.random_inputs(expression(op), data.draw(st.integers(0, 99)), integer=data.draw(st.booleans()))
    right(op, text_of(spec_of(unit), program), arrays, data.draw(st.sampled_from(ORDERS)))


@needs_cxx
def test_random_programs_are_right() -> None:
    random_examples(random_program, 0, 6)


@needs_cxx
@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_many_random_programs_are_right(part: int) -> None:
    random_examples(random_program, 100 + part, 100)


# --- the emulator catches what is wrong -------------------------------------------------------------------------------


def changed(artifact: Artifact, where: str, before: str, after: str) -> Artifact:
    """The kernel with one word exchanged, in the first line in which there is another."""
    text = str(artifact.launch["text"])
    start = text.index(where, text.rindex('extern "C"'))
    end = text.index("\n", start)
    assert before in text[start:end]
    said = text[:start] + text[start:end].replace(before, after, 1) + text[end:]
    return replace(artifact, launch={**artifact.launch, "text": said})


def noticed(op: ops.SymbolicTensor, artifact: Artifact, arrays: Mapping[str, Any]) -> bool:
    """True if a kernel is beyond the bound that the permission leaves, or is reported, in some order of events."""
    expr = permitted(expression(op), "tf32")
    for order in ORDERS:
        try:
            verify.check(expr, arrays, emulated(expr, artifact, dict(arrays), *order))
        except (WrongResultError, LaunchError):
            return True
    return False


def just_below(op: ops.SymbolicTensor) -> dict[str, Array]:
    """Positive inputs whose bits below tf32 are all ones: cut off, they lose nearly twice what rounding may cost."""
    drawn = verify.random_inputs(expression(op), 5)
    return {n: ((1 + np.abs(a) / 8).astype(np.float32).view(np.uint32) | 0x1FFF).view(np.float32) for n, a in drawn.items()}


@pytest.mark.one_in(3)
@needs_cxx
@pytest.mark.parametrize(
    ("name", "where", "before", "after"),
    [
        ("second turned", "fragments0_ptr[0] =", "roller_tf32(", "("),  # bits that the product does not define
        ("second turned", "roller_ldmatrix_x4(", "x4(", "x4_trans("),
        ("second turned", "roller_ldmatrix_x4(", "& 15)", "& 7)"),  # rows twice
        ("first turned", "fragments0_ptr[0] =", "roller_tf32(", "static_cast<int>("),  # a number taken for bits
        ("first turned", "fragments0_ptr[1] =", "[1]", "[2]"),  # row 8 for depth 4
        ("first turned", "fragments0_ptr[0] =", "& 3)", "& 1)"),  # depths twice
        ("plain", "roller_mma_m16n8k8_tf32(", "acc_ptr[1]", "acc_ptr[0]"),  # one accumulator for two results
        ("plain", "roller_mma_m16n8k8_tf32(", "roller_mma_m16n8k8_tf32", "(void)"),
        ("plain", "__syncthreads();", "__syncthreads()", ""),
    ],
)
def test_faults_in_fragments_are_caught(name: str, where: str, before: str, after: str) -> None:
    op = PRODUCTS[name]()
    artifact = kernel(op, "a100", lambda p: not p.stages[0].cooperate and min(p.stages[0].inner[:2]) >= 16)
    arrays = verify.random_inputs(expression(op), 5)
    assert not noticed(op, artifact, arrays)
    assert noticed(op, changed(artifact, where, before, after), arrays)


@needs_cxx
def test_bits_that_a_product_does_not_define_are_reported() -> None:
    """Whatever a GPU would make of them: there is nothing to compare."""
    op = PRODUCTS["second turned"]()
    artifact = changed(kernel(op, "a100"), "fragments0_ptr[0] =", "roller_tf32(", "(")
    with pytest.raises(LaunchError, match="bits that the instruction does not define"):
        emulated(expression(op), artifact, verify.random_inputs(expression(op), 5))


@needs_cxx
def test_boxes_that_do_not_round_are_caught() -> None:
    """Products of warp groups cut bits off: whoever brings values has to round them before."""
    op = ops.matmul(T("a", 64, 64), T("b", 64, 64), transpose_b=True)
    artifact = kernel(op, "h100 groups")
    arrays = just_below(op)
    assert boxed(artifact) >= {"a", "b"}
    assert not noticed(op, artifact, arrays)
    (launched,) = artifact.launch["kernels"]
    brought = {name: m for name, m in launched["maps"].items() if m["tensor"] in ("a", "b")}
    assert {m["dtype"] for m in brought.values()} == {"tfloat32"}
    plain = dict(launched["maps"]) | {name: {**m, "dtype": "float32"} for name, m in brought.items()}
    assert noticed(op, replace(artifact, launch={**artifact.launch, "kernels": [{**launched, "maps": plain}]}), arrays)


@needs_cxx
def test_lanes_that_fill_panels_without_rounding_are_caught() -> None:
    op = ops.matmul(T("a", 64, 63), T("b", 64, 63), transpose_b=True)  # rows that boxes cannot bring
    artifact = kernel(op, "h100 groups")
    arrays = just_below(op)
    assert not boxed(artifact) & {"a", "b"}
    assert not noticed(op, artifact, arrays)
    text = str(artifact.launch["text"])
    start = text.index('extern "C"')
    assert "roller_tf32_value(" in text[start:]
    cut = replace(artifact, launch={**artifact.launch, "text": text[:start] + text[start:].replace("roller_tf32_value(", "(")})
    assert noticed(op, cut, arrays)


@needs_cxx
def test_what_is_no_number_stays_none() -> None:
    """The nearest value of tf32 to infinity is infinity, and NaN stays NaN, with whatever bits below."""
    op = ops.matmul(T("a", 64, 64), T("b", 64, 64), transpose_b=True)
    a, b = (np.ones((64, 64), np.float32) for _ in range(2))
    a[3, 5], a[7, 9] = np.inf, np.nan
    a[11, 2] = np.uint32(0x7FFFFFFF).view(np.float32)
    for unit in ("a100", "h100 groups"):
        result = emulated(expression(op), kernel(op, unit), {"a": a, "b": b})
        assert np.isposinf(result[3]).all()
        assert np.isnan(result[[7, 11]]).all()
        assert (np.delete(result, [3, 7, 11], axis=0) == 64).all()


# --- what is chosen ---------------------------------------------------------------------------------------------------


def atoms_of(op: ops.SymbolicTensor, chip: str, precision: str) -> list[str]:
    return [stage.atom.name for stage in roller.compile(op, device=f"cuda:{chip}", precision=precision).program.stages]


@needs_compiler
def test_tensor_cores_take_float32_where_it_is_permitted_and_pays() -> None:
    """On Hopper a factor that does not lie along the reduction is laid so before, by a kernel of its own."""
    along, plain = (ops.matmul(T("a", 2048, 2048), T("b", 2048, 2048), transpose_b=turned) for turned in (True, False))
    assert atoms_of(along, "a100", "ieee") == ["f32"]
    assert atoms_of(along, "a100", "tf32") == ["mma_m16n8k8_tf32"]
    assert atoms_of(along, "h100", "tf32") == ["wgmma_m64n256k8_tf32"]
    assert atoms_of(plain, "h100", "tf32") == ["f32", "wgmma_m64n256k8_tf32"]
    assert atoms_of(plain, "v100", "tf32") == ["f32"]
    small = roller.compile(ops.matmul(T("a", 256, 256), T("b", 256, 256)), device="cuda:h100", precision="tf32").explain()
    assert small.stages[0].atom == "mma_m16n8k8_tf32"
    assert ("wgmma_m64n128k8_tf32", "takes what lies along the reduction in memory") in small.stages[0].others
    said = roller.compile(plain, device="cuda:h100", precision="tf32").explain()
    assert "factors may be rounded to tfloat32, and are" in str(said)
    said = roller.compile(plain, device="cuda:v100", precision="tf32").explain()
    assert "factors may be rounded to tfloat32, but are not" in str(said)
    said = roller.compile(plain, device="cuda:a100").explain()
    assert ("mma_m16n8k8_tf32", "rounds to tfloat32, which is not permitted") in said.stages[0].others
    assert "may be rounded" not in str(said)


@pytest.mark.parametrize("name", ["plain", "first turned", "second turned", "both turned"])
def test_fragments_are_read_without_bank_conflicts(name: str) -> None:
    """Along the reduction 8 rows of 4 words, across it 4 rows of 8: every bank once."""
    op, spec = PRODUCTS[name](), load_spec("cuda:a100")
    banks = spec.level("shared").banks
    assert banks is not None
    for program in itertools.islice(programs(op, "a100"), 10):
        (stage,) = program.stages
        for staging in stage.staged:
            rows = staged_rows(stage, spec, staging)
            assert rows is not None
            turned = (name in ("first turned", "both turned")) if staging.operand == 0 else name in ("plain", "first turned")
            assert rows.piece == (8 if turned else 4)
            if staging.row_padding and rows.rows >= (4 if turned else 8):
                assert rows.conflicts(staging.row_padding, banks) == 1
                words = {
                    (r * (rows.row + staging.row_padding) + c) % 32 for r in range(32 // rows.piece) for c in range(rows.piece)
                }
                assert len(words) == 32
