"""What HIP's runtime refuses, what GPUs cannot do, and what is given back; without a GPU."""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from typing import Any

import numpy as np
import pytest

import roller
from fake_arrays import Array, Namespaced, Tensor
from fake_hip import AmdGpus, changed, kernel, rocm_torch, why_not
from gpu_runtime import SMALL, A, values
from roller import verify
from roller.device.chip import load_spec
from roller.errors import DeviceUnavailableError, KernelError, LaunchError
from roller_rocm.chip import default
from roller_rocm.runtime import gpu, hip, runner

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
WHOLE = 1 << 18


# --- there is no runtime, or none that works --------------------------------------------------------------------------------


def test_no_runtime(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hip.LIBRARY)
    monkeypatch.setattr(hip, "NAMES", ("libamdhip64-of-nobody.so",))
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    hip._library.cache_clear()
    (problem,) = runner.problems()
    assert problem.startswith("no ROCm runtime: install ROCm 5.2 or newer, or name its libamdhip64.so in ROLLER_ROCM_LIBRARY (")
    with pytest.raises(DeviceUnavailableError, match="no ROCm runtime"):
        kernel("small", amd)(values(SMALL))
    assert default.default_spec().chip == "mi300x"


def test_a_library_that_is_named_must_be_one(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hip.LIBRARY, __file__)
    hip._library.cache_clear()
    assert "no ROCm runtime" in runner.problems()[0] and __file__ in runner.problems()[0]


@pytest.mark.parametrize("there", ["lib", "elsewhere"])
def test_the_runtime_is_looked_for_where_rocm_is(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, there: str) -> None:
    """And one that is in the process already goes before all others."""
    (tmp_path / there).mkdir()
    place = tmp_path / there / "libamdhip64-test.so"
    place.symlink_to(amd.path)
    monkeypatch.delenv(hip.LIBRARY)
    monkeypatch.setattr(hip, "NAMES", ("libamdhip64-test.so",))
    if there == "lib":
        monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    else:
        monkeypatch.setattr(hip, "mapped", lambda: (str(place),))
    hip._library.cache_clear()
    assert hip._library()._name == str(place)


def test_copies_in_the_process_are_found(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    maps = "7f00-7f01 r-xp 00 08:01 1 {0}\n7f02-7f03 r--p 00 08:01 1 {0}\n7f04-7f05 r-xp 00 08:01 2 /usr/lib/libc.so.6\n"
    place = tmp_path / "libamdhip64.so.6.4.1"
    place.touch()
    monkeypatch.undo()
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: maps.format(place))
    assert hip.mapped() == (str(place),)


