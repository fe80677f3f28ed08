"""Processors that compute in float16 (AVX512-FP16): their atoms, sums by request only, single operations to the last bit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from roller import ops, verify
from roller.device.plugins import load_device
from roller.ir.scalar import Binary, Cast, Unary, walk
from roller.target.catalog import find_spec
from roller_cpu.chip import description
from roller_cpu.chip.topology import Cache, Topology
from roller_cpu.codegen.half_arithmetic import narrowed

CHIP, PLAIN = "cpu:sapphire-rapids", "cpu:zen4"  # with arithmetic in float16, and without
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)  # every value, in an order that pairs all kinds over many draws


def emulated(op: Any, arrays: list[np.ndarray], device: str = CHIP) -> np.ndarray:
    """The result of a kernel for another chip, computed here."""
    kernel = roller.compile(op, device, threads=1, top_k=1)
    out = np.full(kernel.output.shape, 77, kernel.output.dtype)
    load_device("cpu").emulate(kernel.artifact).run(tuple(arrays), out)
    return out


def instructions(op: Any) -> set[str]:
    """The vector instructions of a kernel's assembly."""
    return set(re.findall(r"^\s+(v[a-z0-9]+)", roller.compile(op, CHIP, threads=1, top_k=1).assembly, re.MULTILINE))


def same(left: np.ndarray, right: np.ndarray, chosen: bool = False) -> None:
    """Asserts equal bits, up to those of a NaN, and (`chosen`) the sign of a zero that max and min leave open."""
    nan = np.isnan(left)
    np.testing.assert_array_equal(nan, np.isnan(right))
    kept = ~nan & ((left != 0) | (right != 0)) if chosen else ~nan
    np.testing.assert_array_equal(left[kept].view(np.uint16), right[kept].view(np.uint16))


OPERATIONS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "max": ops.maximum,
    "min": ops.minimum,
    "literal": lambda x, y: x * 3.0 - y,
    "clip": lambda x, y: ops.clip(x / y, -2.0, 6.0),
    "where": lambda x, y: ops.where(x > y, x - 0.5, y * x),
    "wide literal": lambda x, y: (x + 0.1) * y,
    "zeros": lambda x, y: ((x + 0.0) - (y * 0.0)) * -0.0,
}
CHOSEN = {"max", "min", "clip"}  # operators that leave the sign of a zero open


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_the_bits_of_float32_rounded(name: str) -> None:
    x, y = ops.tensor((1 << 16,), "float16", "x"), ops.tensor((1 << 16,), "float16", "y")
    op = OPERATIONS[name](x, y)
    rng = np.random.default_rng(len(name))
    for _ in range(3):
        arrays = [EVERY, rng.permutation(EVERY)]
        same(emulated(op, arrays), emulated(op, arrays, PLAIN), name in CHOSEN)


@given(st.data())
@settings(max_examples=15)
def test_random_trees_have_the_bits_of_float32_rounded(data: st.DataObject) -> None:
    tensors = [ops.tensor((512,), "float16", name) for name in "xy"]
    found: list[Any] = list(tensors)
    for _ in range(data.draw(st.integers(1, 5))):
        pick = st.sampled_from(found)
        found.append(OPERATIONS[data.draw(st.sampled_from(sorted(set(OPERATIONS) - CHOSEN)))](data.draw(pick), data.draw(pick)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = {t.name: rng.choice(EVERY, 512) for t in tensors}
    taken = [arrays[t.name] for t in ops.expression(found[-1]).inputs]
    same(emulated(found[-1], taken), emulated(found[-1], taken, PLAIN))


def test_chains_are_computed_in_halves() -> None:
    x, y = ops.tensor((64, 64), "float16", "x"), ops.tensor((64, 64), "float16", "y")
    used = instructions(ops.relu(x * y + x))
    assert {"vmulph", "vaddph", "vmaxph"} <= used
    assert not {name for name in used if name.startswith(("vcvt", "vfmadd"))}  # a rounded product enters no multiply-add


def test_functions_and_formulas_stay_in_float32() -> None:
    x = ops.tensor((64, 64), "float16", "x")
    program = roller.compile(ops.gelu(x), CHIP, threads=1, top_k=1).program
    tree = narrowed(find_spec("cpu", "sapphire-rapids"), program).stages[0].nest.stage.body
    assert all(node.dtype != "float16" for node in walk(tree) if isinstance(node, Unary | Binary))
    assert isinstance(tree, Cast) and narrowed(find_spec("cpu", "zen4"), program) is program


def test_long_chains_take_no_longer_than_their_operations() -> None:
    """Literals that float16 does not hold stop the change at every operation."""
    x = value = ops.tensor((64,), "float16", "x")
    for _ in range(50):
        value = value + 0.1
    program = roller.compile(value, CHIP, threads=1, top_k=1).program
    changed = narrowed(find_spec("cpu", "sapphire-rapids"), program)
    assert changed.stages[0].nest.stage == program.stages[0].nest.stage and x.shape == (64,)


@pytest.mark.parametrize("turned", ["NN", "NT", "TN"])
def test_sums_of_halves_take_a_request(turned: str) -> None:
    a = ops.tensor((130, 50) if turned[0] == "T" else (50, 130), "float16", "a")
    b = ops.tensor((70, 130) if turned[1] == "T" else (130, 70), "float16", "b")
    flags = turned[0] == "T", turned[1] == "T"
    usual = roller.compile(ops.matmul(a, b, *flags), CHIP, threads=1, top_k=1)
    assert usual.program.stages[0].atom.acc_dtype == "float32"
    op = ops.matmul(a, b, *flags, acc_dtype="float16")
    kernel = roller.compile(op, CHIP, threads=1, top_k=1)
    assert kernel.program.stages[0].atom.name == "f16x32" and "vfmadd231ph" in instructions(op)
    arrays = verify.random_inputs(kernel.expr, 3, integer=True)
    found = emulated(op, [arrays["a"], arrays["b"]])
    left, right = (arrays[n].astype(np.float64) for n in "ab")
    exact = (left.T if flags[0] else left) @ (right.T if flags[1] else right)
    assert np.abs(exact).max() <= 2048  # sums of whole numbers that float16 holds: no rounding
    np.testing.assert_array_equal(found, exact)


def test_the_host_has_them_if_its_processor_does() -> None:
    caches = (Cache(3, 32 << 20, 64, 4), Cache(2, 1 << 20, 64, 1), Cache(1, 32 << 10, 64, 1))
    plain = ("avx", "avx2", "avx512f", "avx512bw", "avx512vl", "fma")
    for base in (find_spec("cpu", "sapphire-rapids"), find_spec("cpu", "zen4")):
        for more, wanted in (((), []), (("avx512_fp16",), ["f16x32", "f16"]), (("avx512fp16",), ["f16x32", "f16"])):
            machine = Topology("", 4, plain + more, caches, 8 << 30)
            spec = description.describe(machine, base, "any", "host-test", description.assumed(machine, base, "busy"))
            halves = [atom for atom in spec.atoms if atom.acc_dtype == "float16"]
            assert [atom.name for atom in halves] == wanted
            rates = {atom.name: atom.gflops for atom in spec.atoms}
            assert not wanted or (rates["f16x32"], rates["f16"]) == (2 * rates["f32x16"], rates["f32"])
