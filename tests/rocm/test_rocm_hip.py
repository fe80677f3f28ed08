"""HIP C++ of programs: what it says, that a clang takes it for every chip, and that its numbers are right on the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import roller
from emulating import needs_cxx
from hip_text import ONE_ORDER, best, built, compiled, computed, needs_clang
from roller import ops, verify
from roller.errors import CodegenError, KernelError
from roller.target.catalog import find_spec, list_specs
from roller_rocm.codegen import hip_source, matrix_cores
from roller_rocm.codegen.matrix_cores import WaveUnit
from roller_rocm.emulator import emulator


def t(*shape: int, dtype: str = "float32") -> ops.SymbolicTensor:
    return roller.tensor(shape, dtype)


def softmax(dtype: str) -> ops.SymbolicTensor:
    x = t(9, 200, dtype=dtype)
    e = ops.exp(x - ops.reduce_max(x, 1, keepdims=True))
    return e / ops.reduce_sum(e, 1, keepdims=True)


def product(dtype: str, turned: bool = False) -> ops.SymbolicTensor:
    return ops.matmul(t(48, 64, dtype=dtype), t(40, 64, dtype=dtype) if turned else t(64, 40, dtype=dtype), False, turned)


def image(*shape: int, dtype: str = "float16") -> ops.SymbolicTensor:
    return ops.conv2d(t(*shape, dtype=dtype), t(3, 3, shape[-1], 32, dtype=dtype), padding=1, layout="NHWC")


FIRST, SECOND, OLD, OLDER, OTHER = "mi210", "mi300x", "mi50", "mi100", "rx7900xtx"
# name: the operator, the start of the name of the unit that its program is to use, a chip, and those of the long run
OPERATORS: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "matmul f32": (lambda: ops.matmul(t(65, 50), t(50, 33)), "", OLD, f"{OLDER} {FIRST} {SECOND} {OTHER}"),
    "matmul f32, matrix units": (lambda: product("float32"), "mfma", FIRST, f"{OLDER} {SECOND}"),
    "matmul f64, matrix units": (lambda: product("float64"), "mfma", SECOND, FIRST),
    "matmul f16": (lambda: ops.relu(product("float16")), "mfma", SECOND, f"{FIRST} {OLDER}"),
    "matmul f16, turned": (lambda: product("float16", True), "mfma", OLDER, f"{FIRST} {SECOND}"),
    "matmul f16 of RDNA": (lambda: product("float16", True), "wmma", OTHER, ""),
    "matmul bf16": (lambda: product("bfloat16"), "mfma", FIRST, f"{OLDER} {SECOND}"),
    "matmul bf16, older": (lambda: product("bfloat16", True), "mfma", OLDER, ""),
    "matmul bf16 of RDNA": (lambda: product("bfloat16", True), "wmma", OTHER, ""),
    "matmul int8": (lambda: product("int8"), "mfma", SECOND, f"{FIRST} {OLDER}"),
    "matmul int8 of RDNA": (lambda: product("int8", True), "wmma", OTHER, ""),
    "conv2d": (lambda: ops.conv2d(t(2, 5, 9, 7), t(6, 5, 3, 3), padding=1), "", FIRST, SECOND),
    "conv2d f16": (lambda: image(1, 8, 8, 32), "mfma", SECOND, f"{FIRST} {OLDER}"),
    "depthwise": (lambda: ops.depthwise_conv2d(t(2, 5, 9, 7), t(5, 1, 3, 3), padding=1), "", SECOND, FIRST),
    "max_pool2d bf16": (lambda: ops.max_pool2d(t(1, 5, 9, 7, dtype="bfloat16"), 3, 1, 1), "", FIRST, SECOND),
    "reduce_sum": (lambda: ops.reduce_sum(t(64, 1000), 1), "", SECOND, f"{OLD} {OTHER}"),
    "reduce_max int32": (lambda: ops.reduce_max(t(3, 1500, dtype="int32"), 1), "", FIRST, f"{SECOND} {OTHER}"),
    "softmax": (lambda: softmax("float32"), "", OTHER, f"{FIRST} {SECOND}"),
    "softmax f16": (lambda: softmax("float16"), "", SECOND, FIRST),
    "gelu bf16": (lambda: ops.gelu(t(7, 33, dtype="bfloat16")), "", FIRST, SECOND),
    "functions": (lambda: ops.tanh(t(5, 33)) + ops.sin(t(5, 33)) * ops.erf(t(33)), "", SECOND, FIRST),
    "truths": (lambda: ops.cast(t(5, 33), "bool"), "", FIRST, SECOND),
    "bytes of halves": (lambda: ops.cast(t(5, 33, dtype="float16"), "uint8"), "", OLD, f"{OTHER} {SECOND}"),
    "bytes of floats": (lambda: ops.cast(t(5, 33), "uint8"), "", FIRST, f"{OTHER} {OLD}"),
    "reduce of truths": (lambda: ops.reduce_max(t(5, 33, dtype="bool"), 1), "", SECOND, FIRST),
    "float64": (lambda: ops.sqrt(ops.abs(t(5, 33, dtype="float64"))) + 0.5, "", FIRST, SECOND),
    "int64": (lambda: t(5, 33, dtype="int64") * t(33, dtype="int64"), "", SECOND, FIRST),
    "one": (lambda: t(1) + 1, "", FIRST, SECOND),
}
LONG = [pytest.param(name, chip, marks=pytest.mark.long) for name, line in OPERATORS.items() for chip in line[3].split()]
PAIRS = [*((name, line[2]) for name, line in OPERATORS.items()), *LONG]
IN_EVERY_ORDER = ("reduce_sum", "matmul int8", "softmax")


@pytest.mark.one_in(2)
@needs_clang
@needs_cxx
@pytest.mark.parametrize(("name", "chip"), PAIRS)
def test_clang_takes_the_text_and_its_numbers_are_right(name: str, chip: str) -> None:
    make, unit, *_ = OPERATORS[name]
    op = make()
    spec, program = best(op, chip, unit)
    source, artifact = built(spec, program)
    assert not unit or f"roller_llvm_amdgcn_{unit}" in source.text
    orders = emulator.ORDERS if name in IN_EVERY_ORDER else ONE_ORDER
    for integer in (True, False):
        arrays = verify.random_inputs(ops.expression(op), 1, integer)
        verify.check(ops.expression(op), arrays, computed(program, artifact, arrays, orders))


def called(number: int, unit: WaveUnit) -> str:
    """A kernel that calls a unit's instruction once."""
    told, words = unit.instruction, unit.registers["m"]
    scalar, places = hip_source.LLVM_TYPES[told.scalar], ", ".join(f"c + {n}" for n in range(told.results))
    return f"""{hip_source.product(unit)}
extern "C" __global__ void __launch_bounds__(64) kernel{number}(const unsigned int *in, {scalar} *out) {{
    unsigned int a[{words}], b[{words}];
    {scalar} c[{told.results}] = {{}};
    for (int n = 0; n < {words}; n++) a[n] = in[n * 64 + threadIdx.x], b[n] = in[({words} + n) * 64 + threadIdx.x];
    {unit.function}({places}, a, b);
    for (int n = 0; n < {told.results}; n++) out[n * 64 + threadIdx.x] = c[n];
}}"""


