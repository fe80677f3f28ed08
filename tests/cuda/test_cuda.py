"""The CUDA device without a GPU: kernels are compiled to machine code, and run on the emulator against the reference."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, note
from hypothesis import strategies as st
from typer.testing import CliRunner

import roller
from emulating import emulated, expression, needs_compiler, needs_cxx, text_of
from random_operators import operators, random_examples
from roller import ops, verify
from roller.cli.app import app
from roller.device.chip import load_spec
from roller.device.plugins import load_device
from roller.errors import CodegenError, ConstructionError, DeviceUnavailableError, ExpressionError, LaunchError, WrongResultError
from roller.ir.expr import TensorExpr
from roller.runtime.artifact import Artifact, KernelSource
from roller.search.construct import construct
from roller.testing import DeviceContract
from roller_cuda.codegen import generator, limits
from roller_cuda.emulator import emulator
from roller_cuda.runtime import runner
from roller_cuda.toolchain import compiling

CHIPS = ("v100-pcie", "a100", "rtx4090", "h100")
MOST_THREADS, MOST_POINTS = (
    100_000,
    600,
)  # of a random program: the emulator runs thread after thread, every point is a line of text


@needs_compiler
@needs_cxx
class TestCuda(DeviceContract):
    device = "cuda"
    chips = CHIPS


def gemm(m: int, n: int, k: int, dtype: str = "float32") -> ops.SymbolicTensor:
    return ops.matmul(ops.tensor((m, k), dtype, name="a"), ops.tensor((k, n), dtype, name="b"))


# --- numbers ---------------------------------------------------------------------------------------------------------


def random_kernel(data: st.DataObject) -> None:
    """One operator with one program drawn from all that fit, in one order of threads."""
    try:
        op = data.draw(operators())
        expr = expression(op)
    except ExpressionError:
        assume(False)
        return
    assume(expr.output.elements > 0)
    spec = load_spec(f"cuda:{data.draw(st.sampled_from(('v100-pcie', 'a100', 'k80')))}")
    try:
        (program,) = roller.enumerate_programs(op, "cuda", spec=spec).sample(1, seed=data.draw(st.integers(0, 10**6)))
    except ConstructionError:
        assume(False)
        return
    threads = math.prod(math.prod(lp.trips for lp in s.loops if lp.over != "time") for s in program.stages)
    assume(limits.refusal(spec, program) is None)
    assume(threads <= MOST_THREADS and max(math.prod(s.inner) for s in program.stages) <= MOST_POINTS)
    note(f"{spec.chip}: {program.describe()}")
    arrays = verify.random_inputs(expr, data.draw(st.integers(0, 99)), integer=data.draw(st.booleans()))
    verify.check(expr, arrays, emulated(expr, text_of(spec, program), arrays, data.draw(st.booleans())))


@needs_cxx
@pytest.mark.parametrize("part", [0, 1, 2, 3])  # side by side where several processes test
def test_random_programs_are_right(part: int) -> None:
    random_examples(random_kernel, part, 10)


@needs_cxx
@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs_are_right(part: int) -> None:
    random_examples(random_kernel, 100 + part, 150)


@needs_cxx
def test_ragged_tiles_move_back_instead_of_being_guarded() -> None:
    """Extents that no tile divides: the last block overlaps the one before, and no store is conditional."""
    op = gemm(131, 67, 45)
    expr, spec = expression(op), load_spec("cuda:v100-pcie")
    kernel = roller.compile(op, device="cuda", spec=spec)
    artifact = text_of(spec, kernel.program)
    arrays = verify.random_inputs(expr, 3)
    verify.check(expr, arrays, emulated(expr, artifact, arrays))
    assert "min(" in str(artifact.launch["text"])


@needs_cxx
@pytest.mark.parametrize("backwards", [False, True])
def test_results_do_not_depend_on_the_order_of_threads(backwards: bool) -> None:
    """Lanes that share a reduction, within a warp and beyond it, and one that is cut over blocks."""
    for op in (
        ops.reduce_sum(ops.tensor((7, 700), name="x"), 1),
        ops.reduce_max(ops.tensor((3, 40), name="x"), 1),
        gemm(4, 8, 3000),
    ):
        expr, spec = expression(op), load_spec("cuda:a100")
        arrays = verify.random_inputs(expr, 1, integer=True)
        for choice in roller.compile(op, device="cuda", spec=spec, top_k=3).candidates:
            verify.check(expr, arrays, emulated(expr, text_of(spec, choice.program), arrays, backwards))


# --- the emulator catches what is wrong ------------------------------------------------------------------------------


def tampered(artifact: Artifact, text: str) -> Artifact:
    return replace(artifact, launch={**artifact.launch, "text": text})


def steps() -> tuple[TensorExpr, Artifact]:
    """A product whose panels are filled several times."""
    op = gemm(64, 64, 512)
    spec = load_spec("cuda:v100-pcie")
    for choice in roller.compile(op, device="cuda", spec=spec, top_k=80).candidates:
        (stage,) = choice.program.stages
        again = any(lp.over == "time" and lp.level == stage.levels[0] for lp in stage.loops)
        if again and len(stage.staged) == 2 and not stage.cooperate:
            return expression(op), text_of(spec, choice.program)
    raise AssertionError("no candidate fills its panels more than once")


@needs_cxx
def test_every_missing_barrier_is_caught() -> None:
    """In one order of threads or the other: a value is read before it is written, or overwritten before it is read."""
    expr, artifact = steps()
    text, barrier = str(artifact.launch["text"]), "__syncthreads();"
    arrays = verify.random_inputs(expr, 5, integer=True)
    places = [i for i in range(len(text)) if text.startswith(barrier, i)]
    assert places
    for place in places:
        without = tampered(artifact, text[:place] + text[place + len(barrier) :])
        caught = 0
        for backwards in (False, True):
            try:
                verify.check(expr, arrays, emulated(expr, without, arrays, backwards))
            except WrongResultError:
                caught += 1
        assert caught, f"barrier at {place} is not missed"


@needs_cxx
def test_a_barrier_that_some_threads_never_reach_is_reported() -> None:
    expr, artifact = steps()
    text = str(artifact.launch["text"]).replace("__syncthreads();", "if (threadIdx.x != 1) __syncthreads();", 1)
    with pytest.raises(LaunchError, match="threads wait for one that never comes"):
        emulated(expr, tampered(artifact, text), verify.random_inputs(expr, 0))


@needs_cxx
def test_writing_behind_the_shared_memory_that_was_asked_for_is_reported() -> None:
    expr, artifact = steps()
    (kernel,) = artifact.launch["kernels"]
    short = {**artifact.launch, "kernels": [{**kernel, "shared_bytes": kernel["shared_bytes"] - 64}]}
    with pytest.raises(LaunchError, match="writes behind the shared memory that it is launched with"):
        emulated(expr, replace(artifact, launch=short), verify.random_inputs(expr, 0))


@needs_cxx
def test_shared_memory_is_full_of_nan_before_each_block() -> None:
    """A panel that is read without having been filled does not look right by chance."""
    expr, artifact = steps()
    text = str(artifact.launch["text"])
    (line, *_) = re.findall(r"^ +[^=\n]*buf_dyn_shmem[^=\n]*= [^\n]*;", text, re.MULTILINE)  # a store, no view of a panel
    assert "near" not in line
    arrays = verify.random_inputs(expr, 2)
    with pytest.raises(WrongResultError):
        verify.check(expr, arrays, emulated(expr, tampered(artifact, text.replace(line, "\n;", 1)), arrays))


@pytest.mark.one_in(4)
@needs_cxx
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("sizes", [(64, 64, 0), (0, 64, 64), (64, 0, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_without_elements(chip: str, sizes: tuple[int, int, int], dtype: str) -> None:
    """Of the best program: sums of nothing are 0."""
    m, n, k = sizes
    spec, expr = load_spec(f"cuda:{chip}"), expression(ops.matmul(ops.tensor((m, k), dtype), ops.tensor((k, n), dtype)))
    device = load_device("cuda")
    (best,) = construct(expr, spec, device.rules(spec, expr), device.cost_parameters(spec, expr), 1)
    arrays = verify.random_inputs(expr, 1)
    verify.check(expr, arrays, emulated(expr, text_of(spec, best.program), arrays))


# --- what the compiler says ------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@needs_compiler
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    "op",
    [
        gemm(1024, 1024, 1024),
        ops.conv2d(ops.tensor((8, 64, 28, 28)), ops.tensor((64, 64, 3, 3)), padding=1),
        ops.reduce_sum(ops.tensor((4096, 4096)), 1),
        ops.gelu(ops.tensor((1024, 1024))),
        ops.max_pool2d(ops.tensor((8, 64, 56, 56)), 3, stride=2, padding=1),
        ops.transpose(ops.tensor((1024, 1024))),
    ],
    ids=["gemm", "conv", "sum", "gelu", "pool", "transpose"],
)
def test_nothing_is_spilled(chip: str, op: ops.SymbolicTensor) -> None:
    """And what the assembler reports comes with the artifact."""
    resources = roller.compile(op, device=f"cuda:{chip}").artifact.resources
    assert resources
    assert all(value == 0 for name, value in resources.items() if name.endswith(("spilled_bytes", "stack_bytes")))
    assert all(0 < value < 256 for name, value in resources.items() if name.endswith("registers"))


@needs_compiler
@pytest.mark.parametrize("chip", [chip for chip in CHIPS if "v100" not in chip])
def test_explanations_tell_how_kernels_are_launched(chip: str) -> None:
    """And what the copies of all panels occupy is what a block takes, where copies run by themselves."""
    kernel = roller.compile(gemm(1024, 1024, 1024), device=f"cuda:{chip}")
    (launched,) = kernel.artifact.launch["kernels"]
    told = kernel.explain().to_dict()
    (about,) = told["kernels"]
    for what in ("name", "blocks", "threads", "shared_bytes"):
        assert about[what] == launched[what]
    assert about["registers"] == kernel.artifact.resources["stage0_kernel.registers"]
    (stage,) = told["stages"]
    (shared,) = [level for level in stage["levels"] if level["level"] == "shared"]
    wanted, real = stage["copies"]
    assert wanted == real > 1 and abs(shared["footprint_bytes"] - launched["shared_bytes"]) < 128
    size, order = f"{launched['blocks']} x {launched['threads']} threads", ", ".join(launched["arguments"])
    above = f"// launched with {size}, {launched['shared_bytes']} bytes of dynamic shared memory; arguments: {order}\nextern"
    assert above in kernel.source
    line = f"stage0_kernel: {launched['blocks']} blocks of {launched['threads']} threads, "
    assert line in str(kernel.explain()) and "the kernel has" not in str(kernel.explain())


@needs_compiler
def test_explanations_tell_of_copies_for_which_lanes_lack_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of halves in rows of no whole accesses: no copy of them runs by itself, lanes carry two at a time.

    The device does not say so here before the kernel is built.
    """
    monkeypatch.setattr(limits, "copies", lambda spec, program: 9)
    a, b = ops.tensor((777, 1001), "float16"), ops.tensor((129, 1001), "float16")
    kernel = roller.compile(ops.matmul(a, b, transpose_b=True), device="cuda:a100")
    stage = kernel.explain().to_dict()["stages"][-1]
    predicted, real = stage["copies"]
    assert predicted > real == 2
    assert f"pipeline stages: {predicted} predicted, the kernel has 2" in str(kernel.explain())


