"""Running CUDA kernels without a GPU: our calls of the driver against one that checks them, and kernels on the emulator."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from emulating import needs_compiler, needs_cxx
from fake_arrays import Array, CupyArray, Interfaced, Namespaced, Tensor, fake_cupy, fake_torch
from fake_gpu import A, B, Gpus, kernel, values, why_not

import roller
from roller import verify
from roller.errors import LaunchError
from roller.plugin import ELEMENT_BYTES, Wanted
from roller_cuda import driver, foreign, gpu

pytestmark = [needs_compiler, needs_cxx, pytest.mark.skipif(bool(why_not()), reason=why_not())]

COPIES = {"cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"}
WAITS = {"cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree", "cuMemAlloc"}


def right(built: roller.Kernel, result: Any, **inputs: Any) -> None:
    verify.check(built.expr, inputs, np.asarray(result).reshape(built.expr.output.shape))


# --- host memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["product", "constant", "sum", "half", "small"])
def test_numpy_arrays_travel_there_and_back(gpus: Gpus, kind: str) -> None:
    run = kernel(kind, gpus).load()
    constants = gpus.live(0)
    assert constants == (kind == "constant")
    inputs = {t.name: values(t.shape, n).astype(verify.numpy_dtype(t.dtype)) for n, t in enumerate(run.expr.inputs)}
    given = [inputs[t.name] for t in run.inputs]
    mark = len(gpus.calls)
    for _ in range(2):
        right(run, run(*given), **inputs)
    gpus.settle()
    assert gpus.live(0) == constants
    assert {"cuMemAlloc", "cuLibraryLoadData", "cuKernelGetAttribute", "cuStreamCreate"}.isdisjoint(gpus.since(mark))


def test_a_program_of_two_kernels_has_its_workspace(gpus: Gpus) -> None:
    """Otherwise the tests of workspaces below say nothing."""
    launch = kernel("sum", gpus).artifact.launch
    assert len(launch["kernels"]) == 2 and len(launch["workspaces"]) == 1


def test_numpy_arrays_go_to_the_threads_own_gpu(gpus: Gpus) -> None:
    run = kernel("constant", gpus)
    gpus.current(1)
    right(run, run(values(A)), a=values(A), b=values(B, 1))
    assert (gpus.live(0), gpus.live(1)) == (0, 1)
    gpus.current(0)
    right(run, run(values(A)), a=values(A), b=values(B, 1))
    assert (gpus.live(0), gpus.live(1)) == (1, 1)


# --- the GPU's memory ------------------------------------------------------------------------------------------------------


def test_torch_tensors_stay_where_they_are(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(monkeypatch, gpus)
    run = kernel("product", gpus).load()
    a, b = Tensor(gpus, values(A)), Tensor(gpus, values(B))
    torch.current = gpus.new_stream()
    mark = len(gpus.calls)
    result = run(a, b)
    asked = [call for call in gpus.since(mark) if call != "cuMemAlloc"]  # torch's own, for the result
    assert asked == ["cuLaunchKernel", "kernel stage0_kernel cluster 1"]
    assert type(result) is Tensor and gpus.pending() == 1 and (result.values() == -1).all()  # nobody waited
    gpus.settle()
    right(run, result.values(), a=a.values(), b=b.values())
    assert torch.made_for == [torch.current]


def test_streams_of_callers_come_after_what_their_library_does(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input is still being written on torch's stream when the kernel is enqueued on another."""
    torch = fake_torch(monkeypatch, gpus)
    run = kernel("small", gpus).load()
    torch.current, other = gpus.new_stream(), gpus.new_stream()
    a, new = Tensor(gpus, np.zeros((64, 3), np.float32)), values((64, 3))
    with gpu.gpu(0).current():
        for _ in range(5):
            driver.call("cuEventRecord", driver.call("cuEventCreate", 0), torch.current)  # it is busy
        driver.call("cuMemcpyHtoDAsync", a.address, new.ctypes.data, new.nbytes, torch.current)
    result = run(a, stream=other)
    assert torch.made_for == [other]  # its memory is free on that stream
    gpus.settle()
    right(run, result.values(), a=new)


