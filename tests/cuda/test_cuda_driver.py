"""What the CUDA driver refuses, what GPUs cannot do, tensor maps and clusters; without a GPU."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import roller
from emulating import needs_compiler, needs_cxx
from fake_arrays import Array, Namespaced
from fake_gpu import Gpus, changed, kernel, why_not
from gpu_runtime import A, values
from roller import verify
from roller.device.chip import load_spec
from roller.errors import DeviceUnavailableError, KernelError, LaunchError
from roller_cuda.chip import default
from roller_cuda.runtime import driver, runner
from roller_cuda.runtime.tensor_maps import TensorMap

pytestmark = [needs_compiler, needs_cxx, pytest.mark.skipif(bool(why_not()), reason=why_not())]
SMALL = (64, 3)


def status(name: str) -> int:
    return int(driver.constant(f"CUresult.CUDA_ERROR_{name}"))


# --- the driver refuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["UNSUPPORTED_PTX_VERSION", "NO_BINARY_FOR_GPU", "INVALID_IMAGE"])
def test_a_driver_too_old_for_the_cubin(gpus: Gpus, name: str) -> None:
    gpus.fail(b"cuLibraryLoadData", 0, status(name))
    with pytest.raises(DeviceUnavailableError, match=f"GPU 0: .*update the driver.*{name}"):
        kernel("constant", gpus)(values(A))
    gc.collect()
    assert gpus.live(0) == 0  # the constant that was there already is gone


def test_a_cubin_of_nobody(gpus: Gpus) -> None:
    with pytest.raises(DeviceUnavailableError, match="INVALID_IMAGE"):
        changed("small", data=b"not a cubin, but long enough to look whether it is one" * 2)(values(SMALL))


@pytest.mark.parametrize(("version", "told"), [(11080, "11.8"), (10010, "10.1")])
def test_a_driver_too_old_for_everything(gpus: Gpus, version: int, told: str) -> None:
    gpus.version(version)
    with pytest.raises(DeviceUnavailableError, match=f"CUDA {told}; kernels need 12.0 or newer: update it"):
        kernel("small", gpus)(values(SMALL))
    assert any(told in problem for problem in runner.problems())


def test_no_gpu(gpus: Gpus) -> None:
    gpus.reset(0, gpus._run)
    with pytest.raises(DeviceUnavailableError, match="finds no GPU"):
        kernel("small", gpus)(values(SMALL))
    assert runner.problems() and default.default_spec().chip == "a100"


def test_no_bindings(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    driver._bindings.cache_clear()
    assert "running on a GPU needs cuda-bindings: pip install" in runner.problems()[0]


@pytest.mark.parametrize("name", ["ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "LAUNCH_FAILED"])
def test_a_kernel_that_fails(gpus: Gpus, name: str) -> None:
    run = kernel("small", gpus).load()
    gpus.fail(b"cuStreamSynchronize", 0, status(name))
    with pytest.raises(LaunchError, match=f"start the process again .*{name}"):
        run(values(SMALL))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("cuMemcpyHtoDAsync", "UNKNOWN"),
        ("cuMemAllocFromPoolAsync", "INVALID_VALUE"),
        ("cuLaunchKernel", "LAUNCH_OUT_OF_RESOURCES"),
        ("cuMemcpyDtoHAsync", "UNKNOWN"),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_what_fails_on_the_way_leaves_nothing_behind(gpus: Gpus, function: str, name: str, after: int) -> None:
    run = kernel("sum", gpus).load()
    a = values((1 << 18,))
    gpus.fail(function.encode(), after, status(name))
    try:
        run(a)
        assert function in {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"}  # asked once only
    except LaunchError as error:
        assert function in str(error) and name in str(error)
    gpus.fail(function.encode(), 1 << 30, 0)
    gpus.settle()
    assert gpus.live(0) == 0
    verify.check(run.expr, {"a": a}, run(a))


@pytest.mark.parametrize("with_out", [False, True])
def test_arrays_are_kept_for_the_kernels_before_one_that_does_not_start(gpus: Gpus, with_out: bool) -> None:
    """The first of two kernels waits on the stream: it reads its input after the call has failed."""
    run = kernel("sum", gpus).load()
    a, out = Namespaced(gpus, np.ones(1 << 18, np.float32)), Namespaced(gpus, np.ones((), np.float32))
    out.shape = ()
    gpus.fail(b"cuLaunchKernel", 1, status("LAUNCH_OUT_OF_RESOURCES"))
    with pytest.raises(LaunchError, match="LAUNCH_OUT_OF_RESOURCES"):
        run(a, out=out if with_out else None)
    assert gpus.pending() and (a.lent, out.lent) == (1, int(with_out))
    gpus.settle()
    run(a, out=out)
    gpus.settle()
    verify.check(run.expr, {"a": a.values()}, out.values())


def test_memory_that_runs_out(gpus: Gpus) -> None:
    run, a = kernel("small", gpus).load(), Array(gpus, values(SMALL))
    gpus.capacity(1024)
    with pytest.raises(LaunchError, match=r"768 bytes requested on GPU 0: the GPU's memory is full; free arrays .*OUT_OF_MEMORY"):
        run(a)
    assert "cuMemPoolTrimTo" in gpus.calls


def test_memory_that_waits_to_be_given_back_is_used(gpus: Gpus) -> None:
    """The results that were dropped fill the GPU until somebody waits."""
    run, a = kernel("small", gpus).load(), Array(gpus, values(SMALL))
    gpus.capacity(4 * 768)
    for _ in range(6):
        result = run(a)
        del result


@pytest.mark.parametrize(
    ("function", "name", "error"), [("cuMemAlloc", "OUT_OF_MEMORY", LaunchError), ("cuMemcpyHtoD", "UNKNOWN", LaunchError)]
)
def test_constants_that_find_no_room(gpus: Gpus, function: str, name: str, error: type[KernelError]) -> None:
    gpus.fail(function.encode(), 0, status(name))
    with pytest.raises(LaunchError, match=name):
        kernel("constant", gpus)(values(A))
    gc.collect()
    assert gpus.live(0) == 0


# --- what a GPU cannot do --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "value", "launch", "said"),
    [
        ("MAX_GRID_DIM_X", 0, {}, "blocks, GPU 0 has 0"),
        ("MAX_THREADS_PER_BLOCK", 16, {"threads": 32}, "32 threads a block, GPU 0 has 16"),
        (
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            1 << 10,
            {"shared_bytes": 1 << 11},
            "2048 bytes of shared memory a block",
        ),
        ("CLUSTER_LAUNCH", 0, {"cluster": 2, "blocks": 4}, "in clusters, which GPU 0 has not"),
        ("CLUSTER_LAUNCH", 1, {"cluster": 2, "blocks": 5}, "5 blocks .* in clusters of 2 cannot be launched"),
        ("CLUSTER_LAUNCH", 1, {"blocks": 0}, "0 blocks"),
        ("MAX_GRID_DIM_X", 2**31 - 1, {"blocks": 2**31}, "2147483648 blocks, GPU 0 has 2147483647"),
        ("MEMORY_POOLS_SUPPORTED", 0, {}, "no memory pools"),
    ],
)
def test_launches_past_limits(gpus: Gpus, attribute: str, value: int, launch: dict[str, int], said: str) -> None:
    run = kernel("small", gpus)
    gpus.become(0, load_spec("cuda:a100"), **{attribute: value})
    kernels = [{**run.artifact.launch["kernels"][0], **launch}]
    with pytest.raises(KernelError, match=said):
        changed("small", kernels=kernels)(values(SMALL))
    assert "cuLaunchKernel" not in gpus.calls


def test_static_shared_memory_counts(gpus: Gpus) -> None:
    run = kernel("small", gpus)
    gpus.plan(run.artifact, static_shared=201 << 10)
    with pytest.raises(LaunchError, match="204800 bytes of shared memory"):
        run(values(SMALL))


def test_what_the_system_reserves_does_not_count(gpus: Gpus) -> None:
    """A kernel with all the memory that a block may have, whose binary declares the system's share as its own."""
    run = kernel("small", gpus)
    spec = load_spec("cuda:a100")
    gpus.become(0, spec, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=1 << 10, RESERVED_SHARED_MEMORY_PER_BLOCK=1 << 10)
    gpus.plan(run.artifact, static_shared=1 << 10)
    kernels = [{**run.artifact.launch["kernels"][0], "shared_bytes": 1 << 10}]
    changed("small", kernels=kernels)(values(SMALL))
    assert "cuLaunchKernel" in gpus.calls