def test_operands_are_read_with_wide_accesses() -> None:
    kernel = roller.compile(gemm(4096, 4096, 4096), device="cuda:a100")
    text = generator.generate(kernel.spec, kernel.program).text
    hot = text[text.rindex("for (int", 0, text.index("acc_ptr[1] = (acc_ptr[1] +")) :]
    assert "*(float4*)(panel0_held_ptr" in hot
    assert "*(float4*)(panel1_held_ptr" in hot
    assert " / " not in hot[: hot.index("result_ptr")]
    assert " % " not in hot[: hot.index("result_ptr")]


@needs_compiler
def test_a_compilers_complaint_comes_with_its_line() -> None:
    source = KernelSource(
        'extern "C" __global__ void broken(float *x) {\n  x[0] = nonsense;\n}\n', "cuda-c++", "broken", {"kernels": [{}]}
    )
    with pytest.raises(CodegenError) as caught:
        compiling.build(load_spec("cuda:a100"), source)
    assert "nonsense" in str(caught.value)
    assert "x[0] = nonsense;" in str(caught.value).splitlines()[-1]


def test_an_architecture_of_another_capability_is_refused() -> None:
    """What a chip's kernels use its architecture would not have: an assembler's complaint about each instruction."""
    spec = load_spec("cuda:a100")
    strange = spec.model_copy(update={"options": {**spec.options, "arch": "sm_75"}})
    with pytest.raises(CodegenError, match=r"cuda:a100: options.arch says sm_75, options.compute_capability 8\.0; kernels"):
        compiling.build(strange, generator.generate(spec, roller.compile(gemm(8, 8, 8), device="cuda:a100").program))


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_20", "sm_999", "pentium", ""])
def test_an_architecture_that_the_compiler_lacks_is_refused(arch: str) -> None:
    spec = load_spec("cuda:a100")
    capability = (int(arch[3:-1]), int(arch[-1])) if arch.startswith("sm_") else (8, 0)
    strange = spec.model_copy(update={"options": {**spec.options, "arch": arch, "compute_capability": capability}})
    source = generator.generate(spec, roller.compile(gemm(8, 8, 8), device="cuda:a100").program)
    with pytest.raises(CodegenError, match=arch or "architecture"):
        compiling.build(strange, source)


