import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tvm

import roller
from roller import ops
from roller.errors import CodegenError, DeviceUnavailableError, LaunchError
from roller.runtime.arrays import aligned_empty
from roller.runtime.artifact import KernelSource
from roller.target.catalog import find_spec
from roller_cpu.chip import instructions, threads
from roller_cpu.codegen import generator
from roller_cpu.runtime.runner import CpuRunner
from roller_cpu.toolchain import compiling, pins, processors

SPEC = find_spec("cpu", "x86-64-v3")
SCRIPT = """
# from tvm.script import ir as I, tirx as T
@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((1024,), "{dtype}"), P: T.Buffer((1024,), "{dtype}"), C: T.Buffer((1024,), "{dtype}")):
        for i in T.parallel(1024):
            C[i] = A[i] + P[i]
    @T.prim_func
    def prepack(W: T.Buffer((1024,), "{dtype}"), P: T.Buffer((1024,), "{dtype}")):
        for i in T.serial(1024):
            P[i] = W[1023 - i]
"""


def source(dtype="float32", mcpu="x86-64-v3"):
    module = tvm.script.from_source(SCRIPT.format(dtype=dtype))
    text = tvm.compile(module, target={"kind": "llvm", "mcpu": mcpu}).mod.inspect_source("ll")
    described = {"name": "A", "shape": [32, 32], "dtype": dtype}
    launch = {
        "inputs": [described],
        "constants": [{**described, "name": "W"}],
        "panels": [{"name": "P", "elements": 1024, "dtype": dtype}],
        "output": {**described, "name": "C"},
        "threads": 2,
    }
    return KernelSource(text, "llvm-ir", "main", launch)


@pytest.fixture(scope="module")
def artifact():
    weights = np.arange(1024, dtype=np.float32)
    return replace(compiling.build(SPEC, source()), constants={"W": weights.tobytes()})


def filled(dtype, value):
    array = aligned_empty((32, 32), np.dtype(dtype))
    array[...] = value
    return array


def test_prepacked_constants_and_inputs(artifact):
    runner = CpuRunner(artifact)
    out = filled(np.float32, np.nan)
    frozen = filled(np.float32, 1)
    frozen.flags.writeable = False
    for _ in range(2):
        runner.run((frozen,), out)
        assert np.array_equal(out.reshape(-1), 1 + np.arange(1024, dtype=np.float32)[::-1])
    runner.close()


@pytest.mark.parametrize("dtype", ["float64", "int8", "int32", "uint8", "bfloat16", "float16"])
def test_every_element_type_crosses(dtype):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    weights = (np.arange(1024) % 8).astype(kind)
    built = replace(compiling.build(SPEC, source(dtype)), constants={"W": weights.tobytes()})
    out = filled(kind, 0)
    CpuRunner(built).run((filled(kind, 3),), out)
    assert np.array_equal(out.reshape(-1), weights[::-1] + kind.type(3))


def test_many_callers_at_once(artifact):
    runner = CpuRunner(artifact)

    def call(value):
        out = filled(np.float32, np.nan)
        for _ in range(50):
            runner.run((filled(np.float32, value),), out)
        return np.array_equal(out.reshape(-1), value + np.arange(1024, dtype=np.float32)[::-1])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(8)))


def test_missing_or_short_constants(artifact):
    for constants in ({}, {"W": b"123"}):
        with pytest.raises(LaunchError, match="values of the constant 'W'"):
            CpuRunner(replace(artifact, constants=constants))


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"format": "cubin"}, LaunchError, "runs x86-64-image and llvm-ir, not cubin"),
        ({"versions": {"apache-tvm": "9"}}, DeviceUnavailableError, "built with apache-tvm 9, here is 0.27"),
        ({"launch": {"inputs": (), "output": {"shape": (), "dtype": "int8"}}}, LaunchError, "does not match its checksum"),
        ({"data": b"nothing"}, LaunchError, "does not match its checksum"),
        ({"data": b""}, LaunchError, "does not match its checksum"),
    ],
)
def test_artifacts_that_cannot_run(artifact, changes, error, said):
    with pytest.raises(error, match=said):
        CpuRunner(replace(artifact, **changes))


def test_kernels_for_other_processors_are_refused(artifact, monkeypatch):
    other = replace(artifact, launch={**artifact.launch, "processor": "granite", "requires": ("avx2", "granite", "sve")})
    with pytest.raises(DeviceUnavailableError, match="is for granite; this processor lacks granite, sve"):
        CpuRunner(other)
    assert "avx2" in artifact.launch["requires"] and artifact.launch["processor"] == "x86-64-v3"
    monkeypatch.setattr(instructions, "_listed", lambda: frozenset({"avx"}))
    CpuRunner(artifact)  # a list that is short: the processor itself is asked
    monkeypatch.setattr(processors, "host_features", lambda: frozenset({"avx"}))
    with pytest.raises(DeviceUnavailableError, match="is for x86-64-v3; this processor lacks avx2"):
        CpuRunner(artifact)
    with pytest.raises(CodegenError, match="no processor 'znver99'"):
        compiling.load_module(artifact.source.replace("x86-64-v3", "znver99"))


@pytest.mark.parametrize("text", ["", "define", "target triple"])
def test_ir_that_does_not_parse(text):
    with pytest.raises(CodegenError):
        compiling.build(SPEC, KernelSource(text, "llvm-ir", "main", {}))
    with pytest.raises(CodegenError, match="takes llvm-ir, not c"):
        compiling.build(SPEC, KernelSource(text, "c", "main", {}))


