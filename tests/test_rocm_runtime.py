"""Running ROCm kernels without a GPU: our calls of HIP's runtime against one that checks them, and kernels by the reference."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from fake_arrays import Array, CupyArray, Namespaced, Tensor, fake_cupy
from fake_hip import SMALL, A, AmdGpus, B, kernel, rocm_torch, values, why_not

import roller
from roller import verify
from roller.errors import LaunchError
from roller.plugin import ELEMENT_BYTES, Block, Wanted
from roller_rocm import foreign, gpu, hip

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

COPIES = {"hipMemcpyHtoD", "hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync", "hipMemcpyDtoDAsync"}
WAITS = {"hipStreamSynchronize", "hipDeviceSynchronize", "hipFree"}


def right(built: roller.Kernel, result: Any, **inputs: Any) -> None:
    verify.check(built.expr, inputs, np.asarray(result).reshape(built.expr.output.shape))


def read(result: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.frombuffer(ctypes.string_at(result.data_ptr(), 4 * int(np.prod(shape))), np.float32).reshape(shape)


# --- host memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["product", "constant", "sum", "half", "small"])
def test_numpy_arrays_travel_there_and_back(amd: AmdGpus, kind: str) -> None:
    run = kernel(kind, amd).load()
    constants = amd.live(0)
    assert constants == (kind == "constant")
    inputs = {t.name: values(t.shape, n).astype(verify.numpy_dtype(t.dtype)) for n, t in enumerate(run.expr.inputs)}
    given = [inputs[t.name] for t in run.inputs]
    for _ in range(2):
        mark = len(amd.calls)
        right(run, run(*given), **inputs)
    amd.settle()
    assert amd.live(0) == constants
    assert {"hipMalloc", "hipMemcpyHtoD", "hipModuleLoadData", "hipModuleGetFunction"}.isdisjoint(amd.since(mark))


def test_calls_are_made_in_the_order_of_their_stream(amd: AmdGpus) -> None:
    run = kernel("product", amd)
    run(values(A), values(B))
    mark = len(amd.calls)
    run(values(A), values(B))
    launch = ["hipModuleLaunchKernel", "kernel stage0_kernel"]
    assert amd.since(mark) == [*["hipMemcpyHtoDAsync"] * 2, *launch, "hipMemcpyDtoHAsync", "hipStreamSynchronize"]


def test_a_program_of_two_kernels_has_its_workspace(amd: AmdGpus) -> None:
    """Otherwise the tests of workspaces below say nothing."""
    launch = kernel("sum", amd).artifact.launch
    assert len(launch["kernels"]) == 2 and len(launch["workspaces"]) == 1


def test_numpy_arrays_go_to_the_threads_own_gpu(amd: AmdGpus) -> None:
    run = kernel("constant", amd)
    for number, there in ((1, (0, 1)), (0, (1, 1))):
        amd.current(number)
        right(run, run(values(A)), a=values(A), b=values(B, 1))
        assert (amd.live(0), amd.live(1)) == there and hip.number("hipGetDevice") == number


def test_pinned_memory_is_the_hosts(amd: AmdGpus) -> None:
    run, a = kernel("small", amd), Array(amd, values(SMALL))
    amd.dlpack_device = 11  # kDLROCMHost
    right(run, run(a), a=a.values())


def test_torch_tensors_of_the_host_travel(amd: AmdGpus) -> None:
    torch = pytest.importorskip("torch")
    run, a = kernel("small", amd), torch.from_numpy(values(SMALL))
    result = run(a)
    assert type(result) is torch.Tensor
    right(run, result.numpy(), a=a.numpy())


# --- the GPU's memory ------------------------------------------------------------------------------------------------------


def test_torch_tensors_stay_where_they_are(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = rocm_torch(monkeypatch, amd)
    run = kernel("product", amd).load()
    a, b = Tensor(amd, values(A)), Tensor(amd, values(B))
    torch.current = amd.new_stream()
    mark = len(amd.calls)
    result = run(a, b)
    assert amd.since(mark) == ["hipModuleLaunchKernel", "kernel stage0_kernel"]
    assert type(result) is Tensor and amd.pending() == 1 and (result.values() == -1).all()  # nobody waited
    amd.settle()
    right(run, result.values(), a=a.values(), b=b.values())
    assert torch.made_for == [torch.current]


def test_a_torch_for_other_gpus_is_refused(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = rocm_torch(monkeypatch, amd, version=None)
    torch.int16 = torch.bfloat16 = object()
    with pytest.raises(LaunchError, match="takes arrays in host memory"):
        kernel("small", amd)(Tensor(amd, values(SMALL)))


def test_streams_of_callers_come_after_what_their_library_does(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input is still being written on torch's stream when the kernel is enqueued on another."""
    torch = rocm_torch(monkeypatch, amd)
    run = kernel("small", amd).load()
    torch.current, other = amd.new_stream(), amd.new_stream()
    a, new = Tensor(amd, np.zeros(SMALL, np.float32)), values(SMALL)
    with gpu.gpu(0).current():
        for _ in range(5):  # it is busy
            gpu.gpu(0).order(torch.current, gpu.gpu(0).stream)
        gpu.gpu(0).bring(a.address, new.ctypes.data, new.nbytes, torch.current)
    result = run(a, stream=other)
    assert torch.made_for == [other]  # its memory is free on that stream
    amd.settle()
    right(run, result.values(), a=new)