def test_much_shared_memory_is_asked_for(gpus: Gpus) -> None:
    run = kernel("small", gpus)
    described = {**run.artifact.launch["kernels"][0], "shared_bytes": 100 << 10}
    changed("small", kernels=[described])(values(SMALL))  # the driver refuses what was not asked for


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [("sm_80", "cuda:a100", True), ("sm_80", "cuda:rtx4090", True), ("sm_86", "cuda:a100", False), ("sm_90a", "cuda:a100", False)],
)
def test_cubins_run_on_later_chips_of_their_kind(gpus: Gpus, arch: str, capability: str, runs: bool) -> None:
    kernel("small", gpus)
    for number in range(2):
        gpus.become(number, load_spec(capability))
    other = changed("small", arch=arch)
    if runs:
        other(values(SMALL))
    else:
        with pytest.raises(DeviceUnavailableError, match=f"compiled for {arch}, GPU 0 is sm_80; compile it for the attached chip"):
            other(values(SMALL))


def test_another_gpu_may_run_what_the_first_cannot(gpus: Gpus) -> None:
    run = kernel("small", gpus)
    gpus.become(0, load_spec("cuda:v100-pcie"))
    there = Namespaced(gpus, values(SMALL), number=1)
    Namespaced.stream = gpus.new_stream(1)
    run(there)
    with pytest.raises(DeviceUnavailableError, match="GPU 0 is sm_70"):
        run(values(SMALL))
    with pytest.raises(DeviceUnavailableError, match="GPU 0 is sm_70"):
        run(Array(gpus, values(SMALL)))


