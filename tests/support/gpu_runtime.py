"""What every runtime of GPUs must do with arrays, streams and `out=`: one suite, against drivers that stand in for real ones."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import roller
from fake_arrays import Array, CupyArray, Namespaced, Tensor, fake_cupy
from roller import ops, verify
from roller.errors import LaunchError
from roller.plugin import ELEMENT_BYTES, Block, Wanted

A, B, SMALL = (33, 45), (45, 20), (64, 3)  # of the kernels "product" and "small"


@dataclass(frozen=True)
class Names:
    """What one driver calls things. `torch`: makes the library that its tensors come from; `once`: what only loading
    asks for; `allocation`: how tensors get their memory, where that shows; `launched`: what the stand-in notes of a launch."""

    driver: Any
    gpu: Any
    foreign: Any
    kernel: Any
    torch: Any
    copies: frozenset[str]
    waits: frozenset[str]
    once: frozenset[str]
    allocation: str
    launch: str
    launched: str
    default_stream: int
    kind: str


def compiled(kind: str, chip: str) -> roller.Kernel:
    """A kernel: "product", "constant" (the same with a fixed operand), "sum" (of two kernels, with a workspace between them),
    "half" (bfloat16), "small".
    """
    a, b = ops.tensor(A, name="a"), ops.tensor(B, name="b")
    operator, options = {
        "product": lambda: (ops.relu(ops.matmul(a, b)), {}),
        "constant": lambda: (ops.relu(ops.matmul(a, b)), {"constants": {"b": values(B, 1)}}),
        "sum": lambda: (ops.reduce_sum(ops.tensor((1 << 18,), name="a")), {}),
        "half": lambda: (ops.relu(ops.tensor((7, 5), "bfloat16", name="a")), {}),
        "small": lambda: (ops.relu(ops.tensor(SMALL, name="a")), {}),
    }[kind]()
    return roller.compile(operator, device=chip, top_k=1, **options)


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def right(built: roller.Kernel, result: Any, **inputs: Any) -> None:
    verify.check(built.expr, inputs, np.asarray(result).reshape(built.expr.output.shape))


def read(result: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.frombuffer(ctypes.string_at(result.data_ptr(), 4 * int(np.prod(shape))), np.float32).reshape(shape)


class CupyStream:
    def __init__(self, handle: int) -> None:
        self.ptr = handle


def transposed(gpus: Any) -> Any:
    return Array(gpus, values(SMALL), strides=(1, 64))


def half(gpus: Any) -> Any:
    return Array(gpus, values(SMALL).astype(np.float16))


def other_shape(gpus: Any) -> Any:
    return Array(gpus, values((3, 64)))


def shifted(gpus: Any) -> Any:
    return Array(gpus, values(SMALL), shift=4)


def elsewhere(gpus: Any) -> Any:
    return Array(gpus, values(SMALL), number=1)


def in_host_memory(_: Any) -> Any:
    return values(SMALL)


def learning(gpus: Any) -> Any:
    tensor = Tensor(gpus, values(SMALL))
    tensor.requires_grad = True
    return tensor


def strided_tensor(gpus: Any) -> Any:
    return Tensor(gpus, values(SMALL), contiguous=False)


WRONG = [
    (transposed, "not contiguous; copy it first"),
    (strided_tensor, "not contiguous; copy it first"),
    (half, "element type float16 given, float32 expected"),
    (other_shape, r"shape \(3, 64\) given"),
    (shifted, "needs a multiple of 16 bytes; copy it first"),
    (learning, "requires a gradient"),
]
APART = [
    (elsewhere, r"a on GPU 0, out on GPU 1; bring them to one place"),
    (in_host_memory, r"a on GPU 0, out in host memory; bring them to one place"),
]


class RuntimeContract:
    """A subclass says what its driver calls things, and has a fixture `gpus`: two of them."""

    names: Names

    # --- host memory ---

    @pytest.mark.parametrize("kind", ["product", "constant", "sum", "half", "small"])
    def test_numpy_arrays_travel_there_and_back(self, gpus: Any, kind: str) -> None:
        run = self.names.kernel(kind, gpus).load()
        constants = gpus.live(0)
        assert constants == (kind == "constant")
        inputs = {t.name: values(t.shape, n).astype(verify.numpy_dtype(t.dtype)) for n, t in enumerate(run.expr.inputs)}
        given = [inputs[t.name] for t in run.inputs]
        for _ in range(2):
            mark = len(gpus.calls)
            right(run, run(*given), **inputs)
        gpus.settle()
        assert gpus.live(0) == constants
        assert self.names.once.isdisjoint(gpus.since(mark))

    def test_a_program_of_two_kernels_has_its_workspace(self, gpus: Any) -> None:
        """Otherwise the tests of workspaces below say nothing."""
        launch = self.names.kernel("sum", gpus).artifact.launch
        assert len(launch["kernels"]) == 2 and len(launch["workspaces"]) == 1

    def test_numpy_arrays_go_to_the_threads_own_gpu(self, gpus: Any) -> None:
        run = self.names.kernel("constant", gpus)
        for number, there in ((1, (0, 1)), (0, (1, 1))):
            gpus.current(number)
            right(run, run(values(A)), a=values(A), b=values(B, 1))
            assert (gpus.live(0), gpus.live(1)) == there and self.names.gpu.current().ordinal == number

    # --- the GPU's memory ---

    def test_torch_tensors_stay_where_they_are(self, gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = self.names.torch(monkeypatch, gpus)
        run = self.names.kernel("product", gpus).load()
        a, b = Tensor(gpus, values(A)), Tensor(gpus, values(B))
        torch.current = gpus.new_stream()
        mark = len(gpus.calls)
        result = run(a, b)
        assert [call for call in gpus.since(mark) if call != self.names.allocation] == [self.names.launch, self.names.launched]
        assert type(result) is Tensor and gpus.pending() == 1 and (result.values() == -1).all()  # nobody waited
        gpus.settle()
        right(run, result.values(), a=a.values(), b=b.values())
        assert torch.made_for == [torch.current]

    def test_streams_of_callers_come_after_what_their_library_does(self, gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The input is still being written on torch's stream when the kernel is enqueued on another."""
        torch = self.names.torch(monkeypatch, gpus)
        run = self.names.kernel("small", gpus).load()
        torch.current, other = gpus.new_stream(), gpus.new_stream()
        a, new, there = Tensor(gpus, np.zeros(SMALL, np.float32)), values(SMALL), self.names.gpu.gpu(0)
        with there.current():
            for _ in range(5):  # it is busy
                there.order(torch.current, there.stream)
            there.bring(a.address, new.ctypes.data, new.nbytes, torch.current)
        result = run(a, stream=other)
        assert torch.made_for == [other]  # its memory is free on that stream
        gpus.settle()
        right(run, result.values(), a=new)

    @pytest.mark.parametrize("named", [0, 1])
    def test_results_for_the_default_stream_are_torchs_too(self, gpus: Any, monkeypatch: pytest.MonkeyPatch, named: int) -> None:
        torch = self.names.torch(monkeypatch, gpus)
        run, a = self.names.kernel("small", gpus).load(), Tensor(gpus, values(SMALL))
        torch.current = gpus.new_stream()
        run(a, stream=named)
        assert torch.made_for == [0] and torch.current
        torch.current = 0
        result = run(a)
        with self.names.gpu.gpu(0).current():
            self.names.gpu.gpu(0).finish(self.names.default_stream)
        right(run, result.values(), a=a.values())

    @pytest.mark.parametrize("stream", ["fast", -3, True, 1.5])
    def test_what_is_no_stream_is_refused(self, gpus: Any, stream: Any) -> None:
        said = f"stream=: .* {self.names.foreign.ARRAYS.with_streams} expected"
        with pytest.raises(LaunchError, match=said):
            self.names.kernel("small", gpus)(Array(gpus, values(SMALL)), stream=stream)

    def test_streams_do_not_go_with_host_arrays(self, gpus: Any) -> None:
        with pytest.raises(LaunchError, match="stream="):
            self.names.kernel("small", gpus)(values(SMALL), stream=1)

    def test_cupy_arrays_work_on_cupys_stream(self, gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        cupy = fake_cupy(monkeypatch)
        run = self.names.kernel("product", gpus).load()
        cupy.current = gpus.new_stream()
        a, b = CupyArray(gpus, values(A)), CupyArray(gpus, values(B))
        mark = len(gpus.calls)
        result = run(a, b)
        assert a.streams == b.streams == [cupy.current]
        assert (self.names.copies | self.names.waits).isdisjoint(gpus.since(mark))
        assert (a.lent, b.lent) == (0, 0)  # work on its own stream is in order with whatever it does with the memory
        gpus.settle()
        assert (result.dtype, str(result.device)) == ("float32", f"{self.names.kind}:0")
        right(run, read(result, (33, 20)), a=a.values(), b=b.values())
        cupy.current = 0
        run(a, b)
        assert a.streams[-1] == self.names.default_stream

    def test_arrays_without_a_stream_are_kept_until_the_work_is_done(self, gpus: Any) -> None:
        """Their library would hand the memory out again, as it knows nothing of our stream."""
        run = self.names.kernel("product", gpus).load()
        a, b = Namespaced(gpus, values(A)), Namespaced(gpus, values(B))
        Namespaced.stream = gpus.new_stream()
        before, mark = gpus.live(0), len(gpus.calls)
        result = run(a, b)
        assert a.streams == [self.names.gpu.gpu(0).stream]
        assert (self.names.copies | self.names.waits).isdisjoint(gpus.since(mark))
        assert (a.lent, b.lent) == (1, 1)
        gpus.settle()
        right(run, read(result, (33, 20)), a=a.values(), b=b.values())
        run(b=b, a=a)
        assert (a.lent, b.lent) == (1, 1)  # the first call's are let go, the second's are held
        assert gpus.live(0) == before + 1  # the second result was dropped: its memory goes once its reader is done
        del result
        gpus.settle()
        assert gpus.live(0) == before

    def test_readers_of_results_wait_for_them(self, gpus: Any) -> None:
        run = self.names.kernel("small", gpus).load()
        result = run(Array(gpus, values(SMALL), number=1))
        device = result.__dlpack_device__()
        assert device == (gpus.dlpack_device, 1)
        reader = gpus.new_stream(1)
        gpus.settle()
        result.__dlpack__(stream=reader)
        assert gpus.pending() == 2  # a mark on our stream, and a wait for it on the reader's
        result.__dlpack__(stream=-1, dl_device=device)
        assert gpus.pending() == 2
        for refused in ({"copy": True}, {"dl_device": (1, 0)}):
            with pytest.raises(BufferError):
                result.__dlpack__(**refused)
        again = run(result)  # results are arrays to compute with
        gpus.settle()
        right(run, read(tvm_ffi.from_dlpack(again.__dlpack__(stream=-1)), SMALL), a=values(SMALL))

    def test_bfloat16_and_arrays_of_one_element(self, gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names.torch(monkeypatch, gpus)
        run = self.names.kernel("half", gpus)
        a = values((7, 5)).astype(verify.numpy_dtype("bfloat16"))
        for given in (Tensor(gpus, a), Array(gpus, a)):
            out = Tensor(gpus, a)
            assert run(given, out=out) is out
            gpus.settle()
            right(run, out.values(), a=a)

    @pytest.mark.parametrize("dtype", sorted(ELEMENT_BYTES))
    @pytest.mark.parametrize("version", [None, (1, 0)])
    def test_every_element_type_is_given_and_taken(self, gpus: Any, dtype: str, version: Any) -> None:
        there, arrays = self.names.gpu.gpu(0), self.names.foreign.ARRAYS
        with there.current():
            wanted = Wanted("out", (2, 3), verify.numpy_dtype(dtype))
            given = arrays.lent(Block(there.allocate(48, there.stream), 48, there, there.stream), wanted)
            tensor = tvm_ffi.from_dlpack(given.__dlpack__(stream=self.names.default_stream, max_version=version))
            assert (tensor.dtype, tensor.shape, str(tensor.device)) == (dtype, (2, 3), f"{self.names.kind}:0")
            taken = arrays.take(given, wanted, there, there.stream, written=True)
            assert (taken.address, taken.dtype) == (tensor.data_ptr(), dtype)

    # --- calls beside one another ---

    def test_each_call_has_a_workspace_of_its_own(self, gpus: Any) -> None:
        """Two calls on two streams, whose kernels run in turn; sums far enough apart for the bound on their errors."""
        run = self.names.kernel("sum", gpus).load()
        arrays = [Namespaced(gpus, np.full(1 << 18, each, np.float32)) for each in (1, 3)]
        results = [run(a, stream=gpus.new_stream()) for a in arrays]
        assert gpus.pending() > 4
        gpus.settle()
        for a, result in zip(arrays, results, strict=True):
            right(run, read(result, ()), a=a.values())

    def test_threads_may_call_at_the_same_time(self, gpus: Any) -> None:
        run = self.names.kernel("product", gpus).load()
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

    def test_threads_write_their_arguments_one_at_a_time(self, gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another thread calls between the writing of a launch's addresses and the launch."""
        run, tried = self.names.kernel("small", gpus).load(), self.names.driver.tried
        arrays = [Array(gpus, values(SMALL, seed)) for seed in range(2)]
        outs = [Array(gpus, values(SMALL)) for _ in range(2)]
        written, launched = threading.Event(), threading.Event()

        def slow(function: str, *given: Any) -> Any:
            if function == self.names.launch and not written.is_set():
                written.set()
                launched.wait(0.5)  # in vain
            return tried(function, *given)

        monkeypatch.setattr(self.names.driver, "tried", slow)
        first = threading.Thread(target=run, args=(arrays[0],), kwargs={"out": outs[0]})
        first.start()
        assert written.wait(30)
        run(arrays[1], out=outs[1])
        launched.set()
        first.join()
        gpus.settle()
        for a, out in zip(arrays, outs, strict=True):
            right(run, out.values(), a=a.values())

    # --- out= ---

    def test_out_is_written_in_place(self, gpus: Any) -> None:
        run, a, out = self.names.kernel("small", gpus).load(), Array(gpus, values(SMALL)), Array(gpus, values(SMALL, 5))
        mark = len(gpus.calls)
        assert run(a, out=out) is out
        assert gpus.since(mark) == [self.names.launch, self.names.launched]
        gpus.settle()
        right(run, out.values(), a=a.values())

    @pytest.mark.parametrize("apart", [16, 0, -16])
    def test_out_that_overlaps_an_input_is_written_last(self, gpus: Any, apart: int) -> None:
        """Each thread would read what the one before it wrote."""
        run, whole = self.names.kernel("small", gpus).load(), Array(gpus, values((70, 3)))
        a, out = Array(gpus, values(SMALL)), Array(gpus, values(SMALL))
        a.address, out.address = whole.address + 16, whole.address + 16 + apart
        before, mark = a.values().copy(), len(gpus.calls)
        run(a, out=out)
        assert len(self.names.copies & set(gpus.since(mark))) == 1
        gpus.settle()
        right(run, out.values(), a=before)

    @pytest.mark.parametrize(("make", "said"), WRONG)
    def test_arrays_that_do_not_fit_are_refused(self, gpus: Any, monkeypatch: pytest.MonkeyPatch, make: Any, said: str) -> None:
        self.names.torch(monkeypatch, gpus)
        run = self.names.kernel("small", gpus).load()
        mark = len(gpus.calls)
        with pytest.raises(LaunchError, match=said):
            run(make(gpus))
        with pytest.raises(LaunchError, match=f"out: .*{said}"):
            run(Array(gpus, values(SMALL)), out=make(gpus))
        assert self.names.launch not in gpus.since(mark)

    def test_parameters_are_taken_where_no_gradient_is_recorded(self, gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = self.names.torch(monkeypatch, gpus)
        torch.is_grad_enabled = lambda: False
        parameter = learning(gpus)
        run = self.names.kernel("small", gpus).load()
        mark = len(gpus.calls)
        result = run(parameter)
        assert [call for call in gpus.since(mark) if call != self.names.allocation] == [self.names.launch, self.names.launched]
        gpus.settle()
        right(run, result.values(), a=parameter.values())

    @pytest.mark.parametrize(("make", "said"), APART)
    def test_outputs_elsewhere_are_refused(self, gpus: Any, make: Any, said: str) -> None:
        with pytest.raises(LaunchError, match=said):
            self.names.kernel("small", gpus)(Array(gpus, values(SMALL)), out=make(gpus))

    def test_arrays_in_different_places_are_refused(self, gpus: Any) -> None:
        run = self.names.kernel("product", gpus)
        with pytest.raises(LaunchError, match="a in host memory, b on GPU 0"):
            run(values(A), Array(gpus, values(B)))
        with pytest.raises(LaunchError, match="a on GPU 1, b on GPU 0"):
            run(Array(gpus, values(A), number=1), Array(gpus, values(B)))
        with pytest.raises(LaunchError, match="2 expected"):
            run(Array(gpus, values(A)), Array(gpus, values(B)), Array(gpus, values(B)))