def test_a_compiler_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.COMPILER, "/nowhere/nvcc")
    assert compiling.problems() == (f"{compiling.COMPILER} names '/nowhere/nvcc', which is no program",)
    for command in ("/nowhere/nvcc", "true"):  # nothing that can be started, and what does nothing and says nothing
        monkeypatch.setenv(compiling.COMPILER, command)
        with pytest.raises(CodegenError, match="must name an nvcc"):
            compiling.compiled("// no kernel", "sm_80")


def test_a_chip_that_the_compiler_lacks_is_refused_before_anything_is_constructed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An nvcc of a toolkit that has dropped the chip."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho sm_75\necho sm_80\n", encoding="utf-8")
    nvcc.chmod(0o755)
    monkeypatch.setenv(compiling.COMPILER, str(nvcc))
    monkeypatch.setattr("roller.pipeline.rated_ways", None)
    said = f"{nvcc} does not compile for sm_70, only for sm_75, sm_80; name an nvcc that does in {compiling.COMPILER}"
    with pytest.raises(DeviceUnavailableError) as refused:
        roller.compile(gemm(64, 64, 64), device="cuda:v100")
    assert str(refused.value) == said
    assert compiling.build_problem(load_spec("cuda:a100")) is None


LACKING = """
import cuda.pathfinder

def missing(name):
    raise cuda.pathfinder.DynamicLibNotFoundError(f"no {name} here\\n  looked everywhere")

cuda.pathfinder.load_nvidia_dynamic_lib = missing
import roller
from roller import ops
from roller_cuda.toolchain import compiling

assert compiling.problems() and compiling.INSTALL in compiling.problems()[0], compiling.problems()
try:
    roller.compile(ops.relu(ops.tensor((8,))), device="cuda:a100")
except roller.RollerError as error:
    print(f"{type(error).__name__}: {error}")
"""


