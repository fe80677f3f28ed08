"""Dot products of words: exact at the ends of int8's range, right in every layout, the same where they are emulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import roller
import word_products
from roller import ops, verify
from roller.device.plugins import load_device
from roller.errors import KernelError
from roller.ir.compensation import compensated
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.rprogram import RProgram, StageProgram, Staging, tiled_levels
from roller.search.construct import construct
from roller.search.stages import Candidate
from roller.target.catalog import find_spec
from roller.target.hardware import ComputeAtom
from roller.target.subset import limited
from roller_cpu.chip import probe
from roller_cpu.chip.dot_atoms import dot_atoms, names
from roller_cpu.codegen import dot_products
from roller_cpu.toolchain import compiling, processors
from word_products import convolution, product, scaled_batches

ZEN5 = limited(find_spec("cpu", "zen5"), 1)
WORDS = ZEN5.model_copy(update={"atoms": tuple(a for a in ZEN5.atoms if a.depth > 1 or a.kind == "scalar")})
DTYPES = ("int8", "uint8", "int16", "bfloat16")


def best(op: ops.SymbolicTensor, constants: frozenset[str] = frozenset()) -> RProgram:
    """The best program without other vectors on a Zen 5, whatever machine this is."""
    expr = fuse(ops.expression(op))
    return min([made(one, constants) for one in (expr, *compensated(expr, WORDS.atoms))], key=lambda m: m.estimate.seconds).program


def made(expr: TensorExpr, constants: frozenset[str] = frozenset()) -> Candidate:
    """The best program of one expression."""
    device = load_device("cpu")
    rules, parameters = device.rules(WORDS, expr), device.cost_parameters(WORDS, expr)
    return construct(expr, WORDS, rules, parameters, 1, constants=constants)[0]


def check(op: ops.SymbolicTensor, arrays: Mapping[str, Any] | None = None, constants: frozenset[str] = frozenset()) -> RProgram:
    """The best program, checked."""
    program = best(op, constants)
    word_products.check(op, program, arrays, constants)
    return program


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("k", [1, 7, 64, 66])
def test_every_layout_and_depth(dtype: str, turned: str, k: int) -> None:
    program = check(product(37, 50, k, dtype, turned))
    assert program.stages[-1].atom.depth > 1 or k == 1


@pytest.mark.parametrize("chip", ["zen3", "skylake-avx512", "x86-64-v3", "emerald-rapids", "granite-rapids", "alder-lake"])
def test_every_chip_takes_int8_in_words(chip: str) -> None:
    spec, expr = find_spec("cpu", chip), fuse(ops.expression(product(256, 256, 256, "int8")))
    device = load_device("cpu")
    found = construct(expr, spec, device.rules(spec, expr), device.cost_parameters(spec, expr), 1)[0]
    assert found.program.stages[0].atom.depth > 1


@pytest.mark.parametrize("value", [-32768, 32767])
def test_the_ends_of_int16_wrap(value: int) -> None:
    ends = {"a": np.full((12, 34), -32768, np.int16), "b": np.full((34, 48), value, np.int16)}
    assert check(product(12, 48, 34, "int16"), ends).stages[0].atom.name == "vpdpwssd_512"


@pytest.mark.parametrize("value", [-128, 127, 0])
def test_the_ends_of_the_range_are_exact(value: int) -> None:
    """One factor is unsigned, 128 more than it is, and sums wrap as integers do."""
    ends = {"a": np.full((12, 260), -128, np.int8), "b": np.full((260, 48), value, np.int8)}
    program = check(product(12, 48, 260, "int8"), ends)
    assert program.stages[-1].atom.n_dtype == "uint8"


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "bfloat16"])
def test_convolutions_with_padding(dtype: str, stride: int) -> None:
    check(convolution(dtype, stride))


def test_batches_and_epilogues() -> None:
    check(scaled_batches())


def test_constants_are_packed_once() -> None:
    program = check(product(100, 64, 270, "int8"), constants=frozenset({"b"}))
    assert any(s.constant for s in program.stages[-1].staged) and program.stages[-1].atom.depth == 4


def test_an_explanation_says_that_a_tile_is_one_word_deep() -> None:
    text = str(roller.compile(product(64, 64, 64, "int8"), "cpu:zen5", threads=1).explain())
    assert "k: one word" in " ".join(text.split()) and "vpdpbusd_512 (n on n, k on k)" in text


def test_the_emulator_computes_the_same() -> None:
    op = product(33, 40, 70, "int8")
    kernel = roller.compile(op, "cpu:zen5", threads=1)
    given = verify.random_inputs(kernel.expr, 1, integer=True)
    out = np.full((33, 40), 77, np.int32)
    load_device("cpu").emulate(kernel.artifact).run((given["a"], given["b"]), out)
    np.testing.assert_array_equal(out, given["a"].astype(np.int64) @ given["b"].astype(np.int64))


def test_other_architectures_are_not_emulated() -> None:
    kernel = roller.compile(product(8, 8, 8, "bfloat16"), "cpu:neoverse-v2", threads=1)
    with pytest.raises(KernelError, match="aarch64"):
        load_device("cpu").emulate(kernel.artifact)


def test_plain_ir_needs_no_instruction_set() -> None:
    """With them, assembly has the instruction; in plain IR, a processor without it compiles the same program."""
    for dtype, name in (("int8", "vpdpbusd"), ("int16", "vpdpwssd"), ("bfloat16", "vdpbf16ps")):
        source = roller.compile(product(32, 64, 64, dtype), "cpu:zen5", threads=1).artifact.source
        assert name in compiling.assembly(source)
        assert name not in compiling.assembly(compiling.retargeted(dot_products.emulated(source), "x86-64-v3"))


@pytest.mark.parametrize(
    ("features", "vector_bytes", "found"),
    [
        (("avx512vnni", "avx512bf16"), 64, ["vpdpbusd_512", "vpdpwssd_512", "vdpbf16ps_512"]),
        (("avx512vnni", "avx512bw"), 64, ["vpdpbusd_512", "vpdpwssd_512"]),
        (("avx512bw",), 64, ["vpmaddwd_512"]),
        (("avxvnni", "avx2"), 32, ["vpdpbusd_256", "vpdpwssd_256"]),
        (("avx2",), 32, ["vpmaddwd_256"]),
        (("avx",), 32, []),
    ],
)
def test_the_host_has_the_atoms_of_its_instruction_sets(features: tuple[str, ...], vector_bytes: int, found: list[str]) -> None:
    tables = dot_atoms(find_spec("cpu", "x86-64-v3"), features, vector_bytes, 32.0)
    assert [table["name"] for table in tables] == found
    for table in tables:
        atom = ComputeAtom.model_validate(table | {"gflops": 1.0})
        assert atom.depth == atom.extents["k"] and atom.extents["n"] == vector_bytes // 4


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "mydot_512"},
        {"name": "vpdpbusd_256"},
        {"n_dtype": None},
        {"kind": "matrix", "n_dtype": None, "roles": {"m": 16, "n": 16, "k": 64}},
    ],
)
def test_atoms_without_code_are_left_to_others(changes: dict[str, Any]) -> None:
    """A spec may name what the device does not know; operators then run on its other atoms."""
    atoms = tuple(ComputeAtom.model_validate(a.model_dump() | changes) if a.name == "vpdpbusd_512" else a for a in ZEN5.atoms)
    kernel = roller.compile(product(32, 64, 64, "int8"), "cpu", spec=ZEN5.model_copy(update={"atoms": atoms}))
    assert kernel.program.stages[0].atom.name == "vpdpwssd_512"


def test_rates_are_those_that_were_measured() -> None:
    base, features = find_spec("cpu", "zen4"), ("avx512vnni", "avx512bf16")
    assumed, measured = (dot_atoms(base, features, 64, 64.0, found) for found in ({}, {"vpdpbusd_512": 0.5}))
    assert [table["flops_per_cycle_per_unit"] for table in assumed] == [256.0, 128.0, 128.0]  # as often as multiply-adds
    assert [table["flops_per_cycle_per_unit"] for table in measured] == [128.0, 128.0, 128.0]


@pytest.mark.long  # it times, and a busy machine times anything
def test_real_probing_gives_plausible_ratios() -> None:
    own = names(processors.host_features(), 32)
    rates = probe.measure(1, 32, processors.host_processor(), {"L1": 8192}, dots=own)
    assert set(rates.dots) <= set(own) and all(0.2 < ratio < 2.5 for ratio in rates.dots.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"roles": {"k": 4, "n": 16}}, "n, or n and k"),
        ({"roles": {"n": 16, "k": 2}}, "do not fill one int32"),
        ({"in_dtype": "bfloat16", "acc_dtype": "float32", "roles": {"n": 16, "k": 2}}, "only dot products take other operands"),
        ({"roles": {"n": 16}, "in_dtype": "int32"}, "only dot products take other operands"),
    ],
)
def test_atoms_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    good = {"name": "vpdpbusd_512", "kind": "vector", "roles": {"n": 16, "k": 4}, "in_dtype": "int8", "acc_dtype": "int32"}
    ComputeAtom.model_validate(good | {"n_dtype": "uint8", "gflops": 1.0})
    with pytest.raises(ValidationError, match=message):
        ComputeAtom.model_validate(good | {"n_dtype": "uint8", "gflops": 1.0} | changes)


def test_words_of_another_dimension_are_not_taken_for_neighbours() -> None:
    """k is not contiguous, and j lies as far apart as words do: blocks of runs cannot be transposed."""
    b, a = ops.tensor((32, 24, 32, 4), "int8", "b"), ops.tensor((8, 32, 24), "int8", "a")
    op = ops.einsum("nkji,mjk->mni", b, a, acc_dtype="int32")
    expr = compensated(fuse(ops.expression(op)), WORDS.atoms)[1]
    sums = made(expr).program.stages[0]
    nest = variants(expr.stages[-1], expr.tensors)[0]
    places = {dim.name: place for place, dim in enumerate(nest.dims)}
    atom = next(a for a in WORDS.atoms if a.name == "vpdpbusd_512")
    order = tuple(sorted(range(len(nest.dims)), key=lambda d: (nest.dims[d].is_reduce, nest.dims[d].name != "k", d)))
    inner = tuple({"n": 16, "k": 4}.get(dim.name, 1) for dim in nest.dims)
    levels = tiled_levels(limited(find_spec("cpu", "x86-64-v3"), 1))
    stage = StageProgram(
        nest, atom, (("n", places["n"]), ("k", places["k"])), levels, (nest.extents,) * (len(levels) - 1) + (inner,),
        (order,) * len(levels), (Staging("panel", 0, levels[0]), Staging("panel", 1, levels[0])),
    )  # fmt: skip
    word_products.check(op, RProgram(expr, (sums, stage)))