def plain(name: str) -> str:
    """The name of an instruction without what LLVM and assembly write in their own ways: points and lines, overloads, versions."""
    return re.sub(r"(\.v\d+[a-z]+\d+)+$|_w32$|[._]?1k$|^llvm\.amdgcn\.|^v_", "", name.strip()).replace(".", "").replace("_", "")


@needs_clang
@pytest.mark.parametrize("chip", [entry.chip for entry in list_specs("rocm")])
def test_every_matrix_instruction_is_the_one_that_llvm_gets(chip: str) -> None:
    spec = find_spec("rocm", chip)
    units = [matrix_cores.UNITS[a.name] for a in spec.atoms if a.kind == "matrix" and matrix_cores.supported(a)]
    waves = [unit for unit in units if isinstance(unit, WaveUnit)]
    text = "\n".join(["#include <hip/hip_runtime.h>", *(called(n, unit) for n, unit in enumerate(waves))])
    listing = compiled(text, str(spec.options["arch"]))
    found = re.findall(r"^\s*(v_(?:mfma|wmma)_\w+)", listing, re.MULTILINE)
    assert [plain(name) for name in found] == [plain(unit.instruction.intrinsic) for unit in waves]


def test_the_text_says_how_it_is_compiled_and_launched_and_is_always_the_same() -> None:
    spec, program = best(softmax("float32"), "mi210")
    source = hip_source.generate(spec, program)
    assert source == hip_source.generate(spec, program) and source.text == hip_source.text(spec, program)
    heading = source.text.partition("#include")[0]
    assert "hipcc --offload-arch=gfx90a -O3 -ffp-contract=on --genco" in heading and "not run on AMD hardware" in heading
    kernels = source.launch["kernels"]
    assert [k["name"] for k in kernels] == re.findall(r"//   (\w+): \d+ blocks", heading)
    for kernel in kernels:
        assert f"//   {kernel['name']}: {kernel['blocks']} blocks of {kernel['threads']} threads\n" in heading
        taken = re.search(rf"__launch_bounds__\({kernel['threads']}\)[^;\n]*? {kernel['name']}\((.*?)\) {{", source.text)
        assert taken is not None
        waves = kernel.get("predicted_waves")
        assert waves is None or f"amdgpu_waves_per_eu({waves}, {waves}))) {kernel['name']}(" in source.text
        assert [p.split()[-1].removesuffix("_ptr") for p in taken[1].split(", ")] == list(kernel["arguments"])
    for space in source.launch["workspaces"]:
        assert f"//     {space['name']}: workspace of {space['elements']} float32\n" in heading
    assert "//     softmax" not in heading and heading.count(": the result") == 1 and ": an array" not in heading
    assert max(map(len, heading.splitlines())) <= 132