def test_two_copies_of_the_runtime_are_refused(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch brought its own after the first call: its addresses mean nothing to the other."""
    run = kernel("small", amd).load()
    rocm_torch(monkeypatch, amd)
    monkeypatch.setattr(hip, "mapped", lambda: ("/torch/lib/libamdhip64.so", "/usr/lib/libamdhip64.so.6"))
    with pytest.raises(LaunchError, match=r"several copies of HIP's runtime.*/torch/lib/libamdhip64.so, .* before the first call"):
        run(Tensor(amd, values(SMALL)))
    run(values(SMALL))  # arrays of the host have nothing to do with it


def test_no_gpu(amd: AmdGpus) -> None:
    amd.become_none()
    with pytest.raises(
        DeviceUnavailableError, match=r"finds no GPU; see rocminfo, .*/dev/kfd .*hipInit says hipErrorInvalidDevice"
    ):
        kernel("small", amd)(values(SMALL))
    assert runner.problems() and default.default_spec().chip == "mi300x"


@pytest.mark.parametrize(("version", "told"), [(50_120_531, "5.1"), (40_321_401, "4.3")])
def test_a_runtime_too_old_for_everything(amd: AmdGpus, version: int, told: str) -> None:
    amd.version(version)
    with pytest.raises(DeviceUnavailableError, match=f"this is HIP {told}; kernels need 5.2 or newer: update ROCm"):
        kernel("small", amd)(values(SMALL))
    assert any(told in problem for problem in runner.problems())


def test_the_kernel_module_may_be_too_old(amd: AmdGpus) -> None:
    amd.fail("hipInit", 0, "InsufficientDriver")
    assert "the kernel module amdgpu is too old for this ROCm" in runner.problems()[0]
    assert runner.problems() == ()


def test_runtimes_of_hip_5_say_the_architecture_elsewhere(amd: AmdGpus) -> None:
    amd.use("HIP5")
    amd.become_none(1)
    amd.version(50_221_153)
    assert gpu.gpu(0).arch == "gfx906" and not hip.has("hipGetDevicePropertiesR0600")
    run = kernel("small", amd)
    verify.check(run.expr, {"a": values(SMALL)}, run(values(SMALL)))


def test_a_function_that_is_not_there(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip, "_PROTOTYPES", {**hip._PROTOTYPES, "hipMemoryOfTomorrow": "p"})
    with pytest.raises(DeviceUnavailableError, match="ROCm's runtime has no hipMemoryOfTomorrow: update ROCm"):
        hip.call("hipMemoryOfTomorrow", 0)


def test_the_prototypes_are_those_of_all_calls(amd: AmdGpus) -> None:
    """The fake has each of them."""
    assert [name for name in hip._PROTOTYPES if not hip.has(name)] == []


# --- the runtime refuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NoBinaryForGpu", "InvalidImage", "SharedObjectInitFailed"])
def test_a_runtime_too_old_for_the_code_object(amd: AmdGpus, name: str) -> None:
    amd.fail("hipModuleLoadData", 0, name)
    with pytest.raises(DeviceUnavailableError, match=f"GPU 0: .*update ROCm.*{name}"):
        kernel("constant", amd)(values(A))
    gc.collect()
    assert amd.live(0) == 0  # the constant that was there already is gone


def test_a_code_object_of_nobody(amd: AmdGpus) -> None:
    with pytest.raises(DeviceUnavailableError, match="InvalidImage"):
        changed("small", data=b"not a code object, but long enough to look whether it is one" * 2)(values(SMALL))


def test_an_artifact_without_a_code_object(amd: AmdGpus) -> None:
    with pytest.raises(LaunchError, match="no code object; compile the operator again"):
        changed("small", data=b"")(values(SMALL))


def test_a_kernel_that_is_not_in_the_code_object(amd: AmdGpus) -> None:
    kernel("small", amd)
    amd.plan_by_hand("other_kernel", 2)
    kernels = [{**kernel("small", amd).artifact.launch["kernels"][0], "name": "other_kernel"}]
    with pytest.raises(LaunchError, match=r"kernel 'other_kernel': HIP refused \(hipModuleGetFunction says hipErrorNotFound\)"):
        changed("small", kernels=kernels)(values(SMALL))
    gc.collect()


@pytest.mark.parametrize("name", ["IllegalAddress", "LaunchFailure"])
def test_a_kernel_that_fails(amd: AmdGpus, name: str) -> None:
    run = kernel("small", amd).load()
    amd.fail("hipStreamSynchronize", 0, name)
    with pytest.raises(LaunchError, match=f"start the process again .*{name}"):
        run(values(SMALL))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("hipMemcpyHtoDAsync", "Unknown"),
        ("hipMalloc", "InvalidValue"),
        ("hipModuleLaunchKernel", "LaunchOutOfResources"),
        ("hipMemcpyDtoHAsync", "Unknown"),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_what_fails_on_the_way_leaves_nothing_behind(amd: AmdGpus, function: str, name: str, after: int) -> None:
    run = kernel("sum", amd).load()
    a = values((WHOLE,))
    amd.fail(function, after, name)
    try:
        run(a)
        assert function in {"hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync"}  # asked once only
    except LaunchError as error:
        assert function in str(error) and name in str(error)
    amd.works(function)
    amd.settle()
    assert amd.live(0) == 0
    verify.check(run.expr, {"a": a}, run(a))


def test_what_failed_is_not_left_for_others_to_find(amd: AmdGpus) -> None:
    """torch looks for errors after launches of its own, and newer versions keep one until somebody asks."""
    run = kernel("small", amd).load()
    amd.fail("hipModuleLaunchKernel", 0, "LaunchOutOfResources")
    with pytest.raises(LaunchError):
        run(values(SMALL))
    calls = amd.calls
    assert calls[calls.index("hipModuleLaunchKernel") + 1] == "hipGetLastError"


@pytest.mark.parametrize("with_out", [False, True])
def test_arrays_are_kept_for_the_kernels_before_one_that_does_not_start(amd: AmdGpus, with_out: bool) -> None:
    """The first of two kernels waits on the stream: it reads its input after the call has failed."""
    run = kernel("sum", amd).load()
    a, out = Namespaced(amd, np.ones(WHOLE, np.float32)), Namespaced(amd, np.ones((), np.float32))
    out.shape = ()
    amd.fail("hipModuleLaunchKernel", 1, "LaunchOutOfResources")
    with pytest.raises(LaunchError, match="LaunchOutOfResources"):
        run(a, out=out if with_out else None)
    assert amd.pending() and (a.lent, out.lent) == (1, int(with_out))
    amd.settle()
    run(a, out=out)
    amd.settle()
    verify.check(run.expr, {"a": a.values()}, out.values())


def test_memory_that_runs_out(amd: AmdGpus) -> None:
    run, a = kernel("small", amd).load(), Array(amd, values(SMALL))
    amd.capacity(512)
    with pytest.raises(LaunchError, match=r"768 bytes requested on GPU 0: the GPU's memory is full; free arrays .*OutOfMemory"):
        run(a)


def test_memory_that_waits_to_be_given_back_is_used(amd: AmdGpus) -> None:
    """What other streams gave back fills the GPU until somebody waits."""
    run, a = kernel("small", amd).load(), Array(amd, values(SMALL))
    amd.capacity(2 * 768)
    for _ in range(6):
        result = run(a, stream=amd.new_stream())
        del result
    assert amd.calls.count("hipFree") >= 2


@pytest.mark.parametrize(("function", "name"), [("hipMalloc", "OutOfMemory"), ("hipMemcpyHtoD", "Unknown")])
def test_constants_that_find_no_room(amd: AmdGpus, function: str, name: str) -> None:
    amd.fail(function, 0, name)
    with pytest.raises(LaunchError, match=name):
        kernel("constant", amd)(values(A))
    gc.collect()
    assert amd.live(0) == 0


# --- what a GPU cannot do ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu_has", "launch", "said"),
    [
        ({"blocks": 0}, {}, "blocks, GPU 0 has 0"),
        ({"lanes": 8}, {"threads": 16}, "16 threads a block, GPU 0 has 8"),
        ({"local_bytes": 1 << 10}, {"shared_bytes": 1 << 11}, "2048 bytes of local memory a block"),
        ({}, {"blocks": 0}, "0 blocks"),
        ({}, {"blocks": 2**31}, "2147483648 blocks, GPU 0 has 2147483647"),
        ({}, {"blocks": 2**30, "threads": 16}, "17179869184 threads together, GPU 0 has 4294967295"),
    ],
)
def test_launches_past_limits(amd: AmdGpus, gpu_has: dict[str, int], launch: dict[str, int], said: str) -> None:
    run = kernel("small", amd)
    amd.become(0, load_spec("rocm:mi50"), **gpu_has)
    kernels = [{**run.artifact.launch["kernels"][0], **launch}]
    with pytest.raises(KernelError, match=said):
        changed("small", kernels=kernels)(values(SMALL))
    assert "hipModuleLaunchKernel" not in amd.calls
    gc.collect()


@pytest.mark.parametrize(
    ("told", "said"), [({"local": 80 << 10}, "81920 bytes of local"), ({"lanes": 8}, "threads a block, GPU 0 has 8")]
)
def test_what_the_runtime_says_of_a_kernel_counts(amd: AmdGpus, told: dict[str, int], said: str) -> None:
    run = kernel("small", amd)
    amd.plan(run, **told)
    with pytest.raises(LaunchError, match=said):
        run(values(SMALL))
    del run
    gc.collect()


@pytest.mark.parametrize(
    ("compiled", "attached", "told"), [("mi50", "mi300x", ("gfx906", "gfx942")), ("mi300x", "mi50", ("gfx942", "gfx906"))]
)
def test_code_objects_run_on_their_own_architecture_only(amd: AmdGpus, compiled: str, attached: str, told: tuple[str, str]) -> None:
    run = kernel("small", amd, f"rocm:{compiled}")
    for number in range(2):
        amd.become(number, load_spec(f"rocm:{attached}"))
    said = f"compiled for {told[0]}, GPU 0 is {told[1]}; compile it for the attached chip"
    with pytest.raises(DeviceUnavailableError, match=said):
        run(values(SMALL))
    assert "hipModuleLoadData" not in amd.calls


def test_another_gpu_may_run_what_the_first_cannot(amd: AmdGpus) -> None:
    run = kernel("small", amd)
    amd.become(0, load_spec("rocm:mi300x"))
    there = Namespaced(amd, values(SMALL), number=1)
    Namespaced.stream = amd.new_stream(1)
    run(there)
    for arrays in (values(SMALL), Array(amd, values(SMALL))):
        with pytest.raises(DeviceUnavailableError, match="GPU 0 is gfx942"):
            run(arrays)


def test_a_gpu_that_is_not_there(amd: AmdGpus) -> None:
    a = Array(amd, values(SMALL))
    a.number = 7
    with pytest.raises(LaunchError, match="GPU 7: this process has 2"):
        kernel("small", amd)(a)


# --- the end ----------------------------------------------------------------------------------------------------------------


def test_closed_kernels(amd: AmdGpus) -> None:
    run = kernel("constant", amd)
    a = Namespaced(amd, values(A))
    Namespaced.stream = amd.new_stream()
    runner = run._loaded()
    result = run(a)
    runner.close()
    assert a.lent == 0  # nothing runs any more
    assert amd.calls.count("hipModuleUnload") == 1
    for arrays in (values(A), a):
        with pytest.raises(LaunchError, match="closed"):
            run(arrays)
    runner.close()
    del result
    amd.settle()
    assert amd.live(0) == 0


def test_kernels_that_nobody_holds_give_everything_back(amd: AmdGpus) -> None:
    run = kernel("constant", amd).load()
    assert amd.live(0) == 1
    del run
    gc.collect()
    assert amd.live(0) == 0 and "hipModuleUnload" in amd.calls


def _in_child(run: roller.Kernel, result: Any, amd: AmdGpus, answers: Any) -> None:
    try:
        run(values(SMALL))
        told = "ran"
    except LaunchError as error:
        told = str(error)
    del result
    run._runner.close()
    gc.collect()
    answers.send((told, amd.faults))


def test_forked_processes_are_told(amd: AmdGpus) -> None:
    """And what they hold of their parent's is not given back there."""
    run = kernel("small", amd).load()
    result = run(Array(amd, values(SMALL)))
    mine, theirs = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of other tests may live, JAX's too
        child = os.fork()
    if not child:
        _in_child(run, result, amd, theirs)
        os._exit(0)
    os.waitpid(child, 0)
    assert mine.poll(1)
    told, faults = mine.recv()
    assert "forked after ROCm was used" in told and not faults
    run(values(SMALL))  # nothing changed here
    del result
