"""The ROCm device without a GPU: kernels become code objects of five architectures, and run on the emulator."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import roller
from emulating import expression
from random_operators import operators, random_examples
from roller import ops, trial
from roller.device.chip import load_spec, resolve
from roller.errors import CodegenError, ConstructionError, DeviceUnavailableError, ExpressionError
from roller.frozen import FrozenMap
from roller.program.rprogram import RProgram
from roller.runtime.artifact import BuildOptions, KernelSource
from roller.target.hardware import ComputeAtom, HardwareSpec, peak_key
from roller.testing import DeviceContract
from roller_rocm.codegen import generator, limits
from roller_rocm.toolchain import assembly, compiling, linkers, llvm_worker

CHIPS = ("mi50", "mi100", "mi210", "mi300x", "rx7900xtx")
MATRIX = ("mi100", "mi210", "mi300x", "rx7900xtx")
MOST_THREADS, MOST_POINTS = 20_000, 300  # of a random program: every point is a line of text, every thread is emulated
OPTIONS = BuildOptions()


class TestRocm(DeviceContract):
    device = "rocm"
    chips = ("mi50", "mi210", "rx7900xtx")


def gemm(m: int, n: int, k: int, dtype: str = "float32") -> ops.SymbolicTensor:
    return ops.matmul(ops.tensor((m, k), dtype, name="a"), ops.tensor((k, n), dtype, name="b"))


def atoms(kernel: roller.Kernel) -> set[str]:
    return {stage.atom.name for stage in kernel.program.stages}


def with_atoms(spec: HardwareSpec, atoms: tuple[ComputeAtom, ...]) -> HardwareSpec:
    """The chip with these atoms only."""
    peaks = {key: value for key, value in spec.peaks_gflops.items() if key in {peak_key(a) for a in atoms}}
    return spec.model_copy(update={"atoms": atoms, "peaks_gflops": FrozenMap(peaks)})


def best(op: ops.SymbolicTensor, spec: HardwareSpec) -> RProgram:
    return roller.enumerate_programs(op, "rocm", spec=spec).sample(1, seed=0)[0]


# --- numbers ---------------------------------------------------------------------------------------------------------


def random_kernel(data: st.DataObject) -> None:
    """One operator with one program drawn from all that fit, built and emulated."""
    try:
        op = data.draw(operators())
        expr = expression(op)
    except ExpressionError:
        assume(False)
        return
    assume(expr.output.elements > 0)
    plugin, spec = resolve(f"rocm:{data.draw(st.sampled_from(CHIPS))}")
    try:
        (program,) = roller.enumerate_programs(op, "rocm", spec=spec).sample(1, seed=data.draw(st.integers(0, 10**6)))
    except ConstructionError:
        assume(False)
        return
    threads = math.prod(math.prod(lp.trips for lp in s.loops if lp.over != "time") for s in program.stages)
    assume(limits.refusal(spec, program) is None)
    assume(threads <= MOST_THREADS and max(math.prod(s.inner) for s in program.stages) <= MOST_POINTS)
    note(f"{spec.chip}: {program.describe()}")
    artifact = plugin.build(spec, plugin.codegen(spec, program, OPTIONS), OPTIONS)
    trial.verify(artifact, expr, emulate=True)


@pytest.mark.parametrize("part", [0, 1])  # side by side where several processes test
def test_random_programs_are_right(part: int) -> None:
    random_examples(random_kernel, part, 10)


@pytest.mark.long
@pytest.mark.parametrize("part", [2, 3, 4, 5])
def test_many_random_programs_are_right(part: int) -> None:
    random_examples(random_kernel, part, 150)


def test_nothing_in_front_of_an_array_is_read_for_padding_within_padding() -> None:
    """Windows beyond what is padded: two guards, of which one stands inside the other's selection."""
    padded = ops.pad(ops.tensor((1, 6, 11, 1), "int32"), ((0, 1), (1, 0), (0, 1), (1, 0)))
    op = ops.max_pool2d(padded, (3, 4), stride=(2, 3), dilation=(1, 3), padding=(0, 0, 1, 1), layout="NHWC")
    plugin, spec = resolve("rocm:mi300x")
    for program in roller.enumerate_programs(op, "rocm", spec=spec).sample(6, seed=1):
        artifact = plugin.build(spec, plugin.codegen(spec, program, OPTIONS), OPTIONS)
        trial.verify(artifact, ops.expression(op), emulate=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("chip", MATRIX)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_matrix_units_are_right(chip: str, dtype: str) -> None:
    """The units of each type, with rows of panels along the reduction and across it, ragged ends and something fused."""
    spec = load_spec(f"rocm:{chip}")
    only = tuple(a for a in spec.atoms if a.kind == "matrix" and a.in_dtype == dtype)
    assert only
    a, b = ops.tensor((70, 90), dtype, name="a"), ops.tensor((40, 90), dtype, name="b")
    for op in (
        ops.matmul(a, ops.transpose(b)),
        ops.matmul(ops.transpose(ops.tensor((90, 70), dtype)), ops.tensor((90, 40), dtype)),
    ):
        kernel = roller.compile(op, device="rocm", spec=with_atoms(spec, only))
        assert atoms(kernel) <= {a.name for a in only}
        assert re.search(r"v_(mfma|wmma)_", kernel.artifact.launch["assembly"])
        trial.verify(kernel.artifact, kernel.expr, emulate=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("chip", "name"), [(c, a.name) for c in MATRIX for a in load_spec(f"rocm:{c}").atoms if a.kind == "matrix"]
)
def test_every_matrix_atom_is_right(chip: str, name: str) -> None:
    spec = load_spec(f"rocm:{chip}")
    (atom,) = (a for a in spec.atoms if a.name == name)
    op = gemm(64, 64, 64, atom.in_dtype)
    kernel = roller.compile(op, device="rocm", spec=with_atoms(spec, (atom,)))
    assert atoms(kernel) == {name}
    trial.verify(kernel.artifact, kernel.expr, emulate=True)


# --- what machine code must and must not have ---------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_a_product_of_float32_keeps_its_promises(chip: str) -> None:
    """No spill, the workgroup that is launched, no conversions that nobody calls, as many waves as were promised."""
    kernel = roller.compile(gemm(512, 512, 512), device=f"rocm:{chip}")
    text, (launched,) = kernel.artifact.launch["assembly"], kernel.artifact.launch["kernels"]
    found = dict(kernel.artifact.resources)
    assert found["stage0_kernel.spilled_bytes"] == 0
    assert launched["threads"] <= limits.most_lanes(kernel.spec)
    assert f".max_flat_workgroup_size: {launched['threads']}\n" in text
    assert assembly.parsed(text).kernels["stage0_kernel"].facts["group_segment_fixed_size"] == launched["shared_bytes"]
    assert "__extendhfsf2" not in text
    assert found["stage0_kernel.resident_waves"] >= found["stage0_kernel.predicted_waves"]


@pytest.mark.parametrize("chip", ["mi210", "mi300x", "rx7900xtx"])  # before them LLVM waits for everything at barriers
def test_loads_are_under_way_across_barriers(chip: str) -> None:
    kernel = roller.compile(gemm(640, 640, 640), device=f"rocm:{chip}")
    text = kernel.artifact.launch["assembly"]
    assert re.search(r"global_load_(?:(?!vmcnt\(0\)).)*s_barrier", text, re.DOTALL)


@pytest.mark.parametrize("chip", ["mi210", "mi300x"])
def test_packed_arithmetic_is_used_where_the_chip_has_it(chip: str) -> None:
    kernel = roller.compile(gemm(1024, 1024, 1024), device=f"rocm:{chip}")
    assert "v_pk_fma_f32" in kernel.artifact.launch["assembly"]


def test_writes_are_waited_for_at_the_start_of_loops() -> None:
    """LLVM takes the wait of a fence for one that it may drop on a loop's way back."""
    kernel = roller.compile(gemm(512, 512, 512, "float64"), device="rocm:mi210", top_k=3)
    before = [line.strip() for line in kernel.artifact.launch["assembly"].splitlines() if not line.strip().startswith(";")]
    barriers = [n for n, line in enumerate(before) if line == "s_barrier"]
    assert barriers
    assert all("lgkmcnt(0)" in " ".join(before[n - 2 : n]) for n in barriers)


@pytest.mark.parametrize("chip", CHIPS)
def test_lanes_exchange_values_by_the_size_of_a_wave(chip: str) -> None:
    """A reduction that lanes of a wave share, on waves of 64 and of 32."""
    kernel = roller.compile(ops.reduce_sum(ops.tensor((33, 4097)), axes=(1,)), device=f"rocm:{chip}")
    assert kernel.artifact.launch["kernels"]
    trial.verify(kernel.artifact, kernel.expr, emulate=True)


def test_the_same_program_gives_the_same_text() -> None:
    spec = load_spec("rocm:mi210")
    program = best(gemm(96, 96, 96), spec)
    first, second = (generator.generate(spec, program) for _ in range(2))
    assert first.text == second.text
    assert "0x5" not in re.sub(r"0x[0-9A-F]{16}", "", first.text)  # no address of the compiling process


# --- errors -------------------------------------------------------------------------------------------------------------


def other_arch(arch: str) -> HardwareSpec:
    spec = load_spec("rocm:mi210")
    return spec.model_copy(update={"options": FrozenMap({**spec.options, "arch": arch})})


def test_an_unknown_architecture_is_an_error_and_not_the_end() -> None:
    with pytest.raises(CodegenError, match="gfx999"):
        roller.compile(gemm(64, 64, 64), device="rocm", spec=other_arch("gfx999"))
    with pytest.raises(CodegenError, match="not an architecture of LLVM"):
        roller.compile(gemm(64, 64, 64), device="rocm", spec=other_arch("sm_80"))
    assert roller.compile(gemm(64, 64, 64), device="rocm:mi210").artifact.data


def test_an_instruction_that_the_chip_lacks_is_an_error_and_not_the_end() -> None:
    """LLVM ends the process on it: that is the worker's."""
    spec = load_spec("rocm:mi300x")
    wrong = replace_atom(spec, "mfma_m16n16k32_s8", "mfma_m16n16k16_s8", 16)
    with pytest.raises(CodegenError, match=r"LLVM: .*"):
        roller.compile(gemm(64, 64, 64, "int8"), device="rocm", spec=wrong)
    assert roller.compile(gemm(64, 64, 64, "int8"), device="rocm:mi300x").artifact.data


def replace_atom(spec: HardwareSpec, name: str, other: str, k: int) -> HardwareSpec:
    (atom,) = (a for a in spec.atoms if a.name == name)
    changed = atom.model_copy(update={"name": other, "roles": FrozenMap({**atom.roles, "k": k})})
    return with_atoms(spec, (changed,))


def test_another_language_is_refused() -> None:
    with pytest.raises(CodegenError, match=r"llvm-ir, not c"):
        compiling.build(load_spec("rocm:mi50"), KernelSource("", "c", "f", {"kernels": []}))


def test_ir_that_llvm_does_not_read_is_refused() -> None:
    spec = load_spec("rocm:mi50")
    program = best(gemm(32, 32, 32), spec)
    source = generator.generate(spec, program)
    with pytest.raises(CodegenError, match="LLVM refuses"):
        compiling.build(spec, replace(source, text=source.text.replace("ret void", "return")))


def test_without_a_linker_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(linkers, "_found", lambda: None)
    with pytest.raises(DeviceUnavailableError, match=r"roller-compiler\[rocm\]"):
        compiling.linked(b"")
    assert linkers.problems()
    monkeypatch.setenv(linkers.LINKER, str(tmp_path / "none"))
    with pytest.raises(CodegenError, match=r"must name an ld\.lld"):
        compiling.linked(b"")
    assert "no program" in linkers.problems()[0]
    monkeypatch.setattr("roller.pipeline.rated_ways", None)
    with pytest.raises(DeviceUnavailableError, match="no program"):  # before anything is constructed
        roller.compile(gemm(64, 64, 64), device="rocm:mi100")


def test_an_object_that_is_none_is_refused_by_the_linker() -> None:
    with pytest.raises(CodegenError, match="the linker refused"):
        compiling.linked(b"not an object")


def test_errors_of_tvm_are_told_as_ours() -> None:
    with pytest.raises(CodegenError, match="of TVM's"):
        llvm_worker.run(_raising)


def _raising() -> None:
    raise RuntimeError("of TVM's")


def test_llvm_is_quoted_where_it_ends_the_process() -> None:
    with pytest.raises(CodegenError, match=r"^LLVM: LLVM ERROR: no such register$"):
        llvm_worker.run(_ending, "TVM finds no device\nLLVM ERROR: no such register\nStack dump:\n")
    with pytest.raises(CodegenError, match=r"^LLVM: .*SIGABRT$"):
        llvm_worker.run(_ending, "TVM finds no device\n")


def _ending(words: str) -> None:
    os.write(2, words.encode())
    os.abort()


def test_too_many_lanes_and_too_much_local_memory_are_refused() -> None:
    spec = load_spec("rocm:mi210")
    less = spec.model_copy(
        update={"levels": tuple(v.model_copy(update={"capacity_bytes": 4096}) if v.banks else v for v in spec.levels)}
    )
    programs = [c.program for c in roller.compile(gemm(512, 512, 512), device="rocm", spec=spec).candidates]
    assert "local memory" in {broken[0] for p in programs if (broken := limits.refusal(less, p)) is not None}
    few = spec.model_copy(update={"unit": spec.unit.model_copy(update={"lanes_max": 64})})
    assert "lanes" in {broken[0] for p in programs if (broken := limits.refusal(few, p)) is not None}