@pytest.mark.parametrize("named", [0, 1])
def test_results_for_the_default_stream_are_torchs_too(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch, named: int) -> None:
    torch = rocm_torch(monkeypatch, amd)
    run, a = kernel("small", amd).load(), Tensor(amd, values(SMALL))
    torch.current = amd.new_stream()
    run(a, stream=named)
    assert torch.made_for == [0] and torch.current
    torch.current = 0
    result = run(a)
    with gpu.gpu(0).current():
        hip.call("hipStreamSynchronize", hip.DEFAULT_STREAM)
    right(run, result.values(), a=a.values())


class CupyStream:
    def __init__(self, handle: int) -> None:
        self.ptr = handle


class TorchStream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


@pytest.mark.parametrize("wrap", [int, CupyStream, TorchStream])
def test_streams_are_handles_or_objects(amd: AmdGpus, wrap: Any) -> None:
    run, a = kernel("small", amd).load(), Namespaced(amd, values(SMALL))
    stream = amd.new_stream()
    run(a, stream=wrap(stream))
    assert a.streams == [stream]


@pytest.mark.parametrize("stream", ["fast", -3, True, 1.5])
def test_what_is_no_stream_is_refused(amd: AmdGpus, stream: Any) -> None:
    with pytest.raises(LaunchError, match=r"stream=: .* torch or CuPy wanted"):
        kernel("small", amd)(Array(amd, values(SMALL)), stream=stream)


def test_streams_do_not_go_with_host_arrays(amd: AmdGpus) -> None:
    with pytest.raises(LaunchError, match="stream="):
        kernel("small", amd)(values(SMALL), stream=1)


def test_cupy_arrays_work_on_cupys_stream(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = fake_cupy(monkeypatch)
    run = kernel("product", amd).load()
    cupy.current = amd.new_stream()
    a, b = CupyArray(amd, values(A)), CupyArray(amd, values(B))
    mark = len(amd.calls)
    result = run(a, b)
    assert a.streams == b.streams == [cupy.current] and COPIES.isdisjoint(amd.since(mark)) and WAITS.isdisjoint(amd.since(mark))
    assert (a.lent, b.lent) == (0, 0)  # work on its own stream is in order with whatever it does with the memory
    amd.settle()
    assert (result.dtype, str(result.device)) == ("float32", "rocm:0")
    right(run, read(result, (33, 20)), a=a.values(), b=b.values())
    cupy.current = 0
    run(a, b)
    assert a.streams[-1] == hip.DEFAULT_STREAM


def test_arrays_without_a_stream_are_kept_until_the_work_is_done(amd: AmdGpus) -> None:
    """Their library would hand the memory out again, as it knows nothing of our stream."""
    run = kernel("product", amd).load()
    a, b = Namespaced(amd, values(A)), Namespaced(amd, values(B))
    Namespaced.stream = amd.new_stream()
    before, mark = amd.live(0), len(amd.calls)
    result = run(a, b)
    ours = gpu.gpu(0).stream
    assert a.streams == [ours] and COPIES.isdisjoint(amd.since(mark)) and WAITS.isdisjoint(amd.since(mark))
    assert (a.lent, b.lent) == (1, 1)
    amd.settle()
    right(run, read(result, (33, 20)), a=a.values(), b=b.values())
    run(b=b, a=a)
    assert (a.lent, b.lent) == (1, 1)  # the first call's are let go, the second's are held
    assert amd.live(0) == before + 1  # the second result was dropped: its memory goes once its reader is done
    del result
    amd.settle()
    assert amd.live(0) == before


def test_readers_of_results_wait_for_them(amd: AmdGpus) -> None:
    run = kernel("small", amd).load()
    result = run(Array(amd, values(SMALL), number=1))
    assert result.__dlpack_device__() == (10, 1)
    reader = amd.new_stream(1)
    amd.settle()
    result.__dlpack__(stream=reader)
    assert amd.pending() == 2  # a mark on our stream, and a wait for it on the reader's
    result.__dlpack__(stream=-1)
    assert amd.pending() == 2
    for refused in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError):
            result.__dlpack__(**refused)
    again = run(result)  # results are arrays to compute with
    amd.settle()
    right(run, read(tvm_ffi.from_dlpack(again.__dlpack__(stream=-1)), SMALL), a=values(SMALL))