@needs_compiler
@pytest.mark.skipif(not compiling.has_bindings(), reason="cuda-bindings are not installed")
def test_bindings_without_the_library_of_the_compiler_say_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", LACKING], capture_output=True, text=True, check=False)
    said = f"DeviceUnavailableError: no NVRTC library: {compiling.INSTALL}, or name an nvcc in {compiling.COMPILER} (no nvrtc here)"
    assert done.stdout.strip() == said, done.stderr


def test_programs_that_need_more_shared_memory_than_there_is_are_refused() -> None:
    kernel = roller.compile(gemm(512, 512, 512), device="cuda:a100")
    shared = kernel.spec.level("shared")
    small = shared.model_copy(update={"capacity_bytes": 4096, "reserved_bytes": 0, "tile_max_bytes": 4096})
    spec = kernel.spec.model_copy(update={"levels": tuple(small if lv.name == "shared" else lv for lv in kernel.spec.levels)})
    refused = limits.refusal(spec, kernel.program)
    assert refused is not None
    assert refused[0] == "shared memory"
    with pytest.raises(CodegenError, match="shared memory"):
        generator.generate(spec, kernel.program)


# --- a machine without a GPU -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not runner.problems(), reason="a GPU is attached")
@needs_compiler
def test_without_a_gpu_the_first_call_says_so() -> None:
    kernel = roller.compile(gemm(8, 8, 8), device="cuda")
    with pytest.raises(DeviceUnavailableError):
        kernel(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))
    assert kernel.spec.chip == "a100"


@pytest.mark.skipif(not runner.problems(), reason="a GPU is attached")
@needs_compiler
def test_without_a_gpu_timing_says_so_too() -> None:
    """The programs are timed in a process of their own: what went wrong there must not be lost."""
    with pytest.raises(DeviceUnavailableError):
        roller.compile(gemm(8, 8, 8), device="cuda", measure=True, top_k=2)
    done = CliRunner().invoke(app, ["bench", "relu", "8", "--device", "cuda"])
    assert done.exit_code
    assert "DeviceUnavailableError" in done.stderr


def test_artifacts_of_other_devices_are_refused() -> None:
    kernel = roller.compile(gemm(8, 8, 8), device="cpu")
    with pytest.raises(LaunchError, match="runs cubin"):
        emulator.Emulator(kernel.artifact)


def test_the_text_names_no_chip() -> None:
    """Programs alike give texts alike: the architecture is the compiler's business."""
    kernel = roller.compile(gemm(64, 64, 64), device="cuda:a100")
    assert len({generator.generate(load_spec(f"cuda:{chip}"), kernel.program).text for chip in ("a100", "h100")}) == 1