def test_it_brings_only_what_kernels_use() -> None:
    text = hip_source.text(*best(t(1000) + 1, "mi300x"))
    assert not re.search(r"roller_(barrier|row|bfloat16)", text) and "CUDA" not in text and "cuda" not in text


@needs_clang
def test_loops_stand_as_often_as_they_say() -> None:
    """Left to itself clang would unroll the loop over panels, and put what kernels hold in registers into memory."""
    spec, program = best(ops.matmul(t(512, 512, dtype="float16"), t(512, 512, dtype="float16")), "mi210", "mfma")
    source, artifact = built(spec, program)
    loops = re.findall(r"^( *)(#pragma unroll.*\n)?\1?for \(int (\w+) = 0; \w+ < (\d+);", source.text, re.MULTILINE)
    assert loops and all(pragma for _, pragma, _, _ in loops)
    listing = artifact.launch["assembly"]
    spilled = re.findall(r"\.(?:private_segment_fixed_size|vgpr_spill_count): +(\d+)", listing)
    assert "s_cbranch" in listing and spilled == ["0", "0"]


def test_programs_that_the_chip_cannot_run_have_no_text() -> None:
    spec, program = best(ops.matmul(t(64, 64), t(64, 64)), "mi300x")
    inner = program.stages[0].levels[0]
    levels = (*spec.levels[:inner], spec.levels[inner].model_copy(update={"capacity_bytes": 64}), *spec.levels[inner + 1 :])
    with pytest.raises(CodegenError, match="local memory"):
        hip_source.generate(spec.model_copy(update={"levels": levels}), program)


def test_kernels_give_it_on_demand(tmp_path: Any) -> None:
    kernel = roller.compile(t(100) * 2, device="rocm:mi300x")
    text = kernel.source_in("hip-c++")
    assert 'extern "C" __global__' in text and kernel.source_in("llvm-ir") == kernel.source != text
    kernel.save(tmp_path / "k.roller")
    assert roller.load(tmp_path / "k.roller").source_in("hip-c++") == text
    with pytest.raises(KernelError, match="the rocm device writes llvm-ir and hip-c\\+\\+, not 'opencl'"):
        kernel.source_in("opencl")