def test_a_gpu_that_is_not_there(gpus: Gpus) -> None:
    a = Array(gpus, values(SMALL))
    a.number = 7
    with pytest.raises(LaunchError, match="GPU 7: this process has 2"):
        kernel("small", gpus)(a)


# --- the end ---------------------------------------------------------------------------------------------------------------


def test_closed_kernels(gpus: Gpus) -> None:
    run = kernel("constant", gpus)
    a = Namespaced(gpus, values(A))
    Namespaced.stream = gpus.new_stream()
    before = gpus.live(0)
    runner = run._loaded()
    result = run(a)
    runner.close()
    assert a.lent == 0  # nothing runs any more
    assert gpus.calls.count("cuLibraryUnload") == 1
    for arrays in (values(A), a):
        with pytest.raises(LaunchError, match="closed"):
            run(arrays)
    runner.close()
    del result
    gpus.settle()
    assert gpus.live(0) == before


def test_kernels_that_nobody_holds_give_everything_back(gpus: Gpus) -> None:
    run = kernel("constant", gpus).load()
    assert gpus.live(0) == 1
    del run
    gc.collect()
    assert gpus.live(0) == 0 and "cuLibraryUnload" in gpus.calls


def _in_child(run: roller.Kernel, answers: Any) -> None:
    try:
        run(values(SMALL))
        answers.send("ran")
    except LaunchError as error:
        answers.send(str(error))


def test_forked_processes_are_told(gpus: Gpus) -> None:
    run = kernel("small", gpus).load()
    mine, theirs = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of other tests may live, JAX's too
        child = os.fork()
    if not child:
        _in_child(run, theirs)
        os._exit(0)
    os.waitpid(child, 0)
    assert mine.poll(1) and "forked after CUDA was used" in mine.recv()
    run(values(SMALL))  # nothing changed here


# --- tensor maps and clusters ----------------------------------------------------------------------------------------------

MAP = {
    "tensor": "a",
    "dtype": "float16",
    "extents": [100, 70, 3],
    "strides_bytes": [208, 14560],
    "box": [64, 32, 1],
    "steps": [1, 1, 2],
    "swizzle_bytes": 128,
}


def test_tensor_maps_follow_their_array(gpus: Gpus) -> None:
    gpus.plan_by_hand("hand_kernel", "pmp")
    gpus.become(0, load_spec("cuda:h100"))
    described = {
        **{"name": "hand_kernel", "arguments": ["a", "of_a", "relu"], "maps": {"of_a": MAP}},
        **{"blocks": 32, "threads": 384, "shared_bytes": 200 << 10, "cluster": 16},
    }
    cubin = bytearray(changed("small").artifact.data)
    cubin[48] = 90  # it says that it is for compute capability 9.0
    run = changed("small", data=bytes(cubin), arch="sm_90a", kernels=[described])
    a, b = Array(gpus, values(SMALL)), Array(gpus, values(SMALL))
    for array, encoded in ((a, 1), (a, 1), (b, 2), (a, 3)):
        run(array)
        assert gpus.calls.count("cuTensorMapEncodeTiled") == encoded
    (kept,) = run._loaded()._runner._on[0]._kernels[0]._maps
    dimensions = "100 by - box 64 step 1 | 70 by 208 box 32 step 1 | 3 by 14560 box 1 step 2"
    assert gpus.map(kept.place).decode() == f"type 6 swizzle 3 interleave 0 promotion 3 fill 0 | {dimensions}"
    gpus.settle()
    assert gpus.calls.count("kernel hand_kernel cluster 16") == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"extents": [0, 70, 3]}, "extents"),
        ({"extents": [8] * 6}, "6 dimensions"),
        ({"strides_bytes": [208]}, "1 strides"),
        ({"strides_bytes": [200, 14560]}, "multiples of 16 bytes"),
        ({"box": [64, 257, 1]}, "1 to 256"),
        ({"box": [128, 32, 1]}, "at most 128 bytes"),
        ({"box": [7, 32, 1]}, "multiples of 16 bytes"),
        ({"steps": [1, 9, 1]}, "1 to 8"),
        ({"swizzle_bytes": 48}, "a swizzle of 48"),
        ({"dtype": "complex64"}, "complex64"),
    ],
)
def test_tensor_maps_that_cannot_be(gpus: Gpus, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        TensorMap("of_a", {**MAP, **wrong})


def test_tensor_maps_want_aligned_arrays(gpus: Gpus) -> None:
    gpus.become(0, load_spec("cuda:h100"))
    made = TensorMap("of_a", MAP)
    with pytest.raises(LaunchError, match="a: the array must start at a multiple of 16 bytes"):
        made.point(0x1008)
    gpus.fail(b"cuTensorMapEncodeTiled", 0, status("INVALID_VALUE"))
    with pytest.raises(LaunchError, match=r"'of_a' of a: .*cuTensorMapEncodeTiled says CUDA_ERROR_INVALID_VALUE"):
        made.point(0x1000)
    made.point(0x1000)