def test_bfloat16_and_results_of_one_element(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm_torch(monkeypatch, amd)
    run = kernel("half", amd)
    a = values((7, 5)).astype(verify.numpy_dtype("bfloat16"))
    for given in (Tensor(amd, a), Array(amd, a)):
        out = Tensor(amd, a)
        assert run(given, out=out) is out
        amd.settle()
        right(run, out.values(), a=a)


@pytest.mark.parametrize("dtype", sorted(ELEMENT_BYTES))
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_every_element_type_is_given_and_taken(amd: AmdGpus, dtype: str, version: Any) -> None:
    there = gpu.gpu(0)
    with there.current():
        wanted = Wanted("out", (2, 3), verify.numpy_dtype(dtype))
        given = foreign.ARRAYS.lent(Block(there.allocate(48, there.stream), 48, there, there.stream), wanted)
        tensor = tvm_ffi.from_dlpack(given.__dlpack__(stream=0, max_version=version))
        assert (tensor.dtype, tensor.shape, str(tensor.device)) == (dtype, (2, 3), "rocm:0")
        taken = foreign.ARRAYS.take(given, wanted, there, there.stream, written=True)
        assert (taken.address, taken.dtype) == (tensor.data_ptr(), dtype)


def test_each_call_has_a_workspace_of_its_own(amd: AmdGpus) -> None:
    """Two calls on two streams, whose kernels run in turn; sums far enough apart for the bound on their errors."""
    run = kernel("sum", amd).load()
    arrays = [Namespaced(amd, np.full(1 << 18, each, np.float32)) for each in (1, 3)]
    results = [run(a, stream=amd.new_stream()) for a in arrays]
    assert amd.pending() > 4
    amd.settle()
    for a, result in zip(arrays, results, strict=True):
        right(run, read(result, ()), a=a.values())


def test_threads_may_call_at_the_same_time(amd: AmdGpus) -> None:
    run = kernel("product", amd).load()
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(4):
                a, b = values(A, 10 * seed + turn), values(B, seed)
                right(run, run(a, b), a=a, b=b)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_threads_write_their_arguments_one_at_a_time(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread calls between the writing of a launch's addresses and the launch."""
    run, tried = kernel("small", amd).load(), hip.tried
    arrays = [Array(amd, values(SMALL, seed)) for seed in range(2)]
    outs = [Array(amd, values(SMALL)) for _ in range(2)]
    written, launched = threading.Event(), threading.Event()

    def slow(function: str, *given: Any) -> Any:
        if function == "hipModuleLaunchKernel" and not written.is_set():
            written.set()
            launched.wait(0.5)  # in vain
        return tried(function, *given)

    monkeypatch.setattr(hip, "tried", slow)
    first = threading.Thread(target=run, args=(arrays[0],), kwargs={"out": outs[0]})
    first.start()
    assert written.wait(30)
    run(arrays[1], out=outs[1])
    launched.set()
    first.join()
    amd.settle()
    for a, out in zip(arrays, outs, strict=True):
        right(run, out.values(), a=a.values())