def test_results_for_the_legacy_stream_are_torchs_too(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(monkeypatch, gpus)
    run, a = kernel("small", gpus).load(), Tensor(gpus, values((64, 3)))
    torch.current = gpus.new_stream()
    run(a, stream=0)
    assert torch.made_for == [0] and torch.current
    torch.current = 0
    result = run(a)
    with gpu.gpu(0).current():
        driver.call("cuStreamSynchronize", driver.LEGACY_STREAM)
    right(run, result.values(), a=a.values())


class HandleStream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class CupyStream:
    def __init__(self, handle: int) -> None:
        self.ptr = handle


@pytest.mark.parametrize("wrap", [int, HandleStream, CupyStream])
def test_streams_are_handles_or_objects(gpus: Gpus, wrap: Any) -> None:
    run, a = kernel("small", gpus).load(), Namespaced(gpus, values((64, 3)))
    stream = gpus.new_stream()
    run(a, stream=wrap(stream))
    assert a.streams == [stream]


@pytest.mark.parametrize("stream", ["fast", -3, True, 1.5])
def test_what_is_no_stream_is_refused(gpus: Gpus, stream: Any) -> None:
    with pytest.raises(LaunchError, match="stream="):
        kernel("small", gpus)(Array(gpus, values((64, 3))), stream=stream)


def test_streams_do_not_go_with_host_arrays(gpus: Gpus) -> None:
    with pytest.raises(LaunchError, match="stream="):
        kernel("small", gpus)(values((64, 3)), stream=1)


def test_cupy_arrays_work_on_cupys_stream(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = fake_cupy(monkeypatch)
    run = kernel("product", gpus).load()
    cupy.current = gpus.new_stream()
    a, b = CupyArray(gpus, values(A)), CupyArray(gpus, values(B))
    mark = len(gpus.calls)
    result = run(a, b)
    assert a.streams == b.streams == [cupy.current] and COPIES.isdisjoint(gpus.since(mark)) and WAITS.isdisjoint(gpus.since(mark))
    assert (a.lent, b.lent) == (0, 0)  # work on its own stream is in order with whatever it does with the memory
    gpus.settle()
    assert result.dtype == "float32"
    right(run, read(result, (33, 20)), a=a.values(), b=b.values())
    cupy.current = 0
    run(a, b)
    assert a.streams[-1] == driver.LEGACY_STREAM


def read(result: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    return np.frombuffer(ctypes.string_at(result.data_ptr(), 4 * count), np.float32).reshape(shape)


def test_arrays_without_a_stream_are_kept_until_the_work_is_done(gpus: Gpus) -> None:
    """Their library would hand the memory out again, as it knows nothing of our stream."""
    run = kernel("product", gpus).load()
    a, b = Namespaced(gpus, values(A)), Namespaced(gpus, values(B))
    Namespaced.stream = gpus.new_stream()
    before, mark = gpus.live(0), len(gpus.calls)
    result = run(a, b)
    ours = gpu.gpu(0).stream
    assert a.streams == [ours] and COPIES.isdisjoint(gpus.since(mark)) and WAITS.isdisjoint(gpus.since(mark))
    assert (a.lent, b.lent) == (1, 1)
    gpus.settle()
    right(run, read(result, (33, 20)), a=a.values(), b=b.values())
    run(b=b, a=a)
    assert (a.lent, b.lent) == (1, 1)  # the first call's are let go, the second's are held
    assert gpus.live(0) == before + 1  # the second result was dropped: its memory goes once its reader is done
    del result
    gpus.settle()
    assert gpus.live(0) == before


def test_readers_of_results_wait_for_them(gpus: Gpus) -> None:
    run = kernel("small", gpus).load()
    result = run(Interfaced(Array(gpus, values((64, 3)))))
    reader = gpus.new_stream()
    gpus.settle()
    result.__dlpack__(stream=reader)
    assert gpus.pending() == 2  # a mark on our stream, and a wait for it on the reader's
    result.__dlpack__(stream=-1)
    assert gpus.pending() == 2
    with pytest.raises(BufferError):
        result.__dlpack__(copy=True)


@pytest.mark.parametrize("told", [True, False])
def test_arrays_with_the_cuda_array_interface_alone(gpus: Gpus, told: bool) -> None:
    run, inner = kernel("small", gpus).load(), Array(gpus, values((64, 3)), number=1)
    stream = gpus.new_stream(1) if told else None
    result = run(Interfaced(inner, stream))
    gpus.settle()
    wanted = stream if told else gpu.gpu(1).stream
    interface = result.__cuda_array_interface__
    assert interface["stream"] == wanted and gpus.device_of(interface["data"][0]) == 1
    again = run(result)  # results are arrays to compute with
    gpus.settle()
    got = np.frombuffer(ctypes.string_at(again.__cuda_array_interface__["data"][0], 4 * 192), np.float32)
    right(run, got, a=inner.values())


def test_bfloat16_and_arrays_of_one_element(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, gpus)
    run = kernel("half", gpus)
    a = values((7, 5)).astype(verify.numpy_dtype("bfloat16"))
    for given in (Tensor(gpus, a), Array(gpus, a)):
        out = Tensor(gpus, a)
        assert run(given, out=out) is out
        gpus.settle()
        right(run, out.values(), a=a)


@pytest.mark.parametrize("dtype", sorted(ELEMENT_BYTES))
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_every_element_type_is_given_and_taken(gpus: Gpus, dtype: str, version: Any) -> None:
    there = gpu.gpu(0)
    with there.current():
        wanted = Wanted("out", (2, 3), verify.numpy_dtype(dtype))
        given = foreign.ARRAYS.lent(foreign.Block(there.allocate(48, there.stream), 48, there, there.stream), wanted)
        tensor = tvm_ffi.from_dlpack(given.__dlpack__(stream=1, max_version=version))
        assert (tensor.dtype, tensor.shape, str(tensor.device)) == (dtype, (2, 3), "cuda:0")
        taken = foreign.take(given, wanted, there, there.stream, written=True)
        assert (taken.address, taken.dtype) == (tensor.data_ptr(), dtype)


def test_each_call_has_a_workspace_of_its_own(gpus: Gpus) -> None:
    """Two calls on two streams, whose kernels run in turn; sums far enough apart for the bound on their errors."""
    run = kernel("sum", gpus).load()
    arrays = [Namespaced(gpus, np.full(1 << 18, each, np.float32)) for each in (1, 3)]
    results = [run(a, stream=gpus.new_stream()) for a in arrays]
    assert gpus.pending() > 4
    gpus.settle()
    for a, result in zip(arrays, results, strict=True):
        right(run, read(result, ()), a=a.values())


def test_threads_may_call_at_the_same_time(gpus: Gpus) -> None:
    run = kernel("product", gpus).load()
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


def test_threads_write_their_arguments_one_at_a_time(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread calls between the writing of a launch's addresses and the launch."""
    run, tried = kernel("small", gpus).load(), driver.tried
    arrays = [Array(gpus, values((64, 3), seed)) for seed in range(2)]
    outs = [Array(gpus, values((64, 3))) for _ in range(2)]
    written, launched = threading.Event(), threading.Event()

    def slow(function: str, *given: Any) -> Any:
        if function == "cuLaunchKernel" and not written.is_set():
            written.set()
            launched.wait(0.5)  # in vain
        return tried(function, *given)

    monkeypatch.setattr(driver, "tried", slow)
    first = threading.Thread(target=run, args=(arrays[0],), kwargs={"out": outs[0]})
    first.start()
    assert written.wait(30)
    run(arrays[1], out=outs[1])
    launched.set()
    first.join()
    gpus.settle()
    for a, out in zip(arrays, outs, strict=True):
        right(run, out.values(), a=a.values())


# --- out= ------------------------------------------------------------------------------------------------------------------


def test_out_is_written_in_place(gpus: Gpus) -> None:
    run, a, out = kernel("small", gpus).load(), Array(gpus, values((64, 3))), Array(gpus, values((64, 3), 5))
    mark = len(gpus.calls)
    assert run(a, out=out) is out
    assert COPIES.isdisjoint(gpus.since(mark))
    gpus.settle()
    right(run, out.values(), a=a.values())


@pytest.mark.parametrize("apart", [16, 0, -16])
def test_out_that_overlaps_an_input_is_written_last(gpus: Gpus, apart: int) -> None:
    """Each thread would read what the one before it wrote."""
    run, whole = kernel("small", gpus).load(), Array(gpus, values((70, 3)))
    a, out = Array(gpus, values((64, 3))), Array(gpus, values((64, 3)))
    a.address, out.address = whole.address + 16, whole.address + 16 + apart
    before = a.values().copy()
    run(a, out=out)
    gpus.settle()
    right(run, out.values(), a=before)


def readonly(gpus: Gpus) -> Any:
    return Interfaced(Array(gpus, values((64, 3))), readonly=True)


def transposed(gpus: Gpus) -> Any:
    return Array(gpus, values((64, 3)), strides=(1, 64))


def half(gpus: Gpus) -> Any:
    return Array(gpus, values((64, 3)).astype(np.float16))


def other_shape(gpus: Gpus) -> Any:
    return Array(gpus, values((3, 64)))


def shifted(gpus: Gpus) -> Any:
    return Array(gpus, values((64, 3)), shift=4)


def elsewhere(gpus: Gpus) -> Any:
    return Array(gpus, values((64, 3)), number=1)


def in_host_memory(_: Gpus) -> Any:
    return values((64, 3))


def learning(gpus: Gpus) -> Any:
    tensor = Tensor(gpus, values((64, 3)))
    tensor.requires_grad = True
    return tensor


def strided_tensor(gpus: Gpus) -> Any:
    return Tensor(gpus, values((64, 3)), contiguous=False)


WRONG = [
    (transposed, "not contiguous; copy it first"),
    (strided_tensor, "not contiguous; copy it first"),
    (half, "element type float16 given, float32 wanted"),
    (other_shape, r"shape \(3, 64\) given"),
    (shifted, "needs a multiple of 16 bytes; copy it first"),
    (learning, "requires a gradient"),
]


@pytest.mark.parametrize(("make", "said"), WRONG)
def test_arrays_that_do_not_fit_are_refused(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, make: Any, said: str) -> None:
    fake_torch(monkeypatch, gpus)
    run = kernel("small", gpus).load()
    mark = len(gpus.calls)
    with pytest.raises(LaunchError, match=said):
        run(make(gpus))
    with pytest.raises(LaunchError, match=f"out: .*{said}"):
        run(Array(gpus, values((64, 3))), out=make(gpus))
    assert "cuLaunchKernel" not in gpus.since(mark)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (elsewhere, r"a on GPU 0, out on GPU 1; bring them to one place"),
        (in_host_memory, r"a on GPU 0, out in host memory; bring them to one place"),
        (readonly, "out: the array is read-only"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(gpus: Gpus, make: Any, said: str) -> None:
    run = kernel("small", gpus)
    with pytest.raises(LaunchError, match=said):
        run(Array(gpus, values((64, 3))), out=make(gpus))


def test_arrays_in_different_places_are_refused(gpus: Gpus) -> None:
    run = kernel("product", gpus)
    with pytest.raises(LaunchError, match="a in host memory, b on GPU 0"):
        run(values(A), Array(gpus, values(B)))
    with pytest.raises(LaunchError, match="a on GPU 1, b on GPU 0"):
        run(Array(gpus, values(A), number=1), Array(gpus, values(B)))
    with pytest.raises(LaunchError, match="2 wanted"):
        run(Array(gpus, values(A)), Array(gpus, values(B)), Array(gpus, values(B)))