def test_other_versions_of_tvm_are_named(monkeypatch, artifact):
    pins.problems.cache_clear()
    monkeypatch.setattr(pins, "installed", lambda package: "0.1.15" if package.endswith("ffi") else "0.27.0.post1")
    (line,) = pins.problems()
    assert line == "apache-tvm-ffi 0.1.15 is installed, but 0.1.14.post1 is needed: pip install apache-tvm-ffi==0.1.14.post1"
    with pytest.raises(DeviceUnavailableError, match=r"0\.1\.14\.post1 is needed"):
        CpuRunner(artifact)
    pins.problems.cache_clear()
    monkeypatch.undo()
    assert pins.problems() == ()


def test_another_version_of_tvm_is_named_before_it_is_used(monkeypatch):
    """It might fail in any way, or take the process along."""
    monkeypatch.setattr(pins, "problems", lambda: ("apache-tvm 9.9 is installed, but another is needed",))
    monkeypatch.setattr(generator, "generate", lambda *_: pytest.fail("TVM was asked to generate"))
    with pytest.raises(CodegenError, match=r"apache-tvm 9\.9 is installed, but"):
        roller.compile(ops.relu(roller.tensor((8,))), "cpu:zen3")


def test_the_same_kernel_is_the_same_text():
    assert compiling.build(SPEC, source()).data == compiling.build(SPEC, source()).data


# --- assembly --------------------------------------------------------------------------------------------------------

ASSEMBLY = """
main:
\tpushq\t%rbx
.LBB0_1:
\tvmovups\t%ymm0, 32(%rsp)
\txorl\t%eax, %eax
.LBB0_2:
\tvfmadd231ps\t(%rdi), %ymm1, %ymm2
\tvfmadd231ps\t64(%rsp), %ymm1, %ymm3
\tvmovaps\t%ymm3, 96(%rsp)
\tmovq\t8(%rsp), %rax
\tjne\t.LBB0_2
\tvfmadd231ss\t(%rdi), %xmm1, %xmm2
\tjl\t.LBB0_1
.LBB0_3:
\tvaddps\t%ymm1, %ymm2, %ymm2
\tjne\t.LBB0_3
\tretq
"""


def test_resources_are_those_of_the_hottest_loop():
    assert compiling.resources(ASSEMBLY) == {
        "instructions": 13, "vector_fma": 2, "hot_loop_fma": 2, "hot_loop_stores": 1, "spills": 2,
    }  # fmt: skip
    assert compiling.resources("") == {"instructions": 0, "vector_fma": 0, "hot_loop_fma": 0, "hot_loop_stores": 0, "spills": 0}


def test_narrow_vectors_on_the_stack_are_addresses_not_spills():
    wide = ASSEMBLY.replace("\tmovq\t8(%rsp), %rax", "\tvpaddd\t80(%rsp), %xmm0, %xmm0\n\tmovq\t8(%rbp), %rax")
    assert compiling.resources(wide)["spills"] == 2
    assert compiling.resources(wide.replace("%ymm", "%xmm"))["spills"] == 3


def test_assembly_needs_no_compiler(monkeypatch, artifact):
    monkeypatch.setenv("PATH", "")
    text = compiling.assembly(artifact.source)
    assert "__tvm_ffi_main" in text and ".loc" not in text and "debug" not in text
    kernel = roller.compile(ops.matmul(roller.tensor((32, 32)), roller.tensor((32, 32))), "cpu:x86-64-v3")
    assert "vfmadd" in kernel.assembly and kernel.artifact.resources["vector_fma"] > 0
    assert "define" in kernel.source


# --- threads ---------------------------------------------------------------------------------------------------------


def test_thread_counts(monkeypatch):
    monkeypatch.setenv("ROLLER_NUM_THREADS", " 3 ")
    assert threads.default_threads() == 3
    monkeypatch.setenv("ROLLER_NUM_THREADS", "")
    assert threads.default_threads() == threads.available_cores()
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("ROLLER_NUM_THREADS", wrong)
        with pytest.raises(LaunchError, match="not a positive number"):
            threads.default_threads()


def test_the_variable_limits_kernels(monkeypatch, artifact):
    monkeypatch.setenv("ROLLER_NUM_THREADS", "1")
    assert CpuRunner(artifact).threads == 1


def test_guard_bytes_and_every_layout_end_to_end():
    x, w = roller.tensor((5, 17), name="x"), roller.tensor((17, 9), name="w")
    kernel = roller.compile(ops.relu(ops.matmul(x, w)), "cpu:x86-64-v3", threads=1)
    generator = np.random.default_rng(1)
    a, b = generator.integers(-4, 5, (5, 17)).astype("f4"), generator.integers(-4, 5, (17, 9)).astype("f4")
    expected = np.maximum(a @ b, 0)
    for offset in (0, 4, 16, 20, 60):
        raw = aligned_empty((5 * 9 * 4 + 256,), np.dtype(np.uint8))
        raw[...] = 0xFB
        out = np.ndarray((5, 9), np.float32, raw, 64 + offset)
        kernel(np.asfortranarray(a), b[::-1].copy()[::-1], out=out)
        assert np.array_equal(out, expected)
        assert (raw[: 64 + offset] == 0xFB).all() and (raw[64 + offset + out.nbytes :] == 0xFB).all()


def test_calls_from_a_new_thread():
    kernel = roller.compile(roller.tensor((8,), name="x") + 1, "cpu:x86-64-v3")
    results = []
    thread = threading.Thread(target=lambda: results.append(kernel(np.ones(8, "f4"))))
    thread.start()
    thread.join()
    assert np.array_equal(results[0], np.full(8, 2, "f4"))
